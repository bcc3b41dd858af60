"""The long-context flip (MagicDec, arXiv:2408.11049): a sparse-cache draft gains with batch at 32k and loses it at 1k."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from specmodel.acceptance import Geometric
from specmodel.deployment import deploy
from specmodel.drafters.names import drafter
from specmodel.model import Model
from specmodel.speculation import Speculation

BATCHES = np.array([1.0, 4.0, 16.0, 64.0, 128.0])
ALPHA = 0.77  # 2.82 tokens at k 3: MagicDec, table 1, Llama-3.1-8B


def speedups(model: str, device: str, context: float) -> NDArray[np.float64]:
    setting = deploy(model, device, tp=8, engine="magicdec")
    assert isinstance(setting.model, Model)
    sparse = Speculation(setting, drafter("sparse-self:512", setting.model))
    found: NDArray[np.float64] = sparse.speedups(
        Geometric(ALPHA), 3, BATCHES, np.full(BATCHES.shape, context)
    )[3]
    return found


@pytest.mark.parametrize(("model", "device"), [("llama-3.1-8b", "h100-sxm"), ("llama-2-7b", "a100-sxm-80")])
def test_at_long_context_the_gain_grows_with_the_batch(model: str, device: str) -> None:
    long = speedups(model, device, 32_000.0)
    assert (np.diff(long) > 0).all()
    assert long[0] < 1.0 < 1.2 < long[-1]


def test_at_short_context_it_shrinks() -> None:
    """Eight KV heads over eight GPUs: next to nothing to read, so positions cost arithmetic."""
    short = speedups("llama-3.1-8b", "h100-sxm", 1_000.0)
    assert short[-1] == short.min() < short[0]
    assert (short < 1.0).all()


def test_without_grouped_heads_it_never_pays_at_short_context() -> None:
    assert (speedups("llama-2-7b", "a100-sxm-80", 1_000.0) < 1.0).all()
