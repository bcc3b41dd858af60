"""Read acceptance from files and streams, whatever the engine wrote; contents decide, not names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from specmodel.errors import InputError
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import LARGEST_K, Evidence
from specmodel.evidence.records import RecordReader
from specmodel.evidence.stream import HEAD_BYTES, Progress, Source
from specmodel.evidence.tables import CsvReader, delimiter
from specmodel.evidence.textlog import TextReader

Where = str | Path | BinaryIO
Backend = Literal["duckdb", "spark"]


def read(
    where: Where | Sequence[Where],
    *,
    k: int | None = None,
    convention: str | None = None,
    lenient: bool = False,
    separate: bool = False,
    backend: str | None = None,
    progress: Progress | None = None,
) -> Evidence:
    """Counts per position from engine logs, metrics, benchmark files, answer files and tables of rounds.

    Parameters
    ----------
    where : path, "-" for standard input, binary stream, or a sequence of them
        gzip is unpacked. Metrics of the same server in several scrapes are differenced.
    k : int, optional
        Draft tokens per round, for sources that do not say it.
    convention : {"survival", "conditional"}, optional
        What a list of rates is, for sources that do not say it.
    lenient : bool
        Go on although more than 1 % of the records had to be dropped.
    separate : bool
        Metrics files are of different servers: add them instead of differencing them.
    backend : {"duckdb", "spark"}, optional
        Aggregate tables of rounds (Parquet, CSV, JSON lines, globs) out of memory; see `lake`.
        Parquet files take "duckdb" by themselves.
    progress : callable(bytes_done, bytes_in_all or None), optional

    Raises
    ------
    InputError
        For a file that cannot be read or holds no acceptance, and where too much was lost.
    """
    if k is not None and not (isinstance(k, int) and 1 <= k <= LARGEST_K):
        raise InputError("k", k, f"must be a whole number from 1 to {LARGEST_K}")
    if convention not in (None, "survival", "conditional"):
        raise InputError("convention", convention, "must be 'survival' or 'conditional'")
    found: list[Where] = list(where) if isinstance(where, list | tuple) else [where]  # type: ignore[list-item]
    if not found:
        raise InputError("evidence", None, "give at least one file, or '-' for standard input")
    if backend is not None:
        from specmodel.evidence import lake

        return lake.aggregate([str(path) for path in found], backend=backend, lenient=lenient)
    collector = Collector(k, convention)
    text, records = TextReader(collector, separate), RecordReader(collector)
    tables: list[str] = []
    for one in found:
        with Source(one, progress) as source:
            collector.sources.append(source.name)
            if source.parquet:
                tables.append(source.name)
                continue
            _read_one(source, collector, text, records)
            if source.broken:
                collector.bad(source.name, 0, source.broken)
    if tables:
        if len(tables) < len(found):
            raise InputError("evidence", tables[0], "Parquet cannot be mixed with other files; read it alone")
        from specmodel.evidence import lake

        return lake.aggregate(tables, backend="duckdb", lenient=lenient)
    text.finish()
    records.finish()
    return collector.evidence(lenient)


def _read_one(source: Source, collector: Collector, text: TextReader, records: RecordReader) -> None:
    kind = sniff(source.head)
    if kind == "document":
        records.document(source)
    elif kind == "lines":
        records.lines(source)
    elif kind == "csv":
        CsvReader(_first_line(source.head), source.name).read(source, collector)
    else:
        before = collector.records
        text.read(source)
        if collector.records == before:
            what = "no line that any engine prints about acceptance"
            if kind == "table":
                header = _first_line(source.head)[:80]
                what = f"a table without columns 'drafted' and 'accepted'; its header: {header}"
            collector.nothing(f"{source.name}: {what}")


def _first_line(head: str) -> str:
    return next((line for line in head.splitlines() if line.strip()), "")


def sniff(head: str) -> Literal["document", "lines", "csv", "table", "text"]:
    """What a text is, from its beginning; "csv" is a table of rounds, "table" another one."""
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    if not lines:
        return "text"
    if lines[0].startswith("{"):
        whole = [line for line in lines[:3] if line.startswith("{") and _parses(line)]
        cut = len(head) >= HEAD_BYTES // 2 and len(lines) == 1  # one line longer than the head
        if whole or (len(lines) > 1 and all(line.startswith("{") for line in lines[:3])) or cut:
            return "lines"
        return "document"
    if lines[0].startswith("[") and (len(lines[0]) == 1 or lines[0][1:].lstrip()[:1] in ("{", "]")):
        return "document"
    if sum(line.startswith("{") for line in lines) * 2 > len(lines):  # JSON lines with a damaged first one
        return "lines"
    columns = [field.strip().strip('"').casefold() for field in lines[0].split(delimiter(lines[0]))]
    if {"drafted", "accepted"} <= set(columns):
        return "csv"
    same = [len(line.split(delimiter(lines[0]))) == len(columns) for line in lines[1:6]]
    named = all(re.fullmatch(r"[\w.\-/]+( [\w.\-/]+)?", column) for column in columns)
    return "table" if len(columns) > 1 and same and all(same) and named else "text"


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
