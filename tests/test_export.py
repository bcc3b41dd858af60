"""Configurations in the engines' own syntax: words, versions, what is written and what is refused.

Expected texts are the examples of each engine's documentation.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from specmodel.errors import InputError
from specmodel.export import (
    EngineConfig,
    Reading,
    Schedule,
    Tree,
    engine_word,
    engines_with,
    read,
    read_config,
    sweep,
    write,
    writing,
)
from specmodel.export import yaml_subset as yaml
from specmodel.export.words import ENGINES
from tests.export_cases import FALLING, HEAD, asked


def table(config: EngineConfig) -> object:
    """What the engine's own parser would see."""
    return json.loads(config.config)


# Words


@pytest.mark.parametrize(
    ("method", "vllm", "sglang", "trtllm", "llama"),
    [
        ("draft model", "draft_model", "STANDALONE", "Draft_Target", "draft-simple"),
        ("eagle", "eagle", "EAGLE", None, None),
        ("eagle2", "eagle", "EAGLE", None, None),
        ("eagle3", "eagle3", "EAGLE3", "Eagle3", "draft-eagle3"),
        ("medusa", "medusa", None, "Medusa", None),
        ("mtp", "mtp", "NEXTN", "MTP", "draft-mtp"),
        ("prompt lookup", "ngram", "NGRAM", "NGram", "ngram-simple"),
        ("ngram", "ngram", "NGRAM", "NGram", "ngram-simple"),
        ("suffix", "suffix", None, "SA", None),
        ("lookahead", None, None, "Lookahead", None),
        ("dflash", "dflash", "DFLASH", "DFlash", "draft-dflash"),
        ("p-eagle", "eagle3", None, None, None),
        ("pard", "draft_model", None, "PARD", None),
        ("self-speculation", None, None, None, None),
    ],
)
def test_each_engine_has_its_own_word(
    method: str, vllm: str | None, sglang: str | None, trtllm: str | None, llama: str | None
) -> None:
    engines = ("vLLM", "sglang", "TensorRT-LLM", "llama.cpp")
    assert [engine_word(method, engine) for engine in engines] == [vllm, sglang, trtllm, llama]


def test_a_method_that_an_engine_lacks_is_refused_with_those_that_have_it() -> None:
    with pytest.raises(InputError, match="SGLang lacks this method; vLLM and TensorRT-LLM have it"):
        asked("sglang", method="medusa", k=3)
    with pytest.raises(InputError, match="no engine"):
        asked("vllm", method="self-speculation", draft_model=None, k=3)
    with pytest.raises(InputError, match="dflash, p-eagle or pard"):
        engines_with("parallel")


# The documented examples


def test_vllm_examples() -> None:
    eagle = write(asked("vllm", k=4, version="0.33.0"))
    assert eagle.command == (
        "vllm serve acme/demo-8b --speculative-config "
        '\'{"method":"eagle3","model":"acme/demo-8b-eagle3","num_speculative_tokens":4}\''
    )
    ngram = write(
        asked(
            "vllm",
            method="ngram",
            draft_model=None,
            k=5,
            version="0.33.0",
            options={"prompt_lookup_max": 4, "prompt-lookup-min": 2},
        )
    )
    assert ngram.config == (
        '{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,"prompt_lookup_min":2}'
    )
    mtp = write(asked("vllm", target="acme/big-moe", method="mtp", draft_model=None, k=1, version="0.33.0"))
    assert mtp.command == (
        'vllm serve acme/big-moe --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\''
    )
    scheduled = write(asked("vllm", schedule=FALLING, version="0.33.0"))
    assert scheduled.config == (
        '{"method":"eagle3","model":"acme/demo-8b-eagle3","num_speculative_tokens":4,'
        '"num_speculative_tokens_per_batch_size":[[1,8,4],[9,32,2],[33,512,0]]}'
    )
    assert read(scheduled).schedule == FALLING


def test_sglang_example() -> None:
    config = write(asked("sglang", k=3, max_batch=16))
    assert config.command == (
        "python -m sglang.launch_server --model-path acme/demo-8b --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path acme/demo-8b-eagle3 --speculative-num-steps 3 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --max-running-requests 16"
    )


