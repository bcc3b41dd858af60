"""The readers: what an engine would refuse, or take otherwise than it looks; the YAML subset."""

from __future__ import annotations

import doctest
import json
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.export import read_config
from specmodel.export import yaml_subset as yaml


def vllm_table(rows: object, k: int = 4) -> str:
    return json.dumps(
        {
            "method": "ngram",
            "num_speculative_tokens": k,
            "num_speculative_tokens_per_batch_size": rows,
        }
    )


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "at least one"),
        ([[2, 8, 4]], "start at 1"),
        ([[1, 8, 4], [8, 9, 2]], "overlaps"),
        ([[1, 8, 4], [12, 9, 2]], "ends before"),
        ([[1, 8, -1]], "at least 0"),
        ([[1, 8]], "start, end, k"),
        ([[1, 8, 2.5]], "whole"),
        ([[1, 8, True]], "whole"),
        ("all", "a list"),
    ],
)
def test_vllm_ranges_are_checked(rows: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_config(vllm_table(rows), "vllm")


def test_vllm_gaps_carry_on_and_larger_k_is_cut() -> None:
    found = read_config(vllm_table([[1, 4, 6], [10, 20, 0]]), "vllm")
    assert found.schedule is not None
    assert found.schedule.describe() == "1-9: 4, 10-20: off"
    assert any("is cut to" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"method": "eagle9", "num_speculative_tokens": 3}', "did you mean"),
        ('{"method": "medusa", "num_speculative_tokens": 3}', "0.8.5 to 0.29"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "above 0"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 2}', "draft_tensor"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": 8}', "does not exist"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "loose"}', "standard"),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}',
            "one of",
        ),
        ('{"method": "ngram", "num_speculative_tokens": "3"}', "whole number"),
        ('{"method": "ngram"', "JSON"),
        ("vllm serve x --speculative-config '[1]'", "object"),
        ("vllm serve x --speculative-config '{", "shell"),
        ('vllm serve x -sc \'{"method": "ngram"}\' --spec-method eagle', "conflicts"),
        ("vllm serve x --tensor-parallel-size two", "whole number"),
    ],
)
def test_vllm_refusals(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_config(text, "vllm")


def test_vllm_shorthands_and_deprecated_words() -> None:
    found = read_config("vllm serve m --spec-method deepseek_mtp --spec-tokens 2 --max_num_seqs 8", "vllm")
    assert (found.word, found.method, found.k, found.target, found.max_batch) == ("mtp", "mtp", 2, "m", 8)
    assert any("today's word is mtp" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 3",
            "all together or not|together or not at all",
        ),
        ("--speculative-algorithm DFLASH --speculative-adaptive", "top-k 1"),
        (
            "--speculative-algorithm EAGLE3 --speculative-adaptive --speculative-adaptive-config a.json",
            "not given",
        ),
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 1", "root"),
        ('{"2": {"candidate_steps": [1]}}', "start at batch 1"),
        ('{"1": {"candidate_steps": []}}', "numbers of steps"),
        ('{"1": {"candidate_steps": [-1]}}', "from 0"),
        ('{"1": {"steps": [1]}}', "unknown|did you mean"),
        ('{"alpha": 2}', "unknown|did you mean"),
        ('{"1": [1]}', "object"),
    ],
)
def test_sglang_refusals(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_config(text, "sglang")


def test_sglang_top_k_1_forces_the_width() -> None:
    found = read_config(
        "--speculative-algorithm eagle --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 9 --speculative-accept-threshold-single 0.8",
        "sglang",
    )
    assert (found.word, found.k, found.tree) == ("EAGLE", 3, None)
    assert any("verifies 4 tokens" in note for note in found.notes)
    assert found.lossy == ("speculative_accept_threshold_single",)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("decoding_type: Eagle4", "did you mean"),
        ("decoding_type: NGram\n  max_draft_len: 0", "at least 1"),
        ("decoding_type: NGram\n  max_draft_len: 4\n  draft_len_schedule: {4: 3, 8: 4}", "smallest key"),
        ("decoding_type: NGram\n  draft_len_schedule: {4: 3, 8: 4}", "above that"),
        ("decoding_type: NGram\n  max_draft_len: 4\n  draft_len_schedule: {0: 4}", "at least 1"),
        ("decoding_type: NGram\n  max_draft_len: 4\n  draft_len_schedule: []", "mapping"),
        (
            "decoding_type: NGram\n  max_draft_len: 4\n  max_concurrency: 8\n  draft_len_schedule: {4: 4}",
            "together",
        ),
        ("decoding_type: NGram\n  max_draft_len: 4\n  max_draft_len: 5", "twice"),
        ("decoding_type: NGram\n  max_drafts: 4", "did you mean"),
        (
            "decoding_type: Eagle3\n  max_draft_len: 3\n  dynamic_tree_max_topK: 2\n  max_total_draft_tokens: 9",
            "from 3 to",
        ),
    ],
)
def test_tensorrt_refusals(section: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_config(f"speculative_config:\n  {section}\n", "trtllm")


def test_tensorrt_commands_name_their_file() -> None:
    with pytest.raises(InputError, match="not given"):
        read_config("trtllm-serve m --config a.yaml", "trtllm")
    found = read_config("trtllm-serve m --extra_llm_api_options a.yaml", "trtllm", files={"a.yaml": ""})
    assert (found.target, found.k) == ("m", 0)


def test_a_config_without_speculation_is_read_as_none() -> None:
    for engine, text in (
        ("vllm", "vllm serve m"),
        ("sglang", "python -m sglang.launch_server --model-path m"),
        ("trtllm", "kv_cache_config:\n  dtype: fp8\n"),
        ("llama.cpp", "llama-server -m m --spec-type none"),
    ):
        found = read_config(text, engine)
        assert (found.word, found.k, found.schedule) == (None, 0, None)


scalars = (
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.text(max_size=12)
)
keys = st.text(min_size=1, max_size=8).map(str.strip).filter(bool) | st.integers(0, 99)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        keys,
        scalars
        | st.lists(scalars, max_size=3)
        | st.dictionaries(keys, scalars | st.dictionaries(keys, scalars, max_size=2), max_size=3),
        max_size=4,
    )
)
def test_yaml_reads_back_what_it_writes(content: dict[str, object]) -> None:
    assert yaml.load(yaml.dump(content)) == content


