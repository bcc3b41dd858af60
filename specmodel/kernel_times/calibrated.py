"""Calibrated timing: every kernel of a pass at the constants fitted to measured kernels of its device.

Under tensor parallelism a line of its own holds the time that GPUs wait for each other around the all-reduces, fitted
to serving runs. What an engine spends between passes is not in here: that comes with the engine's constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from specmodel.errors import InputError
from specmodel.kernel_times.constants import POOLED, Calibration, Fit, Origin
from specmodel.kernel_times.formulas import (
    AllreduceConstants,
    AttentionConstants,
    GemmConstants,
    MoeConstants,
    SmallConstants,
    Terms,
    WaitConstants,
    allreduce_seconds,
    attention_seconds,
    gemm_seconds,
    moe_seconds,
    small_seconds,
    wait_seconds,
)
from specmodel.roofline import Fidelity, Kernel, KernelTime, PassTime

if TYPE_CHECKING:
    from specmodel.datasheets import Device
    from specmodel.units import Numeric

# Tables of narrow GEMMs include the kernels that bring the activations to the narrow format. Engines fuse those with
# the norm or gate before: serving runs of an fp8 model (Qwen3-32B, H100, TensorRT-LLM, one GPU) show 5 us per GEMM
# where that framework's table has 12 us and the 16-bit GEMM 3 us.
FUSED_QUANTISE_S = 2e-6
_TOO_SLOW = 0.5  # of the pooled share of the bandwidth
_UNSURE = 1.5  # wider by, where a framework's own table is set aside
_STATE_FLOPS_SHARE = (
    0.3  # of the 16-bit peak, for recurrent state updates; they are bound by the state's traffic
)


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on a predicted time between which 80 % of measured ones are expected to lie, and what it rests on."""

    low: float
    high: float
    origin: Origin
    sources: tuple[str, ...]


class Calibrated:
    """Every kernel: a fixed time, and a roofline at the rates that kernels of this device were measured to reach.

    Parameters
    ----------
    device : Device
        Its datasheet figures scale the fitted shares.
    framework : str, optional
        Whose kernels: vllm, sglang or trtllm; constants pooled over all by default.
    calibration : Calibration, optional
        Constants to prefer to the shipped ones.
    wait : bool
        Whether tensor parallelism costs waiting time beside the all-reduces.

    Raises
    ------
    InputError
        Where no constants are known that could stand in for this device's.
    """

    fidelity: Fidelity = "calibrated"

    def __init__(
        self,
        device: Device,
        *,
        framework: str | None = None,
        calibration: Calibration | None = None,
        wait: bool = True,
    ) -> None:
        self.device = device
        self.framework = framework
        self.calibration = calibration or Calibration(())
        self.wait = wait
        self._fits: dict[tuple[str, str], Fit] = {}
        self._fit("gemm", "bf16")

    def time(self, kernels: Sequence[Kernel]) -> PassTime:
        parts = [self._kernel(kernel) for kernel in kernels]
        parts += [self._waiting(kernel) for kernel in kernels if self.wait and kernel.kind == "allreduce"]
        return PassTime(
            _total([part.seconds for part in parts]),
            _total([part.memory_seconds for part in parts]),
            _total([part.compute_seconds for part in parts]),
            _total([part.fixed_seconds for part in parts]),
            tuple(parts),
        )

    def band(self, kernels: Sequence[Kernel]) -> Band:
        """How far a measured pass may lie from the predicted one.

        The error of a kernel is the same in every layer and independent of that of the other kernels, so the
        deviations of the kernels, each weighted by its share of the time, add as squares. Arrays: their mean share.
        """
        fits = [self._fit(*_key(kernel)) for kernel in kernels]
        spent = np.array([float(np.mean(self._kernel(kernel).seconds)) for kernel in kernels])
        shares = spent / spent.sum()
        middle = float(shares @ np.array([fit.middle for fit in fits]))
        below = np.array([fit.middle - fit.low for fit in fits])
        above = np.array([fit.high - fit.middle for fit in fits])
        return Band(
            middle - float(np.sqrt(((shares * below) ** 2).sum())),
            middle + float(np.sqrt(((shares * above) ** 2).sum())),
            "default" if any(self._is_default(fit) for fit in fits) else "measured",
            tuple(dict.fromkeys(fit.source for fit in fits)),
        )

    @staticmethod
    def _is_default(fit: Fit) -> bool:
        return fit.origin == "default" and fit.kind not in ("small", "wait")  # alike on all devices

    def _kernel(self, kernel: Kernel) -> KernelTime:
        terms = kernel_terms(kernel, self._fit(*_key(kernel)), self.device)
        count = kernel.count
        return KernelTime(
            kernel.name,
            kernel.kind,
            count,
            count * terms.seconds,
            count * terms.memory,
            count * terms.compute,
            count * terms.fixed,
        )

    def _waiting(self, kernel: Kernel) -> KernelTime:
        """The line for the wait around the all-reduces of some layers."""
        constants = self._fit("wait", "").constants
        assert isinstance(constants, WaitConstants)
        shape = kernel.shape
        seconds = kernel.count * wait_seconds(shape["m"], shape["gpus"], constants=constants)
        return KernelTime(f"wait at {kernel.name}", kernel.kind, kernel.count, seconds, 0.0, 0.0, seconds)

    def _fit(self, kind: str, number_format: str) -> Fit:
        found = self._fits.get((kind, number_format))
        if found is None:
            found = self.calibration.find(self.device, kind, number_format, self._framework(kind))
            if found is None:
                raise InputError(
                    "fidelity",
                    "calibrated",
                    f"no constants stand in for {kind} kernels on {self.device.id}"
                    f" ({self.device.architecture or 'unknown architecture'}): use datasheet, or give a calibration",
                )
            self._fits[kind, number_format] = self._fused(self._served(found, kind, number_format))
        return self._fits[kind, number_format]

    def _served(self, fit: Fit, kind: str, number_format: str) -> Fit:
        """The pooled constants, where those of one framework are not half as fast: its table timed another path.

        SGLang 0.5.14's table of mxfp4 experts on an H100 adds up to 21 ms per pass of gpt-oss-120b at 8 tokens; served
        steps take 10 (measurements beside the model's EAGLE-3 draft on hugingapi.com, Dogacel/specdrift).
        """
        share = getattr(fit.constants, "bandwidth_share", None)
        if share is None or fit.framework == POOLED or fit in self.calibration.fits:
            return fit
        pooled = self.calibration.find(self.device, kind, number_format)
        if pooled is None or (pooled.device, pooled.format) != (fit.device, fit.format):
            return fit
        if share >= _TOO_SLOW * float(getattr(pooled.constants, "bandwidth_share", 0.0)):
            return fit
        return pooled.widened(
            _UNSURE,
            f"{pooled.source}; not {fit.framework}'s own table, which is too slow to be what it serves with",
        )

    def _framework(self, kind: str) -> str | None:
        """Cards without links of their own sum over NCCL: engines switch their own all-reduce off there."""
        return "nccl" if kind == "allreduce" and not self.device.link_bytes_per_s else self.framework

    def _fused(self, fit: Fit) -> Fit:
        """A GEMM in a pass, its activations quantised by the kernel before."""
        if not isinstance(fit.constants, GemmConstants) or not fit.constants.quantise:
            return fit
        sixteen = self._fit("gemm", "bf16").constants
        assert isinstance(sixteen, GemmConstants)
        limit = sixteen.fixed_s + FUSED_QUANTISE_S
        return replace(fit, constants=replace(fit.constants, fixed_s=min(fit.constants.fixed_s, limit)))


