"""vLLM's speculative config: which methods and keys exist in which release, and what they may hold.

Releases read: 0.33.0 in full; 0.8.5, 0.11.2, 0.14.1, 0.19.1, 0.22.1, 0.25.1 and 0.29.0 for changes. Between two of
them a thing counts as absent unless both have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from specmodel.errors import InputError, unknown_name
from specmodel.export.settings import is_number
from specmodel.export.versions import Span, Version, describe, exists

NEWEST = "0.33.0"
OLDEST = "0.8.5"

METHODS: Mapping[str, tuple[Span, ...]] = MappingProxyType(
    {
        "ngram": (Span("0.8.5"),),
        "eagle": (Span("0.8.5"),),
        "eagle3": (Span("0.11.2"),),  # 0.8.5 has the code but not the word in its list of methods
        # 0.11.2 and 0.14.1 list it and then raise "not supported yet"; the old engine left with 0.10.
        "draft_model": (Span("0.8.5", "0.9"), Span("0.19.1")),
        "suffix": (Span("0.11.2"),),
        "mtp": (Span("0.11.2"),),  # 0.8.5 infers it from the model's type and has no such word
        "ngram_gpu": (Span("0.19.1"),),
        "extract_hidden_states": (Span("0.19.1"),),
        "dflash": (Span("0.22.1"),),
        "custom_class": (Span("0.22.1"),),
        "dspark": (Span("0.25.1"),),
        "medusa": (Span("0.8.5", "0.29"),),
        "mlp_speculator": (Span("0.8.5", "0.29"),),
    }
)
SCHEDULE = "num_speculative_tokens_per_batch_size"
SCHEDULE_SPANS = (Span("0.25.1"),)
SWITCH = "disable_by_batch_size"
SWITCH_WORKS = (Span("0.8.5", "0.9"),)  # from 0.10.0 on accepted without effect, gone in 0.19.1

KEY_SPANS: Mapping[str, tuple[Span, ...]] = MappingProxyType(
    {
        SCHEDULE: SCHEDULE_SPANS,
        SWITCH: (Span("0.8.5", "0.18"),),
        "speculative_token_tree": (Span("0.11.2", "0.19.1"),),
        "acceptance_method": (Span("0.8.5", "0.9"),),
        "posterior_threshold": (Span("0.8.5", "0.9"),),
        "posterior_alpha": (Span("0.8.5", "0.9"),),
        "rejection_sample_method": (Span("0.19.1"),),
        "synthetic_acceptance_rate": (Span("0.19.1", "0.21"),),
        "synthetic_acceptance_rates": (Span("0.22.1"),),
        "synthetic_acceptance_length": (Span("0.22.1"),),
        "parallel_drafting": (Span("0.19.1"),),
        "draft_sample_method": (Span("0.22.1"),),
        "use_heterogeneous_vocab": (Span("0.25.1"),),
        "enable_adaptive_verification": (Span("0.29.0"),),
        "fly_window_size": (Span("0.33.0"),),
        "fly_entropy_threshold": (Span("0.33.0"),),
        "fly_entropy_top_k": (Span("0.33.0"),),
    }
)
_TEXT = (
    "method model quantization moe_backend attention_backend kv_cache_dtype revision code_revision "
    "draft_lm_head_quantization rejection_sample_method draft_sample_method speculative_token_tree "
    "acceptance_method"
)
_WHOLE = (
    "num_speculative_tokens draft_tensor_parallel_size max_model_len prompt_lookup_max prompt_lookup_min "
    "suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests disable_by_batch_size dspark_draft_topk "
    "xpress_topc fly_window_size fly_entropy_top_k"
)
_SWITCHES = (
    "use_heterogeneous_vocab use_local_argmax_reduction disable_padded_drafter_batch disable_eagle_block_drop "
    "disable_lookahead_block_hashes enforce_eager index_share_for_mtp_iteration parallel_drafting "
    "enable_adaptive_verification"
)
_NUMBERS = (
    "suffix_decoding_max_spec_factor suffix_decoding_min_token_prob synthetic_acceptance_length "
    "synthetic_acceptance_rate fly_entropy_threshold posterior_threshold posterior_alpha"
)
KINDS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(_TEXT.split(), "text")
    | dict.fromkeys(_WHOLE.split(), "a whole number, at least 0")
    | dict.fromkeys(_SWITCHES.split(), "true or false")
    | dict.fromkeys(_NUMBERS.split(), "a number")
    | {
        SCHEDULE: "a list",
        "synthetic_acceptance_rates": "a list",
        "draft_load_config": "an object",
    }
)
_LOSSY_KEYS = ("posterior_threshold", "posterior_alpha")
_LOSSY_PREFIXES = ("fly_", "synthetic_")


def check_method(word: str, version: Version | None) -> None:
    """Refuse a method that the release lacks, or a word that is no method at all."""
    if word.endswith("_mtp"):
        word = "mtp"
    if word not in METHODS:
        raise unknown_name("method", word, METHODS)
    if not exists(version, METHODS[word]):
        named = f"vLLM {version or NEWEST}"
        raise InputError(
            "method", word, f"does not exist in {named}; it was found in releases {describe(METHODS[word])}"
        )


def check_key(key: str, value: object, version: Version | None) -> None:
    """Refuse a key that the release lacks, or a value of the wrong kind."""
    if key == "tensor_parallel_size":
        raise InputError(key, value, "vLLM refuses it here; the draft's own is draft_tensor_parallel_size")
    if key not in KINDS:
        raise unknown_name("speculative config key", key, KINDS)
    spans = KEY_SPANS.get(key)
    if spans is not None and not exists(version, spans):
        named = f"vLLM {version or NEWEST}"
        raise InputError(key, value, f"does not exist in {named}; it was found in releases {describe(spans)}")
    if not _is_kind(value, KINDS[key]):
        raise InputError(key, value, f"must be {KINDS[key]}")


def _is_kind(value: object, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "a list":
        return isinstance(value, list)
    if kind == "an object":
        return isinstance(value, dict)
    if kind == "a number":
        return is_number(value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_sampling(config: Mapping[str, object], k: int | None, version: Version | None) -> None:
    """The words of `rejection_sample_method` in this release, and what synthetic acceptance needs."""
    method = config.get("rejection_sample_method")
    if method is not None:
        words = _sample_methods(version)
        if method not in words:
            raise InputError(
                "rejection_sample_method",
                method,
                f"vLLM {version or NEWEST} has {', '.join(words)}",
            )
    given = [key for key in KINDS if key.startswith("synthetic_") and key in config]
    if (method == "synthetic") != (len(given) == 1):
        raise InputError(
            "rejection_sample_method",
            method,
            "synthetic, and only that, goes with exactly one of synthetic_acceptance_rates and _length",
        )
    rates = config.get("synthetic_acceptance_rates")
    if isinstance(rates, list):
        falling = all(is_number(rate) for rate in rates) and rates == sorted(rates, reverse=True)
        if not falling or len(rates) != k or not all(0 <= rate <= 1 for rate in rates):
            raise InputError(
                "synthetic_acceptance_rates", rates, f"must be {k} shares, none above the one before"
            )
    length = config.get("synthetic_acceptance_length")
    if isinstance(length, (int, float)) and k is not None and not 1 <= length <= k + 1:
        raise InputError("synthetic_acceptance_length", length, f"must be from 1 to {k + 1}")


def _sample_methods(version: Version | None) -> tuple[str, ...]:
    if exists(version, (Span("0.33.0"),)):
        return ("standard", "synthetic", "block", "fly")
    if exists(version, (Span("0.25.1"),)):
        return ("standard", "synthetic", "block")
    if exists(version, (Span("0.22.1"),)):
        return ("standard", "synthetic")
    return ("strict", "probabilistic", "synthetic")


def lossy_keys(config: Mapping[str, object]) -> tuple[str, ...]:
    """The keys under which the output no longer follows the target's law."""
    found = [key for key in config if key.startswith(_LOSSY_PREFIXES) or key in _LOSSY_KEYS]
    if config.get("rejection_sample_method") in ("fly", "synthetic"):
        found.append("rejection_sample_method")
    if config.get("acceptance_method") == "typical_acceptance_sampler":
        found.append("acceptance_method")
    return tuple(found)
