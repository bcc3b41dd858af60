"""How deep to draft at each batch and context, and what any other choice loses.

At a given batch and context the step time is given, so latency, throughput and price per token all rank the depths
alike: by speedup. They part where the batch is a choice too; `operating_point` makes that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specmodel import checks
from specmodel.acceptance import MAX_K, expected_tokens_to
from specmodel.errors import InputError
from specmodel.operating_range import TIE, DepthInterval
from specmodel.rounds import CHARGES, DEFAULT_MAX_K

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OBJECTIVES = ("latency", "throughput", "cost")
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Surface:
    """Speedup of every depth at every batch and context, and the plain step it is counted against.

    Attributes
    ----------
    ks, batches, contexts : tuple of int
        Ascending; `ks` begins with 0, for not speculating is always a candidate.
    speedup : ndarray, shape (k, batch, context)
        Tokens per second over those of plain decoding.
    step_seconds : ndarray, shape (batch, context)
        The plain step. [s]
    fits : ndarray of bool, shape (batch, context)
        Whether memory holds the batch. What does not fit is never chosen and has no regret.
    """

    ks: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    speedup: Floats
    step_seconds: Floats
    fits: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for field, values, low in (
            ("k", self.ks, 0),
            ("batch", self.batches, 1),
            ("ctx", self.contexts, 0),
        ):
            if not values or values[0] < low or any(b <= a for a, b in pairwise(values)):
                raise InputError(field, list(values)[:8], f"must be ascending whole numbers from {low}")
        if self.ks[0] != 0:
            raise InputError("k", self.ks[0], "the first depth must be 0: not speculating is a candidate")
        cells = (len(self.batches), len(self.contexts))
        for name, array, shape in (
            ("speedup", self.speedup, (len(self.ks), *cells)),
            ("step seconds", self.step_seconds, cells),
            ("fits", self.fits, cells),
        ):
            if array.shape != shape:
                raise InputError(f"{name}, shape", array.shape, f"must be {shape}")
        checks.all_within("speedup", self.speedup, low=0.0, above=True)
        checks.all_within("step seconds", self.step_seconds, low=0.0, above=True)

    @property
    def tpot_s(self) -> Floats:
        """Time per output token of one sequence, (k, batch, context). [s]"""
        return self.step_seconds / self.speedup

    @property
    def tokens_per_second(self) -> Floats:
        """Of the whole batch, (k, batch, context)."""
        return np.asarray(self.batches, dtype=float)[:, None] / self.tpot_s

    def with_cost_of_zero(self, share: float) -> Surface:
        """The same where k = 0 is not free: each plain step pays `share` of itself to keep the draft's cache current.

        An engine that drops the draft's cache instead pays once, when it drafts again: see `switching`.
        """
        checks.real("cost of k 0", share, low=0.0)
        speedup = self.speedup.copy()
        speedup[0] = 1.0 / (1.0 + share)
        return replace(self, speedup=speedup)

    def column(self, context: int) -> int:
        """Where a context stands in `contexts`."""
        if context not in self.contexts:
            raise InputError("ctx", context, "must be one of " + ", ".join(map(str, self.contexts[:12])))
        return self.contexts.index(context)

    def places(self, batches: Sequence[int]) -> Ints:
        """Where these batches stand in `batches`; an InputError for one that was not computed."""
        known = {batch: place for place, batch in enumerate(self.batches)}
        missing = next((batch for batch in batches if batch not in known), None)
        if missing is not None or not batches:
            raise InputError("batches", missing, "must name at least one, each among the batches computed")
        return np.array([known[batch] for batch in batches])

    def up_to(self, batch: int) -> Surface:
        """The same for batches up to this one."""
        count = int(np.searchsorted(np.asarray(self.batches), batch, side="right"))
        return replace(
            self,
            batches=self.batches[:count],
            speedup=self.speedup[:, :count],
            step_seconds=self.step_seconds[:count],
            fits=self.fits[:count],
        )

    def rows(self, ks: Sequence[int] | NDArray[np.integer]) -> Ints:
        """Where these depths stand in `ks`; an InputError for one that was not computed."""
        known, asked = np.asarray(self.ks), np.asarray(ks)
        found = np.searchsorted(known, asked).clip(max=known.size - 1)
        if (known[found] != asked).any():
            raise InputError(
                "k", int(asked[known[found] != asked].flat[0]), f"must be from 0 to {self.ks[-1]}"
            )
        return found


def surface(
    deployment: Deployment,
    law: Acceptance,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    draft_cost: float,
    charge: str = "added",
    max_k: int = DEFAULT_MAX_K,
) -> Surface:
    """Every depth to `max_k` (or to the last one that the acceptance speaks for) at every batch and context."""
    checks.choice("charge", charge, CHARGES)
    checks.whole("max_k", max_k, high=MAX_K)
    last = max_k if law.max_k is None else min(max_k, law.max_k)
    ks = np.arange(last + 1)
    rows, columns = np.asarray(batches, dtype=float)[:, None], np.asarray(contexts, dtype=float)[None, :]
    cells = (len(batches), len(contexts))
    speedup = deployment.speedups(
        np.array(expected_tokens_to(law, last)),
        k=ks[:, None, None],
        batch=rows,
        context=columns,
        draft_cost=draft_cost,
        charge=charge,
    )
    limits = np.array([deployment.memory_limit_batch(context) for context in contexts])
    return Surface(
        ks=tuple(int(k) for k in ks),
        batches=tuple(batches),
        contexts=tuple(contexts),
        speedup=np.broadcast_to(np.asarray(speedup, dtype=float), (ks.size, *cells)),
        step_seconds=np.broadcast_to(
            np.asarray(deployment.pass_time(rows, columns).seconds, dtype=float), cells
        ),
        fits=np.asarray(batches)[:, None] <= limits[None, :],
    )


def best_k(found: Surface) -> Ints:
    """The depth with the best speedup in each cell, shape (batch, context); of equal ones the shallowest."""
    good = found.speedup >= found.speedup.max(axis=0) * (1.0 - TIE)
    chosen: Ints = np.asarray(found.ks)[good.argmax(axis=0)]
    return chosen


def regret(found: Surface, ks: Sequence[int] | NDArray[np.integer]) -> Floats:
    """Share of the best speedup lost by other depths, 0 to 1, shape (batch, context); 0 where nothing fits.

    Parameters
    ----------
    ks : int array, shape (batch) or (batch, context)
        The depth run instead.
    """
    chosen = found.rows(np.asarray(ks))
    if chosen.ndim == 1:
        chosen = chosen[:, None]
    chosen = np.broadcast_to(chosen, found.step_seconds.shape)
    taken = np.take_along_axis(found.speedup, chosen[None], axis=0)[0]
    return np.where(found.fits, 1.0 - taken / found.speedup.max(axis=0), 0.0)


def relative(found: Surface, weights: Sequence[float] | None = None) -> Floats:
    """Share of the best speedup that each depth reaches at each batch, mean over contexts, shape (batch, k).

    Parameters
    ----------
    weights : sequence of float, one per context, optional
        Share of traffic at each context; equal by default. Contexts at which the batch does not fit do not count;
        where it fits at none, all do.
    """
    shares = np.ones(len(found.contexts)) if weights is None else np.asarray(weights, dtype=float)
    if shares.shape != (len(found.contexts),) or not (shares >= 0).all() or not 0.0 < shares.sum() < np.inf:
        raise InputError("weights", shares.tolist(), "must be one share >= 0 per context, not all 0")
    counted = found.fits * shares
    counted = np.where(counted.sum(axis=1, keepdims=True) > 0.0, counted, shares)
    mean: Floats = (found.speedup / found.speedup.max(axis=0) * counted).sum(axis=2) / counted.sum(axis=1)
    return mean.T


def by_batch_only(found: Surface, weights: Sequence[float] | None = None) -> Ints:
    """One depth per batch for all contexts, as engines take it: the one that loses least by `relative`."""
    mean = relative(found, weights)
    best = mean.max(axis=1, keepdims=True)
    chosen: Ints = np.asarray(found.ks)[(mean >= best - TIE).argmax(axis=1)]
    return chosen


def levels(batches: Sequence[int], ks: Sequence[int] | NDArray[np.integer]) -> list[DepthInterval]:
    """Runs of equal depth. A run ends one batch before the next begins, so that no batch between is left out."""
    found: list[DepthInterval] = []
    starts = [i for i in range(len(batches)) if i == 0 or ks[i] != ks[i - 1]]
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        last = batches[-1] if following is None else batches[following] - 1
        found.append(DepthInterval(int(batches[start]), int(last), int(ks[start])))
    return found


def depth_at(schedule: Sequence[DepthInterval], batches: Sequence[int]) -> Ints:
    """The depth that a schedule gives each batch.

    Raises
    ------
    InputError
        For a batch that no level covers, or levels that overlap or are out of order.
    """
    for one, following in pairwise(schedule):
        if following.from_ <= one.to:
            raise InputError(
                "levels", following.from_, f"must begin after batch {one.to}, where the last one ends"
            )
    asked = np.asarray(batches)
    chosen = np.full(asked.shape, -1, dtype=np.int64)
    for level in schedule:
        chosen[(asked >= level.from_) & (asked <= level.to)] = level.k
    if (chosen < 0).any():
        raise InputError("levels", int(asked[chosen < 0].flat[0]), "no level covers this batch")
    return chosen


def schedule_regret(found: Surface, schedule: Sequence[DepthInterval]) -> Floats:
    """`regret` of a schedule by batch, shape (batch, context)."""
    return regret(found, depth_at(schedule, found.batches))


@dataclass(frozen=True, slots=True)
class FixedDepth:
    """One depth at every batch and context, and what it loses against the best of each cell."""

    k: int
    largest_regret: float
    mean_regret: float


def fixed_depths(found: Surface) -> list[FixedDepth]:
    """What every depth loses when it never adapts; k = 0 is the price of not speculating at all."""
    lost = 1.0 - found.speedup / found.speedup.max(axis=0)
    inside = lost[:, found.fits]
    if inside.shape[1] == 0:
        return [FixedDepth(k, 0.0, 0.0) for k in found.ks]
    return [
        FixedDepth(k, float(row.max()), float(row.mean())) for k, row in zip(found.ks, inside, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Batch and depth together, and what they give at one context."""

    context: int
    batch: int
    k: int
    speedup: float
    tpot_ms: float
    tokens_per_second: float
    cost_per_million_tokens: float | None