def test_tensorrt_example(shared: Path) -> None:
    text = (shared / "samples" / "synthetic" / "trtllm_options.yaml").read_text(encoding="utf-8")
    table_of_file = Schedule.from_triples([[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, None, 0]])
    found = read_config(text, "trtllm", version="1.3.0rc8")
    assert (found.method, found.k, found.draft_model, found.kv) == ("eagle3", 4, HEAD, "fp8")
    assert found.schedule == table_of_file
    written = write(asked("trtllm", schedule=table_of_file, kv="fp8", version="1.3.0rc8"))
    assert yaml.load(written.config) == yaml.load(text)
    # The same text before 1.3.0rc8 had lower bounds, and no key for batch 1: that release refuses it.
    with pytest.raises(InputError, match="lower bounds"):
        read_config(text, "trtllm", version="1.2.0")


def test_tensorrt_lower_bounds_as_once_documented() -> None:
    text = "speculative_config:\n  decoding_type: NGram\n  max_draft_len: 4\n  draft_len_schedule: {1: 4, 4: 2, 8: 0}\n"
    found = read_config(text, "tensorrt-llm", version="1.2.0")
    assert found.schedule is not None
    assert found.schedule.describe() == "1-3: 4, 4-7: 2, 8 and up: off"
    today = read_config(text, "tensorrt-llm", version="1.3.0")
    assert today.schedule is not None
    assert today.schedule.describe() == "1: 4, 2-4: 2, 5 and up: off"
    assert any("lower bounds" in note for note in read_config(text, "tensorrt-llm").notes)


def test_sglang_adaptive_sample(shared: Path) -> None:
    text = (shared / "samples" / "synthetic" / "sglang_adaptive.json").read_text(encoding="utf-8")
    found = read_config(text, "sglang")
    assert found.schedule is not None
    assert found.schedule.describe() == "1-15: 5, 16-63: 3, 64 and up: off"
    assert found.options == {"ema_alpha": 0.2, "candidate_steps": {1: (1, 3, 5), 16: (0, 1, 3), 64: (0,)}}
    flags = (
        "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --speculative-adaptive --speculative-adaptive-config a.json"
    )
    assert read_config(flags, "sglang", files={"a.json": text}).schedule == found.schedule
    four = flags.replace("steps 3", "steps 4").replace("tokens 4", "tokens 5")
    with pytest.raises(InputError, match="adaptive candidates"):
        read_config(four, "sglang", files={"a.json": text})


def test_sglang_built_in_table() -> None:
    found = read_config(
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --speculative-adaptive",
        "sglang",
    )
    assert found.schedule is not None
    assert found.schedule.describe() == "1-7: 7, 8-31: 3, 32-63: 1, 64 and up: off"


def test_llamacpp_names_by_build() -> None:
    new = write(asked("llama.cpp", target="m.gguf", method="draft model", draft_model="draft.gguf", k=8))
    assert new.command == (
        "llama-server -m m.gguf -md draft.gguf --spec-type draft-simple --spec-draft-n-max 8"
    )
    old = write(
        asked(
            "llama.cpp",
            target="m.gguf",
            method="draft model",
            draft_model="draft.gguf",
            k=8,
            version="b6000",
        )
    )
    assert old.command == (
        "llama-server -m m.gguf -md draft.gguf --draft-max 8 --draft-min 0 --draft-p-min 0"
    )
    found = read_config(
        "-md draft.gguf --draft-max 8 --draft-min 1 --draft-p-min 0.6", "llamacpp", version="b6000"
    )
    assert (found.k, found.options) == (8, {"spec_draft_n_min": 1, "spec_draft_p_min": 0.6})


@pytest.mark.parametrize(
    "flag",
    [
        "--draft",
        "--draft-n",
        "--draft-max",
        "--draft-min",
        "--draft-n-min",
        "--spec-ngram-size-n",
        "--spec-ngram-size-m",
        "--spec-ngram-min-hits",
    ],
)
def test_llamacpp_removed_flags_are_refused(flag: str) -> None:
    with pytest.raises(InputError, match="removed in b8955; use --spec-"):
        read_config(f"llama-server -m m.gguf -md d.gguf {flag} 8", "llama.cpp")


def test_llamacpp_old_builds_know_their_own_flags() -> None:
    text = "-m m.gguf --spec-type ngram-simple --spec-ngram-size-n 12 --draft-max 64"
    assert (read_config(text, "llama.cpp", version="b8954").k) == 64
    with pytest.raises(InputError, match="removed"):
        read_config(text, "llama.cpp")


