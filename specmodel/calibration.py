"""Measured times -> constants with errors: `calibrate`.

Per device, kind of kernel, number format and framework, and pooled over frameworks. How: fitting.py. The result is a
Calibration that other commands take with `--calibration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog
from specmodel.errors import InputError
from specmodel.kernel_times.constants import POOLED, Calibration, Fit
from specmodel.kernel_times.fitting import Sample, fit
from specmodel.kernel_times.table_devices import by_device
from specmodel.kernel_times.table_times import (
    allreduce_times,
    attention_times,
    gemm_times,
    moe_times,
    states_sizes,
    stored,
    width_times,
)
from specmodel.kernel_times.tables import Table, read_table

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from numpy.typing import NDArray

    from specmodel.datasheets import Device

CALIBRATED_KINDS = ("gemm", "attention", "attention widths", "moe", "allreduce", "e2e")
FEWEST_ROWS = 8
# A pool leaves out kernels that reach less than this share of the best one's bandwidth: an unknown framework is
# taken to run tuned kernels.
_POOL_FROM = 0.8
# Measured on multi-head latent attention, the only kernels here that are bound by arithmetic (FlashAttention and
# FlashMLA on Hopper, 0.3-0.5 of the peak; vllm pull request 27363, achatbot pull request 123).
ATTENTION_FLOPS_SHARE = 0.5
# Tokens that one register tile of BLAS's float32 product holds (AVX2); `hardware/kernels/cpu.py` pads to it.
CPU_TILE = 8.0


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What `calibrate` found.

    Attributes
    ----------
    calibration : Calibration
        The fits; `to_toml` writes them.
    problems : tuple of str
        Files refused, rows set aside, and groups too small to fit, one line each.
    """

    calibration: Calibration
    problems: tuple[str, ...]


def calibrate(
    files: str | Path | Sequence[str | Path | Traversable], device: str | Device | None = None
) -> CalibrationReport:
    """Fit constants to tables of measured kernel times.

    Parameters
    ----------
    files : sequence of paths
        CSV tables as kernel_times/tables.py reads them: GEMM, decode attention, experts, all-reduce.
    device : str or Device, optional
        What was measured, for files that do not say.

    Raises
    ------
    InputError
        Where no file holds rows to fit, or a device is unknown: the first problem, in one line.
    """
    if isinstance(device, str):
        catalog.device(device)  # refused by name even where every file says what was measured
    if isinstance(files, (str, Path)):
        files = [files]
    problems: list[str] = []
    groups: dict[tuple[str, str], tuple[Device, list[Table]]] = {}
    first: InputError | None = None
    for file in files:
        try:
            table = read_table(file)
            if table.kind not in CALIBRATED_KINDS:
                raise InputError(
                    "file", table.file, f"holds {table.kind} times, which no constants are fitted to"
                )
            problems += table.problems
            for part in by_device(table, device):
                if part.device is None:
                    problems.append(part.reason)
                else:
                    groups.setdefault((part.device.id, table.kind), (part.device, []))[1].append(part.table)
        except InputError as error:
            first = first or error
            problems.append(str(error))
    fits: list[Fit] = []
    # Serving runs last: what is left of them beside the kernels is timed with the constants just fitted.
    for (_, kind), (machine, tables) in sorted(groups.items(), key=lambda entry: entry[0][1] == "e2e"):
        table = joined(tables)
        if kind == "e2e":
            fits += _wait(machine, table, Calibration(tuple(fits)), problems)
        else:
            fits += _fits_of(machine, table, problems)
    if not fits:
        raise first or InputError(
            "file", [str(file) for file in files], f"no group of {FEWEST_ROWS} rows to fit"
        )
    return CalibrationReport(Calibration(tuple(fits)), tuple(problems))


def _wait(device: Device, table: Table, calibration: Calibration, problems: list[str]) -> Iterator[Fit]:
    """The wait around all-reduces, from serving runs on several GPUs."""
    from specmodel.kernel_times.serving import fit_wait

    found = fit_wait(table, device, calibration, _source(table, POOLED))
    if found is None:
        problems.append(
            f"{table.file}: too few runs on several GPUs, with several output lengths, to fit the wait"
        )
    else:
        yield found


def joined(tables: Sequence[Table]) -> Table:
    """Tables of one kind as one."""
    first = tables[0]
    if len(tables) == 1:
        return first
    return Table(
        " + ".join(dict.fromkeys(table.file for table in tables)),
        first.kind,
        first.unit,
        first.gpu,
        {name: np.concatenate([table.numbers[name] for table in tables]) for name in first.numbers},
        {name: np.concatenate([table.texts[name] for table in tables]) for name in first.texts},
        np.concatenate([table.seconds for table in tables]),
        np.concatenate([table.lines for table in tables]),
        (),
        tuple(text for table in tables for text in table.comments),
    )


