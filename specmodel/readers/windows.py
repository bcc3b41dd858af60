"""Which layers keep only a window of the cache: one rule per family, None where a layer keeps all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from specmodel.readers.fields import Fields

Windows: TypeAlias = list[int | None]
WindowRule: TypeAlias = Callable[[Fields, int], Windows]

KINDS = ("full_attention", "sliding_attention", "chunked_attention")


def _size(fields: Fields, *keys: str) -> int | None:
    """The window, None where it is not shorter than what the model was trained for."""
    window = fields.optional(*keys, high=10**10)
    context = fields.optional("max_position_embeddings")
    if window is not None and context is not None and window >= context:
        return None
    return window


def by_layer_types(fields: Fields, layers: int) -> Windows | None:
    """What ``layer_types`` says, None where it is absent; a kind that is not softmax attention is refused."""
    kinds = fields.sequence("layer_types", layers)
    if kinds is None:
        return None
    windows: Windows = []
    for kind in kinds:
        if kind not in KINDS:
            raise fields.error("layer_types", kind, f"known layer kinds here: {', '.join(KINDS)}")
        if kind == "full_attention":
            windows.append(None)
        elif kind == "sliding_attention":
            windows.append(_required(fields, "sliding_window"))
        else:
            windows.append(_required(fields, "attention_chunk_size"))
    return windows


def _required(fields: Fields, key: str) -> int | None:
    if fields.optional(key, high=10**10) is None:
        raise fields.error(key, None, "required where layer_types names such layers")
    return _size(fields, key)


def none(fields: Fields, layers: int) -> Windows:
    """Full attention, unless ``layer_types`` says otherwise."""
    return by_layer_types(fields, layers) or [None] * layers


def everywhere(fields: Fields, layers: int) -> Windows:
    """``sliding_window`` on every layer (Mistral, Phi-3)."""
    return by_layer_types(fields, layers) or [_size(fields, "sliding_window")] * layers


def above_layer(fields: Fields, layers: int) -> Windows:
    """Only with ``use_sliding_window``, and from ``max_window_layers`` on (Qwen, MiMo)."""
    listed = by_layer_types(fields, layers)
    if listed is not None:
        return listed
    window = _size(fields, "sliding_window") if fields.flag("use_sliding_window", False) else None
    first = fields.optional("max_window_layers", low=0) or 0
    return [window if layer >= first else None for layer in range(layers)]


def even_layers(fields: Fields, layers: int) -> Windows:
    """Layers 0, 2, 4, ... (Gemma 2, gpt-oss)."""
    listed = by_layer_types(fields, layers)
    if listed is not None:
        return listed
    window = _size(fields, "sliding_window")
    return [window if layer % 2 == 0 else None for layer in range(layers)]


def all_but_every_nth(fields: Fields, layers: int) -> Windows:
    """Layer n, 2n, ... keeps all, n being ``sliding_window_pattern`` (Gemma 3: 6)."""
    listed = by_layer_types(fields, layers)
    if listed is not None:
        return listed
    window = _size(fields, "sliding_window")
    period = fields.integer("sliding_window_pattern", "_sliding_window_pattern")
    return [None if (layer + 1) % period == 0 else window for layer in range(layers)]


def chunks(fields: Fields, layers: int) -> Windows:
    """Chunks of ``attention_chunk_size``, none where ``no_rope_layers`` has 0 (Llama 4: every fourth)."""
    listed = by_layer_types(fields, layers)
    if listed is not None:
        return listed
    chunk = _size(fields, "attention_chunk_size")
    if fields.values.get("no_rope_layers"):
        marks = fields.sequence("no_rope_layers", layers) or []
        return [chunk if fields.checked("no_rope_layers", mark, 0, 1) else None for mark in marks]
    period = fields.optional("no_rope_layer_interval") or 4
    return [None if (layer + 1) % period == 0 else chunk for layer in range(layers)]
