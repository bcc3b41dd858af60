"""Whole passes of an engine, plain and wide: its kernels at their constants, and its time per pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog
from specmodel.errors import InputError
from specmodel.kernel_times.calibrated import Calibrated
from specmodel.model import Totals
from specmodel.passes import Split, forward_pass
from specmodel.roofline import Datasheet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.datasheets import Device
    from specmodel.kernel_times.constants import Calibration
    from specmodel.kernel_times.table_predictions import Predictions

LABELS = ("model", "weights", "fw")


def predict_passes(
    found: Predictions, device: Device, calibration: Calibration, framework: str | None
) -> None:
    """Times of a table of passes; sampling and whatever else ends a step or a round is not in them."""
    table = found.table
    columns = (*(table.texts[name] for name in LABELS), table.numbers["tp"])
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    for key in sorted(set(keys)):
        rows = np.array([other == key for other in keys])
        found.label(rows, "pass", str(key[1]))
        try:
            _predict(found, rows, key, device, calibration, framework)
        except InputError as error:
            found.refuse(rows, str(error))


def _predict(
    found: Predictions,
    rows: NDArray[np.bool_],
    key: tuple[str, str, str, float],
    device: Device,
    calibration: Calibration,
    framework: str | None,
) -> None:
    name, weights, written_by, gpus = key
    model = catalog.model(name, weights=weights or None)
    if isinstance(model, Totals):
        raise InputError("model", name, "is given as totals: it has no kernels")
    engine = catalog.engine(written_by or framework or "ideal")
    batch, context, width = (found.table.numbers[column][rows] for column in ("batch", "context", "width"))
    kernels = forward_pass(
        model, batch=batch, context=context + width, width=width, split=Split(tp=int(gpus))
    )
    timing = Calibrated(device, framework=engine.framework or None, calibration=calibration)
    layers = model.architecture.layer_count
    seconds = np.asarray(engine.target_seconds(timing.time(kernels).seconds, layers=layers, gpus=gpus))
    band = timing.band(kernels)
    found.seconds[rows], found.low[rows], found.high[rows] = seconds, band.low * seconds, band.high * seconds
    found.datasheet[rows] = np.asarray(Datasheet(device).time(kernels).seconds)
    found.default[rows] = band.origin == "default"
    found.refuse(rows, "")
