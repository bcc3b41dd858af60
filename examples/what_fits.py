"""How many sequences fit: Llama-3.1-70B in fp8 at 8,192 tokens on two and four H100, and what a draft head takes away."""

from __future__ import annotations

import specmodel


def answer(context: int = 8192) -> list[tuple[int, str, int, str]]:
    """GPUs, what drafts, the most sequences, the largest line of the ledger."""
    rows = []
    for gpus in (2, 4):
        setting = specmodel.deploy("llama-3.1-70b", "h100-sxm", weights="fp8", tp=gpus)
        for draft in (None, "eagle3"):
            held = specmodel.memory(setting, context=context, k=4 if draft else 0, draft=draft)
            largest = max(held.per_gpu, key=lambda line: line.bytes)
            rows.append((gpus, draft or "nothing", held.max_batch, largest.line))
    return rows


if __name__ == "__main__":
    for gpus, draft, most, largest in answer():
        print(f"{gpus} GPUs, {draft} drafts: {most} sequences fit; the largest line is {largest}")