def kernel_terms(kernel: Kernel, fit: Fit, device: Device) -> Terms:
    """Times of one kernel at fitted constants, its count left out. [s]"""
    constants, shape = fit.constants, kernel.shape
    bandwidth = device.bandwidth_bytes_per_s
    rate, _ = device.peak(kernel.rate)
    if isinstance(constants, GemmConstants):
        return gemm_seconds(
            shape["m"],
            shape["n"],
            shape["k"],
            weight_bytes=kernel.weight_bytes,
            flops_per_s=rate,
            bandwidth_bytes_per_s=bandwidth,
            constants=constants,
            sm_count=device.sm_count,
        )
    if isinstance(constants, AttentionConstants):
        return attention_seconds(
            shape["sequences"],
            shape["kv_heads"],
            cache_bytes=kernel.cache_bytes,
            flops=kernel.attention_flops,
            flops_per_s=rate,
            bandwidth_bytes_per_s=bandwidth,
            constants=constants,
            l2_bytes=device.l2_bytes,
            sm_count=device.sm_count,
        )
    if isinstance(constants, MoeConstants):
        return moe_seconds(
            kernel.weight_bytes,
            kernel.activation_bytes,
            kernel.flops,
            experts=shape["experts"],
            flops_per_s=rate,
            bandwidth_bytes_per_s=bandwidth,
            constants=constants,
        )
    if isinstance(constants, AllreduceConstants):
        return allreduce_seconds(kernel.activation_bytes, shape["gpus"], constants=constants)
    assert isinstance(constants, SmallConstants)
    return _small(kernel, rate, bandwidth, constants)


def _key(kernel: Kernel) -> tuple[str, str]:
    """Which constants a kernel is timed with: kind and number format."""
    if kernel.kind == "pass":
        raise InputError(
            "fidelity", "calibrated", "a model given as totals has no kernels: only textbook applies"
        )
    if kernel.kind == "attention":
        alone = kernel.shape.get("heads") is not None and kernel.shape["heads"] == kernel.shape["kv_heads"]
        return "attention-mha" if alone else "attention", kernel.format
    return kernel.kind, kernel.format if kernel.kind in ("gemm", "moe") else ""


def _small(kernel: Kernel, flops_per_s: float, bandwidth: float, constants: SmallConstants) -> Terms:
    terms = small_seconds(
        kernel.activation_bytes + kernel.cache_bytes, bandwidth_bytes_per_s=bandwidth, constants=constants
    )
    if isinstance(kernel.attention_flops, float) and kernel.attention_flops == 0.0:
        return terms
    compute = kernel.attention_flops / (_STATE_FLOPS_SHARE * flops_per_s)
    return Terms(terms.fixed + np.maximum(terms.memory, compute), terms.memory, compute, terms.fixed)


def _total(parts: Sequence[Numeric]) -> Numeric:
    total: Numeric = 0.0
    for part in parts:
        total = total + part
    return total
