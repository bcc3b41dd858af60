"""Options that describe a deployment: every one counts or is refused, and every speedup carries its range."""

from __future__ import annotations

from pathlib import Path

import pytest

from specmodel.cli import options
from specmodel.cli.bundles import bundled, on_request, without
from tests.cli_runs import Run, answer, refusal

OPTIMIZE = ("optimize", "--alpha", "0.8", "--draft-cost", "0.15")
TREE = ("tree", "--rank-acceptance", "0.5,0.2")
DEVICE = 'name = "Mine"\nbandwidth = "2 TB/s"\nmemory = "96 GB"\npeak_bf16 = "400 TFLOP/s"\n'


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*OPTIMIZE, "--batch", "64"), ("--batch", "64", "--model")),
        ((*OPTIMIZE, "--device", "nonsense"), ("--device", "nonsense", "--model")),
        ((*OPTIMIZE, "--ctx", "4096"), ("--ctx", "--model")),
        ((*OPTIMIZE, "--conditional"), ("--conditional", "--acceptance")),
        ((*OPTIMIZE, "--extend"), ("--extend", "--acceptance")),
        ((*OPTIMIZE, "--acceptance", "0.5"), ("--alpha", "--acceptance", "not both")),
        ((*OPTIMIZE, "--acceptance-from", "x"), ("--alpha", "--acceptance-from", "not both")),
        (
            ("optimize", "--draft-cost", "1", "--acceptance-from", "nowhere"),
            ("--acceptance-from", "'nowhere'"),
        ),
        (("step", "--flops-fraction", "0.5"), ("--flops-fraction", "0.5", "textbook")),
        (("step", "--fidelity", "datasheet", "--attention-flops"), ("--attention-flops", "textbook")),
        (("step", "--draft-tp", "1"), ("--draft-tp", "without a draft")),
        (("step", "--draft", "lookup"), ("--draft", "no passes of its own")),
        (("step", "--draft", "eagle3", "--k", "0"), ("--k", "from 1")),
        (("step", "--draft", "eagle3", "--model", "lecture-7b"), ("--draft", "totals")),
        (("memory", "--draft-model", "llama-3.2-1b"), ("--draft-model", "without a draft")),
        (("memory", "--draft", "qwen2.5-0.5b"), ("--draft", "vocabulary 151936")),
        (
            ("breakeven", "--draft", "eagle3", "--draft-cost", "0.1"),
            ("--draft-cost", "0.1", "one or the other"),
        ),
        (("breakeven", "--draft", "eagle3", "--charge", "none"), ("--charge", "'none'", "added")),
        (("breakeven", "--contexts", "1,2"), ("--contexts", "--surface")),
        (("breakeven", "--surface", "--contexts", "1,x"), ("--contexts", "'x'", "whole numbers")),
        ((*TREE, "--depth", "0"), ("--depth", "0", "from 1")),
        ((*TREE, "--nodes", "0"), ("--nodes", "0", "from 1")),
        ((*TREE, "--nodes", "4", "--max-nodes", "8"), ("--max-nodes", "8", "4 nodes")),
        (("tree", "--rank-acceptance", "0.5,1.2"), ("--rank-acceptance", "1.2", "0 to 1")),
        (("tree", "--rank-acceptance", "0.2,0.5"), ("--rank-acceptance", "must not rise")),
        (("policy", "--batch", "4"), ("--batch", "4", "--sessions")),
        (("calibrate", "x.csv", "--tp", "4"), ("--tp", "4", "--runs")),
        (("calibrate", "x.csv", "--runs", "y.csv"), ("--runs", "'y.csv'", "one of them")),
        (("alpha", "--plan", "--half-width", "1e-300"), ("--half-width", "1e-300", "from 1e-06")),
        (("alpha", "--plan", "--by", "x"), ("--by", "'x'", "--plan")),
        (("alpha", "x", "--half-width", "0.1"), ("--half-width", "0.1", "--plan")),
        (("validate", "--device", "h100-sxn"), ("--device", "h100-sxn", "h100-sxm")),
        (("validate", "--framework", "vlm"), ("--framework", "'vlm'", "'vllm'")),
        (("breakeven", "--flops", "1979 TFLOP/s", "--device", "h100"), ("--flops", "sparsity", "989.4")),
        (
            ("step", "--bandwidth", "3.35 TB/s", "--flops", "1979 TFLOP/s", "--memory", "80 GB"),
            ("--flops", "h100-sxm", "sparsity"),
        ),
        (("step", "--bandwidth", "2 TB/s"), ("--flops", "None", "based on no known one")),
        (("step", "--bandwidth", "3 Tb/s"), ("--bandwidth", "'Tb/s' is not a unit")),
        (("step", "--device", "apple-m3-max"), ("--device", "give memory")),
    ],
)
def test_what_would_change_nothing_or_cannot_be_is_refused(
    run: Run, arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    line = refusal(run, *arguments)
    for part in named:
        assert part in line
    assert len(line) < 400


@pytest.mark.parametrize(
    "command",
    [("step",), ("breakeven",), ("memory",), ("drafts", "lookup"), TREE, ("policy",), ("compose",)],
)
def test_every_command_takes_a_device_of_ones_own(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(DEVICE, encoding="utf-8")
    found = answer(run, *command, "--device", str(file))
    assert found["inputs"]["device"] == "mine"
    typed = answer(run, *command, "--bandwidth", "2TB/s", "--flops", "400 TFLOP/s", "--memory", "96 GB")
    assert typed["inputs"]["device"] == "custom"
    if "fidelity" in found["inputs"] and command != ("memory",):
        assert found["inputs"]["fidelity"] == "datasheet"  # no measured kernels stand in for it
        assert any("lower bounds" in warning for warning in found["warnings"])


def test_a_device_of_ones_own_is_timed_at_its_figures(run: Run) -> None:
    """Textbook, batch 1: 15.0e9 weight bytes of a step (the input embedding is not read) at 2 TB/s."""
    found = answer(
        run,
        "step",
        "--bandwidth",
        "2 TB/s",
        "--flops",
        "400 TFLOP/s",
        "--memory",
        "96 GB",
        "--fidelity",
        "textbook",
    )
    streamed = 2 * (8030261248 - 128256 * 4096 - 4096 * 65)  # less the embedding and the norms
    assert found["seconds"] == pytest.approx((streamed + 131072 * 1024) / 2e12, rel=1e-9)


def test_more_memory_does_not_make_another_machine(run: Run) -> None:
    found = answer(run, "step", "--device", "h100", "--memory", "96 GB")
    assert found["inputs"]["device"] == "h100-sxm"
    assert found["seconds"] == answer(run, "step", "--device", "h100")["seconds"]
    assert found["trust"] == "calibrated on measured kernels"


def test_devices_shows_a_file_as_it_shows_its_own(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(DEVICE, encoding="utf-8")
    (shown,) = answer(run, "devices", str(file))["devices"]
    assert shown["figures"]["bandwidth"]["value"] == 2e12
    assert run("devices", str(file))[0] == 0


def test_a_rate_that_the_hardware_lacks_is_said(run: Run) -> None:
    found = answer(run, "step", "--device", "a100", "--weights", "fp8")
    assert any("has no fp8 rate" in line for line in found["assumptions"])


def test_constants_from_a_file_are_named_and_count(run: Run, tmp_path: Path) -> None:
    """Constants that say: GEMMs stream at half the bandwidth."""
    file = tmp_path / "constants.toml"
    file.write_text(
        '[[fit]]\ndevice = "h100-sxm"\nkind = "gemm"\nformat = "bf16"\n'
        "constants = { fixed_s = 0.0, bandwidth_share = 0.5, flops_share = 1.0 }\n",
        encoding="utf-8",
    )
    found = answer(run, "step", "--calibration", str(file))
    assert any(str(file) in line for line in found["assumptions"])
    gemm = next(kernel for kernel in found["kernels"] if kernel["name"] == "down")
    moved = 2 * 4096 * 14336 + 2 * (4096 + 14336)
    assert gemm["memory_seconds"] == pytest.approx(32 * moved / (0.5 * 3.35e12), rel=1e-6)
    elsewhere = answer(run, "step", "--calibration", str(file), "--device", "a100")
    assert any("none of the constants given is for a100" in warning for warning in elsewhere["warnings"])
    assert "textbook" in refusal(run, "step", "--calibration", str(file), "--fidelity", "textbook")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("step", "--k", "4"), "seconds"),
        (("optimize", "--alpha", "0.7", "--draft-cost", "0.1", "--model", "llama-3.1-8b"), "best.speedup"),
        (TREE, "speedup"),
    ],
)
def test_calibrated_answers_carry_their_range(run: Run, arguments: tuple[str, ...], path: str) -> None:
    found = answer(run, *arguments)
    value = found
    for key in path.split("."):
        value = value[key]
    assert found["low"] < value < found["high"]
    paper = answer(run, *arguments, "--fidelity", "datasheet")
    assert paper["low"] is paper["high"] is None
    assert "lower bound" in paper["trust"]


