# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call, no-untyped-def, no-any-return"
# ruff: noqa: N803 -- Triton kernels: capitals are pointers and compile-time constants
"""Split-KV decode attention in Triton, and the weight matrices of a layer through torch.

How one pass over the cache serves every query (flash decoding [1]_ with the queries packed):

1. A program takes one sequence, one KV head and one *split* of that sequence's tokens. All queries that use
   this KV head (``width`` new tokens x ``heads / kv_heads``) are the rows of one tile, so keys and
   values leave memory once, whatever the width.
2. It walks over its tokens block by block with a running maximum and sum (online softmax [2]_).
   Only the last blocks, which hold the new tokens, need a mask.
3. A second, tiny kernel adds up the splits, each weighted by its own softmax sum.

Splits exist because one sequence times a few KV heads would leave most of the GPU idle.

This module needs torch and Triton (extra ``gpu``); `load` turns their absence into one line.

References
----------
.. [1] T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for long-context inference", 2023.
.. [2] M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from specmodel.errors import InputError
from specmodel.hardware.kernels import LayerShape, chain

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Launch:
    """How the attention kernel is cut: cached tokens per block, warps, blocks in flight."""

    block: int = 64
    warps: int = 4
    stages: int = 3


@triton.jit
def _walk(
    q, total, peak, mass, k_start, v_start, first, last, context, length, seen, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, NEW: tl.constexpr,
):  # fmt: skip
    """Add tokens ``first`` to ``last`` to the running softmax; NEW: some are new, or past the end."""
    column = tl.arange(0, D)
    for start in range(first, last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        offset = token[:, None] * D + column[None, :]
        if NEW:
            keys = tl.load(k_start + offset, mask=token[:, None] < length, other=0.0)
            values = tl.load(v_start + offset, mask=token[:, None] < length, other=0.0)
        else:
            keys = tl.load(k_start + offset)
            values = tl.load(v_start + offset)
        scores = tl.dot(q, tl.trans(keys.to(q.dtype))) * scale
        if NEW:
            # Cached tokens are seen by all; new token j by the rows whose bit j is set.
            node = tl.maximum(token - context, 0).to(tl.int64)
            ancestor = ((seen[:, None] >> node[None, :]) & 1) == 1
            visible = ((token < context)[None, :] | ancestor) & (token < length)[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet keeps peak = -inf; subtract 0 there, or -inf - -inf makes NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(peak - base)
        mass = mass * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None] + tl.dot(weights.to(q.dtype), values.to(q.dtype))
        peak = higher
    return total, peak, mass


@triton.jit
def _attend_split(
    Q, K, V, Lengths, Seen, Total, LogMass,
    width, capacity, scale, v_scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One sequence, one KV head, one split; rows are (new token, head of the group)."""
    lane = tl.program_id(0)  # sequence * KV_HEADS + KV head
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    sequence = lane // KV_HEADS
    row = tl.arange(0, ROWS)
    new, head = row // GROUP, (lane % KV_HEADS) * GROUP + row % GROUP
    used = new < width

    column = tl.arange(0, D)
    where = ((sequence * width + new) * (KV_HEADS * GROUP) + head)[:, None] * D + column[None, :]
    q = tl.load(Q + where, mask=used[:, None], other=0.0)
    seen = tl.load(Seen + sequence * width + new, mask=used, other=0)

    # Each sequence is cut by its own length, so ragged batches stay balanced.
    length = tl.load(Lengths + sequence)
    context = length - width
    share = tl.cdiv(tl.cdiv(length, BLOCK), splits) * BLOCK
    first = split * share
    last = tl.minimum(first + share, length)
    plain = tl.maximum(first, tl.minimum(last, context) // BLOCK * BLOCK)

    start = lane.to(tl.int64) * capacity * D
    total = tl.zeros([ROWS, D], tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total, peak, mass = _walk(
        q, total, peak, mass, K + start, V + start, first, plain, context, length, seen, scale,
        D, BLOCK, False,
    )  # fmt: skip
    total, peak, mass = _walk(
        q, total, peak, mass, K + start, V + start, plain, last, context, length, seen, scale,
        D, BLOCK, True,
    )  # fmt: skip

    share_of = (lane * splits + split) * (width * GROUP) + row
    mass = tl.where(mass > 0.0, mass, 1.0)  # a split without tokens: total is 0 and peak -inf already
    total = total * (v_scale / mass)[:, None]
    tl.store(Total + share_of[:, None] * D + column[None, :], total, mask=used[:, None])
    tl.store(LogMass + share_of, peak + tl.log2(mass), mask=used)


@triton.jit
def _combine_splits(
    Total, LogMass, Out, width, splits,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One query row: its splits, each weighted by the softmax mass it saw."""
    lane, row = tl.program_id(0), tl.program_id(1)
    part = tl.arange(0, SPLITS)
    share_of = (lane * splits + part) * (width * GROUP) + row
    log_mass = tl.load(LogMass + share_of, mask=part < splits, other=float("-inf"))
    weights = tl.exp2(log_mass - tl.max(log_mass, 0))
    weights = weights / tl.sum(weights, 0)
    column = tl.arange(0, D)
    totals = tl.load(
        Total + share_of[:, None] * D + column[None, :], mask=(part < splits)[:, None], other=0.0
    )
    result = tl.sum(totals * weights[:, None], 0)
    sequence, kv_head = lane // KV_HEADS, lane % KV_HEADS
    query = (sequence * width + row // GROUP) * (KV_HEADS * GROUP) + kv_head * GROUP + row % GROUP
    tl.store(Out + query * D + column, result.to(Out.dtype.element_ty))


def rows_of(width: int, group: int) -> int:
    """Rows of the query tile: all queries of a KV head, up to a power of two that tensor cores take."""
    return max(16, triton.next_power_of_2(width * group))


def launch_of(rows: int) -> Launch:
    """The default cut: a wide tile needs the registers of more warps."""
    return Launch(warps=4 if rows <= 64 else 8)


def splits_of(programs: int, blocks: int, slots: int) -> int:
    """Into how many splits to cut each sequence.

    Parameters
    ----------
    programs : int
        Sequences x KV heads.
    blocks : int
        Blocks of tokens in the longest sequence.
    slots : int
        Programs that the GPU runs at once.

    Returns
    -------
    int
        The fewest splits, up to 64, that keep at least 0.9 of the best attainable share of slots busy: the
        last round of programs is seldom full, and every split costs a pass through memory of its own.
    """

    def busy(splits: int) -> float:
        rounds = programs * splits / slots
        return rounds / math.ceil(rounds)

    options = range(1, min(64, blocks) + 1)
    best = max(busy(splits) for splits in options)
    return next(splits for splits in options if busy(splits) >= 0.9 * best)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    seen: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    splits: int | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """Decode attention of ``width`` new tokens per sequence, each cached key and value read once.

    Parameters
    ----------
    q : Tensor, shape (batch, width, heads, head_dim), bf16 or fp16
        Queries of the new tokens. head_dim 16, 32, 64, 128 or 256.
    k, v : Tensor, shape (batch, kv_heads, capacity, head_dim), type of q or float8_e4m3fn
        The cache, the new tokens' keys and values already written at its end. Contiguous.
    lengths : Tensor, shape (batch,), int32
        Tokens per sequence, the new ones included: width <= length <= capacity, which the caller
        ensures (reading them back here would stop the GPU on every step).
    seen : Tensor, shape (batch, width), int64, optional
        Bit j of entry i: new token i sees new token j (`kernels.tree`). Default: a chain.
    scale : float, optional
        Of the scores; default head_dim ** -0.5.
    k_scale, v_scale : float
        What an fp8 cache was divided by.
    splits, launch : optional
        How the work is cut; default: enough splits to fill the GPU.

    Returns
    -------
    Tensor, shape and type of q

    Raises
    ------
    InputError
        For shapes or types that do not fit together.
    """
    check_shapes(q, k, v)
    batch, width, heads, head_dim = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2]
    group = heads // kv_heads
    launch = launch or launch_of(rows_of(width, group))
    if seen is None:
        seen = torch.tensor(chain(width), dtype=torch.int64, device=q.device).expand(batch, width)
    if splits is None:
        splits = splits_of(batch * kv_heads, triton.cdiv(capacity, launch.block), slots(q.device))
    lanes, rows = batch * kv_heads, width * group
    total = torch.empty((lanes, splits, rows, head_dim), dtype=torch.float32, device=q.device)
    log_mass = torch.empty((lanes, splits, rows), dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    _attend_split[(lanes, splits)](
        q, k, v, lengths, seen.contiguous(), total, log_mass,
        width, capacity, (scale or head_dim**-0.5) * k_scale * LOG2_E, v_scale,
        KV_HEADS=kv_heads, GROUP=group, D=head_dim, ROWS=rows_of(width, group), BLOCK=launch.block,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
    _combine_splits[(lanes, rows)](
        total, log_mass, out, width, splits,
        KV_HEADS=kv_heads, GROUP=group, D=head_dim, SPLITS=triton.next_power_of_2(splits), num_warps=4,
    )  # fmt: skip
    return out


def check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse what the kernel would read wrongly."""
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        raise InputError("q, k, v", [tuple(t.shape) for t in (q, k, v)], "must have 4 axes, k and v alike")
    batch, _, heads, head_dim = q.shape
    if k.shape[0] != batch or k.shape[3] != head_dim or heads % k.shape[1]:
        raise InputError(
            "k", tuple(k.shape), f"must fit q {tuple(q.shape)}: (batch, kv_heads, tokens, head_dim)"
        )
    if head_dim not in (16, 32, 64, 128, 256):
        raise InputError("head_dim", head_dim, "must be 16, 32, 64, 128 or 256")
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise InputError("q", str(q.dtype), "must be bfloat16 or float16")
    if k.dtype != v.dtype or k.dtype not in (q.dtype, torch.float8_e4m3fn):
        raise InputError("k", str(k.dtype), f"must be {q.dtype} or torch.float8_e4m3fn")
    if k.dtype == torch.float8_e4m3fn and q.is_cuda and torch.cuda.get_device_capability(q.device) < (8, 9):
        raise InputError("k", str(k.dtype), "fp8 needs compute capability 8.9 or later")
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        raise InputError("q, k, v", "strided", "must be contiguous")


def slots(device: torch.device) -> int:
    """Attention programs that run at once: two per multiprocessor (a stand-in of 8 off the GPU)."""
    if device.type != "cuda":
        return 8
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` in 16 bit by the vendor's library; x (tokens, inputs), weight (outputs, inputs)."""
    return torch.nn.functional.linear(x, weight)


def linear_int8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``x @ (weight * scales).T`` with int8 weights and one scale per output, multiplied in 16 bit.

    torch has this product only as an internal operator, and not on every device; see `has_linear_int8`.
    """
    return torch._weight_int8pack_mm(x, weight, scales)


def has_linear_int8(device: torch.device | str) -> bool:
    """Whether this torch multiplies by int8 weights on this device."""
    try:
        linear_int8(
            torch.zeros((16, 64), dtype=torch.bfloat16, device=device),
            torch.zeros((64, 64), dtype=torch.int8, device=device),
            torch.ones((64,), dtype=torch.bfloat16, device=device),
        )
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True


def layer_pass(
    shape: LayerShape,
    weights: Mapping[str, torch.Tensor],
    k: torch.Tensor,
    v: torch.Tensor,
    x: torch.Tensor,
    lengths: torch.Tensor,
    seen: torch.Tensor,
    launch: Launch | None = None,
) -> torch.Tensor:
    """One decoder layer for ``width`` new tokens per sequence, without rotary embedding.

    Parameters
    ----------
    weights : mapping of Tensor
        The four matrices of ``shape.matrices``.
    k, v : Tensor, shape (batch, kv_heads, capacity, head_dim)
        The cache; the new tokens' keys and values are written to the end of each sequence.
    x : Tensor, shape (batch, width, hidden)
        Activations.
    lengths, seen : Tensor
        As `attention` takes them.

    Returns
    -------
    Tensor, shape of x
    """
    batch, width, hidden = x.shape
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim

    def normed(y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(y, (hidden,), eps=1e-6)

    qkv = linear(normed(x), weights["qkv"]).view(batch, width, heads + 2 * kv_heads, dim)
    sequence = torch.arange(batch, device=x.device)[:, None]
    place = lengths[:, None].long() - width + torch.arange(width, device=x.device)
    k[sequence, :, place] = qkv[:, :, heads : heads + kv_heads].to(k.dtype)
    v[sequence, :, place] = qkv[:, :, heads + kv_heads :].to(v.dtype)
    mixed = attention(qkv[:, :, :heads].contiguous(), k, v, lengths, seen, launch=launch)
    x = x + linear(mixed.view(batch, width, heads * dim), weights["o"])
    gate, up = linear(normed(x), weights["gate_up"]).chunk(2, dim=-1)
    return x + linear(torch.nn.functional.silu(gate) * up, weights["down"])
