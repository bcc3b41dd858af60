"""The decode layer on a CPU: NumPy and its BLAS, float32, all cores.

The same reading of memory as the GPU kernel. A block of keys (32 KiB) comes in from memory once and is
multiplied by every query of its KV head while it sits in the core's own cache; the weights go through
BLAS's matrix product with all new tokens side by side. Threads are Python's, and take the next piece of work when
they are done with one: NumPy lets go of the interpreter lock inside a product. BLAS's own threads share
a product out once, wait for the slowest, and spin on afterwards on cores that the rest of the layer wants: with them a
layer took 1.4 to 1.6 times as long (two cores, OpenBLAS 0.3.31). `one_blas_thread` keeps them out.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specmodel.errors import InputError
from specmodel.hardware.kernels import LayerShape, chain

Floats = NDArray[np.float32]
Piece = TypeVar("Piece")

TILE = 8  # new tokens are padded to whole register tiles of the matrix product: 5 unpadded cost more than 8
_BLOCK_ELEMENTS = 8192  # of one block of keys: within a 32 KiB first-level cache
_MOST_ROWS = (
    256  # of a weight matrix in one piece: BLAS packs the tokens anew for each, and below 64 that tells
)
_TURNS = 4  # pieces per core at least, so that no core waits long for another
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
def _helpers() -> ThreadPoolExecutor:
    """Threads for all cores but the caller's, all started here.

    An executor that is interrupted while it starts a thread forgets that thread, and the process waits for it forever
    when it ends. So none starts later, and an interruption here dismisses them all.
    """
    count = max(1, thread_count() - 1)
    pool = ThreadPoolExecutor(count, thread_name_prefix="decode")
    all_up = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            pool.submit(all_up.wait)
        all_up.wait()
    except BaseException:
        all_up.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return pool


def share_out(work: Callable[[Piece], object], pieces: Sequence[Piece]) -> None:
    """Do all pieces, every core taking the next one when it is free; this thread works too."""
    left = iter(pieces)  # one next() at a time, under the interpreter lock

    def take() -> None:
        for piece in left:
            work(piece)

    others = [_helpers().submit(take) for _ in range(min(thread_count(), len(pieces)) - 1)]
    take()
    for other in others:
        other.result()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While it lasts, NumPy's products start no threads of their own."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


def linear(weight: Floats, x: Floats) -> Floats:
    """``weight @ x`` for new tokens side by side: weight (outputs, inputs), x (inputs, tokens).

    One token goes through the same matrix product as many. (BLAS has a faster routine for exactly one
    column, which a verification pass cannot use; `measure` reports it beside.)
    """
    tokens, outputs = x.shape[1], len(weight)
    if tokens % TILE:
        wide = np.zeros((x.shape[0], padded(tokens, TILE)), np.float32)
        wide[:, :tokens] = x
        x = wide
    y = np.empty((outputs, x.shape[1]), np.float32)
    rows = min(_MOST_ROWS, padded(-(-outputs // (_TURNS * thread_count())), TILE))

    def work(first: int) -> None:
        np.matmul(weight[first : first + rows], x, out=y[first : first + rows])

    share_out(work, range(0, outputs, rows))
    return y[:, :tokens]


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
    masks = np.array([chain(width)] * batch if seen is None else list(seen), dtype=np.int64)
    if masks.shape != (batch, width):
        raise InputError("seen", masks.shape, f"must be {batch} x {width} words of bits")
    # A lane is one KV head of one sequence; its rows are (new token, head of the group). The queries are
    # scaled once here instead of every score later.
    lanes, rows = batch * kv_heads, width * heads // kv_heads
    packed = q.reshape(batch, width, kv_heads, -1, head_dim).transpose(0, 2, 1, 3, 4)
    packed = packed.reshape(lanes, rows, head_dim) * np.float32(head_dim**-0.5)
    keys, values = (cached.reshape(lanes, capacity, head_dim) for cached in (k, v))
    bits = (masks[:, :, None] >> np.arange(width) & 1).astype(bool).repeat(kv_heads, axis=0)
    out = np.empty_like(packed)

    def work(piece: tuple[slice, int]) -> None:
        some, length = piece
        out[some] = _attend(packed[some], keys[some], values[some], length, bits[some])

    share_out(work, _pieces(lengths, kv_heads, rows))
    out = out.reshape(batch, kv_heads, width, -1, head_dim).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(out).reshape(q.shape)


def _pieces(lengths: Sequence[int], kv_heads: int, rows: int) -> list[tuple[slice, int]]:
    """(lanes, length) that one thread takes at a time: lanes of equal length, scores that fit the cache.

    Few and large: the interpreter runs between them, and only one thread at a time can be in it.
    """
    most = max(1, len(lengths) * kv_heads // thread_count())
    pieces, first = [], 0
    for length, alike in itertools.groupby(lengths):
        stop = first + kv_heads * len(list(alike))
        step = max(1, min(most, _SCORE_BYTES // (4 * length * rows)))
        pieces += [(slice(at, min(at + step, stop)), length) for at in range(first, stop, step)]
        first = stop
    return pieces


def _attend(q: Floats, k: Floats, v: Floats, length: int, seen: NDArray[np.bool_]) -> Floats:
    """Lanes of one length: q (lanes, rows, dim), k, v (lanes, capacity, dim), seen (lanes, width, width)."""
    lanes, rows, dim = q.shape
    size, width = block_tokens(dim), seen.shape[1]
    blocks = -(-length // size)
    k, v = (cached[:, : blocks * size].reshape(lanes, blocks, 1, size, dim) for cached in (k, v))
    # All rows follow each other on one block of keys: it is in the core's cache from the second on.
    scores = (k @ q[:, None, :, :, None])[..., 0]  # (lanes, blocks, rows, size)
    first = (length - width) // size  # the first block that holds a new token
    visible = _visible(np.arange(first * size, blocks * size) - (length - width), seen)
    visible = visible.reshape(lanes, width, blocks - first, size).transpose(0, 2, 1, 3)
    # Row = (new token, head of the group): with both axes apart, the mask is the same for the group.
    by_token = scores.reshape(lanes, blocks, width, rows // width, size)[:, first:]
    np.copyto(by_token, -np.inf, where=~visible[:, :, :, None])
    scores -= scores.max(axis=(1, 3))[:, None, :, None]
    np.exp(scores, out=scores)
    mass = scores.sum(axis=(1, 3))
    total = (scores[:, :, :, None] @ v)[:, :, :, 0].sum(axis=1)  # (lanes, rows, dim)
    return np.asarray(total / mass[..., None])


def _visible(node: NDArray[Any], seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which tokens each new token sees; ``node`` counts them from the first new one, below 0: cached."""
    width = seen.shape[1]
    new = (node >= 0) & (node < width)
    visible: NDArray[np.bool_] = (node < 0) | (new & seen[:, :, np.clip(node, 0, width - 1)])
    return visible


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
