"""The memory ledger against the public reports' arithmetic, the lecture's batches and brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.ledger import ENGINE_RULES, Memory, memory
from specmodel.model import Model, Totals
from specmodel.readers import drafts, find_model, load
from specmodel.units import GIB

H100_BYTES = 81559 * 2**20  # case c19: what the driver reports of an 80 GB H100
PREFIXES = ("weights", "draft weights", "kv", "draft kv", "logits", "reserve")


def used(found: Memory) -> float:
    """Bytes of everything placed, the engine's reserve left out."""
    return sum(line.bytes for line in found.per_gpu if not line.line.startswith("reserve outside"))


@pytest.mark.parametrize(("draft_tp", "tokens", "limiting"), [(1, 156472, "0"), (4, 395619, "0-3")])
def test_case_c14(shared: Path, draft_tp: int, tokens: int, limiting: str) -> None:
    configs = shared / "cases" / "configs"
    found = memory(
        load(configs / "llama-3.1-70b.json"),
        memory_bytes=85520809984,
        context=4096,
        tp=4,
        draft=load(configs / "llama-3.1-8b.json"),
        draft_tp=draft_tp,
        memory_fraction=0.99,
    )
    assert found.kv_tokens == pytest.approx(tokens, rel=0.02)  # C14-a, C14-b
    assert found.limiting_rank == limiting
    if draft_tp == 1:
        # C14-c: the draft's 16 GB are missing on GPU 0 only; C14-d: 60 % fewer tokens than split
        idle = found.ranks[1].left_bytes - found.ranks[0].left_bytes
        assert idle == pytest.approx(16060522496 + 131072 * 4096, rel=1e-6)
        assert found.ranks[1].ranks == "1-3"
        assert any("60% fewer" in note and "stay idle" in note for note in found.notes)


@pytest.mark.parametrize(("engine", "budget"), [("vllm", 32.0), ("tensorrt-llm", 36.0), ("sglang", 36.0)])
def test_case_c19_what_each_engine_means_by_its_fraction(engine: str, budget: float) -> None:
    """80 GiB, 36 of weights, 4 of activations, fraction 0.9: C19-a, C19-b; C19-e: the rule is stated."""
    found = memory(
        Totals("example", 36 * GIB, 1e9, 131072),
        memory_bytes=80 * GIB,
        context=1024,
        engine=engine,
        memory_fraction=0.9,
        reserve_bytes=4 * GIB,
    )
    assert found.kv_pool_bytes / GIB == pytest.approx(budget, abs=0.01)
    assert found.rule.startswith(engine)
    assert any(ENGINE_RULES[engine].option in note for note in found.notes)


def lecture(golden_kib: float, **changes: Any) -> Memory:
    """The lecture's card: 95 % of 80 GB, 13.5 GB of weights."""
    settings: dict[str, Any] = {"memory_bytes": 80e9, "memory_fraction": 0.95, "context": 640}
    model = Totals("lecture-7b", 13.5e9, 13.48e9, golden_kib)
    return memory(model, **(settings | changes))


def test_golden_budget_and_batches(golden: dict[str, dict[str, Any]]) -> None:
    exact, rounded = lecture(131072.0), lecture(0.082e9 / 640)
    assert exact.kv_pool_bytes / 1e9 == pytest.approx(golden["kv-budget-gb"]["expected"])
    assert rounded.max_batch == golden["kv-max-seqs"]["expected"]
    assert exact.max_batch == golden["kv-max-seqs-binary"]["expected"]  # the printed 762 mixes KiB and KB
    assert lecture(131072.0, context=16384).max_batch == golden["kv-max-seqs-16k"]["expected"]


def test_golden_draft_takes_its_share(golden: dict[str, dict[str, Any]]) -> None:
    no_weights = Totals("draft cache", 1e-3, 1.0, 0.0122e9 / 640)
    with_weights = Totals("draft", 2.0e9, 1.0, 0.0122e9 / 640)
    target = 0.082e9 / 640
    assert lecture(target, draft=no_weights).max_batch == golden["kv-draft-concurrency"]["expected"]
    assert lecture(target, draft=with_weights).max_batch == golden["kv-draft-with-weights"]["expected"]
    ratio = golden["kv-max-seqs-16k-with-draft"]["inputs"]["draft_ratio"]
    at_16k = lecture(131072.0, context=16384, draft=Totals("d", 1e-3, 1.0, 131072 * ratio))
    assert (
        at_16k.max_batch == golden["kv-max-seqs-16k-with-draft"]["expected"]
    )  # 29 leave no room for a draft


def test_golden_cache_sizes(golden: dict[str, dict[str, Any]]) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    gqa, mha = load(config), load(config | {"num_key_value_heads": 32})
    assert gqa.kv_bytes_per_token / 1024 == golden["kv-gqa8-kib-per-token"]["expected"]
    assert mha.kv_bytes_per_token / 1024 / 20 == golden["kv-mha-reduction"]["expected"]
    assert gqa.kv_bytes_per_token / 1024 / 20 == golden["kv-gqa8-to-20kib"]["expected"]
    assert float(gqa.kv_bytes(640)) / 1e9 == golden["kv-seq-640-binary-gb"]["expected"]
    assert float(gqa.kv_bytes(16384)) / 1e9 == golden["kv-seq-16k-gb"]["expected"]


# Deployments of the issue: catalogue id, weights, GPUs, bytes of one, draft.
DEPLOYMENTS = [
    ("llama-3.1-70b", "fp8", 2, H100_BYTES, None),
    ("llama-3.1-70b", "fp8", 4, H100_BYTES, None),
    ("deepseek-v3", None, 8, 141e9, None),
    ("gpt-oss-120b", None, 1, H100_BYTES, None),
    ("gemma-3-27b", None, 1, 81920 * 2**20, None),
    ("qwen3-30b-a3b", None, 1, H100_BYTES, "eagle3"),
]


