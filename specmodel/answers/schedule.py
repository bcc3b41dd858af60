"""`policy`: how deep to draft at each batch and context, what else would lose, and how to share idle arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks, policies, rounds
from specmodel.acceptance import MAX_K
from specmodel.answers.common import DEFAULT_ALPHA, DEFAULT_DRAFT_COST, charge_words, trust
from specmodel.deployment import DEFAULT_CONTEXT, MAX_BATCH, MAX_CONTEXT, deploy
from specmodel.errors import InputError
from specmodel.operating_range import scan_batches
from specmodel.planning import headroom, switching
from specmodel.result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.operating_range import DepthInterval
    from specmodel.planning.headroom import FairShare, TierRun
    from specmodel.planning.switching import Boundary
    from specmodel.policies import Day, FixedDepth, OperatingPoint, Surface
    from specmodel.units import Numeric

TIER_DEPTH = 4  # the depth that the lesson's tiers and sessions are about


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """The best depths at one context alone, and the batch that serves the objective best there.

    `regret` is the largest share of the best speedup that the common schedule loses at this context.
    """

    context: int
    memory_limit_batch: int
    levels: list[DepthInterval]
    regret: float
    best: OperatingPoint | None
    best_without_speculation: OperatingPoint | None


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One batch at the shortest context, under the schedule."""

    batch: int
    k: int
    best_k: int
    speedup: float
    regret: float
    tpot_ms: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Switching:
    """When to change the depth: where it gains more than `gain`, so at these boundaries."""

    switch_seconds: float
    dwell_seconds: float
    gain: float | None
    boundaries: list[Boundary]


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle budget at the shortest context, in positions per step, and the tiers by it at depth k."""

    k: int
    budget_at_1: float
    budget_at_limit: float
    tiers: list[TierRun]


@dataclass(frozen=True, slots=True)
class Fairness:
    """Sessions of a batch that all want depth k, and what each rule of sharing gives them."""

    batch: int
    sessions: int
    k: int
    budget: float
    headroom: float
    rules: list[FairShare]


@dataclass(frozen=True, slots=True)
class PolicyResult(Result):
    """The answer of `policy`; field names are the JSON keys."""

    inputs: dict[str, object]
    levels: list[DepthInterval]
    regret: float
    mean_regret: float
    by_context: list[ContextPolicy]
    by_batch: list[PolicyRow]
    fixed: list[FixedDepth]
    switching: Switching | None
    idle: Idle | None
    fairness: Fairness | None
    day: Day | None
    memory_limit_batch: int
    fits: bool
    low: float | None
    high: float | None
    why: str
    trust: str
    assumptions: list[str]
    warnings: list[str]


def policy(
    deployment: Deployment | None = None,
    *,
    contexts: Sequence[int] = (DEFAULT_CONTEXT,),
    context_weights: Sequence[float] | None = None,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    draft_cost: float = DEFAULT_DRAFT_COST,
    charge: str = "added",
    max_k: int = rounds.DEFAULT_MAX_K,
    levels: Sequence[DepthInterval] | None = None,
    objective: str = "throughput",
    tpot_limit_ms: float | None = None,
    gpu_price_per_hour: float | None = None,
    cost_of_zero: float = 0.0,
    switch_seconds: float = 0.0,
    dwell_seconds: float | None = None,
    k: int = TIER_DEPTH,
    batch: int | None = None,
    sessions: int | None = None,
    day: Sequence[int] | None = None,
) -> PolicyResult:
    """The depth for every batch, over all contexts given; with what it loses and what it yields.

    Parameters
    ----------
    contexts, context_weights
        Ascending. Engines take depth by batch only, so the schedule loses least over these contexts, weighted by
        their traffic.
    levels : sequence of DepthInterval, optional
        A schedule to judge instead of the best one.
    objective, tpot_limit_ms, gpu_price_per_hour
        For the batch to run at: "latency", "throughput" or "cost", under a limit on time per output token.
    cost_of_zero : float
        What k = 0 costs to keep the draft's cache current, as a share of a plain step.
    switch_seconds, dwell_seconds
        What a change of depth costs, and how long a batch stays: these give the hysteresis.
    k, batch, sessions
        The depth of the tiers; and sessions among a batch that all want it, for the rules of sharing.
    day : sequence of int, optional
        Batches through a day, in stretches of equal length.

    Raises
    ------
    InputError
        One line naming the value and what is allowed.
    """
    setting = deployment or deploy()
    lengths = tuple(checks.whole("ctx", one, low=1, high=MAX_CONTEXT) for one in contexts)
    assumed = DEFAULT_ALPHA if alpha is None and acceptance is None else alpha
    law = rounds.acceptance_from(assumed, acceptance, conditional=conditional, extend=extend)
    checks.whole("k", k, low=1, high=MAX_K)
    loads = [checks.whole("day", load, low=1, high=MAX_BATCH) for load in day or ()]
    limits = [setting.memory_limit_batch(context) for context in lengths]
    limit = max(limits, default=0)
    whole_grid = policies.surface(
        setting,
        law,
        batches=sorted({*scan_batches(max(1, limit)).tolist(), *loads}),
        contexts=lengths,
        draft_cost=checks.real("draft cost", draft_cost, low=0.0),
        charge=charge,
        max_k=max_k,
    ).with_cost_of_zero(cost_of_zero)
    found = whole_grid.up_to(max(1, limit))
    best = policies.levels(found.batches, policies.by_batch_only(found, context_weights))
    chosen = [] if limit == 0 else best if levels is None else list(levels)
    lost = policies.schedule_regret(found, chosen or best)
    price = _price(setting, gpu_price_per_hour)
    points = [
        _context(found, one, float(lost[:, at].max()), limits[at], objective, tpot_limit_ms, price)
        for at, one in enumerate(lengths)
    ]
    return PolicyResult(
        inputs={
            **setting.describe(),
            "contexts": list(lengths),
            "context_weights": None if context_weights is None else list(context_weights),
            "alpha": getattr(law, "alpha", None),
            "acceptance": None if hasattr(law, "alpha") else list(law.survival(law.max_k or max_k)),
            "draft_cost": draft_cost,
            "charge": charge,
            "max_k": max_k,
            "objective": objective,
            "tpot_limit_ms": tpot_limit_ms,
            "gpu_price_per_hour": gpu_price_per_hour,
            "cost_of_zero": cost_of_zero,
            "fidelity": setting.timing.fidelity,
        },
        levels=chosen,
        regret=float(lost.max()),
        mean_regret=float(lost[found.fits].mean()) if limit else 0.0,
        by_context=points,
        by_batch=_by_batch(found, chosen, limits[0]),
        fixed=policies.fixed_depths(found),
        switching=_switching(found, chosen, switch_seconds, dwell_seconds),
        idle=_idle(setting, found, limits[0], k),
        fairness=_fairness(setting, law, lengths[0], batch, sessions, k, draft_cost, charge),
        day=policies.day(whole_grid, loads, context=lengths[0], fixed_k=min(k, found.ks[-1]))
        if loads
        else None,
        memory_limit_batch=limit,
        fits=limit > 0,
        low=None,
        high=None,
        why=_why(found, chosen, setting),
        trust=trust(setting),
        assumptions=[
            law.describe(),
            charge_words(charge, draft_cost),
            *setting.assumptions,
            "every sequence of a step drafts the same k",
        ],
        warnings=[*setting.warnings, *_misfits(setting, points, loads), *_missed(points, tpot_limit_ms)],
    )


def _price(setting: Deployment, per_gpu_hour: float | None) -> float | None:
    return None if per_gpu_hour is None else setting.tp * checks.real("gpu price", per_gpu_hour, low=0.0)


def _context(
    found: Surface,
    context: int,
    regret: float,
    limit: int,
    objective: str,
    tpot_limit_ms: float | None,
    price: float | None,
) -> ContextPolicy:
    column, inside = found.column(context), found.up_to(max(1, limit))
    best, plain = (
        policies.operating_point(
            found,
            objective,
            context=context,
            tpot_limit_s=None if tpot_limit_ms is None else tpot_limit_ms * 1e-3,
            price_per_hour=price,
            speculate=speculate,
        )
        for speculate in (True, False)
    )
    return ContextPolicy(
        context=context,
        memory_limit_batch=limit,
        levels=policies.levels(inside.batches, policies.best_k(inside)[:, column]) if limit else [],
        regret=regret,
        best=best,
        best_without_speculation=plain,
    )


def _by_batch(found: Surface, chosen: Sequence[DepthInterval], limit: int) -> list[PolicyRow]:
    """Powers of two up to the memory limit at the first context, and the limit itself."""
    batches = [2**power for power in range(limit.bit_length()) if 2**power < limit] + (
        [limit] if limit else []
    )
    shown = [batch for batch in batches if batch in found.batches]
    if not shown or not chosen:
        return []
    depths, best = policies.depth_at(chosen, shown), policies.best_k(found)[:, 0]
    rows = []
    for batch, at, depth in zip(shown, found.places(shown), depths, strict=True):
        row = int(found.rows([depth])[0])
        gain = float(found.speedup[row, at, 0])
        rows.append(
            PolicyRow(
                batch=batch,
                k=int(depth),
                best_k=int(best[at]),
                speedup=gain,
                regret=1.0 - gain / float(found.speedup[:, at, 0].max()),
                tpot_ms=float(found.tpot_s[row, at, 0]) * 1e3,
                tokens_per_second=float(found.tokens_per_second[row, at, 0]),
            )
        )
    return rows


def _switching(
    found: Surface, chosen: Sequence[DepthInterval], switch_seconds: float, dwell_seconds: float | None
) -> Switching | None:
    if dwell_seconds is None:
        if switch_seconds:
            raise InputError("dwell seconds", None, "must be given with a cost of switching")
        return None
    gain = switching.band(switch_seconds, dwell_seconds)
    rows = switching.boundaries(found, chosen, context=found.contexts[0], gain=gain)
    return Switching(switch_seconds, dwell_seconds, gain, rows)


def _idle(setting: Deployment, found: Surface, limit: int, k: int) -> Idle | None:
    if not limit:
        return None
    batches = found.up_to(limit).batches
    budgets = headroom.position_budget(setting, _floats(batches), found.contexts[0])
    runs = headroom.tier_runs(batches, budgets, k)
    first, last = (float(_floats(budgets)[at]) for at in (0, -1))
    return Idle(k, first, last, runs)


def _fairness(
    setting: Deployment,
    law: Acceptance,
    context: int,
    batch: int | None,
    sessions: int | None,
    k: int,
    draft_cost: float,
    charge: str,
) -> Fairness | None:
    if sessions is None:
        return None
    if batch is None:
        raise InputError("batch", None, "must be given with sessions: the batch that they are among")
    count = checks.whole("batch", batch, low=1, high=MAX_BATCH)
    budget = float(headroom.position_budget(setting, count, context))
    rules = headroom.compare_rules(
        sessions, k, law, batch=count, budget=budget, draft_cost=draft_cost, charge=charge
    )
    return Fairness(count, sessions, k, budget, float(headroom.headroom(count, budget)), rules)


def _misfits(setting: Deployment, points: Sequence[ContextPolicy], loads: Sequence[int]) -> list[str]:
    lines = [
        f"context {point.context:,}: {setting.why_nothing_fits(point.context)}"
        for point in points
        if not point.memory_limit_batch
    ]
    if loads and max(loads) > points[0].memory_limit_batch:
        fit = f"at most {points[0].memory_limit_batch:,} do"
        lines.append(f"day: batch {max(loads):,} does not fit at context {points[0].context:,}: {fit}")
    return lines


def _missed(points: Sequence[ContextPolicy], tpot_limit_ms: float | None) -> list[str]:
    if tpot_limit_ms is None:
        return []
    return [
        f"context {point.context:,}: no batch keeps {tpot_limit_ms:g} ms per token"
        for point in points
        if point.memory_limit_batch and point.best is None
    ]


def _why(found: Surface, chosen: Sequence[DepthInterval], setting: Deployment) -> str:
    if not chosen:
        return setting.why_nothing_fits(found.contexts[0])
    first, last = chosen[0], chosen[-1]
    fixed = policies.fixed_depths(found)
    steady = min(fixed, key=lambda row: row.mean_regret)
    if len(chosen) == 1:
        depths = f"k {first.k} at every batch that fits"
    else:
        depths = f"k {first.k} from batch {first.from_:,}, k {last.k} from {last.from_:,} to {last.to:,}"
    worst = f"{steady.largest_regret:.1%} of the best speedup"
    if steady.k == 0:
        return f"{depths}; the best fixed depth is not to speculate, which loses up to {worst}"
    against = f"the best fixed depth, k {steady.k}, loses up to {worst}"
    return f"{depths}; {against}, and not speculating at all up to {fixed[0].largest_regret:.1%}"


def _floats(values: Numeric | Sequence[int]) -> NDArray[np.float64]:
    return np.atleast_1d(np.asarray(values, dtype=float))
