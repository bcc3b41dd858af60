"""`step`: what a pass takes, does and leaves idle; the engine's time in it; a draft's own passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import specmodel
from specmodel.engine import IDEAL, EngineTime
from specmodel.errors import InputError

LAYERS, HIDDEN, KV_DIM, FEED, VOCABULARY = 32, 4096, 1024, 14336, 128256
STREAMED = (
    LAYERS * (HIDDEN * (HIDDEN + 2 * KV_DIM) + HIDDEN * HIDDEN + 3 * HIDDEN * FEED) + VOCABULARY * HIDDEN
)


@pytest.mark.parametrize(("batch", "k"), [(1, 0), (16, 4), (512, 1)])
def test_work_is_counted_and_not_read_off_calibrated_times(batch: int, k: int) -> None:
    """Llama-3.1-8B at 1,024 tokens: 2 FLOP per weight and position, 4 x heads x 128 x context of attention per layer."""
    width, context = k + 1, 1024
    found = specmodel.step(specmodel.deploy(), batch=batch, context=context, k=k)
    weights = 2.0 * STREAMED * batch * width
    attention = LAYERS * 4.0 * HIDDEN * context * batch * width
    assert 1.0 - found.idle_share_of_peak == pytest.approx(
        (weights + attention) / 989.4e12 / found.seconds, rel=2e-3
    )
    # Bytes: weights and cache once; activations add a few per cent at most here.
    moved = 2.0 * STREAMED + batch * context * 131072
    assert found.flop_per_byte == pytest.approx((weights + attention) / moved, rel=0.12)
    assert found.flop_per_byte < (weights + attention) / moved


def test_the_textbook_counts_what_the_lecture_counts() -> None:
    """Weights and cache; no activations, no attention arithmetic unless asked."""
    plain = specmodel.step(specmodel.deploy(fidelity="textbook"), batch=4, context=1000)
    moved = 2.0 * STREAMED + 4 * 1000 * 131072
    assert plain.seconds == pytest.approx(moved / 3.35e12, rel=1e-12)
    assert plain.flop_per_byte == pytest.approx(8.0 * STREAMED / moved, rel=1e-12)
    asked = specmodel.step(specmodel.deploy(fidelity="textbook", attention_flops=True), batch=4, context=1000)
    attention = LAYERS * 4.0 * HIDDEN * 1000 * 4
    assert asked.flop_per_byte == pytest.approx((8.0 * STREAMED + attention) / moved, rel=1e-12)
    assert plain.fixed_share == 0.0
    assert plain.low is plain.high is None


def test_the_ridge_is_that_of_the_rate_in_use() -> None:
    """989.4 TFLOP/s over 3.35 TB/s in bf16, twice that in fp8."""
    assert specmodel.step(specmodel.deploy()).ridge_flop_per_byte == pytest.approx(989.4e12 / 3.35e12)
    assert specmodel.step(specmodel.deploy(weights="fp8")).ridge_flop_per_byte == pytest.approx(
        1978.9e12 / 3.35e12
    )


def test_an_engine_is_a_line_of_the_pass() -> None:
    """2 ms per target pass; 3 ms per round and 10 us per sequence beside a verification."""
    engine = replace(
        IDEAL, id="mine", name="mine", target_pass_s=2e-3, round_s=3e-3, sequence_s=1e-5, draft_pass_s=5e-4
    )
    assert isinstance(engine, EngineTime)
    ideal, mine = specmodel.deploy(), specmodel.deploy(engine=engine)
    for k, extra in ((0, 2e-3), (4, 5e-3 + 8e-5)):
        bare, served = (specmodel.step(one, batch=8, k=k) for one in (ideal, mine))
        assert served.seconds - bare.seconds == pytest.approx(extra, rel=1e-9)
        line = next(kernel for kernel in served.kernels if kernel.kind == "engine")
        assert line.seconds == pytest.approx(extra, rel=1e-9)
        assert line.bound == "fixed"
        assert sum(kernel.seconds for kernel in served.kernels) == pytest.approx(served.seconds)
        assert served.fixed_share > bare.fixed_share > 0.0
        assert served.high - served.seconds == pytest.approx(bare.high - bare.seconds, rel=1e-9)  # type: ignore[operator]
    assert specmodel.step(mine, batch=8, k=4).ratio_to_plain == pytest.approx(
        specmodel.step(mine, batch=8, k=4).seconds / specmodel.step(mine, batch=8).seconds
    )


def test_a_draft_model_is_a_plain_step_of_its_own() -> None:
    setting = specmodel.deploy()
    alone = specmodel.step(specmodel.deploy("llama-3.2-1b"), batch=4, context=2048)
    drafted = specmodel.step(setting, batch=4, context=2048, draft="llama-3.2-1b", k=3)
    assert drafted.seconds == pytest.approx(3 * alone.seconds, rel=1e-9)
    assert drafted.draft_cost == pytest.approx(
        alone.seconds / specmodel.step(setting, batch=4, context=2048).seconds
    )
    assert drafted.inputs["pass"] == "draft"
    assert sum(kernel.seconds for kernel in drafted.kernels) == pytest.approx(drafted.seconds)
    down = next(kernel for kernel in drafted.kernels if kernel.name == "down")
    assert down.count == 3 * 16  # 16 layers
    assert drafted.flop_per_byte == pytest.approx(alone.flop_per_byte, rel=1e-9)
    assert drafted.idle_share_of_peak == pytest.approx(alone.idle_share_of_peak, rel=1e-9)


def test_the_draft_cost_of_optimize_comes_from_here() -> None:
    """A head's passes at k 4, put into the formula, give the round cost that breakeven finds with the head itself."""
    setting = specmodel.deploy()
    head = specmodel.step(setting, batch=8, context=1024, draft="eagle3", k=4)
    verify = specmodel.step(setting, batch=8, context=1024, k=4)
    drawn = specmodel.breakeven(setting, context=1024, alpha=0.7, draft="eagle3", k=4)
    row = next(row for row in drawn.by_batch if row.batch == 8)
    assert head.draft_cost is not None
    assert row.round_cost == pytest.approx(verify.ratio_to_plain + 4 * head.draft_cost, rel=1e-9)


