"""The command line as a person meets it: answers, JSON, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_runs import Run, answer, refusal

ROOT = Path(__file__).parent.parent


LECTURE = (
    "breakeven",
    "--model",
    "lecture-7b",
    "--device",
    "lecture-h100",
    "--fidelity",
    "textbook",
    "--ctx",
    "640",
    "--alpha",
    "0.8",
)
ROUNDED = ("--kv-bytes-per-token", "128125")


@pytest.mark.parametrize(
    ("alpha", "k", "speedup"), [(0.6, 2, 1.508), (0.7, 3, 1.747), (0.8, 5, 2.108), (0.9, 8, 2.784)]
)
def test_optimize_gives_the_lecture_table(run: Run, alpha: float, k: int, speedup: float) -> None:
    found = answer(run, "optimize", "--alpha", str(alpha), "--draft-cost", "0.15")
    assert found["best"]["k"] == k
    assert round(found["best"]["speedup"], 3) == speedup
    assert found["by_k"][0] == {"k": 0, "tokens_per_round": 1.0, "round_cost": 1.0, "speedup": 1.0}
    assert found["pays_from_alpha"] == pytest.approx(0.15)


def test_optimize_names_the_flat_band(run: Run) -> None:
    found = answer(run, "optimize", "--alpha", "0.8", "--draft-cost", "0.15")
    assert round(found["best"]["tokens_per_round"], 4) == 3.6893
    assert found["flat_band"] == {"within": 0.04, "k_min": 3, "k_max": 7}
    assert found["ceiling"] == pytest.approx(5.0)


def test_optimize_table_says_it_in_words(run: Run) -> None:
    code, out, _ = run("optimize", "--alpha", "0.8", "--draft-cost", "0.15")
    assert code == 0
    for words in ("best k 5", "3.6893 tokens per round", "2.108x", "k 3-7", "why:", "assumed:"):
        assert words in " ".join(out.split())


def test_a_mean_length_stands_for_its_chain(run: Run) -> None:
    """2.41 tokens per round of 3 drafts: that is what k = 3 yields, and no further position was measured."""
    found = answer(run, "optimize", "--acceptance", "2.41@3", "--draft-cost", "0.1")
    by_k = {row["k"]: row["tokens_per_round"] for row in found["by_k"]}
    assert max(by_k) == 3
    assert by_k[3] == pytest.approx(2.41)
    assert by_k[1] == pytest.approx(1.6674, abs=1e-3)  # alpha of 1 + a + a^2 + a^3 = 2.41


@pytest.mark.parametrize(("flags", "tokens"), [((), 3.099), (("--conditional",), 2.597)])
def test_optimize_from_a_list(run: Run, flags: tuple[str, ...], tokens: float) -> None:
    found = answer(
        run, "optimize", "--acceptance", "0.844,0.599,0.385,0.271", "--draft-cost", "0.01", "--k", "4", *flags
    )
    assert round(found["best"]["tokens_per_round"], 3) == tokens
    assert len(found["by_k"]) == 5


@pytest.mark.parametrize(
    ("extra", "crossing"),
    [
        (("--k", "3", "--charge", "none", *ROUNDED), 323.43),
        (("--k", "4", "--charge", "none", *ROUNDED), 250.79),
        (("--k", "3", "--charge", "none"), 338.73),
        (("--k", "4", "--charge", "none"), 259.90),
        (("--k", "4", "--draft-cost", "0.15", "--charge", "scaled", *ROUNDED), 99.76),
        (("--k", "4", "--draft-cost", "0.15", "--charge", "added", *ROUNDED), 161.99),
        (("--k", "1", "--draft-cost", "0.15", "--charge", "scaled", *ROUNDED), 389.2),
        (("--k", "1", "--draft-cost", "0.15", "--charge", "added", *ROUNDED), 470.5),
    ],
)
def test_breakeven_gives_the_lecture_crossings(run: Run, extra: tuple[str, ...], crossing: float) -> None:
    found = answer(run, *LECTURE, *extra)
    decimals = 2 if crossing < 389 else 1
    assert round(found["break_even_batch"], decimals) == crossing
    assert found["intervals"][0]["from"] == 1
    assert found["intervals"][0]["pays"] is True
    assert found["first_losing_batch"] == int(crossing) + 1


def test_long_context_never_loses(run: Run) -> None:
    found = answer(
        run, "breakeven", "--model", "lecture-7b", "--device", "lecture-h100", "--fidelity", "textbook",
        "--ctx", "16384", "--k", "4",
    )  # fmt: skip
    assert found["break_even_batch"] is None
    assert found["first_losing_batch"] is None
    assert found["intervals"] == [{"from": 1, "to": 29, "pays": True}]
    limit = found["at_limit"]
    assert (limit["batch"], limit["bound"]) == (29, "memory")
    assert (round(limit["memory_ms"], 1), round(limit["compute_ms"], 2), round(limit["ratio"], 1)) == (
        22.6,
        3.95,
        5.7,
    )


def test_long_context_on_the_default_deployment(run: Run) -> None:
    found = answer(run, "breakeven", "--ctx", "16384")
    assert found["break_even_batch"] is None
    assert all(interval["pays"] for interval in found["intervals"])
    assert found["at_limit"]["bound"] == "memory"
    code, out, _ = run("breakeven", "--ctx", "16384")
    assert code == 0
    assert "no break-even" in " ".join(out.split())


def test_breakeven_of_a_real_config(run: Run, shared: Path) -> None:
    config = shared / "cases" / "configs" / "llama-3.1-8b.json"
    found = answer(
        run, "breakeven", "--ctx", "640", "--model", str(config), "--device", "h100-sxm", "--draft-cost", "0.1",
        "--alpha", "0.7",
    )  # fmt: skip
    assert found["intervals"][0]["from"] == 1
    assert found["intervals"][0]["pays"]
    assert found["intervals"][-1]["to"] == found["memory_limit_batch"] > 500
    assert found["inputs"]["kv_bytes_per_token"] == 131072


def test_step_lists_kernels(run: Run) -> None:
    found = answer(run, "step", "--batch", "8", "--k", "4")
    assert found["seconds"] > 0
    assert {"name", "kind", "count", "seconds", "memory_seconds", "compute_seconds"} <= set(
        found["kernels"][0]
    )
    assert {kernel["kind"] for kernel in found["kernels"]} >= {"gemm", "attention"}


def test_devices_and_models_are_listed(run: Run) -> None:
    ids = {device["id"] for device in answer(run, "devices")["devices"]}
    assert {
        "a100-sxm-40",
        "a100-sxm-80",
        "h100-sxm",
        "h200-sxm",
        "b200-sxm",
        "l4",
        "mi300x",
        "lecture-h100",
    } <= ids
    assert len(answer(run, "models")["models"]) >= 12
    assert run("devices")[0] == run("models")[0] == run("devices", "h100")[0] == 0


def test_memory_lists_lines_without_totals(run: Run) -> None:
    found = answer(
        run,
        "memory",
        "--model",
        "llama-3.1-70b",
        "--weights",
        "fp8",
        "--tp",
        "2",
        "--ctx",
        "8192",
        "--batch",
        "64",
    )
    begins = ("weights", "draft weights", "kv", "draft kv", "logits", "reserve")
    assert all(line["line"].startswith(begins) for line in found["per_gpu"])
    assert not found["fits"]
    assert found["max_batch"] < 64
    assert "does not fit" in found["warnings"][-1]
    held = {line["line"]: line["bytes"] for line in found["per_gpu"]}
    assert held["kv"] == 64 * 8192 * 327680 / 2  # 320 KiB per token (facts), two GPUs


def test_drafts_are_ranked_and_say_what_is_invented(run: Run) -> None:
    found = answer(run, "drafts", "--batch", "4")
    speedups = [row["speedup"] for row in found["drafts"]]
    assert speedups == sorted(speedups, reverse=True)
    assert any("illustrative" in warning for warning in found["warnings"])
    assert {row["method"].split(" ")[0] for row in found["drafts"]} >= {
        "eagle3",
        "lookup",
        "early-exit",
        "sparse-self",
    }
    assert any(left["method"] == "mtp" for left in found["left_out"])


def test_tree_of_a_size_is_the_likeliest_paths(run: Run) -> None:
    rates = [0.55, 0.22, 0.12, 0.06]
    found = answer(run, "tree", "--rank-acceptance", "0.55,0.22,0.12,0.06", "--depth", "4", "--nodes", "64")
    paths = [1.0]
    every = []
    for _ in range(4):
        paths = [path * rate for path in paths for rate in rates]
        every += paths
    assert found["expected_tokens"] == pytest.approx(1 + sum(sorted(every, reverse=True)[:64]))
    assert found["width"] == 65


def test_a_busy_gpu_wants_a_smaller_tree(run: Run) -> None:
    common = ("tree", "--rank-acceptance", "0.55,0.22,0.12,0.06")
    idle, busy = (answer(run, *common, "--batch", batch) for batch in ("1", "64"))
    assert busy["nodes"] < idle["nodes"]
    assert idle["why"]
    assert busy["why"]


def test_exact_prints_the_two_branches(run: Run) -> None:
    found = answer(run, "exact", "--p", "0.5,0.3,0.2", "--q", "0.4,0.4,0.2")
    assert found["accept"] == pytest.approx([1.0, 0.75, 1.0])
    assert found["emitted"] == pytest.approx([0.5, 0.3, 0.2])
    assert found["overlap"] == pytest.approx(0.9)
    assert found["distance"] == pytest.approx(0.0, abs=1e-12)


def test_derive_and_models_check_run(run: Run) -> None:
    assert answer(run, "derive", "series")["derivations"]
    rows = answer(run, "models", "--check")["models"]
    assert sum(row["equal"] is True for row in rows) >= 60
    assert not [row["id"] for row in rows if row["equal"] is False]


def test_compose_gives_the_lecture_exercise(run: Run) -> None:
    """4-bit weights, 20 KiB of KV per token and speculation at 4,096 tokens, against the 640-token baseline."""
    common = ("compose", "--model", "lecture-7b", "--device", "lecture-h100", "--ctx", "4096", "--baseline-ctx", "640",
              "--baseline-kv-bytes-per-token", "128125", "--weight-bytes", "3.47 GB", "--alpha", "0.8", "--charge", "none",
              "--k", "4")  # fmt: skip
    rounded = answer(run, *common, "--kv-bytes-per-token", str(0.082e9 / 4096))
    assert round(rounded["baseline_break_even_batch"], 1) == 250.8
    assert round(rounded["break_even_batch"], 1) == 64.5
    assert rounded["product"] != pytest.approx(rounded["actual"], rel=1e-3)
    assert "weights" in rounded["tension"]
    true = answer(run, *common, "--kv-bytes-per-token", str(20 * 1024))
    assert round(true["break_even_batch"], 1) == 66.8


def test_policy_prints_levels_and_regret(run: Run) -> None:
    found = answer(run, "policy", "--ctx", "1024,8192", "--sessions", "30", "--batch", "140")
    assert found["levels"][0]["from"] == 1
    assert 0.0 <= found["regret"] < 0.2
    assert run("policy")[0] == run("compose", "--weights", "fp8")[0] == 0


def test_breakeven_surface_prints_the_flip(run: Run) -> None:
    found = answer(run, "breakeven", "--surface", "--batches", "1,16", "--contexts", "512,2048")
    assert {(cell["batch"], cell["context"]) for cell in found["surface"]} == {
        (b, c) for b in (1, 16) for c in (512, 2048)
    }
    assert "flip_context" in found
    code, out, _ = run(
        "breakeven", "--surface", "--batches", "1,16", "--contexts", "512,2048", "--draft", "eagle3"
    )
    assert code == 0
    assert "cached tokens" in out or "no batch" in out


OPTIMIZE = ("optimize", "--alpha", "0.8", "--draft-cost", "0.15")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("optimize", "--alpha", "-0.1", "--draft-cost", "0.15"), ("--alpha", "-0.1", "0 to 1")),
        (("optimize", "--alpha", "1.2", "--draft-cost", "0.15"), ("--alpha", "1.2", "0 to 1")),
        (("optimize", "--alpha", "nan", "--draft-cost", "0.15"), ("--alpha", "nan", "0 to 1")),
        (("optimize", "--alpha", "abc", "--draft-cost", "0.15"), ("--alpha", "'abc'", "must be a number")),
        (("optimize", "--alpha", "0.8"), ("--draft-cost",)),
        (("optimize", "--draft-cost", "0.15"), ("--alpha", "must be given")),
        ((*OPTIMIZE, "--k", "-1"), ("--k", "-1", "from 0")),
        ((*OPTIMIZE, "--k", "2.5"), ("--k", "2.5", "whole number")),
        ((*OPTIMIZE, "--charge", "free"), ("--charge", "free", "none, scaled, added")),
        (("optimize", "--alpha", "0.8", "--draft-cost", "-1"), ("--draft-cost", "-1", ">= 0")),
        (("breakeven", "--ctx", "0"), ("--ctx", "0", "from 1")),
        (("breakeven", "--ctx", "1000000000000"), ("--ctx", "1000000000000", "from 1 to")),
        (("breakeven", "--model", "llama-3.1-8c"), ("--model", "llama-3.1-8c", "llama-3.1-8b")),
        (("breakeven", "--device", "h100-sxn"), ("--device", "h100-sxn", "h100-sxm")),
        (("breakeven", "--memory-fraction", "0"), ("--memory-fraction", "0", "above 0")),
        (("optimize", "--acceptance", "0.5,0.6", "--draft-cost", "0.1"), ("--acceptance, position 2", "0.6")),
        (("optimize", "--acceptance", "0.5,x", "--draft-cost", "0.1"), ("--acceptance", "'x'", "numbers")),
        (("optimize", "--acceptance", "2.41", "--draft-cost", "0.1"), ("--acceptance", "2.41", "LENGTH@K")),
        (
            ("optimize", "--acceptance", "5@3", "--draft-cost", "0.1"),
            ("--acceptance", "5@3", "1 to k + 1 = 4"),
        ),
        (
            ("optimize", "--acceptance", "1,2@3", "--draft-cost", "0.1"),
            ("--acceptance", "1,2@3", "one length"),
        ),
        (
            ("optimize", "--acceptance", "2@3", "--conditional", "--draft-cost", "0.1"),
            ("--conditional", "mean length"),
        ),
        (("optimise",), ("optimise",)),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], named: tuple[str, ...]) -> None:
    line = refusal(run, *arguments)
    for part in named:
        assert part in line


BAD_CONFIGS = {
    "empty": "",
    "not JSON": "{hidden",
    "a list": "[1, 2]",
    "no hidden_size": '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2}',
    "text": '{"model_type": "llama", "hidden_size": "4096", "num_hidden_layers": 2, "num_attention_heads": 2, '
    '"intermediate_size": 8, "vocab_size": 10}',
    "zero layers": '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 0, "num_attention_heads": 2, '
    '"intermediate_size": 8, "vocab_size": 10}',
}


@pytest.mark.parametrize("content", BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_bad_config_is_one_line(run: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    for model in (path, tmp_path):
        refusal(run, "breakeven", "--model", str(model))


def test_a_huge_config_is_refused_unread(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    assert "200000000 bytes" in refusal(run, "breakeven", "--model", str(path))


def test_a_folder_without_a_config_is_one_line(run: Run, tmp_path: Path) -> None:
    assert "config.json" in refusal(run, "breakeven", "--model", str(tmp_path))


def test_python_m_specmodel_is_the_same_command() -> None:
    command = [sys.executable, "-m", "specmodel", *OPTIMIZE, "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(shown.stdout)["best"]["k"] == 5
    assert shown.stderr == ""