def test_llamacpp_new_flags_are_refused_by_old_builds() -> None:
    with pytest.raises(InputError, match="not known before b8955"):
        read_config("-md d.gguf --spec-draft-n-max 8", "llama.cpp", version="b8954")
    with pytest.raises(InputError, match="from b8955"):
        write(asked("llama.cpp", version="b8954", k=3))


def test_sweep_example() -> None:
    made = sweep(asked("vllm", k=2, version="0.33.0"), ks=[2, 4], batches=[1, 8], folder="out")
    model = {"method": "eagle3", "model": HEAD}
    assert json.loads(made.serve_params) == [
        {"_benchmark_name": "off"},
        {"_benchmark_name": "k2", "speculative-config": model | {"num_speculative_tokens": 2}},
        {"_benchmark_name": "k4", "speculative-config": model | {"num_speculative_tokens": 4}},
    ]
    assert [row["max_concurrency"] for row in json.loads(made.bench_params)] == [1, 8]
    words = shlex.split(made.command)
    assert words[:4] == ["vllm", "bench", "sweep", "serve"]
    assert words[words.index("--serve-cmd") + 1] == "vllm serve acme/demo-8b"
    with pytest.raises(InputError, match="only vLLM"):
        sweep(asked("sglang", k=2), ks=[2])
    with pytest.raises(InputError, match="twice"):
        sweep(asked("vllm", k=2), ks=[2, 2])


# Warnings that must be there


def test_sglang_runs_48_requests_unless_told() -> None:
    assert any("48" in note for note in write(asked("sglang", k=3)).notes)
    assert "--max-running-requests 512" in write(asked("sglang", schedule=FALLING)).command
    small = Schedule.from_triples([[1, 8, 4], [9, 32, 2]])
    assert "--max-running-requests" not in write(asked("sglang", schedule=small)).command


@pytest.mark.parametrize(
    ("engine", "method", "says"),
    [("sglang", "dflash", "EAGLE3 chains only"), ("llama.cpp", "eagle3", "cannot change k")],
)
def test_engines_without_a_schedule_say_so(engine: str, method: str, says: str) -> None:
    config = write(asked(engine, method=method, schedule=FALLING, k=3))
    assert (read(config).k, read(config).schedule) == (3, None)
    assert any(says in note for note in config.notes)


def test_tensorrt_warns_of_k_0_and_of_the_meaning() -> None:
    config = write(asked("trtllm", schedule=FALLING))
    assert "UPPER" in config.config
    assert any("16888" in note for note in config.notes)
    floor = Schedule.from_triples([[1, 8, 4], [9, 64, 1]])
    assert any("above batch 64" in note for note in write(asked("trtllm", schedule=floor)).notes)
    lower = write(asked("trtllm", method="draft model", schedule=FALLING, version="1.2.0"))
    assert "LOWER" in lower.config
    with pytest.raises(InputError, match="largest_first"):
        write(asked("trtllm", schedule=Schedule.from_triples([[1, 8, 1], [9, 64, 4]])))


def test_tensorrt_before_the_schedule_has_a_limit() -> None:
    schedule = Schedule.from_triples([[1, 8, 4], [9, 512, 0]])
    config = write(asked("trtllm", schedule=schedule, version="1.1.0"))
    assert yaml.load(config.config)["speculative_config"]["max_concurrency"] == 8  # type: ignore[index]
    with pytest.raises(InputError, match=r"exists from 1\.2\.0rc3"):
        read_config(write(asked("trtllm", schedule=FALLING)).config, "trtllm", version="1.1.0")


# Lossy settings only when asked for


