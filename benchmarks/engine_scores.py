"""Refits the engine times to published speedups and scores them with each source left out: where the constants come from.

    python -m benchmarks.engine_scores [FILE...]

Without files: the figures that ship. Prints errors by source, the refitted times, and the quantiles that ranges rest on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from specmodel import engine_fit
from specmodel.engine import TIMES
from specmodel.errors import InputError
from specmodel.published.runs import Situation, situation
from specmodel.published.table import read_published

SHIPPED = Path(__file__).parent.parent / "hardware" / "published"


def situations(files: list[Path]) -> list[Situation]:
    """The rows that can be scored, each with its deployment and draft, before any engine time."""
    found = []
    blank = engine_fit.blank_engines()
    for file in files:
        for run in read_published(file).runs:
            if not run.scored:
                continue
            try:
                found.append(situation(run, blank))
            except InputError:
                continue  # `validate --rows` lists it with the reason
    return found


def main(arguments: list[str]) -> None:
    """Print the tables."""
    files = [Path(one) for one in arguments] or sorted(SHIPPED.glob("*.csv"))
    rows = engine_fit.samples(situations(files))
    fitted = engine_fit.fit_published(rows)
    left_out = engine_fit.leave_one_source_out(rows) if len(set(rows.source)) > 1 else None
    for source in sorted(set(rows.source)):
        chosen = rows.source == source
        errors = np.abs(fitted.predicted / rows.speedup - 1.0)[chosen]
        line = f"{source}: {chosen.sum()} rows, median error {np.median(errors):.1%}"
        if left_out is not None:
            line += f", left out {np.median(np.abs(left_out / rows.speedup - 1.0)[chosen]):.1%}"
        print(line)
    for name, times in fitted.engines.items():
        shown = ", ".join(
            f"{field} {getattr(times, field) * 1e3:.3g} ms" for field in TIMES if getattr(times, field)
        )
        print(f"{name}: {shown}")
    if left_out is not None:
        low, middle, high = np.quantile(rows.speedup / left_out, (0.1, 0.5, 0.9))
        print(
            f"measured / predicted, left out: {low:.3f} {middle:.3f} {high:.3f} (10, 50, 90 %; rows weigh the same)"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
