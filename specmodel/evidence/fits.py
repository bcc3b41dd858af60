"""Laws with few parameters, for positions that were not measured: geometric, Beta mixture, decaying rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from specmodel import checks
from specmodel.errors import InputError
from specmodel.evidence.counts import Array, Part
from specmodel.evidence.estimate import Estimate
from specmodel.evidence.intervals import grouped, resampled

MODELS = ("geometric", "decay", "beta mixture")
FOLDS = 5
REFITS = 100
MOST_EXTRA = 64  # positions past the measured ones
GRID, CLOSER = 40, 9  # points of the search for a second parameter, and of each closer look
STEPS_ALLOWED = 2.0  # a rate may move this many times the largest step between measured neighbours
STEP_UNKNOWN = 0.1  # where only one position was measured


@dataclass(frozen=True, slots=True)
class Fitted:
    """One law, fitted and tried on rounds that it had not seen.

    Attributes
    ----------
    score : float
        Held-out log likelihood per tested token, larger is better; free rates per position are the yardstick.
    score_error : float
        Its standard error over the folds, as the difference from the best law.
    parameters : dict
        geometric {alpha}; decay {first, ratio}: rate_i = first ratio^(i-1); beta mixture {a, b}.
    """

    model: str
    parameters: dict[str, float]
    score: float
    score_error: float
    plausible: bool


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Survival up to a k that need not have been measured.

    `low` and `high` are the measured intervals up to `measured_k`; behind it they hold every plausible law's
    interval, so they widen with the distance. `model` is the law that cross-validation chose; it gives the
    values behind.
    """

    k: int
    measured_k: int
    survival: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    model: str
    laws: tuple[Fitted, ...]
    warnings: tuple[str, ...]

    @property
    def tokens_per_round(self) -> tuple[float, float, float]:
        """(value, low, high) at k."""
        return tuple(1.0 + math.fsum(x) for x in (self.survival, self.low, self.high))  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        value, low, high = self.tokens_per_round
        return {
            "k": self.k,
            "measured_k": self.measured_k,
            "survival": list(self.survival),
            "low": list(self.low),
            "high": list(self.high),
            "model": self.model,
            "tokens_per_round": {"value": value, "low": low, "high": high},
            "laws": [
                {
                    "model": law.model,
                    "parameters": law.parameters,
                    "score": law.score,
                    "score_error": law.score_error,
                    "plausible": law.plausible,
                }
                for law in self.laws
            ],
            "warnings": list(self.warnings),
        }


def extrapolate(estimate: Estimate, k: int, *, seed: int = 0) -> Extrapolation:
    """Survival a_1 ... a_k from an estimate: measured where it was measured, a fitted law behind.

    Laws are compared by cross-validation over requests (over tests, where requests are unknown); among those
    within one standard error of the best the one with fewest parameters is taken. The geometric law is never
    taken where the first position is far below the later ones.

    Raises
    ------
    InputError
        If k is out of range, or the evidence has no counts per position.
    """
    part = estimate.part
    if part is None or not part.by_position or part.k is None or not part.rounds or not part.counted:
        raise InputError("k", k, "needs evidence with counts per position")
    checks.whole("k", k, low=1, high=part.k + MOST_EXTRA)
    measured = sum(1 for tests in part.tested if tests > 0)
    pairs = tuple((_bound(low, 0.0), _bound(high, 1.0)) for low, high in estimate.survival_interval)
    if k <= measured:
        return Extrapolation(
            k=k,
            measured_k=measured,
            survival=estimate.survival[:k],
            low=tuple(low for low, _ in pairs[:k]),
            high=tuple(high for _, high in pairs[:k]),
            model="measured",
            laws=(),
            warnings=(),
        )
    rng = np.random.default_rng(seed)
    poor = estimate.fit is not None and estimate.fit.first_is_poor
    laws = compare(part, rng, exclude=("geometric",) if poor else ())
    chosen = _choice(laws)
    survival = np.array(estimate.survival[:measured])
    extra = np.arange(measured + 1.0, k + 1.0)

    def continued(start: Array, rates: Array) -> Array:
        return start[..., -1:] * np.cumprod(rates, axis=-1)

    rates = _rates(chosen.model, np.array(list(chosen.parameters.values())), extra)
    tail = continued(survival[None, :], rates[None, :])[0]
    lows, highs = [], []
    starts = np.array([[low for low, _ in pairs[:measured]], [high for _, high in pairs[:measured]]])
    for law in laws:
        if law.plausible:
            spread = _refitted(part, law.model, extra, rng)
            ends = np.quantile(spread, [0.025, 0.975], axis=0)
            lows.append(continued(starts[:1], ends[:1])[0])
            highs.append(continued(starts[1:], ends[1:])[0])
    for bounds, ends, sign in ((lows, starts[0], -1.0), (highs, starts[1], 1.0)):
        bounds.append(continued(ends[None, :], _drifting(estimate, measured, extra, sign)[None, :])[0])
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    warnings = [
        f"positions {measured + 1} to {k} were not measured: the {chosen.model} law fitted to {measured} "
        "positions "
        "continues the measured rates, the interval holds every plausible law; parallel drafters can "
        "differ at "
        "the measured positions too"
    ]
    if measured == 1:
        warnings.append("one measured position cannot tell the laws apart")
    return Extrapolation(
        k=k,
        measured_k=measured,
        survival=(*estimate.survival[:measured], *map(float, tail)),
        low=(*(low for low, _ in pairs[:measured]), *map(float, np.minimum(low, tail))),
        high=(*(high for _, high in pairs[:measured]), *map(float, np.maximum(high, tail))),
        model=chosen.model,
        laws=laws,
        warnings=tuple(warnings),
    )


