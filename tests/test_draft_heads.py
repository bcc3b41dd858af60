"""Draft heads against the published element counts, the family rule, and configs of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specmodel.drafters.heads import DraftHead
from specmodel.errors import InputError
from specmodel.readers import catalogue, drafts, load


@pytest.mark.parametrize("head_id", drafts.known())
def test_published_counts(head_id: str) -> None:
    head, counts = drafts.load_known(head_id), catalogue.about(head_id).get("counts", {})
    parts = head.parts()
    if "total_without_embedding" in counts:
        assert head.parameters == counts["total_without_embedding"]
        assert parts["fusion"] == counts["fc"]
        assert parts["layers"] == counts["layer"]
        assert parts["head"] == counts["lm_head"]
        assert parts["norms"] == counts["norms"]
    elif head.kind == "eagle":
        assert (parts["fusion"], parts["layers"]) == (counts["fc"], counts["layer"])
        assert "head" not in parts
        assert head.head.elements == counts["lm_head_shared"]
    elif head.kind == "medusa":
        assert head.parameters == 2 * counts["per_head"]
    else:
        assert head.parameters > 0
        assert any("unverified" in note for note in head.notes) or "counts" not in catalogue.about(head_id)


def test_heads_of_the_fact_table_are_all_there(shared: Path) -> None:
    facts = json.loads((shared / "facts" / "models.json").read_text())["draft_heads"]
    assert len(facts) == len(drafts.known())


def test_a_known_head_is_found_by_name_and_by_shape() -> None:
    for source in ("llama-3.1-8b", catalogue.config("llama-3.1-8b")):
        head = drafts.for_target("eagle3", load(source).architecture)
        assert head.name == "eagle3-llama-3.1-8b"
        assert head.max_context == 2048  # the published pitfall: acceptance collapses beyond


def test_the_family_rule_is_named() -> None:
    head = drafts.for_target("eagle3", load("llama-3.1-70b").architecture)
    # fc 3H x H; q, k, v from 2H; o; three feed-forward matrices; 32,000 x H; four norms, by the rule itself
    hidden, width = 8192, 28672
    layer = 2 * hidden * (hidden + 2 * 1024) + hidden * hidden + 3 * hidden * width
    assert head.parameters == 3 * hidden * hidden + layer + 32000 * hidden + 4 * hidden
    assert any("family rule" in note for note in head.notes)


def test_the_family_rule_for_experts_is_unverified() -> None:
    head = drafts.for_target("eagle3", load("qwen3-30b-a3b").architecture)
    assert head.layers[0][1].feed_forward is not None
    assert head.layers[0][1].feed_forward.width == 4 * 2048
    assert any("unverified" in note for note in head.notes)


def test_eagle_reads_the_head_of_its_target() -> None:
    target = load("qwen3-8b").architecture
    head = drafts.for_target("eagle", target)
    assert head.head == target.head
    assert not head.owns_head


@pytest.mark.parametrize("kind", ["medusa", "dflash", "mlp_speculator"])
def test_kinds_without_a_rule_ask_for_a_config(kind: str) -> None:
    with pytest.raises(InputError, match=f"no {kind} head of gemma-3-27b is known"):
        drafts.for_target(kind, load("gemma-3-27b").architecture)
    with pytest.raises(InputError, match="did you mean 'eagle3'"):
        drafts.for_target("eagle33", load("gemma-3-27b").architecture)


LAYER = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
VOCABULARY = {"vocab_size": 151936, "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (
            LAYER | VOCABULARY | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000},
            "eagle3",
        ),
        (
            {
                "speculators_model_type": "eagle3",
                "transformer_layer_config": LAYER | VOCABULARY,
                "draft_vocab_size": 32000,
            },
            "eagle3",
        ),
        ({"speculators_model_type": "dflash", "transformer_layer_config": LAYER | VOCABULARY}, "dflash"),
        (LAYER | VOCABULARY | {"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "medusa"),
        (
            {
                "model_type": "mlp_speculator",
                "emb_dim": 1024,
                "inner_dim": 512,
                "n_predict": 3,
                "vocab_size": 999,
            },
            "mlp_speculator",
        ),
    ],
)
def test_configs_are_recognised_by_their_keys(tmp_path: Path, config: dict[str, Any], kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = drafts.load(tmp_path, load("qwen3-0.6b").architecture)
    assert isinstance(head, DraftHead)
    assert head.kind == kind
    assert head.parameters > 0


def test_a_whole_model_is_no_head() -> None:
    assert drafts.kind_of(catalogue.config("llama-3.2-1b")) is None
    with pytest.raises(InputError, match="one of eagle, eagle3"):
        drafts.read(catalogue.config("llama-3.2-1b"), "x", "x")
    with pytest.raises(InputError, match="did you mean 'eagle3-qwen3-8b'"):
        drafts.load("eagle3-qwen-8b")


def test_shares_and_caches() -> None:
    head = drafts.load_known("eagle3-llama-3.1-8b")
    assert head.kv_elements(100) == 2 * 8 * 128 * 100
    assert head.kv_elements(100, tp=16) == 2 * 128 * 100
    halves, whole = head.parts(2), head.parts()
    assert halves["layers"] * 2 == whole["layers"]
    assert halves["fusion"] == whole["fusion"]
    assert float(head.attention_flops(100, 3)) == 3 * 4 * 32 * 128 * 100
