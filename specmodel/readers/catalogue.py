"""Models and draft heads that are known by name: a config each, found through a small index.

Names ignore case, ``-`` and ``_``; the short id, the hub id, the part after its slash and the aliases all do.
Loading one entry parses the index and that entry's file, no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specmodel.errors import InputError, unknown_name
from specmodel.readers import json_file

if TYPE_CHECKING:
    from specmodel.model import Model, Totals

_FOLDER = Path(__file__).parent.parent / "model_configs"
_META = "_specmodel"


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue entry: its id, the hub id, and the name it was asked for by."""

    id: str
    hub: str | None
    asked: str

    @property
    def is_alias(self) -> bool:
        """Whether it was asked for by the name of another model of the same shape."""
        asked = folded(self.asked)
        own = {folded(self.id)} | ({folded(self.hub), folded(self.hub.split("/")[-1])} if self.hub else set())
        return asked not in own


def folded(name: str) -> str:
    """A name as it is compared: no case, no ``-``, ``_`` or spaces."""
    return name.strip().casefold().replace("-", "").replace("_", "").replace(" ", "")


@cache
def index() -> Mapping[str, Any]:
    """Ids, hub ids and aliases of all entries; draft heads with their targets."""
    return json_file.read_object(_FOLDER / "index.json")


@cache
def _by_name() -> Mapping[str, str]:
    """Every accepted name, folded, to its id; ids win over hub ids, those over aliases."""
    found: dict[str, str] = {}
    models = index()["models"]
    for entry_id in models:
        found.setdefault(folded(entry_id), entry_id)
    for entry_id, known in models.items():
        if known["hub"]:
            found.setdefault(folded(known["hub"]), entry_id)
            found.setdefault(folded(known["hub"].split("/")[-1]), entry_id)
    for entry_id, known in models.items():
        for name in known["names"]:
            found.setdefault(folded(name), entry_id)
            found.setdefault(folded(name.split("/")[-1]), entry_id)
    return found


def ids() -> list[str]:
    """Ids of all models, in the order of the catalogue."""
    return list(index()["models"])


def lookup(name: str) -> Entry | None:
    """The entry of that name, None where there is none."""
    entry_id = _by_name().get(folded(name))
    return None if entry_id is None else Entry(entry_id, index()["models"][entry_id]["hub"], name)


def find(name: str) -> Entry:
    """The entry of that name.

    Raises
    ------
    InputError
        If the catalogue has none; the nearest names are given.
    """
    entry = lookup(name)
    if entry is None:
        raise unknown_name("model", name, ids())
    return entry


def path_of(entry_id: str) -> Path:
    """The file that holds an entry's config."""
    return _FOLDER / f"{entry_id}.json"


def config(entry_id: str) -> dict[str, Any]:
    """What an entry's file holds; ``about`` is kept under "_specmodel"."""
    return json_file.read_object(path_of(entry_id))


def about(entry_id: str) -> Mapping[str, Any]:
    """Hub id, source, confidence, note and published counts of an entry."""
    found: Mapping[str, Any] = config(entry_id)[_META]
    return found


def load_entry(entry: Entry, weights: str | None = None, kv: str | None = None) -> Model | Totals:
    """The model of an entry; ``Totals`` for the lecture's.

    Raises
    ------
    InputError
        If the entry is of a kind that is not modelled, with the reason, or a format is unknown.
    """
    from specmodel.readers import from_config

    held = config(entry.id)
    known = held[_META]
    if "totals" in known:
        from specmodel.model import Totals

        if weights is not None or kv is not None:
            given = weights if weights is not None else kv
            raise InputError("weights" if weights else "kv", given, f"{entry.id} is given as totals only")
        return Totals(entry.id, **known["totals"], source=known["source"])
    notes = []
    if entry.is_alias:
        notes.append(f"{entry.asked}: read as {entry.hub}, which has the same shapes")
    if known["confidence"] == "arithmetic-only":
        notes.append("its shapes were not seen; they reproduce the published element count exactly")
    model = from_config(held, entry.id, f"catalogue: {known['source']}", notes=tuple(notes))
    return model.with_precision(weights, kv)


@dataclass(frozen=True, slots=True)
class Check:
    """Counted against published figures of one entry; ``equal`` is None where there are none."""

    id: str
    parameters: int | None
    published: int | None
    kv_bytes_per_token: float | None
    published_kv_bytes_per_token: int | None
    hub_elements: int | None
    equal: bool | None
    remark: str


def check(entry_id: str) -> Check:
    """One row of the table that compares every entry with what was published."""
    known = about(entry_id)
    counts = known.get("counts", {})
    published, published_kv = counts.get("parameters"), counts.get("kv_bytes_per_token_bf16")
    hub = counts.get("hub_elements")
    try:
        model = load_entry(Entry(entry_id, None, entry_id))
    except InputError as error:
        return Check(entry_id, None, published, None, published_kv, hub, None, f"refused: {error}")
    architecture = getattr(model, "architecture", None)
    if architecture is None:
        return Check(entry_id, None, None, None, None, None, None, "given as totals")
    kv = 2 * architecture.kv_elements_per_token
    counted: int = architecture.parameters
    remark = known.get("counts", {}).get("hub_difference", "")
    if published is None:
        against_hub = "" if hub is None else "compared with the hub's element count"
        remark = remark or "; ".join(architecture.unverified) or against_hub or "nothing to compare with"
        equal = None if hub is None else counted == hub
    else:
        equal = counted == published and kv == published_kv
    return Check(entry_id, counted, published, kv, published_kv, hub, equal, remark)
