"""`specmodel optimize` against a two-command Typer app that prints a one-row Rich table, alternating, median of 10."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 10
ALLOWED = 1.3
PEER = """
import typer
app = typer.Typer()

@app.command()
def one(alpha: float = 0.8) -> None:
    from rich.console import Console
    from rich.table import Table
    table = Table("k", "speedup")
    table.add_row("5", "2.108x")
    Console().print(table)

@app.command()
def two() -> None:
    pass

app()
"""


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print both medians and the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        peer = Path(folder) / "peer.py"
        peer.write_text(PEER, encoding="utf-8")
        ours = [
            str(Path(sys.executable).parent / "specmodel"),
            "optimize",
            "--alpha",
            "0.8",
            "--draft-cost",
            "0.15",
        ]
        theirs = [sys.executable, str(peer), "one"]
        for command in (ours, theirs):
            seconds(command)
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(RUNS)]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"start-up: specmodel optimize {mine * 1e3:.0f} ms, plain Typer app {other * 1e3:.0f} ms, "
          f"ratio {mine / other:.2f} (allowed {ALLOWED})")  # fmt: skip
    if mine / other > ALLOWED:
        sys.exit(1)


if __name__ == "__main__":
    main()