def cost_per_million(tokens_per_second: float, price_per_hour: float) -> float:
    """Price of a million tokens, in the currency of the price per hour.

    >>> cost_per_million(1000.0, 3.6)
    1.0
    """
    checks.real("tokens per second", tokens_per_second, low=0.0, above=True)
    return (
        1e6 * checks.real("price per hour", price_per_hour, low=0.0) / (SECONDS_PER_HOUR * tokens_per_second)
    )


def operating_point(
    found: Surface,
    objective: str,
    *,
    context: int,
    tpot_limit_s: float | None = None,
    price_per_hour: float | None = None,
    speculate: bool = True,
) -> OperatingPoint | None:
    """The batch and depth that serve an objective best at one context; None where no batch meets the limit.

    Parameters
    ----------
    objective : "latency", "throughput" or "cost"
        Least time per token, most tokens per second, least price per token. On one deployment the last two choose
        alike; the price tells deployments apart.
    tpot_limit_s : float, optional
        Time per output token that must be kept. [s]
    price_per_hour : float, optional
        Of all its GPUs together; needed for "cost".
    speculate : bool
        False allows k = 0 only: what plain decoding reaches.
    """
    checks.choice("objective", objective, OBJECTIVES)
    if objective == "cost" and price_per_hour is None:
        raise InputError("gpu price", None, "must be given for the objective cost, per hour")
    column = found.column(context)
    row = found.rows(best_k(found)[:, column] if speculate else np.zeros(len(found.batches), dtype=np.int64))
    each = np.arange(len(found.batches))
    tpot, rate = found.tpot_s[row, each, column], found.tokens_per_second[row, each, column]
    allowed = found.fits[:, column].copy()
    if tpot_limit_s is not None:
        allowed &= tpot <= checks.real("tpot limit", tpot_limit_s, low=0.0, above=True)
    if not allowed.any():
        return None
    score = -tpot if objective == "latency" else rate
    at = int(np.where(allowed, score, -np.inf).argmax())
    price = None if price_per_hour is None else cost_per_million(float(rate[at]), price_per_hour)
    return OperatingPoint(
        context=context,
        batch=found.batches[at],
        k=found.ks[int(row[at])],
        speedup=float(found.speedup[row[at], at, column]),
        tpot_ms=float(tpot[at]) * 1e3,
        tokens_per_second=float(rate[at]),
        cost_per_million_tokens=price,
    )


