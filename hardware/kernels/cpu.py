"""The decode layer on a CPU: NumPy and its BLAS, float32, all cores.

The same reading of memory as the GPU kernel. A block of keys (32 KiB) comes in from memory once and is
multiplied by every query of its KV head while it sits in the core's own cache; the weights go through
BLAS's matrix product with all new tokens side by side. Threads are Python's: NumPy lets go of the interpreter
lock inside a product, and blocks are small enough that BLAS starts no threads of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmodel.errors import InputError
from specmodel.hardware.kernels import LayerShape, chain

Floats = NDArray[np.float32]

TILE = 8  # new tokens are padded to whole register tiles of the matrix product: 5 unpadded cost more than 8
_BLOCK_ELEMENTS = 8192  # of one block of keys: within a 32 KiB first-level cache
_SCORE_BYTES = 256 * 1024  # of one piece of work: scores are read again, so they should stay in the cache


def block_tokens(head_dim: int) -> int:
    """Cached tokens per block; a cache's capacity is a multiple of it."""
    return max(1, _BLOCK_ELEMENTS // head_dim)


def padded(count: int, multiple: int) -> int:
    """``count`` rounded up to a multiple.

    >>> padded(5, 8)
    8
    """
    return -(-count // multiple) * multiple


def thread_count() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


@cache
def pool() -> ThreadPoolExecutor:
    """One thread per core, started once."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")


def linear(weight: Floats, x: Floats) -> Floats:
    """``weight @ x`` for new tokens side by side: weight (outputs, inputs), x (inputs, tokens).

    One token goes through the same matrix product as many. (BLAS has a faster routine for exactly one
    column, which a verification pass cannot use; `measure` reports it beside.)
    """
    tokens = x.shape[1]
    if tokens % TILE:
        wide = np.zeros((x.shape[0], padded(tokens, TILE)), np.float32)
        wide[:, :tokens] = x
        return (weight @ wide)[:, :tokens]
    return weight @ x


def attention(
    q: Floats, k: Floats, v: Floats, lengths: Sequence[int] | NDArray[Any], seen: Iterable[Any] | None = None
) -> Floats:
    """Decode attention of ``width`` new tokens per sequence, each cached key and value read once.

    Parameters
    ----------
    q : ndarray, shape (batch, width, heads, head_dim), float32
        Queries of the new tokens.
    k, v : ndarray, shape (batch, kv_heads, capacity, head_dim), float32
        The cache, the new tokens' keys and values already written at its end; capacity a multiple of
        `block_tokens`. Beyond a sequence's end any numbers may stand, but numbers they must be.
    lengths : sequence of int, shape (batch,)
        Tokens per sequence, the new ones included.
    seen : array_like, shape (batch, width), optional
        Bit j of entry i: new token i sees new token j (`kernels.tree`). Default: a chain.

    Returns
    -------
    ndarray, shape of q

    Raises
    ------
    InputError
        For shapes that do not fit together, and lengths outside of the cache.
    """
    batch, width, heads, head_dim = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != head_dim or heads % kv_heads:
        raise InputError("k", k.shape, f"must fit q {q.shape}: (batch, kv_heads, tokens, head_dim)")
    if capacity % block_tokens(head_dim):
        raise InputError("capacity", capacity, f"must be a multiple of {block_tokens(head_dim)} tokens")
    lengths = [int(length) for length in lengths]
    if len(lengths) != batch or not all(width <= length <= capacity for length in lengths):
        raise InputError("lengths", lengths, f"must be {batch} values of {width} to {capacity}")
    masks = [chain(width)] * batch if seen is None else [[int(bits) for bits in row] for row in seen]
    rows = width * heads // kv_heads
    # Rows of one KV head: (new token, head of the group), scaled once here instead of every score.
    packed = q.reshape(batch, width, kv_heads, -1, head_dim).transpose(0, 2, 1, 3, 4)
    packed = packed.reshape(batch, kv_heads, rows, head_dim) * np.float32(head_dim**-0.5)
    out = np.empty((batch, kv_heads, rows, head_dim), np.float32)

    def work(piece: tuple[int, slice]) -> None:
        b, some = piece
        out[b, some] = _attend(packed[b, some], k[b, some], v[b, some], lengths[b], masks[b])

    if thread_count() == 1:
        for piece in _pieces(lengths, kv_heads, rows):
            work(piece)
    else:
        list(pool().map(work, _pieces(lengths, kv_heads, rows)))
    out = out.reshape(batch, kv_heads, width, -1, head_dim).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(out).reshape(q.shape)


def _pieces(lengths: Sequence[int], kv_heads: int, rows: int) -> list[tuple[int, slice]]:
    """(sequence, KV heads) that one thread takes at a time: enough pieces for all, scores within cache."""
    per_thread = max(1, len(lengths) * kv_heads // thread_count())
    pieces = []
    for b, length in enumerate(lengths):
        fit = _SCORE_BYTES // (4 * length * rows)
        step = max(1, min(kv_heads, per_thread, fit))
        pieces += [(b, slice(first, min(first + step, kv_heads))) for first in range(0, kv_heads, step)]
    return pieces


def _attend(q: Floats, k: Floats, v: Floats, length: int, seen: Sequence[int]) -> Floats:
    """Some KV heads of one sequence: q (heads, rows, dim), k and v (heads, capacity, dim)."""
    heads, rows, dim = q.shape
    size, width = block_tokens(dim), len(seen)
    blocks = -(-length // size)
    k, v = (cached[:, : blocks * size].reshape(heads, blocks, 1, size, dim) for cached in (k, v))
    # All rows follow each other on one block of keys: it is in the core's cache from the second on.
    scores = (k @ q[:, None, :, :, None])[..., 0]  # (heads, blocks, rows, size)
    first = (length - width) // size  # the first block that holds a new token
    hidden = _hidden(np.arange(first * size, blocks * size) - (length - width), seen)
    hidden = hidden.reshape(width, blocks - first, size).transpose(1, 0, 2)
    # Row = (new token, head of the group): both axes apart, the mask is the same for the group.
    by_token = scores.reshape(heads, blocks, width, rows // width, size)[:, first:]
    np.copyto(by_token, -np.inf, where=hidden[None, :, :, None, :])
    scores -= scores.max(axis=(1, 3))[:, None, :, None]
    np.exp(scores, out=scores)
    mass = scores.sum(axis=(1, 3))
    total = (scores[:, :, :, None] @ v)[:, :, :, 0].sum(axis=1)  # (heads, rows, dim)
    return np.asarray(total / mass[..., None])


def _hidden(node: NDArray[Any], seen: Sequence[int]) -> NDArray[np.bool_]:
    """Which tokens each new token must not see; ``node`` counts from the first new token, below 0: cached."""
    width = len(seen)
    bits = np.array([[bits >> j & 1 for j in range(width)] for bits in seen], dtype=bool)
    new = (node >= 0) & (node < width)
    visible: NDArray[np.bool_] = (node < 0) | (new & bits[:, np.clip(node, 0, width - 1)])
    return ~visible


def layer_pass(
    shape: LayerShape,
    weights: Mapping[str, Floats],
    k: Floats,
    v: Floats,
    x: Floats,
    lengths: Sequence[int],
) -> Floats:
    """One decoder layer for ``width`` new tokens per sequence, without rotary embedding.

    Parameters
    ----------
    weights : mapping of ndarray
        The four matrices of ``shape.matrices``.
    k, v : ndarray, shape (batch, kv_heads, capacity, head_dim)
        The cache; the new tokens' keys and values are written to the end of each sequence.
    x : ndarray, shape (hidden, batch * width)
        Activations, tokens side by side, those of one sequence adjacent.
    lengths : sequence of int, shape (batch,)
        Tokens per sequence, the new ones included.

    Returns
    -------
    ndarray, shape of x
    """
    batch, tokens = len(lengths), x.shape[1]
    width = tokens // batch
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    qkv = linear(weights["qkv"], _normed(x)).T.reshape(batch, width, heads + 2 * kv_heads, dim)
    for b, length in enumerate(lengths):
        k[b, :, length - width : length] = qkv[b, :, heads : heads + kv_heads].swapaxes(0, 1)
        v[b, :, length - width : length] = qkv[b, :, heads + kv_heads :].swapaxes(0, 1)
    mixed = attention(np.ascontiguousarray(qkv[:, :, :heads]), k, v, lengths)
    x = x + linear(weights["o"], np.ascontiguousarray(mixed.reshape(tokens, heads * dim).T))
    gate, up = np.split(linear(weights["gate_up"], _normed(x)), 2)
    swish = gate * (0.5 + 0.5 * np.tanh(0.5 * gate))  # gate * sigmoid(gate), and no overflow
    return x + linear(weights["down"], swish * up)


def _normed(x: Floats) -> Floats:
    """Each token (column) divided by its root mean square."""
    scaled: Floats = x / np.sqrt(np.mean(x * x, axis=0) + np.float32(1e-6))
    return scaled
