"""The CPU decode kernel against attention as it is defined, computed in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from specmodel.errors import InputError
from specmodel.hardware.kernels import LAYERS, LayerShape, chain, cpu, tree

Array = NDArray[Any]


def reference(q: Array, k: Array, v: Array, lengths: list[int], seen: list[tuple[int, ...]]) -> Array:
    """Loop over sequences, queries and heads; one softmax each, in float64."""
    _, width, heads, dim = q.shape
    group = heads // k.shape[1]
    out = np.zeros(q.shape)
    for b, length in enumerate(lengths):
        for i in range(width):
            tokens = list(range(length - width))
            tokens += [length - width + j for j in range(width) if seen[b][i] >> j & 1]
            for h in range(heads):
                keys = k[b, h // group, tokens].astype(np.float64)
                scores = keys @ q[b, i, h].astype(np.float64) / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                out[b, i, h] = weights @ v[b, h // group, tokens] / weights.sum()
    return out


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, Array, list[int], list[tuple[int, ...]]]:
    width = draw(st.integers(1, 9))
    group, kv_heads, batch = draw(st.integers(1, 8)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dim = draw(st.sampled_from([16, 64, 128]))
    capacity = cpu.padded(draw(st.integers(width, 300)), cpu.block_tokens(dim))
    lengths = [draw(st.integers(width, capacity)) for _ in range(batch)]
    masks = [tree([-1, *(draw(st.integers(0, node - 1)) for node in range(1, width))]) for _ in range(batch)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = rng.standard_normal((batch, width, kv_heads * group, dim), dtype=np.float32)
    k, v = (rng.standard_normal((batch, kv_heads, capacity, dim), dtype=np.float32) for _ in range(2))
    return q, k, v, lengths, masks


@given(problems())
@settings(max_examples=40, deadline=None)
def test_attention_equals_its_definition_for_ragged_lengths_and_trees(
    problem: tuple[Array, Array, Array, list[int], list[tuple[int, ...]]],
) -> None:
    q, k, v, lengths, masks = problem
    expected = reference(q, k, v, lengths, masks)
    for b, length in enumerate(lengths):  # what lies beyond the end must not matter
        k[b, :, length:] = 1e30
        v[b, :, length:] = 0.0
    np.testing.assert_allclose(cpu.attention(q, k, v, lengths, masks), expected, atol=2e-5)


def test_without_a_mask_each_new_token_sees_itself_and_all_before() -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((2, 4, 4, 64), dtype=np.float32)
    k, v = (rng.standard_normal((2, 2, 128, 64), dtype=np.float32) for _ in range(2))
    one_by_one = np.concatenate([cpu.attention(q[:, [i]], k, v, [97 + i, 125 + i]) for i in range(4)], axis=1)
    np.testing.assert_allclose(cpu.attention(q, k, v, [100, 128]), one_by_one, atol=2e-6)


def test_a_verified_layer_gives_what_decoding_token_by_token_gives() -> None:
    """The claim that speculation rests on: one wide pass equals as many plain passes."""
    shape = LayerShape("tiny", 64, 4, 2, 32, 96)
    rng = np.random.default_rng(2)
    weights = {
        name: rng.standard_normal(size, dtype=np.float32) * np.float32(0.1)
        for name, size in shape.matrices.items()
    }
    batch, width, context = 3, 5, 40
    k, v = rng.standard_normal((2, batch, 2, 256, 32), dtype=np.float32)
    k_wide, v_wide = k.copy(), v.copy()
    x = rng.standard_normal((64, batch * width), dtype=np.float32)
    wide = cpu.layer_pass(shape, weights, k_wide, v_wide, x, [context + width] * batch)
    for i in range(width):
        narrow = cpu.layer_pass(shape, weights, k, v, x[:, i::width], [context + i + 1] * batch)
        np.testing.assert_allclose(wide[:, i::width], narrow, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(k_wide, k, atol=1e-4)


@given(tokens=st.integers(1, 40))
@settings(deadline=None)
def test_padding_to_whole_tiles_changes_no_product(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    weight = rng.standard_normal((24, 40), dtype=np.float32)
    x = rng.standard_normal((40, tokens), dtype=np.float32)
    np.testing.assert_allclose(cpu.linear(weight, x), weight.astype(np.float64) @ x, atol=1e-5)


def test_every_piece_of_work_is_done_once_and_a_failure_comes_out() -> None:
    done: list[int] = []
    cpu.share_out(done.append, range(1000))
    assert sorted(done) == list(range(1000))
    cpu.share_out(done.append, [])
    with pytest.raises(ZeroDivisionError):
        cpu.share_out(lambda piece: 1 // piece, [1, 1, 0, 1])


def test_blas_is_held_to_one_thread_only_while_measuring() -> None:
    def threads() -> list[int]:
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    before = threads()
    with cpu.one_blas_thread():
        assert set(threads()) <= {1}
    assert threads() == before


def test_layer_shapes_have_the_weights_of_their_models() -> None:
    """Per-layer weights from the models' published sizes: Llama-3.1-8B's 32 layers hold 6.98e9 of 8.03e9."""
    sizes = {name: sum(n * k for n, k in layer.matrices.values()) for name, layer in LAYERS.items()}
    assert sizes["llama-3.1-8b"] == 218_103_808
    assert sizes["llama-3.2-1b"] == 60_817_408
    assert sizes["qwen3-1.7b"] == 50_331_648


@pytest.mark.parametrize("parents", [[], [0], [-1, 1], [-1, -1], [-1] * 64])
def test_a_tree_that_is_none_is_refused(parents: list[int]) -> None:
    with pytest.raises(InputError, match=r"parents|width"):
        tree(parents)


def test_a_chain_is_the_tree_whose_nodes_follow_one_another() -> None:
    assert chain(4) == tree([-1, 0, 1, 2]) == (0b1, 0b11, 0b111, 0b1111)


@pytest.mark.parametrize(
    ("kv_heads", "capacity", "lengths", "field"),
    [(3, 128, [9], "k"), (2, 100, [9], "capacity"), (2, 128, [129], "lengths"), (2, 128, [0], "lengths")],
)
def test_shapes_that_do_not_fit_are_refused(
    kv_heads: int, capacity: int, lengths: list[int], field: str
) -> None:
    q = np.zeros((1, 1, 4, 64), np.float32)
    k = np.zeros((1, kv_heads, capacity, 64), np.float32)
    with pytest.raises(InputError) as caught:
        cpu.attention(q, k, k, lengths)
    assert caught.value.field == field
