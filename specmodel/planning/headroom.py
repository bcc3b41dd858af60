"""The idle arithmetic of a memory-bound step, shared by all requests of a batch, and how to share it out.

A step that reads the weights once has time for the arithmetic of `budget` positions (`roofline.token_budget`: 156 on
an A100 with 16-bit weights). A batch of B uses B of them; what is left is headroom, and every draft token that is
verified takes one. Past the budget the step grows in proportion, for everyone.

A speculating request *among* the batch adds k positions, since its root is one of the B already; one *joining* it adds
k + 1. The lesson adds k + 1 to requests that are already counted (`among=False`): that counts their roots twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specmodel import checks
from specmodel.acceptance import MAX_K, expected_tokens, expected_tokens_to
from specmodel.deployment import MAX_BATCH
from specmodel.policies import Surface
from specmodel.rounds import DEFAULT_MAX_K, round_cost

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.units import Numeric

TIERS = ("quiet", "moderate", "near-saturated", "over budget")
NEAR_SLOTS = 5  # the lesson calls a batch near saturation when at most this many requests can still speculate
EDGE = 1e-9  # a budget computed from floating figures may fall this far short of the whole number it means


def position_budget(deployment: Deployment, batch: Numeric, context: Numeric) -> Numeric:
    """Positions of one pass whose arithmetic takes as long as the plain step's memory traffic.

    The lesson's budget for any deployment: caches that are read count towards it, so it grows with batch and context.
    For experts it is a lower bound, since more positions read more of them.
    """
    plain = deployment.pass_time(batch, context)
    return plain.memory_seconds * batch / plain.compute_seconds


def positions_added(k: Numeric, *, among: bool = True) -> Numeric:
    """Positions that one speculating request adds: k among the batch, k + 1 when it joins."""
    return checks.all_within("k", k, low=0.0, high=MAX_K) + (0 if among else 1)


def headroom(batch: Numeric, budget: Numeric) -> Numeric:
    """Positions left idle by a plain step of this batch, 0 past the budget; arrays broadcast."""
    return np.maximum(0.0, np.subtract(budget, checks.all_within("batch", batch, low=0.0)))


def demand(batch: Numeric, requests: Numeric, k: Numeric, *, among: bool = True) -> Numeric:
    """Positions that a step must score when `requests` of (or on top of) the batch draft k each."""
    checks.all_within("requests", requests, low=0.0)
    return checks.all_within("batch", batch, low=0.0) + requests * positions_added(k, among=among)


def budget_share(positions: Numeric, budget: Numeric) -> Numeric:
    """Share of the idle budget that some positions take; above 1 they do not fit."""
    checks.all_within("positions", positions, low=0.0)
    share: Numeric = np.divide(positions, checks.all_within("budget", budget, low=0.0, above=True))
    return share


def overload(positions: Numeric, budget: Numeric) -> Numeric:
    """How many times longer than its weight read a step takes: max(1, positions / budget)."""
    return np.maximum(1.0, budget_share(positions, budget))


def slots(batch: Numeric, k: int, budget: Numeric, *, among: bool = True) -> Numeric:
    """Requests that can draft k without slowing the step; those among the batch are at most the batch."""
    checks.whole("k", k, low=1, high=MAX_K)
    free = np.floor(headroom(batch, budget) / positions_added(k, among=among) + EDGE)
    return np.minimum(free, batch) if among else free


def largest_free_batch(k: int, budget: float, *, among: bool = True) -> int:
    """The largest batch in which every request drafts k and the step does not slow."""
    return int(checks.real("budget", budget, low=0.0) / (1 + positions_added(k, among=among)) + EDGE)


def last_batch_admitting(k: int, budget: float, *, requests: int = 1) -> int:
    """The largest batch that these further requests, drafting k each, can join without slowing it; 0 if none."""
    return max(
        0, int(checks.real("budget", budget, low=0.0) - requests * positions_added(k, among=False) + EDGE)
    )


def largest_common_k(batch: float, requests: int, budget: float, *, among: bool = True) -> int:
    """The deepest draft that all `requests` can run without slowing the step; 0 where there is no room for one."""
    checks.whole("requests", requests, low=1)
    each = int(float(headroom(batch, budget)) / requests + EDGE)
    return max(0, each - (0 if among else 1))


def tier(batch: Numeric, k: int, budget: Numeric, *, near_slots: int = NEAR_SLOTS) -> NDArray[np.str_]:
    """How full a step is, one of TIERS for each batch.

    Notes
    -----
    Quiet: all requests could draft k on top of the batch. Near saturation: at most `near_slots` could. The lesson's
    table of cut points is lost; this rule, with its k + 1 per request, gives every example it names.
    """
    room, free = headroom(batch, budget), slots(batch, k, budget, among=False)
    conditions = [np.asarray(room) <= 0, np.asarray(free) >= batch, np.asarray(free) <= near_slots]
    return np.select(conditions, ["over budget", "quiet", "near-saturated"], "moderate")


@dataclass(frozen=True, slots=True)
class TierRun:
    """A run of batches, both ends included, in the same tier."""

    from_: int
    to: int
    tier: str


def tier_runs(
    batches: Sequence[int], budgets: Numeric, k: int, *, near_slots: int = NEAR_SLOTS
) -> list[TierRun]:
    """Tiers over ascending batches, joined where they are equal; `budgets` is one number, or one for each batch."""
    names = np.broadcast_to(
        tier(np.asarray(batches, dtype=float), k, budgets, near_slots=near_slots), len(batches)
    )
    starts = [i for i in range(len(batches)) if i == 0 or names[i] != names[i - 1]]
    ends = [*(batches[i] - 1 for i in starts[1:]), batches[-1]]
    return [TierRun(int(batches[i]), int(end), str(names[i])) for i, end in zip(starts, ends, strict=True)]


def lesson_surface(
    law: Acceptance,
    *,
    budget: float,
    batches: Sequence[int],
    draft_cost: float,
    step_seconds: float = 1.0,
    charge: str = "added",
    max_k: int = DEFAULT_MAX_K,
) -> Surface:
    """The lesson's arithmetic as a `Surface`: every request of a batch drafts the same k, and caches weigh nothing."""
    last = max_k if law.max_k is None else min(max_k, law.max_k)
    ks, rows = np.arange(last + 1)[:, None], np.asarray(batches, dtype=float)
    plain = overload(rows, budget)
    ratio = overload(demand(rows, rows, ks), budget) / plain
    cost = round_cost(ks, draft_cost=draft_cost, verify_ratio=ratio, charge=charge)
    speedup = np.array(expected_tokens_to(law, last))[:, None] / cost
    return Surface(
        ks=tuple(range(last + 1)),
        batches=tuple(batches),
        contexts=(0,),
        speedup=np.broadcast_to(speedup, (last + 1, rows.size))[:, :, None],
        step_seconds=np.asarray(plain * step_seconds)[:, None],
        fits=np.ones((rows.size, 1), dtype=bool),
    )


