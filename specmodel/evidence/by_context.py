"""Acceptance against context: where a head stops paying, and where another takes over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specmodel import checks
from specmodel.errors import InputError
from specmodel.evidence.counts import Array


def tokens_at(context: float, contexts: Sequence[float], tokens_per_round: Sequence[float]) -> float:
    """Tokens per round at a context, linear between the measured ones.

    Raises
    ------
    InputError
        Outside the measured contexts: acceptance falls behind a head's trained length, so nothing is
        extended.
    """
    x, y = _curve(contexts, tokens_per_round)
    if not x[0] <= context <= x[-1]:
        raise InputError("context", context, f"measured from {x[0]:g} to {x[-1]:g} only")
    return float(np.interp(context, x, y))


def pays_until(
    contexts: Sequence[float], tokens_per_round: Sequence[float], round_cost: float
) -> float | None:
    """The first context at which tokens per round falls below the round cost, linear between the points.

    None where it pays at every measured context; the first context where it pays at none.
    """
    x, y = _curve(contexts, tokens_per_round)
    found = _crossings(x, y - checks.real("round_cost", round_cost, low=0.0, above=True))
    if y[0] < round_cost:
        return float(x[0])
    return found[0] if found else None


def cross_at(contexts: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The contexts at which two curves of tokens per round change places."""
    x, y = _curve(contexts, first)
    _, other = _curve(contexts, second)
    return _crossings(x, y - other)


def _curve(contexts: Sequence[float], values: Sequence[float]) -> tuple[Array, Array]:
    x, y = np.asarray(contexts, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or x.size < 2:
        raise InputError("contexts", len(contexts), "needs two lists of equal length, two points or more")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (np.diff(x) > 0).all()):
        raise InputError("contexts", list(contexts), "must be finite and increasing")
    if (y < 1.0).any():
        raise InputError(
            "tokens_per_round", float(y.min()), "must be at least 1 (the bonus token is included)"
        )
    return x, y


def _crossings(x: Array, difference: Array) -> list[float]:
    at = np.flatnonzero(np.sign(difference[:-1]) * np.sign(difference[1:]) < 0)
    share = difference[at] / (difference[at] - difference[at + 1])
    exact = x[1:-1][difference[1:-1] == 0.0]
    return sorted(np.concatenate([x[at] + share * (x[at + 1] - x[at]), exact]).tolist())
