"""What a machine can do: figures with their sources, and the device that the arithmetic uses."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specmodel.errors import InputError, unknown_name

RATES = ("bf16", "fp16", "fp8", "int8", "fp4")
KINDS = ("datasheet", "derived", "measured", "given")

# What a figure is counted in, and the range outside of which a value is a slip (of a unit, mostly).
_LIMITS = {
    "bytes": (1e3, 1e15, "B", "a size such as '80 GiB', or a number of bytes"),
    "bytes_per_s": (1e8, 1e15, "B/s", "a rate such as '3.35 TB/s', or a number of bytes per second"),
    "flops_per_s": (
        1e9,
        1e19,
        "FLOP/s",
        "a dense rate such as '989 TFLOP/s', or a number of FLOP/s",
    ),
    "count": (1, 1e6, "1", "a whole number"),
    "watts": (0.1, 1e6, "W", "a power such as '700 W', or a number of watts"),
}
_MEMORY_FLOOR = 1e8

FIGURES: Mapping[str, str] = {
    "memory": "bytes",
    "bandwidth": "bytes_per_s",
    **{f"peak_{rate}": "flops_per_s" for rate in RATES},
    "link": "bytes_per_s",
    "pcie": "bytes_per_s",
    "sm_count": "count",
    "l2": "bytes",
    "tdp": "watts",
    **{f"measured_gemm_{rate}": "flops_per_s" for rate in ("bf16", "fp8", "nvfp4")},
    **{f"measured_mamf_{rate}": "flops_per_s" for rate in ("bf16", "fp8")},
    **{f"measured_read_{rate}": "bytes_per_s" for rate in ("bf16", "bf16_low", "bf16_high", "fp8", "nvfp4")},
}

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z/0-9]*)\s*")
_PREFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_SUFFIXES = {
    "bytes": ("b",),
    "bytes_per_s": ("b/s",),
    "flops_per_s": ("flop/s", "flops", "op/s", "ops"),
    "count": ("1",),
    "watts": ("w",),
}


def _unit_factor(dimension: str, unit: str) -> int | None:
    """How many SI units one ``unit`` is; None where it is no unit of this dimension."""
    if not unit:
        return 1
    if re.fullmatch(r"[KMGTP]?b(/s)?", unit):  # Gb/s is bits per second: eight times off, never guessed
        return None
    folded = unit.casefold()
    for suffix in _SUFFIXES[dimension]:
        if folded.endswith(suffix):
            prefix = folded.removesuffix(suffix)
            if prefix in _PREFIX:
                return _PREFIX[prefix]
            if dimension in ("bytes", "bytes_per_s") and prefix in _BINARY:
                return _BINARY[prefix]
    return None


def si_unit(figure: str) -> str:
    """What `quantity` returns for this figure: B, B/s, FLOP/s, W or 1."""
    return _LIMITS[FIGURES[figure]][2]


def quantity(label: str, value: object, figure: str, unit: str = "") -> float:
    """A figure of a device in SI units, from a number or from text with a unit.

    Parameters
    ----------
    label : str
        What the person typed it for; the error names it.
    value : int, float or str
        A number in SI units (B, B/s, FLOP/s, W), or text such as ``"80 GiB"``, ``"3.35 TB/s"``
        or ``"989 TFLOP/s"``.
    figure : str
        A key of `FIGURES`; decides which units and which range are allowed.
    unit : str
        The unit of a bare number, where a file names it apart.

    Raises
    ------
    InputError
        For text that is no quantity, a unit of another dimension, and values that are not finite, not
        positive, or so far out that a unit must have been lost.
    """
    dimension = FIGURES[figure]
    low, high, base, example = _LIMITS[dimension]
    if figure == "memory":
        low = _MEMORY_FLOOR
    factor: int | None
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if match is None:
            raise InputError(label, value, f"must be {example}")
        number, unit = float(match[1]), match[2] or unit
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        raise InputError(label, value, f"must be {example}")
    factor = _unit_factor(dimension, unit)
    if factor is None:
        raise InputError(label, value, f"{unit!r} is not a unit here; write {example}")
    number *= factor
    if not (math.isfinite(number) and low <= number <= high):
        raise InputError(label, value, f"must be from {low:g} to {high:g} {base}; write {example}")
    if dimension == "count" and number != int(number):
        raise InputError(label, value, "must be a whole number")
    return number


@dataclass(frozen=True, slots=True)
class Figure:
    """One number about a device, in SI units, and where it comes from."""

    value: float
    unit: str
    kind: str  # datasheet, derived, measured; "given" where a person gave it
    source: str
    note: str = ""
    unverified: bool = False
    conflict: str = ""

    def warnings(self, name: str) -> list[str]:
        """What to say when this figure is used."""
        said = [f"{name}: sources disagree: {self.conflict}"] if self.conflict else []
        return [*said, f"{name}: unverified ({self.source})"] if self.unverified else said


@dataclass(frozen=True, slots=True)
class Datasheet:
    """All that is known of one machine. What is unknown is absent from ``figures``."""

    id: str
    name: str
    vendor: str = ""
    architecture: str = ""
    compute_capability: str = ""
    aliases: tuple[str, ...] = ()
    link_type: str = ""
    textbook_fraction: float = 1.0
    usable_memory_fraction: float = 0.9
    figures: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    remarks: tuple[str, ...] = ()  # warnings that belong to no single figure
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Conflicts between sources and unverified figures, one line each."""
        said = [line for name, figure in self.figures.items() for line in figure.warnings(name)]
        return (*said, *self.remarks)

    def value(self, figure: str) -> float | None:
        """A figure in SI units, or None where it is not known."""
        known = self.figures.get(figure)
        return None if known is None else known.value

    def device(self) -> Device:
        """The device to compute with.

        Raises
        ------
        InputError
            Where the memory, the bandwidth or every 16-bit peak is unknown (Apple parts are sold with
            several memory sizes).
        """
        peaks = {rate: f.value for rate in RATES if (f := self.figures.get(f"peak_{rate}")) is not None}
        if not {"bf16", "fp16"} & peaks.keys():
            raise InputError("device", self.id, "its 16-bit peak is not known: give flops, as 989 TFLOP/s")
        return Device(
            id=self.id,
            name=self.name,
            architecture=self.architecture,
            memory_bytes=self._needed("memory", "64 GiB"),
            bandwidth_bytes_per_s=self._needed("bandwidth", "3.35 TB/s"),
            peak_flops_per_s=peaks,
            l2_bytes=self.value("l2"),
            sm_count=self.value("sm_count"),
            link_bytes_per_s=self.value("link"),
            pcie_bytes_per_s=self.value("pcie"),
            textbook_fraction=self.textbook_fraction,
            usable_memory_fraction=self.usable_memory_fraction,
            warnings=self.warnings,
            sources={name: figure.source for name, figure in self.figures.items()},
            measured={
                name.removeprefix("measured_"): figure.value
                for name, figure in self.figures.items()
                if name.startswith("measured_")
            },
            datasheet=self,
        )

    def _needed(self, figure: str, example: str) -> float:
        value = self.value(figure)
        if value is None:
            raise InputError("device", self.id, f"its {figure} is not known: give {figure}, as {example}")
        return value

    def changed(self, given: Mapping[str, Figure]) -> Datasheet:
        """This machine with other figures; a new 16-bit peak scales the peaks that are not given."""
        figures = dict(self.figures)
        new = given.get("peak_bf16", given.get("peak_fp16"))
        old = figures.get("peak_bf16", figures.get("peak_fp16"))
        if new is not None and old is not None:
            for rate in RATES:
                if (figure := figures.get(f"peak_{rate}")) is not None:
                    figures[f"peak_{rate}"] = Figure(
                        figure.value * (new.value / old.value),
                        figure.unit,
                        "derived",
                        f"{self.id}, scaled with the 16-bit peak given",
                    )
        figures.update(given)
        return replace(self, figures=figures)


