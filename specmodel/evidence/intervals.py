"""Intervals: a share of independent trials, a bootstrap over requests, the effect between the two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specmodel.evidence.counts import Array, Clusters

MOST_GROUPS = 1000  # more requests than this are joined at random: the bootstrap needs no finer grain


@dataclass(frozen=True, slots=True)
class Estimated:
    """A value with its interval; all None where the evidence does not say."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def normal_quantile(level: float) -> float:
    """z of a two-sided interval: 1.96 at level 0.95."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + level / 2.0)


def wilson(successes: float, trials: float, z: float) -> tuple[float, float]:
    r"""Wilson's score interval of a share of independent trials.

    .. math:: \frac{\hat p + z^2/2n \pm z\sqrt{\hat p(1-\hat p)/n + z^2/4n^2}}{1 + z^2/n}

    It stays within 0 to 1 and keeps its coverage near both ends. Trials may be an effective number.

    References
    ----------
    .. [1] L. D. Brown, T. T. Cai, A. DasGupta, "Interval estimation for a binomial proportion", Statistical
       Science 16(2), 2001, section 3.1.1.
    """
    if not trials > 0.0:
        return 0.0, 1.0
    p = float(successes / trials)
    trials = float(trials)
    middle = p + z * z / (2.0 * trials)
    half = z * math.sqrt(p * (1.0 - p) / trials + z * z / (4.0 * trials * trials))
    scale = 1.0 + z * z / trials
    return max(0.0, min(p, (middle - half) / scale)), min(1.0, max(p, (middle + half) / scale))


def grouped(table: Array, rng: np.random.Generator, most: int = MOST_GROUPS) -> Array:
    """Rows joined at random into at most `most` sums; sums of independent rows are independent."""
    if len(table) <= most:
        return table
    member = rng.permutation(len(table)) % most
    sums = np.zeros((most, table.shape[1]))
    np.add.at(sums, member, table)
    return sums


def resampled(table: Array, resamples: int, rng: np.random.Generator) -> Array:
    """Column sums of `resamples` draws of the rows with replacement, shape (resamples, columns)."""
    rows = len(table)
    chosen = rng.integers(rows, size=(resamples, rows)) + np.arange(resamples)[:, None] * rows
    times = np.bincount(chosen.ravel(), minlength=resamples * rows).reshape(resamples, rows)
    sums: Array = times.astype(np.float64) @ table
    return sums


def percentiles(
    values: Array, level: float, rows: int, kept: float = 1.0, value: float | None = None
) -> tuple[float, float]:
    """Percentile interval of bootstrap values, widened for few rows.

    The plain percentile interval is too narrow by a factor sqrt((n-1)/n) z/t for n rows; the levels are moved
    outwards to make up for it (Hesterberg 2015, "What teachers should know about the bootstrap", section
    4.1). Where only a share `kept` of the requests was resampled, the interval shrinks by its square root and
    is moved to `value`, which rests on all of them.
    """
    from scipy.special import ndtr, stdtrit

    t = -float(stdtrit(rows - 1, (1.0 - level) / 2.0))
    tail = float(ndtr(-math.sqrt(rows / (rows - 1.0)) * t))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, middle, high = (float(x) for x in np.quantile(finite, [tail, 0.5, 1.0 - tail]))
    if kept < 1.0 and value is not None:
        shrink = math.sqrt(kept)
        return value + (low - middle) * shrink, value + (high - middle) * shrink
    return low, high


def ratio_variance(yy: float, xy: float, xx: float, y: float, x: float, groups: int) -> float:
    r"""Variance of a ratio of sums over independent groups, linearised.

    .. math:: \frac{n}{n-1} \frac{\sum_r (y_r - R x_r)^2}{(\sum x)^2}, \qquad R = y / x

    Parameters are the sums of y^2, x y, x^2, y and x over the groups.
    """
    if groups < 2 or not x > 0.0:
        return math.nan
    ratio = y / x
    residual = max(yy - 2.0 * ratio * xy + ratio * ratio * xx, 0.0)
    return groups / (groups - 1.0) * residual / (x * x)


def design_effect(clusters: Clusters) -> float | None:
    """Variance of alpha over requests, over its variance if every tested token were independent; >= 0.

    None where positions are unknown, with fewer than two rows, or where alpha is 0 or 1.
    """
    if clusters.tested is None or clusters.survived is None or len(clusters.rounds) < 2:
        return None
    y, x = clusters.survived.sum(axis=1), clusters.tested.sum(axis=1)
    return share_design_effect(
        float(y @ y), float(x @ y), float(x @ x), float(y.sum()), float(x.sum()), len(y)
    )


def share_design_effect(yy: float, xy: float, xx: float, y: float, x: float, groups: int) -> float | None:
    """The same from sums of squares: y accepted of x tested tokens per request."""
    variance = ratio_variance(yy, xy, xx, y, x, groups)
    share = y / x if x > 0.0 else 0.0
    independent = share * (1.0 - share) / x if x > 0.0 else 0.0
    if not independent > 0.0 or not math.isfinite(variance):
        return None
    return variance / independent


def chain(tested: NDArray[np.float64], survived: NDArray[np.float64]) -> tuple[Array, Array]:
    """Conditional rates and survival from counts per position, along the last axis.

    With drafts of one length this is survivors / rounds. With mixed lengths a short draft says nothing about
    the positions behind it, and the product of conditional rates uses it as far as it goes (Kaplan and Meier
    1958). A rate at a position that nothing reached is nan.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        conditional = survived / tested
    survival: Array = np.cumprod(np.nan_to_num(conditional), axis=-1).astype(np.float64)
    return conditional, survival
