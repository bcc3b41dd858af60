"""Requests differ, and rounds of one request resemble each other: Beta mixture, lag-1 correlation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.evidence.counts import Array, Clusters


@dataclass(frozen=True, slots=True)
class BetaMixture:
    r"""Every round draws its own alpha from a Beta law.

    .. math:: a_i = E[\alpha^i] = \prod_{j<i} \frac{a+j}{a+b+j}

    Conditional rates (a + i - 1)/(a + b + i - 1) rise with the position: a round that got far is an easy one.
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        checks.real("a", self.a, low=0.0, above=True)
        checks.real("b", self.b, low=0.0, above=True)

    @property
    def mean(self) -> float:
        """Mean alpha over rounds, a_1."""
        return self.a / (self.a + self.b)

    @property
    def correlation(self) -> float:
        """Correlation of two tests in one unit, 1/(a + b + 1): 0 is one alpha for all."""
        return 1.0 / (self.a + self.b + 1.0)

    @property
    def max_k(self) -> int | None:
        """It speaks for any k."""
        return None

    def survival(self, k: int) -> tuple[float, ...]:
        """a_1 ... a_k."""
        steps = np.arange(checks.whole("k", k, high=MAX_K))
        return tuple(np.cumprod((self.a + steps) / (self.a + self.b + steps)).tolist())

    def describe(self) -> str:
        """One phrase for the list of assumptions."""
        return f"alpha differs between rounds: Beta({self.a:.3g}, {self.b:.3g}), mean {self.mean:.3g}"


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """Requests as draws from a Beta law.

    Attributes
    ----------
    mean : float
        Mean alpha over requests, each counted once.
    icc : float
        Correlation of two tested tokens of one request, 1/(a + b + 1).
    spread : float
        Standard deviation of alpha between requests.
    p_value : float
        Of no difference between requests (likelihood ratio; half the chi-square mass sits at zero).
    at_bound : str
        "no spread" or "full spread" where the fit ended there, else "".
    """

    mean: float
    icc: float
    spread: float
    a: float
    b: float
    p_value: float
    requests: int
    at_bound: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


LEAST_ICC, MOST_ICC = 1e-5, 0.999  # below the first, differences of log Beta functions lose their digits


def heterogeneity(clusters: Clusters) -> Heterogeneity | None:
    """Fit a Beta law of alpha between requests by maximum likelihood; None where requests are unknown or few.

    Given its alpha a request of s accepted and f rejected tests has likelihood alpha^s (1 - alpha)^f whatever
    rule ended its rounds, so over the law it is B(a+s, b+f)/B(a, b).
    """
    if clusters.kind != "requests" or clusters.tested is None or clusters.survived is None:
        return None
    s = clusters.survived.sum(axis=1)
    t = clusters.tested.sum(axis=1)
    s, t = s[t > 0], t[t > 0]
    total = float(s.sum() / t.sum()) if t.size else 0.0
    if t.size < 3 or not 0.0 < total < 1.0:
        return None
    pairs, counts = np.unique(np.stack([s, t - s], axis=1), axis=0, return_counts=True)
    from scipy.optimize import minimize
    from scipy.special import betaln

    def loss(x: Array) -> float:
        a, b = _shape(x)
        return -float(counts @ (betaln(a + pairs[:, 0], b + pairs[:, 1]) - betaln(a, b)))

    limits = [(-12.0, 12.0), (_logit(LEAST_ICC), _logit(MOST_ICC))]
    starts = [np.array([_logit(total), _logit(icc)]) for icc in (0.01, 0.2)]
    close = {"xatol": 1e-6, "fatol": 1e-9}
    fits = [minimize(loss, start, method="Nelder-Mead", bounds=limits, options=close) for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    none = -float(s.sum() * math.log(total) + (t - s).sum() * math.log1p(-total))
    gain = max(2.0 * (none - float(best.fun)), 0.0)
    from scipy.special import chdtrc

    a, b = _shape(best.x)
    icc = 1.0 / (a + b + 1.0)
    mean = a / (a + b)
    bound = "no spread" if icc < 2.0 * LEAST_ICC else "full spread" if icc > 0.99 else ""
    return Heterogeneity(
        mean=mean,
        icc=icc,
        spread=math.sqrt(mean * (1.0 - mean) * icc),
        a=a,
        b=b,
        p_value=0.5 * float(chdtrc(1, gain)) if gain > 0.0 else 1.0,
        requests=int(t.size),
        at_bound=bound,
    )


def _shape(x: Array) -> tuple[float, float]:
    """(a, b) from the logits of the mean and of the correlation."""
    mean, icc = (1.0 / (1.0 + math.exp(-float(value))) for value in x)
    size = 1.0 / icc - 1.0
    return max(mean * size, 1e-9), max((1.0 - mean) * size, 1e-9)


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))


@dataclass(frozen=True, slots=True)
class Autocorrelation:
    """Correlation of the accepted tokens of one round with those of the next.

    Attributes
    ----------
    overall : float
        Around the mean of all rounds: differences between requests are in it.
    within : float or None
        Around each request's own mean, so only what comes in bursts inside a request; None where requests are
        unknown. Estimating that mean from n rounds pulls it down by about 1/n, which is added back.
    neighbours : int
        Pairs of rounds behind it.
    significant : bool
        `overall` is further from 0 than independent rounds would come in 19 of 20 logs.
    """

    overall: float
    within: float | None
    neighbours: int
    significant: bool

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def autocorrelation(clusters: Clusters) -> Autocorrelation | None:
    """Lag-1 correlation, or None where the order of the rounds is unknown or nothing varies."""
    p = clusters.products
    if p is None or p[:, 0].sum() < 10.0:
        return None
    n, a = clusters.rounds, clusters.accepted
    pairs, squares, cross, first, last = p.T
    mean = a.sum() / n.sum()

    def covariance(m: Array) -> Array:
        found: Array = cross - m * (a - last) - m * (a - first) + pairs * m * m
        return found

    variance = float((squares.sum() - mean * a.sum()) / n.sum())
    if not variance > 1e-12:
        return None
    count = float(pairs.sum())
    overall = float(covariance(np.full(n.size, mean)).sum()) / count / variance
    within = None
    if clusters.kind == "requests":
        use = n >= 3
        own = a[use] / n[use]
        spread = float((squares[use] - n[use] * own * own).sum()) / max(float(n[use].sum()), 1.0)
        if spread > 1e-12 and pairs[use].sum() > 0:
            centred = cross[use] - own * (2.0 * a[use] - last[use] - first[use]) + pairs[use] * own * own
            raw = float(centred.sum()) / float(pairs[use].sum()) / spread
            within = min(1.0, raw + float(use.sum()) / float(n[use].sum()))
    return Autocorrelation(overall, within, int(count), abs(overall) > 1.96 / math.sqrt(count))
