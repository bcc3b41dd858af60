"""Where the products of a measured table stop being bound by memory: read off measured and predicted times alike.

Datasheets give a ridge point, peak over bandwidth. Here it is what it means for a pass: the number of tokens at which a
product takes twice as long as with a few. Up to there, further positions to verify are mostly free. A plain roofline
reaches it at twice its ridge point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel.kernel_times.layer_rows import crossing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.kernel_times.table_predictions import Predictions

FEW_TOKENS = (
    4.0  # whose median is doubled: single times, above all that for one token, are off by up to three times
)


@dataclass(frozen=True, slots=True)
class Ridge:
    """Tokens at which products take twice as long as with at most `FEW_TOKENS`.

    Medians over the matrices of one device, format and framework for which both times reach it.

    Attributes
    ----------
    measured, predicted : float
        Read off the measured and the predicted times.
    median_abs_error : float
        Over the matrices. Relative.
    datasheet : float or None
        Read off a plain roofline; None where it does not reach it within the tokens measured.
    matrices : int
        Matrices for which it could be read off.
    """

    device: str
    format: str
    framework: str
    matrices: int
    measured: float
    predicted: float
    median_abs_error: float
    datasheet: float | None


def ridges(found: Sequence[Predictions]) -> tuple[Ridge, ...]:
    """One per device, format and framework of GEMM tables whose rows reach that far."""
    seen: dict[tuple[str, str, str], list[tuple[float, float, float | None]]] = {}
    for one in found:
        for (label, framework, _, _), rows in _matrices(one).items():
            tokens = one.table.numbers["m"][rows]
            if tokens.min() > FEW_TOKENS:
                continue
            measured, predicted, sheet = (
                doubled(tokens, seconds[rows]) for seconds in (one.measured, one.seconds, one.datasheet)
            )
            if measured is not None and predicted is not None:
                seen.setdefault((one.device, label, framework), []).append((measured, predicted, sheet))
    return tuple(_ridge(*key, entries) for key, entries in sorted(seen.items()))


def doubled(tokens: NDArray[np.float64], seconds: NDArray[np.float64]) -> float | None:
    """Tokens from which a product takes at least twice as long as with a few; None where it never does.

    Times of equal tokens count as their median; between two numbers of tokens the time is straight in the logarithm.

    >>> doubled(np.array([1.0, 2.0, 8.0]), np.array([1.0, 1.0, 3.0]))
    4.0
    """
    several = np.unique(tokens)
    times = np.array([np.median(seconds[tokens == number]) for number in several])
    few = np.median(times[several <= FEW_TOKENS])
    return crossing(several.tolist(), (times / few).tolist(), 2.0)


def _matrices(found: Predictions) -> dict[tuple[str, str, float, float], list[int]]:
    """Predicted rows of each format, framework and matrix."""
    numbers, texts = found.table.numbers, found.table.texts
    columns = (texts["dtype"], texts["fw"], numbers["n"], numbers["k"])
    rows: dict[tuple[str, str, float, float], list[int]] = {}
    for at, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if np.isfinite(found.seconds[at]):
            rows.setdefault(key, []).append(at)
    return rows


def _ridge(
    device: str, label: str, framework: str, entries: Sequence[tuple[float, float, float | None]]
) -> Ridge:
    measured, predicted = (np.array([entry[part] for entry in entries]) for part in (0, 1))
    sheets = [entry[2] for entry in entries if entry[2] is not None]
    return Ridge(
        device,
        label,
        framework,
        len(entries),
        float(np.median(measured)),
        float(np.median(predicted)),
        float(np.median(np.abs(predicted / measured - 1.0))),
        float(np.median(sheets)) if sheets else None,
    )
