"""How many tokens a round yields, from the chance that a draft token is accepted.

A round proposes k draft tokens. Survival a_i is the share of rounds in which at least the first i of them were
accepted; the round then emits the accepted ones and one token of the target's own (the correction, or the bonus
after a full acceptance). So tokens per round = 1 + a_1 + ... + a_k, whatever the law behind the a_i.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Literal, Protocol, overload

from specmodel import checks
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.units import Numeric

MAX_K = 4096  # no engine drafts further; a bound keeps a typing slip from allocating gigabytes

Tail = Literal["refuse", "geometric"]


class Acceptance(Protocol):
    """What every law of acceptance offers."""

    @property
    def max_k(self) -> int | None:
        """The last position it says something about; None when it speaks for any k."""

    def survival(self, k: int) -> tuple[float, ...]:
        """a_1 ... a_k, each from 0 to 1 and non-increasing."""

    def describe(self) -> str:
        """One phrase for the list of assumptions."""


@overload
def tokens_per_round(alpha: float, k: float) -> float: ...
@overload
def tokens_per_round(alpha: Numeric, k: Numeric) -> Numeric: ...
def tokens_per_round(alpha: Numeric, k: Numeric) -> Numeric:
    r"""Expected tokens per round when every tested draft token is accepted with the same chance.

    .. math:: E = \sum_{i=0}^{k} \alpha^i = \frac{1 - \alpha^{k+1}}{1 - \alpha}

    Parameters
    ----------
    alpha : float or ndarray, shape (...)
        Chance that a tested draft token is accepted, 0 to 1.
    k : float or ndarray, shape (...)
        Draft tokens proposed, >= 0. Real values are allowed: the continuous optimum needs them.

    Returns
    -------
    float or ndarray, shape broadcast(alpha, k)
        From 1 (k = 0, or alpha = 0) to k + 1 (alpha = 1).

    Raises
    ------
    InputError
        If alpha is outside 0..1 or k is negative.

    Notes
    -----
    Computed as expm1((k+1) ln alpha) / (alpha - 1): the printed form loses half of its digits near alpha = 1.

    References
    ----------
    .. [1] Y. Leviathan, M. Kalman, Y. Matias, "Fast inference from transformers via speculative decoding",
       ICML 2023, arXiv:2211.17192, equation (1).

    Examples
    --------
    >>> f"{tokens_per_round(0.8, 4):.4f}"
    '3.3616'
    """
    checks.all_within("alpha", alpha, low=0.0, high=1.0)
    checks.all_within("k", k, low=0.0, high=MAX_K)
    if isinstance(alpha, (int, float)) and isinstance(k, (int, float)):
        if alpha == 1.0:
            return k + 1.0
        if alpha == 0.0 or k == 0:
            return 1.0
        return math.expm1((k + 1) * math.log(alpha)) / (alpha - 1.0)
    import numpy as np

    alpha, k = np.broadcast_arrays(np.asarray(alpha, dtype=float), np.asarray(k, dtype=float))
    inside = (alpha > 0.0) & (alpha < 1.0) & (k > 0)
    log_alpha = np.log(np.where(inside, alpha, 0.5))
    tokens = np.expm1((k + 1.0) * log_alpha) / (np.where(inside, alpha, 0.5) - 1.0)
    return np.where(inside, tokens, np.where(alpha == 1.0, k + 1.0, 1.0))


def ceiling(alpha: float) -> float | None:
    """Tokens per round for endless drafts, 1/(1 - alpha); None (no ceiling) at alpha = 1."""
    checks.real("alpha", alpha, low=0.0, high=1.0)
    return None if alpha == 1.0 else 1.0 / (1.0 - alpha)


@dataclass(frozen=True, slots=True)
class Geometric:
    """Every tested draft token is accepted with the same chance alpha: a_i = alpha^i."""

    alpha: float

    def __post_init__(self) -> None:
        checks.real("alpha", self.alpha, low=0.0, high=1.0)

    @property
    def max_k(self) -> int | None:
        return None

    def survival(self, k: int) -> tuple[float, ...]:
        """a_1 ... a_k = alpha, alpha^2, ..."""
        return tuple(self.alpha**i for i in range(1, checks.whole("k", k, high=MAX_K) + 1))

    def describe(self) -> str:
        return f"alpha {self.alpha:g} at every position"


@dataclass(frozen=True, slots=True)
class PerPosition:
    """Acceptance measured position by position.

    Parameters
    ----------
    rates : tuple of float
        Survival a_1 ... a_K: the share of *rounds* in which at least i drafts were accepted; non-increasing.
    tail : "refuse" or "geometric"
        What holds past position K. "refuse" raises an InputError there; "geometric" goes on with the last
        conditional rate a_K / a_(K-1), an assumption that a caller must ask for.
    """

    rates: tuple[float, ...]
    tail: Tail = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(checks.listed("acceptance", self.rates)))
        checks.choice("tail", self.tail, ("refuse", "geometric"))
        if not self.rates:
            raise InputError("acceptance", [], "needs at least one rate")
        if len(self.rates) > MAX_K:
            raise InputError("acceptance", f"{len(self.rates)} rates", f"at most {MAX_K}")
        previous = 1.0
        for position, rate in enumerate(self.rates, start=1):
            checks.real(f"acceptance, position {position}", rate, low=0.0, high=1.0)
            if rate > previous:
                raise InputError(
                    f"acceptance, position {position}",
                    rate,
                    f"must not be above position {position - 1} ({previous:g}): these are shares of rounds; "
                    "if they are conditional on the position before, say so (--conditional)",
                )
            previous = rate

    @classmethod
    def from_conditional(cls, rates: Iterable[float], tail: Tail = "refuse") -> PerPosition:
        """From rates conditional on all earlier drafts having been accepted: a_i = r_1 r_2 ... r_i."""
        rates = tuple(
            checks.real(f"acceptance, position {position}", rate, low=0.0, high=1.0)
            for position, rate in enumerate(checks.listed("acceptance", rates), start=1)
        )
        return cls(tuple(accumulate(rates, mul)), tail)

    @property
    def max_k(self) -> int | None:
        return len(self.rates) if self.tail == "refuse" else None

    @property
    def conditional(self) -> tuple[float, ...]:
        """a_i / a_(i-1); 0 where nothing reached the position."""
        before = (1.0, *self.rates[:-1])
        return tuple(rate / was if was > 0 else 0.0 for rate, was in zip(self.rates, before, strict=True))

    def survival(self, k: int) -> tuple[float, ...]:
        """a_1 ... a_k; past the last measured position as `tail` says."""
        checks.whole("k", k, high=MAX_K)
        beyond = k - len(self.rates)
        if beyond <= 0:
            return self.rates[:k]
        if self.tail == "refuse":
            raise InputError(
                "k", k, f"acceptance was given for {len(self.rates)} positions only; extend it on purpose"
            )
        ratio = self.conditional[-1]
        return self.rates + tuple(self.rates[-1] * ratio**i for i in range(1, beyond + 1))

    def describe(self) -> str:
        shown = ", ".join(f"{rate:g}" for rate in self.rates[:6]) + (", ..." if len(self.rates) > 6 else "")
        tail = "" if self.tail == "refuse" else "; past these the last conditional rate goes on"
        return f"share of rounds accepting position 1, 2, ...: {shown}{tail}"


def expected_tokens(acceptance: Acceptance, k: int) -> float:
    """Tokens per round of any law: 1 + a_1 + ... + a_k."""
    if isinstance(acceptance, Geometric):
        return float(tokens_per_round(acceptance.alpha, checks.whole("k", k, high=MAX_K)))
    return 1.0 + math.fsum(acceptance.survival(k))


def expected_tokens_to(acceptance: Acceptance, max_k: int) -> list[float]:
    """Tokens per round for k = 0, 1, ..., max_k."""
    if isinstance(acceptance, Geometric):
        return [expected_tokens(acceptance, k) for k in range(max_k + 1)]
    return [1.0, *accumulate(acceptance.survival(max_k), initial=1.0)][1:]


@dataclass(frozen=True, slots=True)
class RoundLaw:
    """How many tokens one round emits: P(n) for n = 1 ... k+1, and its moments."""

    pmf: tuple[float, ...]
    mean: float
    deviation: float


def round_law(acceptance: Acceptance, k: int) -> RoundLaw:
    """The law of a round's length: P(n) = a_(n-1) - a_n for n <= k, P(k+1) = a_k (a_0 = 1)."""
    survival: Sequence[float] = (1.0, *acceptance.survival(k), 0.0)
    pmf = tuple(survival[n] - survival[n + 1] for n in range(k + 1))
    mean = math.fsum((n + 1) * share for n, share in enumerate(pmf))
    variance = math.fsum((n + 1 - mean) ** 2 * share for n, share in enumerate(pmf))
    return RoundLaw(pmf, mean, math.sqrt(variance))
