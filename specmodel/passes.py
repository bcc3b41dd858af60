"""One forward pass of a model as a list of kernels, per GPU.

A plain step scores one position per sequence, a verification pass `width` of them (k + 1, root included). Both read
the weights once, and every sequence's KV cache once: attention kernels for decoding share one read among all queries
of a sequence. An engine whose kernel re-reads the cache says so through `kv_reread`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks
from specmodel.architecture import Attention, Experts, LatentAttention, Layer, LinearAttention
from specmodel.errors import InputError
from specmodel.layers.matrices import Matrix
from specmodel.model import INDEX_KEY_BYTES, Model, Totals
from specmodel.roofline import Kernel

if TYPE_CHECKING:
    from specmodel.units import Numeric

ACTIVATION_BYTES = 2.0  # activations travel in 16 bit between kernels in every engine considered
SMALL_KERNELS_PER_LAYER = 4  # two norms with their residuals, rotary embedding with the KV write, the gate
SMALL_TRAFFIC = 3.0  # a small kernel reads two activations and writes one


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is laid over GPUs, and how often an engine's attention reads the cache in a verification pass.

    Attributes
    ----------
    tp : int
        Tensor-parallel GPUs.
    ep : int
        Expert-parallel GPUs among them: each holds whole experts instead of a slice of all. Divides `tp`.
    kv_reread : float
        Times the KV cache is read in a pass of several positions; never more than the positions.
    """

    tp: int = 1
    ep: int = 1
    kv_reread: float = 1.0

    def __post_init__(self) -> None:
        checks.whole("tp", self.tp, low=1, high=1024)
        checks.whole("ep", self.ep, low=1, high=1024)
        if self.tp % self.ep:
            raise InputError("ep", self.ep, f"must divide tp ({self.tp})")
        checks.real("kv reread", self.kv_reread, low=1.0, high=1e4)


def forward_pass(
    model: Model | Totals,
    *,
    batch: Numeric,
    context: Numeric,
    width: Numeric = 1,
    split: Split | None = None,
) -> list[Kernel]:
    """The kernels of one pass of `batch` sequences with `context` cached tokens each, `width` positions per sequence.

    Parameters
    ----------
    model : Model or Totals
        An architecture with its precision, or a model given as totals (then the pass is one kernel).
    batch, context, width : float or ndarray
        Broadcast together. Real batches are allowed: crossings lie between integers.
    split : Split, optional
        GPUs and cache reads; one GPU and one read by default.

    Returns
    -------
    list of Kernel
        Sizes are of one GPU.

    Raises
    ------
    InputError
        If heads or widths do not divide over the GPUs.
    """
    layout = split or Split()
    if isinstance(model, Totals):
        return [_whole_pass(model, batch, context, width, layout)]
    builder = PassBuilder(model, batch, context, width, layout)
    kernels: list[Kernel] = []
    for count, layer in model.architecture.layers:
        kernels += builder.layer(layer, count)
    kernels.append(builder.gemm(model.architecture.head, 1))
    return kernels


def _whole_pass(model: Totals, batch: Numeric, context: Numeric, width: Numeric, split: Split) -> Kernel:
    if split.tp > 1:
        raise InputError("tp", split.tp, f"{model.name} is given as totals: one GPU only")
    reads = _reads(width, split.kv_reread)
    return Kernel(
        "whole pass",
        "pass",
        weight_bytes=model.weight_bytes,
        cache_bytes=batch * context * model.kv_bytes_per_token * reads,
        flops=batch * width * model.flops_per_token,
    )


def _reads(width: Numeric, kv_reread: float) -> Numeric:
    """Times the cache is read: once in a plain step, at most once per position."""
    if kv_reread == 1.0:
        return 1.0
    reads: Numeric = np.minimum(np.asarray(width, dtype=float), kv_reread)
    return reads


