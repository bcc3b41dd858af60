"""One alpha for all positions: from a mean length, and how well it fits counts per position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmodel.errors import InputError
from specmodel.evidence.counts import Array


def alpha_from_tokens_per_round(tokens: float, k: float) -> float:
    """The alpha whose geometric chain of k drafts gives this mean length, bonus token included.

    Parameters
    ----------
    tokens : float
        1 to k + 1.
    k : float
        Draft tokens per round, > 0; a mean may be given where lengths were mixed.

    Raises
    ------
    InputError
        If `tokens` is outside 1 to k + 1.

    Examples
    --------
    >>> f"{alpha_from_tokens_per_round(2.3926, 3):.4f}"
    '0.6626'
    """
    if not k > 0.0:
        raise InputError("k", k, "must be above 0")
    if not 1.0 <= tokens <= (k + 1.0) * (1.0 + 1e-9):
        raise InputError("tokens_per_round", tokens, f"must be from 1 to k + 1 = {k + 1:g}")
    return float(alphas_from_tokens_per_round(np.array([tokens]), k)[0])


def alphas_from_tokens_per_round(tokens: Array, k: float) -> Array:
    """The same for an array of mean lengths, by bisection: the mean grows with alpha."""
    low, high = np.zeros_like(tokens), np.ones_like(tokens)
    for _ in range(60):
        middle = (low + high) / 2.0
        below = _tokens(middle, k) < tokens
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(tokens <= 1.0, 0.0, np.where(tokens >= k + 1.0, 1.0, (low + high) / 2.0))


def _tokens(alpha: Array, k: float) -> Array:
    from specmodel.acceptance import tokens_per_round

    return np.asarray(tokens_per_round(alpha, k), dtype=np.float64)


def round_variance(survival: Array) -> float:
    """Variance of the accepted tokens of one round, from its survival rates."""
    mean = float(survival.sum())
    square = float((survival * (2.0 * np.arange(1, survival.size + 1) - 1.0)).sum())
    return max(square - mean * mean, 0.0)


@dataclass(frozen=True, slots=True)
class GeometricFit:
    """How well one alpha describes the rates per position.

    Attributes
    ----------
    statistic, degrees, p_value : float, int, float
        Likelihood ratio of free rates against one alpha, divided by the design effect where requests are
        known (Rao and Scott 1984). With many rounds any small difference becomes significant, hence the gaps.
    largest_gap : float
        Largest distance of a conditional rate from alpha, among positions that hold 1 % of the tests or more.
    tokens_gap : float
        Tokens per round of the geometric chain minus those measured.
    first_is_poor : bool
        The first rate is far below the later ones, as with n-gram and suffix drafts.
    adequate : bool
    """

    statistic: float
    degrees: int
    p_value: float
    largest_gap: float
    tokens_gap: float
    first_is_poor: bool
    adequate: bool

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


GAP_ALLOWED = 0.05  # a conditional rate this far from alpha moves the best k
POOR_FIRST = 0.15  # the first rate this far below the later ones


def geometric_fit(tested: Array, survived: Array, effect: float) -> GeometricFit | None:
    """Compare one alpha with free rates per position; None with fewer than two tested positions."""
    use = tested > 0.0
    t, s = tested[use], survived[use]
    if t.size < 2:
        return None
    alpha = float(s.sum() / t.sum())
    rates = s / t
    statistic = 2.0 * float(
        (_log_likelihood(s, t, rates) - _log_likelihood(s, t, np.full(t.size, alpha))).sum()
    )
    statistic = max(statistic, 0.0) / max(effect, 1.0)
    degrees = int(t.size) - 1
    from scipy.special import chdtrc

    p_value = float(chdtrc(degrees, statistic))
    weighty = t >= 0.01 * t.sum()
    gap = float(np.abs(rates - alpha)[weighty].max())
    chain = np.cumprod(rates)
    tokens_gap = float(_tokens(np.array([alpha]), t.size)[0] - 1.0 - chain.sum())
    later = float(s[1:].sum() / t[1:].sum())
    error = math.sqrt(
        max(later * (1.0 - later), 1e-12) / t[1:].sum() + max(rates[0] * (1 - rates[0]), 1e-12) / t[0]
    )
    poor = bool(later - rates[0] > max(POOR_FIRST, 3.0 * error * math.sqrt(max(effect, 1.0))))
    adequate = not poor and (p_value >= 0.01 or gap <= GAP_ALLOWED)
    return GeometricFit(statistic, degrees, p_value, gap, tokens_gap, poor, adequate)


def _log_likelihood(accepted: Array, tested: Array, rates: Array) -> Array:
    from scipy.special import xlogy

    found: Array = xlogy(accepted, rates) + xlogy(tested - accepted, 1.0 - rates)
    return found
