"""What published tables call models, machines, engines and drafts, read as catalogue entries.

Papers and dashboards write names freely: `Llama-2-Chat-7B`, `H100-80GB`, `vLLM v0.10.1/0.11.1`. A name is tried as it
stands, then without the words that change no shape (Instruct, dates, formats), then as a model of the same shapes.
Whatever was read into a name is returned beside it, so that a prediction can say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from specmodel import catalog
from specmodel.errors import InputError
from specmodel.formats import number_format
from specmodel.model import Model
from specmodel.readers import catalogue

if TYPE_CHECKING:
    from specmodel.datasheets import Device

# Fine-tunes and earlier releases with the shapes of a catalogue entry; the vocabularies of some differ by a few rows.
_SAME_SHAPES = (
    (r"vicuna-7b|codellama-7b|llama-7b|longchat-7b|sqlcoder-7b", "llama-2-7b"),
    (r"vicuna-13b|codellama-13b|llama-13b", "llama-2-13b"),
    (r"codellama-34b|yi-34b", "vicuna-33b"),
    (r"codellama-70b", "llama-2-70b"),
    (r"(meta-)?llama-?3(\.\d)?-8b|deepseek-r1-distill-llama-8b|tulu-3-8b|hermes-3-8b", "llama-3.1-8b"),
    (r"(meta-)?llama-?3(\.\d)?-70b|deepseek-r1-distill-llama-70b|tulu-3-70b", "llama-3.1-70b"),
    (r"(meta-)?llama-?3(\.\d)?-405b", "llama-3.1-405b"),
    (r"deepseek-r1-distill-qwen-(\d+(\.\d)?b)", r"qwen2.5-\1"),
    (r"qwen2(\.5)?-(math-|coder-)?(\d+(\.\d)?b)", r"qwen2.5-\3"),
    (r"qwq-32b", "qwen2.5-32b"),
    (r"qwen3-coder-30b-a3b|qwen3-vl-30b-a3b", "qwen3-30b-a3b"),
    (r"qwen3-vl-(\d+b)", r"qwen3-\1"),
    (r"deepseek-(r1|v3)(\.\d)?(-zero)?", "deepseek-v3"),
    (r"kimi-k2-thinking", "kimi-k2.5"),
    (r"kimi-k2", "kimi-k2"),
    (r"mistral-7b", "mistral-7b-v0.3"),
    (r"llama-68m", "llama-68m"),
    (r"llama-4-scout.*", "llama-4-scout"),
    (r"llama-4-maverick.*", "llama-4-maverick"),
)
_NOISE = re.compile(
    r"-(instruct|chat|it|hf|base|rl|sft|thinking|preview|zero|turbo|v\d+(\.\d+)?|\d{4}|\d+k|\d+e|hub|mini-instruct)(?=-|$)"
)
# Formats that a checkpoint's name declares.
_FORMAT_IN_NAME = (
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp8", "fp8"),
    (r"awq", "awq"),
    (r"gptq", "gptq"),
    (r"w4a16|int4|4bit", "int4-g128"),
    (r"w8a8|int8", "int8"),
    (r"(?:^|-)(q\d_k_[sml]|q\d_[k0]|iq\d_\w+)", ""),
)
_FORMAT_WORDS = (
    (r"nvfp4|\bfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"w8a8.*fp8|fp8|e4m3|float8", "fp8"),
    (r"awq", "awq"),
    (r"gptq", "gptq"),
    (r"w4a16|int4|\b4[- ]?bit|w4\b", "int4-g128"),
    (r"w8a16", "int8-wo"),
    (r"w8a8|int8|\b8[- ]?bit", "int8"),
    (r"nf4|bnb|bitsandbytes", "nf4"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
)
# Dense decoders that the catalogue lacks: one of about the size stands in.
_DENSE_FAMILIES = (
    r"\b(opt|falcon|mpt|granite|starcoder2?|yi|baichuan2?|internlm\d?|olmo|wizardlm|orca|gpt-?neox?)\b"
)
# Catalogue engines by what their names contain; the first that fits. The remark is empty for the engine itself.
_ENGINES = (
    ("tensorrt|trt|nim", "tensorrt-llm", ""),
    ("sglang", "sglang", ""),
    ("vllm", "vllm", ""),
    (r"llama\.?cpp|ollama|gguf|lm ?studio|ggml", "llama.cpp", ""),
    ("magicdec", "magicdec", ""),
    ("sequoia", "sequoia", ""),
    ("hugging|transformers|hf|eager|pytorch|t5x|medusa repo|eagle repo", "transformers", ""),
    ("gpt-?fast", "magicdec", "a compiled loop: its times are those of MagicDec"),
    (
        r"c\+\+|cuda|\.cu\b|graph|compiled",
        "tensorrt-llm",
        "engine not known: times that captured passes share",
    ),
    ("mlx|mlc|exllama", "llama.cpp", "a native runtime: times of llama.cpp"),
    ("lmdeploy|tgi|deepspeed|lightllm|dynamo|aphrodite", "vllm", "a serving engine: times of vLLM"),
)


def model_names(name: str) -> Iterator[str]:
    """What to look up for a published name, the most literal first."""
    plain = re.sub(r"\s*\(.*?\)", "", name).strip()
    yield plain
    bare = plain.split("/")[-1].casefold().replace("_", "-").replace(" ", "-")
    for pattern, _ in _FORMAT_IN_NAME:
        bare = re.sub(rf"-?({pattern})(-(dynamic|block|quantized|pt|g\d+))?(?=-|$)", "", bare)
    previous = ""
    while previous != bare:
        yield bare
        yield from _same_shapes(bare)
        previous, bare = bare, _NOISE.sub("", bare)
    # A prefix or suffix of a fine-tune: PARD-Qwen3-0.6B, Llama-3.1-8B-UltraChat.
    words = bare.split("-")
    for length in range(len(words) - 1, 1, -1):
        for start in range(len(words) - length + 1):
            yield "-".join(words[start : start + length])


def _same_shapes(name: str) -> Iterator[str]:
    for pattern, same in _SAME_SHAPES:
        found = re.fullmatch(pattern, name)
        if found:
            yield found.expand(same) if "\\" in same else same


@cache
def model(name: str, weights: str | None = None, kv: str | None = None) -> tuple[Model, tuple[str, ...]]:
    """The model a published name stands for, and what was read into the name.

    Raises
    ------
    InputError
        For a name that fits no catalogue entry; nothing is fetched.
    """
    for at, candidate in enumerate(model_names(name)):
        entry = catalogue.lookup(candidate) if candidate else None
        if entry is None:
            continue
        stated = weights or (format_in_name(name) if at else None)
        found = catalog.model(entry.id, weights=stated, kv=kv)
        if not isinstance(found, Model):
            break
        said = () if at == 0 else (f"{name}: read as {entry.id}",)
        return found, said
    if re.search(_DENSE_FAMILIES, name.casefold()):
        near = _dense_of(size_in_name(name), 0.85, 1.18)
        if near is not None:
            found = near.with_precision(weights or format_in_name(name), kv)
            return found, (f"{name}: shapes not known, taken as a dense model of that size: {near.name}",)
    raise InputError("target_model", name, "no catalogue entry of these shapes is known")


def size_in_name(name: str) -> float | None:
    """Parameters that a name states, None where it states none."""
    stated = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([bm])\b", name.casefold())
    return None if stated is None else float(stated[1]) * (1e9 if stated[2] == "b" else 1e6)


def near_in_size(size: float | None, vocabulary: int) -> Model | None:
    """A dense model of about that size, of the same vocabulary if there is one."""
    return _dense_of(size, 0.6, 1.6, vocabulary) or _dense_of(size, 0.4, 2.5)


def _dense_of(size: float | None, low: float, high: float, vocabulary: int | None = None) -> Model | None:
    if size is None:
        return None
    near = [
        model
        for model in _dense_models()
        if low < model.architecture.parameters / size < high
        and vocabulary in (None, model.architecture.vocabulary)
    ]
    return min(near, key=lambda model: abs(model.architecture.parameters / size - 1.0), default=None)


@cache
def _dense_models() -> tuple[Model, ...]:
    found = []
    for name in catalog.models():
        try:
            known = catalog.model(name)
        except InputError:  # listed, and refused for what it is
            continue
        if isinstance(known, Model) and known.architecture.active_parameters == known.architecture.parameters:
            found.append(known)
    return tuple(found)


def format_in_name(name: str) -> str | None:
    """The number format that a checkpoint's name declares, None where it declares none."""
    folded = name.casefold()
    for pattern, stored in _FORMAT_IN_NAME:
        found = re.search(rf"(?:^|[-_])({pattern})", folded)
        if found:
            return stored or found[1].lstrip("-")
    return None


