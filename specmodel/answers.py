"""The questions a person asks, one function each: `optimize`, `breakeven`, `step`.

Each takes what the command line takes and returns what it prints with --json. The arithmetic is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, rounds
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError
from specmodel.result import Result

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.operating_range import Binding, DepthInterval, Interval

DEFAULT_ALPHA = 0.8
DEFAULT_DRAFT_COST = 0.15
NO_ENGINE = "ideal"  # no engine time is charged


@dataclass(frozen=True, slots=True)
class OptimizeResult(Result):
    """The answer of `optimize`; field names are the JSON keys."""

    inputs: dict[str, object]
    best: rounds.Depth
    ceiling: float | None
    pays_from_alpha: float | None
    flat_band: rounds.FlatBand
    by_k: list[rounds.Depth]
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def optimize(
    *,
    draft_cost: float,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    charge: str = "added",
    k: int | None = None,
    max_k: int = rounds.DEFAULT_MAX_K,
    within: float = rounds.FLAT_WITHIN,
    deployment: Deployment | None = None,
    batch: int = 1,
    context: int = 1024,
) -> OptimizeResult:
    """The draft length with the best speedup, and how much the others lose.

    Without a deployment a verification pass takes as long as a plain step (memory-bound, the formula's world).
    With one, the pass times of that model, device, batch and context decide.

    Parameters
    ----------
    draft_cost : float
        One draft pass over one plain target step, >= 0.
    alpha, acceptance, conditional, extend
        One number, or rates by position (shares of rounds; `conditional` says they are given all before), which end
        at the last position unless `extend`.
    k : int or None
        Report this draft length as `best` instead of searching.

    Raises
    ------
    InputError
        One line naming the value and what is allowed.
    """
    law = rounds.acceptance_from(alpha, acceptance, conditional=conditional, extend=extend)
    cost = checks.real("draft cost", draft_cost, low=0.0, high=1e6)
    checks.whole("max_k", max_k, high=MAX_K)
    ratios = None
    if deployment is not None:
        ratios = _verify_ratios(deployment, batch, context, max_k)
    rows = rounds.depths(law, draft_cost=cost, max_k=max_k, charge=charge, verify_ratio=ratios)  # type: ignore[arg-type]
    if k is None:
        top = rounds.best(rows)
    else:
        checks.whole("k", k, high=len(rows) - 1)
        top = rows[k]
    first = rows[1] if len(rows) > 1 else None
    assumptions = [law.describe(), _charge_words(charge, cost)]
    if deployment is None:
        assumptions.append("a verification pass takes as long as a plain step (memory-bound, low batch); no engine time")
    else:
        assumptions += deployment.assumptions
    if law.max_k is not None and law.max_k < max_k:
        assumptions.append(f"k stops at {law.max_k}, the last position the acceptance list speaks for")
    named = getattr(law, "alpha", None)
    return OptimizeResult(
        inputs={
            "alpha": named,
            "acceptance": None if named is not None else list(law.survival(min(len(rows) - 1, max_k))),
            "draft_cost": cost,
            "charge": charge,
            "k": k,
            "max_k": max_k,
            "fidelity": "formula" if deployment is None else deployment.timing.fidelity,
            "engine": NO_ENGINE,
            **({} if deployment is None else {**deployment.describe(), "batch": batch, "context": context}),
        },
        best=top,
        ceiling=rounds.tokens_ceiling(law),
        pays_from_alpha=None if first is None else rounds.pays_from_alpha(1, first.round_cost),
        flat_band=rounds.flat_band(rows, within),
        by_k=rows,
        low=None,
        high=None,
        trust=_trust(deployment),
        why=_why_depth(rows, top, cost, charge),
        assumptions=assumptions,
        warnings=[] if deployment is None else list(deployment.warnings),
    )


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch: the draft length asked for, or the best of at least 1, and what it gives."""

    batch: int
    k: int
    tokens_per_round: float
    round_cost: float
    speedup: float


@dataclass(frozen=True, slots=True)
class BreakevenResult(Result):
    """The answer of `breakeven`; field names are the JSON keys."""

    inputs: dict[str, object]
    context: int
    k: int | str
    intervals: list[Interval]
    break_even_batch: float | None
    first_losing_batch: int | None
    crossings: list[float]
    memory_limit_batch: int
    fits: bool
    at_limit: Binding | None
    k_by_batch: list[DepthInterval]
    by_batch: list[BatchRow]
    speedup_at_1: float | None
    speedup_at_limit: float | None
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def breakeven(
    deployment: Deployment | None = None,
    *,
    context: int = 1024,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    draft_cost: float = DEFAULT_DRAFT_COST,
    charge: str = "added",
    k: int | None = None,
    max_k: int = rounds.DEFAULT_MAX_K,
) -> BreakevenResult:
    """Every batch interval in which speculation pays, up to the batch that memory allows.

    `deployment` defaults to Llama-3.1-8B in bf16 on one H100 SXM; see `specmodel.deploy`.
    """
    from specmodel.deployment import MAX_CONTEXT, deploy
    from specmodel.operating_range import operating_range

    setting = deployment or deploy()
    checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    cost = checks.real("draft cost", draft_cost, low=0.0, high=1e6)
    if k is not None:
        checks.whole("k", k, high=MAX_K)
    checks.whole("max_k", max_k, high=MAX_K)
    assumed = DEFAULT_ALPHA if alpha is None and acceptance is None else alpha
    law = rounds.acceptance_from(assumed, acceptance, conditional=conditional, extend=extend)
    found = operating_range(
        setting, law, context=context, draft_cost=cost, charge=charge, k=k, max_k=max_k
    )
    warnings = list(setting.warnings)
    if found.memory_limit_batch == 0:
        warnings.append(setting.why_nothing_fits(context))
    return BreakevenResult(
        inputs={
            **setting.describe(),
            "alpha": getattr(law, "alpha", None),
            "acceptance": None if hasattr(law, "alpha") else list(law.survival(law.max_k or max_k)),
            "draft_cost": cost,
            "charge": charge,
            "max_k": max_k,
            "fidelity": setting.timing.fidelity,
            "engine": NO_ENGINE,
        },
        context=context,
        k="best" if k is None else k,
        intervals=list(found.intervals),
        break_even_batch=found.break_even_batch,
        first_losing_batch=found.first_losing_batch,
        crossings=list(found.crossings),
        memory_limit_batch=found.memory_limit_batch,
        fits=found.memory_limit_batch > 0,
        at_limit=found.at_limit,
        k_by_batch=list(found.depths),
        by_batch=_by_batch(setting, law, found.memory_limit_batch, context, cost, charge, k, max_k),
        speedup_at_1=found.speedup_at_1,
        speedup_at_limit=found.speedup_at_limit,
        low=None,
        high=None,
        trust=_trust(setting),
        why=_why_range(setting, found, context),
        assumptions=[law.describe(), _charge_words(charge, cost), *setting.assumptions],
        warnings=warnings,
    )


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
    from specmodel import roofline
    from specmodel.deployment import MAX_BATCH, MAX_CONTEXT, deploy

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
            "engine": NO_ENGINE,
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
        largest_free_width=roofline.largest_free_width(float(plain.memory_seconds), plain_per_position, batch),
        fits=batch <= limit,
        memory_limit_batch=limit,
        low=None,
        high=None,
        trust=_trust(setting),
        why=f"{larger} binds: {memory * 1e3:.3g} ms of memory traffic against {compute * 1e3:.3g} ms of arithmetic "
        f"({factor:.1f}x)",
        assumptions=list(setting.assumptions),
        warnings=warnings,
    )