@dataclass(frozen=True, slots=True)
class MixedRound:
    """A round in which only some requests speculate. Costs are in plain steps of the same batch."""

    tokens: float
    round_cost: float
    speedup: float


def mixed_round(
    depths: Sequence[int],
    law: Acceptance,
    *,
    batch: int,
    budget: float,
    draft_cost: float,
    charge: str = "added",
    among: bool = True,
) -> MixedRound:
    """Tokens and cost of a round in which the requests of `depths` draft so many each, and the rest none.

    Everyone waits for the longest draft and for the whole verification pass. Speedup is that of the batch.
    """
    drafts = [checks.whole("k", k, high=MAX_K) for k in depths]
    checks.whole("batch", batch, low=len(drafts) if among else 0, high=MAX_BATCH)
    others = batch - len(drafts) if among else batch
    added = sum(positions_added(k, among=among) for k in drafts if k)
    ratio = float(overload(batch + added, budget) / overload(batch, budget))
    cost = round_cost(max(drafts, default=0), draft_cost=draft_cost, verify_ratio=ratio, charge=charge)
    tokens = others + sum(expected_tokens(law, k) for k in drafts)
    return MixedRound(tokens, float(cost), tokens / (others + len(drafts)) / float(cost))


def priority_grant(wanted: Sequence[int], units: int) -> list[int]:
    """In the order given, all that a request wants or nothing; who does not fit is passed over."""
    given, left = [], checks.whole("units", units)
    for want in _wishes(wanted):
        given.append(want if want <= left else 0)
        left -= given[-1]
    return given


def even_split(wanted: Sequence[int], units: int) -> list[int]:
    """The same whole share for everyone, or less where less is wanted; what is left over stays unused."""
    wishes = _wishes(wanted)
    share = checks.whole("units", units) // max(1, len(wishes))
    return [min(want, share) for want in wishes]


def water_fill(wanted: Sequence[int], units: int) -> list[int]:
    """Max-min fair shares in whole units: nobody can get more without taking from one who has no more.

    Small wishes are met in full, the others get equal shares; units that cannot be divided go to the first in order.
    """
    wishes, left = _wishes(wanted), checks.whole("units", units)
    given = [0] * len(wishes)
    # Smallest wish first; of equal ones the last, so that the larger of two unequal shares is the earlier one's.
    order = sorted(range(len(wishes)), key=lambda i: (wishes[i], -i))
    for served, i in enumerate(order):
        given[i] = min(wishes[i], left // (len(wishes) - served))
        left -= given[i]
    return given


RULES = {"priority grant": priority_grant, "even split": even_split, "water-fill": water_fill}


@dataclass(frozen=True, slots=True)
class FairShare:
    """What a rule gives the sessions, and what that yields. Rounds are counted in plain steps."""

    rule: str
    depths: tuple[int, ...]
    full: int  # sessions that got all they wanted
    dropped: int  # sessions that draft nothing
    units_used: int
    tokens: float  # of these sessions, per round
    tokens_per_step: float
    batch_speedup: float


def compare_rules(
    sessions: int,
    k: int,
    law: Acceptance,
    *,
    batch: int,
    budget: float,
    draft_cost: float,
    charge: str = "added",
    among: bool = True,
) -> list[FairShare]:
    """Share the headroom of a batch among sessions that each want k, by every rule of RULES."""
    count = checks.whole("sessions", sessions, low=1, high=batch if among else MAX_BATCH)
    want = int(positions_added(checks.whole("k", k, low=1, high=MAX_K), among=among))
    units = int(float(headroom(batch, budget)) + EDGE)
    rows = []
    for name, rule in RULES.items():
        given = rule([want] * count, units)
        depths = tuple(max(0, got - (0 if among else 1)) for got in given)
        found = mixed_round(
            depths, law, batch=batch, budget=budget, draft_cost=draft_cost, charge=charge, among=among
        )
        tokens = sum(expected_tokens(law, depth) for depth in depths)
        rows.append(
            FairShare(
                rule=name,
                depths=depths,
                full=sum(got == want for got in given),
                dropped=sum(depth == 0 for depth in depths),
                units_used=sum(given),
                tokens=tokens,
                tokens_per_step=tokens / found.round_cost,
                batch_speedup=found.speedup,
            )
        )
    return rows


def _wishes(wanted: Sequence[int]) -> list[int]:
    return [checks.whole("wanted", want) for want in wanted]