@pytest.mark.parametrize(
    ("engine", "changed"),
    [
        ("vllm", {"options": {"rejection_sample_method": "fly"}}),
        ("vllm", {"options": {"fly_entropy_threshold": 0.3}}),
        (
            "vllm",
            {
                "options": {
                    "rejection_sample_method": "synthetic",
                    "synthetic_acceptance_rates": [0.9, 0.5, 0.5],
                }
            },
        ),
        (
            "vllm",
            {
                "method": "eagle",
                "version": "0.8.5",
                "options": {"acceptance_method": "typical_acceptance_sampler"},
            },
        ),
        ("sglang", {"options": {"speculative_accept_threshold_single": 0.9}}),
        ("sglang", {"options": {"speculative_accept_threshold_acc": 0.5}}),
        (
            "trtllm",
            {"method": "mtp", "options": {"use_relaxed_acceptance_for_thinking": True, "relaxed_topk": 5}},
        ),
        ("trtllm", {"options": {"greedy_sampling": False}}),
        ("llama.cpp", {"options": {"spec_synth_len": 2.5}}),
    ],
)
def test_lossy_settings_need_a_word(engine: str, changed: dict[str, object]) -> None:
    with pytest.raises(InputError, match="lossy=True"):
        write(asked(engine, k=3, **changed))
    allowed = write(asked(engine, k=3, lossy=True, **changed))
    assert read(allowed).lossy


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("vllm", {"rejection_sample_method": "block"}),
        ("sglang", {"speculative_accept_threshold_single": 1.0, "speculative_use_rejection_sampling": True}),
        ("trtllm", {"use_rejection_sampling": True, "eagle3_layers_to_capture": [1, 15, 28]}),
        ("llama.cpp", {"spec_draft_p_min": 0.5, "ngld": "99"}),
    ],
)
def test_other_settings_do_not(engine: str, options: dict[str, object]) -> None:
    found = read(write(asked(engine, k=3, options=options)))
    assert (found.options, found.lossy) == (options, ())


@pytest.mark.parametrize("engine", ENGINES)
def test_unknown_settings_are_refused(engine: str) -> None:
    for options in ({"nonsense": 1}, {"num_speculative_tokens": 3}, {"": 1}):
        with pytest.raises(InputError):
            write(asked(engine, k=3, options=options))


# Requests


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "draft length"),
        ({"k": -1}, "from 0"),
        ({"k": 2, "draft_model": None}, "needs a draft checkpoint"),
        ({"k": 2, "method": "ngram"}, "no draft checkpoint"),
        ({"k": 2, "target": "--help"}, "printable"),
        ({"k": 2, "target": "a\nb"}, "printable"),
        ({"k": 2, "draft_model": " "}, "printable"),
        ({"k": 2, "tp": 0}, "from 1"),
        ({"k": 2, "max_batch": 0}, "from 1"),
        ({"k": 2, "kv": "fp7"}, "did you mean|unknown"),
        ({"k": 2, "kv": "q4_0"}, "vLLM stores KV as"),
        ({"k": 0, "schedule": FALLING}, "up to 4"),
        ({"k": 2, "method": "eagle8"}, "did you mean"),
        ({"k": 2, "engine": "vlm"}, "did you mean"),
        ({"tree": Tree(3, 2, 6), "k": 2}, "depth 3"),
        ({"tree": Tree(3, 2, 6), "schedule": FALLING}, "no engine"),
        ({"schedule": Schedule.from_best([1, 4, 16, 64, 256], [5, 4, 3, 2, 1])}, "at most 4"),
    ],
)
def test_requests_are_checked(changed: dict[str, object], says: str) -> None:
    changed = dict(changed)
    engine = str(changed.pop("engine", "vllm"))
    with pytest.raises(InputError, match=says):
        asked(engine, **changed)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_to_speculate_is_a_plain_server(engine: str) -> None:
    never = Schedule.from_triples([[1, 512, 0]])
    config = write(asked(engine, schedule=never, k=3))
    assert config.config == ""
    assert "spec" not in config.command
    assert read(config).word is None


def test_trees() -> None:
    tree = Tree(depth=5, top_k=4, nodes=7)
    flags = write(asked("sglang", tree=tree)).command
    assert "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8" in flags
    assert read(write(asked("sglang", tree=tree))).tree == tree
    assert read(write(asked("trtllm", tree=tree))).tree == tree
    chain = write(asked("vllm", tree=Tree(3, 1, 3), version="0.33.0"))
    assert table(chain)["num_speculative_tokens"] == 3  # type: ignore[index]
    for engine in ("vllm", "llama.cpp"):
        with pytest.raises(InputError, match="SGLang and TensorRT-LLM"):
            write(asked(engine, tree=tree))
    with pytest.raises(InputError, match="top-k x depth"):
        write(asked("trtllm", tree=Tree(2, 4, 12)))
    with pytest.raises(InputError, match="tree nodes"):
        Tree(2, 2, 7)


def test_what_does_not_read_back_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    good, _ = writing._SYNTAX["vllm"]
    monkeypatch.setitem(writing._SYNTAX, "vllm", (good, lambda *_: Reading(engine="vllm")))
    with pytest.raises(RuntimeError, match="word, k, draft_model, target"):
        write(asked("vllm", k=3))
