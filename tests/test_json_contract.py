"""The JSON keys that every command promises: what scripts are written against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli_runs import Run, answer

DEPTH = {"k", "tokens_per_round", "round_cost", "speedup"}
PROMISED: dict[tuple[str, ...], dict[str, Any]] = {
    ("optimize", "--alpha", "0.8", "--draft-cost", "0.15"): {
        "inputs": set(),
        "best": DEPTH,
        "ceiling": None,
        "pays_from_alpha": None,
        "flat_band": {"within", "k_min", "k_max"},
        "by_k": [DEPTH],
    },
    ("breakeven", "--ctx", "640"): {
        "inputs": set(),
        "context": None,
        "k": None,
        "intervals": [{"from", "to", "pays"}],
        "break_even_batch": None,
        "first_losing_batch": None,
        "memory_limit_batch": None,
        "at_limit": {"batch", "memory_ms", "compute_ms", "bound", "ratio"},
        "why": None,
    },
    ("step",): {
        "inputs": set(),
        "seconds": None,
        "bound": None,
        "kernels": [{"name", "kind", "count", "seconds", "memory_seconds", "compute_seconds"}],
    },
    ("memory",): {"fits": None, "per_gpu": [{"line", "bytes"}], "max_batch": None, "kv_tokens": None},
    ("drafts", "eagle3"): {
        "drafts": [
            {"method", "k", "tokens_per_round", "round_cost", "speedup", "extra_bytes", "exact", "source"}
        ]
    },
    ("tree", "--rank-acceptance", "0.5,0.2"): {
        "nodes": None,
        "depth": None,
        "parents": None,
        "expected_tokens": None,
        "speedup": None,
        "by_size": [set()],
    },
    ("compose", "--weights", "fp8"): {
        "steps": [{"name", "alone", "cumulative", "break_even_batch"}],
        "product": None,
        "actual": None,
        "break_even_batch": None,
        "tension": None,
        "why": None,
    },
    ("plan", "--batch", "1,8", "--ctx", "1024", "--acceptance", "0.7,0.5"): {
        "inputs": set(),
        "memory": None,
        "by_batch": [
            {"batch", "k", "draft", "speedup", "tpot_ms", "tokens_per_second", "bound", "low", "high"}
        ],
        "intervals": None,
        "engine_config": None,
        "warnings": None,
    },
    ("policy",): {"levels": [{"from", "to", "k"}], "regret": None},
    ("exact", "--p", "0.5,0.5", "--q", "0.4,0.6"): dict.fromkeys(
        ("accept", "residual", "emitted", "overlap", "distance")
    ),
    ("devices",): {"devices": [{"id", "figures"}]},
    ("models", "llama-3.1-8b"): {"models": [{"id", "parameters", "source"}]},
    ("derive", "series"): {"derivations": [set()]},
}
TIMED = ("optimize", "breakeven", "step", "drafts", "tree", "compose", "plan", "policy")


@pytest.mark.parametrize(("arguments", "promised"), PROMISED.items(), ids=lambda value: " ".join(value)[:30])
def test_promised_keys_exist(run: Run, arguments: tuple[str, ...], promised: dict[str, Any]) -> None:
    found = answer(run, *arguments)
    for key, inner in promised.items():
        assert key in found, key
        if isinstance(inner, list):
            assert found[key], key
            assert inner[0] <= set(found[key][0])
        elif inner:
            assert inner <= set(found[key])


@pytest.mark.parametrize("arguments", [a for a in PROMISED if a[0] in (*TIMED, "memory")], ids=lambda a: a[0])
def test_every_answer_says_what_stands_behind_it(run: Run, arguments: tuple[str, ...]) -> None:
    """Fidelity, charge and engine among the inputs; low and high; what was assumed; warnings."""
    found = answer(run, *arguments)
    assert {"fidelity", "charge", "engine"} <= set(found["inputs"])
    assert {"low", "high", "assumptions", "warnings"} <= set(found)
    if arguments[0] in TIMED:
        assert found["trust"]


def test_acceptance_and_validation_keys(run: Run, tmp_path: Path) -> None:
    rounds = tmp_path / "rounds.csv"
    rounds.write_text("drafted,accepted\n" + "4,2\n4,4\n4,0\n" * 20, encoding="utf-8")
    found = answer(run, "alpha", str(rounds))
    assert {
        "rounds",
        "survival",
        "conditional",
        "alpha",
        "tokens_per_round",
        "k",
        "convention",
        "warnings",
    } <= set(found)
    assert {"value", "low", "high"} <= set(found["alpha"])
    table = tmp_path / "t.csv"
    table.write_text("fw,dtype,n,k,m,us\nvllm,bfloat16,4096,4096,16,17.5\nvllm,float7,4096,4096,16,17.5\n")
    checked = answer(run, "validate", str(table), "--device", "h100", "--rows")
    assert {"file", "rows", "predicted_rows", "median_abs_error", "mean_abs_error", "bias"} <= set(
        checked["files"][0]
    )
    assert {"file", "row", "unit", "measured", "predicted", "reason"} <= set(checked["rows"][0])
    assert [row["predicted"] is None for row in checked["rows"]] == [False, True]
    assert checked["rows"][1]["reason"]
