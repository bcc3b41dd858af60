"""Rows that people publish (a rate, a mean, a block size): the caller names the convention, we check."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError
from specmodel.evidence.geometric import alpha_from_tokens_per_round

Counted = Literal["drafted", "block"]


@dataclass(frozen=True, slots=True)
class Summary:
    """One published row in our words; alpha as if all positions were equal."""

    k: int
    tokens_per_round: float
    alpha: float
    accepted_share: float


def from_summary(
    size: int,
    *,
    size_is: Counted,
    mean_accepted: float | None = None,
    tokens_per_round: float | None = None,
    rate: float | None = None,
    digits: int = 3,
) -> Summary:
    """Convert a published row.

    Parameters
    ----------
    size : int
        The row's K.
    size_is : "drafted" or "block"
        Whether K counts draft tokens, or positions of the verification pass with the root (then k = K - 1).
    mean_accepted : float, optional
        Accepted draft tokens per round, bonus token not counted.
    tokens_per_round : float, optional
        The same with the bonus token. One of the two must be given.
    rate : float, optional
        Accepted / drafted as a fraction. If given it must agree with the mean.
    digits : int
        Decimals to which the row was rounded, for that comparison.

    Raises
    ------
    InputError
        If `size_is` is neither, the mean is missing or out of range, or rate x drafted disagrees with it.

    Examples
    --------
    >>> from_summary(4, size_is="block", mean_accepted=1.05, rate=0.35, digits=2).tokens_per_round
    2.05
    """
    if size_is not in ("drafted", "block"):
        raise InputError(
            "size_is", size_is, "say 'drafted' (K draft tokens) or 'block' (K positions with the root)"
        )
    checks.whole("size", size, low=1 if size_is == "drafted" else 2, high=MAX_K)
    k = size if size_is == "drafted" else size - 1
    if (mean_accepted is None) == (tokens_per_round is None):
        raise InputError(
            "mean_accepted", mean_accepted, "give exactly one of mean_accepted and tokens_per_round"
        )
    if tokens_per_round is not None:
        mean = checks.real("tokens_per_round", tokens_per_round, low=1.0, high=k + 1.0) - 1.0
    else:
        mean = checks.real("mean_accepted", mean_accepted, low=0.0, high=float(k))
    if rate is not None:
        checks.real("rate", rate, low=0.0, high=1.0)
        step = 10.0**-digits
        if abs(rate * k - mean) > 0.5 * step * (k + 1) + 1e-12:
            fits = mean / rate if rate else math.inf
            raise InputError(
                "rate",
                rate,
                f"{rate:g} of {k} drafted tokens is {rate * k:.3g} accepted, the row says {mean:.3g}: that "
                f"is {fits:.3g} "
                "drafted, so K means something else in this row",
            )
    return Summary(k, 1.0 + mean, alpha_from_tokens_per_round(1.0 + mean, k), mean / k)


def implied_round_cost(tokens_per_round: float, speedup: float) -> float:
    """Round cost in plain steps from a measured speedup: tokens per round / speedup."""
    checks.real("tokens_per_round", tokens_per_round, low=1.0)
    return tokens_per_round / checks.real("speedup", speedup, low=0.0, above=True)
