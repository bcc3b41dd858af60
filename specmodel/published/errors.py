"""Predicted against published speedups, row by row and summed up: the part of `validate` that is about speculation.

Summaries are over rows complete enough to score (`PublishedRun.scored`), every source weighing the same. The ideal
formula E / (1 + k c) stands beside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specmodel.bands import band_for
from specmodel.errors import InputError
from specmodel.published.runs import Situation, situation
from specmodel.published.table import PublishedRun, read_published

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOSS_BELOW, GAIN_ABOVE = 0.97, 1.03
"""Measured speedups between these are neither: repeated runs differ by as much."""
BATCHES = ((1, 1), (2, 8), (9, 32), (33, 64), (65, 128), (129, 1_000_000))


@dataclass(frozen=True, slots=True)
class SpeedupRow:
    """One published result; `predicted` is None where `reason` says why, `assumed` what was read into the row."""

    file: str
    row: int
    id: str | None
    unit: str
    measured: float | None
    predicted: float | None
    low: float | None
    high: float | None
    ideal: float | None
    round_cost: float | None
    scored: bool
    reason: str | None
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """Rows measured as losses, or as gains, and how many of them were predicted on the same side of 1."""

    measured: int
    predicted: int
    share: float | None


@dataclass(frozen=True, slots=True)
class SpeedupGroup:
    """Errors of predicted / measured - 1 over the scored rows of one source, engine, batch or method."""

    by: str
    name: str
    rows: int
    median_abs_error: float
    mean_abs_error: float
    bias: float
    ideal_median_abs_error: float


@dataclass(frozen=True, slots=True)
class SpeedupErrors:
    """One file of published runs; field names are JSON keys.

    Attributes
    ----------
    median_abs_error, mean_abs_error, bias : float or None
        Of predicted / measured - 1 over the scored rows, every source weighing the same; bias is the median.
    ideal_median_abs_error, ideal_mean_abs_error : float or None
        The same of E / (1 + k c).
    losses, gains : Told
        Scored rows measured below 0.97, and above 1.03.
    """

    file: str
    kind: str
    rows: int
    predicted_rows: int
    scored_rows: int
    median_abs_error: float | None
    mean_abs_error: float | None
    bias: float | None
    ideal_median_abs_error: float | None
    ideal_mean_abs_error: float | None
    losses: Told
    gains: Told
    groups: tuple[SpeedupGroup, ...]


def validate_published(
    path: str | Path | Traversable,
) -> tuple[SpeedupErrors, list[SpeedupRow], tuple[str, ...]]:
    """Every row of a file predicted, and the errors over those that can be scored.

    Returns
    -------
    errors, rows, problems
        `problems` are lines that are no rows.

    Raises
    ------
    InputError
        For a file that cannot be read or holds no row.
    """
    table = read_published(path)
    found = [_predicted(table.file, run) for run in table.runs]
    return _errors(table.file, found), [row for row, _ in found], table.problems


def _predicted(file: str, run: PublishedRun) -> tuple[SpeedupRow, Situation | None]:
    measured = run.number("speedup")
    told = (file, run.row, run.text("id") or None, "speedup", measured)
    try:
        one = situation(run)
        gain = one.speedup()
    except InputError as error:
        return SpeedupRow(*told, None, None, None, None, None, False, str(error), ()), None
    band = band_for(one.deployment.engine, one.deployment.timing.fidelity)
    low, high = (None, None) if band is None else (gain * band.low, gain * band.high)
    scored = run.scored and bool(measured)
    row = SpeedupRow(
        *told, gain, low, high, one.ideal(), one.tokens / gain, scored, None, (*one.said, *_doubts(one))
    )
    return row, one


def _doubts(one: Situation) -> tuple[str, ...]:
    """Where a plan would refuse."""
    from specmodel.planning.doubts import doubts

    raised = doubts(one.deployment, one.speculation.drafter, (int(one.context),), measured=True)
    return tuple(str(doubt) for doubt in raised if doubt.applies(int(one.context)))


def _errors(file: str, found: Sequence[tuple[SpeedupRow, Situation | None]]) -> SpeedupErrors:
    known = [(row, one) for row, one in found if one is not None and row.measured]
    scored = [(row, one) for row, one in known if row.scored] or known
    measured = np.array([row.measured for row, _ in scored], dtype=float)
    gains = np.array([row.predicted for row, _ in scored], dtype=float)
    off, ideal = (
        gains / measured - 1.0,
        np.array([row.ideal for row, _ in scored], dtype=float) / measured - 1.0,
    )
    sources = [one.run.text("source") for _, one in scored]
    weights = np.array([1.0 / sources.count(source) for source in sources])
    return SpeedupErrors(
        file=file,
        kind="published",
        rows=len(found),
        predicted_rows=sum(row.predicted is not None for row, _ in found),
        scored_rows=len(scored),
        median_abs_error=_median(np.abs(off), weights),
        mean_abs_error=_mean(np.abs(off), weights),
        bias=_median(off, weights),
        ideal_median_abs_error=_median(np.abs(ideal), weights),
        ideal_mean_abs_error=_mean(np.abs(ideal), weights),
        losses=_told(measured < LOSS_BELOW, gains < 1.0),
        gains=_told(measured > GAIN_ABOVE, gains > 1.0),
        groups=tuple(
            group
            for by, name in GROUPINGS
            for group in _groups(by, [name(one) for _, one in scored], off, ideal)
        ),
    )


def _groups(by: str, names: Sequence[str], off: Floats, ideal: Floats) -> list[SpeedupGroup]:
    groups = []
    for name in dict.fromkeys(names):
        chosen = np.array([entry == name for entry in names])
        groups.append(
            SpeedupGroup(
                by=by,
                name=name,
                rows=int(chosen.sum()),
                median_abs_error=float(np.median(np.abs(off[chosen]))),
                mean_abs_error=float(np.abs(off[chosen]).mean()),
                bias=float(np.median(off[chosen])),
                ideal_median_abs_error=float(np.median(np.abs(ideal[chosen]))),
            )
        )
    return groups


def _batch(one: Situation) -> str:
    low, high = next(((low, high) for low, high in BATCHES if low <= one.batch <= high), BATCHES[-1])
    return f"{low}" if low == high else f"{low}-{high}" if high < BATCHES[-1][1] else f"over {low - 1}"


GROUPINGS: tuple[tuple[str, Callable[[Situation], str]], ...] = (
    ("source", lambda one: one.run.text("source")),
    ("engine", lambda one: one.deployment.engine.id),
    ("batch", _batch),
    ("method", lambda one: re.sub(r"\s+", " ", one.run.text("method"))),
)


def _told(measured: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> Told:
    count, right = int(measured.sum()), int((measured & predicted).sum())
    return Told(count, right, right / count if count else None)


def _median(values: Floats, weights: Floats) -> float | None:
    """The value below which half of the weight lies."""
    if not len(values):
        return None
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(len(values) - 1, int(np.searchsorted(share, 0.5)))])


def _mean(values: Floats, weights: Floats) -> float | None:
    return float((values * weights).sum() / weights.sum()) if len(values) else None
