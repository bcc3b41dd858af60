"""How much to measure, every golden value on alpha, and rows that people publish.

Golden values were recomputed from the lectures by hand (tests/golden.json).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel import rounds
from specmodel.acceptance import tokens_per_round
from specmodel.errors import InputError
from specmodel.evidence import (
    Evidence,
    Part,
    SampleSize,
    alpha,
    from_summary,
    half_width,
    implied_round_cost,
    sample_size,
)
from specmodel.evidence.intervals import normal_quantile
from tests.golden_cases import cases, matches

Inputs = dict[str, Any]


def level_of(z: float) -> float:
    """The coverage whose normal quantile is z; the lectures round it to 1.96."""
    return math.erf(z / math.sqrt(2.0))


def plan(i: Inputs) -> SampleSize:
    return sample_size(
        i.get("half_width", 0.02),
        i.get("k", 4),
        i["alpha"],
        level=level_of(i.get("z", 1.96)),
        tokens_per_request=i.get("tokens", 128),
    )


def recipe(i: Inputs) -> float:
    """accepted / drafted of counts that follow alpha exactly, as the estimator reports it."""
    survived = tuple(1e6 * i["alpha"] ** n for n in range(1, i["k"] + 1))
    part = Part(
        {}, "exact", 1e6, sum(survived), 1e6 * i["k"], i["k"], i["k"], (1e6, *survived[:-1]), survived
    )
    found = alpha(Evidence((part,)), resamples=100)
    assert found.alpha.value == pytest.approx(i["alpha"])
    assert found.lesson.value is not None
    return found.lesson.value


def standard_error(i: Inputs) -> float:
    return float(i["half_width"] / normal_quantile(level_of(i["z"])))


COMPUTED: dict[str, Callable[[Inputs], Any]] = {
    "alpha-n-trials": lambda i: plan(i).independent_tests,
    "alpha-verifs-per-request": lambda i: plan(i).rounds_per_request,
    "alpha-drafted-per-request": lambda i: plan(i).rounds_per_request * plan(i).drafted_per_round,
    "alpha-requests": lambda i: i["n"] / (plan(i).rounds_per_request * plan(i).drafted_per_round),
    "alpha-requests-ceil": lambda i: plan(i).requests_if_drafted,
    "alpha-requests-tested-only": lambda i: {
        "tested_per_pass": plan(i).tested_per_round,
        "requests": plan(i).requests,
    },
    "alpha-requests-inflated": lambda i: [
        i["base"] * sample_size(0.02, 4, design_effect=factor).design_effect for factor in i["factors"]
    ],
    "alpha-interval-sqrt-step": standard_error,
    "alpha-interval-variance-step": lambda i: standard_error(i) ** 2,
    "alpha-fraction-is-not-alpha": recipe,
    "alpha-fraction-plugback": lambda i: rounds.speedup(recipe(i), i["k"], i["c"]),
    "alpha-1000-rounds": lambda i: half_width(i["rounds"], i["k"], i["alpha"], level=level_of(i["z"])),
}


@pytest.mark.parametrize("case", cases(("alpha",)))
def test_golden_alpha(case: dict[str, Any]) -> None:
    assert matches(COMPUTED[case["id"]](case["inputs"]), case), case["note"]


def test_every_golden_value_on_alpha_is_computed() -> None:
    assert {row.values[0]["id"] for row in cases(("alpha",))} == set(COMPUTED)  # type: ignore[index]


def test_tested_is_not_drafted() -> None:
    """alpha 0.8, k = 4: 2.95 of 4 drafted tokens are tested, so 14 requests and not 11."""
    found = sample_size(0.02, 4, 0.8)
    assert f"{found.tested_per_round:.2f}" == "2.95"
    assert (found.independent_tests, found.requests, found.requests_if_drafted) == (1537, 14, 11)
    assert found.rounds == math.ceil(1537 / 2.952)
    assert found.drafted_tokens == 4 * found.rounds
    assert any("independent" in text for text in found.warnings)


def test_clustering_costs_requests() -> None:
    """icc 0.1 with 112 tests per request: 1 + 111 x 0.1."""
    found = sample_size(0.02, 4, 0.8, icc=0.1)
    tests = 2.952 * 128 / 3.3616
    assert found.design_effect == pytest.approx(1 + (tests - 1) * 0.1)
    assert found.tested_tokens == math.ceil(1537 * found.design_effect)
    assert found.requests == math.ceil(found.tested_tokens / tests)
    assert found.requests_if_independent == 14


@given(
    width=st.floats(0.005, 0.2), k=st.integers(1, 16), a=st.floats(0.05, 0.95), effect=st.floats(1.0, 20.0)
)
def test_the_plan_reaches_the_wanted_width(width: float, k: int, a: float, effect: float) -> None:
    found = sample_size(width, k, a, design_effect=effect)
    assert half_width(found.rounds, k, a, design_effect=effect) <= width * (1 + 1e-9)
    needed = found.tested_tokens - effect - 2.0  # both were rounded up
    if needed > 0:
        assert half_width(needed / found.tested_per_round, k, a, design_effect=effect) > width * (1 - 1e-9)


def test_the_design_effect_is_what_simulated_requests_need() -> None:
    """Requests from Beta(4, 1) (icc 1/6): the spread of alpha over logs of the planned size is what was asked."""
    found = sample_size(0.03, 4, 0.8, icc=1 / 6, tokens_per_request=64)
    rng = np.random.default_rng(0)
    per_request = round(found.rounds_per_request)
    values = []
    for _ in range(300):
        alphas = np.repeat(rng.beta(4.0, 1.0, found.requests), per_request)
        accepted = np.cumprod(rng.random((alphas.size, 4)) < alphas[:, None], axis=1).sum(axis=1)
        values.append(accepted.sum() / np.minimum(accepted + 1, 4).sum())
    assert 1.96 * np.std(values) == pytest.approx(0.03, rel=0.25)


@pytest.mark.parametrize(
    "arguments",
    [
        {"half_width": 0.0},
        {"half_width": -0.1},
        {"half_width": math.nan},
        {"k": 0},
        {"k": 2.5},
        {"alpha": 1.5},
        {"icc": -0.1},
        {"level": 1.0},
        {"tokens_per_request": 0.0},
        {"design_effect": 0.0},
    ],
    ids=str,
)
def test_plans_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        sample_size(**{"half_width": 0.02, "k": 4, **arguments})


def test_certain_alpha_is_planned_for_a_little_less() -> None:
    assert any("nothing varies" in text for text in sample_size(0.02, 4, 1.0).warnings)
    assert sample_size(0.02, 4, 0.0).tested_tokens > 0


def test_both_conventions_of_a_published_row() -> None:
    drafted = from_summary(3, size_is="drafted", mean_accepted=1.05, rate=0.35)
    block = from_summary(4, size_is="block", tokens_per_round=2.05, rate=0.35)
    assert drafted.k == block.k == 3
    assert drafted.tokens_per_round == block.tokens_per_round == 2.05
    assert tokens_per_round(drafted.alpha, 3) == pytest.approx(2.05)


def test_rows_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InputError, match="that is 3 drafted"):
        from_summary(8, size_is="block", mean_accepted=1.05, rate=0.35, digits=2)
    with pytest.raises(InputError, match="'drafted'"):
        from_summary(4, size_is="K", mean_accepted=1.05)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exactly one"):
        from_summary(4, size_is="block")
    with pytest.raises(InputError):
        from_summary(3, size_is="drafted", tokens_per_round=4.5)


def test_round_cost_follows_from_a_measured_speedup() -> None:
    assert implied_round_cost(2.05, 2.05) == 1.0
    with pytest.raises(InputError):
        implied_round_cost(2.05, 0.0)
