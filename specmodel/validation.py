"""Predicted against measured, row by row: `validate`.

Every row of a table of kernel times is predicted with the constants that would be used for that device, format and
framework, or listed with the reason why not; the error of a plain datasheet roofline stands beside. Tables of published
speedups: published/errors.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog
from specmodel.errors import InputError, unknown_name
from specmodel.kernel_times.constants import ENGINES, OWN_KERNELS, POOLED, Calibration
from specmodel.kernel_times.layer_rows import LABELS as LAYER_LABELS
from specmodel.kernel_times.layer_rows import LayerBreakEven, WidthRatio, layer_break_evens, width_ratios
from specmodel.kernel_times.pass_rows import LABELS as PASS_LABELS
from specmodel.kernel_times.ridges import Ridge, ridges
from specmodel.kernel_times.table_devices import by_device
from specmodel.kernel_times.table_predictions import Predictions, predict
from specmodel.kernel_times.tables import Table, read_table
from specmodel.published.errors import SpeedupErrors, SpeedupRow, validate_published
from specmodel.published.table import is_published
from specmodel.result import Result

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from numpy.typing import NDArray

    from specmodel.datasheets import Device


FRAMEWORKS = (POOLED, "sglang", "vllm", *OWN_KERNELS, *sorted({*ENGINES, *ENGINES.values()}))


@dataclass(frozen=True, slots=True)
class Errors:
    """Of predicted / measured - 1 over the rows that could be predicted; None where there are none."""

    median_abs_error: float | None
    mean_abs_error: float | None
    bias: float | None  # median of the signed error


@dataclass(frozen=True, slots=True)
class GroupErrors(Errors):
    """The same for the rows of one device, kind of kernel and format."""

    device: str
    kind: str
    format: str
    rows: int
    predicted_rows: int
    datasheet_median_abs_error: float | None
    default_rows: int  # predicted with constants of a family, not of the device


@dataclass(frozen=True, slots=True)
class FileErrors(Errors):
    """One file, or one device of a file that has several kinds of rows."""

    file: str
    kind: str
    rows: int
    predicted_rows: int
    datasheet_median_abs_error: float | None
    groups: tuple[GroupErrors, ...]


@dataclass(frozen=True, slots=True)
class ProductErrors(FileErrors):
    """A file of GEMM times: besides, the tokens from which its products are no longer bound by memory."""

    ridges: tuple[Ridge, ...]


@dataclass(frozen=True, slots=True)
class LayerErrors(FileErrors):
    """A file of whole layers or passes, plain and wide: besides times, what a verification pass costs and where it stops paying."""

    ratio_median_abs_error: float | None
    ratios: tuple[WidthRatio, ...]
    break_even: tuple[LayerBreakEven, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; `predicted` is None where `reason` says why."""

    file: str
    row: int
    id: str | None
    unit: str
    measured: float
    predicted: float | None
    low: float | None
    high: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ValidationReport(Result):
    """What `validate` found.

    Attributes
    ----------
    files : tuple of FileErrors or SpeedupErrors
        In the order given; the second for published runs.
    rows : tuple of Row or SpeedupRow, or None
        Every row, where asked for.
    problems : tuple of str
        Files refused and rows set aside, one line each.
    """

    files: tuple[FileErrors | SpeedupErrors, ...]
    rows: tuple[Row | SpeedupRow, ...] | None
    problems: tuple[str, ...]


