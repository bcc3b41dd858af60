"""Quantisation, cache compression, more GPUs and speculation together: evaluated as one deployment, not multiplied.

Each lever shortens a term of the step, and speculation sells the arithmetic that idles while the memory term lasts. So
the gains of single levers do not multiply, and the batch up to which speculation pays moves with all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks
from specmodel.deployment import MAX_BATCH
from specmodel.errors import InputError
from specmodel.operating_range import operating_range
from specmodel.planning.levers import Lever, Setting, Speculating, Speculation, Term

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Reach:
    """Up to which batch speculation pays in one setting.

    `outcome` is "crosses" (then `batch` says where), "always" (in every batch that fits), "never", "gains later"
    (it loses at batch 1 and pays beyond), or "nothing fits".
    """

    batch: float | None
    outcome: str

    @property
    def size(self) -> float:
        """As a number that orders settings: endless where it always pays, 0 where it never does."""
        if self.batch is not None:
            return self.batch
        return math.inf if self.outcome == "always" else 0.0


@dataclass(frozen=True, slots=True)
class LeverResult:
    """One lever: what it gives alone on the baseline, and what all levers up to it give together.

    Attributes
    ----------
    alone, cumulative : float
        Tokens per second over those of the plain baseline, at the batch asked about.
    reach, reach_alone : Reach or None
        The break-even batch of speculation with the levers up to this one, and with this one only; None where no
        lever speculates.
    k, draft_cost : of the speculation that would run at this batch with the levers up to this one.
    memory_ms, compute_ms : of the pass that then runs (plain, or verification once speculation is on). [ms]
    """

    name: str
    term: Term
    alone: float
    cumulative: float
    reach: Reach | None
    reach_alone: Reach | None
    k: int | None
    draft_cost: float | None
    memory_ms: float
    compute_ms: float
    bound: str
    weight_bytes: float
    cache_bytes: float


@dataclass(frozen=True, slots=True)
class Cause:
    """What undoing all levers on one term, and none else, would do."""

    term: Term
    reach: Reach
    gain: float  # of speculation over the plain step, at the batch asked about


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Product of single gains and true gain at one batch."""

    batch: int
    product: float
    actual: float


@dataclass(frozen=True, slots=True)
class Effect:
    """What the other levers do to speculation: before (on the baseline) and after (on top of all of them).

    `gain` is its speedup over the plain step of the same setting, `cost` its draft cost there, `bound` what the pass
    waits for that then runs.
    """

    reach_before: Reach
    reach_after: Reach
    gain_before: float
    gain_after: float
    cost_before: float
    cost_after: float
    bound_before: str
    bound_after: str
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """All levers together. Gains are tokens per second over those of the plain baseline, at one batch."""

    batch: int
    baseline: Setting
    combined: Setting
    steps: tuple[LeverResult, ...]
    product: float
    actual: float
    effect: Effect | None  # None where no lever speculates
    by_batch: tuple[BatchRow, ...]


def combine(
    deployment: Deployment,
    levers: Sequence[Lever],
    speculation: Speculation | None,
    *,
    batch: int = 1,
    context: int,
) -> Combination:
    """Every lever alone, in sequence, and all of them together, on a baseline at one batch and context.

    Parameters
    ----------
    deployment, context
        The baseline. A lever may change the context too.
    levers : sequence of Lever
        In the order in which they are added up. Speculation, where given, comes last.

    Raises
    ------
    InputError
        If there is nothing to evaluate, or a lever does not apply to this model.

    Notes
    -----
    A gain is T_plain(baseline) / T_plain(changed) x speedup of speculation on the changed deployment: T per step of
    the whole batch, so a lever that adds GPUs is not divided by their number.
    """
    checks.whole("batch", batch, low=1, high=MAX_BATCH)
    if not levers and speculation is None:
        raise InputError("levers", [], "name at least one: weights, KV, tensor parallelism or speculation")
    start = Setting(deployment, context)
    combined = applied(start, levers)
    steps = [_lever_step(start, levers, place, speculation, batch) for place in range(len(levers))]
    effect = None
    if speculation is not None:
        effect = _effect(start, levers, speculation, batch)
        steps.append(_speculation_step(start, combined, speculation, effect, batch))
    return Combination(
        batch=batch,
        baseline=start,
        combined=combined,
        steps=tuple(steps),
        product=math.prod(step.alone for step in steps),
        actual=steps[-1].cumulative,
        effect=effect,
        by_batch=_by_batch(start, levers, speculation),
    )


def applied(setting: Setting, levers: Sequence[Lever]) -> Setting:
    """The setting after all levers."""
    for lever in levers:
        setting = lever.change(setting)
    return setting


def reach(setting: Setting, before: Deployment, speculation: Speculation) -> Reach:
    """Up to which batch speculation pays in a setting, its draft's cost counted from the deployment before."""
    found = operating_range(
        Speculating.on(setting.deployment, before, speculation),
        speculation.law,
        context=setting.context,
        draft_cost=speculation.draft_cost,
        charge=speculation.charge,
        k=speculation.k,
        max_k=speculation.max_k,
    )
    if found.memory_limit_batch == 0:
        return Reach(None, "nothing fits")
    if found.break_even_batch is not None:
        return Reach(found.break_even_batch, "crosses")
    if found.first_losing_batch is None:
        return Reach(None, "always")
    return Reach(None, "gains later" if any(interval.pays for interval in found.intervals) else "never")


