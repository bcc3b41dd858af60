"""What each engine calls a draft method and a KV format, and which engines have it at all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from specmodel.errors import InputError, unknown_name
from specmodel.formats import number_format

ENGINES: Mapping[str, str] = MappingProxyType(
    {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM", "llama.cpp": "llama.cpp"}
)
_ENGINE_ALIASES = {"trtllm": "tensorrt-llm", "trt": "tensorrt-llm", "llama": "llama.cpp"}

# Method of this project -> engine -> the engine's own word. An absent engine lacks the method.
METHOD_WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "draft-model": {
            "vllm": "draft_model",
            "sglang": "STANDALONE",
            "tensorrt-llm": "Draft_Target",
            "llama.cpp": "draft-simple",
        },
        "eagle": {"vllm": "eagle", "sglang": "EAGLE"},
        "eagle2": {"vllm": "eagle", "sglang": "EAGLE"},  # the same heads; its dynamic tree is SGLang's top-k
        "eagle3": {
            "vllm": "eagle3",
            "sglang": "EAGLE3",
            "tensorrt-llm": "Eagle3",
            "llama.cpp": "draft-eagle3",
        },
        "medusa": {"vllm": "medusa", "tensorrt-llm": "Medusa"},
        "medusa-typical": {},
        "mtp": {"vllm": "mtp", "sglang": "NEXTN", "tensorrt-llm": "MTP", "llama.cpp": "draft-mtp"},
        "lookup": {
            "vllm": "ngram",
            "sglang": "NGRAM",
            "tensorrt-llm": "NGram",
            "llama.cpp": "ngram-simple",
        },
        "suffix": {"vllm": "suffix", "tensorrt-llm": "SA"},
        "lookahead": {"tensorrt-llm": "Lookahead"},
        "dflash": {
            "vllm": "dflash",
            "sglang": "DFLASH",
            "tensorrt-llm": "DFlash",
            "llama.cpp": "draft-dflash",
        },
        "p-eagle": {"vllm": "eagle3"},  # with parallel_drafting
        "pard": {"vllm": "draft_model", "tensorrt-llm": "PARD"},  # vLLM: with parallel_drafting
        "early-exit": {},
        "sparse-self": {},
        "retrieval": {},
        "hybrid": {},
        "pipelined": {},
    }
)
METHOD_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "draft": "draft-model",
        "draft-target": "draft-model",
        "standalone": "draft-model",
        "eagle-1": "eagle",
        "eagle-2": "eagle2",
        "eagle-3": "eagle3",
        "ngram": "lookup",
        "n-gram": "lookup",
        "prompt-lookup": "lookup",
        "nextn": "mtp",
        "peagle": "p-eagle",
        "self-speculation": "early-exit",
        "layerskip": "early-exit",
    }
)
PARALLEL = ("p-eagle", "pard")  # vLLM runs these as their sequential kin with parallel_drafting
NEEDS_CHECKPOINT = ("draft-model", "eagle", "eagle2", "eagle3", "medusa", "dflash", "p-eagle", "pard")
NO_CHECKPOINT = ("lookup", "suffix", "lookahead")

_KV_WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": {
            "fp8": "fp8",
            "nvfp4": "nvfp4",
            "int8": "int8_per_token_head",
            "int4": "int4_per_token_head",
        },
        "sglang": {"fp8": "fp8_e4m3"},
        "tensorrt-llm": {"fp8": "fp8", "nvfp4": "nvfp4"},
        "llama.cpp": {
            "bf16": "bf16",
            "int8": "q8_0",
            "int4": "q4_0",
            "q8_0": "q8_0",
            "q5_0": "q5_0",
            "q5_1": "q5_1",
            "q4_0": "q4_0",
            "q4_1": "q4_1",
        },
    }
)
_KV_DEFAULT = {
    "llama.cpp": ("fp16",)
}  # what an engine stores when nothing is said: elsewhere the model's type


def engine_id(name: str) -> str:
    """The engine of that name; case, ``-``, ``_`` and ``.`` do not matter."""
    folded = _folded(name)
    by_folded = {_folded(known): known for known in ENGINES} | _ENGINE_ALIASES
    if folded not in by_folded:
        raise unknown_name("engine", name, ENGINES)
    return by_folded[folded]


def method_id(name: str) -> str:
    """The draft method of that name or alias, as this project calls it."""
    folded = name.strip().casefold().replace("_", "-").replace(" ", "-")
    known = METHOD_ALIASES.get(folded, folded)
    if known == "parallel":
        raise InputError("draft", name, "say which parallel drafter: dflash, p-eagle or pard")
    if known not in METHOD_WORDS:
        raise unknown_name("draft", name, [*METHOD_WORDS, *METHOD_ALIASES])
    return known


def engines_with(method: str) -> tuple[str, ...]:
    """Engines that have the method, in some release."""
    return tuple(METHOD_WORDS[method_id(method)])


def engine_word(method: str, engine: str) -> str | None:
    """The engine's word for the method; None where it lacks it.

    Examples
    --------
    >>> engine_word("prompt lookup", "sglang"), engine_word("medusa", "sglang")
    ('NGRAM', None)
    """
    return METHOD_WORDS[method_id(method)].get(engine_id(engine))


def require_word(method: str, engine: str) -> str:
    """The engine's word, or an InputError that says which engines have the method."""
    word = engine_word(method, engine)
    if word is None:
        others = " and ".join(ENGINES[other] for other in engines_with(method))
        where = f"{others} have it" if " and " in others else f"{others or 'no engine written here'} has it"
        raise InputError("draft", method, f"{ENGINES[engine_id(engine)]} lacks this method; {where}")
    return word


def method_of(word: str, engine: str, parallel: bool = False) -> str | None:
    """The project's name for an engine's word; None for one that only the engine knows."""
    for method, words in METHOD_WORDS.items():
        if words.get(engine) == word and (engine != "vllm" or (method in PARALLEL) == parallel):
            return method
    return None


def kv_word(kv: str | None, engine: str) -> str | None:
    """The engine's word for a KV format; None where nothing needs to be said.

    Raises
    ------
    InputError
        If the engine does not store KV that way.
    """
    if kv is None:
        return None
    name = number_format(kv, "kv").name
    words = _KV_WORDS[engine]
    if name in words:
        return words[name]
    silent = _KV_DEFAULT.get(engine, ("bf16", "fp16"))
    if name in silent:
        return None
    raise InputError("kv", kv, f"{ENGINES[engine]} stores KV as one of {', '.join((*silent, *words))}")


def _folded(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
