"""Kernels, and how long they take on paper.

A pass is a list of kernels (passes.py). A timing turns it into seconds. Two live here and need nothing but a
datasheet: `Textbook`, one roofline over the whole step, and `Datasheet`, one roofline per kernel, summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from specmodel import checks
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.datasheets import Device
    from specmodel.units import Numeric

Fidelity = Literal["textbook", "datasheet", "calibrated"]
FIDELITIES: tuple[Fidelity, ...] = ("textbook", "datasheet", "calibrated")
Kind = Literal["pass", "gemm", "attention", "moe", "small", "allreduce"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`count` equal launches in one pass, per GPU. Quantities are for ONE launch; arrays broadcast.

    Attributes
    ----------
    weight_bytes, cache_bytes, activation_bytes : float or ndarray
        HBM traffic: weights, KV cache, inputs and outputs. The textbook counts the first two only. [B]
    flops : float or ndarray
        A multiply-add counts as 2. [FLOP]
    attention_flops : float or ndarray
        The part of the work that grows with context, kept apart because the textbook may leave it out. [FLOP]
    format : str
        Number format of what is streamed (weights, or KV for attention).
    rate : str
        Which dense peak the multiplication runs at: bf16, fp8, int8 or fp4.
    shape : mapping
        What calibrated timing needs beyond bytes and FLOPs (m, n, k; sequences, KV heads; message bytes).
    """

    name: str
    kind: Kind
    count: int = 1
    weight_bytes: Numeric = 0.0
    cache_bytes: Numeric = 0.0
    activation_bytes: Numeric = 0.0
    flops: Numeric = 0.0
    attention_flops: Numeric = 0.0
    format: str = "bf16"
    rate: str = "bf16"
    shape: dict[str, Numeric] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one kernel of a pass takes, all its launches together. [s]"""

    name: str
    kind: Kind
    count: int
    seconds: Numeric
    memory_seconds: Numeric
    compute_seconds: Numeric
    fixed_seconds: Numeric = 0.0


@dataclass(frozen=True, slots=True)
class PassTime:
    """Time of one pass. `memory_seconds` and `compute_seconds` are what each term alone would take. [s]"""

    seconds: Numeric
    memory_seconds: Numeric
    compute_seconds: Numeric
    fixed_seconds: Numeric
    kernels: tuple[KernelTime, ...]

    @property
    def bound(self) -> str:
        """The largest term of a single pass (scalars only): memory, compute or fixed."""
        terms = {
            "memory": float(self.memory_seconds),
            "compute": float(self.compute_seconds),
            "fixed": float(self.fixed_seconds),
        }
        return max(terms, key=lambda term: terms[term])


class Timing(Protocol):
    """Anything that times a pass."""

    @property
    def fidelity(self) -> Fidelity: ...

    @property
    def device(self) -> Device: ...

    def time(self, kernels: Sequence[Kernel]) -> PassTime:
        """Seconds of a pass, kernel by kernel."""


def step_seconds(
    flops: Numeric, bytes_moved: Numeric, *, flops_per_s: float, bandwidth_bytes_per_s: float
) -> Numeric:
    r"""Roofline time of one forward step.

    .. math:: t = \max(F / \pi,\; Q / \beta)

    Parameters
    ----------
    flops : float or ndarray, shape (...)
        Arithmetic of the step; a multiply-add counts as 2. [FLOP]
    bytes_moved : float or ndarray, shape (...)
        HBM traffic of the step: weights and KV cache. [B]
    flops_per_s : float
        Dense arithmetic rate taken as reachable. [FLOP/s]
    bandwidth_bytes_per_s : float
        HBM bandwidth. [B/s]

    Returns
    -------
    float or ndarray, shape broadcast(flops, bytes_moved)
        Time of the step. [s]

    Raises
    ------
    InputError
        If a rate is not positive.

    Notes
    -----
    A lower bound: arithmetic and traffic overlap perfectly and no kernel has a fixed time.

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
       multicore architectures", Commun. ACM 52(4), 2009. doi:10.1145/1498765.1498785

    Examples
    --------
    One token of the lecture's 7B model (13.5 GB, 13.48 GFLOP) at 3.35 TB/s:

    >>> t = step_seconds(13.48e9, 13.5e9, flops_per_s=494.5e12, bandwidth_bytes_per_s=3.35e12)
    >>> f"{t * 1e3:.2f} ms"
    '4.03 ms'
    """
    checks.real("flops_per_s", flops_per_s, low=0.0, above=True)
    checks.real("bandwidth_bytes_per_s", bandwidth_bytes_per_s, low=0.0, above=True)
    slower = np.maximum(
        np.asarray(flops, dtype=float) / flops_per_s,
        np.asarray(bytes_moved, dtype=float) / bandwidth_bytes_per_s,
    )
    return float(slower) if slower.ndim == 0 else slower


def ridge(flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """FLOP per byte at which arithmetic and traffic take equally long (Williams et al. 2009). [FLOP/B]"""
    checks.real("flops_per_s", flops_per_s, low=0.0, above=True)
    return flops_per_s / checks.real("bandwidth_bytes_per_s", bandwidth_bytes_per_s, low=0.0, above=True)


def token_budget(
    flops_per_s: float,
    bandwidth_bytes_per_s: float,
    *,
    bytes_per_parameter: float,
    flops_per_parameter: float = 2.0,
) -> float:
    """Tokens whose arithmetic takes as long as one stream of the weights: the idle slots of a step, plus one."""
    intensity = ridge(flops_per_s, bandwidth_bytes_per_s)
    checks.real("flops_per_parameter", flops_per_parameter, low=0.0, above=True)
    return intensity * checks.real("bytes_per_parameter", bytes_per_parameter, low=0.0) / flops_per_parameter


def busy_share(flops: Numeric, seconds: Numeric, flops_per_s: float) -> Numeric:
    """Share of an arithmetic rate that a step uses, 0 to 1; the idle share is one less this.

    Say which rate: against the datasheet peak or against the effective fraction of it that the step time used.
    """
    return flops / (seconds * checks.real("flops_per_s", flops_per_s, low=0.0, above=True))


def largest_free_width(memory_seconds: float, seconds_per_position: float, batch: int = 1) -> int:
    """The most positions per sequence (root included) a pass can score while it stays memory-bound.

    Neither the cache read nor the weights grow with width in this textbook view. At least 1: a plain step.
    """
    checks.real("memory_seconds", memory_seconds, low=0.0)
    checks.real("seconds_per_position", seconds_per_position, low=0.0, above=True)
    return max(1, int(memory_seconds / (checks.whole("batch", batch, low=1) * seconds_per_position)))


class Textbook:
    """One roofline over the whole step: max(bytes / bandwidth, FLOPs / (fraction x peak)).

    Bytes are weights and KV cache, nothing else. Attention FLOPs are left out unless asked for, as the lectures do.
    """

    fidelity: Fidelity = "textbook"

    def __init__(
        self, device: Device, *, fraction: float | None = None, attention_flops: bool = False
    ) -> None:
        self.device = device
        chosen = device.textbook_fraction if fraction is None else fraction
        self.fraction = checks.real("flops fraction", chosen, low=0.0, high=1.0, above=True)
        self.attention_flops = attention_flops

    def time(self, kernels: Sequence[Kernel]) -> PassTime:
        parts = [self._kernel(kernel) for kernel in kernels]
        memory = _total(part.memory_seconds for part in parts)
        compute = _total(part.compute_seconds for part in parts)
        return PassTime(_larger(memory, compute), memory, compute, 0.0, tuple(parts))

    def _kernel(self, kernel: Kernel) -> KernelTime:
        flops = kernel.flops + kernel.attention_flops if self.attention_flops else kernel.flops
        rate, _ = self.device.peak(kernel.rate)
        memory = kernel.count * (kernel.weight_bytes + kernel.cache_bytes) / self.device.bandwidth_bytes_per_s
        compute = kernel.count * flops / (self.fraction * rate)
        return KernelTime(kernel.name, kernel.kind, kernel.count, _larger(memory, compute), memory, compute)


class Datasheet:
    """One roofline per kernel, summed: kernels run one after another, so each pays its own larger term."""

    fidelity: Fidelity = "datasheet"

    def __init__(self, device: Device) -> None:
        self.device = device

    def time(self, kernels: Sequence[Kernel]) -> PassTime:
        parts = [self._kernel(kernel) for kernel in kernels]
        return PassTime(
            _total(part.seconds for part in parts),
            _total(part.memory_seconds for part in parts),
            _total(part.compute_seconds for part in parts),
            0.0,
            tuple(parts),
        )

    def _kernel(self, kernel: Kernel) -> KernelTime:
        rate, _ = self.device.peak(kernel.rate)
        if kernel.kind == "allreduce":
            return self._allreduce(kernel)
        moved = kernel.weight_bytes + kernel.cache_bytes + kernel.activation_bytes
        memory = kernel.count * moved / self.device.bandwidth_bytes_per_s
        compute = kernel.count * (kernel.flops + kernel.attention_flops) / rate
        return KernelTime(kernel.name, kernel.kind, kernel.count, _larger(memory, compute), memory, compute)

    def _allreduce(self, kernel: Kernel) -> KernelTime:
        link = self.device.link_bytes_per_s or self.device.pcie_bytes_per_s
        if link is None:
            raise InputError("device", self.device.id, "has no link bandwidth on record: use tp 1")
        seconds = kernel.count * kernel.activation_bytes / link
        return KernelTime(kernel.name, kernel.kind, kernel.count, seconds, seconds, 0.0)


def _larger(one: Numeric, other: Numeric) -> Numeric:
    if checks.is_scalar(one) and checks.is_scalar(other):
        return max(one, other)
    return np.maximum(one, other)


def _total(parts: Iterable[Numeric]) -> Numeric:
    total: Numeric = 0.0
    for part in parts:
        total = total + part
    return total