def _drifting(estimate: Estimate, measured: int, extra: Array, sign: float) -> Array:
    """Rates behind the measured ones without any law: each may move on from the last by as much as neighbours did.

    Heads follow no law exactly; with many rounds every fitted interval would be too narrow for them.
    """
    rates = [rate for rate in estimate.conditional[:measured] if rate is not None]
    steps = np.abs(np.diff(rates))
    later = steps[1:] if estimate.fit is not None and estimate.fit.first_is_poor else steps
    step = STEPS_ALLOWED * float(later.max()) if later.size else STEP_UNKNOWN
    pair = estimate.conditional_interval[measured - 1]
    start = _bound(pair[0], 0.0) if sign < 0.0 else _bound(pair[1], 1.0)
    return np.clip(start + sign * step * (extra - measured), 0.0, 1.0)


def compare(part: Part, rng: np.random.Generator, exclude: tuple[str, ...] = ()) -> tuple[Fitted, ...]:
    """Fit every law and score it on held-out rounds; plausible: within two standard errors of the best."""
    tested, survived = np.array(part.tested), np.array(part.survived)
    measured = int((tested > 0).sum())
    models = [model for model in MODELS if model not in exclude and (measured > 1 or model == "geometric")]
    models = models or ["geometric"]
    folds = _folds(part, rng)
    scores = np.zeros((len(models), len(folds)))
    for at, (t, s) in enumerate(folds):
        rest_t, rest_s = tested - t, survived - s
        for index, model in enumerate(models):
            scores[index, at] = float(_score(_fit(model, rest_t, rest_s), model, t, s)) / max(t.sum(), 1.0)
    mean = scores.mean(axis=1)
    best = int(np.argmax(mean))
    errors = (
        (scores - scores[best]).std(axis=1, ddof=1) / math.sqrt(len(folds)) if len(folds) > 1 else mean * 0.0
    )
    return tuple(
        Fitted(
            model=model,
            parameters=dict(zip(_names(model), map(float, _fit(model, tested, survived)), strict=True)),
            score=float(mean[index]),
            score_error=float(errors[index]),
            plausible=bool(mean[best] - mean[index] <= 2.0 * errors[index] + 1e-12),
        )
        for index, model in enumerate(models)
    )


def _choice(laws: tuple[Fitted, ...]) -> Fitted:
    """The law with fewest parameters within one standard error of the best."""
    best = max(laws, key=lambda law: law.score)
    near = [law for law in laws if best.score - law.score <= law.score_error + 1e-12]
    return min(near, key=lambda law: (len(law.parameters), -law.score))


def _folds(part: Part, rng: np.random.Generator) -> list[tuple[Array, Array]]:
    """(tested, survived) of disjoint parts of the rounds, whole requests where they are known."""
    c = part.clusters
    if c is not None and c.tested is not None and c.survived is not None and len(c.rounds) >= 2 * FOLDS:
        table = grouped(np.column_stack([c.tested, c.survived]), rng, most=FOLDS)
        width = c.tested.shape[1]
        whole = np.array(part.tested).sum() / max(
            table[:, :width].sum(), 1.0
        )  # below all where rows were given up
        return [(row[:width] * whole, row[width:] * whole) for row in table]
    accepted = np.array(part.survived)
    rejected = np.array(part.tested) - accepted
    folds = []
    for left in range(FOLDS, 0, -1):  # deal out the tests of every position evenly, at random
        a = _dealt(accepted, left, rng)
        r = _dealt(rejected, left, rng)
        folds.append((a + r, a))
        accepted, rejected = accepted - a, rejected - r
    return folds


def _dealt(counts: Array, left: int, rng: np.random.Generator) -> Array:
    if counts.max(initial=0.0) > 1e6:  # a random split would differ by less than 0.1 %
        return counts / left
    return np.minimum(rng.binomial(np.round(counts).astype(np.int64), 1.0 / left), counts).astype(np.float64)


