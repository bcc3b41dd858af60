"""Two chains of optimisations, evaluated together: why their gains do not multiply.

First the lecture's exercise 5: 4-bit weights and a compressed cache against speculation. Then a chain from 16-bit
weights over NVFP4 to a multi-token-prediction module that stayed in 16 bit.
"""

from __future__ import annotations

import specmodel
from specmodel.answers.combination import ComposeResult, compose
from specmodel.model import Totals

CACHE_BYTES = (
    0.082e9  # of a sequence: 640 tokens at 128 K or 4,096 tokens at 20 K, K as the lecture rounds it
)


def exercise_5() -> ComposeResult:
    """A 7B model on an H100: 640 tokens before; 4,096 tokens, 3.47 GB of weights and 20 K per token after."""
    before = specmodel.deploy("lecture-7b", "lecture-h100", kv_bytes_per_token=CACHE_BYTES / 640)
    return compose(
        before,
        context=4096,
        baseline_context=640,
        weight_bytes=3.47e9,
        kv_bytes_per_token=CACHE_BYTES / 4096,
        alpha=0.8,
        k=4,
        charge="none",
    )


def chain(draft_cost_after: float | None = None) -> ComposeResult:
    """An 8B model at batch 1, weights alone: 16 GB, then NVFP4 in 4.5 GB, then one drafted token at 0.875."""
    target = Totals("8B", weight_bytes=16e9, flops_per_token=16e9, kv_bytes_per_token=1.0)
    return compose(
        specmodel.deploy(target, "lecture-h100"),
        context=1,
        weight_bytes=4.5e9,
        alpha=0.875,
        k=1,
        draft_cost=0.05,
        draft_cost_after=draft_cost_after,
    )


def show(found: ComposeResult) -> None:
    for step in found.steps:
        crossing = step.break_even if step.break_even_batch is None else f"{step.break_even_batch:.1f}"
        print(f"  {step.name}: {step.alone:.2f}x alone, {step.cumulative:.2f}x so far, break-even {crossing}")
    print(f"  product {found.product:.2f}x, truth {found.actual:.2f}x")
    print(f"  {found.why}")
    print(f"  {found.tension}")


if __name__ == "__main__":
    print("exercise 5")
    show(exercise_5())
    print("16 bit, NVFP4, one drafted token")
    show(chain())
    plain = 3.35e12 / 16e9
    for words, found in (
        ("the module stays in 16 bit", chain()),
        ("it shrinks too", chain(draft_cost_after=0.05)),
    ):
        print(f"  {words}: {plain * found.actual:.0f} tokens/s")