def test_the_range_of_the_ratio_is_four_percent_in_16_bit_and_eight_below(run: Run) -> None:
    """kernel_model.md, item 9. Draft cost 0 and charge none: the round is its verification pass."""
    common = (
        "optimize",
        "--alpha",
        "0.7",
        "--draft-cost",
        "0",
        "--charge",
        "none",
        "--k",
        "3",
        "--model",
        "llama-3.1-8b",
    )
    for extra, error in (((), 0.04), (("--weights", "fp8"), 0.08), (("--device", "h200"), 0.06)):
        found = answer(run, *common, *extra)
        assert found["low"] == pytest.approx(found["best"]["speedup"] / (1 + error))
        assert found["high"] == pytest.approx(found["best"]["speedup"] / (1 - error))


def test_ranges_of_drafts_and_engines_are_those_of_published_speedups(run: Run) -> None:
    found = answer(
        run, "breakeven", "--draft", "eagle3", "--alpha", "0.7", "--ctx", "256", "--engine", "vllm"
    )
    for row in found["by_batch"]:
        assert row["low"] / row["speedup"] == pytest.approx(0.794, abs=0.05)
        assert row["high"] / row["speedup"] == pytest.approx(1.15, abs=0.05)
    assert any("published speedups" in line for line in found["assumptions"])
    assert (
        found["low"] is None or found["break_even_batch"] is None or found["low"] < found["break_even_batch"]
    )


