"""Sample sizes, idle slots and Jacobi windows against simulation and exact systems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel.drafters import lookahead
from specmodel.errors import InputError
from specmodel.evidence import trials
from specmodel.planning import headroom


def simulated(alpha: float, k: int, rounds: int, seed: int) -> tuple[Any, Any]:
    """Tests and acceptances of each round, by tossing k coins and stopping at the first failure."""
    passed = np.random.default_rng(seed).random((rounds, k)) < alpha
    accepted = np.cumprod(passed, axis=1).sum(axis=1)
    return np.minimum(accepted + 1, k), accepted


@pytest.mark.parametrize(("alpha", "k"), [(0.8, 4), (0.3, 2), (0.95, 8)])
def test_tested_drafts_against_a_simulation(alpha: float, k: int) -> None:
    tested, accepted = simulated(alpha, k, 200_000, 1)
    assert tested.mean() == pytest.approx(trials.tested_per_round(alpha, k), rel=5e-3)
    assert accepted.sum() / tested.sum() == pytest.approx(alpha, rel=5e-3)
    assert accepted.mean() / k == pytest.approx(trials.accepted_share(alpha, k), rel=5e-3)


def test_half_width_covers_as_often_as_it_says() -> None:
    alpha, k, rounds = 0.8, 4, 1000
    estimates = []
    for seed in range(400):
        tested, accepted = simulated(alpha, k, rounds, seed)
        estimates.append(accepted.sum() / tested.sum())
    width = trials.half_width_after(rounds, alpha, k)
    assert np.mean(np.abs(np.array(estimates) - alpha) <= width) == pytest.approx(0.95, abs=0.03)


@given(alpha=st.floats(0.01, 0.99), half_width=st.floats(0.005, 0.2))
def test_needed_trials_reach_the_half_width(alpha: float, half_width: float) -> None:
    needed = trials.trials_needed(alpha, half_width)
    assert trials.Z_95 * math.sqrt(alpha * (1 - alpha) / needed) <= half_width * (1 + 1e-9)
    if needed > 1:
        assert trials.Z_95 * math.sqrt(alpha * (1 - alpha) / (needed - 1)) > half_width * (1 - 1e-9)


def test_more_requests_are_needed_than_drafted_tokens_suggest() -> None:
    naive, honest = (
        trials.requests_needed(1537, 128, 0.8, 4, tested_only=tested) for tested in (False, True)
    )
    assert (math.ceil(naive), math.ceil(honest)) == (11, 14)


@given(positions=st.integers(2, 500), slots_free=st.integers(1, 500))
def test_requests_within_are_the_most_that_do_not_stretch_the_step(positions: int, slots_free: int) -> None:
    count = int(headroom.slots(0, positions - 1, slots_free, among=False))
    assert headroom.overload(count * positions, slots_free) == 1.0
    assert headroom.overload((count + 1) * positions, slots_free) > 1.0


@given(st.lists(st.lists(st.floats(-1.0, 1.0), min_size=5, max_size=5), min_size=5, max_size=5))
def test_jacobi_fixes_one_more_token_per_pass_of_a_causal_system(rows: list[list[float]]) -> None:
    """Each unknown depends on earlier ones only: pass n leaves the first n right."""
    matrix = np.tril(np.array(rows), -1) + np.eye(5)
    right = [1.0, -2.0, 3.0, -4.0, 5.0]
    solution = np.linalg.solve(matrix, right)
    values = [0.0] * 5
    assert lookahead.gauss_seidel_sweep(matrix.tolist(), right, values) == pytest.approx(solution, abs=1e-9)
    for passes in range(1, 6):
        values = lookahead.jacobi_sweep(matrix.tolist(), right, values)
        assert values[:passes] == pytest.approx(solution[:passes], abs=1e-9)


def test_the_pool_averages_passes_not_rates() -> None:
    passes = lookahead.mean_passes(0.4, 2, 4)
    assert lookahead.tokens_per_pass(8, passes) == pytest.approx(2.5)
    assert pytest.approx(2.8) == 0.4 * 8 / 2 + 0.6 * 8 / 4  # the mean of the rates, which is wrong


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: trials.trials_needed(0.8, 0.0),
        lambda: trials.trials_needed(1.2, 0.1),
        lambda: trials.tested_per_round(0.8, 0),
        lambda: trials.with_design_effect(10, 0.5),
        lambda: trials.half_width_after(0, 0.8, 4),
        lambda: headroom.budget_share(1, 0),
        lambda: lookahead.jacobi_sweep([[1.0, 0.0]], [1.0], [0.0]),
        lambda: lookahead.jacobi_sweep([[0.0]], [1.0], [0.0]),
        lambda: lookahead.tokens_per_pass(8, 0),
        lambda: lookahead.mean_passes(1.5, 2, 4),
    ],
)
def test_bad_input_is_refused(attempt: Any) -> None:
    with pytest.raises(InputError):
        attempt()