@dataclass(frozen=True, slots=True)
class PassBuilder:
    """Sizes shared by the kernels of one pass."""

    model: Model
    batch: Numeric
    context: Numeric
    width: Numeric
    split: Split

    @property
    def tokens(self) -> Numeric:
        return self.batch * self.width

    def layer(self, layer: Layer, count: int) -> list[Kernel]:
        hidden = self.model.architecture.hidden
        kernels: list[Kernel] = []
        if layer.mixer is not None:
            mixer = layer.mixer
            kernels += [self.gemm(matrix, count) for matrix in mixer.matrices(hidden)]
            kernels += [self.gemm(matrix, count) for matrix in mixer.index_matrices(hidden)]
            if isinstance(mixer, LinearAttention):
                kernels.append(self.state_update(mixer, count))
            else:
                kernels.append(self.attention(mixer, count))
                if mixer.index_elements_per_token:
                    kernels.append(self.indexer(mixer, count))
        if layer.feed_forward is not None:
            kernels += [self.gemm(matrix, count) for matrix in layer.feed_forward.matrices(hidden)]
            if isinstance(layer.feed_forward, Experts):
                kernels.append(self.experts(layer.feed_forward, count))
        halves = (layer.mixer is not None) + (layer.feed_forward is not None)
        return kernels + self.around(count * halves, hidden)

    def around(self, halves: int, hidden: int) -> list[Kernel]:
        """What comes with every mixer and every feed-forward: norms and the like, and an all-reduce."""
        moved = SMALL_TRAFFIC * self.tokens * hidden * ACTIVATION_BYTES
        small = halves * SMALL_KERNELS_PER_LAYER // 2
        kernels = [Kernel("norms, rotary, gate", "small", small, activation_bytes=moved)]
        if self.split.tp > 1:
            message = self.tokens * hidden * ACTIVATION_BYTES
            shape: dict[str, Numeric] = {"gpus": self.split.tp, "m": self.tokens}
            kernels.append(Kernel("all-reduce", "allreduce", halves, activation_bytes=message, shape=shape))
        return kernels

    def gemm(self, matrix: Matrix, count: int) -> Kernel:
        """One linear layer over all positions of the pass."""
        stored = self.model.precision.of(matrix.part)
        rows, columns = matrix.per_gpu(self.split.tp)
        return Kernel(
            matrix.name,
            "gemm",
            count,
            weight_bytes=rows * columns * stored.bytes,
            activation_bytes=self.tokens * (rows + columns) * ACTIVATION_BYTES,
            flops=2.0 * self.tokens * rows * columns,
            format=stored.name,
            rate="bf16" if stored.weight_only else stored.rate,
            shape={"m": self.tokens, "n": rows, "k": columns},
        )

    def attention(self, mixer: Attention | LatentAttention, count: int) -> Kernel:
        """Softmax attention of one layer over the cached tokens it reads."""
        tp, kv = self.split.tp, self.model.precision.kv
        reads = _reads(self.width, self.split.kv_reread)
        heads = mixer.heads // tp
        if isinstance(mixer, Attention):
            kv_heads = mixer.cache_elements_per_token_per_gpu(tp) // (mixer.head_dim + mixer.value_dim)
            # A layer that reads another layer's cache streams it all the same.
            per_token = (kv_heads or max(1, mixer.kv_heads // tp)) * (mixer.head_dim + mixer.value_dim)
            query, value = mixer.head_dim, mixer.value_dim
        else:
            kv_heads, per_token = 1, mixer.cache_elements_per_token
            query, value = mixer.kv_rank + mixer.rope_dim, mixer.kv_rank
        held = mixer.tokens_read(self.context)
        return Kernel(
            "attention",
            "attention",
            count,
            cache_bytes=self.batch * held * per_token * kv.bytes * reads,
            activation_bytes=self.tokens * heads * (query + value) * ACTIVATION_BYTES,
            attention_flops=2.0 * self.tokens * held * heads * (query + value),
            format=kv.name,
            shape={
                "sequences": self.batch,
                "heads": heads,
                "kv_heads": max(1, kv_heads),
                "held": held,
                "queries": self.width,
            },
        )

    def indexer(self, mixer: Attention | LatentAttention, count: int) -> Kernel:
        """Scores of a sparse-attention indexer over the whole context; its keys are replicated on every GPU."""
        per_token = mixer.index_elements_per_token
        heads = getattr(mixer, "index_heads", 1)
        return Kernel(
            "indexer",
            "attention",
            count,
            cache_bytes=self.batch * self.context * per_token * INDEX_KEY_BYTES,
            attention_flops=2.0 * self.tokens * self.context * heads * per_token,
            format="fp8",
            rate="fp8",
            shape={"sequences": self.batch, "kv_heads": 1, "held": self.context, "queries": self.width},
        )

    def state_update(self, mixer: LinearAttention, count: int) -> Kernel:
        """Linear attention: the state is read once, and written once per position so that a rejection can go back."""
        state = mixer.state_bytes(self.model.precision.of("attention").bytes) / self.split.tp
        return Kernel(
            "state update",
            "small",
            count,
            cache_bytes=self.batch * state * (1.0 + self.width),
            attention_flops=self.batch * mixer.flops(self.context, self.width) / self.split.tp,
        )

    def experts(self, feed: Experts, count: int) -> Kernel:
        """The routed experts of one layer on the busiest GPU."""
        hidden, stored = self.model.architecture.hidden, self.model.precision.of("experts")
        slices = self.split.tp // self.split.ep
        size = sum(
            rows * columns for rows, columns in (m.per_gpu(slices) for m in feed.expert_matrices(hidden))
        )
        held = feed.count // self.split.ep
        distinct, share = busiest(feed, self.tokens, self.split.ep)
        pairs = self.tokens * feed.top_k * share
        width = feed.width / slices
        return Kernel(
            "experts",
            "moe",
            count,
            weight_bytes=distinct * size * stored.bytes,
            activation_bytes=pairs * (2.0 * hidden + 3.0 * width) * ACTIVATION_BYTES,
            flops=2.0 * pairs * size,
            format=stored.name,
            rate="bf16" if stored.weight_only else stored.rate,
            shape={"m": self.tokens, "experts": held, "top_k": feed.top_k, "hidden": hidden, "width": width},
        )


def busiest(feed: Experts, tokens: Numeric, ep: int) -> tuple[Numeric, Numeric]:
    """Distinct experts hit on the busiest of `ep` GPUs, and its share of all (token, expert) pairs.

    Each GPU holds 1/ep of the experts. Hits and pairs per GPU are close to normal; the largest of ep normals lies
    about sqrt(2 ln ep) deviations above the mean (extreme-value approximation). Independent, uniform routing.
    """
    distinct = feed.expected_distinct(tokens)
    if ep == 1:
        return distinct, 1.0
    if feed.count % ep:
        raise InputError("ep", ep, f"must divide the {feed.count} routed experts")
    held = feed.count / ep
    hit = np.asarray(distinct, dtype=float) / feed.count
    reach = math.sqrt(2.0 * math.log(ep))
    most = held * hit + reach * np.sqrt(held * hit * (1.0 - hit))
    pairs = np.asarray(tokens, dtype=float) * feed.top_k
    share = 1.0 / ep + reach * np.sqrt((1.0 / ep) * (1.0 - 1.0 / ep) / pairs)
    return np.minimum(most, held), np.minimum(share, 1.0)


def draft_layout(split: Split, tp: int | None) -> Split:
    """The same engine with the draft's own tensor parallelism; a draft keeps no experts apart."""
    return replace(split, tp=split.tp if tp is None else tp, ep=1)
