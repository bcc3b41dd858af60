"""From the best k of every batch to a few levels, giving up as little speedup as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError
from specmodel.export.schedule import MAX_LEVELS, Schedule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

TIE = 1e-12  # another level must gain more than rounding


@dataclass(frozen=True, slots=True)
class Reduction:
    """A schedule of few levels and what it gives up.

    Attributes
    ----------
    schedule : Schedule
    ks : tuple of int
        Its k at each batch of the table.
    regret : float
        Mean over the batches, by weight, of 1 - speedup / best speedup of that batch.
    worst_regret : float
        The largest of these, at batch `worst_batch`.
    """

    schedule: Schedule
    ks: tuple[int, ...]
    regret: float
    worst_regret: float
    worst_batch: int


def reduce_levels(
    batches: Sequence[int],
    speedups: ArrayLike,
    *,
    ks: Sequence[int] | None = None,
    weights: ArrayLike | None = None,
    max_levels: int = MAX_LEVELS,
    monotone: bool = False,
    min_k: int = 0,
    largest_first: bool = False,
) -> Reduction:
    """The schedule of at most `max_levels` levels with the least regret.

    Parameters
    ----------
    batches : sequence of int, length B
        In ascending order.
    speedups : array, shape (B, K)
        Over plain decoding, one column per k; a cell that is not finite is one that cannot run.
    ks : sequence of int, length K, optional
        The k of each column, ascending; 0, 1, ..., K-1 by default.
    weights : array, shape (B,), optional
        How much each batch counts, for example the share of time spent there; equal by default.
    monotone : bool
        k must not grow with the batch.
    min_k : int
        No level below it: some engines' drafters lose their state at k = 0. Regret is still counted against the
        best k of all.
    largest_first : bool
        The first level must have the largest k, as TensorRT-LLM's table demands.

    Raises
    ------
    InputError
        If shapes do not agree, a batch has no cell that can run, or no k is left.

    Notes
    -----
    Exact, by dynamic programming over (batch, levels used, k of the last level): one pass over the batches, in
    which each state either stays on its level or opens another. Of equal regrets the one with fewer levels wins,
    then the one whose last level has the smaller k.
    """
    checks.whole("max_levels", max_levels, low=1)
    checks.whole("min_k", min_k, high=MAX_K)
    columns = list(range(np.shape(speedups)[-1])) if ks is None else [checks.whole("k", k) for k in ks]
    if any(later <= earlier for earlier, later in pairwise(columns)):
        raise InputError("k", columns, "must be in ascending order, none twice")
    regrets = _regrets(batches, speedups, len(columns))
    share = _shares(len(batches), weights)
    allowed = [column for column, k in enumerate(columns) if k >= min_k]
    if not allowed:
        raise InputError("min_k", min_k, f"at most {columns[-1]}, the largest k in the table")
    weighted = regrets[:, allowed] * share[:, None]
    # With the largest k first, that k is tried in turn: the first level has it and none of the others more.
    firsts: Sequence[int | None] = range(len(allowed)) if largest_first else (None,)
    best_cost, best_path = np.inf, [0] * len(batches)
    for first in firsts:
        cost, path = _best_path(weighted, max_levels, monotone, first)
        if cost < best_cost - TIE:
            best_cost, best_path = cost, path
    chosen = np.array([allowed[column] for column in best_path])
    given_up = regrets[np.arange(len(batches)), chosen]
    worst = int(np.argmax(given_up))
    picked = tuple(columns[column] for column in chosen)
    return Reduction(
        schedule=Schedule.from_best(batches, picked),
        ks=picked,
        regret=float(share @ given_up),
        worst_regret=float(given_up[worst]),
        worst_batch=int(batches[worst]),
    )


def _regrets(batches: Sequence[int], speedups: ArrayLike, columns: int) -> NDArray[np.float64]:
    """1 - speedup / best of the batch, shape (B, K); 1 where a cell cannot run."""
    table = np.asarray(speedups, dtype=float)
    if table.shape != (len(batches), columns):
        raise InputError(
            "speedups", table.shape, f"one row per batch, one column per k: {len(batches), columns}"
        )
    table = np.where(np.isfinite(table), table, 0.0)
    best = table.max(axis=1)
    if (best <= 0.0).any():
        batch = batches[int(np.argmin(best))]
        raise InputError(f"speedups at batch {batch}", float(best.min()), "at least one must be above 0")
    return np.asarray(1.0 - table / best[:, None])


def _shares(count: int, weights: ArrayLike | None) -> NDArray[np.float64]:
    """Weights as shares of 1."""
    if weights is None:
        return np.full(count, 1.0 / count)
    given = np.asarray(weights, dtype=float)
    if given.shape != (count,):
        raise InputError("weights", given.shape, f"one for each of the {count} batches")
    checks.all_within("weights", given, low=0.0)
    if not given.sum() > 0.0:
        raise InputError("weights", given.tolist(), "at least one must be above 0")
    return np.asarray(given / given.sum())


def _best_path(
    cost_of: NDArray[np.float64], max_levels: int, monotone: bool, first: int | None
) -> tuple[float, list[int]]:
    """Least sum along the rows with at most `max_levels` runs of equal columns, and its columns.

    `first`: the column of the first run, which no other may exceed.
    """
    rows, columns = cost_of.shape
    usable = np.zeros(columns) if first is None else np.where(np.arange(columns) <= first, 0.0, np.inf)
    # closed[now, before]: whether a level may follow on that column
    if monotone:
        closed = np.where(np.arange(columns)[:, None] < np.arange(columns)[None, :], 0.0, np.inf)
    else:
        closed = np.where(np.eye(columns, dtype=bool), np.inf, 0.0)
    cost = np.full((max_levels, columns), np.inf)
    start = np.arange(columns) if first is None else np.array([first])
    cost[0, start] = cost_of[0, start]
    came_from = np.zeros((rows, max_levels, columns), dtype=np.int32)  # column before; itself = stayed
    for row in range(1, rows):
        stay, here = cost, np.tile(np.arange(columns, dtype=np.int32), (max_levels, 1))
        cost = stay.copy()
        for level in range(1, max_levels):
            reached = stay[level - 1][None, :] + closed
            before = reached.argmin(axis=1)
            opened = reached[np.arange(columns), before]
            better = opened < cost[level] - TIE
            cost[level] = np.where(better, opened, cost[level])
            here[level] = np.where(better, before, here[level])
        came_from[row] = here
        cost = cost + cost_of[row][None, :] + usable[None, :]
    level = 0
    for more in range(1, max_levels):
        if cost[more].min() < cost[level].min() - TIE:
            level = more
    total = float(cost[level].min())
    path = [int(cost[level].argmin())]
    for row in range(rows - 1, 0, -1):
        before_column = int(came_from[row, level, path[-1]])
        if before_column != path[-1]:
            level -= 1
        path.append(before_column)
    return total, path[::-1]