def weight_format(text: str, native: str) -> str | None:
    """The number format of a dtype column; None to keep the checkpoint's own (16-bit words say no more than that).

    `native` is the checkpoint's own format: a table that says bf16 of a model published in 4 bits means its
    activations.
    """
    folded = text.casefold().strip()
    if not folded:
        return None
    for pattern, stored in _FORMAT_WORDS:
        if re.search(pattern, folded):
            if stored in ("bf16", "fp16"):
                return None
            same = stored.split("-")[0] == native.split("-")[0]
            return None if same else stored
    try:
        return number_format(folded, "dtype").name
    except InputError:
        return None


@cache
def device(name: str) -> Device:
    """The machine a published name stands for: `H100-80GB`, `8x A100 (80GB)`, `NVIDIA H20 96 GB`.

    Raises
    ------
    InputError
        For a name that is no machine of the catalogue, or weights kept outside the device.
    """
    if re.search("offload", name, re.IGNORECASE):
        raise InputError("gpu", name, "weights outside the device's memory are not modelled")
    plain = re.sub(r"\s*\(.*?\)", "", name).strip()
    plain = re.sub(r"^\d+\s*[x×*]\s*|\s*[x×*]\s*\d+$", "", plain)
    tries = [plain, re.sub(r"[-\s]?\d+\s*(gb|gib|g)\b", "", plain, flags=re.IGNORECASE)]
    tries.append(
        re.sub(r"[-\s]?(sxm\d?|hbm\d?e?|nvl|oam|tensor core|gpu)\b", "", tries[-1], flags=re.IGNORECASE)
    )
    first: InputError | None = None
    for candidate in tries:
        try:
            return catalog.device(candidate.strip())
        except InputError as error:
            first = first or error
    assert first is not None
    raise InputError("gpu", name, first.allowed)


def gpus_in_name(name: str) -> int | None:
    """How many GPUs a machine's name counts, None where it counts none."""
    found = re.match(r"^(\d+)\s*[x×*]\s*\D", name.strip()) or re.search(r"\D\s*[x×*]\s*(\d+)$", name.strip())
    return int(found[1]) if found else None


def engine(name: str) -> tuple[str, tuple[str, ...]]:
    """The catalogue engine of a published name, and what was read into it."""
    folded = name.casefold()
    if re.search("offload", folded):
        raise InputError("engine", name, "weights outside the device's memory are not modelled")
    for pattern, known, remark in _ENGINES:
        if re.search(pattern, folded):
            return known, (remark,) if remark else ()
    return "vllm", (f"engine {name or 'not named'}: times of vLLM",)
