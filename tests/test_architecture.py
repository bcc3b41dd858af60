"""Parameters, caches and FLOPs of architectures against published counts, brute force and laws."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel.architecture import (
    Architecture,
    Attention,
    Dense,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Matrix,
)
from specmodel.errors import InputError
from specmodel.layers.matrices import kv_heads_per_gpu, padded_vocabulary
from specmodel.readers import catalogue, load

# Catalogue entries without a derived count, and why: nothing is treated as dense silently.
NOT_COUNTED = {
    "gemma-4-26b-a4b": "computed, marked unverified",
    "mimo-v2-flash": "computed, marked unverified",
    "deepseek-v4-flash": "refused: compressed cache",
    "lecture-7b": "totals",
}
# These two have no derived count either, but ours equals the hub's element count to the last one.
EQUAL_TO_THE_HUB = ("minimax-text-01", "nemotron-3-nano-30b-a3b")


def small(**changes: Any) -> Architecture:
    """A tiny dense model whose figures can be checked by hand."""
    layer = Layer(Attention(4, 2, 8, 8), Dense(48), 64)
    given: dict[str, Any] = {
        "name": "small",
        "family": "llama",
        "hidden": 32,
        "vocabulary": 128,
        "layers": ((3, layer),),
        "tied": False,
        "final_norm_elements": 32,
    }
    return Architecture(**(given | changes))


@pytest.mark.parametrize("entry_id", [entry for entry in catalogue.ids() if entry not in NOT_COUNTED])
def test_catalogue_equals_the_published_counts(entry_id: str) -> None:
    row = catalogue.check(entry_id)
    assert row.equal is True, row
    assert row.parameters == (row.hub_elements if entry_id in EQUAL_TO_THE_HUB else row.published)


@pytest.mark.parametrize("entry_id", NOT_COUNTED)
def test_what_was_not_counted_says_so(entry_id: str) -> None:
    row = catalogue.check(entry_id)
    assert row.equal is None
    assert row.remark


def test_every_fact_is_reproduced(shared: Path) -> None:
    """All figures of the fact table: parameters, cache, windows, states, MTP modules, indexers, bytes."""
    facts = json.loads((shared / "facts" / "models.json").read_text())["models"]
    for fact in facts:
        derived = fact.get("derived") or {}
        if "params_total" not in derived:
            continue
        model = load(fact["config"])
        architecture = model.architecture
        mixers = [(count, mixer) for count, mixer in architecture.mixers()]
        windows = [(c, m.window) for c, m in mixers if isinstance(m, Attention) and m.window is not None]
        states = [(c, m) for c, m in mixers if isinstance(m, LinearAttention)]
        found: dict[str, Any] = {
            "params_total": architecture.parameters,
            "params_embedding_table": architecture.embedding_parameters,
            "tied": architecture.tied,
            "kv_bytes_per_token_bf16_full_layers": 2 * architecture.kv_elements_per_token,
            "layers_full": architecture.layer_count - sum(c for c, _ in windows) - sum(c for c, _ in states),
        }
        if "params_active" in derived:
            found["params_active"] = architecture.active_parameters
        if windows:
            found["layers_windowed"] = sum(count for count, _ in windows)
            found["window_tokens"] = windows[0][1]
        if states:
            found["layers_linear"] = sum(count for count, _ in states)
            found["linear_state_elems_per_layer"] = {
                "recurrent": states[0][1].recurrent_elements,
                "conv": states[0][1].conv_elements,
            }
        if "indexer_params_per_layer" in derived:
            assert architecture.indexer_parameters == (
                derived["indexer_params_per_layer"] * architecture.layer_count
            )
        for key, value in found.items():
            assert value == derived[key], (fact["id"], key)
        assert (architecture.mtp is not None) == ("mtp" in derived), fact["id"]
        if architecture.mtp is not None:
            assert architecture.mtp.modules == derived["mtp"]["modules"]
            assert architecture.mtp.parameters == derived["mtp"]["params_layer_total"]
            assert architecture.mtp.active_parameters == derived["mtp"]["params_layer_active"]
        exact = derived.get("index_total_size_bytes", derived.get("computed_bytes_mxfp4_experts_bf16_rest"))
        if exact is not None:
            assert model.weight_bytes == exact, fact["id"]


def test_parameters_of_a_tiny_model_by_hand() -> None:
    # q 32x32, k and v 16x32 each, o 32x32; three 48x32; two norms of 32; embedding, head 128x32; last norm.
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32 + 64
    assert small().parameters == 3 * layer + 2 * 128 * 32 + 32
    assert small(tied=True).parameters == 3 * layer + 128 * 32 + 32
    assert small().flops_per_token == 2 * (3 * (layer - 64) + 128 * 32)
    assert small(tied=True).flops_per_token == small().flops_per_token
    assert small().kv_elements_per_token == 3 * 2 * 2 * 8


@pytest.mark.parametrize(("count", "top_k"), [(4, 1), (4, 2), (5, 3), (3, 3)])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_expected_distinct_experts_equals_enumeration(count: int, top_k: int, tokens: int) -> None:
    choices = list(itertools.combinations(range(count), top_k))
    rounds = list(itertools.product(choices, repeat=tokens))
    mean = sum(len(set().union(*taken)) for taken in rounds) / len(rounds)
    assert Experts(count, top_k, 8).expected_distinct(tokens) == pytest.approx(mean, rel=1e-12)


@given(st.integers(1, 512), st.data(), st.integers(0, 10**6))
def test_expected_distinct_experts_is_bounded(count: int, data: st.DataObject, tokens: int) -> None:
    top_k = data.draw(st.integers(1, count))
    found = float(Experts(count, top_k, 8).expected_distinct(tokens))
    assert 0.0 <= found <= min(count, top_k * tokens) * (1 + 1e-12)


@given(st.integers(0, 10**6), st.integers(1, 10**5))
def test_a_window_saturates(context: int, window: int) -> None:
    full, windowed = Attention(4, 2, 8, 8), Attention(4, 2, 8, 8, window=window)
    assert windowed.tokens_held(context) == min(context, window)
    assert windowed.flops(context) <= full.flops(context)
    assert windowed.cache_elements_per_token == full.cache_elements_per_token == 32


def test_arrays_broadcast_over_context_and_width() -> None:
    architecture = small(layers=((2, Layer(Attention(4, 2, 8, 8, window=100), Dense(48), 64)),))
    contexts, widths = np.array([10.0, 1000.0])[:, None], np.array([1.0, 2.0, 5.0])[None, :]
    assert np.asarray(architecture.kv_elements(contexts)).tolist() == [[2 * 32 * 10], [2 * 32 * 100]]
    surface = np.asarray(architecture.attention_flops(contexts, widths))
    assert surface.shape == (2, 3)
    for row, context in enumerate((10.0, 1000.0)):
        for column, width in enumerate((1.0, 2.0, 5.0)):
            assert surface[row, column] == architecture.attention_flops(context, width)


def test_sparse_latent_attention_reads_at_most_its_top_k() -> None:
    mixer = LatentAttention(64, 1536, 512, 128, 64, 128, index_heads=64, index_dim=128, index_top_k=2048)
    assert mixer.tokens_held(100_000) == 100_000
    assert mixer.tokens_read(100_000) == 2048
    assert mixer.cache_elements_per_token == 576  # DeepSeek-V3 technical report: one latent, no factor 2


def test_a_gated_delta_net_keeps_a_constant_state() -> None:
    mixer = load(catalogue.config("qwen3.5-27b")).architecture
    assert mixer.state_bytes() == 48 * (786432 * 4 + 30720 * 2)  # float32 state, 16-bit convolution


# The case c15 list: 8 KV heads over more GPUs are replicated, never less than one.
@pytest.mark.parametrize(("tp", "held"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_per_gpu(tp: int, held: int) -> None:
    assert kv_heads_per_gpu(8, tp) == held


@pytest.mark.parametrize("tp", [3, 6, 12, 0, -1, True])
def test_kv_heads_that_do_not_divide_are_refused(tp: int) -> None:
    with pytest.raises(InputError, match="tp = "):
        kv_heads_per_gpu(8, tp)


@given(st.integers(1, 300_000), st.sampled_from([1, 2, 3, 6, 8, 24]))
def test_padded_vocabulary_is_the_smallest_legal_one(vocabulary: int, tp: int) -> None:
    padded = padded_vocabulary(vocabulary, tp)
    assert padded >= vocabulary
    assert padded % 64 == padded % tp == 0
    assert not any(size % 64 == size % tp == 0 for size in range(vocabulary, padded))


@pytest.mark.parametrize("entry_id", ["llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "qwen3.5-35b-a3b"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_shares_add_up_to_the_model(entry_id: str, tp: int) -> None:
    """What is divided adds up exactly; what is replicated makes the sum larger, never smaller."""
    architecture = load(catalogue.config(entry_id)).architecture
    whole, share = architecture.parts(), architecture.parts(tp)
    for part in ("dense", "experts", "embedding", "head"):
        assert tp * share.get(part, 0) == whole.get(part, 0)
    for part, count in whole.items():
        assert tp * share[part] >= count
        assert share[part] <= count


def test_fused_projection_replicates_kv_heads() -> None:
    fused, output = Attention(64, 8, 128, 128).matrices(8192)
    assert fused.per_gpu(8) == (8 * 128 + 2 * 128, 8192)
    assert fused.per_gpu(16) == (
        4 * 128 + 2 * 128,
        8192,
    )  # one KV head on every GPU, twice as many as divided
    assert output.per_gpu(16) == (8192, 4 * 128)


def test_illegal_splits_name_what_does_not_divide() -> None:
    glm = Attention(96, 8, 128, 128)
    with pytest.raises(InputError, match="KV heads"):
        glm.matrices(5120)[0].per_gpu(6)
    with pytest.raises(InputError, match="128 attention heads divide by"):
        Attention(128, 1, 512, 512).matrices(4096)[0].per_gpu(24)
    with pytest.raises(InputError, match="feed-forward"):
        Dense(100).matrices(64)[0].per_gpu(8)


def test_the_head_is_padded_and_the_router_replicated() -> None:
    assert Matrix("head", 32003, 64, "head", "rows", is_vocabulary=True).per_gpu(2) == (16032, 64)
    assert Experts(8, 2, 16).matrices(64)[0].per_gpu(4) == (8, 64)


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 256), st.integers(1, 5))
def test_streamed_weights_never_exceed_resident(top_k: int, extra: int, width: int, layers: int) -> None:
    experts = Experts(top_k + extra, top_k, width)
    architecture = small(layers=((layers, Layer(Attention(4, 2, 8, 8), experts, 64)),))
    assert architecture.active_parameters <= architecture.parameters
    assert architecture.streamed_parameters == architecture.active_parameters - 128 * 32
    assert sum(architecture.parts().values()) == architecture.parameters
