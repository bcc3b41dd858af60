"""What each release has: methods, keys, a table of k by batch, or none."""

from __future__ import annotations

import json

import pytest

from specmodel.errors import InputError
from specmodel.export import Schedule, read, read_config, write
from specmodel.export.versions import release
from tests.export_cases import FALLING, HEAD, asked


@pytest.mark.parametrize(
    ("method", "version", "exists"),
    [
        ("ngram", "0.8.5", True),
        ("eagle", "0.8.5", True),
        ("eagle3", "0.8.5", False),
        ("eagle3", "0.11.2", True),
        ("draft model", "0.8.5", True),
        ("draft model", "0.11.2", False),
        ("draft model", "0.14.1", False),
        ("draft model", "0.19.1", True),
        ("suffix", "0.8.5", False),
        ("suffix", "0.14.1", True),
        ("mtp", "0.8.5", False),
        ("mtp", "0.11.2", True),
        ("dflash", "0.19.1", False),
        ("dflash", "0.22.1", True),
        ("medusa", "0.29.0", True),
        ("medusa", "0.33.0", False),
        ("pard", "0.14.1", False),
        ("pard", "0.19.1", True),
        ("p-eagle", "0.14.1", False),
        ("p-eagle", "0.33.0", True),
    ],
)
def test_vllm_methods_by_version(method: str, version: str, exists: bool) -> None:
    draft = None if method in ("ngram", "suffix", "mtp") else HEAD
    request = asked("vllm", method=method, draft_model=draft, k=3, version=version)
    if exists:
        assert read(write(request)).method == {"ngram": "lookup", "draft model": "draft-model"}.get(
            method, method
        )
    else:
        with pytest.raises(InputError, match=f"does not exist in vLLM {version}"):
            write(request)


@pytest.mark.parametrize("version", ["0.10.0", "0.11.2", "0.14.1", "0.19.1", "0.22.1", "0.24.0"])
def test_vllm_without_a_batch_switch_says_so(version: str) -> None:
    config = write(asked("vllm", method="eagle", schedule=FALLING, version=version, k=3))
    assert "disable_by_batch_size" not in config.command
    assert "per_batch_size" not in config.command
    assert (read(config).k, read(config).schedule) == (3, None)
    assert any("two deployments" in note and "0.10 and 0.24" in note for note in config.notes)


def test_vllm_old_engine_can_stop_above_a_batch() -> None:
    schedule = Schedule.from_triples([[1, 8, 4], [9, 512, 0]])
    config = write(asked("vllm", method="eagle", schedule=schedule, version="0.8.5"))
    assert json.loads(config.config) == {
        "method": "eagle",
        "model": HEAD,
        "num_speculative_tokens": 4,
        "disable_by_batch_size": 8,
    }
    twice = write(asked("vllm", method="eagle", schedule=schedule, version="0.8.5", data_parallel=2))
    assert read(twice).schedule == read(config).schedule
    ignored = read_config(config.config, "vllm", version="0.11.2")
    assert ignored.schedule is None
    assert any("no effect" in note for note in ignored.notes)
    with pytest.raises(InputError, match=r"does not exist in vLLM 0\.19\.1"):
        read_config(config.config, "vllm", version="0.19.1")


def test_vllm_ignores_the_schedule_under_data_parallelism() -> None:
    config = write(asked("vllm", schedule=FALLING, data_parallel=2))
    assert "per_batch_size" not in config.command
    assert any("data_parallel_size" in note for note in config.notes)
    theirs = (
        "vllm serve acme/demo-8b -dp 2 -sc '"
        '{"method":"eagle3","model":"x","num_speculative_tokens":4,'
        '"num-speculative-tokens-per-batch-size":[[1,8,4],[9,9,2]]}\''
    )
    assert read_config(theirs, "vllm").schedule is None


@pytest.mark.parametrize(
    ("engine", "version", "says"),
    [
        ("vllm", None, "no engine version"),
        ("vllm", "0.40.0", "newer than 0.33.0"),
        ("sglang", None, "no engine version"),
        ("sglang", "0.4.0", "not checked"),
        ("trtllm", None, "no engine version"),
        ("llama.cpp", None, "no build"),
    ],
)
def test_the_version_written_for_is_named(engine: str, version: str | None, says: str) -> None:
    config = write(asked(engine, k=2, version=version))
    assert config.version == version
    assert any(says in note for note in config.notes)


@pytest.mark.parametrize("version", ["", "new", "0", "1.x", "0.8.4", "b12", "0.33.0; rm"])
def test_versions_that_are_none_are_refused(version: str) -> None:
    with pytest.raises(InputError, match="engine-version"):
        write(asked("vllm", k=2, version=version))


def test_versions_are_ordered() -> None:
    texts = [
        "0.8.5",
        "0.10.0",
        "1.2.0rc3",
        "1.2.0",
        "1.3.0rc6.post2",
        "1.3.0rc8",
        "v1.3.0rc27",
        "1.3",
        "1.4.0rc4",
    ]
    versions = [release(text) for text in texts]
    assert versions == sorted(versions)
    assert len(set(versions)) == len(versions)
