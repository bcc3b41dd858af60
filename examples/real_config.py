"""One real config.json answered: up to which batch should Llama-3.1-8B speculate on an H100, and when does that flip?

Pass the path of another config.json to ask about that model.
"""

from __future__ import annotations

import sys

import specmodel


def answer(model: str = "llama-3.1-8b") -> list[tuple[int, float | None, int]]:
    """context, break-even batch (None: never loses in memory), memory limit."""
    setting = specmodel.deploy(model, "h100-sxm")
    rows = []
    for context in (256, 1024, 4096, 16384):
        found = specmodel.breakeven(setting, context=context, alpha=0.7, draft_cost=0.1)
        rows.append((context, found.break_even_batch, found.memory_limit_batch))
    return rows


if __name__ == "__main__":
    for context, crossing, limit in answer(*sys.argv[1:2]):
        verdict = "never loses" if crossing is None else f"loses past batch {crossing:.0f}"
        print(f"context {context:,}: {verdict}; {limit} sequences fit")