@dataclass(frozen=True, slots=True)
class Device:
    """A machine as the arithmetic sees it: SI units, dense peaks, links per direction and per GPU.

    ``peak_flops_per_s`` maps "bf16", "fp16", "fp8", "int8", "fp4" to the dense peak, where the hardware has
    that rate. ``measured`` holds ceilings seen in measurements (``gemm_bf16``, ``read_bf16``, ...); they
    never replace the nominal figures. ``textbook_fraction`` is the share of the peak in the textbook step.
    """

    id: str
    name: str
    architecture: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    l2_bytes: float | None = None
    sm_count: float | None = None
    link_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    textbook_fraction: float = 1.0
    usable_memory_fraction: float = 0.9
    warnings: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    measured: Mapping[str, float] = field(default_factory=dict, hash=False)
    datasheet: Datasheet | None = field(default=None, repr=False, compare=False)

    def peak(self, rate: str) -> tuple[float, str | None]:
        """The dense peak a matmul of this rate runs at, and a note where the hardware lacks the rate.

        Engines then unpack the weights and multiply in 16 bit: the bytes stay small, the arithmetic does not
        get faster. Without bf16 (Volta, Turing) 16-bit work runs in fp16.

        Parameters
        ----------
        rate : str
            "bf16", "fp16", "fp8", "int8" or "fp4", as in ``NumberFormat.rate``.

        Returns
        -------
        (float, str or None)
            Peak [FLOP/s], and what to tell the person where it is another rate's.
        """
        if rate not in RATES:
            raise unknown_name("rate", rate, RATES)
        peaks = self.peak_flops_per_s
        if rate in peaks:
            return peaks[rate], None
        wide = "bf16" if "bf16" in peaks else "fp16"
        if rate in ("bf16", "fp16"):
            return peaks[wide], f"{self.id} has no {rate}: counted at its {wide} rate"
        return peaks[
            wide
        ], f"{self.id} has no {rate} rate: weights are unpacked and multiplied at its {wide} rate"