@pytest.mark.parametrize("engine", ENGINE_RULES)
@pytest.mark.parametrize(("name", "weights", "tp", "card", "head"), DEPLOYMENTS)
def test_deployments(
    name: str, weights: str | None, tp: int, card: float, head: str | None, engine: str
) -> None:
    model = find_model(name, weights)
    assert isinstance(model, Model)
    draft = drafts.for_target(head, model.architecture) if head else None
    asked: dict[str, Any] = {
        "memory_bytes": card,
        "context": 8192,
        "tp": tp,
        "draft": draft,
        "engine": engine,
    }
    asked["width"] = 5 if draft else 1
    found = memory(model, batch=64, **asked)
    assert all(line.line.startswith(PREFIXES) for line in found.per_gpu)
    assert found.fits == (found.max_batch >= 64) == (found.short_bytes == 0.0)
    if found.max_batch:
        fitting = memory(model, batch=found.max_batch, **asked)
        assert fitting.fits
        assert sum(line.bytes for line in fitting.per_gpu) <= card * (1 + 1e-12)
        beyond = memory(model, batch=found.max_batch + 1, **asked)
        assert not beyond.fits
        assert beyond.short_bytes > 0.0
        assert used(beyond) - used(fitting) == pytest.approx(
            used(memory(model, batch=2, **asked)) - used(memory(model, batch=1, **asked))
        )


def test_what_does_not_fit_says_by_how_much() -> None:
    found = memory(load("llama-3.1-70b"), memory_bytes=80e9, context=1024, memory_fraction=0.9)
    assert (found.fits, found.max_batch, found.kv_tokens, found.kv_pool_bytes) == (False, 0, 0, 0.0)
    # weights of 141.1 GB, one sequence of 335.5 MB and logits of 0.5 MB against 72 GB
    assert found.short_bytes == pytest.approx(141107412992 + 327680 * 1024 + 4 * 128256 - 72e9, rel=1e-12)


def test_mtp_and_states_are_charged() -> None:
    deepseek = load("deepseek-v3")
    plain = memory(deepseek, memory_bytes=141e9, context=8192, tp=8)
    drafting = memory(
        deepseek, memory_bytes=141e9, context=8192, tp=8, draft=deepseek.architecture.mtp, width=2
    )
    lines = {line.line: line.bytes for line in drafting.per_gpu}
    # 11.6e9 parameters in fp8 over 8 GPUs, its latent projections replicated
    assert lines["draft weights"] == pytest.approx(11610068224 / 8, rel=0.1)
    assert lines["draft kv"] == 576 * 2 * 8192
    assert drafting.max_batch < plain.max_batch
    hybrid = load("qwen3.5-27b")
    state = {
        width: next(
            line.bytes
            for line in memory(hybrid, memory_bytes=141e9, context=1000, width=width).per_gpu
            if line.line == "kv state"
        )
        for width in (1, 4)
    }
    assert state[4] == 4 * state[1] == 4 * hybrid.state_bytes()


def test_a_sliding_window_does_not_grow_the_pool() -> None:
    model = load("mistral-7b-v0.1")
    batches = [memory(model, memory_bytes=80e9, context=context).max_batch for context in (4096, 32768)]
    assert batches[0] == batches[1]


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(sorted(ENGINE_RULES)),
    fraction=st.floats(0.05, 1.0),
    context=st.integers(1, 200_000),
    width=st.integers(1, 17),
    card=st.floats(1e9, 2e11),
)
def test_the_largest_batch_is_the_largest(
    engine: str, fraction: float, context: int, width: int, card: float
) -> None:
    """The bisection against the statement it solves: that batch fits, one more does not."""
    asked: dict[str, Any] = {
        "memory_bytes": card,
        "context": context,
        "width": width,
        "engine": engine,
        "memory_fraction": fraction,
    }
    model = load("qwen3-8b")
    most = memory(model, **asked).max_batch
    if most:
        assert memory(model, batch=most, **asked).fits
    if most < 10**7:
        assert not memory(model, batch=most + 1, **asked).fits


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"memory_bytes": 0}, "memory_bytes = 0: a finite number > 0"),
        ({"memory_bytes": float("nan")}, "memory_bytes = nan"),
        ({"context": 0}, "context = 0: an integer from 1"),
        ({"context": 10**12}, "context = 1000000000000: an integer from 1 to 1000000000"),
        ({"batch": 2.5}, "batch = 2.5"),
        ({"width": True}, "width = True"),
        ({"tp": 3}, "tp = 3: 32 attention heads divide by"),
        ({"memory_fraction": 1.5}, "memory_fraction = 1.5"),
        ({"reserve_bytes": -1.0}, "reserve_bytes = -1.0"),
        ({"engine": "vlm"}, "engine = 'vlm': did you mean 'vllm'"),
    ],
)
def test_bad_options_are_named(change: dict[str, Any], line: str) -> None:
    asked: dict[str, Any] = {"memory_bytes": 80e9, "context": 1024}
    with pytest.raises(InputError) as caught:
        memory(load("llama-3.1-8b"), **(asked | change))
    assert line in str(caught.value)


def test_a_draft_is_not_spread_wider_than_its_target() -> None:
    target, draft = load("llama-3.1-8b"), load("llama-3.2-1b")
    with pytest.raises(InputError, match="draft_tp = 4: must divide tp = 2"):
        memory(target, memory_bytes=80e9, context=1024, tp=2, draft=draft, draft_tp=4)
