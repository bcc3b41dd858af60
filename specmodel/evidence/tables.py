"""Plain tables of rounds, as CSV or JSON lines, and vectors of rates; rounds are folded in by the block."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmodel.errors import InputError
from specmodel.evidence.checks import UnusableError, rates, survival_rates, whole
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import LARGEST_K, Part
from specmodel.evidence.stream import Block, Source

ROUNDS = "table of rounds: drafted and accepted per round, bonus token not counted"
VECTORS = ("survival", "conditional", "per_position", "acceptance_per_position", "acceptance_rates")

Ints = NDArray[np.int64]


def add_records(
    records: Sequence[Mapping[str, Any]], lines: Sequence[int], name: str, collector: Collector
) -> None:
    """Rounds as objects with drafted, accepted and perhaps request, workload and source.

    Raises
    ------
    KeyError
        If one of them lacks `drafted` or `accepted`.
    """
    add_rounds(
        [record["drafted"] for record in records],
        [record["accepted"] for record in records],
        [record.get("request") for record in records],
        [record.get("workload") for record in records],
        [record.get("source") for record in records],
        lines,
        name,
        collector,
    )


def add_rounds(
    drafted: Sequence[Any],
    accepted: Sequence[Any],
    requests: Sequence[Any],
    workloads: Sequence[Any],
    sources: Sequence[Any],
    lines: Sequence[int],
    name: str,
    collector: Collector,
) -> None:
    """Check a block of rounds and fold it in; columns have equal length, and None where a value is absent."""
    d, reasons = _counts(drafted, "drafted")
    a, more = _counts(accepted, "accepted")
    reasons.update({at: why for at, why in more.items() if at not in reasons})
    for at in np.flatnonzero((a > d) | (d > LARGEST_K)).tolist():
        reasons.setdefault(
            at,
            f"accepted {a[at]} exceeds drafted {d[at]}" if a[at] > d[at] else f"drafted {d[at]} in one round",
        )
    for at in sorted(reasons):
        collector.bad(name, lines[at], reasons[at])
    ok = np.ones(d.size, dtype=bool)
    ok[list(reasons)] = False
    collector.good(int(ok.sum()))
    if not ok.any():
        return
    labels = [_label(w, s) for w, s in zip(workloads, sources, strict=True)]
    groups = set(labels) if len(labels) else set()
    named = np.array([request is not None and request != "" for request in requests], dtype=bool)
    for group in sorted(groups, key=str):
        here = ok if len(groups) == 1 else ok & np.array([label == group for label in labels], dtype=bool)
        workload, source = group
        own = {"source": source or name, **({"workload": workload} if workload else {})}
        for with_name in (True, False):
            use = np.flatnonzero(here & (named if with_name else ~named))
            if not use.size:
                continue
            _note_mixed(d[use], use, lines, name, own, collector)
            names = [str(requests[at]) for at in use.tolist()] if with_name else None
            collector.tally(own, ROUNDS, with_name).add(d[use], a[use], names)


def _note_mixed(
    d: Ints, use: Ints, lines: Sequence[int], name: str, own: dict[str, str], collector: Collector
) -> None:
    """Say where the draft length first changed."""
    key = tuple(sorted(own.items()))
    first = collector.first_k.setdefault(key, int(d[0]))
    if first >= 0 and (d != first).any():
        at = int(np.argmax(d != first))
        collector.warn(f"{name}:{lines[int(use[at])]}: drafted changes from {first} to {d[at]}: mixed k")
        collector.first_k[key] = -1


def _label(workload: Any, source: Any) -> tuple[str, str]:
    return ("" if workload is None else str(workload), "" if source is None else str(source))


def _counts(values: Sequence[Any], name: str) -> tuple[Ints, dict[int, str]]:
    """A column as whole numbers (0 where unusable), and the reasons by index."""
    reasons: dict[int, str] = {}
    try:
        column = np.asarray(values)
    except (ValueError, OverflowError):  # lists among the numbers
        column = np.empty(0, dtype=object)
    if bool in set(map(type, values)):  # NumPy would count true as 1
        column = np.empty(0, dtype=object)
    if column.shape != (len(values),):  # equally long lists among the numbers
        column = np.empty(0, dtype=object)
    if column.dtype.kind == "i":
        result = column.astype(np.int64)
        for at in np.flatnonzero(result < 0).tolist():
            reasons[at] = f"{name} is {values[at]}, not a count"
        result[result < 0] = 0
        return result, reasons
    result = np.zeros(len(values), dtype=np.int64)
    if column.dtype.kind == "f":
        good = np.isfinite(column) & (column >= 0) & (column == np.floor(column)) & (column < 2**53)
        result[good] = column[good].astype(np.int64)
        for at in np.flatnonzero(~good).tolist():
            reasons[at] = f"{name} is {values[at]}, not a count"
        return result, reasons
    for at, value in enumerate(values):
        try:
            result[at] = min(whole(value, name), 2**53)
        except UnusableError as error:
            reasons[at] = str(error)
    return result, reasons


class CsvReader:
    """A CSV with a header line that names drafted and accepted; other columns: request, workload, source."""

    def __init__(self, header: str, name: str) -> None:
        self.delimiter = delimiter(header)
        self.columns = [field.strip().strip('"').casefold() for field in header.split(self.delimiter)]
        self.name = name

    def read(self, source: Source, collector: Collector) -> None:
        """Go through the source."""
        head_seen = False
        for block in source.blocks():
            lines = [(n, text) for n, text in enumerate(block.lines, start=block.first) if text.strip()]
            if not head_seen and lines:
                head_seen = True
                lines = lines[1:]
            self._block(lines, collector)

    def _block(self, lines: list[tuple[int, str]], collector: Collector) -> None:
        width = len(self.columns)
        rows, numbers = [], []
        for number, text in lines:
            fields = (
                next(csv.reader([text], delimiter=self.delimiter))
                if '"' in text
                else text.split(self.delimiter)
            )
            if len(fields) != width:
                collector.bad(self.name, number, f"{len(fields)} fields, the header has {width}")
                continue
            rows.append(fields)
            numbers.append(number)
        if not rows:
            return
        table = dict(zip(self.columns, zip(*rows, strict=True), strict=True))
        nothing = (None,) * len(rows)
        add_rounds(
            _numbers(table["drafted"]),
            _numbers(table["accepted"]),
            table.get("request", nothing),
            table.get("workload", nothing),
            table.get("source", nothing),
            numbers,
            self.name,
            collector,
        )


def delimiter(header: str) -> str:
    """The separator of a header line: comma, semicolon or tab, whichever occurs most."""
    return max(",;\t", key=header.count)


def _numbers(texts: Sequence[str]) -> list[Any]:
    """Texts as numbers; a text that is none stays what it is, so that the check can name it."""
    try:
        return list(np.array(texts).astype(np.int64).tolist())
    except (ValueError, OverflowError):
        pass
    found: list[Any] = []
    for text in texts:
        try:
            found.append(float(text))
        except ValueError:
            found.append(text)
    return found


def vector_name(record: Mapping[str, Any]) -> str | None:
    """The key under which a record holds a list of rates per position."""
    return next((name for name in VECTORS if isinstance(record.get(name), list)), None)


def vector_part(record: Mapping[str, Any], name: str, source: str, line: int, collector: Collector) -> Part:
    """Counts from rates per position and, if given, `rounds`.

    A list called "survival" or "conditional" says what it is; any other needs `convention`.

    Raises
    ------
    InputError
        Where nothing tells which of the two a list is.
    """
    convention = name if name in ("survival", "conditional") else collector.convention
    if convention not in ("survival", "conditional"):
        raise InputError(
            "convention",
            convention,
            f"{source}:{line} holds {name!r}, which does not say whether it is 'survival' (share of all "
            "rounds) or "
            "'conditional' (given the position before); name one of the two",
        )
    if convention == "conditional":
        shares, reached = [], 1.0
        for rate in rates(record[name], name):
            reached *= rate
            shares.append(reached)
    else:
        shares = survival_rates(record[name], name)
    if not shares:
        raise UnusableError(f"{name} is empty")
    given = record.get("rounds")
    rounds = 1.0 if given is None else float(whole(given, "rounds"))
    survived = tuple(rounds * share for share in shares)
    labels = {"source": source}
    if isinstance(record.get("workload"), str):
        labels["workload"] = record["workload"]
    if isinstance(record.get("method"), str):
        labels["method"] = record["method"]
    return Part(
        labels=labels,
        convention=f"{convention} rates per position",
        rounds=rounds,
        accepted=math.fsum(survived),
        drafted=rounds * len(shares),
        k=len(shares),
        k_min=len(shares),
        tested=(rounds, *survived[:-1]),
        survived=survived,
        counted=given is not None,
    )


def block_lines(block: Block) -> tuple[list[str], list[int]]:
    """Lines that are not blank, and their numbers."""
    lines, numbers = [], []
    for number, text in enumerate(block.lines, start=block.first):
        stripped = text.strip()
        if stripped:
            lines.append(stripped)
            numbers.append(number)
    return lines, numbers
