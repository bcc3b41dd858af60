"""Every kind of quantization_config against the bits of its published layout."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.readers import catalogue, find_model, load

Row: TypeAlias = tuple[str, dict[str, Any], tuple[float, float, float]]
LLAMA = {key: value for key, value in catalogue.config("llama-3.1-8b").items() if key != "_specmodel"}
KIMI_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"]


def changed(**changes: Any) -> dict[str, Any]:
    """A Llama-3.1-8B config with some keys changed."""
    return LLAMA | changes


# quantization_config of each kind -> bits of (dense or experts, attention, head), by the layouts.
QUANTISED: list[Row] = [
    (
        "awq",
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        (4.15625, 4.15625, 16),
    ),
    ("awq-g64", {"quant_method": "awq", "bits": 4, "group_size": 64}, (4.3125, 4.3125, 16)),
    ("gptq", {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, (4.15625,) * 3),
    ("gptq8", {"quant_method": "gptq", "bits": 8, "group_size": -1}, (8, 8, 16)),
    ("fp8", {"quant_method": "fp8", "activation_scheme": "static"}, (8, 8, 16)),
    ("fp8-block", {"quant_method": "fp8", "weight_block_size": [128, 128]}, (8.001953125, 8.001953125, 16)),
    ("fbgemm", {"quant_method": "fbgemm_fp8"}, (8, 8, 16)),
    (
        "bnb4",
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        (4.5, 4.5, 16),
    ),
    ("bnb8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, (8, 8, 16)),
    (
        "modules",
        {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        (8, 16, 16),
    ),
    ("modelopt", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, (4.5, 4.5, 16)),
    ("modelopt-head", {"quant_method": "modelopt", "quant_algo": "FP8"}, (8, 8, 8)),
    (
        "modelopt-mixed",
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.{layer}.{module}": {"quant_algo": algorithm}
                for layer in range(32)
                for module, algorithm in (("self_attn", "FP8"), ("mlp", "W4A16_NVFP4"))
            },
        },
        (4.5, 8, 16),
    ),
    ("torchao-int4", {"quant_method": "torchao", "quant_type": "int4_weight_only"}, (4.25, 4.25, 16)),
    (
        "torchao",
        {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig"}},
        },
        (8, 8, 16),
    ),
    ("mxfp4-dense", {"quant_method": "mxfp4"}, (16, 16, 16)),  # it quantises experts only: none here
]


def compressed(weights: dict[str, Any], inputs: Any = None, **more: Any) -> dict[str, Any]:
    """A compressed-tensors object with one group over all linear layers, the head ignored."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    } | more


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
HALF_OF_THE_LAYERS = [f"model.layers.{layer}.mlp" for layer in range(16)]
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
QUANTISED += [
    ("ct-int4", compressed(INT4, format="pack-quantized"), (4.5, 4.5, 16)),
    ("ct-int4-zp", compressed(INT4 | {"symmetric": False}), (4.625, 4.625, 16)),
    ("ct-fp8", compressed(FP8, {"num_bits": 8}, format="float-quantized"), (8, 8, 16)),
    (
        "ct-fp8-block",
        compressed(FP8 | {"strategy": "block", "block_structure": [128, 128]}),
        (8.001953125, 8.001953125, 16),
    ),
    ("ct-int8", compressed(FP8 | {"type": "int"}, {"num_bits": 8}), (8, 8, 16)),
    ("ct-nvfp4", compressed({"num_bits": 4, "type": "float", "group_size": 16}, {}), (4.5, 4.5, 16)),
    ("ct-mxfp4", compressed({"num_bits": 4, "type": "float", "group_size": 32}), (4.25, 4.25, 16)),
    ("ct-ignore", compressed(INT4, ignore=["lm_head", "re:.*self_attn.*"]), (4.5, 16, 16)),
    ("ct-half", compressed(FP8, {}, ignore=["lm_head", *HALF_OF_THE_LAYERS]), (12, 8, 16)),
    ("ct-dense", compressed(INT4, format="dense"), (16, 16, 16)),
]


@pytest.mark.parametrize(
    ("declared", "bits"), [row[1:] for row in QUANTISED], ids=[row[0] for row in QUANTISED]
)
def test_quantisation_configs(declared: dict[str, Any], bits: tuple[float, float, float]) -> None:
    model = load(changed(quantization_config=declared))
    precision = model.precision
    assert (precision.of("dense").bits, precision.of("attention").bits, precision.of("head").bits) == bits
    for part in ("embedding", "norms", "router"):
        assert precision.of(part).bits == 16
    parts = model.architecture.parts()
    expected = sum(parts[part] * bits[at] / 8 for at, part in enumerate(("dense", "attention", "head")))
    assert model.weight_bytes == expected + 2 * (parts["embedding"] + parts["norms"])


def test_experts_alone_are_quantised_where_the_rest_is_ignored() -> None:
    config = catalogue.config("qwen3-30b-a3b") | {"quantization_config": compressed(INT4, ignore=KIMI_IGNORE)}
    precision = load(config).precision
    assert precision.of("experts").bits == 4.5
    assert precision.of("attention").bits == 16


def test_where_the_cache_format_is_declared() -> None:
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert load(changed(quantization_config=compressed(INT4, **scheme))).precision.kv.name == "fp8"
    assert load(changed(), kv="fp8").kv_bytes_per_token == 65536
    published = find_model("llama-3.1-70b-fp8")
    assert isinstance(published, Model)
    assert published.precision.kv.name == "fp8"


def test_formats_by_option_leave_what_usually_stays_16_bit() -> None:
    model = load(LLAMA, weights="int4-g128")
    parts = model.architecture.parts()
    quantised = parts["attention"] + parts["dense"]
    assert model.weight_bytes == quantised * 4.125 / 8 + 2 * (model.architecture.parameters - quantised)
    with pytest.raises(InputError, match="weights = 'int5'"):
        load(LLAMA, weights="int5")


@pytest.mark.parametrize(
    ("model", "weights", "gib"),
    [("llama-2-7b", "q4_0", 3.56), ("llama-2-7b", "q8_0", 6.67), ("codellama-34b", "q8_0", 33.39)],
)
def test_gguf_formats_narrow_embedding_and_head_too(model: str, weights: str, gib: float) -> None:
    """File sizes as llama-bench prints them (llama.cpp pull requests 4766 and 5625)."""
    found = load(model, weights=weights)
    assert found.weight_bytes / 2**30 == pytest.approx(gib, abs=0.005)
    assert found.precision.of("head").name == ("q6_k" if weights == "q4_0" else weights)


def test_a_gguf_mix_is_the_average_of_the_whole_file() -> None:
    """Llama-3.1-8B in q4_k_m: 4.89 bits, from which its file size follows; tied models keep one matrix, as the head."""
    found = load("llama-3.1-8b", weights="q4_k_m")
    assert found.weight_bytes == pytest.approx(4.89 / 8 * found.architecture.parameters, rel=1e-3)
    tied = load("llama-3.2-1b", weights="q4_0")
    assert tied.precision.of("embedding").name == tied.precision.of("head").name == "q6_k"


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:" + ".*" * 9 + "x", "re:[", "re:" + "a" * 600, 7, ["x"], None]
)
def test_hostile_patterns_are_refused_quickly(pattern: object) -> None:
    with pytest.raises(InputError, match="quantization_config"):
        load(changed(quantization_config={"quant_method": "fp8", "ignore": [pattern]}))