def test_yaml_of_other_hands() -> None:
    text = """---
# comment
a: 'it''s'   # trailing
b: "x: #y"
url: http://host:8000/a#b
list:
- 1
- two
flow: {k: [1, 2.5e3, {z: ~}], 'q': true}
deep:
    more:
        x: 1
    y:
"""
    assert yaml.load(text) == {
        "a": "it's",
        "b": "x: #y",
        "url": "http://host:8000/a#b",
        "list": [1, "two"],
        "flow": {"k": [1, 2500.0, {"z": None}], "q": True},
        "deep": {"more": {"x": 1}, "y": None},
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "line 2.*twice"),
        ("a\n", "key: value"),
        ("a: &x 1", "anchor"),
        ("a: |\n  text", "text block"),
        ("\ta: 1", "tab"),
        ("a: {b: 1", "same line|closed"),
        ("a: [1, 2", "same line|closed"),
        ("a: 1\n  b: 2", "indented more"),
        ("  a: 1\nb: 2", "indented less"),
        ("a: 1\n---\nb: 2", "one document"),
        ("- 1", "list"),
        ('a: "open', "quoted"),
        ("a: {b: 1} c", "after its end"),
    ],
)
def test_yaml_outside_the_subset_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        yaml.load(text)


@pytest.mark.parametrize("name", ["schedule", "words", "yaml_subset"])
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(import_module(f"specmodel.export.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
