"""Fifty million rounds: Parquet through DuckDB (time, memory), Spark to the same counts, and a 1 GB JSONL as a stream.

    python -m benchmarks.evidence_lake [--rounds 50000000] [--stream-gb 1] [--spark]

Needs the extra `lake`; the stream needs nothing. Every measurement runs in its own process, whose peak memory is given.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

AGGREGATE_SECONDS, AGGREGATE_BYTES = 15.0, 2e9
STREAM_BYTES = 0.5e9
REQUESTS = 500_000
THREADS = 2


def generate(path: Path, rounds: int) -> None:
    """Rounds of k = 4 with an alpha per request; rounds of one request lie far apart, the hard case for grouping."""
    import duckdb

    connection = duckdb.connect(config={"threads": THREADS})
    connection.execute(f"""
        copy (
            select 'request-' || (i % {REQUESTS}) as request,
                   ['chat', 'code', 'math'][1 + i % {REQUESTS} % 3] as workload,
                   4 as drafted,
                   least(4, floor(
                       ln(1 - hash(i) % 1000000 / 1e6) / ln(0.55 + 0.4 * (hash(i % {REQUESTS}) % 1000) / 1e3)
                   ))::integer as accepted
            from range({rounds}) as numbers(i)
        ) to '{path}' (format parquet)""")


def lake(path: Path, backend: str, rounds: int) -> str:
    """Aggregate, and check that no round is missing."""
    from specmodel.evidence import aggregate, alpha

    found = aggregate(path, backend=backend, threads=THREADS if backend == "duckdb" else None)
    assert sum(part.rounds for part in found.parts) == rounds
    shown = alpha(found)
    counts = [int(sum(x)) for x in zip(*(part.survived for part in found.parts), strict=True)]
    return f"alpha {shown.alpha.value:.6f}, survivors {counts}, {shown.interval}"


def written(path: Path, gigabytes: float) -> int:
    """A JSON lines file of about this size; returns its rounds."""
    rng = np.random.default_rng(0)
    size, rounds = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < gigabytes * 1e9:
            accepted = np.minimum(rng.geometric(0.3, 100_000) - 1, 4)
            block = "".join(
                json.dumps({"request": f"request-{(rounds + i) // 90}", "drafted": 4, "accepted": int(a)})
                + "\n"
                for i, a in enumerate(accepted)
            )
            file.write(block)
            size, rounds = size + len(block), rounds + accepted.size
    return rounds


def stream(path: Path, rounds: int) -> str:
    """Read the JSON lines file, and check that no round is missing."""
    from specmodel.evidence import alpha, read

    found = alpha(read(path))
    assert found.rounds == rounds
    return f"alpha {found.alpha.value:.6f}, {found.requests:,} requests in memory"


def _child(
    work: Callable[..., str], arguments: tuple[object, ...], results: multiprocessing.Queue[object]
) -> None:
    start = time.perf_counter()
    text = work(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    results.put((text, time.perf_counter() - start, peak))


def measured(name: str, work: Callable[..., str], *arguments: object) -> tuple[float, float]:
    """Run in a fresh process; print and return seconds (imports included) and peak bytes."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_child, args=(work, arguments, results))
    process.start()
    text, seconds, peak = results.get()
    process.join()
    print(f"{name}: {seconds:.1f} s, peak {peak / 1e9:.2f} GB; {text}", flush=True)
    return seconds, peak


def main() -> None:
    """Print every measurement; exit 1 where one is beyond what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=50_000_000)
    parser.add_argument("--stream-gb", type=float, default=1.0)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        if importlib.util.find_spec("ibis") and importlib.util.find_spec("duckdb"):
            table = Path(folder) / "rounds.parquet"
            generate(table, given.rounds)
            print(
                f"{given.rounds:,} rounds of {REQUESTS:,} requests, {table.stat().st_size / 1e6:.0f} MB of Parquet"
            )
            seconds, peak = measured("DuckDB", lake, table, "duckdb", given.rounds)
            failed |= seconds > AGGREGATE_SECONDS or peak > AGGREGATE_BYTES
            if given.spark:
                measured("Spark", lake, table, "spark", given.rounds)
            table.unlink()
        else:
            print("skipped DuckDB: the extra 'lake' is not installed")
        if given.stream_gb > 0:
            log = Path(folder) / "rounds.jsonl"
            rounds = written(log, given.stream_gb)
            print(f"{rounds:,} rounds, {log.stat().st_size / 1e9:.2f} GB of JSON lines")
            _, peak = measured("stream", stream, log, rounds)
            failed |= peak > STREAM_BYTES
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