def _names(model: str) -> tuple[str, ...]:
    return {"geometric": ("alpha",), "decay": ("first", "ratio"), "beta mixture": ("a", "b")}[model]


def _rates(model: str, parameters: Array, positions: Array) -> Array:
    """Conditional rates of a law at positions 1, 2, ...; the parameters may have leading axes."""
    first = parameters[..., 0:1]
    if model == "geometric":
        return np.broadcast_to(first, (*parameters.shape[:-1], positions.size)).copy()
    second = parameters[..., 1:2]
    if model == "decay":
        return first * second ** (positions - 1.0)
    return (first + positions - 1.0) / (first + second + positions - 1.0)


def _score(parameters: Array, model: str, tested: Array, survived: Array) -> Array:
    """Log likelihood, each position a binomial; leading axes are kept."""
    rates = _rates(model, parameters, np.arange(1.0, tested.shape[-1] + 1.0))
    rates = np.clip(rates, 1e-9, 1.0 - 1e-9)
    found: Array = (survived * np.log(rates) + (tested - survived) * np.log1p(-rates)).sum(axis=-1)
    return found


def _fit(model: str, tested: Array, survived: Array) -> Array:
    """Maximum likelihood along the last axis; shape (..., parameters).

    One parameter has a closed form. Of two, the second is searched on a grid that closes in on the best, and
    the first is solved for each: the likelihood is concave in it. So all refits run at once.
    """
    if model == "geometric":
        total = tested.sum(axis=-1, keepdims=True)
        alpha: Array = np.divide(
            survived.sum(axis=-1, keepdims=True), total, out=total * 0.0 + 0.5, where=total > 0
        )
        return alpha
    t, s = tested[..., None, :], survived[..., None, :]
    low, high = (-9.0, 2.0) if model == "decay" else (-4.0, 9.0)
    points = np.broadcast_to(np.linspace(low, high, GRID), (*tested.shape[:-1], GRID))
    for _ in range(4):
        both = np.stack([_first(model, points, t, s), _second(model, points)], axis=-1)
        if model == "beta mixture":  # from (a, a + b) to (a, b)
            both[..., 1] = np.maximum(both[..., 1] - both[..., 0], 1e-9)
        best = _score(both, model, t, s).argmax(axis=-1)[..., None]
        found = np.take_along_axis(both, best[..., None], axis=-2)[..., 0, :]
        left = np.take_along_axis(points, np.maximum(best - 1, 0), axis=-1)
        right = np.take_along_axis(points, np.minimum(best + 1, points.shape[-1] - 1), axis=-1)
        points = left + (right - left) * np.linspace(0.0, 1.0, CLOSER)
    result: Array = found
    return result


def _second(model: str, points: Array) -> Array:
    """The searched parameter: the ratio exp(-exp(x)), or a + b = exp(x)."""
    found: Array = np.exp(-np.exp(points)) if model == "decay" else np.exp(points)
    return found


def _first(model: str, points: Array, tested: Array, survived: Array) -> Array:
    """The first rate, or a, that is best for each value of the second: the root of a falling derivative."""
    second = _second(model, points)[..., None]
    steps = np.arange(tested.shape[-1])
    rejected = tested - survived
    low = np.zeros(points.shape)
    high = np.ones(points.shape) if model == "decay" else second[..., 0].copy()
    for _ in range(48):
        middle = (low + high) / 2.0
        m = middle[..., None]
        if model == "decay":
            factor = second**steps
            slope = (survived / m - rejected * factor / (1.0 - m * factor)).sum(axis=-1)
        else:
            slope = (survived / (m + steps) - rejected / (second - m)).sum(axis=-1)
        low, high = np.where(slope > 0.0, middle, low), np.where(slope > 0.0, high, middle)
    return np.maximum((low + high) / 2.0, 1e-12)


def _refitted(part: Part, model: str, positions: Array, rng: np.random.Generator) -> Array:
    """Rates at `positions` from refits to redrawn counts, shape (REFITS, positions)."""
    tested, survived = np.array(part.tested), np.array(part.survived)
    c = part.clusters
    if c is not None and c.tested is not None and c.survived is not None and len(c.rounds) >= 5:
        table = grouped(np.column_stack([c.tested, c.survived]), rng)
        sums = resampled(table, REFITS, rng)
        t, s = sums[:, : tested.size], sums[:, tested.size :]
    else:
        t = np.broadcast_to(tested, (REFITS, tested.size))
        s = t * rng.beta(survived + 0.5, tested - survived + 0.5, size=t.shape)
    return _rates(model, _fit(model, t, s), positions)


def _bound(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
