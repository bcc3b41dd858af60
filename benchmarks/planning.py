"""A plan over 8 drafts x 64 batches x 16 contexts x k 0-16, and 12 draft methods over 64 x 64 workloads."""

from __future__ import annotations

import sys
import time

import numpy as np

from specmodel.deployment import deploy
from specmodel.drafters.names import drafter
from specmodel.model import Model
from specmodel.planner import DraftRequest, PlanRequest, plan
from specmodel.speculation import Speculation

ALLOWED_SECONDS = 2.0
DRAFTS = (
    "eagle3",
    "eagle",
    "lookup",
    "suffix",
    "sparse-self:512",
    "early-exit:8",
    "llama-3.2-1b",
    "llama-3.2-3b",
)
METHODS = (*DRAFTS, "eagle2", "retrieval", "lookahead", "tinyllama-1.1b")


def main() -> None:
    """Print both times; exit 1 where one is over its limit."""
    request = PlanRequest(
        drafts=tuple(DraftRequest(name, alpha=0.7) for name in DRAFTS),
        batch=tuple(range(1, 65)),
        context=tuple(range(512, 16 * 512 + 1, 512)),
        max_k=16,
    )
    plan(PlanRequest(batch=(1,), context=(512,)))  # imports and files
    start = time.perf_counter()
    plan(request)
    planned = time.perf_counter() - start
    setting = deploy()
    assert isinstance(setting.model, Model)
    batches, contexts = np.arange(1.0, 65.0)[:, None], np.arange(256.0, 65 * 256, 256.0)[None, :]
    start = time.perf_counter()
    for name in METHODS:
        found = drafter(name, setting.model)
        Speculation(setting, found).speedups(found.method.assumed.law, 8, batches, contexts)
    compared = time.perf_counter() - start
    print(f"plan: 8 drafts x 64 batches x 16 contexts x k 0-16 in {planned:.2f} s")
    print(
        f"drafts: {len(METHODS)} methods over 64 x 64 workloads in {compared:.2f} s (allowed {ALLOWED_SECONDS} s each)"
    )
    if max(planned, compared) > ALLOWED_SECONDS:
        sys.exit(1)


if __name__ == "__main__":
    main()
