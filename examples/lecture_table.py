"""The lecture's table: best draft length by alpha at draft cost 0.15, and the break-even batches at 640 tokens.

The lecture rounds one sequence's cache to 0.082 GB (128,125 bytes per token); with the true 128 KiB the crossings move.
"""

from __future__ import annotations

import specmodel


def table() -> list[tuple[float, int, float]]:
    """alpha, best k, speedup."""
    rows = []
    for alpha in (0.6, 0.7, 0.8, 0.9):
        best = specmodel.optimize(alpha=alpha, draft_cost=0.15).best
        rows.append((alpha, best.k, best.speedup))
    return rows


def crossings() -> list[tuple[int, float | None, float | None]]:
    """k, break-even batch with the rounded cache, with 128 KiB per token; the draft's time not charged."""
    rounded = specmodel.deploy(
        "lecture-7b", "lecture-h100", fidelity="textbook", kv_bytes_per_token=0.082e9 / 640
    )
    true = specmodel.deploy("lecture-7b", "lecture-h100", fidelity="textbook")
    rows = []
    for k in (3, 4):
        one, other = (
            specmodel.breakeven(setting, context=640, alpha=0.8, charge="none", k=k).break_even_batch
            for setting in (rounded, true)
        )
        rows.append((k, one, other))
    return rows


if __name__ == "__main__":
    for alpha, k, speedup in table():
        print(f"alpha {alpha}: best k {k}, {speedup:.3f}x")
    for k, rounded, true in crossings():
        print(
            f"k {k}: break-even batch {rounded:.2f} with 0.082 GB per sequence, {true:.2f} with 128 KiB per token"
        )
