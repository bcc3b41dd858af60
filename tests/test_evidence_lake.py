"""Tables past one file: DuckDB and Spark give the counts that reading the file gives, to the last digit."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmodel.errors import InputError
from specmodel.evidence import Evidence, aggregate, alpha, read
from specmodel.evidence.counts import pooled

HAS_LAKE = all(importlib.util.find_spec(name) for name in ("ibis", "duckdb"))
HAS_SPARK = HAS_LAKE and importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None
needs_lake = pytest.mark.skipif(
    not HAS_LAKE, reason="the extra 'lake' (ibis-framework with DuckDB) is not installed"
)
needs_spark = pytest.mark.skipif(not HAS_SPARK, reason="PySpark or Java is not installed")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Warnings of other people's packages are not ours to fail on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Eight thousand rounds of two workloads, mixed draft lengths, and 0.5 % damage."""
    rng = np.random.default_rng(8)
    found: list[dict[str, Any]] = []
    for i in range(8000):
        drafted = int(rng.integers(1, 6))
        accepted = min(int(rng.integers(0, 6)), drafted)
        found.append(
            {"request": f"r{i % 97}", "workload": "ab"[i % 2], "drafted": drafted, "accepted": accepted}
        )
        if i % 200 == 0:
            found[-1]["accepted"] = [None, drafted + 1, -1][i // 200 % 3]
    return found


@pytest.fixture(scope="module")
def tables(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same rounds as JSON lines and CSV in two files each, and as Parquet where it can be written."""
    folder = tmp_path_factory.mktemp("lake")
    for half in range(2):
        part = rows[half::2]
        text = "\n".join(map(json.dumps, part)) + "\n"
        (folder / f"{half}.jsonl").write_text(text, encoding="utf-8")
        lines = ["request,workload,drafted,accepted"]
        lines += [
            f"{r['request']},{r['workload']},{r['drafted']},{'' if r['accepted'] is None else r['accepted']}"
            for r in part
        ]
        (folder / f"{half}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if HAS_LAKE:
            duckdb = pytest.importorskip("duckdb")
            source, target = folder / f"{half}.jsonl", folder / f"{half}.parquet"
            columns = "request, workload, drafted::bigint as drafted, accepted::bigint as accepted"
            duckdb.sql(f"copy (select {columns} from read_json('{source}')) to '{target}' (format parquet)")
    return {kind: str(folder / f"*.{kind}") for kind in ("jsonl", "csv", "parquet")}


def same(first: Evidence, second: Evidence) -> None:
    """Counts, losses and sums of squares are equal, not nearly equal."""
    assert (first.records, first.lost) == (second.records, second.lost)
    one = {part.labels["workload"]: part for part in first.parts}
    two = {part.labels["workload"]: part for part in second.parts}
    assert sorted(one) == sorted(two) == ["a", "b"]
    for name, part in one.items():
        other = two[name]
        assert (part.rounds, part.drafted, part.accepted, part.k, part.k_min) == (
            other.rounds,
            other.drafted,
            other.accepted,
            other.k,
            other.k_min,
        )
        assert part.tested == other.tested
        assert part.survived == other.survived
        if part.moments is not None and other.moments is not None:
            assert part.moments == other.moments


def plain(tables: dict[str, str]) -> Evidence:
    """What the line reader makes of the same files; their own source label is dropped."""
    folder = Path(tables["jsonl"]).parent
    found = read([folder / "0.jsonl", folder / "1.jsonl"])
    parts = []
    for name in ("a", "b"):
        part, left_out = pooled([p for p in found.parts if p.labels["workload"] == name])
        assert left_out == ()
        parts.append(part)
    return Evidence(tuple(parts), found.records, found.lost)


@needs_lake
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_duckdb_counts_as_the_line_reader_does(tables: dict[str, str], kind: str) -> None:
    same(aggregate(tables[kind]), plain(tables))


@needs_spark
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_spark_counts_as_duckdb_does(tables: dict[str, str], kind: str, spark: Any) -> None:
    same(aggregate(tables[kind], backend="spark", session=spark), aggregate(tables[kind]))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A local session with two workers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sql = pytest.importorskip("pyspark.sql")
        builder = sql.SparkSession.builder.master("local[2]").appName("specmodel-tests")
        for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
            builder = builder.config(key, "false")
        session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        yield session
        session.stop()


@needs_lake
def test_requests_widen_the_interval_as_the_bootstrap_does(tmp_path: Path) -> None:
    """Requests from Beta(6, 3): the linearised interval and the bootstrap over rows agree."""
    rng = np.random.default_rng(1)
    alphas = np.repeat(rng.beta(6, 3, 300), 40)
    accepted = np.cumprod(rng.random((alphas.size, 4)) < alphas[:, None], axis=1).sum(axis=1)
    path = tmp_path / "rounds.jsonl"
    lines = [
        json.dumps({"request": i // 40, "drafted": 4, "accepted": int(a)}) for i, a in enumerate(accepted)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    lake, line = alpha(aggregate(path)), alpha(read(path))
    assert lake.survival == line.survival
    for first, second in ((lake.alpha, line.alpha), (lake.tokens_per_round, line.tokens_per_round)):
        assert first.low is not None
        assert first.high is not None
        assert second.low is not None
        assert second.high is not None
        assert first.high - first.low == pytest.approx(second.high - second.low, rel=0.1)
    assert lake.design_effect == pytest.approx(line.design_effect)
    assert lake.interval.startswith("linearised over 300 requests")


@needs_lake
def test_parquet_is_recognised_by_content(tables: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "rounds.log"
    shutil.copy(Path(tables["parquet"]).parent / "0.parquet", other)
    assert (
        alpha(read(other)).rounds
        == alpha(read(tables["parquet"], backend="duckdb").by("workload")["a"]).rounds
    )


@needs_lake
def test_losses_over_one_percent_are_an_error_unless_lenient(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text("drafted,accepted\n" + "3,2\n" * 95 + "3,4\n" * 5, encoding="utf-8")
    with pytest.raises(InputError, match=r"5 of 100 rows unusable \(5.0%"):
        aggregate(path)
    found = aggregate(path, lenient=True)
    assert (found.lost, alpha(found).rounds) == (5, 95)


@needs_lake
@pytest.mark.parametrize(
    ("text", "message"),
    [("a,b\n1,2\n", "has no column 'drafted'"), ("drafted,accepted\n1,2\n", "all 1 rows are unusable")],
)
def test_tables_that_hold_nothing_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        aggregate(path)


@needs_lake
def test_missing_files_and_unknown_backends_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        aggregate(tmp_path / "none.parquet")
    with pytest.raises(InputError, match="duckdb, spark"):
        aggregate(tmp_path, backend="polars")
    damaged = tmp_path / "rounds.parquet"
    damaged.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        aggregate(damaged)


@pytest.mark.skipif(HAS_LAKE, reason="the extra 'lake' is installed")
def test_without_the_extra_the_way_to_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rounds.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"pip install 'specmodel\[lake\]'"):
        read(path)