def _fits_of(device: Device, table: Table, problems: list[str]) -> Iterator[Fit]:
    """One fit per kind, format and framework, and one pooled over frameworks."""
    if table.kind == "attention widths":
        table = table.where(states_sizes(table))
    for kind, format_label, rows in _formats(table):
        try:
            name = stored(format_label, _format_column(table)).format if format_label else ""
        except InputError as error:
            problems.append(f"{table.file}: {error}")
            continue
        own: list[tuple[str, Fit]] = []
        for framework in sorted(set(_framework_column(rows)) - {""}):
            part = rows.where(_framework_column(rows) == framework)
            if len(part) < FEWEST_ROWS:
                problems.append(
                    f"{table.file}: {kind} {name} {framework}: {len(part)} rows are too few to fit"
                )
                continue
            own.append((framework, _fit_one(device, kind, name, format_label, framework, part)))
        yield from (entry for _, entry in own)
        pooled = rows.where(np.isin(_framework_column(rows), ["", *_pool(kind, own)]))
        # Which kernel runs with one query head per KV head is each framework's choice: unknown ones get the pool of
        # grouped heads.
        grouped = kind == "attention-mha" and np.any(_queries_heads(table) != _kv_heads(table))
        if len(pooled) >= FEWEST_ROWS and not grouped:
            yield _fit_one(device, kind, name, format_label, POOLED, pooled)


def _pool(kind: str, fits: Iterable[tuple[str, Fit]]) -> list[str]:
    """Frameworks whose rows go into the pool."""
    named = list(fits)
    if kind == "allreduce":
        return [name for name, _ in named if name.endswith("_graph")] or [name for name, _ in named]
    shares = {name: float(getattr(entry.constants, "bandwidth_share", 1.0)) for name, entry in named}
    return [name for name, share in shares.items() if share >= _POOL_FROM * max(shares.values())]


def _fit_one(device: Device, kind: str, name: str, label: str, framework: str, rows: Table) -> Fit:
    sample = sample_of(device, kind, label, rows, eager=framework.endswith("_eager"))
    return fit(
        sample, device=device.id, format_name=name, framework=framework, source=_source(rows, framework)
    )


def sample_of(device: Device, kind: str, label: str, rows: Table, *, eager: bool = False) -> Sample:
    """The rows of one format as something to fit; groups are what a leave-out score leaves out together."""
    numbers = rows.numbers
    if kind == "gemm":
        kept = stored(label)
        weight_only = kept.rate == "bf16" and kept.format not in ("bf16", "fp16", "fp32")
        one_after_another = weight_only or device.architecture == "cpu"
        settled = {"overlap": 1.0 if one_after_another else 2.0}
        if device.architecture == "cpu" and kept.format == "fp32":
            settled["tile"] = CPU_TILE
        if kept.rate == "bf16":
            settled["quantise"] = 0.0
        times = gemm_times(rows, device, label)
        groups = _group(numbers["n"], numbers["k"])
    elif rows.kind == "attention widths":
        settled = {"warm_speed": 1.0, "wave": 0.0}
        times = width_times(rows, device, label)
        groups = _group(numbers["b"], numbers["kv_len"])
    elif kind.startswith("attention"):
        settled = {"flops_share": ATTENTION_FLOPS_SHARE}
        times = attention_times(rows, device, label)
        groups = _group(numbers["hq"], numbers["hkv"])
    elif kind == "moe":
        settled = {}
        times = moe_times(rows, device, label)
        groups = _group(numbers["hidden"], numbers["inter"], numbers["experts"])
        if len(np.unique(groups)) < 2:
            groups = _group(numbers["tp"])
    else:
        settled = {"congestion": 1.0, "overlap": 2.0 if eager else 1.0}
        times = allreduce_times(rows, device, label)
        groups = _group(numbers["ngpu"])
    return Sample(kind, times, rows.seconds, groups, settled)


def _formats(table: Table) -> Iterator[tuple[str, str, Table]]:
    if table.kind == "allreduce":
        yield "allreduce", "", table
        return
    labels = table.texts[_format_column(table)]
    for label in sorted(set(labels)):
        rows = table.where(labels == label)
        if not table.kind.startswith("attention"):
            yield table.kind, str(label), rows
            continue
        alone = _queries_heads(rows) == _kv_heads(rows)
        for kind, chosen in (("attention", ~alone), ("attention-mha", alone)):
            if chosen.any():
                yield kind, str(label), rows.where(chosen)


def _format_column(table: Table) -> str:
    return "kv" if table.kind.startswith("attention") else "dtype"


def _queries_heads(table: Table) -> NDArray[np.float64]:
    return table.numbers["hq"] if "hq" in table.numbers else table.texts["hq"].astype(float)


def _kv_heads(table: Table) -> NDArray[np.float64]:
    return table.numbers["hkv"] if "hkv" in table.numbers else table.texts["hkv"].astype(float)


def _framework_column(table: Table) -> NDArray[np.str_]:
    return table.texts["impl" if table.kind == "allreduce" else "fw"]


def _group(*columns: NDArray[np.float64]) -> NDArray[np.int64]:
    """A number per distinct combination of values."""
    _, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.asarray(inverse, dtype=np.int64).reshape(-1)


def _source(rows: Table, framework: str) -> str:
    """File, and the framework's version where the file says it."""
    versions = sorted({str(version) for version in rows.texts["ver"] if version})
    if not versions:
        words = " ".join(rows.comments).replace(",", " ").replace(";", " ").split()
        versions = [words[at + 1] for at, word in enumerate(words[:-1]) if word == framework][:1]
    said = f", {framework} {' '.join(versions)}" if versions and framework != POOLED else ""
    return f"{rows.file}{said}"
