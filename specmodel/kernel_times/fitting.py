"""Finding constants: a robust least-squares fit of log times, with a weak prior and honest scores.

Residuals are ln(predicted / measured), so every row weighs its relative error; the soft L1 loss keeps the 1 % of rows
that are off by 1.5-3 times from deciding. The prior weighs as much as one row in a hundred: it settles constants
that the rows cannot (the arithmetic rate of a table without large M) and leaves the others where the data put them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specmodel.kernel_times.constants import FORMS, Constants, Fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.kernel_times.formulas import Terms

SOFT = 0.1  # residual from which a row counts less than in full
PRIOR_WEIGHT = 0.01  # of the number of rows
FOLDS = 5
_TINY = 1e-12  # an exact zero has no logarithm

# Centre and spread (natural logarithm) of each constant before any data, and its physical limit.
_PRIORS: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "gemm": {
        "fixed_s": (4e-6, 0.7, 1e-2),
        "bandwidth_share": (0.8, 0.2, 1.0),
        "flops_share": (0.7, 0.4, 1.2),
        "walk_s": (1e-9, 0.7, 1e-6),
        "quantise": (4.0, 0.7, 60.0),
    },
    "attention": {
        "fixed_s": (10e-6, 0.5, 1e-2),
        "bandwidth_share": (0.85, 0.2, 1.0),
        "flops_share": (0.5, 0.5, 1.2),
        "head_s": (15e-9, 0.7, 1e-5),
        "warm_speed": (1.3, 0.5, 5.0),
        "wave": (0.05, 1.5, 1.0),
    },
    "moe": {
        "fixed_s": (22e-6, 0.5, 1e-2),
        "bandwidth_share": (0.8, 0.2, 1.0),
        "flops_share": (0.5, 0.5, 2.0),
        "expert_s": (50e-9, 1.0, 1e-5),
    },
    "wait": {
        "most_s": (15e-6, 0.7, 1e-2),
        "half_tokens": (15.0, 0.7, 1e4),
    },
    "allreduce": {
        "fixed_s": (5e-6, 0.7, 1e-2),
        "peer_s": (0.3e-6, 1.0, 1e-3),
        "direct_bytes_per_s": (200e9, 0.7, 1e13),
        "relay_s": (6e-6, 1.0, 1e-2),
        "ring_bytes_per_s": (250e9, 0.7, 1e13),
    },
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What a fit needs: times as a function of constants and of rows, measured times, and groups to leave out."""

    kind: str
    times: Callable[[Constants], Terms]
    seconds: NDArray[np.float64]
    groups: NDArray[np.int64]
    settled: Mapping[str, float]  # constants that the format or the kind decides, not the data


def fit(sample: Sample, *, device: str, format_name: str, framework: str, source: str) -> Fit:
    """Constants of one sample, with relative standard errors and a score on left-out groups.

    The band (low, middle, high) is that of the left-out rows where there is more than one group: what to expect of a
    shape that was not measured.
    """
    names = _fitted(sample)
    start = np.log([_PRIORS[_prior_kind(sample)][name][0] for name in names])
    solution, jacobian = _solve(sample, names, start, None)
    constants = _build(sample, names, solution)
    ratio = sample.seconds / np.asarray(sample.times(constants).seconds)
    unseen = _left_out(sample, names, solution)
    low, middle, high = (
        float(value) for value in np.quantile(ratio if unseen is None else unseen, (0.1, 0.5, 0.9))
    )
    errors = _standard_errors(jacobian, np.log(ratio))
    limits = _limits(sample, names)
    return Fit(
        device=device,
        kind=sample.kind,
        format=format_name,
        framework=framework,
        constants=constants,
        standard_errors=dict(zip(names, errors, strict=True)),
        rows=len(ratio),
        error=_median_error(ratio),
        left_out=None if unseen is None else _median_error(unseen),
        low=low,
        middle=middle,
        high=high,
        origin="measured",
        source=source,
        at_bound=tuple(
            name for name, at, limit in zip(names, solution, limits, strict=True) if at > limit - 1e-3
        ),
    )


def _prior_kind(sample: Sample) -> str:
    return "attention" if sample.kind.startswith("attention") else sample.kind


def _fitted(sample: Sample) -> list[str]:
    return [name for name in FORMS[sample.kind].FITTED if name not in sample.settled]


def _limits(sample: Sample, names: list[str]) -> NDArray[np.float64]:
    return np.log([_PRIORS[_prior_kind(sample)][name][2] for name in names])


def _build(sample: Sample, names: list[str], logarithms: NDArray[np.float64]) -> Constants:
    values: dict[str, Any] = dict(sample.settled)
    values.update(zip(names, (float(value) for value in np.exp(logarithms)), strict=True))
    return FORMS[sample.kind](**values)


def _solve(
    sample: Sample, names: list[str], start: NDArray[np.float64], rows: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from scipy.optimize import least_squares

    priors = [_PRIORS[_prior_kind(sample)][name] for name in names]
    centre, spread = np.log([prior[0] for prior in priors]), np.array([prior[1] for prior in priors])
    measured = sample.seconds if rows is None else sample.seconds[rows]
    weight = SOFT * np.sqrt(PRIOR_WEIGHT * len(measured)) / spread

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = np.asarray(sample.times(_build(sample, names, logarithms)).seconds)
        off = np.log((predicted if rows is None else predicted[rows]) / measured)
        soft = np.sign(off) * SOFT * np.sqrt(2.0 * (np.sqrt(1.0 + (off / SOFT) ** 2) - 1.0))
        return np.concatenate([soft, weight * (logarithms - centre)])

    limits = _limits(sample, names)
    low = np.full(len(names), np.log(_TINY))
    low[[name.endswith("_s") for name in names]] = np.log(1e-15)
    first = np.clip(start, low + 1e-3, limits - 2e-3)
    found = least_squares(residuals, first, bounds=(low, limits), max_nfev=100, xtol=1e-6, ftol=1e-8)
    return found.x, found.jac[: len(measured)]


def _standard_errors(jacobian: NDArray[np.float64], off: NDArray[np.float64]) -> list[float]:
    """Relative errors of the constants: residual variance times the inverse of the normal matrix."""
    free = max(1, len(off) - jacobian.shape[1])
    robust = SOFT**2 * 2.0 * (np.sqrt(1.0 + (off / SOFT) ** 2) - 1.0)
    spread = np.linalg.pinv(jacobian.T @ jacobian).diagonal() * robust.sum() / free
    return [float(min(error, 99.0)) for error in np.sqrt(np.maximum(spread, 0.0))]


def _median_error(ratio: NDArray[np.float64]) -> float:
    """Median of |predicted / measured - 1|, from measured / predicted."""
    return float(np.median(np.abs(1.0 / ratio - 1.0)))


def _left_out(sample: Sample, names: list[str], start: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Measured / predicted when whole shapes are left out of the fit; None with a single shape."""
    groups = np.unique(sample.groups)
    if len(groups) < 2:
        return None
    order = np.random.default_rng(0).permutation(groups)  # neighbours in size go to different folds
    predicted = np.empty(len(sample.seconds))
    for number in range(min(FOLDS, len(groups))):
        hidden = np.isin(sample.groups, order[number :: min(FOLDS, len(groups))])
        solution, _ = _solve(sample, names, start, ~hidden)
        predicted[hidden] = np.asarray(sample.times(_build(sample, names, solution)).seconds)[hidden]
    return sample.seconds / predicted
