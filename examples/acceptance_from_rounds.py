"""What accepted / drafted hides: alpha from a table of rounds, invented so that it is exactly 0.8.

Pass the path of a log, a metrics file or a benchmark result of your own engine to ask about that.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import specmodel
from specmodel import evidence

# Of 3,125 rounds of 4 drafts, how many accepted 0, 1, 2, 3 and 4: 0.2, 0.16, 0.128, 0.1024 and 0.4096 of them.
ACCEPTED = (625, 500, 400, 320, 1280)


def invented(folder: Path) -> Path:
    """A table of rounds, one a line."""
    lines = ["drafted,accepted", *(f"4,{n}" for n, rounds in enumerate(ACCEPTED) for _ in range(rounds))]
    path = folder / "rounds.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def answer(file: str | Path) -> list[str]:
    """Alpha with its interval, the ratio that is often taken for it, and the draft length that follows."""
    found = evidence.alpha(evidence.read(file))
    value, low, high = found.alpha.value, found.alpha.low, found.alpha.high
    lines = [f"alpha {value:.4f}, 95 % interval {low:.4f} to {high:.4f}, over tested tokens"]
    if found.lesson.value is not None:
        lines.append(
            f"accepted / drafted {found.lesson.value:.4f}: tokens behind a rejection were never tested"
        )
    best = specmodel.optimize(draft_cost=0.15, alpha=value).best
    return [*lines, f"at draft cost 0.15: k {best.k}, {best.speedup:.3f}x"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*answer(sys.argv[1]), sep="\n")
    else:
        with tempfile.TemporaryDirectory() as folder:
            print(*answer(invented(Path(folder))), sep="\n")
