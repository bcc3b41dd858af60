"""Predicted times for the rows of a measured table, kind by kind, and the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel.errors import InputError
from specmodel.kernel_times.constants import Calibration, Constants, Fit
from specmodel.kernel_times.formulas import (
    AttentionConstants,
    GemmConstants,
    MoeConstants,
    SmallConstants,
    attention_seconds,
    small_seconds,
)
from specmodel.kernel_times.table_times import (
    allreduce_times,
    attention_times,
    gemm_times,
    moe_times,
    small_bytes,
    stored,
)
from specmodel.kernel_times.tables import TIMES, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.datasheets import Device
    from specmodel.kernel_times.table_devices import DeviceRows
    from specmodel.kernel_times.table_times import Times

# A datasheet roofline: no fixed time, full rates, the larger of traffic and arithmetic.
_SHEET: dict[str, Constants] = {
    "gemm": GemmConstants(0.0, 1.0, 1.0),
    "attention": AttentionConstants(0.0, 1.0, 1.0),
    "moe": MoeConstants(0.0, 1.0, 1.0),
    "small": SmallConstants(0.0, 1.0),
}
_MATRIX_OPERATORS = ("qkv", "o", "gate_up", "down", "head")
_MODULE = (
    "a whole attention module with compressed attention: projections and indexer are not in a table's columns"
)


@dataclass(slots=True)
class Predictions:
    """Predicted times beside the measured ones; NaN where `reasons` says why.

    `datasheet` is a plain roofline, `low` and `high` the band of the constants used, `default` marks rows predicted
    with constants that were not fitted to that device.
    """

    table: Table
    device: str
    measured: NDArray[np.float64]
    seconds: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    datasheet: NDArray[np.float64]
    default: NDArray[np.bool_]
    kinds: list[str]
    formats: list[str]
    reasons: list[str]

    @property
    def unit_seconds(self) -> float:
        """One unit of the table's time column. [s]"""
        return TIMES[self.table.unit]

    def put(
        self, rows: NDArray[np.bool_], seconds: NDArray[np.float64], sheet: NDArray[np.float64], fit: Fit
    ) -> None:
        """Predictions for some rows from one fit."""
        self.seconds[rows] = seconds
        self.low[rows] = seconds * fit.low
        self.high[rows] = seconds * fit.high
        self.datasheet[rows] = sheet
        self.default[rows] = fit.origin == "default"
        for at in np.flatnonzero(rows):
            self.reasons[at] = ""

    def refuse(self, rows: NDArray[np.bool_], reason: str) -> None:
        """Why some rows have no prediction."""
        for at in np.flatnonzero(rows):
            self.reasons[at] = reason

    def label(self, rows: NDArray[np.bool_], kind: str, number_format: str) -> None:
        """Which group of the summary some rows belong to."""
        for at in np.flatnonzero(rows):
            self.kinds[at], self.formats[at] = kind, number_format


def predict(part: DeviceRows, calibration: Calibration, framework: str | None) -> Predictions:
    """Times of the rows of a table that belong to one device."""
    table, device = part.table, part.device
    count = len(table)
    empty = np.full(count, np.nan)
    found = Predictions(
        table,
        device.id if device else "unknown",
        table.seconds,
        empty.copy(),
        empty.copy(),
        empty.copy(),
        empty.copy(),
        np.zeros(count, dtype=bool),
        [table.kind] * count,
        [""] * count,
        ["not predicted"] * count,
    )
    everything = np.ones(count, dtype=bool)
    if device is None:
        found.refuse(everything, part.reason)
        return found
    if table.kind == "attention module":
        found.refuse(everything, _MODULE)
    elif table.kind == "e2e":
        from specmodel.kernel_times.serving import predict_serving

        predict_serving(found, device, calibration)
    elif table.kind == "layer":
        from specmodel.kernel_times.layer_rows import predict_layers

        predict_layers(found, device, calibration, framework)
    elif table.kind == "pass":
        from specmodel.kernel_times.pass_rows import predict_passes

        predict_passes(found, device, calibration, framework)
    elif table.kind == "operators":
        _operators(found, device, calibration, framework)
    elif table.kind == "attention widths":
        _widths(found, device, calibration, framework)
    else:
        _kernels(found, device, calibration, framework)
    return found