def test_the_range_of_a_crossing_holds_it(run: Run) -> None:
    found = answer(run, "breakeven", "--alpha", "0.5", "--ctx", "200")
    assert found["low"] < found["break_even_batch"] < found["high"]
    code, out, _ = run("breakeven", "--alpha", "0.5", "--ctx", "200")
    assert code == 0
    assert f"({found['low']:.2f} to {found['high']:.2f})" in " ".join(out.split())


def test_a_named_draft_brings_the_acceptance_assumed_for_it(run: Run) -> None:
    found = answer(run, "breakeven", "--draft", "eagle3", "--ctx", "512", "--max-k", "6")
    assert found["inputs"]["alpha"] == pytest.approx(0.784, abs=1e-3)  # 3.55 tokens at k 5
    assert any("SpecForge" in line for line in found["assumptions"])
    given = answer(run, "breakeven", "--draft", "eagle3", "--ctx", "512", "--alpha", "0.6", "--max-k", "6")
    assert given["inputs"]["alpha"] == 0.6
    past = answer(run, "breakeven", "--draft", "eagle3", "--ctx", "8192", "--max-k", "6")
    assert any("2,048 positions" in warning for warning in past["warnings"])


def test_an_illustration_is_not_called_the_best_without_saying_so(run: Run) -> None:
    found = answer(run, "drafts", "--batch", "1")
    top = found["drafts"][0]
    assert top["illustrative"]
    assert "illustration" in found["why"]
    measured = next(row for row in found["drafts"] if not row["illustrative"])
    assert measured["method"] in found["why"]


def test_bundles_add_their_options_once_and_keep_the_commands_own() -> None:
    def setting(model: options.Model = "m", tp: options.Tp = 1) -> tuple[str, int]:
        return model, tp

    seen: list[object] = []

    @bundled(where=without(setting, "tp"), maybe=on_request(options.law, "alpha"))
    def command(
        where: object, maybe: object, batch: options.Batch = 2, as_json: options.Json = False
    ) -> None:
        seen.append((where, maybe, batch, as_json))

    names = list(command.__annotations__)
    assert names == [
        "model",
        "alpha",
        "acceptance",
        "acceptance_from",
        "conditional",
        "extend",
        "batch",
        "as_json",
    ]
    rest: dict[str, object] = dict.fromkeys(names[2:4]) | {"conditional": False, "extend": False}
    command(model="x", alpha=None, batch=7, as_json=True, **rest)
    assert seen == [(("x", 1), None, 7, True)]


def test_an_engine_is_calibrated_from_ones_own_runs(run: Run, tmp_path: Path) -> None:
    """A plain step of 9 ms at batch 1, where kernels take 6.5: the rest is found as engine time, and used."""
    runs, engine = tmp_path / "runs.csv", tmp_path / "mine.toml"
    runs.write_text(
        "batch,context,k,tokens_per_round,step_ms\n1,1024,0,1,9.0\n8,1024,0,1,9.4\n", encoding="utf-8"
    )
    found = answer(run, "calibrate", "--runs", str(runs), "--out", str(engine))
    assert found["constants"]
    before = answer(run, "step", "--engine", "vllm")["seconds"]
    after = answer(run, "step", "--engine", str(engine))["seconds"]
    assert before < 7.5e-3 < after < 9.5e-3
    assert run("calibrate", "--runs", str(runs))[0] == 0
