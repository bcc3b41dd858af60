"""`calibrate --runs`: times and KV re-reads put into made-up runs are found again, and nothing else is claimed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specmodel import catalog
from specmodel.deployment import Deployment, deploy
from specmodel.drafters.drafter import Drafter
from specmodel.drafters.names import drafter
from specmodel.engine import EngineTime
from specmodel.errors import InputError
from specmodel.own_runs import OwnRun, fit_runs, read_runs
from specmodel.speculation import Speculation

PLAIN_LONG, ROUND_LONG = (8, 16384, 0, 1.0), (8, 16384, 3, 2.3)
PLAIN_SHORT, ROUND_SHORT = (1, 1024, 0, 1.0), (1, 1024, 3, 2.3)


def _setting() -> tuple[Deployment, Drafter]:
    setting = deploy("llama-3.1-8b", "h100-sxm", engine="vllm")
    return setting, drafter("eagle3", setting.model)  # type: ignore[arg-type]


def _made_up(truth: EngineTime, points: Sequence[tuple[float, float, int, float]]) -> list[OwnRun]:
    """What an engine with these times would measure."""
    setting, found = _setting()
    timed = replace(setting, engine=truth, split=replace(setting.split, kv_reread=truth.kv_reread))
    runs = []
    for row, (batch, context, k, tokens) in enumerate(points, 1):
        if k:
            taken = Speculation(timed, found).round_time(k, batch, context, tokens=tokens).seconds
        else:
            taken = timed.plain_seconds(batch, context)
        runs.append(OwnRun(row, None, batch, context, k, tokens, float(taken)))
    return runs


def test_three_points_tell_how_often_the_cache_is_read() -> None:
    setting, found = _setting()
    truth = replace(setting.engine, kv_reread=3.5, round_s=2e-3)
    report = fit_runs(_made_up(truth, (PLAIN_LONG, ROUND_LONG, ROUND_SHORT)), setting, found)
    assert report.kv_reread == pytest.approx(3.5, rel=0.1)
    assert report.kv_reread_low < 3.5 < report.kv_reread_high
    assert any("as if the KV were read 3.5 times" in finding for finding in report.findings)
    assert report.engine.round_s == pytest.approx(2e-3, rel=0.3)
    for row in report.rows:
        assert row.fitted_ms == pytest.approx(row.measured_ms, rel=0.03)


def test_one_read_is_recognised_as_one() -> None:
    setting, found = _setting()
    report = fit_runs(_made_up(setting.engine, (PLAIN_LONG, ROUND_LONG)), setting, found)
    assert report.kv_reread < 1.3
    assert "your verification reads the KV once" in report.findings[0]
    assert report.engine.round_s == pytest.approx(setting.engine.round_s, rel=0.5)


def test_short_contexts_cannot_tell_and_say_so() -> None:
    setting, found = _setting()
    truth = replace(setting.engine, kv_reread=3.5)
    report = fit_runs(_made_up(truth, (PLAIN_SHORT, ROUND_SHORT)), setting, found)
    assert any("cannot tell" in finding and "longer context" in finding for finding in report.findings)
    assert report.engine.kv_reread == setting.engine.kv_reread


def test_depth_separates_draft_passes_from_the_round() -> None:
    setting, found = _setting()
    truth = replace(setting.engine, draft_pass_s=1e-3, round_s=3e-4)
    points = (PLAIN_SHORT, ROUND_SHORT, (1, 1024, 8, 3.0))
    report = fit_runs(_made_up(truth, points), setting, found)
    assert report.engine.draft_pass_s == pytest.approx(1e-3, rel=0.3)
    told = {one.name: one for one in report.constants}
    assert told["draft_pass_s"].told
    assert told["draft_pass_s"].low_s < 1e-3 < told["draft_pass_s"].high_s


def test_plain_runs_alone_work() -> None:
    setting, _ = _setting()
    truth = replace(setting.engine, target_pass_s=3e-3)
    report = fit_runs(_made_up(truth, (PLAIN_SHORT, PLAIN_LONG)), setting)
    assert report.engine.target_pass_s == pytest.approx(3e-3, rel=0.3)


def test_the_report_is_json_and_its_file_an_engine(tmp_path: Path) -> None:
    setting, found = _setting()
    report = fit_runs(_made_up(setting.engine, (PLAIN_SHORT, ROUND_SHORT)), setting, found)
    answer = json.loads(report.to_json())
    assert {"engine", "constants", "kv_reread", "rows", "findings"} <= answer.keys()
    path = tmp_path / "mine.toml"
    path.write_text(report.to_toml(), encoding="utf-8")
    again = catalog.engine(str(path))
    assert again.id == "vllm"
    assert again.round_s == pytest.approx(report.engine.round_s, rel=1e-3)


def test_latencies_per_token_become_steps(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "# two points\nid,batch,context,k,tokens_per_round,tpot_ms,itl_ms\n"
        "plain,1,512,,,7.0,\nspec,1,512,3,2.5,4.0,\nstreamed,1,512,3,2.5,,10.0\n"
    )
    plain, spec, streamed = read_runs(path)
    assert plain.step_s == pytest.approx(7e-3)
    assert spec.step_s == pytest.approx(10e-3)
    assert streamed.step_s == pytest.approx(10e-3)
    as_json = tmp_path / "runs.json"
    as_json.write_text(json.dumps({"runs": [{"context": 512, "step_ms": 7}]}))
    assert read_runs(as_json)[0].step_s == pytest.approx(7e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no run"),
        ("batch,context,tpot_ms\n1,512,-1\n", "run 1: tpot_ms"),
        ("batch,context,tpot_ms\n1,512,abc\n", "run 1: tpot_ms"),
        ("batch,context,tpot\n1,512,7\n", "tpot_ms"),
        ("batch,context,tpot_ms,step_ms\n1,512,7,7\n", "exactly one"),
        ("batch,context\n1,512\n", "exactly one"),
        ("batch,tpot_ms\n1,7\n", "context"),
        ("batch,context,k,tpot_ms\n1,512,3,7\n", "tokens_per_round"),
        ("batch,context,k,tokens_per_round,tpot_ms\n1,512,2.5,2,7\n", "whole number"),
        ("[1, 2]", "list of objects"),
        ("{", "is no JSON"),
    ],
)
def test_bad_files_are_refused_with_the_run(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_speculative_runs_need_their_draft() -> None:
    setting, _ = _setting()
    with pytest.raises(InputError, match="name the draft"):
        fit_runs([OwnRun(1, None, 1.0, 512.0, 3, 2.0, 0.01)], setting)
    with pytest.raises(InputError, match="at least one"):
        fit_runs([], setting)
