"""Measured times as tables: CSV with comment lines, one header, one measurement per line.

What a file holds is recognised from its columns. A file that is no such table is refused with one InputError; a bad
row is set aside with file, row and column, and the others are kept.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from specmodel.errors import InputError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from numpy.typing import NDArray

TIMES: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "ns": 1e-9}
# Columns that make a kind, most telling first: numbers, then texts.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layer": (("batch", "context", "width"), ("layer", "dtype", "kv")),
    "pass": (("batch", "context", "width"), ("model", "weights")),
    "e2e": (("isl", "osl", "conc", "tpot_ms"), ("model",)),
    "attention widths": (("b", "kv_len", "q_len"), ("hq", "hkv", "hd", "kv")),
    "attention module": (("b", "prefix", "q_len"), ()),
    "moe": (("hidden", "inter", "topk", "experts", "m"), ("dtype",)),
    "attention": (("hq", "hkv", "b", "kv_len"), ("kv",)),
    "allreduce": (("ngpu", "bytes"), ()),
    "operators": (("n", "m"), ("op", "k")),
    "gemm": (("n", "k", "m"), ()),
}
NUMBERS = {
    "tp": 1.0,
    "ep": 1.0,
    "head_dim": 128.0,
    "ttft_ms": 0.0,
}  # optional numeric columns and their defaults
TEXTS = {"fw": "", "dtype": "bfloat16", "dist": "balanced", "impl": "", "ver": "", "gpu": "", "id": "",
         "quant": "unstated", "src": "", "kernel": "", "model": ""}  # fmt: skip
UNKNOWN = "?"
MAX_LINE_BYTES = 1 << 16
MAX_ROWS = 2_000_000
MAX_PROBLEMS = 20
FROM_ZERO = ("ep", "ttft_ms", "prefix")  # elsewhere a size is 1 or more
MAX_SHAPE = {"experts": 65536.0, "ngpu": 1e6, "tp": 1024.0, "ep": 1024.0, "bytes": 1e15}  # elsewhere 10^9
_HEAD_DIM_COMMENT = re.compile(r"\bhead_dim\s*[:=]?\s*(\d+)")
_GPU_COMMENT = re.compile(r"#.*?\bgpu\s*[:=]?\s+([A-Za-z][\w.-]*)")


@dataclass(frozen=True, slots=True)
class Table:
    """Measured times of one kind.

    Attributes
    ----------
    file, kind, unit : str
        Where it was read, a key of `KINDS`, and the unit of its time column.
    gpu : str
        The device named in a comment line, "" without one.
    numbers, texts : mapping
        Columns by name; numbers of shape columns are positive, "?" where allowed is NaN.
    seconds : ndarray
        The measured times. [s]
    lines : ndarray
        Line number of each row in the file.
    problems : tuple of str
        Rows set aside, one line each.
    comments : tuple of str
        The comment lines, without their mark.
    """

    file: str
    kind: str
    unit: str
    gpu: str
    numbers: Mapping[str, NDArray[np.float64]]
    texts: Mapping[str, NDArray[np.str_]]
    seconds: NDArray[np.float64]
    lines: NDArray[np.int64]
    problems: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, chosen: NDArray[np.bool_]) -> Table:
        """The rows of a mask."""
        return Table(
            self.file,
            self.kind,
            self.unit,
            self.gpu,
            {name: column[chosen] for name, column in self.numbers.items()},
            {name: column[chosen] for name, column in self.texts.items()},
            self.seconds[chosen],
            self.lines[chosen],
            (),
            self.comments,
        )


@dataclass(slots=True)
class _Reading:
    """What one pass over a file collects."""

    name: str
    header: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def read_table(path: str | Path | Traversable) -> Table:
    """A table of measured times.

    Raises
    ------
    InputError
        For a file that cannot be read, is empty, is no text, lacks columns, has two time columns, or has no good
        row or more than 20 bad ones. At most the first lines of what is no table are read.
    """
    source = Path(path) if isinstance(path, str) else path
    name = source.name
    try:
        with source.open("rb") as stream:
            reading = _collect(stream, name)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "file", str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    return _table(reading)


def _collect(stream: IO[bytes], name: str) -> _Reading:
    reading = _Reading(name)
    for number, line in _lines(stream, name):
        stripped = line.strip()
        if not stripped:
            continue
        if stripped.startswith("#"):
            if not reading.header:
                reading.comments.append(stripped.lstrip("# "))
            continue
        try:
            fields = next(csv.reader([stripped], strict=True))
        except csv.Error as error:
            raise InputError(f"{name}, row {number}", stripped[:60], f"is not a CSV line: {error}") from None
        fields = [entry.strip() for entry in fields]
        if not reading.header:
            reading.header = _header(fields, name, number)
        elif len(fields) != len(reading.header):
            _set_aside(
                reading, f"{name}, row {number}: {len(fields)} fields, the header has {len(reading.header)}"
            )
        else:
            reading.rows.append(fields)
            reading.lines.append(number)
            if len(reading.rows) > MAX_ROWS:
                raise InputError("file", name, f"has more than {MAX_ROWS:,} rows")
    if not reading.header:
        raise InputError("file", name, "is empty: a header line with column names is needed")
    if not reading.rows and not reading.problems:
        raise InputError("file", name, "has a header but no rows")
    return reading


def _lines(stream: IO[bytes], name: str) -> Iterator[tuple[int, str]]:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"{name}, row {number}", line[:20], f"is longer than {MAX_LINE_BYTES} bytes: no table"
            )
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{name}, row {number}", line[:20], "is no UTF-8 text") from None
        if "\0" in text:
            raise InputError(f"{name}, row {number}", text[:20], "holds a NUL: no text")
        yield number, text


def _header(fields: list[str], name: str, number: int) -> list[str]:
    doubled = sorted({entry for entry in fields if fields.count(entry) > 1})
    if doubled:
        raise InputError(f"{name}, row {number}", doubled[0], "is a column name twice")
    _kind(fields, name)
    return fields


def _kind(header: list[str], name: str) -> str:
    present = set(header)
    for kind, (numbers, texts) in KINDS.items():
        if present.issuperset(numbers) and present.issuperset(texts):
            _time_column(header, kind, name)
            return kind
    nearest = min(KINDS, key=lambda kind: len({*KINDS[kind][0], *KINDS[kind][1]} - present))
    missing = sorted({*KINDS[nearest][0], *KINDS[nearest][1]} - present)
    shown = ", ".join(header)[:60]
    raise InputError(
        f"{name}: columns",
        shown,
        f"are those of no known table; nearest is {nearest}, without {', '.join(missing)}",
    )


def _time_column(header: list[str], kind: str, name: str) -> str:
    if kind == "e2e":
        return "tpot_ms"
    found = [column for column in header if column in TIMES]
    if len(found) != 1:
        problem = "has no time column" if not found else f"has {len(found)} time columns: {', '.join(found)}"
        raise InputError(
            f"{name}: columns", ", ".join(header)[:60], f"{problem}; one of us, ms, s, ns is needed"
        )
    return found[0]


def _set_aside(reading: _Reading, problem: str) -> None:
    reading.problems.append(problem)
    if len(reading.problems) > MAX_PROBLEMS:
        raise InputError(
            "file", reading.name, f"has more than {MAX_PROBLEMS} bad rows; the first: {reading.problems[0]}"
        )


def _table(reading: _Reading) -> Table:
    kind = _kind(reading.header, reading.name)
    numeric, _ = KINDS[kind]
    time = _time_column(reading.header, kind, reading.name)
    scale = 1e-3 if kind == "e2e" else TIMES[time]
    columns: dict[str, list[float]] = {name: [] for name in (*numeric, *NUMBERS) if name != time}
    words: dict[str, list[str]] = {name: [] for name in (*KINDS[kind][1], *TEXTS)}
    seconds: list[float] = []
    lines: list[int] = []
    said = [found[1] for text in reading.comments if (found := _HEAD_DIM_COMMENT.search(text))]
    defaults = {**NUMBERS, **({"head_dim": float(said[0])} if said else {})}
    for line, fields in zip(reading.lines, reading.rows, strict=True):
        row = dict(zip(reading.header, fields, strict=True))
        try:
            measured = scale * _positive(row[time], reading.name, line, time)
            values = {name: _shape(row, name, kind, reading.name, line, defaults) for name in columns}
        except InputError as error:
            _set_aside(reading, str(error))
            continue
        seconds.append(measured)
        lines.append(line)
        for name, value in values.items():
            columns[name].append(value)
        for name in words:
            words[name].append(row.get(name, TEXTS.get(name, "")))
    if not seconds:
        raise InputError("file", reading.name, f"has no good row; the first bad one: {reading.problems[0]}")
    return Table(
        reading.name,
        kind,
        time.removeprefix("tpot_"),
        next((found[1] for text in reading.comments if (found := _GPU_COMMENT.match("# " + text))), ""),
        {name: np.array(values, dtype=float) for name, values in columns.items()},
        {name: np.array(values, dtype=np.str_) for name, values in words.items()},
        np.array(seconds),
        np.array(lines, dtype=np.int64),
        tuple(reading.problems),
        tuple(reading.comments),
    )


def _shape(
    row: Mapping[str, str], name: str, kind: str, file: str, line: int, defaults: Mapping[str, float]
) -> float:
    if name not in row:
        return defaults[name]
    if row[name] == UNKNOWN and kind == "attention widths":
        return math.nan
    value = _positive(row[name], file, line, name, zero=name in FROM_ZERO)
    least = 0.0 if name in FROM_ZERO else 1.0
    if not least <= value <= MAX_SHAPE.get(name, 1e9):
        label = f"{file}, row {line}, column {name}"
        raise InputError(label, row[name], f"must be from {least:g} to {MAX_SHAPE.get(name, 1e9):,.0f}")
    return value


def _positive(text: str, file: str, line: int, column: str, *, zero: bool = False) -> float:
    label = f"{file}, row {line}, column {column}"
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        raise InputError(label, text, "must be a number, without a unit") from None
    if not math.isfinite(value) or value < 0.0 or value > 1e15 or (value == 0.0 and not zero):
        raise InputError(label, text, f"must be a finite number {'>= 0' if zero else 'above 0'}")
    return value
