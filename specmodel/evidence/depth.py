"""The best k under an estimate, how far the interval lets it move, and what it costs to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmodel.errors import InputError
from specmodel.evidence.estimate import Estimate


@dataclass(frozen=True, slots=True)
class BestDepth:
    """The best k among 0 (do not speculate) to the last measured position.

    Attributes
    ----------
    k, speedup : int, float
    k_low, k_high : int or None
        Range of the best k over the draws of the rates, at the estimate's level; None without an interval.
    speedup_low, speedup_high : float or None
        Speedup of the chosen k over the same draws.
    regret : float or None
        Share of the attainable speedup that the chosen k loses, mean over the draws; `regret_high` is its
        upper end at the level.
    by_k : tuple of (k, tokens per round, round cost, speedup)
    """

    k: int
    speedup: float
    k_low: int | None
    k_high: int | None
    speedup_low: float | None
    speedup_high: float | None
    regret: float | None
    regret_high: float | None
    by_k: tuple[tuple[int, float, float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("k", "speedup", "k_low", "k_high", "speedup_low", "speedup_high", "regret", "regret_high")
        rows = [
            dict(zip(("k", "tokens_per_round", "round_cost", "speedup"), row, strict=True))
            for row in self.by_k
        ]
        return {**{name: getattr(self, name) for name in names}, "by_k": rows}


def best_depth(estimate: Estimate, round_cost: Callable[[int], float], max_k: int | None = None) -> BestDepth:
    """Best k for a cost of a round in plain steps, with its range and the regret of being wrong.

    Parameters
    ----------
    estimate : Estimate
    round_cost : callable(k) -> float
        Cost of a round of k drafts over a plain step; at k = 0 it is taken as 1.
    max_k : int, optional
        Stop here; at most the last measured position.

    Raises
    ------
    InputError
        Where the evidence gives no rates, or a cost is not positive.
    """
    measured = len(estimate.survival)
    if not measured:
        raise InputError(
            "k", estimate.k, "the evidence gives no rate per position: nothing drafted, or k unknown"
        )
    top = measured if max_k is None else min(max_k, measured)
    cost = np.array([1.0, *(float(round_cost(k)) for k in range(1, top + 1))])
    if not (np.isfinite(cost) & (cost > 0.0)).all():
        raise InputError("round_cost", float(cost[~(cost > 0.0)][0]), "must be above 0")
    tokens = 1.0 + np.concatenate([[0.0], np.cumsum(estimate.survival[:top])])
    speedups = tokens / cost
    k = int(np.argmax(speedups))
    rows = tuple((i, float(tokens[i]), float(cost[i]), float(speedups[i])) for i in range(top + 1))
    rates = None if estimate.draws is None else estimate.draws.rates
    if rates is None:
        return BestDepth(k, float(speedups[k]), None, None, None, None, None, None, rows)
    drawn = 1.0 + np.concatenate([np.zeros((len(rates), 1)), np.cumsum(rates[:, :top], axis=1)], axis=1)
    drawn = drawn / cost
    best = drawn.argmax(axis=1)
    lost = 1.0 - drawn[:, k] / drawn.max(axis=1)
    tails = [(1.0 - estimate.level) / 2.0, (1.0 + estimate.level) / 2.0]
    ends = np.quantile(drawn[:, k], tails)
    span = np.quantile(best, tails, method="inverted_cdf")
    return BestDepth(
        k=k,
        speedup=float(speedups[k]),
        k_low=min(k, int(span[0])),
        k_high=max(k, int(span[1])),
        speedup_low=float(ends[0]),
        speedup_high=float(ends[1]),
        regret=float(lost.mean()),
        regret_high=float(np.quantile(lost, tails[1])),
        by_k=rows,
    )