def test_what_does_not_fit_is_still_timed_and_said() -> None:
    found = specmodel.step(specmodel.deploy("llama-3.1-70b"), batch=2, context=4096)
    assert not found.fits
    assert any("does not fit" in warning for warning in found.warnings)


@pytest.mark.parametrize("draft", ["lookup", "suffix", "retrieval", "lookahead"])
def test_drafts_without_passes_have_nothing_to_time(draft: str) -> None:
    with pytest.raises(InputError, match="no passes of its own"):
        specmodel.step(draft=draft)


def test_the_binding_term_is_named_in_words_too() -> None:
    small = specmodel.step(specmodel.deploy("llama-68m", "b200"), batch=1, context=16)
    assert small.bound == "fixed"
    assert small.why.startswith("fixed binds")
    busy = specmodel.step(specmodel.deploy("llama-3.1-8b", "a100"), batch=256, context=128, k=7)
    assert busy.why.startswith("compute binds")


def test_a_tree_on_a_busy_gpu_carries_a_range_of_its_own_cost() -> None:
    """Only the verification pass of the cost scales with its error: 4 % of it, not of the drafting."""
    setting = specmodel.deploy()
    found = specmodel.tree(setting, rank_acceptance=[0.6, 0.2], nodes=16, draft_cost=0.3, batch=64)
    verify = float(setting.verify_seconds(64, 1024, 17)) / float(setting.plain_seconds(64, 1024))
    assert found.round_cost == pytest.approx(verify + 0.3 * found.depth)
    assert found.low == pytest.approx(found.expected_tokens / (found.round_cost + 0.04 * verify))
    assert found.high == pytest.approx(found.expected_tokens / (found.round_cost - 0.04 * verify))
