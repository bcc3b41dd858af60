"""The plan: decisions cell by cell, refusals, files, configurations that read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specmodel.errors import InputError
from specmodel.planner import Cell, DraftRequest, PlanRequest, PlanResult, plan
from specmodel.planning.doubts import newer_than_its_times
from specmodel.planning.files import read_request, request_from

MEASURED = (0.76, 0.55, 0.40, 0.29)  # the acceptance of the example
EAGLE = DraftRequest("eagle3", MEASURED)
BASE = PlanRequest(drafts=(EAGLE,), batch=(1, 4, 16, 64, 256), context=(1024, 8192), engine_version="0.33.0")


def column(result: PlanResult, context: int) -> list[Cell]:
    return [cell for cell in result.by_batch if cell.context == context]


def test_a_plan_decides_each_cell_and_writes_a_falling_schedule() -> None:
    result = plan(BASE)
    ks = [cell.k for cell in column(result, 1024)]
    assert None not in ks
    assert ks == sorted(ks, key=lambda k: -(k or 0))
    assert result.engine_config is not None
    spec = json.loads(result.engine_config.config)
    table = spec["num_speculative_tokens_per_batch_size"]
    assert table[0][0] == 1
    assert [level[2] for level in table] == sorted((level[2] for level in table), reverse=True)
    assert len(table) <= 4


def test_what_memory_does_not_hold_is_left_open_and_the_rest_decided() -> None:
    cells = {cell.batch: cell for cell in column(plan(BASE), 8192)}
    assert cells[256].k is None
    assert cells[256].speedup is None
    assert "fit" in cells[256].reason
    assert cells[16].k is not None


def test_long_context_keeps_speculating_and_warns_of_the_head() -> None:
    result = plan(replace(BASE, context=(32768,)))
    decided = [cell for cell in result.by_batch if cell.k is not None]
    assert decided
    assert all(cell.k for cell in decided)
    assert any("2,048 positions" in warning for warning in result.warnings)


def test_a_head_past_its_training_is_refused_without_evidence() -> None:
    result = plan(replace(BASE, drafts=(DraftRequest("eagle3"),), context=(1024, 32768)))
    assert all(cell.k is not None for cell in column(result, 1024))
    assert all(cell.k is None for cell in column(result, 32768))
    assert any(cell.reason.startswith("refused") for cell in column(result, 32768))


def test_narrow_weights_lower_depth_and_gain() -> None:
    wide, narrow = plan(BASE), plan(replace(BASE, weights="int4-g128"))
    for one, other in zip(column(wide, 1024), column(narrow, 1024), strict=True):
        assert (other.k or 0) <= (one.k or 0)
        assert (other.speedup or 1.0) <= (one.speedup or 1.0) + 1e-9


def test_a_mixture_of_experts_dips_at_small_batches() -> None:
    result = plan(
        model="qwen3-30b-a3b",
        drafts=(DraftRequest("eagle3", alpha=0.7),),
        batch=(1, 4, 64),
        context=(1024,),
        engine_version="0.33.0",
    )
    one, four, many = (cell.speedup or 1.0 for cell in result.by_batch)
    assert many > one
    assert many > four


def test_tensor_parallelism_over_pcie_is_refused_by_name() -> None:
    result = plan(replace(BASE, device="l40s", tp=2))
    assert all(cell.k is None for cell in result.by_batch)
    assert all("PCIe" in cell.reason or "fit" in cell.reason for cell in result.by_batch)
    assert result.engine_config is None


def test_the_better_draft_is_chosen_and_the_other_has_regret() -> None:
    result = plan(replace(BASE, drafts=(DraftRequest("lookup", alpha=0.2), EAGLE)))
    by_name = {one.draft.split(" ")[0]: one for one in result.drafts}
    assert by_name["eagle3"].mean_regret == pytest.approx(0.0)
    assert by_name["lookup"].mean_regret > 0.05
    assert {cell.draft for cell in result.by_batch if cell.k} == {"eagle3"}


def test_prefill_does_not_speed_up() -> None:
    result = plan(replace(BASE, isl=4096, osl=64))
    for cell in result.by_batch:
        if cell.k:
            assert cell.end_to_end_speedup is not None
            assert cell.speedup is not None
            assert 1.0 < cell.end_to_end_speedup < cell.speedup


def test_verification_reads_the_cache_once_unless_told_otherwise() -> None:
    from specmodel import deploy

    once, often = (deploy("llama-3.1-8b", "h100-sxm", kv_reread=reads) for reads in (1.0, 4.0))
    for setting, low, high in ((once, 1.0, 1.2), (often, 2.5, 4.0)):
        ratio = float(setting.pass_time(24, 16384, 4).seconds / setting.pass_time(24, 16384).seconds)
        assert low <= ratio <= high


def test_a_saved_plan_runs_again_to_the_same_answer(tmp_path: Path) -> None:
    first = plan(BASE)
    saved = tmp_path / "plan.json"
    saved.write_text(first.to_json(), encoding="utf-8")
    assert read_request(saved) == BASE
    assert plan(read_request(saved)).to_dict() == first.to_dict()


def test_a_deployment_file_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(
        'model = "llama-3.1-8b"\nbatch = [1, 8]\ncontext = [2048]\n'
        'drafts = ["lookup", {name = "eagle3", acceptance = [0.7, 0.5]}]\n',
        encoding="utf-8",
    )
    request = read_request(path)
    assert request.batch == (1, 8)
    assert request.drafts == (DraftRequest("lookup"), DraftRequest("eagle3", (0.7, 0.5)))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"modle": "x"}, "modle"),
        ({"batch": ["8"]}, "batch"),
        ({"batch": 8}, "batch"),
        ({"drafts": [{"nme": "eagle3"}]}, "nme"),
        ({"drafts": "eagle3"}, "drafts"),
        ({"tp": 1.5}, "tp"),
    ],
)
def test_bad_files_are_refused_by_key(content: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        request_from(content, "deployment")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch": ()}, "batch"),
        ({"batch": (0,)}, "batch"),
        ({"context": (10**12,)}, "ctx"),
        ({"drafts": ()}, "draft"),
        ({"drafts": (DraftRequest("eagle9"),)}, "eagle"),
        ({"model": "lecture-7b"}, "model"),
        ({"engine": "vlm"}, "vllm"),
    ],
)
def test_bad_requests_are_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        plan(BASE, **changes)


def test_a_plan_over_many_cells_is_one_table() -> None:
    result = plan(replace(BASE, batch=tuple(range(1, 33)), context=tuple(range(256, 2048, 256)), max_k=8))
    assert len(result.by_batch) == 32 * 7
    speedups = np.array([cell.speedup for cell in result.by_batch if cell.speedup is not None])
    assert (speedups >= 1.0).all()


@pytest.mark.parametrize(
    ("engine", "version", "warned"),
    [
        ("vllm", "0.11.1", False),
        ("vllm", "0.11.2", True),
        ("vllm", "v0.33.0", True),
        ("vllm", "nightly", False),
        ("vllm", None, False),
        ("sglang", "0.33.0", False),
    ],
)
def test_a_release_newer_than_the_engine_times_is_said(
    engine: str, version: str | None, warned: bool
) -> None:
    assert (newer_than_its_times(engine, version) is not None) == warned


def test_a_plan_passes_it_on() -> None:
    request = PlanRequest(engine_version="0.33.0", batch=(1,), context=(1024,))
    assert any("releases before 0.11.2" in line for line in plan(request).warnings)
