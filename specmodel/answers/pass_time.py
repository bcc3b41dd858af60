"""`step`: the time of one target pass, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, roofline
from specmodel.acceptance import MAX_K
from specmodel.answers.common import trust
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT, deploy
from specmodel.result import Result
from specmodel.roofline import KernelTime, PassTime

if TYPE_CHECKING:
    from specmodel.deployment import Deployment


@dataclass(frozen=True, slots=True)
class StepKernel:
    """One line of `step`: all launches of a kernel in one pass. [s]"""

    name: str
    kind: str
    count: int
    seconds: float
    memory_seconds: float
    compute_seconds: float
    fixed_seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class StepResult(Result):
    """The answer of `step`; field names are the JSON keys."""

    inputs: dict[str, object]
    seconds: float
    bound: str
    memory_seconds: float
    compute_seconds: float
    fixed_seconds: float
    kernels: list[StepKernel]
    plain_seconds: float
    ratio_to_plain: float
    ridge_flop_per_byte: float
    flop_per_byte: float
    idle_share_of_peak: float
    idle_share_of_effective: float
    largest_free_width: int
    fits: bool
    memory_limit_batch: int
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def step(
    deployment: Deployment | None = None, *, batch: int = 1, context: int = 1024, k: int = 0
) -> StepResult:
    """Time of one target pass: plain (k = 0) or a verification of k drafts, kernel by kernel."""
    setting = deployment or deploy()
    checks.whole("batch", batch, low=1, high=MAX_BATCH)
    checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    width = checks.whole("k", k, high=MAX_K) + 1
    taken = setting.pass_time(batch, context, width)
    plain = setting.pass_time(batch, context)
    seconds, memory, compute = float(taken.seconds), float(taken.memory_seconds), float(taken.compute_seconds)
    peak, _ = setting.device.peak("bf16")
    fraction = getattr(setting.timing, "fraction", 1.0)
    busy_effective = min(1.0, compute / seconds)
    limit = setting.memory_limit_batch(context)
    warnings = list(setting.warnings)
    if batch > limit:
        warnings.append(f"batch {batch} does not fit at context {context:,}: at most {limit} sequences do")
    moved = memory * setting.device.bandwidth_bytes_per_s
    plain_per_position = float(plain.compute_seconds) / batch
    larger, factor = ("memory", memory / compute) if memory >= compute else ("compute", compute / memory)
    return StepResult(
        inputs={
            **setting.describe(),
            "batch": batch,
            "context": context,
            "k": k,
            "width": width,
            "pass": "plain" if k == 0 else "verify",
            "fidelity": setting.timing.fidelity,
            "charge": None,
        },
        seconds=seconds,
        bound=taken.bound,
        memory_seconds=memory,
        compute_seconds=compute,
        fixed_seconds=float(taken.fixed_seconds),
        kernels=[_kernel_row(row) for row in taken.kernels],
        plain_seconds=float(plain.seconds),
        ratio_to_plain=seconds / float(plain.seconds),
        ridge_flop_per_byte=roofline.ridge(fraction * peak, setting.device.bandwidth_bytes_per_s),
        flop_per_byte=compute * fraction * peak / moved,
        idle_share_of_peak=1.0 - busy_effective * fraction,
        idle_share_of_effective=1.0 - busy_effective,
        largest_free_width=roofline.largest_free_width(
            float(plain.memory_seconds), plain_per_position, batch
        ),
        fits=batch <= limit,
        memory_limit_batch=limit,
        low=None,
        high=None,
        trust=trust(setting),
        why=f"{larger} binds: {memory * 1e3:.3g} ms of memory traffic against {compute * 1e3:.3g} ms of arithmetic "
        f"({factor:.1f}x)",
        assumptions=list(setting.assumptions),
        warnings=warnings,
    )


def _kernel_row(row: KernelTime) -> StepKernel:
    one = PassTime(row.seconds, row.memory_seconds, row.compute_seconds, row.fixed_seconds, ())
    return StepKernel(
        row.name,
        row.kind,
        row.count,
        float(row.seconds),
        float(row.memory_seconds),
        float(row.compute_seconds),
        float(row.fixed_seconds),
        one.bound,
    )
