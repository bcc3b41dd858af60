"""Machines by name, from the data files that ship, from a person's file, or from a few numbers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specmodel.datasheets import Datasheet, Device, Figure
from specmodel.device_files import FRACTIONS, TEXTS, given_figure, one_line, read_datasheet, read_toml
from specmodel.engine import IDEAL, EngineTime
from specmodel.errors import InputError, unknown_name

if TYPE_CHECKING:
    from specmodel.model import Model, Totals

# A header or an alias line of a shipped file; sources have a dot in theirs.
_ENTRY = re.compile(r"^(?:\[([a-z0-9-]+)\]|aliases = \[(.*)\])$", re.MULTILINE)
_MAKERS = re.compile(r"^(?:nvidia|geforce|tesla|amd|instinct|intel|google)+")


def devices() -> list[str]:
    """The ids of all machines in the catalogue, family by family."""
    return [identity for identity, _ in dict.fromkeys(_index().values())]


def datasheet(name: str) -> Datasheet:
    """All figures of a machine with their sources, known or not known well enough to compute with.

    Raises
    ------
    InputError
        For a name that is no id, no alias and no file ending in ``.toml``.
    """
    if isinstance(name, str) and name.casefold().endswith(".toml"):
        described = device_from_file(name).datasheet
        assert described is not None  # a device read from a file keeps what was read
        return described
    entry = _index().get(_fold(name)) if isinstance(name, str) else None
    if entry is None:
        raise unknown_name("device", str(name), devices())
    identity, file = entry
    tables = _entry(identity, file)
    return read_datasheet(identity, tables[identity], tables["sources"], where=f"{file} {identity}")


def device(name: str) -> Device:
    """A machine by id, alias or the name its driver prints, or from a file that ends in ``.toml``.

    Case, ``-``, ``_`` and spaces do not matter; a100, h100, h200 and b200 mean the SXM parts. Parts sold with
    several memory sizes take theirs from the name: ``apple-m3-ultra-512gb``.

    Raises
    ------
    InputError
        For an unknown name (with the nearest ones), and for a machine of which too little is known.
    """
    if isinstance(name, str) and name.casefold().endswith(".toml"):
        return device_from_file(name)
    sized = re.fullmatch(r"(.+?)(\d+)gb", _fold(name)) if isinstance(name, str) else None
    if sized and sized[1] in _index() and _fold(name) not in _index():
        sheet = datasheet(sized[1])
        if "memory" not in sheet.figures:
            return custom_device(memory=f"{sized[2]} GiB", base=sheet.id)
    return datasheet(name).device()


def custom_device(
    name: str | None = None,
    *,
    bandwidth: float | str | None = None,
    flops: float | str | None = None,
    memory: float | str | None = None,
    base: Device | str | None = None,
) -> Device:
    """A machine from a few numbers, alone or in place of those of a known one.

    Parameters
    ----------
    name : str, optional
        How to call it; "custom" by default.
    bandwidth, flops, memory : float or str, optional
        Memory bandwidth [B/s], dense 16-bit peak [FLOP/s] and memory [B], or text with a unit. All three are
        needed without a base.
    base : Device or str, optional
        Where every other figure comes from. Its other peaks scale with ``flops``.

    Raises
    ------
    InputError
        For values that are no such quantity, for what is missing, and for a peak about twice the dense peak
        of a known part: that is the figure with sparsity, which no decode kernel reaches.
    """
    if name is not None:
        one_line("name", name)
    options = {"bandwidth": bandwidth, "peak_bf16": flops, "memory": memory}
    labels = {"peak_bf16": "flops"}
    given = {
        figure: given_figure(labels.get(figure, figure), value, figure, "given as an option")
        for figure, value in options.items()
        if value is not None
    }
    known = _base(base)
    if known is None:
        for figure, value in options.items():
            if value is None:
                raise InputError(
                    labels.get(figure, figure), None, "needed for a machine that is based on no known one"
                )
    sheet = known or Datasheet("custom", "custom")
    if "peak_bf16" in given:
        if "peak_fp16" in sheet.figures and "peak_bf16" not in sheet.figures:
            given["peak_fp16"] = given.pop("peak_bf16")  # a card without bf16 does not gain it
        else:
            given["peak_fp16"] = given["peak_bf16"]
    _refuse_doubled(given, known, name)
    changed = sheet.changed(given)
    # Another memory alone makes no other machine: its kernels are as fast as before.
    if name is not None or known is None or any(figure in sheet.figures for figure in {*given} - {"memory"}):
        changed = _renamed(changed, name or "custom", based_on=known.name if known else "")
    return changed.device()


def device_from_file(path: str | Path) -> Device:
    """A machine described in a TOML file, in the form of the shipped ones but without the table header.

    A figure is a table ``{ value = 3.35e12, unit = "B/s", source = "key" }`` with a title under ``[sources.key]``,
    a bare number in SI units, or text with a unit; ``base = "h100-sxm"`` takes the rest from a known part. Unknown
    keys are refused.

    Raises
    ------
    InputError
        For a file that cannot be read, is not TOML, or holds what is not allowed: one line with file and key.
    """
    path = Path(path)
    table = read_toml(path)
    sources = table.pop("sources", {})
    if not isinstance(sources, dict):
        raise InputError(f"{path.name}: sources", sources, "must be tables [sources.key] with a title")
    based = table.pop("base", None)
    if based is not None and not isinstance(based, str):
        raise InputError(f"{path.name}: base", based, "must be the name of a known device")
    own = read_datasheet("custom", {"name": path.stem, **table}, sources, where=path.name)
    base = _base(based)
    _refuse_doubled(own.figures, base, own.name, where=path.name)
    if base is None:
        sheet = _renamed(own, own.name)
    else:
        texts = {key: getattr(own, key) for key in (*TEXTS, *FRACTIONS, "notes") if key in table}
        sheet = replace(_renamed(base.changed(own.figures), own.name, based_on=base.name), **texts)
    return replace(sheet, remarks=(*sheet.remarks, *_uneven_peaks(sheet, own.figures))).device()


def _uneven_peaks(sheet: Datasheet, given: Mapping[str, Figure]) -> list[str]:
    """A remark for every 8-bit peak given that is not twice the 16-bit one: dense and sparse figures get mixed."""
    wide = sheet.value("peak_bf16") or sheet.value("peak_fp16")
    remarks = []
    for figure in ("peak_fp8", "peak_int8"):
        if figure in given and wide is not None and not 1.8 <= given[figure].value / wide <= 2.2:
            remarks.append(
                f"{figure} is {given[figure].value / wide:.1f} times the 16-bit peak, where hardware has 2: "
                "one of them may be the figure with sparsity"
            )
    return remarks


def _base(base: Device | str | None) -> Datasheet | None:
    if base is None:
        return None
    if isinstance(base, str):
        return datasheet(base)
    if isinstance(base, Device) and base.datasheet is not None:
        return base.datasheet
    raise InputError("base", base, "must be a known device or its name")


def _renamed(sheet: Datasheet, name: str, *, based_on: str = "") -> Datasheet:
    identity = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "custom"
    notes = (f"based on {based_on}",) if based_on else sheet.notes
    return replace(sheet, id=identity, name=name, aliases=(), notes=notes)


def _refuse_doubled(
    given: Mapping[str, Figure], base: Datasheet | None, name: str | None, where: str = ""
) -> None:
    """Refuse peaks with sparsity and links with both directions added: twice what a known part has.

    Compared with the base and the part of that name, or else with every part of about the same bandwidth; a
    value that is some such part's dense peak passes.
    """
    doubtful = [figure for figure in given if figure.startswith("peak_") or figure == "link"]
    if not doubtful:
        return
    known = [] if base is None else [base]
    if name is not None and _fold(name) in _index():
        known.append(datasheet(name))
    bandwidth = given.get("bandwidth")
    if not known and bandwidth is not None:
        sheets = [datasheet(identity) for identity in devices()]
        known = [s for s in sheets if abs((s.value("bandwidth") or 0.0) / bandwidth.value - 1) < 0.01]
    for figure in doubtful:
        value = given[figure].value
        parts = {s.id: v for s in known if (v := s.value(figure)) is not None}
        if any(abs(value / part - 1) < 0.05 for part in parts.values()):
            continue
        for identity, part in parts.items():
            if 1.9 <= value / part <= 2.1:
                label = f"{where}: {figure}" if where else "flops"
                if figure == "link":
                    raise InputError(
                        label,
                        f"{value / 1e9:g} GB/s",
                        f"twice the link of {identity}: both directions added; one is {part / 1e9:g} GB/s",
                    )
                raise InputError(
                    label,
                    f"{value / 1e12:g} TFLOP/s",
                    f"twice the dense peak of {identity}: looks like the figure with sparsity (or FP16 "
                    f"accumulation); dense is {part / 1e12:g} TFLOP/s",
                )


def _fold(name: str) -> str:
    """A name without what people write differently: case, separators, the maker in front."""
    return _MAKERS.sub("", re.sub(r"[-_.\s]", "", name.casefold()))


def _folder() -> Traversable:
    return files("specmodel") / "hardware" / "devices"


@cache
def _index() -> Mapping[str, tuple[str, str]]:
    """Folded id or alias -> (id, file), from header and alias lines alone: no other family is parsed."""
    found: dict[str, tuple[str, str]] = {}
    families = (file for file in _folder().iterdir() if file.name.endswith(".toml"))
    for file in sorted(families, key=lambda file: file.name):
        identity = ""
        for header, aliases in _ENTRY.findall(file.read_text(encoding="utf-8")):
            identity = header or identity
            for name in [header] if header else re.findall(r'"([^"]*)"', aliases):
                found.setdefault(_fold(name), (identity, file.name))
    return found


@cache
def _entry(identity: str, file: str) -> Mapping[str, Any]:
    """One device's table and the sources of its file, without parsing its neighbours."""
    text = (_folder() / file).read_text(encoding="utf-8")
    start = text.index(f"[{identity}]\n")
    return tomllib.loads(text[start : text.index("\n[", start)] + text[text.index("\n[sources.") :])


