"""What is written does, in the engine, what was asked.

The engines' look-up rules are written here from their documentation, without the package's readers.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.export import EngineConfig, Reading, Request, Schedule, read, read_config, write
from specmodel.export import yaml_subset as yaml
from specmodel.export.words import ENGINES, METHOD_WORDS, PARALLEL
from tests.export_cases import asked


def vllm_rule(rows: list[list[int]], batch: int) -> int:
    k = 0
    for start, _, length in rows:
        if start <= batch:
            k = length
    return k


def lower_rule(by_bound: Mapping[int, int], batch: int) -> int:
    return by_bound[max(bound for bound in by_bound if bound <= batch)]


def upper_rule(by_bound: Mapping[int, int], batch: int) -> int:
    above = [bound for bound in by_bound if bound >= batch]
    return by_bound[min(above)] if above else 0


schedules = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 16)),
    min_size=2,
    max_size=4,
    unique_by=lambda level: level[1],
).map(lambda rows: build(rows))


def build(rows: list[tuple[int, int]]) -> Schedule:
    start, triples = 1, []
    for width, k in rows:
        triples.append([start, start + width - 1, k])
        start += width
    return Schedule.from_triples(triples)


def falling(schedule: Schedule) -> Schedule:
    return build([(20, k) for k in sorted((level.k for level in schedule.levels), reverse=True)])


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, version=st.sampled_from([None, "0.25.1", "0.29.0", "0.33.0"]))
def test_vllm_does_what_the_schedule_says(schedule: Schedule, version: str | None) -> None:
    config = write(asked("vllm", schedule=schedule, version=version))
    content = json.loads(config.config)
    rows = content["num_speculative_tokens_per_batch_size"]
    assert content["num_speculative_tokens"] == schedule.max_k
    for batch in range(1, 300):
        assert vllm_rule(rows, batch) == schedule.k_at(batch)


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, method=st.sampled_from(["eagle", "eagle3", "mtp"]))
def test_sglang_does_what_the_schedule_says(schedule: Schedule, method: str) -> None:
    config = write(asked("sglang", schedule=schedule, method=method))
    buckets = json.loads(config.config)
    assert all(len(bucket["candidate_steps"]) == 1 for bucket in buckets.values())
    first = {int(bound): bucket["candidate_steps"][0] for bound, bucket in buckets.items()}
    assert f"--speculative-num-draft-tokens {schedule.max_k + 1}" in config.command
    for batch in range(1, 300):
        assert schedule.k_at(batch) == lower_rule(first, batch)


@settings(max_examples=60, deadline=None)
@given(
    schedule=schedules.map(falling),
    version=st.sampled_from([None, "1.2.0rc3", "1.2.0", "1.3.0rc8", "1.4.0rc4"]),
)
def test_tensorrt_does_what_the_schedule_says(schedule: Schedule, version: str | None) -> None:
    config = write(asked("trtllm", method="draft model", schedule=schedule, version=version))
    section = yaml.load(config.config)["speculative_config"]
    assert isinstance(section, dict)
    by_bound = section["draft_len_schedule"]
    assert section["max_draft_len"] == schedule.max_k == by_bound[min(by_bound)]
    old = version in ("1.2.0rc3", "1.2.0")
    for batch in range(1, (schedule.horizon or 1) + 1):
        assert (lower_rule if old else upper_rule)(by_bound, batch) == schedule.k_at(batch)
    assert read(config).k == schedule.max_k


def tried(request: Request) -> tuple[EngineConfig | None, str]:
    try:
        return write(request), ""
    except InputError as error:
        return None, str(error)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_every_engine_reads_back_what_is_asked(data: st.DataObject) -> None:
    engine = data.draw(st.sampled_from(list(ENGINES)))
    versions = {
        "vllm": [
            None,
            "0.8.5",
            "0.9.2",
            "0.11.2",
            "0.14.1",
            "0.19.1",
            "0.22.1",
            "0.25.1",
            "0.29.0",
            "0.33.0",
        ],
        "sglang": [None, "0.5.23"],
        "tensorrt-llm": [None, "1.0.0", "1.2.0", "1.3.0rc8", "1.4.0rc4"],
        "llama.cpp": [None, "b6000", "b9500"],
    }
    method = data.draw(st.sampled_from([name for name, words in METHOD_WORDS.items() if engine in words]))
    needs_none = method in ("lookup", "suffix", "lookahead")
    names = st.text(
        st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=30
    ).filter(lambda text: text == text.strip() and not text.startswith("-"))
    request = Request(
        engine=engine,
        target=data.draw(names),
        method=method,
        draft_model=None if needs_none else data.draw(names),
        version=data.draw(st.sampled_from(versions[engine])),
        schedule=data.draw(st.none() | schedules | schedules.map(falling)),
        k=data.draw(st.integers(1, 16)),
        tp=data.draw(st.sampled_from([1, 8])),
        max_batch=data.draw(st.none() | st.integers(1, 1000)),
        data_parallel=data.draw(st.sampled_from([1, 2])),
        kv=data.draw(st.sampled_from([None, "bf16" if engine != "llama.cpp" else "q8_0"])),
    )
    config, refused = tried(request)
    if config is None:
        # Only what this release lacks, or a table that TensorRT-LLM cannot hold.
        reasons = ("does not exist in vLLM", "has PARD from", "b8955", "largest k in the first")
        assert any(reason in refused for reason in reasons)
        return
    found = read(config)
    same = {"eagle2": "eagle"}.get(method, method)
    assert found.method == same
    assert (method in PARALLEL and engine == "vllm") == (found.options.get("parallel_drafting") is True)
    assert shlex.split(config.command)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80), engine=st.sampled_from(list(ENGINES)))
def test_readers_answer_or_refuse(text: str, engine: str) -> None:
    for offered in (text, "{" + text, "--speculative-algorithm " + text, "speculative_config:\n  " + text):
        try:
            found: Reading | InputError = read_config(offered, engine)
        except InputError as error:
            found = error
        assert "\n" not in str(found)
