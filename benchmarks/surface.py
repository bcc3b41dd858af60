"""A surface of a million (k, batch, context) speedups of an architecture: time and peak memory."""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from specmodel.acceptance import Geometric, expected_tokens_to
from specmodel.deployment import deploy

ALLOWED_SECONDS, ALLOWED_BYTES = 1.0, 1e9


def main() -> None:
    """Print time and memory."""
    setting = deploy("llama-3.1-8b", "h100-sxm", fidelity="textbook")
    k = np.arange(1, 11)[:, None, None]
    batch = np.arange(1, 401)[None, :, None]
    context = np.linspace(128, 32768, 250)[None, None, :]
    tokens = np.array(expected_tokens_to(Geometric(0.8), 10))
    start = time.perf_counter()
    surface = setting.speedups(tokens, k=k, batch=batch, context=context, draft_cost=0.15, charge="added")
    taken = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"surface: {np.size(surface):,} speedups in {taken:.2f} s, process peak {peak / 1e9:.2f} GB")
    if taken > ALLOWED_SECONDS or peak > ALLOWED_BYTES:
        sys.exit(1)


if __name__ == "__main__":
    main()
