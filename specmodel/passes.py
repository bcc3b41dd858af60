"""One forward pass of a model as a list of kernels.

A plain step scores one position per sequence, a verification pass `width` of them (k + 1, root included), and reads
the weights and every sequence's KV cache once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specmodel.architecture import Attention, Dense, Layer
from specmodel.errors import InputError
from specmodel.model import Model, Totals
from specmodel.roofline import Kernel

if TYPE_CHECKING:
    from specmodel.architecture import Matrix
    from specmodel.checks import Numeric

ACTIVATION_BYTES = 2.0  # activations travel in 16 bit between kernels in every engine considered


def forward_pass(
    model: Model | Totals, *, batch: Numeric, context: Numeric, width: Numeric = 1, kv_scale: float = 1.0
) -> list[Kernel]:
    """The kernels of one pass of `batch` sequences with `context` cached tokens each, `width` positions per sequence.

    Parameters
    ----------
    model : Model or Totals
        An architecture with its precision, or a model given as totals (then the pass is one kernel).
    batch, context, width : float or ndarray
        Broadcast together. Real batches are allowed: crossings lie between integers.
    kv_scale : float
        Factor on KV bytes, for a cache whose bytes per token were given by hand.

    Raises
    ------
    InputError
        If the architecture has a layer kind that is not timed.
    """
    if isinstance(model, Totals):
        return [
            Kernel(
                "whole pass",
                "pass",
                weight_bytes=model.weight_bytes,
                cache_bytes=batch * context * model.kv_bytes_per_token * kv_scale,
                flops=batch * width * model.flops_per_token,
            )
        ]
    architecture, precision = model.architecture, model.precision
    tokens = batch * width
    kernels: list[Kernel] = []
    for count, layer in architecture.layers:
        kernels += _layer(model, layer, count, batch, context, width, kv_scale)
    kernels.append(_gemm(architecture.head, precision.of("head").bytes, tokens, model))
    return kernels


def _layer(
    model: Model, layer: Layer, count: int, batch: Numeric, context: Numeric, width: Numeric, kv_scale: float
) -> list[Kernel]:
    hidden = model.architecture.hidden
    mixer, feed_forward = layer.mixer, layer.feed_forward
    if not isinstance(mixer, Attention) or not isinstance(feed_forward, Dense):
        raise InputError("model", model.architecture.name, "has layers whose passes are not timed yet")
    tokens = batch * width
    kernels = [
        _gemm(matrix, model.precision.of(matrix.part).bytes, tokens, model, count)
        for matrix in (*mixer.matrices(hidden), *feed_forward.matrices(hidden))
    ]
    kv = model.precision.kv
    held = mixer.tokens_held(context)
    kernels.append(
        Kernel(
            "attention",
            "attention",
            count,
            cache_bytes=batch * held * mixer.cache_elements_per_token * kv.bytes * kv_scale,
            activation_bytes=tokens * mixer.heads * (mixer.head_dim + mixer.value_dim) * ACTIVATION_BYTES,
            attention_flops=2.0 * tokens * held * mixer.heads * (mixer.head_dim + mixer.value_dim),
            format=kv.name,
        )
    )
    return kernels


def _gemm(matrix: Matrix, weight: float, tokens: Numeric, model: Model, count: int = 1) -> Kernel:
    stored = model.precision.of(matrix.part)
    return Kernel(
        matrix.name,
        "gemm",
        count,
        weight_bytes=matrix.rows * matrix.columns * weight,
        activation_bytes=tokens * (matrix.rows + matrix.columns) * ACTIVATION_BYTES,
        flops=2.0 * tokens * matrix.rows * matrix.columns,
        format=stored.name,
        rate="bf16" if stored.weight_only else stored.rate,
        shape={"n": matrix.rows, "k": matrix.columns, "m": np.asarray(tokens)},
    )