def validate(
    files: str | Path | Sequence[str | Path | Traversable] | None = None,
    *,
    device: str | Device | None = None,
    rows: bool = False,
    framework: str | None = None,
    calibration: Calibration | None = None,
) -> ValidationReport:
    """Compare predictions with measured tables.

    Parameters
    ----------
    files : sequence of paths, optional
        CSV tables as kernel_times/tables.py reads them, or of published runs (published/table.py); the measured and the
        published set that ship when left out.
    device : str or Device, optional
        What was measured, for files that do not say.
    rows : bool
        Whether to list every row.
    framework : str, optional
        Whose constants to use for rows that name none; pooled constants by default.
    calibration : Calibration, optional
        Constants to prefer to the shipped ones.

    Raises
    ------
    InputError
        Where no file could be read, or a device is unknown: the first problem, in one line.
    """
    if isinstance(device, str):
        catalog.device(device)  # refused by name even where every file says what was measured
    if framework is not None and str(framework).casefold() not in FRAMEWORKS:
        raise unknown_name("framework", framework, FRAMEWORKS)
    if isinstance(files, (str, Path)):
        files = [files]
    problems: list[str] = []
    summaries: list[FileErrors | SpeedupErrors] = []
    listed: list[Row | SpeedupRow] = []
    first: InputError | None = None
    for file in shipped_tables() if files is None else files:
        try:
            if is_published(file):
                errors, runs, odd = validate_published(file)
                summaries.append(errors)
                listed += runs if rows else []
                problems += odd
                continue
            table = read_table(file)
            parts = list(by_device(table, device))
        except InputError as error:
            first = first or error
            problems.append(str(error))
            continue
        problems += table.problems
        found = []
        for part in parts:
            problems += [part.reason] if part.mistake else []
            found.append(predict(part, calibration or Calibration(()), framework))
        summaries.append(_summary(table, found))
        if rows:
            listed += sorted((row for one in found for row in _rows(one)), key=lambda row: row.row)
    if not summaries:
        raise first or InputError("file", "none", "give at least one table of measured times")
    return ValidationReport(tuple(summaries), tuple(listed) if rows else None, tuple(problems))


def shipped_tables() -> list[Traversable]:
    """The measured and the published set that ship with the package, each in order of name."""
    root = package_files("specmodel.hardware")
    return [
        file
        for folder in ("measured", "published")
        for file in sorted((root / folder).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".csv")
    ]


def _summary(table: Table, found: Sequence[Predictions]) -> FileErrors:
    errors = np.concatenate([one.seconds / one.measured - 1.0 for one in found])
    sheet = np.concatenate([one.datasheet / one.measured - 1.0 for one in found])
    whole = FileErrors(
        **_scores(errors),
        file=table.file,
        kind=table.kind,
        rows=len(errors),
        predicted_rows=int(np.isfinite(errors).sum()),
        datasheet_median_abs_error=_scores(sheet)["median_abs_error"],
        groups=tuple(group for one in found for group in _groups(one)),
    )
    shared = {one.name: getattr(whole, one.name) for one in fields(FileErrors)}
    if table.kind == "gemm":
        return ProductErrors(**shared, ridges=ridges(found))
    if table.kind not in ("layer", "pass"):
        return whole
    ratios = width_ratios(found, PASS_LABELS if table.kind == "pass" else LAYER_LABELS)
    off = np.array(
        [ratio.predicted / ratio.measured - 1.0 for ratio in ratios if ratio.predicted is not None]
    )
    return LayerErrors(
        **shared,
        ratio_median_abs_error=_scores(off)["median_abs_error"],
        ratios=ratios,
        break_even=layer_break_evens(ratios),
    )


def _groups(found: Predictions) -> Iterator[GroupErrors]:
    for kind, label in sorted(set(zip(found.kinds, found.formats, strict=True))):
        chosen = np.array([(k, f) == (kind, label) for k, f in zip(found.kinds, found.formats, strict=True)])
        errors = (found.seconds / found.measured - 1.0)[chosen]
        yield GroupErrors(
            **_scores(errors),
            device=found.device,
            kind=kind,
            format=label,
            rows=len(errors),
            predicted_rows=int(np.isfinite(errors).sum()),
            datasheet_median_abs_error=_scores((found.datasheet / found.measured - 1.0)[chosen])[
                "median_abs_error"
            ],
            default_rows=int(found.default[chosen].sum()),
        )


def _scores(errors: NDArray[np.float64]) -> Mapping[str, float | None]:
    known = errors[np.isfinite(errors)]
    if not len(known):
        return {"median_abs_error": None, "mean_abs_error": None, "bias": None}
    return {
        "median_abs_error": float(np.median(np.abs(known))),
        "mean_abs_error": float(np.abs(known).mean()),
        "bias": float(np.median(known)),
    }


def _rows(found: Predictions) -> Iterator[Row]:
    scale = found.unit_seconds
    for at in range(len(found.measured)):
        known = bool(np.isfinite(found.seconds[at]))
        yield Row(
            file=found.table.file,
            row=int(found.table.lines[at]),
            id=str(found.table.texts["id"][at]) or None,
            unit=found.table.unit,
            measured=float(found.measured[at] / scale),
            predicted=float(found.seconds[at] / scale) if known else None,
            low=float(found.low[at] / scale) if known else None,
            high=float(found.high[at] / scale) if known else None,
            reason=None if known else found.reasons[at],
        )