def _kernel_row(row: object) -> StepKernel:
    from specmodel.roofline import KernelTime, PassTime

    if not isinstance(row, KernelTime):
        raise TypeError(type(row).__name__)
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


def _verify_ratios(deployment: Deployment, batch: int, context: int, max_k: int) -> list[float]:
    import numpy as np

    from specmodel.deployment import MAX_BATCH, MAX_CONTEXT

    checks.whole("batch", batch, low=1, high=MAX_BATCH)
    checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    widths = np.arange(1, max_k + 2)
    times = np.asarray(deployment.pass_time(batch, context, widths).seconds) * np.ones(widths.size)
    return [float(ratio) for ratio in times / float(deployment.pass_time(batch, context).seconds)]


def _by_batch(
    setting: Deployment,
    law: Acceptance,
    limit: int,
    context: int,
    cost: float,
    charge: str,
    k: int | None,
    max_k: int,
) -> list[BatchRow]:
    """Powers of two up to the memory limit, and the limit itself."""
    batches = [2**power for power in range(limit.bit_length()) if 2**power < limit]
    rows = []
    for batch in [*batches, *([limit] if limit else [])]:
        last = max_k if k is None else k
        ratios = _verify_ratios(setting, batch, context, last)
        by_k = rounds.depths(law, draft_cost=cost, max_k=last, charge=charge, verify_ratio=ratios)  # type: ignore[arg-type]
        row = by_k[k] if k is not None else rounds.best(by_k[1:] or by_k)
        rows.append(BatchRow(batch, row.k, row.tokens_per_round, row.round_cost, row.speedup))
    return rows