def _kernels(found: Predictions, device: Device, calibration: Calibration, framework: str | None) -> None:
    table = found.table
    label_column = {"attention": "kv", "allreduce": "impl"}.get(table.kind, "dtype")
    framework_column = "impl" if table.kind == "allreduce" else "fw"
    labels, frameworks = table.texts[label_column], table.texts[framework_column]
    for label in sorted(set(labels.tolist())):
        for name in sorted(set(frameworks[labels == label].tolist())):
            rows = (labels == label) & (frameworks == name)
            for kind, chosen in _split(table, rows):
                _kernel_rows(found, chosen, kind, str(label), str(name) or framework, device, calibration)


def _split(table: Table, rows: NDArray[np.bool_]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Attention with one query head per KV head has constants of its own."""
    if table.kind != "attention":
        return [(table.kind, rows)]
    alone = table.numbers["hq"] == table.numbers["hkv"]
    return [
        (kind, part)
        for kind, part in (("attention", rows & ~alone), ("attention-mha", rows & alone))
        if part.any()
    ]


def _kernel_rows(
    found: Predictions,
    rows: NDArray[np.bool_],
    kind: str,
    label: str,
    framework: str | None,
    device: Device,
    calibration: Calibration,
) -> None:
    column = "kv" if kind.startswith("attention") else "dtype"
    try:
        name = "" if kind == "allreduce" else stored(label, column).format
    except InputError as error:
        found.label(rows, found.table.kind, label)
        found.refuse(rows, str(error))
        return
    found.label(rows, found.table.kind, label)
    fit = calibration.find(device, kind, name, framework)
    if fit is None:
        found.refuse(rows, f"no constants for {kind} kernels on {device.id}")
        return
    part = found.table.where(rows)
    times = _times_of(kind)(part, device, label)
    sheet = _allreduce_sheet(part, device) if kind == "allreduce" else _sheet_times(times, kind)
    found.put(rows, np.asarray(times(fit.constants).seconds), sheet, fit)


def _times_of(kind: str) -> Callable[[Table, Device, str], Times]:
    if kind.startswith("attention"):
        return attention_times
    return {"gemm": gemm_times, "moe": moe_times, "allreduce": allreduce_times}[kind]


def _sheet_times(times: Times, kind: str) -> NDArray[np.float64]:
    terms = times(_SHEET["attention" if kind.startswith("attention") else kind])
    larger: NDArray[np.float64] = np.maximum(np.asarray(terms.memory), np.asarray(terms.compute))
    return larger


def _allreduce_sheet(table: Table, device: Device) -> NDArray[np.float64]:
    """Every byte twice over the link, as scatter and gather send it, at the datasheet's rate."""
    link = device.link_bytes_per_s or device.pcie_bytes_per_s or np.nan
    gpus = table.numbers["ngpu"]
    return np.asarray(2.0 * (gpus - 1.0) / gpus * table.numbers["bytes"] / link)


def _operators(found: Predictions, device: Device, calibration: Calibration, framework: str | None) -> None:
    """Profiled operators of a layer: matrix products in 16 bit, and small kernels."""
    table = found.table
    names, inner = table.texts["op"], table.texts["k"]
    for name in sorted(set(names.tolist())):
        rows = names == name
        found.label(rows, str(name), "bf16")
        if name in _MATRIX_OPERATORS:
            _matrix_operator(found, rows, inner, device, calibration, framework)
            continue
        fit = calibration.find(device, "small", str(name))
        if fit is None or not isinstance(fit.constants, SmallConstants):
            found.refuse(rows, f"no constants for small kernels on {device.id}")
            continue
        moved = small_bytes(table.numbers["m"][rows], _elements(table, str(name), rows), str(name))
        rate = device.bandwidth_bytes_per_s
        seconds = small_seconds(moved, bandwidth_bytes_per_s=rate, constants=fit.constants).seconds
        found.put(rows, np.asarray(seconds), moved / rate, fit)


def _elements(table: Table, name: str, rows: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Elements per token of a small kernel: outputs of the product whose result it works on, else column n.

    Profiles give the hidden size in n for every small operator, whatever its width.
    """
    source = {"silu_mul": "gate_up", "rope": "qkv"}.get(name)
    elements = table.numbers["n"][rows]
    if source is None:
        return elements
    wide = {
        (str(model), float(tp)): float(n)
        for op, model, tp, n in zip(
            table.texts["op"], table.texts["model"], table.numbers["tp"], table.numbers["n"], strict=True
        )
        if op == source
    }
    share = 0.5 if source == "gate_up" else 1.0
    keys = zip(table.texts["model"][rows], table.numbers["tp"][rows], elements, strict=True)
    return np.array([share * wide.get((str(model), float(tp)), n / share) for model, tp, n in keys])


def _matrix_operator(
    found: Predictions,
    rows: NDArray[np.bool_],
    inner: NDArray[np.str_],
    device: Device,
    calibration: Calibration,
    framework: str | None,
) -> None:
    whole = [text.isascii() and text.isdigit() and len(text) < 10 for text in inner.tolist()]
    depth = np.array([float(text) if fine else np.nan for text, fine in zip(inner, whole, strict=True)])
    found.refuse(rows & ~np.isfinite(depth), "column k is no whole number")
    rows = rows & np.isfinite(depth)
    fit = calibration.find(device, "gemm", "bf16", framework)
    if fit is None or not rows.any():
        found.refuse(rows, f"no constants for gemm kernels on {device.id}")
        return
    part = found.table.where(rows)
    part = Table(
        part.file,
        "gemm",
        part.unit,
        part.gpu,
        {**part.numbers, "k": depth[rows]},
        part.texts,
        part.seconds,
        part.lines,
    )
    times = gemm_times(part, device, "bf16")
    found.put(rows, np.asarray(times(fit.constants).seconds), _sheet_times(times, "gemm"), fit)


def _widths(found: Predictions, device: Device, calibration: Calibration, framework: str | None) -> None:
    """Attention with several queries per sequence: the cache is read once, arithmetic grows with the queries."""
    for at in range(len(found.table)):
        row = np.zeros(len(found.table), dtype=bool)
        row[at] = True
        reason = _width_row(found, row, at, device, calibration, framework)
        if reason:
            found.refuse(row, reason)


def _size(column: str, text: str) -> float:
    """A head count or dimension that a column gives as text."""
    value = float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
    if value < 1.0:
        raise InputError(column, text, "must be a whole number of at least 1")
    return value


def _width_row(
    found: Predictions,
    row: NDArray[np.bool_],
    at: int,
    device: Device,
    calibration: Calibration,
    framework: str | None,
) -> str:
    table = found.table
    texts = {name: str(table.texts[name][at]) for name in ("hq", "hkv", "hd", "kv")}
    numbers = {name: float(table.numbers[name][at]) for name in ("b", "kv_len", "q_len")}
    found.label(row, "attention widths", texts["kv"])
    unsaid = [name for name in ("hq", "hkv", "hd") if texts[name] in ("", "?")]
    unsaid += [name for name, value in numbers.items() if np.isnan(value)]
    if unsaid:
        return f"the source does not say {', '.join(unsaid)}"
    try:
        heads, kv_heads = _size("hq", texts["hq"]), _size("hkv", texts["hkv"])
        key, _, value = texts["hd"].partition("/")
        dims = (_size("hd", key), _size("hd", value or key))
        kept = stored(texts["kv"], "kv")
    except InputError as error:
        return str(error)
    latent = bool(value)  # "576/512": the value is part of the one latent that is cached
    per_token = dims[0] if latent else dims[0] + dims[1]
    cache = numbers["b"] * numbers["kv_len"] * kv_heads * per_token * kept.bytes
    flops = 2.0 * numbers["b"] * numbers["q_len"] * numbers["kv_len"] * heads * (dims[0] + dims[1])
    kind = "attention-mha" if heads == kv_heads else "attention"
    fit = calibration.find(device, kind, kept.format, framework)
    if fit is None or not isinstance(fit.constants, AttentionConstants):
        return f"no constants for attention kernels on {device.id}"
    rate, _ = device.peak("bf16")

    def seconds(constants: AttentionConstants) -> tuple[float, float]:
        terms = attention_seconds(
            numbers["b"],
            kv_heads,
            cache_bytes=cache,
            flops=flops,
            flops_per_s=rate,
            bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
            constants=constants,
            l2_bytes=device.l2_bytes,
            sm_count=device.sm_count,
            replayed=True,
        )
        return float(terms.seconds), max(float(terms.memory), float(terms.compute))

    sheet = seconds(AttentionConstants(0.0, 1.0, 1.0))[1]
    found.put(row, np.array([seconds(fit.constants)[0]]), np.array([sheet]), fit)
    return ""
