"""A whole decoder layer, measured plain and wide: predicted from the constants of its kernels.

What the comparison is about is the ratio of a verification pass to a plain one, and the batch at which k drafts stop
paying on the machine itself: both free of any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel.acceptance import tokens_per_round
from specmodel.errors import InputError
from specmodel.kernel_times.calibrated import kernel_terms
from specmodel.kernel_times.table_times import stored
from specmodel.passes import PassBuilder, Split
from specmodel.roofline import Datasheet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.datasheets import Device
    from specmodel.kernel_times.constants import Calibration, Fit
    from specmodel.kernel_times.table_predictions import Predictions

    Floats = NDArray[np.float64]

LABELS = ("layer", "dtype", "kv", "fw")
BREAK_EVEN_ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True, slots=True)
class WidthRatio:
    """A wide pass over a plain one at the same batch and context."""

    batch: int
    context: int
    width: int
    measured: float
    predicted: float | None


@dataclass(frozen=True, slots=True)
class LayerBreakEven:
    """The batch at which width - 1 free drafts stop paying, read off the measured and the predicted ratios.

    Between two measured batches the ratio is taken as straight in the logarithm of the batch; None where it is not
    crossed within the batches measured.
    """

    context: int
    k: int
    alpha: float
    measured: float | None
    predicted: float | None


def predict_layers(
    found: Predictions, device: Device, calibration: Calibration, framework: str | None
) -> None:
    """Times of a table of whole layers; its "layer" column names the model whose layer it is."""
    table = found.table
    keys = list(zip(*(table.texts[name].tolist() for name in LABELS), strict=True))
    for key in sorted(set(keys)):
        rows = np.array([other == key for other in keys])
        found.label(rows, "layer", key[1])
        try:
            seconds, sheet, fit = _layer_seconds(found, rows, key, device, calibration, framework)
        except InputError as error:
            found.refuse(rows, str(error))
            continue
        found.put(rows, seconds, sheet, fit)


def _layer_seconds(
    found: Predictions,
    rows: NDArray[np.bool_],
    key: tuple[str, str, str, str],
    device: Device,
    calibration: Calibration,
    framework: str | None,
) -> tuple[Floats, Floats, Fit]:
    from specmodel import readers

    name, dtype, kv, written_by = key
    weights, cache = stored(dtype), stored(kv, "kv")
    gemm = calibration.find(device, "gemm", weights.format, written_by or framework)
    attention = calibration.find(device, "attention", cache.format, written_by or framework)
    if gemm is None or attention is None:
        raise InputError(
            "device", device.id, "has no constants for these kernels: calibrate its tables first"
        )
    model = readers.load(name, weights=weights.format, kv=cache.format)
    _, layer = model.architecture.layers[0]
    batch, context, width = (found.table.numbers[column][rows] for column in ("batch", "context", "width"))
    builder = PassBuilder(model, batch, context + width, width, Split())
    fits = {"gemm": gemm, "attention": attention}
    # Norms and the like take a hundredth of a layer on a CPU, and are fused on a GPU.
    kernels = [kernel for kernel in builder.layer(layer, 1) if kernel.kind in fits]
    seconds = np.zeros(len(batch))
    for kernel in kernels:
        seconds = seconds + kernel_terms(kernel, fits[kernel.kind], device).seconds
    return seconds, np.asarray(Datasheet(device).time(kernels).seconds), gemm


def width_ratios(found: Sequence[Predictions], labels: Sequence[str] = LABELS) -> tuple[WidthRatio, ...]:
    """Every wide pass that has a plain one beside it, equal in the text columns `labels`."""
    ratios = []
    for one in found:
        numbers = one.table.numbers
        texts = zip(*(one.table.texts[name].tolist() for name in labels), strict=True)
        sizes = zip(*(numbers[name].tolist() for name in ("batch", "context", "width")), strict=True)
        rows = {(*label, *size): at for at, (label, size) in enumerate(zip(texts, sizes, strict=True))}
        for key, at in rows.items():
            plain = rows.get((*key[:-1], 1.0))
            if key[-1] == 1.0 or plain is None:
                continue
            predicted = float(one.seconds[at] / one.seconds[plain])
            ratios.append(
                WidthRatio(
                    int(key[-3]),
                    int(key[-2]),
                    int(key[-1]),
                    float(one.measured[at] / one.measured[plain]),
                    predicted if np.isfinite(predicted) else None,
                )
            )
    return tuple(sorted(ratios, key=lambda ratio: (ratio.context, ratio.width, ratio.batch)))


def layer_break_evens(ratios: Sequence[WidthRatio]) -> tuple[LayerBreakEven, ...]:
    """Where measured and predicted ratios reach the tokens per round of several acceptances; crossed ones only."""
    found = []
    for context, width in sorted({(ratio.context, ratio.width) for ratio in ratios}):
        column = [ratio for ratio in ratios if (ratio.context, ratio.width) == (context, width)]
        batches = [ratio.batch for ratio in column]
        for alpha in BREAK_EVEN_ALPHAS:
            tokens = float(tokens_per_round(alpha, width - 1))
            measured = crossing(batches, [ratio.measured for ratio in column], tokens)
            predicted = crossing(batches, [ratio.predicted for ratio in column], tokens)
            if measured is not None or predicted is not None:
                found.append(LayerBreakEven(context, width - 1, alpha, measured, predicted))
    return tuple(found)


def crossing(batches: Sequence[float], ratios: Sequence[float | None], level: float) -> float | None:
    """The batch from which the ratio stays at or above a level; None where the last one is below, or the first above."""
    values = np.array([np.nan if ratio is None else ratio for ratio in ratios])
    if len(values) < 2 or not np.isfinite(values).all() or values[-1] < level:
        return None
    below = np.flatnonzero(values < level)
    if not below.size:
        return None
    at = int(below[-1])
    share = (level - values[at]) / (values[at + 1] - values[at])
    return float(np.exp(np.log(batches[at]) + share * np.log(batches[at + 1] / batches[at])))
