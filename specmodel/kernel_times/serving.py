"""Serving runs at fixed concurrency: the decode step behind the mean time per output token, and its prediction.

A run interleaves the prefill of arriving requests with decoding, so its time per output token holds a share of
prefill that falls with the output length. Runs that differ in output length alone tell the two apart:

    time per output token = decode step + c / output length
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog
from specmodel.errors import InputError
from specmodel.kernel_times.calibrated import Calibrated
from specmodel.kernel_times.constants import Calibration, Fit
from specmodel.kernel_times.fitting import Sample, fit
from specmodel.kernel_times.formulas import Terms, WaitConstants, wait_seconds
from specmodel.model import Model, Totals
from specmodel.passes import Split, forward_pass
from specmodel.roofline import Datasheet, Kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.datasheets import Device
    from specmodel.kernel_times.constants import Constants
    from specmodel.kernel_times.table_predictions import Predictions
    from specmodel.kernel_times.tables import Table

# TensorRT-LLM keeps the cache in fp8 when it serves an fp8 or fp4 checkpoint: the growth of the Qwen3-32B runs with
# context is that of one byte per element.
_FORMATS = {"fp8": ("fp8", "fp8"), "fp8_block": ("fp8-block", "fp8"), "nvfp4": ("nvfp4", "fp8")}
_UNQUANTISED = ("unstated", "bf16", "bfloat16", "fp16", "none", "")
_FILLED = 0.9  # of the memory, before a run has fewer sequences in a step than clients
# Beyond 64 clients the runs on several GPUs are no longer alike: some are faster than with half as many.
_WAIT_UP_TO = 64.0
_GROUP = ("model", "fw", "ver", "quant", "src")
_GROUP_NUMBERS = ("tp", "ep", "isl", "conc")


@dataclass(frozen=True, slots=True)
class Run:
    """Runs that differ in output length alone.

    `step_s` is the decode step and `prefill_s` the c of the module's equation; both are None with a single output
    length.
    """

    rows: NDArray[np.int64]
    model: str
    framework: str
    quant: str
    tp: int
    ep: int
    isl: float
    concurrency: float
    context: float
    longest: float
    step_s: float | None
    prefill_s: float | None


def runs_of(table: Table) -> Iterator[Run]:
    """The runs of a serving table, their prefill share separated."""
    texts = [table.texts[name] for name in _GROUP]
    numbers = [table.numbers[name] for name in _GROUP_NUMBERS]
    keys = list(zip(*texts, *numbers, strict=True))
    for key in dict.fromkeys(keys):
        rows = np.array([at for at, other in enumerate(keys) if other == key])
        lengths, measured = table.numbers["osl"][rows], table.seconds[rows]
        step, prefill = _separated(lengths, measured)
        yield Run(
            rows,
            str(key[0]),
            str(key[1]),
            str(key[3]),
            int(key[5]),
            max(1, int(key[6])),
            float(key[7]),
            float(key[8]),
            float(key[7] + 0.5 * lengths.mean()),
            float(key[7] + lengths.max()),
            step,
            prefill,
        )


def _separated(
    lengths: NDArray[np.float64], measured: NDArray[np.float64]
) -> tuple[float, float] | tuple[None, None]:
    """Least squares of the relative residuals of step + c / length; c is no less than 0."""
    if len(np.unique(lengths)) < 2:
        return None, None
    columns = np.stack([np.ones_like(lengths), 1.0 / lengths], axis=1) / measured[:, None]
    step, prefill = np.linalg.lstsq(columns, np.ones_like(measured), rcond=None)[0]
    if prefill < 0.0:
        return float(1.0 / np.mean(1.0 / measured)), 0.0
    return (float(step), float(prefill)) if step > 0.0 else (None, None)


def predict_serving(found: Predictions, device: Device, calibration: Calibration) -> None:
    """Times per output token: the predicted decode step, and the run's own prefill share."""
    lengths = found.table.numbers["osl"]
    for run in runs_of(found.table):
        rows = np.zeros(len(lengths), dtype=bool)
        rows[run.rows] = True
        found.label(rows, "e2e", f"{run.model} {run.quant} tp {run.tp}")
        if run.prefill_s is None:
            found.refuse(rows, "one output length: its prefill share cannot be told from the decode step")
            continue
        try:
            model, kernels = _kernels(run, device)
            timing = Calibrated(device, framework=run.framework or None, calibration=calibration)
            band = timing.band(kernels)
        except InputError as error:
            found.refuse(rows, str(error))
            continue
        if not _fits(run, model, device):
            found.refuse(rows, f"{run.concurrency:g} sequences do not fit in memory: the batch is not known")
            continue
        share = run.prefill_s / lengths[rows]
        step = float(timing.time(kernels).seconds)
        sheet = float(Datasheet(device).time(kernels).seconds)
        found.seconds[rows] = step + share
        found.low[rows] = band.low * step + share
        found.high[rows] = band.high * step + share
        found.datasheet[rows] = sheet + share
        found.default[rows] = band.origin == "default"
        found.refuse(rows, "")


