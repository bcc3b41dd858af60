"""Published speculative-decoding results as rows: one setting each, with what was accepted and what was gained.

A CSV with the columns below; only target, GPU and speedup must be there. Empty fields are unknown. A row whose numbers
cannot be read is kept with the reason, so that it is listed and not lost.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specmodel.errors import InputError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

NEEDED = ("target_model", "gpu", "speedup")
TEXTS = (
    "id",
    "source",
    "target_model",
    "draft",
    "method",
    "gpu",
    "engine",
    "dtype",
    "kv_dtype",
    "dataset",
    "note",
)
NUMBERS: Mapping[str, tuple[float, float]] = {
    "num_gpus": (1, 1024),
    "batch": (1, 1e6),
    "context": (0, 1e8),
    "k": (1, 256),
    "tree_nodes": (1, 1e5),
    "accept_rate": (0, 1e3),
    "accept_len": (0, 1e3),
    "speedup": (0, 1e4),
}
WHOLE = ("num_gpus", "k", "tree_nodes")
MAX_BYTES = 64 << 20
_LENGTHS = (
    re.compile(r"mean prompt ([\d.]+)[^;]*?mean output ([\d.]+)"),
    re.compile(r"isl\s*[=/:]?\s*(\d+)\D{1,20}osl\s*[=/:]?\s*(\d+)", re.IGNORECASE),
    re.compile(
        r"(\d+)\s*(?:input|prompt)[^;]{0,20}?(\d+)\s*(?:output|generated)[^;]*includes prefill", re.IGNORECASE
    ),
)


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One row. Numbers are None where the table does not give them; `faults` says which could not be read."""

    row: int
    texts: Mapping[str, str]
    numbers: Mapping[str, float | None]
    faults: tuple[str, ...] = ()

    def text(self, column: str) -> str:
        """A text column, "" where the table lacks it."""
        return self.texts.get(column, "")

    def number(self, column: str) -> float | None:
        """A numeric column, None where it is empty."""
        return self.numbers.get(column)

    def count(self, column: str) -> int | None:
        """The same as a whole number."""
        found = self.number(column)
        return None if found is None else round(found)

    def tag(self, name: str) -> str | None:
        """What follows `name=` among the tags of the note."""
        found = re.search(rf"(?:^|;\s*){re.escape(name)}\s*=\s*([^;]*)", self.text("note"))
        return found[1].strip() if found else None

    @property
    def scored(self) -> bool:
        """Whether its source is complete enough to score a prediction on: tier A where tiers are given, not suspect."""
        return self.tag("tier") in (None, "A") and "SUSPECT" not in self.text("note")

    @property
    def lengths(self) -> tuple[float, float] | None:
        """Mean tokens of prompt and answer, where the note gives them for a rate over whole requests."""
        for pattern in _LENGTHS:
            found = pattern.search(self.text("note"))
            if found and float(found[2]) > 0.0:
                return float(found[1]), float(found[2])
        return None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A file of published runs."""

    file: str
    runs: tuple[PublishedRun, ...]
    problems: tuple[str, ...]


def is_published(path: str | Path | Traversable) -> bool:
    """Whether a file looks like published runs; only its header is read."""
    source = Path(path) if isinstance(path, str) else path
    if not source.is_file():  # a pipe is read once: published runs are given as a file
        return False
    try:
        with source.open("r", encoding="utf-8-sig") as stream:
            for _ in range(200):
                line = stream.readline(1 << 16)
                if line.strip() and not line.startswith("#"):
                    fields = next(csv.reader([line]), [])
                    return set(NEEDED) <= {field.strip() for field in fields}
    except (OSError, ValueError, csv.Error):
        pass
    return False


def read_published(path: str | Path | Traversable) -> PublishedTable:
    """The rows of a file.

    Raises
    ------
    InputError
        For a file that cannot be read, is too large, lacks a needed column or holds no row.
    """
    source = Path(path) if isinstance(path, str) else path
    try:
        with source.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError("file", str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise InputError("file", source.name, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("file", source.name, "is no UTF-8 text") from None
    return _table(source.name, text.splitlines())


def _table(name: str, lines: Iterable[str]) -> PublishedTable:
    header: list[str] = []
    runs: list[PublishedRun] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            fields = [field.strip() for field in next(csv.reader([line], strict=True))]
        except csv.Error as error:
            problems.append(f"{name}, row {number}: is not a CSV line: {error}")
            continue
        if not header:
            header = _header(fields, name)
        elif len(fields) != len(header):
            problems.append(f"{name}, row {number}: {len(fields)} fields, the header has {len(header)}")
        else:
            runs.append(_run(number, dict(zip(header, fields, strict=True))))
    if not header:
        raise InputError("file", name, "is empty: a header line with column names is needed")
    if not runs:
        raise InputError("file", name, problems[0] if problems else "has a header but no rows")
    return PublishedTable(name, tuple(runs), tuple(problems))


def _header(fields: list[str], name: str) -> list[str]:
    missing = [column for column in NEEDED if column not in fields]
    if missing:
        raise InputError(f"{name}: columns", ", ".join(fields)[:60], f"lack {', '.join(missing)}")
    doubled = sorted({field for field in fields if field and fields.count(field) > 1})
    if doubled:
        raise InputError(f"{name}: columns", doubled[0], "is a column name twice")
    return fields


def _run(number: int, row: Mapping[str, str]) -> PublishedRun:
    values: dict[str, float | None] = {}
    faults: list[str] = []
    for column, (low, high) in NUMBERS.items():
        text = row.get(column, "")
        values[column] = None
        if not text:
            continue
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (column in WHOLE and value != int(value)):
            faults.append(f"{column} = {text[:40]!r}: must be a number from {low:g} to {high:g}")
            continue
        values[column] = value
    return PublishedRun(number, {column: row.get(column, "") for column in TEXTS}, values, tuple(faults))
