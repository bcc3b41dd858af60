"""A round: k draft passes, one verification pass, engine time; what it costs and what it gains.

Times are in units of a *plain* target step at the same batch and context, so that a round cost of 1 is one plain
step and speedup = tokens per round / round cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, overload

from specmodel import checks
from specmodel.acceptance import MAX_K, Acceptance, Geometric, expected_tokens_to, tokens_per_round
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.units import Numeric

CHARGES = ("none", "scaled", "added")
DEFAULT_MAX_K = 32
FLAT_WITHIN = 0.04  # depths losing at most this share of the best speedup are called equal


@overload
def round_cost(
    k: float,
    *,
    draft_cost: float,
    verify_ratio: float = 1.0,
    charge: str = "added",
    engine_ratio: float = 0.0,
) -> float: ...
@overload
def round_cost(
    k: Numeric,
    *,
    draft_cost: Numeric,
    verify_ratio: Numeric = 1.0,
    charge: str = "added",
    engine_ratio: Numeric = 0.0,
) -> Numeric: ...
def round_cost(
    k: Numeric,
    *,
    draft_cost: Numeric,
    verify_ratio: Numeric = 1.0,
    charge: str = "added",
    engine_ratio: Numeric = 0.0,
) -> Numeric:
    r"""Round time over plain step time.

    .. math::
        \text{none: } r + e \qquad \text{scaled: } r\,(1 + k c) + e \qquad \text{added: } r + k c + e

    Parameters
    ----------
    k : int or ndarray, shape (...)
        Draft tokens proposed; 0 means no speculation, which costs exactly one plain step.
    draft_cost : float or ndarray
        One draft pass over one plain target step at the same batch and context, c >= 0.
    verify_ratio : float or ndarray
        Verification pass of width k+1 over a plain step, r; 1 while the pass is memory-bound.
    charge : "none", "scaled" or "added"
        How the draft's time enters. `scaled` stretches it with the verification pass (the lectures' `mult`),
        `added` charges k draft passes in plain steps (`add`).
    engine_ratio : float or ndarray
        Fixed engine time of a round over a plain step, e.

    Returns
    -------
    float or ndarray, shape broadcast of all

    References
    ----------
    .. [1] Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8: 1 + k c for r = 1 (scaled = added there).
    """
    checks.all_within("draft_cost", draft_cost, low=0.0)
    match charge:
        case "none":
            cost = verify_ratio + engine_ratio
        case "scaled":
            cost = verify_ratio * (1.0 + k * draft_cost) + engine_ratio
        case "added":
            cost = verify_ratio + k * draft_cost + engine_ratio
        case _:
            raise InputError("charge", charge, "must be one of none, scaled, added")
    if checks.is_scalar(k):
        return 1.0 if k == 0 else cost
    import numpy as np

    return np.where(np.asarray(k) == 0, 1.0, cost)


@overload
def speedup(alpha: float, k: float, draft_cost: float) -> float: ...
@overload
def speedup(alpha: Numeric, k: Numeric, draft_cost: Numeric) -> Numeric: ...
def speedup(alpha: Numeric, k: Numeric, draft_cost: Numeric) -> Numeric:
    """Speedup of the memory-bound textbook case, E(alpha, k) / (1 + k c); arrays broadcast.

    Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8.
    """
    return tokens_per_round(alpha, k) / round_cost(k, draft_cost=draft_cost)


def continuous_best_k(alpha: float, draft_cost: float) -> float:
    r"""The real k that maximises E(alpha, k) / (1 + k c), in closed form.

    With :math:`m = -\ln\alpha` and :math:`\delta = m(1-c)/c`, setting the derivative to zero gives

    .. math:: k^* = \frac{\ln u}{m} - 1, \qquad u = -W_{-1}\!\left(-e^{-1-\delta}\right)

    Returns
    -------
    float
        >= 0; 0 where no speculation is best (alpha <= c or close above), `inf` for a free draft (c = 0) or
        alpha = 1.

    Notes
    -----
    W_-1 comes from SciPy. One Newton step on :math:`v - \ln(1+v) = \delta`, v = u - 1, restores the digits lost
    near the branch point, and a start at v = delta replaces W where its argument underflows.
    """
    checks.real("alpha", alpha, low=0.0, high=1.0)
    checks.real("draft_cost", draft_cost, low=0.0)
    if alpha == 0.0 or draft_cost >= 1.0:
        # At c >= 1 a draft pass costs a whole step and yields at most one token: never a gain.
        return 0.0
    if alpha == 1.0 or draft_cost == 0.0:
        return math.inf
    rate = -math.log(alpha)
    delta = rate * (1.0 - draft_cost) / draft_cost
    if delta > 600.0:
        v = delta + math.log(delta)
    elif delta < 1e-8:
        v = math.sqrt(2.0 * delta) + 2.0 * delta / 3.0
    else:
        from scipy.special import lambertw

        v = -float(lambertw(-math.exp(-1.0 - delta), -1).real) - 1.0
    for _ in range(3):
        v -= (v - math.log1p(v) - delta) * (1.0 + v) / v
    return max(0.0, math.log1p(v) / rate - 1.0)


def pays_from_alpha(k: int, cost: float) -> float | None:
    """The alpha at which a round of k drafts and this round cost breaks even; None where no alpha is enough.

    Solves tokens_per_round(alpha, k) = cost. For k = 1 in the memory-bound case the answer is c itself.
    """
    checks.whole("k", k, low=1, high=MAX_K)
    checks.real("round cost", cost, low=0.0)
    if cost <= 1.0:
        return 0.0
    if cost > k + 1.0:
        return None
    if k == 1:
        return cost - 1.0
    from scipy.optimize import brentq

    return float(brentq(lambda alpha: float(tokens_per_round(alpha, k)) - cost, 0.0, 1.0, xtol=1e-15))


@dataclass(frozen=True, slots=True)
class Depth:
    """One draft length and what it gives."""

    k: int
    tokens_per_round: float
    round_cost: float
    speedup: float


@dataclass(frozen=True, slots=True)
class FlatBand:
    """The draft lengths around the best that lose at most `within` of its speedup."""

    within: float
    k_min: int
    k_max: int


def depths(
    acceptance: Acceptance,
    *,
    draft_cost: float | Sequence[float],
    max_k: int = DEFAULT_MAX_K,
    charge: str = "added",
    verify_ratio: Sequence[float] | None = None,
    engine_ratio: float = 0.0,
) -> list[Depth]:
    """Every draft length from 0 to max_k (or to the last one the acceptance speaks for).

    `draft_cost` may be given per k (index 0 to max_k): trees and parallel drafters have no constant c.
    `verify_ratio` likewise; None means a memory-bound pass, 1 at every width.
    """
    checks.choice("charge", charge, CHARGES)
    checks.whole("max_k", max_k, high=MAX_K)
    if acceptance.max_k is not None:
        max_k = min(max_k, acceptance.max_k)
    tokens = expected_tokens_to(acceptance, max_k)
    rows = []
    for k in range(max_k + 1):
        cost = float(
            round_cost(
                k,
                draft_cost=draft_cost if isinstance(draft_cost, (int, float)) else draft_cost[k],
                verify_ratio=1.0 if verify_ratio is None else verify_ratio[k],
                charge=charge,
                engine_ratio=engine_ratio,
            )
        )
        rows.append(Depth(k, tokens[k], cost, tokens[k] / cost))
    return rows


def best(rows: Sequence[Depth]) -> Depth:
    """The depth with the highest speedup; of equal ones the shallowest."""
    return max(rows, key=lambda row: (row.speedup, -row.k))


def flat_band(rows: Sequence[Depth], within: float = FLAT_WITHIN) -> FlatBand:
    """The run of depths around the best whose speedup is within `within` of it."""
    checks.real("within", within, low=0.0, high=1.0)
    top = best(rows)
    good = {row.k for row in rows if row.speedup >= (1.0 - within) * top.speedup}
    low = high = top.k
    while low - 1 in good:
        low -= 1
    while high + 1 in good:
        high += 1
    return FlatBand(within, low, high)


def regret(rows: Sequence[Depth], k: int) -> float:
    """Share of the best speedup lost by running this k instead, 0 to 1.

    For a mis-tuned k, take the rows of the true acceptance and the k that the assumed one made best.
    """
    chosen = next((row for row in rows if row.k == k), None)
    if chosen is None:
        raise InputError("k", k, f"must be from 0 to {rows[-1].k}")
    return 1.0 - chosen.speedup / best(rows).speedup


def acceptance_from(
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    *,
    conditional: bool = False,
    extend: bool = False,
) -> Acceptance:
    """The law meant by what a person gave: an alpha, a list of rates, or a law already built."""
    if acceptance is not None and alpha is not None:
        raise InputError("alpha", alpha, "give either alpha or an acceptance list, not both")
    if acceptance is None:
        if alpha is None:
            raise InputError("alpha", None, "must be given, 0 to 1 (or give an acceptance list)")
        return Geometric(checks.real("alpha", alpha, low=0.0, high=1.0))
    if hasattr(acceptance, "survival"):
        return cast(Acceptance, acceptance)
    from specmodel.acceptance import PerPosition

    rates = tuple(checks.listed("acceptance", acceptance))
    tail: Literal["refuse", "geometric"] = "geometric" if extend else "refuse"
    return PerPosition.from_conditional(rates, tail) if conditional else PerPosition(rates, tail)


def tokens_ceiling(law: Acceptance) -> float | None:
    """Tokens per round for endless drafts; None where there is no bound.

    For a list that refuses to go on it is the value at its last position.
    """
    if isinstance(law, Geometric):
        return None if law.alpha == 1.0 else 1.0 / (1.0 - law.alpha)
    from specmodel.acceptance import PerPosition, expected_tokens

    if law.max_k is not None:
        return expected_tokens(law, law.max_k)
    if isinstance(law, PerPosition):
        ratio = law.conditional[-1]
        measured = expected_tokens(law, len(law.rates))
        return None if ratio == 1.0 else measured + law.rates[-1] * ratio / (1.0 - ratio)
    return None
