"""Mixers of each layer from the keys of a config: softmax, latent and linear attention."""

from __future__ import annotations

from typing import Literal

from specmodel.layers.mixers import Attention, LatentAttention, LinearAttention, Mixer
from specmodel.readers.fields import Fields
from specmodel.readers.windows import Windows

Bias = Literal["none", "qkv", "qkvo"]
QkNorm = Literal["none", "head", "head_if_use_qk_norm", "layer"]


def head_counts(fields: Fields, prefix: str = "") -> tuple[int, int]:
    """Query heads, and KV heads: as many where absent or null."""
    heads = fields.integer(f"{prefix}num_attention_heads", high=2**14)
    key = f"{prefix}num_key_value_heads"
    kv_heads = fields.optional(key, high=2**14) or heads
    if heads % kv_heads:
        raise fields.error(key, kv_heads, f"must divide {prefix}num_attention_heads = {heads}")
    return heads, kv_heads


def head_size(fields: Fields, hidden: int, heads: int) -> int:
    """``head_dim``; absent, hidden_size / num_attention_heads."""
    given = fields.optional("head_dim", high=2**14)
    if given is not None:
        return given
    if hidden % heads:
        allowed = f"required, as hidden_size = {hidden} does not divide by {heads} heads"
        raise fields.error("head_dim", None, allowed)
    return hidden // heads


def softmax(
    fields: Fields, hidden: int, windows: Windows, *, bias: Bias, qk_norm: QkNorm, sinks: bool = False
) -> list[Mixer]:
    """Full and windowed attention of one shape, the layers differing in window only."""
    heads, kv_heads = head_counts(fields)
    head_dim = head_size(fields, hidden, heads)
    small = heads if sinks else 0
    if bias != "none":
        small += (heads + 2 * kv_heads) * head_dim + (hidden if bias == "qkvo" else 0)
    if qk_norm == "head" or (qk_norm == "head_if_use_qk_norm" and fields.flag("use_qk_norm", False)):
        small += 2 * head_dim
    elif qk_norm == "layer" and fields.flag("use_qk_norm", True):
        small += (heads + kv_heads) * head_dim
    return [
        Attention(heads, kv_heads, head_dim, head_dim, window=window, small_elements=small)
        for window in windows
    ]


def latent(fields: Fields, layers: int, hidden: int) -> list[Mixer]:
    """Multi-head latent attention, sparse where the indexer's keys are given; ``head_dim`` is not read."""
    heads = fields.integer("num_attention_heads", high=2**14)
    q_rank = fields.optional("q_lora_rank")
    kv_rank = fields.integer("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", high=2**14)
    small = kv_rank + (q_rank or 0)
    if fields.flag("attention_bias", False):
        small += (q_rank or 0) + kv_rank + rope + hidden
    index_dim = fields.optional("index_head_dim", high=2**14) or 0
    mixer = LatentAttention(
        heads=heads,
        q_rank=q_rank,
        kv_rank=kv_rank,
        nope_dim=fields.integer("qk_nope_head_dim", high=2**14),
        rope_dim=rope,
        value_dim=fields.integer("v_head_dim", high=2**14),
        index_heads=fields.integer("index_n_heads", high=2**14) if index_dim else 0,
        index_dim=index_dim,
        index_top_k=fields.integer("index_topk") if index_dim else 0,
        small_elements=small,
    )
    return [mixer] * layers


def state_bytes(fields: Fields, *keys: str) -> float | None:
    """Bytes of a recurrent element where the config names its type."""
    key, value = fields.get(*keys)
    sizes = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": None}
    if not key:
        return None
    if not isinstance(value, str) or value not in sizes:
        raise fields.error(key, value, f"one of {', '.join(sizes)}")
    return sizes[value]


def gated_delta_net(fields: Fields) -> LinearAttention:
    """The linear layers of Qwen3-Next and Qwen3.5."""
    key_heads = fields.integer("linear_num_key_heads", high=2**14)
    value_heads = fields.integer("linear_num_value_heads", high=2**14)
    if value_heads % key_heads:
        allowed = f"must be a multiple of linear_num_key_heads = {key_heads}"
        raise fields.error("linear_num_value_heads", value_heads, allowed)
    return LinearAttention(
        "gated_delta_net",
        key_heads=key_heads,
        key_dim=fields.integer("linear_key_head_dim", high=2**14),
        value_heads=value_heads,
        value_dim=fields.integer("linear_value_head_dim", high=2**14),
        conv_width=fields.integer("linear_conv_kernel_dim", high=256),
        state_element_bytes=state_bytes(fields, "mamba_ssm_dtype"),
    )


def full_and_linear(fields: Fields, layers: int, hidden: int, *, gated: bool) -> list[Mixer]:
    """Gated delta nets with full attention in between: ``layer_types``, or every n-th layer."""
    kinds = fields.sequence("layer_types", layers)
    period = fields.optional("full_attention_interval")
    if kinds is None:
        if period is None:
            raise fields.error("full_attention_interval", None, "required where layer_types is absent")
        kinds = [
            "full_attention" if (layer + 1) % period == 0 else "linear_attention" for layer in range(layers)
        ]
    heads, kv_heads = head_counts(fields)
    head_dim = head_size(fields, hidden, heads)
    full = Attention(
        heads,
        kv_heads,
        head_dim,
        head_dim,
        gated=fields.flag("attn_output_gate", gated),
        small_elements=2 * head_dim,
    )
    linear = gated_delta_net(fields) if "linear_attention" in kinds else None
    mixers: list[Mixer] = []
    for kind in kinds:
        if kind == "full_attention":
            mixers.append(full)
        elif kind == "linear_attention" and linear is not None:
            mixers.append(linear)
        else:
            raise fields.error("layer_types", kind, "full_attention or linear_attention in this family")
    return mixers
