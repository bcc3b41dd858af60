"""Engine times: floors and sums, the files that ship, and what files of a person's own may hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel import catalog
from specmodel.deployment import deploy
from specmodel.drafters.names import drafter
from specmodel.engine import IDEAL, TIMES, EngineTime
from specmodel.engine_files import engine_toml, read_engine
from specmodel.errors import InputError
from specmodel.speculation import Speculation

SHIPPED = [name for name in catalog.engines() if name != IDEAL.id]
times = st.floats(0.0, 0.1)


def test_a_pass_is_never_shorter_than_its_launches() -> None:
    """24.2 ms for the 32 layers of a 7B target: Sequoia (arXiv:2402.12374), where the kernels alone take 10."""
    eager = EngineTime("eager", "eager", target_layer_s=24.2e-3 / 32)
    assert eager.target_seconds(10e-3, layers=32, gpus=1) == pytest.approx(24.2e-3)
    assert eager.target_seconds(40e-3, layers=32, gpus=1) == pytest.approx(40e-3)
    launched = EngineTime("launched", "launched", draft_launch_s=0.8e-3, draft_layer_s=0.06e-3)
    assert launched.draft_seconds(0.3e-3, layers=1) == pytest.approx(0.86e-3)
    assert launched.draft_seconds(3e-3, layers=28) == pytest.approx(3e-3)


def test_what_is_added_is_added_once_per_its_unit() -> None:
    engine = EngineTime(
        "e", "e", target_pass_s=1.0, gpu_pass_s=0.1, round_s=2.0, sequence_s=0.01, position_s=0.001
    )
    assert engine.target_seconds(5.0, layers=1, gpus=4) == pytest.approx(5.0 + 1.0 + 0.3)
    # 8 sequences of 4 positions: 8 x 3 beyond the roots.
    assert engine.round_seconds(8.0, 4.0) == pytest.approx(2.0 + 0.08 + 0.024)


@given(kernels=st.lists(times, min_size=1, max_size=5), floor=times, added=times)
def test_arrays_are_elementwise(kernels: list[float], floor: float, added: float) -> None:
    engine = EngineTime(
        "e", "e", target_pass_s=added, target_layer_s=floor, draft_launch_s=floor, draft_pass_s=added
    )
    together = np.asarray(engine.target_seconds(np.array(kernels), layers=2, gpus=1))
    assert together.tolist() == pytest.approx(
        [engine.target_seconds(kernel, layers=2, gpus=1) for kernel in kernels]
    )
    together = np.asarray(engine.draft_seconds(np.array(kernels), layers=1))
    assert together.tolist() == pytest.approx([engine.draft_seconds(kernel, layers=1) for kernel in kernels])


def test_more_engine_time_never_pays_a_round() -> None:
    """Each time that a round has beyond a plain step raises its cost."""
    free = deploy("llama-3.1-8b", "h100-sxm")
    found = drafter("eagle3", free.model)  # type: ignore[arg-type]

    def cost(**times: float) -> float:
        setting = replace(free, engine=EngineTime("e", "e", **times))  # type: ignore[arg-type]
        speculation = Speculation(setting, found)
        return float(speculation.round_time(3, 4, 1024).seconds / speculation.plain_seconds(4, 1024))

    for name in ("draft_pass_s", "draft_launch_s", "round_s", "sequence_s", "position_s"):
        assert cost(**{name: 1e-3}) > cost()
    # A time that both have brings their ratio nearer to 1.
    assert 1.0 < cost(target_pass_s=1e-2) < cost()


def test_a_look_up_that_finds_nothing_is_verified_alone() -> None:
    setting = deploy("llama-3.1-8b", "h100-sxm", engine="vllm")
    found = drafter("lookup", setting.model)  # type: ignore[arg-type]
    assert found.mean_width(5, 1.0) == 1.0
    assert found.mean_width(5, 6.0) == 6.0
    assert replace(found, hit_share=0.5).mean_width(4, 1.2) == 3.0
    few, many = (
        Speculation(setting, found).round_time(5, 128, 1024, tokens=tokens).seconds for tokens in (1.1, 3.0)
    )
    assert few < many


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_engines_are_complete(name: str) -> None:
    engine = catalog.engine(name)
    assert engine.evidence
    assert engine.date
    assert engine.versions
    assert not engine.is_ideal
    assert all(getattr(engine, time) < 0.02 for time in TIMES)
    deploy("llama-3.1-8b", "h100-sxm", engine=name).plain_seconds(1, 1024)


def test_names_of_engines_forgive_separators() -> None:
    assert catalog.engine("llama-cpp") is catalog.engine("llama.cpp")
    assert catalog.engine("TensorRT_LLM").name == "TensorRT-LLM"
    with pytest.raises(InputError, match="vllm"):
        catalog.engine("vlm")


def test_a_file_gives_its_engine_back(tmp_path: Path) -> None:
    engine = replace(catalog.engine("vllm"), kv_reread=3.5, name='with "quotes" and \\')
    path = tmp_path / "mine.toml"
    path.write_text(engine_toml(engine, {"round_s": {"source": "own runs", "low": 1e-4}}), encoding="utf-8")
    assert read_engine(path) == engine
    assert catalog.engine(str(path)) == engine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nme = 'x'", "nme"),
        ("[times]\nround = 1.0", "round_s"),
        ("[times]\nround_s = { value = 'a' }", "must be a number"),
        ("[times]\nround_s = { amount = 1.0 }", "amount"),
        ("[times]\nround_s = -1.0", "round_s"),
        ("[times]\nround_s = nan", "finite"),
        ("times = 3", r"table \[times\]"),
        ("name = 3", "must be text"),
        ("name = ", "is no TOML"),
    ],
)
def test_bad_engine_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_engine(path)
    assert "\n" not in str(caught.value)


def test_an_engine_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        catalog.engine("nowhere/engine.toml")
