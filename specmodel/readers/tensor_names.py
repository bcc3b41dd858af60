"""Which part of a decoder a stored tensor belongs to, by its name."""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_OTHER = (
    "vision",
    "visual",
    "audio",
    "mm_projector",
    "multi_modal",
    "image_newline",
    "patch_embed",
    "aligner",
)
_SMALL = ("norm", ".bias", "sinks", "a_log", "dt_bias", "conv1d", "inv_freq", ".d")


def part_of(name: str, layers: int) -> str:
    """Part of a safetensors name: one of ``architecture.PARTS``, or "other" for towers and projectors.

    A layer number past the decoder's last is an MTP module.
    """
    lowered = name.casefold()
    if any(mark in lowered for mark in _OTHER):
        return "other"
    found = _LAYER.search(lowered)
    if lowered.startswith("mtp.") or ".mtp." in lowered or (found and int(found[1][:9]) >= layers):
        return "mtp"
    if "lm_head" in lowered:
        return "head"
    if "embed_tokens" in lowered or "word_embeddings" in lowered or lowered.endswith("wte.weight"):
        return "embedding"
    if "indexer" in lowered:
        return "indexer"
    if (
        "shared_expert_gate" in lowered
        or ".router" in lowered
        or re.search(r"\.gate\.(weight|e_score)", lowered)
    ):
        return "router"
    if "shared_expert" in lowered:
        return "shared_experts"
    if ".experts" in lowered:
        return "experts"
    if any(mark in lowered for mark in _SMALL[:2]) or lowered.endswith(_SMALL[2:]):
        return "norms"
    if "attn" in lowered or "attention" in lowered:
        return "attention"
    return "dense" if found else "norms"


_GGUF_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)$")


def gguf_part_of(name: str, layers: int) -> str:
    """Part of a GGUF tensor name."""
    if name.startswith("token_embd"):
        return "norms" if "norm" in name else "embedding"
    if name.startswith("output"):
        return "head" if name == "output.weight" else "norms"
    found = _GGUF_BLOCK.match(name)
    if not found:
        return "norms" if name.startswith(("rope", "per_layer")) else "other"
    if int(found[1][:9]) >= layers or found[2].startswith("nextn"):
        return "mtp"
    rest = found[2]
    if "indexer" in rest:
        return "indexer"
    if "_exps" in rest:
        return "norms" if rest.endswith(".bias") else "experts"
    if rest.startswith(("ffn_gate_inp", "exp_probs")):
        return "router"
    if "norm" in rest or rest.endswith((".bias", "sinks.weight", "ssm_a", "ssm_d")) or "conv1d" in rest:
        return "norms"
    if "_shexp" in rest:
        return "shared_experts"
    return "attention" if rest.startswith(("attn", "ssm")) else "dense"
