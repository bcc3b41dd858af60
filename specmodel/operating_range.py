"""In which batches speculation pays.

Not one number: a mixture-of-experts target can lose at batch 1 and win at 64, and at long context nothing that fits
in memory loses. So the answer is the set of batch intervals, every real crossing between them, and the term that binds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specmodel import checks
from specmodel.acceptance import expected_tokens_to
from specmodel.checks import MAX_BATCH
from specmodel.errors import InputError
from specmodel.rounds import CHARGES, DEFAULT_MAX_K
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter

Floats = NDArray[np.float64]
TIE = 1e-12  # a speedup this close to 1 is a tie, and a tie does not pay
POINTS_AT_ONCE = 500_000  # of depth x batch: keeps thousands of depths within some hundred megabytes
EVERY_BATCH_TO = 2048  # scanned one by one up to here, then 1 % apart and refined where the sign changes


@dataclass(frozen=True, slots=True)
class Interval:
    """A run of batches, both ends included, in which speculation pays or does not."""

    from_: int
    to: int
    pays: bool


@dataclass(frozen=True, slots=True)
class DepthInterval:
    """A run of batches with the same best draft length (0: do not speculate)."""

    from_: int
    to: int
    k: int


@dataclass(frozen=True, slots=True)
class Binding:
    """The two terms of a verification pass, and which one is larger by what factor."""

    batch: int
    k: int
    memory_ms: float
    compute_ms: float
    pass_ms: float
    bound: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Range:
    """Where speculation pays at one context. `crossings` are real batches at which the speedup is 1."""

    memory_limit_batch: int
    intervals: tuple[Interval, ...]
    crossings: tuple[float, ...]
    depths: tuple[DepthInterval, ...]
    speedup_at_1: float | None
    speedup_at_limit: float | None
    at_limit: Binding | None

    @property
    def break_even_batch(self) -> float | None:
        """The first real batch at which a gain turns into a loss; None where that never happens."""
        for index, interval in enumerate(self.intervals[:-1]):
            if interval.pays:
                return self.crossings[index]
        return None

    @property
    def first_losing_batch(self) -> int | None:
        return next((interval.from_ for interval in self.intervals if not interval.pays), None)


def operating_range(
    deployment: Deployment,
    law: Acceptance,
    *,
    context: int,
    draft_cost: float = 0.0,
    charge: str = "added",
    drafter: Drafter | None = None,
    k: int | None = None,
    max_k: int = DEFAULT_MAX_K,
    verify_factor: float = 1.0,
    gain_factor: float = 1.0,
) -> Range:
    """Every batch interval in which speculation pays, up to the batch that memory allows.

    Parameters
    ----------
    draft_cost, charge
        The draft's time as a ratio to a plain step, and how it enters.
    drafter : Drafter, optional
        Instead of a ratio: a draft whose own passes are timed, and whose weights and cache take their memory.
    k : int or None
        A fixed draft length; None takes the best k >= 1 at each batch.
    verify_factor, gain_factor : float
        Stretch verification passes against plain steps, and speedups: to see what a misprediction would change.

    Notes
    -----
    A speedup of exactly 1 does not pay. Up to batch 2,048 every integer is tested; beyond, batches 1 % apart, and
    each change of sign is then located exactly. Wide logits take memory: of the positions that the best k has where
    memory ends.
    """
    checks.choice("charge", charge, CHARGES)
    ks = _depths(law, drafter, k, max_k)
    tokens = np.array(expected_tokens_to(law, int(ks[-1]) if ks.size else 0))

    def most(width: int) -> int:
        """The batch where memory ends, that many positions verified per sequence."""
        held = deployment.memory(
            context,
            width=width,
            draft=None if drafter is None else drafter.artefact,
            draft_tp=None if drafter is None or drafter.artefact is None else drafter.tp,
        )
        return min(MAX_BATCH, held.max_batch)

    limit = most(1 if k is None else _width(drafter, k))
    if limit == 0 or ks.size == 0 or ks[-1] == 0:
        whole = (Interval(1, limit, False),) if limit else ()
        depth = (DepthInterval(1, limit, 0),) if limit else ()
        return Range(limit, whole, (), depth, 1.0 if limit else None, 1.0 if limit else None, None)

    def stated(depths: NDArray[np.int64], batches: Floats) -> Floats:
        """Speedups by depth and batch at the draft cost stated."""
        yielded: Floats = tokens[depths][:, None]
        found = deployment.speedups(
            tokens,
            k=depths[:, None],
            batch=batches[None, :],
            context=context,
            draft_cost=draft_cost,
            charge=charge,
        )
        if verify_factor == 1.0:
            return np.asarray(gain_factor * found)
        plain = deployment.plain_seconds(batches, context)
        verified = deployment.verify_seconds(batches[None, :], context, depths[:, None] + 1) / plain
        stretched = yielded / found if charge == "scaled" else verified
        return np.asarray(gain_factor * yielded / (yielded / found + (verify_factor - 1.0) * stretched))

    def by_k(batch: Floats) -> Floats:
        batches = np.atleast_1d(batch)
        if drafter is None:
            at_once = max(1, POINTS_AT_ONCE // batches.size)
            return np.concatenate(
                [stated(ks[first : first + at_once], batches) for first in range(0, ks.size, at_once)]
            )
        speculation = Speculation(deployment, drafter)
        plain = deployment.plain_seconds(batches, context)
        rounds = [speculation.round_time(int(depth), batches, context, law) for depth in ks]
        rows = [(one.seconds + (verify_factor - 1.0) * one.verify_s) / plain for one in rounds]
        costs: Floats = np.stack([np.broadcast_to(row, batches.shape) for row in rows])
        return gain_factor * tokens[ks][:, None] / costs

    def gain(batch: Floats) -> Floats:
        """Best speedup over the depths allowed, less 1."""
        best: Floats = by_k(batch).max(axis=0) - 1.0
        return best

    if k is None:
        widest = _width(drafter, int(ks[by_k(np.array([float(limit)])).argmax()]))
        limit = most(widest) or limit
    batches = scan_batches(limit)
    table = by_k(batches.astype(float))
    gains = table.max(axis=0) - 1.0
    best_k = np.where(gains > TIE, ks[table.argmax(axis=0)], 0)
    pays = gains > TIE
    ends = [_last_before_change(batches, i, lambda b: bool(gain(b)[0] > TIE)) for i in _changes(pays)]
    intervals = _runs(limit, ends, [bool(flag) for flag in pays[_starts(pays)]])
    crossings = tuple(_root(gain, float(end)) for end in ends)

    def depth_at(batch: Floats) -> int:
        column = by_k(batch)[:, 0]
        return int(ks[column.argmax()]) if column.max() - 1.0 > TIE else 0

    turns = [_last_before_change(batches, i, depth_at) for i in _changes(best_k)]
    depth_runs = tuple(
        DepthInterval(first, last, int(depth))
        for (first, last), depth in zip(_spans(limit, turns), best_k[_starts(best_k)], strict=True)
    )
    k_at_limit = int(ks[table[:, -1].argmax()])
    return Range(
        memory_limit_batch=limit,
        intervals=tuple(Interval(first, last, flag) for first, last, flag in intervals),
        crossings=crossings,
        depths=depth_runs,
        speedup_at_1=float(gains[0] + 1.0),
        speedup_at_limit=float(gains[-1] + 1.0),
        at_limit=binding(deployment, limit, context, k_at_limit, _width(drafter, k_at_limit)),
    )


def _depths(law: Acceptance, drafter: Drafter | None, k: int | None, max_k: int) -> NDArray[np.int64]:
    """The draft lengths to look at: the one asked for, or all that law, method and caller allow."""
    if k is not None:
        deepest = None if drafter is None else drafter.method.deepest
        if deepest is not None and k > deepest:
            raise InputError("k", k, f"at most {deepest}, the most that this draft can propose")
        return np.array([k])
    if drafter is not None:
        return np.arange(1, drafter.method.last_k(law, max_k) + 1)
    return np.arange(1, (max_k if law.max_k is None else min(max_k, law.max_k)) + 1)


def _width(drafter: Drafter | None, k: int) -> int:
    return k + 1 if drafter is None else drafter.width(k)


def binding(deployment: Deployment, batch: int, context: int, k: int, width: int) -> Binding:
    """What a verification pass waits for at one batch, and by what factor."""
    taken = deployment.pass_time(batch, context, width)
    memory, compute = float(taken.memory_seconds), float(taken.compute_seconds)
    larger, smaller = max(memory, compute), min(memory, compute)
    return Binding(
        batch,
        k,
        memory * 1e3,
        compute * 1e3,
        float(taken.seconds) * 1e3,
        "memory" if memory >= compute else "compute",
        larger / smaller if smaller > 0 else float("inf"),
    )


def scan_batches(limit: int) -> NDArray[np.int64]:
    """The batches that are looked at: every one to 2,048, then 1 % apart, and the limit."""
    dense = np.arange(1, min(limit, EVERY_BATCH_TO) + 1)
    if limit <= EVERY_BATCH_TO:
        return dense
    steps = int(np.log(limit / EVERY_BATCH_TO) / np.log(1.01)) + 2
    sparse = np.unique(np.geomspace(EVERY_BATCH_TO, limit, steps).round().astype(np.int64))
    return np.unique(np.concatenate([dense, sparse]))


def _changes(values: NDArray[np.generic]) -> list[int]:
    """Indices i where values[i] differs from values[i + 1]."""
    return [int(i) for i in np.flatnonzero(values[1:] != values[:-1])]


def _starts(values: NDArray[np.generic]) -> list[int]:
    return [0, *(i + 1 for i in _changes(values))]


def _spans(limit: int, ends: list[int]) -> list[tuple[int, int]]:
    firsts = [1, *(end + 1 for end in ends)]
    return list(zip(firsts, [*ends, limit], strict=True))


def _runs(limit: int, ends: list[int], flags: list[bool]) -> list[tuple[int, int, bool]]:
    return [(first, last, flag) for (first, last), flag in zip(_spans(limit, ends), flags, strict=True)]


def _last_before_change(batches: NDArray[np.int64], index: int, state: Callable[[Floats], object]) -> int:
    """The last integer batch that still has the state of batches[index], by halving the gap after it."""
    low, high = int(batches[index]), int(batches[index + 1])
    if high - low <= 1:
        return low
    before = state(np.array([float(low)]))
    while high - low > 1:
        middle = (low + high) // 2
        if state(np.array([float(middle)])) == before:
            low = middle
        else:
            high = middle
    return low


def _root(gain: Callable[[Floats], Floats], low: float) -> float:
    """The real batch between low and low + 1 at which the gain changes sign."""
    at_low, at_high = (float(gain(np.array([b]))[0]) for b in (low, low + 1.0))
    if at_low == 0.0 or at_low * at_high > 0.0:  # a tie at the integer itself
        return low if abs(at_low) <= abs(at_high) else low + 1.0
    from scipy.optimize import brentq

    return float(brentq(lambda b: float(gain(np.array([b]))[0]), low, low + 1.0, xtol=1e-12, rtol=1e-14))


def textbook_break_even(
    tokens: float,
    positions: int,
    *,
    weight_bytes: float,
    kv_bytes_per_sequence: float,
    seconds_per_position: float,
    bandwidth_bytes_per_s: float,
    draft_cost: float = 0.0,
    charge: str = "none",
) -> float | None:
    r"""The break-even batch in closed form: memory-bound plain step, compute-bound verification pass.

    .. math::
        B^* = \frac{E' W}{\beta\,(P t - E' v / \beta)}

    with E' = E (none), E / (1 + k c) (scaled), E - k c (added), P = k + 1 positions.

    Returns
    -------
    float or None
        None where the denominator is not positive: the cache grows as fast as the arithmetic, so no batch loses.

    References
    ----------
    .. [1] Set E' (W + B v)/beta = P B t and solve for B; see docs/breakeven.md.
    """
    k = checks.whole("positions", positions, low=1) - 1
    match checks.choice("charge", charge, CHARGES):
        case "none":
            effective = tokens
        case "scaled":
            effective = tokens / (1.0 + k * draft_cost)
        case _:
            effective = tokens - k * draft_cost
    per_sequence = (
        positions * seconds_per_position - effective * kv_bytes_per_sequence / bandwidth_bytes_per_s
    )
    if per_sequence <= 0.0 or effective <= 0.0:
        return None if effective > 0.0 else 0.0
    return effective * weight_bytes / (bandwidth_bytes_per_s * per_sequence)


def critical_context(
    tokens: float,
    positions: int,
    *,
    seconds_per_position: float,
    kv_bytes_per_token: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Cached tokens per sequence past which no batch breaks even (free draft): the flip context of the textbook.

    From the zero of the denominator of `textbook_break_even`: P t beta / (E x KV bytes per token).
    """
    return positions * seconds_per_position * bandwidth_bytes_per_s / (tokens * kv_bytes_per_token)
