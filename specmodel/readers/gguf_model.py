"""A GGUF file -> Model: its keys as config keys, its formats and bytes from its tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specmodel.architecture import PARTS
from specmodel.errors import InputError
from specmodel.formats import NumberFormat, custom_format, number_format
from specmodel.model import Model, Precision
from specmodel.readers import gguf, hf
from specmodel.readers.gguf import ArrayLength, Header, Tensor
from specmodel.readers.tensor_names import gguf_part_of

# general.architecture -> model_type of the same structure.
_TYPES = {
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma3": "gemma3_text",
    "deepseek2": "deepseek_v3",
    "gpt-oss": "gpt_oss",
    "glm4moe": "glm4_moe",
    "minimax-m2": "minimax_m2",
    "llama4": "llama4_text",
}
# GGUF key -> config key, the same for every architecture.
_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "attention.shared_kv_layers": "num_kv_shared_layers",
}
# Config key of the expert count, where it is not num_experts.
_EXPERT_COUNT = {
    "mixtral": "num_local_experts",
    "gpt_oss": "num_local_experts",
    "minimax_m2": "num_local_experts",
    "llama4_text": "num_local_experts",
    "deepseek_v3": "n_routed_experts",
    "glm4_moe": "n_routed_experts",
}


def _plain(value: Any, key: str, where: str) -> Any:
    """A scalar; an array only where all its entries are the same."""
    if isinstance(value, list) and value and all(entry == value[0] for entry in value):
        return value[0]
    if isinstance(value, (list, ArrayLength)):
        raise InputError(key, value, f"refused: layers of different sizes are not modelled ({where})")
    return value


def config_of(header: Header, where: str) -> dict[str, Any]:
    """The keys of a GGUF header as those of a config.json.

    Raises
    ------
    InputError
        If the architecture is missing or its layers differ in size.
    """
    keys = header.keys
    arch = keys.get("general.architecture")
    if not isinstance(arch, str):
        raise InputError("general.architecture", arch, f"a string is required ({where})")
    held = {key.removeprefix(f"{arch}."): value for key, value in keys.items() if key.startswith(f"{arch}.")}
    experts = _plain(held.get("expert_count"), "expert_count", where)
    model_type = _TYPES.get(arch, arch)
    if arch == "llama" and experts:
        model_type = "mixtral"
    config: dict[str, Any] = {"model_type": model_type}
    for key, name in _KEYS.items():
        if key in held:
            config[name] = _plain(held[key], f"{arch}.{key}", where)
    if experts:
        config[_EXPERT_COUNT.get(model_type, "num_experts")] = experts
    vocabulary = held.get("vocab_size")
    if vocabulary is None:
        tokens = keys.get("tokenizer.ggml.tokens")
        vocabulary = tokens.count if isinstance(tokens, ArrayLength) else len(tokens or []) or None
    config["vocab_size"] = vocabulary
    names = {tensor.name for tensor in header.tensors}
    config["tie_word_embeddings"] = "output.weight" not in names
    if isinstance(config.get("num_nextn_predict_layers"), int) and isinstance(
        config.get("num_hidden_layers"), int
    ):
        config["num_hidden_layers"] -= config["num_nextn_predict_layers"]
    _by_tensors(config, model_type, names, header.tensors, held)
    _refuse_unequal(config, held, arch, where)
    return config


def _by_tensors(
    config: dict[str, Any],
    model_type: str,
    names: set[str],
    tensors: Sequence[Tensor],
    held: dict[str, Any],
) -> None:
    """What the keys leave out and the tensors show: biases, query norms, latent sizes."""
    if model_type not in ("gpt_oss", "qwen2"):
        config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in names
    if model_type in ("llama", "mistral") and "sliding_window" in config:
        config["model_type"] = "mistral"
    if model_type in ("mixtral", "gpt_oss", "minimax_m2") and "moe_intermediate_size" in config:
        config["intermediate_size"] = config.pop("moe_intermediate_size")
    if model_type == "llama4_text" and "moe_intermediate_size" in config:
        config["intermediate_size_mlp"] = config.get("intermediate_size")
        config["intermediate_size"] = config.pop("moe_intermediate_size")
    if model_type == "deepseek_v3":
        rope = held.get("rope.dimension_count")
        key_length = held.get("attention.key_length_mla", held.get("attention.key_length"))
        config["qk_rope_head_dim"] = rope
        if isinstance(key_length, int) and isinstance(rope, int):
            config["qk_nope_head_dim"] = key_length - rope
        config["v_head_dim"] = held.get("attention.value_length_mla", held.get("attention.value_length"))
        config["num_key_value_heads"] = None
        config.pop("head_dim", None)


def _refuse_unequal(config: dict[str, Any], held: dict[str, Any], arch: str, where: str) -> None:
    """Keys and values of different size, and recurrent layers, are not read from GGUF."""
    keys, values = held.get("attention.key_length"), held.get("attention.value_length")
    if "kv_lora_rank" not in config and values is not None and keys is not None and values != keys:
        raise InputError(f"{arch}.attention.value_length", values, f"must equal key_length {keys} ({where})")
    for key in held:
        if key.startswith(("ssm.", "rwkv", "wkv", "attention.key_length_swa")):
            allowed = f"refused: recurrent and two-size layers are not read from GGUF ({where})"
            raise InputError(f"{arch}.{key}", held[key], allowed)


def _format_of(tensors: list[Tensor], part: str) -> NumberFormat:
    """One format for the tensors of a part, an average where they differ."""
    names = sorted({tensor.block.name for tensor in tensors})
    if len(names) == 1:
        known = {"f32": "fp32", "f16": "fp16"}.get(names[0], names[0])
        found = number_format(known)
        return replace(found, rate="bf16", weight_only=found.bits < 16)
    bits = 8.0 * sum(tensor.bytes for tensor in tensors) / sum(tensor.elements for tensor in tensors)
    return custom_format(f"gguf-{part}", bits, "bf16", bits < 16, " + ".join(names))


def _all_files(path: Path, header: Header) -> tuple[list[Tensor], tuple[str, ...]]:
    """Tensors of all files of a split model, and what is missing."""
    count = header.keys.get("split.count", 1)
    if not isinstance(count, int) or not 1 < count < 2**12:
        return list(header.tensors), ()
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    tensors: list[Tensor] = []
    missing = []
    for number in range(1, count + 1):
        name = f"{match[1]}-{number:05d}-of-{match[3]}.gguf" if match else ""
        sibling = path.with_name(name) if name else None
        if sibling is None or not sibling.is_file():
            missing.append(number)
            continue
        tensors += (header if sibling == path else gguf.header(sibling)).tensors
    if missing:
        return [], (f"{len(missing)} of {count} files of this split model are missing: bytes are counted",)
    return tensors, ()


def read(path: Path, name: str | None = None) -> Model:
    """The model in a GGUF file: weights as stored, tensor by tensor.

    Raises
    ------
    InputError
        If the header is broken or describes layers that are not modelled.
    """
    header = gguf.header(path)
    where = str(path)
    tensors, missing = _all_files(path, header)
    config = config_of(replace(header, tensors=tuple(tensors or header.tensors)), where)
    decoder = hf.decoder(config, name or path.stem, where)
    architecture = decoder.architecture
    by_part: dict[str, list[Tensor]] = {}
    for tensor in tensors or header.tensors:
        part = gguf_part_of(tensor.name, architecture.layer_count)
        by_part.setdefault(part, []).append(tensor)
    formats = {part: _format_of(held, part) for part, held in by_part.items() if part in PARTS}
    if not formats:
        raise InputError("model", where, "this GGUF file holds no tensors of a decoder")
    if architecture.tied and "embedding" in formats:
        formats["head"] = formats["embedding"]
    largest = max(formats, key=lambda part: sum(tensor.elements for tensor in by_part.get(part, [])))
    precision = Precision(formats[largest], MappingProxyType(formats), number_format("fp16"))
    model = Model(architecture, precision, 0.0, decoder.notes + missing, where)
    counted = float(sum(model.counted_bytes().values()))
    if not tensors:
        return replace(model, weight_bytes=counted)
    decoder_parts = [part for part in by_part if part not in ("mtp", "other")]
    stored = float(sum(tensor.bytes for part in decoder_parts for tensor in by_part[part]))
    return replace(
        model, weight_bytes=stored, measured_bytes=True, notes=model.notes + differs(stored, counted)
    )


def differs(stored: float, counted: float) -> tuple[str, ...]:
    """A note where files and counting disagree by more than 1 %."""
    if abs(stored - counted) <= 0.01 * stored:
        return ()
    off = 100.0 * (counted - stored) / stored
    return (
        f"the files hold {stored / 1e9:.4g} GB of decoder weights, {counted / 1e9:.4g} GB are counted "
        f"({off:+.1f} %): the files' bytes are used",
    )