def gains(
    start: Setting, setting: Setting, speculation: Speculation | None, batch: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Tokens per second of a setting over those of the plain baseline, at each batch."""
    rows = np.atleast_1d(np.asarray(batch, dtype=float))
    gain = np.ones(rows.size) * start.plain_seconds(rows) / setting.plain_seconds(rows)
    if speculation is not None:
        own = Speculating.on(setting.deployment, start.deployment, speculation)
        gain = gain * own.best(rows, setting.context)[1]
    return np.asarray(gain)


def _lever_step(
    start: Setting, levers: Sequence[Lever], place: int, speculation: Speculation | None, batch: int
) -> LeverResult:
    lever = levers[place]
    alone, so_far = lever.change(start), applied(start, levers[: place + 1])
    memory_ms, compute_ms, bound = _terms(so_far, batch, 0)
    k, cost, reached, reached_alone = None, None, None, None
    if speculation is not None:
        own = Speculating.on(so_far.deployment, start.deployment, speculation)
        k, cost = int(own.best(batch, so_far.context)[0][0]), float(own.cost_of_draft(batch, so_far.context))
        reached = reach(so_far, start.deployment, speculation)
        reached_alone = reached if place == 0 else reach(alone, start.deployment, speculation)
    return LeverResult(
        name=lever.name,
        term=lever.term,
        alone=float(gains(start, alone, None, batch)[0]),
        cumulative=float(gains(start, so_far, None, batch)[0]),
        reach=reached,
        reach_alone=reached_alone,
        k=k,
        draft_cost=cost,
        memory_ms=memory_ms,
        compute_ms=compute_ms,
        bound=bound,
        weight_bytes=so_far.weight_bytes_read(batch),
        cache_bytes=so_far.cache_bytes,
    )


def _speculation_step(
    start: Setting, combined: Setting, speculation: Speculation, effect: Effect, batch: int
) -> LeverResult:
    own = Speculating.on(combined.deployment, start.deployment, speculation)
    k = int(own.best(batch, combined.context)[0][0])
    memory_ms, compute_ms, bound = _terms(combined, batch, k)
    return LeverResult(
        name="speculation",
        term="speculation",
        alone=effect.gain_before,
        cumulative=float(gains(start, combined, speculation, batch)[0]),
        reach=effect.reach_after,
        reach_alone=effect.reach_before,
        k=k,
        draft_cost=effect.cost_after,
        memory_ms=memory_ms,
        compute_ms=compute_ms,
        bound=bound,
        weight_bytes=combined.weight_bytes_read(batch),
        cache_bytes=combined.cache_bytes,
    )


def _effect(start: Setting, levers: Sequence[Lever], speculation: Speculation, batch: int) -> Effect:
    def at(setting: Setting) -> tuple[float, float, str]:
        """Speedup, draft cost and what binds the pass, at the batch asked about."""
        own = Speculating.on(setting.deployment, start.deployment, speculation)
        depths, speedups = own.best(batch, setting.context)
        bound = _terms(setting, batch, int(depths[0]))[2]
        return float(speedups[0]), float(own.cost_of_draft(batch, setting.context)), bound

    combined = applied(start, levers)
    (gain_before, cost_before, bound_before), (gain_after, cost_after, bound_after) = at(start), at(combined)
    causes = []
    for term in dict.fromkeys(lever.term for lever in levers):
        others = applied(start, [lever for lever in levers if lever.term != term])
        causes.append(Cause(term, reach(others, start.deployment, speculation), at(others)[0]))
    return Effect(
        reach_before=reach(start, start.deployment, speculation),
        reach_after=reach(combined, start.deployment, speculation),
        gain_before=gain_before,
        gain_after=gain_after,
        cost_before=cost_before,
        cost_after=cost_after,
        bound_before=bound_before,
        bound_after=bound_after,
        causes=tuple(causes),
    )


def _by_batch(
    start: Setting, levers: Sequence[Lever], speculation: Speculation | None
) -> tuple[BatchRow, ...]:
    """Powers of two up to the batch that fits once all levers are on, and that batch itself."""
    combined = applied(start, levers)
    limit = combined.deployment.memory_limit_batch(combined.context)
    batches = [2**power for power in range(limit.bit_length()) if 2**power < limit] + (
        [limit] if limit else []
    )
    if not batches:
        return ()
    rows = np.array(batches, dtype=float)
    singles = [gains(start, lever.change(start), None, rows) for lever in levers]
    if speculation is not None:
        singles.append(gains(start, start, speculation, rows))
    product, actual = np.prod(singles, axis=0), gains(start, combined, speculation, rows)
    return tuple(BatchRow(b, float(p), float(a)) for b, p, a in zip(batches, product, actual, strict=True))


def _terms(setting: Setting, batch: int, k: int) -> tuple[float, float, str]:
    taken = setting.deployment.pass_time(batch, setting.context, k + 1)
    return float(taken.memory_seconds) * 1e3, float(taken.compute_seconds) * 1e3, taken.bound
