"""Fitted constants of kernels: where they are kept, and which of them apply to a device, format and framework.

Shipped in `hardware/calibrations/*.toml`, one file per measured device and one of family defaults; `calibrate` writes
the same form and `--calibration` reads it. A device without data of its own borrows from its family, at its own
datasheet's rates, with a wider band and the word `default`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specmodel.errors import unknown_name
from specmodel.kernel_times.formulas import (
    AllreduceConstants,
    AttentionConstants,
    GemmConstants,
    MoeConstants,
    SmallConstants,
    WaitConstants,
)

if TYPE_CHECKING:
    from specmodel.datasheets import Device
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
OWN_KERNELS = ("llama.cpp",)  # shares none with the engines whose kernels were measured
ENGINES = {"tensorrt-llm": "trtllm", "trt-llm": "trtllm", "tensorrt_llm": "trtllm"}
Origin = Literal["measured", "default"]
_FAMILY_WIDER = (
    1.5  # band of constants borrowed from a sibling: H100 and B200 predict each other's bf16 kernels
)
# with 1.5 times the median error of their own constants
_MOST_OF_PEAK = 0.85
_HELD_UP_BELOW = 0.5  # of the bandwidth


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
        self,
        device: Device,
        kind: str,
        format_name: str,
        framework: str | None = None,
        *,
        shipped: bool = True,
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
        kinds = {
            "attention-mha": ("attention-mha", "attention"),
            "attention": ("attention", "attention-mha"),
        }.get(kind, (kind,))
        near = (format_name, "") if kind in _WITHOUT_FORMAT else _nearest_formats(format_name, device)
        own = dict(_indexed(self))
        for formats in (near[:-1] or near, near[-1:]):
            for name in (GIVEN, device.id):
                for fit in _candidates(own, name, kinds, formats, frameworks):
                    return fit
            if shipped:
                standing_in = _shipped_fit(device, kinds, formats, frameworks)
                if standing_in is not None:
                    return standing_in
        return None

    def to_toml(self) -> str:
        """The text that `read_calibration` reads back."""
        from specmodel.kernel_times.files import toml_text

        return toml_text(self.fits)


def known_for(device: Device, calibration: Calibration | None = None) -> bool:
    """Whether a calibrated time can be given on that device at all."""
    chosen = calibration or Calibration(())
    return chosen.find(device, "gemm", "bf16") is not None


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
        if re.match(r"i?q\d_k", asked.name):
            chain.append("k-quant")
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
    family, like = _family(device)
    defaults = {fit.key: fit for fit in _file("families.toml")[0]}
    own = [framework for framework in frameworks if framework in OWN_KERNELS]
    for name in (device.id, family, "any"):
        for fit in _candidates(defaults, name, kinds, formats, own):
            return fit
    for fit in _candidates(_shipped(device.id), device.id, kinds, formats, frameworks):
        return fit
    for name in (device.id, family):
        for fit in _candidates(defaults, name, kinds, formats, frameworks):
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
    (FlashMLA: 0.5 of an H100, 0.85 of an H20). Kernels that stream far below the bandwidth are held up by unpacking,
    as are those that read fp8 caches on Hopper, at 2.1-2.9 TB/s: a faster memory does not help them.
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
        return fit
    if isinstance(constants, (SmallConstants, WaitConstants)):
        return fit
    units = (sibling.sm_count or 1.0) / (device.sm_count or sibling.sm_count or 1.0)
    hopper_cache = (
        fit.kind.startswith("attention") and fit.format == "fp8" and device.architecture == "Hopper"
    )
    if hopper_cache or constants.bandwidth_share < _HELD_UP_BELOW:
        speed = units * device.bandwidth_bytes_per_s / sibling.bandwidth_bytes_per_s
        constants = replace(constants, bandwidth_share=constants.bandwidth_share / max(1.0, speed))
    if isinstance(constants, AttentionConstants):
        peak = units * device.peak("bf16")[0] / sibling.peak("bf16")[0]
        constants = replace(constants, flops_share=min(_MOST_OF_PEAK, constants.flops_share / peak))
    return replace(fit, constants=constants)


def _family(device: Device) -> tuple[str, str]:
    """Name of the family a device borrows from, and the measured device that stands for it ("" for none)."""
    for family in _file("families.toml")[1]:
        if (
            device.architecture in family["architectures"]
            and bool(device.link_bytes_per_s) in family["linked"]
        ):
            return str(family["name"]), str(family.get("like", ""))
    return "", ""


@cache
def _shipped(device_id: str) -> Mapping[tuple[str, str, str, str], Fit]:
    return _indexed(device_calibration(device_id))


def _indexed(calibration: Calibration) -> Mapping[tuple[str, str, str, str], Fit]:
    return {fit.key: fit for fit in reversed(calibration.fits)}


@cache
def _file(name: str) -> tuple[tuple[Fit, ...], tuple[dict[str, Any], ...]]:
    from specmodel.kernel_times.files import read_fits

    file = files("specmodel.hardware") / "calibrations" / name
    if not file.is_file():
        return (), ()
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(read_fits(tables, name)), tuple(tables.get("family", ()))