def _charge_words(charge: str, cost: float) -> str:
    return {
        "none": "the draft's time is not charged",
        "scaled": f"draft time stretches the verification pass: x (1 + {cost:g} k)",
        "added": f"each draft pass adds {cost:g} of a plain step",
    }[charge]


def _trust(deployment: Deployment | None) -> str:
    if deployment is None:
        return "exact arithmetic on the inputs given; no kernel or engine time is modelled"
    return {
        "textbook": "a lower bound on time: real decode kernels are 25-90 % slower than a datasheet roofline",
        "datasheet": "a lower bound on time: real decode kernels are 25-90 % slower than a datasheet roofline",
        "calibrated": "calibrated on measured kernels",
    }[deployment.timing.fidelity]


def _why_depth(rows: Sequence[rounds.Depth], top: rounds.Depth, cost: float, charge: str) -> str:
    if top.k == 0:
        best_other = max(rows[1:], key=lambda row: row.speedup, default=None)
        if best_other is None:
            return "no draft length was allowed"
        return (
            f"do not speculate: even k {best_other.k} yields {best_other.tokens_per_round:.3f} tokens for a round that "
            f"costs {best_other.round_cost:.3f} plain steps"
        )
    if top.k + 1 < len(rows):
        after = rows[top.k + 1]
        gained = after.tokens_per_round - top.tokens_per_round
        paid = (after.round_cost - top.round_cost) * top.speedup
        return (
            f"draft {top.k + 1} would add {gained:.3f} tokens but take the time of {paid:.3f}; "
            f"up to k {top.k} each one more than pays for itself"
        )
    return f"every draft up to k {top.k} pays for itself, and no longer one was allowed"


def _why_range(setting: Deployment, found: object, context: int) -> str:
    from specmodel.operating_range import Range

    if not isinstance(found, Range) or found.at_limit is None:
        return setting.why_nothing_fits(context) if not found or not getattr(found, "memory_limit_batch", 0) else (
            "no draft length was allowed: nothing speculates"
        )
    limit = found.at_limit
    terms = f"{limit.memory_ms:.3g} ms of memory traffic against {limit.compute_ms:.3g} ms of arithmetic"
    factor = f"{limit.bound}-bound by {limit.ratio:.1f}x" if limit.ratio < 1e6 else f"{limit.bound}-bound"
    where = f"at the memory limit, batch {limit.batch}, a verification pass of k {limit.k} needs {terms}: {factor}"
    if found.first_losing_batch is None:
        return f"no break-even: speculation pays in every batch that fits; {where}"
    if not any(interval.pays for interval in found.intervals):
        return f"speculation pays in no batch that fits; {where}"
    losing = found.first_losing_batch
    if found.break_even_batch is not None:
        return (
            f"past batch {found.break_even_batch:.1f} the extra positions cost more time than the tokens they yield; {where}"
        )
    return f"it loses at batch {losing} already and pays later; {where}"
