"""Which draft for Llama-3.1-8B on an H100 under vLLM, when one person waits and when 64 do.

Acceptance is what was published for each method; what a lesson made up is left out of the comparison.
"""

from __future__ import annotations

import specmodel


def answer(batch: int, context: int = 2048) -> list[tuple[str, int, float, float | None, float | None]]:
    """Method, best k, speedup and its 80 % range, best first."""
    setting = specmodel.deploy("llama-3.1-8b", "h100-sxm", engine="vllm")
    found = specmodel.drafts(setting, batch=batch, context=context)
    return [
        (row.method.split(" ")[0], row.k, row.speedup, row.low, row.high)
        for row in found.drafts
        if not row.illustrative
    ]


if __name__ == "__main__":
    for batch in (1, 64):
        for method, k, speedup, low, high in answer(batch)[:3]:
            print(f"batch {batch}: {method}, k {k}: {speedup:.2f}x ({low:.2f} to {high:.2f})")
