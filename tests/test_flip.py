"""The long-context flip (MagicDec, arXiv:2408.11049): a sparse-cache draft gains with batch at 32k and loses it at 1k."""

from __future__ import annotations

import numpy as np
import pytest

from specmodel.acceptance import Geometric
from specmodel.deployment import deploy
from specmodel.draft_names import drafter
from specmodel.model import Model
from specmodel.speculation import Speculation

BATCHES = np.array([1.0, 4.0, 16.0, 64.0, 128.0])
ALPHA = 0.77  # 2.82 tokens at k 3: MagicDec, table 1, Llama-3.1-8B


@pytest.mark.parametrize(("model", "device"), [("llama-3.1-8b", "h100-sxm"), ("llama-2-7b", "a100-sxm-80")])
def test_speedup_rises_with_batch_at_long_context_and_falls_at_short(model: str, device: str) -> None:
    setting = deploy(model, device, tp=8, engine="magicdec")
    assert isinstance(setting.model, Model)
    sparse = Speculation(setting, drafter("sparse-self:512", setting.model))
    long, short = (
        sparse.speedups(Geometric(ALPHA), 3, BATCHES, np.full(BATCHES.shape, context))[3]
        for context in (32_000.0, 1_000.0)
    )
    assert (np.diff(long) > 0).all()
    assert long[-1] > 1.2
    assert short[-1] < short[0]
    assert long[-1] > short[-1]
