"""Device tables as they stand in TOML files, checked key by key: the shipped ones and those people write."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specmodel.datasheets import FIGURES, KINDS, Datasheet, Figure, quantity, si_unit
from specmodel.errors import InputError, unknown_name

TEXTS = ("name", "vendor", "architecture", "compute_capability", "link_type")
LISTS = ("aliases", "warnings", "notes")
FRACTIONS = ("textbook_fraction", "usable_memory_fraction")
_FIGURE_KEYS = ("value", "unit", "kind", "source", "note", "unverified", "conflict")
_MAX_FILE_BYTES = 1_000_000


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a person's TOML file of at most 1 MB; whatever is wrong with it is one InputError."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = getattr(error, "strerror", None) or str(error)
        raise InputError("device", str(path), f"cannot be read: {problem}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError("device", str(path), "must be a TOML file of at most 1 MB")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError("device", str(path), "must be a TOML file in UTF-8") from None
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError("device", str(path), f"must be a TOML file: {problem}") from None


def read_datasheet(
    identity: str, table: Mapping[str, Any], sources: Mapping[str, Any], *, where: str
) -> Datasheet:
    """One table of a device file, checked key by key."""
    allowed = (*TEXTS, *LISTS, *FRACTIONS, *FIGURES)
    figures: dict[str, Figure] = {}
    texts: dict[str, Any] = {}
    for key, value in table.items():
        label = f"{where}: {key}"
        if key in FIGURES:
            figures[key] = _figure(label, value, key, sources, where)
        elif key in TEXTS:
            texts[key] = one_line(label, value)
        elif key in LISTS:
            if not isinstance(value, list):
                raise InputError(label, value, "must be a list of texts")
            texts["remarks" if key == "warnings" else key] = tuple(one_line(label, item) for item in value)
        elif key in FRACTIONS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0.0 < value <= 1.0:
                raise InputError(label, value, "must be a number above 0 up to 1")
            texts[key] = float(value)
        else:
            raise unknown_name(f"{where}: key", key, allowed)
    return Datasheet(identity, texts.pop("name", identity), figures=figures, **texts)


def _figure(label: str, raw: object, figure: str, sources: Mapping[str, Any], where: str) -> Figure:
    if not isinstance(raw, dict):
        return given_figure(label, raw, figure, f"given in {where}")
    for key in raw:
        if key not in _FIGURE_KEYS:
            raise unknown_name(f"{label} key", key, _FIGURE_KEYS)
    if "value" not in raw:
        raise InputError(label, raw, "must have a value")
    unverified = raw.get("unverified", False)
    if not isinstance(unverified, bool):
        raise InputError(f"{label} unverified", unverified, "must be true or false")
    kind = raw.get("kind", "given")
    if kind not in KINDS:
        raise InputError(f"{label} kind", kind, "must be one of " + ", ".join(KINDS))
    unit = one_line(f"{label} unit", raw.get("unit", ""), empty=True)
    bare = given_figure(label, raw["value"], figure, f"given in {where}", unit)
    return Figure(
        bare.value,
        bare.unit,
        kind,
        _source(label, raw["source"], sources) if "source" in raw else bare.source,
        one_line(f"{label} note", raw.get("note", ""), empty=True),
        unverified,
        one_line(f"{label} conflict", raw.get("conflict", ""), empty=True),
    )


def given_figure(label: str, value: object, figure: str, source: str, unit: str = "") -> Figure:
    """A figure that a person gave, in SI units."""
    return Figure(quantity(label, value, figure, unit), si_unit(figure), "given", source)


def _source(label: str, keys: object, sources: Mapping[str, Any]) -> str:
    """The titles behind one or several source keys."""
    said = []
    for key in keys if isinstance(keys, list) else [keys]:
        entry = sources.get(key) if isinstance(key, str) else None
        if not isinstance(entry, dict) or "title" not in entry:
            raise InputError(f"{label} source", key, "must name a table [sources.key] with a title")
        title = one_line(f"{label} source title", entry["title"])
        said.append(f"{title}, {one_line(f'{label} source url', entry['url'])}" if "url" in entry else title)
    return "; ".join(said)


def one_line(label: str, value: Any, *, empty: bool = False) -> str:
    """A printable text of one line; control characters would reach the terminal."""
    fits = isinstance(value, str) and value.isprintable() and len(value) <= 500
    if not fits or not (value.strip() or empty):
        raise InputError(label, value, "must be a text of one line, at most 500 characters")
    return str(value)