def engines() -> list[str]:
    """The ids of the engines whose fixed times are known, `ideal` first."""
    folder = files("specmodel") / "hardware" / "engines"
    found = sorted(f.name.removesuffix(".toml") for f in folder.iterdir()) if folder.is_dir() else []
    return [IDEAL.id, *found]


def engine(name: str) -> EngineTime:
    """The fixed times of an engine, by name or from a file that ends in ``.toml``; `ideal` charges none.

    Raises
    ------
    InputError
        For an engine without a file, and for a file that holds what is not allowed.
    """
    if name == IDEAL.id:
        return IDEAL
    from specmodel.engine_files import read_engine

    if name.casefold().endswith(".toml"):
        return read_engine(name)
    by_folded = {_fold(known).replace(".", ""): known for known in engines()}
    asked = _fold(name).replace(".", "")
    asked = {"trtllm": "tensorrtllm", "hf": "transformers"}.get(asked, asked)
    if asked not in by_folded:
        raise unknown_name("engine", name, engines())
    return _engine(by_folded[asked])


@cache
def _engine(identity: str) -> EngineTime:
    from specmodel.engine_files import read_engine

    return read_engine(files("specmodel") / "hardware" / "engines" / f"{identity}.toml")


def models() -> list[str]:
    """The ids of all models in the catalogue."""
    from specmodel.readers import catalogue

    return catalogue.ids()


def model(name: str, weights: str | None = None, kv: str | None = None) -> Model | Totals:
    """A model by catalogue id, hub id, alias or path, in its own formats or those given.

    Raises
    ------
    InputError
        For an unknown name (with the nearest ones), or a file that describes no decoder known here.
    """
    from specmodel import readers

    return readers.find_model(name, weights=weights, kv=kv)
