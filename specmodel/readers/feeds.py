"""The feed-forward of each layer: dense, or experts under the keys that each family uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from specmodel.layers.feed_forward import Dense, Experts, FeedForward
from specmodel.readers.fields import Fields

FeedRule: TypeAlias = Callable[[Fields, int, int], list[FeedForward]]


def _dense(fields: Fields, hidden: int, *keys: str, gated: bool = True) -> Dense:
    width = fields.integer(*(keys or ("intermediate_size",)))
    matrices = 2 if gated else 1
    bias = matrices * width + hidden if fields.flag("mlp_bias", False) else 0
    return Dense(width, gated, bias)


def dense(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """``intermediate_size`` in every layer, gated."""
    return [_dense(fields, hidden)] * layers


def _routing(fields: Fields, count_key: str, *top_keys: str) -> tuple[int, int]:
    """Experts and experts per token."""
    count = fields.integer(count_key, high=2**16)
    top_k = fields.integer(*(top_keys or ("num_experts_per_tok",)), high=2**16)
    if top_k > count:
        raise fields.error(top_keys[0] if top_keys else "num_experts_per_tok", top_k, f"at most {count}")
    return count, top_k


def mixtral(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """``num_local_experts`` of ``intermediate_size`` in every layer."""
    count, top_k = _routing(fields, "num_local_experts")
    return [Experts(count, top_k, fields.integer("intermediate_size"))] * layers


def minimax(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """As Mixtral, with a correction bias per expert in the router (MiniMax M2)."""
    count, top_k = _routing(fields, "num_local_experts")
    width = fields.integer("intermediate_size")
    shared = fields.optional("shared_intermediate_size", low=0) or 0
    return [Experts(count, top_k, width, shared_width=shared, small_elements=count)] * layers


def gpt_oss(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """As Mixtral, with biases in the router and in every expert."""
    count, top_k = _routing(fields, "num_local_experts", "num_experts_per_tok", "experts_per_token")
    width = fields.integer("intermediate_size")
    experts = Experts(count, top_k, width, small_elements=count, expert_small_elements=2 * width + hidden)
    return [experts] * layers


def qwen(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """``num_experts`` of ``moe_intermediate_size`` every ``decoder_sparse_step`` layers, dense elsewhere."""
    count, top_k = _routing(fields, "num_experts")
    width = fields.integer("moe_intermediate_size")
    shared = fields.optional("shared_expert_intermediate_size", low=0) or 0
    experts = Experts(count, top_k, width, shared_width=shared, shared_gate=shared > 0)
    step = fields.optional("decoder_sparse_step") or 1
    listed = fields.get("mlp_only_layers")[1] or []
    if not isinstance(listed, list):
        raise fields.error("mlp_only_layers", listed, "a list of layer numbers")
    only_dense = {fields.checked("mlp_only_layers", layer, 0, layers - 1) for layer in listed}
    feeds: list[FeedForward] = []
    for layer in range(layers):
        sparse = layer not in only_dense and (layer + 1) % step == 0
        feeds.append(experts if sparse else _dense(fields, hidden))
    return feeds


def llama4(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """Experts every ``interleave_moe_layer_step``-th layer with one shared of the same width."""
    count, top_k = _routing(fields, "num_local_experts")
    width = fields.integer("intermediate_size")
    experts = Experts(count, top_k, width, shared_width=width)
    step = fields.integer("interleave_moe_layer_step")
    listed = fields.get("moe_layers")[1]
    if listed is None:
        sparse = set(range(step - 1, layers, step))
    elif isinstance(listed, list):
        sparse = {fields.checked("moe_layers", layer, 0, layers - 1) for layer in listed}
    else:
        raise fields.error("moe_layers", listed, "a list of layer numbers")
    feeds: list[FeedForward] = []
    for layer in range(layers):
        feeds.append(experts if layer in sparse else _dense(fields, hidden, "intermediate_size_mlp"))
    return feeds


def _deepseek(fields: Fields, layers: int, hidden: int, correction: bool) -> list[FeedForward]:
    if fields.get("n_routed_experts")[1] is None:
        return dense(fields, layers, hidden)
    count, top_k = _routing(fields, "n_routed_experts")
    width = fields.integer("moe_intermediate_size")
    shared = (fields.optional("n_shared_experts", low=0) or 0) * width
    experts = Experts(count, top_k, width, shared_width=shared, small_elements=count if correction else 0)
    feeds: list[FeedForward] = []
    for is_sparse in _sparse_layers(fields, layers):
        feeds.append(experts if is_sparse else _dense(fields, hidden))
    return feeds


def _sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """``mlp_layer_types``, a ``moe_layer_freq`` list, or first dense layers and every n-th after."""
    kinds = fields.sequence("mlp_layer_types", layers)
    if kinds is not None:
        for kind in kinds:
            if kind not in ("dense", "sparse"):
                raise fields.error("mlp_layer_types", kind, "dense or sparse")
        return [kind == "sparse" for kind in kinds]
    if isinstance(fields.values.get("moe_layer_freq"), list):
        marks = fields.sequence("moe_layer_freq", layers) or []
        return [bool(fields.checked("moe_layer_freq", mark, 0, 1)) for mark in marks]
    first = fields.optional("first_k_dense_replace", low=0) or 0
    period = fields.optional("moe_layer_freq") or 1
    return [layer >= first and layer % period == 0 for layer in range(layers)]


def deepseek_v2(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """``n_routed_experts`` and ``n_shared_experts`` after the first dense layers."""
    return _deepseek(fields, layers, hidden, correction=False)


def deepseek(fields: Fields, layers: int, hidden: int) -> list[FeedForward]:
    """The same with a correction bias per expert in the router (DeepSeek-V3, GLM, Kimi, MiMo)."""
    return _deepseek(fields, layers, hidden, correction=True)
