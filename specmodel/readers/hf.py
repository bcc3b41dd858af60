"""A Hugging Face config.json -> Architecture: the decoder inside, by the rules of its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specmodel.architecture import Architecture, Layer, Mtp
from specmodel.errors import InputError
from specmodel.layers.mixers import LinearAttention
from specmodel.readers.families import FAMILIES, REFUSED, UNKNOWN, Family
from specmodel.readers.fields import Fields
from specmodel.readers.json_file import shown

WRAPPED_UNDER = ("text_config", "llm_config", "language_config")
"""Where multimodal wrappers keep the decoder; the rest of the wrapper is not sized."""

# Keys that change what a decoder is made of. In a config whose family does not use them they must be
# absent, null, false or 0: guessing past one would misjudge weights or cache by a factor.
STRUCTURAL = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
    "moe_intermediate_size",
    "moe_latent_size",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "index_topk",
    "linear_num_value_heads",
    "linear_attn_config",
    "full_attention_interval",
    "mamba_num_heads",
    "mamba_n_heads",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "attn_type_list",
    "attn_layer_period",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "layers_block_type",
    "block_types",
    "compress_ratios",
    "num_kv_shared_layers",
    "use_cla",
    "hidden_size_per_layer_input",
    "altup_num_inputs",
    "laurel_rank",
    "attention_chunk_size",
    "cross_attention_layers",
    "is_encoder_decoder",
    "num_global_key_value_heads",
    "global_head_dim",
    "attention_k_eq_v",
    "swa_num_key_value_heads",
    "rwkv_hidden_size",
)
_PLAIN_GATED = ("silu", "swish", "swiglu")


def unwrapped(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The decoder's own keys, and the wrapper around them (empty without one)."""
    for key in WRAPPED_UNDER:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, dict):
            raise InputError(key, inner, f"a JSON object ({where})")
        return inner, config
    return config, {}


def _family(fields: Fields) -> tuple[str, Family]:
    name = fields.either("model_type")
    if name is None:
        return "unknown", UNKNOWN
    if not isinstance(name, str):
        raise fields.error("model_type", name, "a string")
    inner, outer = fields.values.get("model_type"), fields.outer.get("model_type")
    for candidate in (inner, outer):
        if isinstance(candidate, str) and candidate in REFUSED:
            raise fields.error("model_type", candidate, f"refused: {REFUSED[candidate]}")
    for candidate in (inner, outer):
        if isinstance(candidate, str) and candidate in FAMILIES:
            return candidate, FAMILIES[candidate]
    return name, UNKNOWN


def _refuse_unread_structure(fields: Fields, family: Family, name: str) -> None:
    """Refuse keys of experts, latent or linear attention that this family's rules do not read."""
    for key in STRUCTURAL:
        value = fields.values.get(key)
        if not value or key in fields.read or key in family.unread:
            continue
        if family is UNKNOWN:
            allowed = f"refused: what it means in model_type {name!r} is not known here"
        else:
            allowed = f"refused: model_type {name!r} has no such layers in what is known here"
        raise fields.error(key, value, allowed)


def _refuse_unknown_kind(fields: Fields, name: str) -> None:
    """In a model of unknown type, what the plain dense reading cannot know."""
    activation = fields.get("hidden_act", "hidden_activation", "activation_function")
    if activation[0] and activation[1] not in _PLAIN_GATED:
        allowed = f"refused: whether model_type {name!r} gates its feed-forward is not known here"
        raise fields.error(activation[0], activation[1], allowed)
    for key in fields.values:
        lowered = key.casefold()
        marked = any(mark in lowered for mark in ("expert", "lora_rank", "mamba", "ssm_", "linear_attn"))
        if marked and fields.values[key]:
            allowed = f"refused: what it means in model_type {name!r} is not known here"
            raise fields.error(shown(key), fields.values[key], allowed)
    window = fields.optional("sliding_window", high=10**10)
    context = fields.optional("max_position_embeddings")
    used = fields.flag("use_sliding_window", True) and fields.values.get("layer_types") is None
    if window is not None and used and not (context is not None and window >= context):
        allowed = f"refused: which layers of model_type {name!r} it covers is not known here"
        raise fields.error("sliding_window", window, allowed)


def _mtp(fields: Fields, family: Family, layers: list[Layer], hidden: int) -> Mtp | None:
    """The model's own draft modules: a layer like its last one with a cache."""
    key = next((key for key in family.mtp_keys if fields.values.get(key) is not None), None)
    modules = family.mtp_default
    if key is not None:
        modules = fields.integer(key, low=0, high=64)
    if modules == 0:
        return None
    if not family.mtp_confirmed:
        fields.notes.append(f"{key} announces MTP modules that published weights do not hold: not offered")
        return None
    like = next(
        (
            layer
            for layer in reversed(layers)
            if layer.mixer is not None
            and layer.feed_forward is not None
            and not isinstance(layer.mixer, LinearAttention)
        ),
        None,
    )
    if like is None:
        return None
    if key is None:
        fields.notes.append(
            "published weights of this family hold an MTP module that the config does not name"
        )
    return Mtp(modules, like, hidden)


def grouped(layers: list[Layer]) -> tuple[tuple[int, Layer], ...]:
    """Equal layers counted together, in order of first appearance."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple((count, layer) for layer, count in counts.items())


@dataclass(frozen=True)
class Decoder:
    """What a config describes: the architecture, its layers in order, and what had to be assumed."""

    architecture: Architecture
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]


def decoder(config: Mapping[str, Any], name: str, where: str) -> Decoder:
    """The decoder that a config describes.

    Parameters
    ----------
    config : mapping
        What config.json holds.
    name, where : str
        What to call the model, and the file, for errors.

    Raises
    ------
    InputError
        If a key is missing, of the wrong type or out of range, if layer kinds are unknown, or if the type
        is unknown and its keys are not those of a plain dense decoder.
    """
    inner, outer = unwrapped(config, where)
    fields = Fields(inner, where, outer)
    type_name, family = _family(fields)
    fields.defaults = family.defaults
    hidden = fields.integer("hidden_size")
    layer_count = fields.integer("num_hidden_layers")
    vocabulary = fields.integer("vocab_size")
    if family is UNKNOWN:
        _refuse_unknown_kind(fields, type_name)
    layers = family.layers(fields, family, layer_count, hidden)
    mtp = _mtp(fields, family, layers, hidden)
    _refuse_unread_structure(fields, family, type_name)
    tied = fields.either("tie_word_embeddings")
    if tied is None:
        tied = family.tied
    elif not isinstance(tied, bool):
        raise fields.error("tie_word_embeddings", tied, "true or false")
    found = Architecture(
        name=name,
        family=type_name,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=grouped(layers),
        tied=tied,
        max_context=fields.optional("max_position_embeddings"),
        final_norm_elements=hidden,
        mtp=mtp,
        unverified=(family.unverified,) if family.unverified else (),
    )
    return Decoder(found, tuple(layers), tuple(dict.fromkeys(fields.notes)))
