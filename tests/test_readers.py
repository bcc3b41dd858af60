"""Configs as people have them: family defaults, wrappers, quantisation, broken files, names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specmodel.errors import InputError
from specmodel.layers.matrices import padded_vocabulary
from specmodel.model import Model, Totals
from specmodel.readers import catalogue, find_model, load

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
KIMI_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"]


def changed(**changes: Any) -> dict[str, Any]:
    """A Llama-3.1-8B config with some keys changed; Ellipsis drops one."""
    return {key: value for key, value in (LLAMA | changes).items() if value is not ...}


# Checks of cases c13-c19 that are not tested by the readers, and where they belong.
ELSEWHERE = {
    "C13-f": "units: every printed size says GB or GiB (test_units)",
    "C14": "the ledger (test_ledger)",
    "C16-a, C16-c": "ridges follow from a device's peaks (roofline)",
    "C16-b": "a lint of device figures (devices)",
    "C17-c, C17-d": "speedups need a round, not a reader",
    "C19-a, C19-b, C19-d, C19-e": "the ledger (test_ledger)",
    "C19-c": "bytes of each card (devices)",
}


# Cases c13 and c17 of the public reports: cache of one sequence at the stated context, 16-bit.
@pytest.mark.parametrize(
    ("file", "context", "expected"),
    [
        ("gemma-3-27b.json", 131072, 11173625856),  # C13-a: 10 layers keep all, 52 a window of 1,024
        ("deepseek-v3.1.json", 1, 70272),  # C13-b: one shared latent, no factor 2
        ("qwen3-0.6b.json", 1, 114688),  # C13-c: head_dim 128 is not hidden / heads
        ("gemma-3-12b-no-head-dim.json", 131072, 8925478912),  # C13-d: head_dim 256 by the family
        ("qwen3.5-397b-a17b.json", 1, 30720),  # C17-e: 15 of 60 layers keep a growing cache
    ],
)
def test_cases_cache_bytes(shared: Path, file: str, context: int, expected: int) -> None:
    model = load(shared / "cases" / "configs" / file)
    assert float(model.kv_bytes(context)) == pytest.approx(expected, rel=1e-12)


def test_case_c13e_sparse_config_uses_family_defaults_and_says_so(shared: Path) -> None:
    model = load(shared / "cases" / "configs" / "gemma-3-4b-sparse.json")
    assert model.architecture.parameters == catalogue.check("gemma-3-4b").parameters
    said = " ".join(model.notes)
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
        assert key in said
    assert "family's default" in said


def test_case_c15(shared: Path) -> None:
    model = load(shared / "cases" / "configs" / "llama-3.1-70b.json")
    assert [float(model.kv_bytes(1, tp)) for tp in (8, 16, 32)] == [40960.0] * 3  # C15-a, C15-d
    assert padded_vocabulary(151552, 6, quantum=1) == 151554
    assert padded_vocabulary(129280, 24, quantum=1) == 129288
    assert padded_vocabulary(129280, 24) == 129408
    with pytest.raises(InputError, match="KV heads"):  # C15-b: 8 KV heads at tp 6, though 96 heads divide
        load(changed(num_attention_heads=96, hidden_size=12288)).kv_bytes(1, 6)
    with pytest.raises(InputError, match="tp = 24"):  # C15-c: padding the vocabulary does not make it legal
        load(changed(num_attention_heads=128, num_key_value_heads=1, head_dim=128)).counted_bytes(24)


def test_case_c17_nested_config_without_its_vision_tower(shared: Path) -> None:
    architecture = load(shared / "cases" / "configs" / "qwen3.5-397b-a17b.json").architecture
    assert architecture.parameters == pytest.approx(396345589760, rel=0.02)  # C17-b
    assert architecture.streamed_parameters == pytest.approx(16331161600, rel=0.05)  # C17-a
    model = load(shared / "cases" / "configs" / "qwen3.5-397b-a17b.json")
    assert float(model.streamed_bytes(4)) / float(model.streamed_bytes(1)) == pytest.approx(2.333, abs=2e-3)


def test_every_case_config_loads(shared: Path) -> None:
    for path in sorted((shared / "cases" / "configs").glob("*.json")):
        assert load(path).architecture.parameters > 5e8, path.name


@pytest.mark.parametrize("change", [{"num_key_value_heads": None}, {"num_key_value_heads": ...}])
def test_missing_kv_heads_mean_as_many_as_heads(change: dict[str, Any]) -> None:
    assert load(changed(**change)).kv_bytes_per_token == 2 * 2 * 32 * 4096


def test_both_spellings_of_transformers_4_and_5() -> None:
    assert load(changed(torch_dtype="float16")).precision.weights.name == "fp16"
    assert load(changed(dtype="float16")).precision.weights.name == "fp16"
    wide = load(changed(torch_dtype="float32"))
    assert wide.precision.weights.name == "bf16"
    assert any("float32" in note for note in wide.notes)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"hidden_size": ...}, "hidden_size = None: required"),
        ({"hidden_size": "4096"}, "hidden_size = '4096': an integer from 1"),
        ({"hidden_size": 4096.0}, "hidden_size = 4096.0: an integer"),
        ({"hidden_size": True}, "hidden_size = True: an integer"),
        ({"hidden_size": -1}, "hidden_size = -1: an integer"),
        ({"hidden_size": 10**30}, "hidden_size = 1000000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0: an integer from 1"),
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5: must divide num_attention_heads = 32"),
        ({"num_attention_heads": 33}, "num_key_value_heads = 8: must divide"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes': true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types = "),
        ({"layer_types": ["mamba"] * 32}, "layer_types = 'mamba': known layer kinds here"),
        ({"model_type": 7}, "model_type = 7: a string"),
        ({"text_config": []}, "text_config = []: a JSON object"),
        ({"num_local_experts": 8}, "num_local_experts = 8: refused"),
        ({"kv_lora_rank": 512}, "kv_lora_rank = 512: refused"),
        ({"torch_dtype": "int3"}, "torch_dtype = 'int3': one of"),
        ({"quantization_config": {"quant_method": "exl9"}}, "quant_method = 'exl9': one of awq"),
        ({"quantization_config": 4}, "quantization_config = 4: a JSON object"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        load(changed(**change))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_type_with_plain_keys_is_computed_and_marked() -> None:
    model = load(changed(model_type="brandnew"))
    assert model.architecture.parameters == 8030261248
    assert model.architecture.unverified
    assert any("unverified" in note for note in model.notes)
    assert load(changed(model_type=...)).architecture.unverified


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["linear_attention"] * 32},
        {"num_experts": 8, "num_experts_per_tok": 2},
        {"n_routed_experts": 8},
        {"some_expert_count": 8},
        {"kv_lora_rank": 512},
        {"mamba_d_state": 16},
        {"linear_attn_config": {"full_attn_layers": [1]}},
        {"sliding_window": 4096},
        {"hidden_act": "gelu"},
        {"num_kv_shared_layers": 4},
        {"is_encoder_decoder": True},
    ],
)
def test_an_unknown_type_with_other_layers_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        load(changed(model_type="brandnew", **change))
    assert str(caught.value).startswith(tuple(change))


def test_an_unused_window_does_not_refuse_an_unknown_type() -> None:
    for change in ({"use_sliding_window": False}, {"max_position_embeddings": 4096}):
        assert (
            load(changed(model_type="brandnew", sliding_window=4096, **change)).kv_bytes_per_token == 131072
        )


def test_known_types_that_are_not_modelled_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="compress_ratios"):
        find_model("deepseek-ai/DeepSeek-V4-Flash")
    with pytest.raises(InputError, match="linear_attn_config"):
        load(changed(model_type="kimi_k3"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", "is empty"),
        (b"   ", "is empty"),
        (b"{", "not JSON"),
        (b"[1, 2]", "holds a list"),
        (b"3", "holds a int"),
        (b"\xff\xfe\x00", "must be UTF-8"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "given twice"),
        (b'{"a\\nb": 1, "a\\nb": 2}', "a?b = 2: given twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_broken_files_get_one_line(tmp_path: Path, text: bytes, line: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(200 * 10**6)
    with pytest.raises(InputError, match="at most 16 MiB; this file has 200000000 bytes"):
        load(path)


def test_paths_and_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load(tmp_path).name == tmp_path.name
    assert load(str(tmp_path / "config.json")).architecture.parameters == 8030261248
    (tmp_path / "empty").mkdir()
    cases: list[tuple[str | Path, str]] = [
        (tmp_path / "empty", "holds no config.json"),
        (tmp_path / "nowhere.json", "no such file"),
        ("lama-3.1-8b", "did you mean 'llama-3.1-8b'"),
        ("", "model = ''"),
        ("a\0b", "unknown name"),
    ]
    for bad, line in cases:
        with pytest.raises(InputError, match=line):
            load(bad)


@pytest.mark.parametrize(
    ("name", "entry_id"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("LLAMA_3.1_8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Vicuna-7B-v1.3", "llama-2-7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ],
)
def test_names_as_people_type_them(name: str, entry_id: str) -> None:
    assert catalogue.find(name).id == entry_id


def test_aliases_of_the_fact_table_all_resolve(shared: Path) -> None:
    facts = json.loads((shared / "facts" / "models.json").read_text())
    for alias, hub in facts["aliases"]["map"].items():
        assert catalogue.find(alias).hub == hub
    for fact in facts["models"]:
        assert catalogue.find(fact["id"]).hub == fact["id"]


def test_an_alias_says_what_it_was_read_as() -> None:
    model = find_model("Vicuna-7B-v1.3")
    assert isinstance(model, Model)
    assert model.notes[0] == "Vicuna-7B-v1.3: read as meta-llama/Llama-2-7b-hf, which has the same shapes"


def test_the_lecture_model_is_totals() -> None:
    model = find_model("lecture-7b")
    assert isinstance(model, Totals)
    assert (model.weight_bytes, model.flops_per_token, model.kv_bytes_per_token) == (13.5e9, 13.48e9, 131072)
    with pytest.raises(InputError, match="totals only"):
        load("lecture-7b")
    with pytest.raises(InputError, match="weights = 'fp8'"):
        find_model("lecture-7b", weights="fp8")


def test_one_entry_is_loaded_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from specmodel.readers import json_file

    seen: list[str] = []
    read = json_file.read_object

    def spy(path: Path, *rest: Any) -> dict[str, Any]:
        seen.append(path.name)
        return read(path, *rest)

    monkeypatch.setattr(json_file, "read_object", spy)
    catalogue.index.cache_clear()
    find_model("qwen3-8b")
    assert seen == ["index.json", "qwen3-8b.json"]


def test_every_entry_names_its_source() -> None:
    for entry_id in catalogue.ids():
        about = catalogue.about(entry_id)
        assert about["source"], entry_id
        assert about["confidence"], entry_id


def test_glm_4_7_flash_is_laid_out_like_deepseek() -> None:
    """Sizes as turboderp-org/exllamav3 issue 142 quotes its config: a 30B-A3B with a latent cache of 512 + 64 per layer."""
    config = {
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
        "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20, "n_routed_experts": 64,
        "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 768,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880,
        "max_position_embeddings": 202752, "tie_word_embeddings": False,
    }  # fmt: skip
    model = load(config)
    assert model.architecture.parameters == pytest.approx(30e9, rel=0.01)
    assert model.kv_bytes_per_token == 47 * (512 + 64) * 2
