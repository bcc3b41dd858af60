"""Families whose layers differ in more than window and width: each built layer by layer."""

from __future__ import annotations

from specmodel.architecture import Layer
from specmodel.layers.feed_forward import Dense, Experts, FeedForward
from specmodel.layers.mixers import Attention, LinearAttention
from specmodel.readers import feeds
from specmodel.readers.blocks import head_counts, head_size, state_bytes
from specmodel.readers.fields import Fields


def nemotron_h(fields: Fields, layers: int, hidden: int) -> list[Layer]:
    """``hybrid_override_pattern``: M Mamba-2, E experts, - dense, * attention; one of them per layer."""
    pattern = fields.get("hybrid_override_pattern")[1]
    if not isinstance(pattern, str) or len(pattern) != layers:
        allowed = f"one character per layer, {layers}, of M, E, - and *"
        raise fields.error("hybrid_override_pattern", pattern, allowed)
    heads, kv_heads = head_counts(fields)
    head_dim = head_size(fields, hidden, heads)
    blocks: dict[str, Layer] = {}
    for mark in dict.fromkeys(pattern):
        if mark == "M":
            mamba = LinearAttention(
                "mamba2",
                key_heads=fields.integer("n_groups", high=2**14),
                key_dim=fields.integer("ssm_state_size", high=2**14),
                value_heads=fields.integer("mamba_num_heads", high=2**14),
                value_dim=fields.integer("mamba_head_dim", high=2**14),
                conv_width=fields.integer("conv_kernel", high=256),
                state_element_bytes=state_bytes(fields, "mamba_ssm_cache_dtype"),
            )
            blocks[mark] = Layer(mamba, None, hidden)
        elif mark == "*":
            blocks[mark] = Layer(Attention(heads, kv_heads, head_dim, head_dim), None, hidden)
        elif mark == "-":
            blocks[mark] = Layer(None, Dense(fields.integer("intermediate_size"), gated=False), hidden)
        elif mark == "E":
            shared = fields.optional("n_shared_experts", low=0) or 0
            width = fields.integer("moe_shared_expert_intermediate_size") if shared else 0
            experts = Experts(
                fields.integer("n_routed_experts", high=2**16),
                fields.integer("num_experts_per_tok", high=2**16),
                fields.integer("moe_intermediate_size"),
                shared_width=shared * width,
                gated=False,
            )
            if experts.top_k > experts.count:
                raise fields.error("num_experts_per_tok", experts.top_k, f"at most {experts.count}")
            blocks[mark] = Layer(None, experts, hidden)
        else:
            raise fields.error("hybrid_override_pattern", mark, "known layer kinds: M, E, - and *")
    return [blocks[mark] for mark in pattern]


def minimax_text(fields: Fields, layers: int, hidden: int) -> list[Layer]:
    """``attn_type_list``: 1 softmax attention, 0 lightning attention; experts in every layer."""
    heads, kv_heads = head_counts(fields)
    head_dim = head_size(fields, hidden, heads)
    softmax = Attention(heads, kv_heads, head_dim, head_dim)
    lightning = LinearAttention("lightning", heads, head_dim, heads, head_dim, state_element_bytes=4.0)
    marks = fields.sequence("attn_type_list", layers)
    if marks is None:
        raise fields.error("attn_type_list", None, "required: one 0 or 1 per layer")
    experts = feeds.mixtral(fields, 1, hidden)[0]
    return [
        Layer(softmax if fields.checked("attn_type_list", mark, 0, 1) else lightning, experts, 2 * hidden)
        for mark in marks
    ]


def mimo_v2(fields: Fields, layers: int, hidden: int) -> list[Layer]:
    """``hybrid_layer_pattern``: 1 keeps a window, with head counts and sizes of its own (swa_ keys)."""
    heads, kv_heads = head_counts(fields)
    full = Attention(heads, kv_heads, fields.integer("head_dim"), fields.integer("v_head_dim"))
    swa_heads, swa_kv_heads = head_counts(fields, "swa_")
    windowed = Attention(
        swa_heads,
        swa_kv_heads,
        fields.integer("swa_head_dim"),
        fields.integer("swa_v_head_dim"),
        window=fields.integer("sliding_window", "sliding_window_size"),
    )
    marks = fields.sequence("hybrid_layer_pattern", layers)
    if marks is None:
        raise fields.error("hybrid_layer_pattern", None, "required: one 0 or 1 per layer")
    return [
        Layer(
            windowed if fields.checked("hybrid_layer_pattern", mark, 0, 1) else full, feed_forward, 2 * hidden
        )
        for mark, feed_forward in zip(marks, feeds.deepseek(fields, layers, hidden), strict=True)
    ]


def gemma4(fields: Fields, layers: int, hidden: int) -> list[Layer]:
    """Full layers with their own heads, values from the key projection; a dense part beside the experts."""
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if fields.optional(key, low=0):
            raise fields.error(key, fields.values[key], "not modelled: only 0 for this family")
    heads, kv_heads = head_counts(fields)
    head_dim = fields.integer("head_dim")
    sliding = Attention(
        heads,
        kv_heads,
        head_dim,
        head_dim,
        window=fields.integer("sliding_window"),
        small_elements=2 * head_dim,
    )
    full_dim = fields.optional("global_head_dim") or head_dim
    full_kv_heads = fields.optional("num_global_key_value_heads") or kv_heads
    if heads % full_kv_heads:
        raise fields.error("num_global_key_value_heads", full_kv_heads, f"must divide {heads} heads")
    full = Attention(
        heads,
        full_kv_heads,
        full_dim,
        full_dim,
        value_is_key=fields.flag("attention_k_eq_v", False),
        small_elements=2 * full_dim,
    )
    kinds = fields.sequence("layer_types", layers)
    if kinds is None:
        raise fields.error("layer_types", None, "required in this family")
    feed_forward: FeedForward = Dense(fields.integer("intermediate_size"))
    if fields.flag("enable_moe_block", False):
        count = fields.integer("num_experts", high=2**16)
        top_k = fields.integer("top_k_experts", "num_experts_per_tok", high=count)
        width = fields.integer("moe_intermediate_size")
        feed_forward = Experts(count, top_k, width, shared_width=fields.integer("intermediate_size"))
    by_kind = {"full_attention": full, "sliding_attention": sliding}
    found: list[Layer] = []
    for kind in kinds:
        if not isinstance(kind, str) or kind not in by_kind:
            raise fields.error("layer_types", kind, "full_attention or sliding_attention in this family")
        found.append(Layer(by_kind[kind], feed_forward, 4 * hidden))
    return found
