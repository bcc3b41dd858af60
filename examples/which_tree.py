"""How large a token tree should be: many nodes on an idle GPU, few on a busy one.

Rates are the chances that the best, second best, ... candidate of a position is the target's own choice.
"""

from __future__ import annotations

import specmodel

RATES = (0.55, 0.22, 0.12, 0.06)


def answer() -> list[tuple[int, int, int, float]]:
    """Batch, nodes, depth, speedup."""
    setting = specmodel.deploy("llama-3.1-8b", "h100-sxm")
    rows = []
    for batch in (1, 16, 64):
        best = specmodel.tree(setting, rank_acceptance=RATES, max_nodes=256, batch=batch)
        rows.append((batch, best.nodes, best.depth, best.speedup))
    return rows


if __name__ == "__main__":
    for batch, nodes, depth, speedup in answer():
        print(f"batch {batch}: {nodes} nodes, {depth} deep, {speedup:.2f}x")
