"""Tables of billions of rounds: one Ibis expression, run by DuckDB, or by Spark on many machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from specmodel.errors import InputError
from specmodel.evidence.counts import LARGEST_K, Dropped, Evidence, Moments, Part
from specmodel.evidence.tally import from_grid

BACKENDS = ("duckdb", "spark")
CONVENTION = "table of rounds: drafted and accepted per round, bonus token not counted"
LOSS_ALLOWED = 0.01
LABELS = ("workload", "source")
POSITIONS = 32  # sums of squares are kept for this many positions


def aggregate(
    where: str | Path | Sequence[str | Path],
    *,
    backend: str = "duckdb",
    by_request: bool = True,
    lenient: bool = False,
    memory: str = "1GB",
    threads: int | None = None,
    session: Any = None,
) -> Evidence:
    """Counts of tables with columns drafted and accepted, and perhaps request, workload and source.

    Parameters
    ----------
    where : path or glob, or several, all of one kind
        Parquet, CSV or JSON lines.
    backend : "duckdb" or "spark"
    by_request : bool
        Also sum squares over requests, for intervals that know that rounds of a request resemble each other.
        It groups by request, which costs most of the time.
    lenient : bool
        Go on although more than 1 % of the rows are unusable.
    memory, threads : str, int, optional
        Limits for DuckDB; what exceeds the memory is spilled to disk.
    session : SparkSession, optional
        Instead of one in local mode.

    Returns
    -------
    Evidence
        The same counts from both backends, to the last digit.

    Raises
    ------
    InputError
        Where the extra `lake` is not installed, a file cannot be read, or a column is missing.
    """
    paths = [str(where)] if isinstance(where, str | Path) else [str(path) for path in where]
    if backend not in BACKENDS:
        raise InputError("backend", backend, f"must be one of {', '.join(BACKENDS)}")
    if not paths:
        raise InputError("evidence", None, "give at least one file or glob")
    ibis = _extra("ibis", "lake")
    connection = _duckdb(ibis, memory, threads) if backend == "duckdb" else _spark(ibis, session)
    try:
        table = _opened(connection, paths, backend)
        return _aggregate(ibis, connection, table, paths, by_request, lenient)
    finally:
        if session is None:
            connection.disconnect()


def _aggregate(
    ibis: Any, connection: Any, table: Any, paths: list[str], by_request: bool, lenient: bool
) -> Evidence:
    shown = ", ".join(paths[:3])
    columns = {name.casefold(): name for name in table.columns}
    for name in ("drafted", "accepted"):
        if name not in columns:
            raise InputError("evidence", shown, f"has no column {name!r}; it has: {', '.join(table.columns)}")
    rounds = prepared(ibis, table, columns)
    rows = _rows(connection, grid(rounds, columns))
    valid = [row for row in rows if row["drafted"] >= 0]
    total = sum(row["rounds"] for row in rows)
    lost = total - sum(row["rounds"] for row in valid)
    reason = "drafted or accepted is missing, no count, or accepted exceeds drafted"
    if not valid:
        why = f"all {total:,} rows are unusable: {reason}" if total else "holds no rows"
        raise InputError("evidence", shown, why)
    if lost > LOSS_ALLOWED * total and not lenient:
        raise InputError(
            "evidence",
            shown,
            f"{lost:,} of {total:,} rows unusable ({lost / total:.1%}, at most 1 % is allowed unless "
            f"lenient): {reason}",
        )
    moments: dict[tuple[str, ...], Moments] = {}
    if by_request and "request" in columns:
        deepest = min(max(row["drafted"] for row in valid), POSITIONS)
        moments = _moments(connection, rounds, columns, deepest)
    warnings = [f"{lost:,} of {total:,} rows dropped ({lost / total:.2%}): {reason}"] if lost else []
    return Evidence(
        parts=_parts(valid, columns, moments, shown),
        records=total,
        lost=lost,
        dropped=(Dropped(shown, 0, reason),) if lost else (),
        warnings=tuple(warnings),
        sources=tuple(paths),
    )


def prepared(ibis: Any, table: Any, columns: dict[str, str]) -> Any:
    """The needed columns as whole numbers; -1 in both counts of a row that cannot be used."""
    drafted, accepted = table[columns["drafted"]], table[columns["accepted"]]
    usable = ibis.literal(True)
    for column in (drafted, accepted):
        usable = usable & column.notnull() & (column >= 0) & (column <= LARGEST_K)
        if column.type().is_floating():
            usable = usable & ~column.isnan() & (column == column.floor())
    usable = (usable & (accepted <= drafted)).fill_null(False)
    chosen = {
        "drafted": ibis.ifelse(usable, drafted, -1).cast("int64"),
        "accepted": ibis.ifelse(usable, accepted, -1).cast("int64"),
    }
    for name in (*LABELS, "request"):
        if name in columns:
            chosen[name] = table[columns[name]]
    return table.select(**chosen)


def grid(rounds: Any, columns: dict[str, str]) -> Any:
    """Rounds by label, drafted and accepted: all that the rates need, in a few rows."""
    keys = [name for name in LABELS if name in columns]
    return rounds.group_by([*keys, "drafted", "accepted"]).agg(rounds=rounds.count())


def sums_of_squares(rounds: Any, columns: dict[str, str], positions: int) -> Any:
    """Over requests: how many, and the sums of squares of `counts.Moments`."""
    keys = [name for name in LABELS if name in columns]
    used = rounds.filter((rounds.drafted > 0) & rounds.request.notnull())
    ibis = import_module("ibis")
    last = ibis.least(used.accepted + 1, used.drafted)
    reached = {f"s{i}": (used.accepted >= i).cast("int64").sum() for i in range(1, positions + 1)}
    each = used.group_by([*keys, "request"]).agg(
        n=used.count(), t=last.sum(), a=used.accepted.sum(), **reached
    )
    pairs = {"nn": ("n", "n"), "tt": ("t", "t"), "aa": ("a", "a"), "at": ("a", "t"), "an": ("a", "n")}
    pairs |= {f"ss{i}": (f"s{i}", f"s{i}") for i in range(1, positions + 1)}
    pairs |= {f"sn{i}": (f"s{i}", "n") for i in range(1, positions + 1)}
    sums = {name: (each[x] * each[y]).sum() for name, (x, y) in pairs.items()}
    measures = {"requests": each.count(), **sums}
    return each.group_by(keys).agg(**measures) if keys else each.agg(**measures)


def _moments(
    connection: Any, rounds: Any, columns: dict[str, str], positions: int
) -> dict[tuple[str, ...], Moments]:
    keys = [name for name in LABELS if name in columns]
    found = {}
    for row in _rows(connection, sums_of_squares(rounds, columns, positions)):
        if row["requests"] >= 2:
            found[tuple(_label(row[key]) for key in keys)] = Moments(
                requests=int(row["requests"]),
                nn=float(row["nn"]),
                tt=float(row["tt"]),
                aa=float(row["aa"]),
                at=float(row["at"]),
                an=float(row["an"]),
                ss=tuple(float(row[f"ss{i}"]) for i in range(1, positions + 1)),
                sn=tuple(float(row[f"sn{i}"]) for i in range(1, positions + 1)),
            )
    return found


def _parts(
    rows: list[dict[str, Any]], columns: dict[str, str], moments: dict[tuple[str, ...], Moments], shown: str
) -> tuple[Part, ...]:
    keys = [name for name in LABELS if name in columns]
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(tuple(_label(row[key]) for key in keys), []).append(row)
    parts = []
    for group, members in sorted(grouped.items()):
        size = max(row["drafted"] for row in members) + 1
        table = np.zeros((size, size), dtype=np.int64)
        for row in members:
            table[row["drafted"], row["accepted"]] += row["rounds"]
        labels = {"source": shown, **{key: value for key, value in zip(keys, group, strict=True) if value}}
        part = from_grid(table, labels, CONVENTION, None)
        known = moments.get(group)
        if known is not None:
            part = replace(part, moments=known)
        parts.append(part)
    return tuple(parts)


def _label(value: Any) -> str:
    return "" if value is None or value != value else str(value)


def _rows(connection: Any, expression: Any) -> list[dict[str, Any]]:
    """The result as plain dicts; wide sums come as decimals and become int, so no count is rounded."""
    try:
        if connection.name == "pyspark":
            found = [
                row.asDict() for row in connection._session.sql(str(connection.compile(expression))).collect()
            ]
        else:
            found = expression.to_pyarrow().to_pylist()
    except (
        Exception
    ) as error:  # of whatever kind the engine raises: damaged pages, columns of different types
        raise InputError(
            "evidence", connection.name, f"could not read all rows: {_first_line(error)}"
        ) from None
    return [{key: int(v) if isinstance(v, Decimal) else v for key, v in row.items()} for row in found]


def _duckdb(ibis: Any, memory: str, threads: int | None) -> Any:
    _extra("duckdb", "lake")
    options: dict[str, Any] = {"memory_limit": memory, "preserve_insertion_order": False}
    if threads is not None:
        options["threads"] = threads
    return ibis.duckdb.connect(**options)


def _spark(ibis: Any, session: Any) -> Any:
    sql = _extra("pyspark.sql", "lake (with pyspark)")
    if session is None:
        try:
            builder = sql.SparkSession.builder.master("local[*]").appName("specmodel")
            for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
                builder = builder.config(key, "false")
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
        except Exception as error:
            first = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise InputError(
                "backend", "spark", f"Spark did not start (is Java installed?): {first}"
            ) from None
    return ibis.pyspark.connect(session)


def _opened(connection: Any, paths: list[str], backend: str) -> Any:
    kind = _kind(paths)
    try:
        if backend == "duckdb":
            if kind == "parquet":
                return connection.read_parquet(paths)
            if kind == "csv":
                return connection.read_csv(paths, ignore_errors=True)
            return connection.read_json(paths, format="newline_delimited", ignore_errors=True)
        reader = connection._session.read
        if kind == "parquet":
            frame = reader.parquet(*paths)
        elif kind == "csv":
            frame = reader.option("header", True).option("inferSchema", True).csv(paths)
        else:
            frame = reader.json(paths)
        frame.createOrReplaceTempView("specmodel_rounds")
        return connection.table("specmodel_rounds")
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "evidence", ", ".join(paths[:3]), f"cannot be read as {kind}: {_first_line(error)}"
        ) from None


def _first_line(error: Exception) -> str:
    """What went wrong, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:160] if lines else type(error).__name__


def _kind(paths: list[str]) -> Literal["parquet", "csv", "json"]:
    """By the first bytes of the first file; by its ending where it lies in an object store."""
    names = sorted(glob(paths[0], recursive=True)) if any(c in paths[0] for c in "*?[") else [paths[0]]
    files = [n for name in names for n in ([name] if Path(name).is_file() else sorted(glob(f"{name}/*.*")))]
    remote = "://" in paths[0]
    if not files and not remote:
        raise InputError("evidence", paths[0], "no such file")
    if remote:
        ending = paths[0].casefold()
        return "parquet" if "parquet" in ending else "csv" if ".csv" in ending else "json"
    with open(files[0], "rb") as file:
        start = file.read(64)
    if start.startswith(b"PAR1"):
        return "parquet"
    return (
        "json"
        if start.lstrip().startswith(b"{") or (start.startswith(b"\x1f\x8b") and ".json" in files[0])
        else "csv"
    )


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError("backend", module, f"is not installed; pip install 'specmodel[{extra}]'") from None