def _kernels(run: Run, device: Device) -> tuple[Model, list[Kernel]]:
    weights, kv = _FORMATS.get(run.quant.casefold(), (None, None))
    if weights is None and run.quant.casefold() not in _UNQUANTISED:
        weights = run.quant
    model = catalog.model(run.model, weights=weights, kv=kv)
    if isinstance(model, Totals):
        raise InputError("model", run.model, "is given as totals: it has no kernels")
    split = Split(tp=run.tp, ep=run.ep)
    return model, forward_pass(model, batch=run.concurrency, context=run.context, split=split)


def _fits(run: Run, model: Model, device: Device) -> bool:
    cache = run.concurrency * (float(model.kv_bytes(run.longest, run.tp)) + model.state_bytes(run.tp))
    weights = sum(model.counted_bytes(run.tp).values())
    return weights + cache <= _FILLED * device.memory_bytes


def fit_wait(table: Table, device: Device, calibration: Calibration, source: str) -> Fit | None:
    """The wait around all-reduces from serving runs on several GPUs; None where the table has too few of them."""
    runs, base, counts = _parallel_runs(table, device, calibration)
    if len(runs) < 4:
        return None
    measured = np.array([run.step_s for run in runs], dtype=float)
    tokens = np.array([run.concurrency for run in runs])
    gpus = np.array([run.tp for run in runs])

    def times(constants: Constants) -> Terms:
        assert isinstance(constants, WaitConstants)
        waited = counts * wait_seconds(tokens, gpus, constants=constants)
        return Terms(base + waited, base, 0.0, waited)

    names = sorted({run.model for run in runs})
    groups = np.array([names.index(run.model) if len(names) > 1 else run.tp for run in runs])
    sample = Sample("wait", times, measured, groups, {})
    return fit(sample, device=device.id, format_name="", framework="pooled", source=source)


def _parallel_runs(
    table: Table, device: Device, calibration: Calibration
) -> tuple[Sequence[Run], NDArray[np.float64], NDArray[np.float64]]:
    """Runs on several GPUs, the time of their kernels without any wait, and their all-reduces per step."""
    runs, base, counts = [], [], []
    for run in runs_of(table):
        if run.step_s is None or run.tp < 2 or run.concurrency > _WAIT_UP_TO:
            continue
        try:
            model, kernels = _kernels(run, device)
            timing = Calibrated(device, framework=run.framework or None, calibration=calibration, wait=False)
        except InputError:
            continue
        if _fits(run, model, device):
            runs.append(run)
            base.append(float(timing.time(kernels).seconds))
            counts.append(sum(kernel.count for kernel in kernels if kernel.kind == "allreduce"))
    return runs, np.array(base), np.array(counts, dtype=float)