@dataclass(frozen=True, slots=True)
class DayHour:
    """One stretch of the day: its batch, the best depth there, and the gain of it and of the fixed one."""

    batch: int
    k: int
    speedup: float
    fixed_speedup: float


@dataclass(frozen=True, slots=True)
class Day:
    """Stretches of equal length. The gains are tokens of the whole day over those of plain decoding."""

    hours: tuple[DayHour, ...]
    fixed_k: int
    fixed_gain: float
    adaptive_gain: float


def day(found: Surface, batches: Sequence[int], *, context: int, fixed_k: int) -> Day:
    """A day of changing load: adapting the depth to the batch against one fixed depth, and against none.

    Each batch must be one of the surface's. A loaded hour counts for more than a quiet one, because it yields more
    tokens.
    """
    column, at = found.column(context), found.places(batches)
    chosen = best_k(found)[at, column]
    adaptive = found.speedup[found.rows(chosen), at, column]
    fixed = found.speedup[int(found.rows([fixed_k])[0]), at, column]
    plain = np.asarray(batches, dtype=float) / found.step_seconds[at, column]
    rows = zip(batches, chosen, adaptive, fixed, strict=True)
    return Day(
        hours=tuple(DayHour(int(b), int(k), float(best), float(other)) for b, k, best, other in rows),
        fixed_k=fixed_k,
        fixed_gain=float((plain * fixed).sum() / plain.sum()),
        adaptive_gain=float((plain * adaptive).sum() / plain.sum()),
    )
