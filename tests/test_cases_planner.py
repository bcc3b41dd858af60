"""Public reports by practitioners (case numbers in the names): what the report's inputs must give.

Bands around measured values are wide on purpose: one person's run on one stack. What the model cannot know stands in
NOT_CHECKED with its reason.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specmodel import catalog, readers, rounds
from specmodel.acceptance import Geometric
from specmodel.answers.break_even_surface import alpha_needed
from specmodel.deployment import deploy
from specmodel.evidence import alpha_from_tokens_per_round
from specmodel.layers.feed_forward import Experts
from specmodel.model import Model
from specmodel.passes import Split, forward_pass
from specmodel.planner import DraftRequest, PlanRequest, plan

NOT_CHECKED = {
    "C11-b, c": "vLLM 0.4 ran the sharded draft eagerly over NCCL and waited for the host between GPUs; no engine file "
    "here has data of that kind, and with CUDA graphs sharding only fails to gain",
    "C04-c": "the report's 4-bit kernel verifies position by position; a plan refuses such a target instead (C04-d)",
}


def architecture(model: str, **changes: str) -> Model:
    found = catalog.model(model, **changes)
    assert isinstance(found, Model)
    return found


def test_c04_rounds_and_gain_of_the_16_bit_target() -> None:
    tokens = 1 + 44 / (120 / 5)  # 120 drafted at k 5 in 24 rounds, 44 accepted
    assert tokens == pytest.approx(2.875, rel=0.03)
    # A 160M draft in 8.5 bits beside 6.74e9 weights in 16: both stream their weights.
    cost = 0.160e9 * 8.5 / (6.738e9 * 16)
    assert tokens / rounds.round_cost(5, draft_cost=cost) > 1.2


def test_c04_a_supplied_round_cost_says_slower() -> None:
    assert pytest.approx(0.548, rel=0.01) == 2.875 / 5.247
    assert alpha_needed(np.array([5]), np.array([5.247]))[0] > alpha_from_tokens_per_round(2.875, 5)


def test_c04_the_4_bit_target_is_refused_with_the_way_out() -> None:
    result = plan(
        PlanRequest(
            model="llama-2-7b",
            device="apple-m2-max-32gb",
            weights="q4_k_m",
            engine="llama-cpp",
            drafts=(DraftRequest("llama-68m", alpha=0.5),),
            batch=(1,),
            context=(512,),
        )
    )
    assert result.by_batch[0].k is None
    assert "one position at a time" in result.by_batch[0].reason
    assert "calibrate --runs" in result.by_batch[0].reason


@pytest.mark.parametrize(("weights", "most"), [("q8_0", 1.55), ("q4_k_m", 1.25)])
def test_c04_a_narrower_target_gains_less_where_its_kernels_are_known(weights: str, most: float) -> None:
    """The maintainer's runs of a 34B target on an A100: up to 1.5x in 8 bit, nothing of note in 4 bit."""
    result = plan(
        PlanRequest(
            model="codellama-34b",
            device="a100-sxm-80",
            weights=weights,
            engine="llama.cpp",
            drafts=(DraftRequest("llama-2-7b", alpha=0.9),),
            batch=(1,),
            context=(512,),
        )
    )
    found = result.by_batch[0]
    assert found.speedup is not None
    assert 1.0 < found.speedup < most


def test_c05_no_acceptance_pays_for_two_steps() -> None:
    assert np.isinf(alpha_needed(np.array([1]), np.array([2.196]))[0])
    assert pytest.approx(0.873, rel=0.005) == (1 + 0.92) / 2.2
    assert float(Experts(256, 8, 2048).expected_distinct(2)) == pytest.approx(15.75, abs=0.01)


def test_c05_two_tokens_through_fine_grained_experts_cost_about_two_steps() -> None:
    """0.9 of the bytes of a step are routed experts (the report); two tokens hit nearly twice as many."""
    experts = Experts(256, 8, 2048)
    ratio = 0.1 + 0.9 * float(experts.expected_distinct(2)) / experts.top_k
    assert 1.6 <= ratio <= 2.3


def test_c06_the_formula_and_the_timed_run() -> None:
    assert rounds.speedup(0.44, 5, 0.11) == pytest.approx(1.1437, abs=0.0005)
    per_round = 1 + 208 / (260 / 5)
    assert per_round == pytest.approx(5.0, abs=0.05)
    verify_over_plain = (5 / 121.7) / (1 / 52.5)
    cost = rounds.round_cost(5, draft_cost=52.5 / 619.4, verify_ratio=verify_over_plain)
    assert 80 <= 52.5 * per_round / cost <= 103


def test_c08_a_block_of_four_drafts_three() -> None:
    tokens = 1 + 1.05
    assert tokens == pytest.approx(2.05)
    assert tokens / 0.52 == pytest.approx(3.94, rel=0.02)


def test_c11_sharding_a_tiny_draft_gains_nothing() -> None:
    """OPT-125M's 12 layers of width 768: bandwidth alone would make four GPUs four times faster."""
    shape = {
        "model_type": "llama",
        "hidden_size": 768,
        "intermediate_size": 2048,  # three gated matrices hold what OPT's two of 3,072 do
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 50272,
        "tie_word_embeddings": True,
    }
    setting = deploy(readers.load(shape, name="OPT-125M's shape"), "a100-sxm-80")
    alone, sharded = (
        float(
            setting.timing.time(forward_pass(setting.model, batch=1, context=128, split=Split(tp=tp))).seconds
        )
        for tp in (1, 4)
    )
    assert sharded > 0.95 * alone


def test_c12_gains_are_not_multiplied() -> None:
    # CUDA graphs: plain step 2.15 ms, a round of 2.15 + 4.2 ms yields 1.69 tokens.
    assert 1.69 / ((2.15 + 4.2) / 2.15) < 1.0
    assert pytest.approx(6.5, abs=0.1) == 1.69 / 260.37 * 1e3


def test_c17_a_9b_draft_never_pays_for_17b_active_weights() -> None:
    target = architecture("qwen3.5-397b-a17b")
    # The draft reads 9e9 weights a pass where the target reads about 16.3e9 (the report's arithmetic).
    cost = 9e9 / target.architecture.streamed_parameters
    wide = deploy(target, "apple-m3-ultra-512gb", weights=None)
    verify = float(wide.pass_time(1, 512, 4).seconds / wide.pass_time(1, 512).seconds)
    for alpha, limit in ((1.0, 1.01), (0.8, 0.9), (0.6, 0.9)):
        row = rounds.depths(Geometric(alpha), draft_cost=cost, max_k=3, verify_ratio=[1.0, 1.0, 1.0, verify])[
            3
        ]
        assert row.speedup < limit


def test_c03_the_best_depth_does_not_rise_with_concurrency() -> None:
    request = PlanRequest(
        model="llama-3.1-8b",
        drafts=(DraftRequest("eagle3", (0.844, 0.599, 0.385, 0.271)),),
        batch=(1, 8, 64, 256),
        context=(512,),
    )
    ks = [cell.k for cell in plan(replace(request, engine="ideal")).by_batch if cell.k is not None]
    assert ks == sorted(ks, reverse=True)
