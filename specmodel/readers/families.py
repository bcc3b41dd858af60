"""The families of decoders by ``model_type``: which rules build their layers, and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from specmodel.architecture import Layer
from specmodel.readers import blocks, feeds, hybrids, windows
from specmodel.readers.blocks import Bias, QkNorm
from specmodel.readers.feeds import FeedRule
from specmodel.readers.fields import Fields
from specmodel.readers.windows import WindowRule

LayerRule: TypeAlias = Callable[[Fields, "Family", int, int], list[Layer]]


def _plain(fields: Fields, family: Family, layers: int, hidden: int) -> list[Layer]:
    """Softmax attention, windows and feed-forward by the family's rules."""
    bias: Bias = family.bias if family.always_biased or fields.flag("attention_bias", False) else "none"
    mixers = blocks.softmax(
        fields,
        hidden,
        family.window(fields, layers),
        bias=bias,
        qk_norm=family.qk_norm,
        sinks=family.sinks,
    )
    feed_forwards = family.feed(fields, layers, hidden)
    norms = family.norms * hidden
    return [Layer(mixer, feed, norms) for mixer, feed in zip(mixers, feed_forwards, strict=True)]


def _latent(fields: Fields, family: Family, layers: int, hidden: int) -> list[Layer]:
    mixers = blocks.latent(fields, layers, hidden)
    feed_forwards = family.feed(fields, layers, hidden)
    return [Layer(mixer, feed, 2 * hidden) for mixer, feed in zip(mixers, feed_forwards, strict=True)]


def _full_and_linear(fields: Fields, family: Family, layers: int, hidden: int) -> list[Layer]:
    mixers = blocks.full_and_linear(fields, layers, hidden, gated=True)
    feed_forwards = family.feed(fields, layers, hidden)
    return [Layer(mixer, feed, 2 * hidden) for mixer, feed in zip(mixers, feed_forwards, strict=True)]


def _own(build: Callable[[Fields, int, int], list[Layer]]) -> LayerRule:
    """A family that builds its layers itself."""
    return lambda fields, family, layers, hidden: build(fields, layers, hidden)


@dataclass(frozen=True)
class Family:
    """How the configs of one ``model_type`` are read.

    Attributes
    ----------
    layers : rule that builds all layers.
    window, feed : rules for windows and feed-forwards, where ``layers`` uses them.
    bias, always_biased : which projections ``attention_bias`` covers, and whether they have one without it.
    qk_norm, sinks, norms : norms on queries and keys, attention sinks, norms of hidden size per layer.
    tied : ``tie_word_embeddings`` where absent.
    mtp_keys, mtp_default : where the number of MTP modules is, and their number where it is absent.
    mtp_confirmed : False where the config announces modules that published weights do not hold.
    unread : keys of other layer kinds that these configs hold without meaning.
    defaults : the class defaults of keys that published configs leave out.
    unverified : why figures were not checked against a published count.
    """

    layers: LayerRule = _plain
    window: WindowRule = windows.none
    feed: FeedRule = feeds.dense
    bias: Bias = "qkvo"
    always_biased: bool = False
    qk_norm: QkNorm = "none"
    sinks: bool = False
    norms: int = 2
    tied: bool = False
    mtp_keys: tuple[str, ...] = ("num_nextn_predict_layers",)
    mtp_default: int = 0
    mtp_confirmed: bool = True
    unread: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    unverified: str = ""


_GEMMA_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_GEMMA3_DEFAULTS = _GEMMA_DEFAULTS | {
    "vocab_size": 262208,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}
_NOT_COUNTED = "no published element count was at hand to check this family against"

