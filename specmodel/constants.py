"""Fitted constants of kernels: where they are kept, and which of them apply to a device, format and framework.

Shipped in `hardware/calibrations/*.toml`, one file per measured device and one of family defaults; `calibrate` writes
the same form and `--calibration` reads it. A device without data of its own borrows from its family, at its own
datasheet's rates, with a wider band and the word `default`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specmodel.errors import InputError, unknown_name
from specmodel.kernel_time import (
    AllreduceConstants,
    AttentionConstants,
    GemmConstants,
    MoeConstants,
    SmallConstants,
    WaitConstants,
)

if TYPE_CHECKING:
    from specmodel.device import Device
    from specmodel.formats import NumberFormat

Constants: TypeAlias = (
    GemmConstants | AttentionConstants | MoeConstants | AllreduceConstants | SmallConstants | WaitConstants
)
FORMS: Mapping[str, type[Constants]] = {
    "gemm": GemmConstants,
    "attention": AttentionConstants,
    "attention-mha": AttentionConstants,  # one query head per KV head: engines run another kernel there
    "moe": MoeConstants,
    "allreduce": AllreduceConstants,
    "small": SmallConstants,
    "wait": WaitConstants,
}
_WITHOUT_FORMAT = ("allreduce", "small", "wait")
POOLED = "pooled"
GIVEN = "given"  # the device of constants in a person's file that apply to whatever device is asked about
ENGINES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "tensorrt_llm": "trtllm"}
Origin = Literal["measured", "default"]
_FAMILY_WIDER = 1.5  # band of constants borrowed from a sibling: H100 and B200 predict each other's bf16 kernels
# with 1.5 times the median error of their own constants
_MOST_OF_PEAK = 0.85
_MAX_FILE_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one kind of kernel, and how well they describe what they were fitted to.

    Attributes
    ----------
    device, kind, format, framework : str
        What they apply to; `framework` is "pooled" over all, for all-reduces the implementation.
    constants : Constants
        The fitted values, SI units.
    standard_errors : mapping
        Of each fitted constant, relative. Rows of one shape are not independent: take them as lower bounds.
    rows : int
        Measured times used; 0 for defaults.
    error, left_out : float or None
        Median absolute error on those rows, and on shapes left out of the fit. Relative.
    low, middle, high : float
        10, 50 and 90 % quantiles of measured / predicted, on left-out shapes where there are several.
    origin : "measured" or "default"
        Default: not fitted to data of this device.
    source : str
        Where the times, or the default, come from.
    at_bound : tuple of str
        Constants that ended at a limit of what is physically possible.
    """

    device: str
    kind: str
    format: str
    framework: str
    constants: Constants
    standard_errors: Mapping[str, float]
    rows: int
    error: float | None
    left_out: float | None
    low: float
    middle: float
    high: float
    origin: Origin
    source: str
    at_bound: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies it in a calibration."""
        return self.device, self.kind, self.format, self.framework

    def widened(self, factor: float, source: str) -> Fit:
        """The same constants, borrowed: a wider band, and marked as a default."""
        return replace(
            self,
            low=self.low**factor if self.low < 1.0 else self.low,
            high=self.high**factor if self.high > 1.0 else self.high,
            origin="default",
            source=source,
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """A set of fits; the first that applies is taken."""

    fits: tuple[Fit, ...]

    def find(
        self, device: Device, kind: str, format_name: str, framework: str | None = None, *, shipped: bool = True
    ) -> Fit | None:
        """The constants for a kernel on a device, or None where nothing is known that could stand in.

        Tried in turn, each with the framework asked for and then pooled: the device's own fit of that format; of the
        nearest format; the same of its family. A kernel for which all of that is missing is timed with the bf16
        constants, at its own bytes and rate.

        Parameters
        ----------
        kind : str
            A key of `FORMS`.
        format_name : str
            Name of the number format of what is streamed; "" for all-reduces, the operator's name for small kernels.
        framework : str, optional
            Engine, or implementation for all-reduces.
        shipped : bool
            Whether to go on with the constants that ship once these do not apply.
        """
        if kind not in FORMS:
            raise unknown_name("kernel kind", kind, FORMS)
        frameworks = _frameworks(kind, framework)
        kinds = {"attention-mha": ("attention-mha", "attention"), "attention": ("attention", "attention-mha")}.get(
            kind, (kind,)
        )
        near = (format_name, "") if kind in _WITHOUT_FORMAT else _nearest_formats(format_name, device)
        own = dict(_indexed(self))
        for formats in (near[:-1] or near, near[-1:]):
            for name in (GIVEN, device.id):
                for fit in _candidates(own, name, kinds, formats, frameworks):
                    return fit
            if shipped:
                fit = _shipped_fit(device, kinds, formats, frameworks)
                if fit is not None:
                    return fit
        return None

    def to_toml(self) -> str:
        """The text that `read_calibration` reads back."""
        return "\n".join(["# Constants fitted by specmodel calibrate; SI units.", *map(_table, self.fits)]) + "\n"


def known_for(device: Device, calibration: Calibration | None = None) -> bool:
    """Whether a calibrated time can be given on that device at all."""
    chosen = calibration or Calibration(())
    return chosen.find(device, "gemm", "bf16") is not None


def read_calibration(path: str | Path) -> Calibration:
    """Constants from a TOML file that `specmodel calibrate` wrote, or one in its form.

    Raises
    ------
    InputError
        For a file that cannot be read, is not TOML, or holds what is not allowed: one line naming file and key.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError("calibration", str(path), f"cannot be read: {getattr(error, 'strerror', error)}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError("calibration", str(path), "must be a TOML file of at most 4 MB")
    try:
        tables = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError("calibration", str(path), f"must be a TOML file: {' '.join(str(error).split())[:200]}") from None
    return Calibration(tuple(_fits(tables, path.name)))


def device_calibration(device_id: str) -> Calibration:
    """The shipped constants fitted to data of one device; empty where there is none."""
    return Calibration(_file(f"{device_id}.toml")[0])


def calibrated_devices() -> list[str]:
    """Ids of the devices whose own kernels were measured."""
    folder = files("specmodel.hardware") / "calibrations"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return sorted(name.removesuffix(".toml") for name in names if name != "families.toml")


def _frameworks(kind: str, framework: str | None) -> tuple[str, ...]:
    if framework is None or framework == POOLED:
        return (POOLED,)
    name = ENGINES.get(framework.casefold(), framework.casefold())
    if kind == "allreduce" and not name.endswith(("_graph", "_eager")) and name != "nccl":
        name += "_graph"
    return name, POOLED


def _nearest_formats(name: str, device: Device) -> tuple[str, ...]:
    """Formats whose kernels stand in for that one, nearest first; bf16 last."""
    from specmodel.formats import number_format

    if name == "mxfp4-a8":  # 4-bit experts with 8-bit activations: known from measured tables only
        return "mxfp4-a8", "nvfp4", "fp8", "bf16"
    asked: NumberFormat = number_format(name)
    chain = [asked.name]
    if asked.weight_only or (asked.rate not in device.peak_flops_per_s and asked.rate != "bf16"):
        if asked.name == "fp8-block":
            chain.append("fp8")
        narrow = ["int4-g128", "mxfp4"]  # the second is known for experts only
        chain += [*narrow, "int8-wo"] if asked.bits < 6.0 else ["int8-wo", *narrow]
    elif asked.rate in ("fp8", "int8"):
        chain.append("fp8")
    return *dict.fromkeys(entry for entry in chain if entry != "bf16"), "bf16"


def _candidates(
    index: Mapping[tuple[str, str, str, str], Fit],
    device: str,
    kinds: Iterable[str],
    formats: Iterable[str],
    frameworks: Iterable[str],
) -> Iterable[Fit]:
    for kind in kinds:
        for name in formats:
            for framework in frameworks:
                if (fit := index.get((device, kind, name, framework))) is not None:
                    yield fit


def _shipped_fit(
    device: Device, kinds: tuple[str, ...], formats: tuple[str, ...], frameworks: tuple[str, ...]
) -> Fit | None:
    for fit in _candidates(_shipped(device.id), device.id, kinds, formats, frameworks):
        return fit
    family, like = _family(device)
    defaults = {fit.key: fit for fit in _file("families.toml")[0]}
    for fit in _candidates(defaults, family, kinds, formats, frameworks):
        return fit
    for fit in _candidates(_shipped(like), like, kinds, formats, frameworks) if like else ():
        source = f"default of the {family} family, fitted on {like}: {fit.source}"
        return _adapted(fit, like, device).widened(_FAMILY_WIDER, source)
    for fit in _candidates(defaults, "any", kinds, formats, frameworks):
        return fit
    return None


def _adapted(fit: Fit, like: str, device: Device) -> Fit:
    """What of a sibling's constants is no share of a datasheet figure, brought to the device's own figures.

    All-reduce rates go with the link. Attention arithmetic is held up by work beside the matrix products, which goes
    with the number of multiprocessors: a part with a lower peak on as many of them reaches a larger share of it
    (FlashMLA: 0.5 of an H100, 0.85 of an H20).
    """
    from specmodel import catalog

    sibling, constants = catalog.device(like), fit.constants
    if isinstance(constants, AllreduceConstants):
        theirs, ours = sibling.link_bytes_per_s, device.link_bytes_per_s
        if theirs and ours and theirs != ours:
            direct, ring = constants.direct_bytes_per_s, constants.ring_bytes_per_s
            scaled = replace(
                constants, direct_bytes_per_s=direct * ours / theirs, ring_bytes_per_s=ring * ours / theirs
            )
            return replace(fit, constants=scaled)
    if isinstance(constants, AttentionConstants) and sibling.sm_count and device.sm_count:
        theirs = sibling.peak("bf16")[0] / sibling.sm_count
        ours = device.peak("bf16")[0] / device.sm_count
        share = min(_MOST_OF_PEAK, constants.flops_share * theirs / ours)
        return replace(fit, constants=replace(constants, flops_share=share))
    return fit


def _family(device: Device) -> tuple[str, str]:
    """Name of the family a device borrows from, and the measured device that stands for it ("" for none)."""
    for family in _file("families.toml")[1]:
        if device.architecture in family["architectures"] and bool(device.link_bytes_per_s) in family["linked"]:
            return str(family["name"]), str(family.get("like", ""))
    return "", ""


@cache
def _shipped(device_id: str) -> Mapping[tuple[str, str, str, str], Fit]:
    return _indexed(device_calibration(device_id))


def _indexed(calibration: Calibration) -> Mapping[tuple[str, str, str, str], Fit]:
    return {fit.key: fit for fit in reversed(calibration.fits)}


@cache
def _file(name: str) -> tuple[tuple[Fit, ...], tuple[dict[str, Any], ...]]:
    file = files("specmodel.hardware") / "calibrations" / name
    if not file.is_file():
        return (), ()
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(_fits(tables, name)), tuple(tables.get("family", ()))


def _fits(tables: Mapping[str, Any], where: str) -> Iterable[Fit]:
    listed = tables.get("fit", [])
    if not isinstance(listed, list) or not (listed or "family" in tables):
        raise InputError(f"{where}: fit", listed, "must be one or more tables [[fit]]")
    for number, table in enumerate(listed, start=1):
        yield _read_fit(table, f"{where}: fit {number}")


def _read_fit(table: object, label: str) -> Fit:
    if not isinstance(table, dict):
        raise InputError(label, table, "must be a table")
    known = {entry.name for entry in fields(Fit)}
    for key in table:
        if key not in known:
            raise unknown_name(f"{label} key", key, sorted(known))
    kind = _text(table, "kind", label)
    if kind not in FORMS:
        raise unknown_name(f"{label} kind", kind, FORMS)
    numbers = {key: _number(table, key, label) for key in ("low", "middle", "high") if key in table}
    origin = table.get("origin", "measured")
    if origin not in ("measured", "default"):
        raise InputError(f"{label} origin", origin, "must be measured or default")
    return Fit(
        device=_text(table, "device", label),
        kind=kind,
        format=_text(table, "format", label, empty=True),
        framework=_text(table, "framework", label) if "framework" in table else POOLED,
        constants=_constants(kind, table.get("constants"), label),
        standard_errors=_errors(table.get("standard_errors", {}), label),
        rows=int(_number(table, "rows", label, low=0.0)) if "rows" in table else 0,
        error=_number(table, "error", label, low=0.0) if "error" in table else None,
        left_out=_number(table, "left_out", label, low=0.0) if "left_out" in table else None,
        low=numbers.get("low", 1.0),
        middle=numbers.get("middle", 1.0),
        high=numbers.get("high", 1.0),
        origin=origin,
        source=_text(table, "source", label) if "source" in table else label,
        at_bound=tuple(str(name) for name in table.get("at_bound", ())),
    )


def _constants(kind: str, table: object, label: str) -> Constants:
    form = FORMS[kind]
    if not isinstance(table, dict):
        raise InputError(f"{label} constants", table, "must be a table of numbers")
    entries = {entry.name: entry for entry in fields(form)}
    for key in table:
        if key not in entries:
            raise unknown_name(f"{label} constant", key, entries)
    may_be_zero = {name for name in entries if entries[name].default in (0.0,)} | {"peer_s", "relay_s", "fixed_s"}
    values = {}
    for name, entry in entries.items():
        if name in table:
            values[name] = _number(table, name, label, low=0.0, zero=name in may_be_zero)
        elif not isinstance(entry.default, float):
            raise InputError(f"{label} constants", table, f"{name} is missing")
    return form(**values)


def _errors(table: object, label: str) -> dict[str, float]:
    if not isinstance(table, dict):
        raise InputError(f"{label} standard_errors", table, "must be a table of numbers")
    return {str(name): _number(table, name, label, low=0.0) for name in table}


def _text(table: Mapping[str, Any], key: str, label: str, *, empty: bool = False) -> str:
    value = table.get(key, "" if empty else None)
    if not isinstance(value, str) or not (value or empty) or len(value) > 500:
        raise InputError(f"{label} {key}", value, "must be a text")
    return value


def _number(
    table: Mapping[str, Any], key: str, label: str, *, low: float = 0.0, zero: bool = True
) -> float:
    value = table[key]
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value < low or (value == 0.0 and not zero):
        raise InputError(f"{label} {key}", value, f"must be a finite number {'>=' if zero else 'above'} {low:g}")
    return float(value)


def _table(fit: Fit) -> str:
    """One [[fit]] table; four significant digits are more than any of these numbers carries."""
    lines = ["", "[[fit]]"]
    for name in ("device", "kind", "format", "framework"):
        lines.append(f"{name} = {_quoted(getattr(fit, name))}")
    lines.append(f"origin = {_quoted(fit.origin)}")
    lines.append(f"source = {_quoted(fit.source)}")
    lines.append(f"rows = {fit.rows}")
    for name in ("error", "left_out", "low", "middle", "high"):
        value = getattr(fit, name)
        if value is not None:
            lines.append(f"{name} = {value:.4g}" if value else f"{name} = 0.0")
    if fit.at_bound:
        lines.append(f"at_bound = [{', '.join(map(_quoted, fit.at_bound))}]")
    pairs = [(entry.name, getattr(fit.constants, entry.name)) for entry in fields(fit.constants)]
    lines.append("constants = { " + ", ".join(f"{name} = {_shown(value)}" for name, value in pairs) + " }")
    if fit.standard_errors:
        shown = ", ".join(f"{name} = {_shown(value)}" for name, value in fit.standard_errors.items())
        lines.append(f"standard_errors = {{ {shown} }}")
    return "\n".join(lines)


def _shown(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(mark in text for mark in ".e") else text + ".0"


def _quoted(text: str) -> str:
    """A TOML basic string; control characters have no business in one line."""
    kept = "".join(letter for letter in text if letter.isprintable())
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