_QWEN2 = Family(window=windows.above_layer, bias="qkv", always_biased=True)
_QWEN3 = Family(window=windows.above_layer, qk_norm="head", defaults={"head_dim": 128})
_QWEN3_MOE = replace(_QWEN3, feed=feeds.qwen, defaults={})
_QWEN3_NEXT = Family(_full_and_linear, feed=feeds.qwen, mtp_default=1)
_QWEN35 = Family(_full_and_linear, mtp_keys=("mtp_num_hidden_layers",))
_QWEN35_MOE = replace(_QWEN35, feed=feeds.qwen)
_GEMMA3 = Family(
    window=windows.all_but_every_nth, qk_norm="head", norms=4, tied=True, defaults=_GEMMA3_DEFAULTS
)
_DEEPSEEK = Family(_latent, feed=feeds.deepseek)
_LLAMA4 = Family(window=windows.chunks, feed=feeds.llama4, qk_norm="none")

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(),
        "mistral": Family(window=windows.everywhere),
        "mixtral": Family(window=windows.everywhere, feed=feeds.mixtral),
        "phi3": Family(window=windows.everywhere),
        "mimo": replace(_QWEN2, always_biased=False),
        "qwen2": _QWEN2,
        "qwen3": _QWEN3,
        "qwen3_moe": _QWEN3_MOE,
        "qwen3_next": _QWEN3_NEXT,
        "qwen3_5": _QWEN35,
        "qwen3_5_text": _QWEN35,
        "qwen3_5_moe": _QWEN35_MOE,
        "qwen3_5_moe_text": _QWEN35_MOE,
        "gemma2": Family(
            window=windows.even_layers,
            norms=4,
            tied=True,
            defaults=_GEMMA_DEFAULTS | {"vocab_size": 256000, "sliding_window": 4096},
        ),
        "gemma3": _GEMMA3,
        "gemma3_text": _GEMMA3,
        "gpt_oss": Family(window=windows.even_layers, feed=feeds.gpt_oss, always_biased=True, sinks=True),
        "llama4": _LLAMA4,
        "llama4_text": _LLAMA4,
        "glm4_moe": Family(feed=feeds.deepseek, bias="qkv", qk_norm="head_if_use_qk_norm"),
        "minimax_m2": Family(
            feed=feeds.minimax, qk_norm="layer", mtp_keys=("num_mtp_modules",), mtp_confirmed=False
        ),
        "deepseek_v2": Family(_latent, feed=feeds.deepseek_v2),
        "deepseek_v3": _DEEPSEEK,
        "deepseek_v32": _DEEPSEEK,
        "kimi_k2": _DEEPSEEK,
        "kimi_k25": _DEEPSEEK,
        "glm_moe_dsa": _DEEPSEEK,
        "glm4_moe_lite": replace(_DEEPSEEK, unverified=_NOT_COUNTED),
        "minimax_text_01": Family(_own(hybrids.minimax_text)),
        "nemotron_h": Family(_own(hybrids.nemotron_h)),
        "mimo_v2_flash": Family(
            _own(hybrids.mimo_v2), unread=("attention_chunk_size",), unverified=_NOT_COUNTED
        ),
        "gemma4": Family(_own(hybrids.gemma4), tied=True, unverified=_NOT_COUNTED),
        "gemma4_text": Family(_own(hybrids.gemma4), tied=True, unverified=_NOT_COUNTED),
        "gemma": Family(tied=True, unverified=_NOT_COUNTED),
        "qwen2_moe": replace(_QWEN2, feed=feeds.qwen, unverified=_NOT_COUNTED),
        "qwen2_vl": replace(_QWEN2, unverified=_NOT_COUNTED),
        "qwen2_5_vl": replace(_QWEN2, unverified=_NOT_COUNTED),
        "qwen2_5_vl_text": replace(_QWEN2, unverified=_NOT_COUNTED),
        "qwen3_vl_text": replace(_QWEN3, unverified=_NOT_COUNTED),
        "qwen3_vl_moe_text": replace(_QWEN3_MOE, unverified=_NOT_COUNTED),
    }
)

UNKNOWN = Family(
    window=windows.none, unverified="model_type is not known here; read as a plain dense decoder"
)
"""What a config of unknown type with the plain dense keys is read as."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "deepseek_v4": "its compressed cache (compress_ratios) and grouped output are not modelled",
        "kimi_k3": "its linear attention (linear_attn_config) is not modelled",
    }
)
"""Types that are known and not modelled, with the reason."""
