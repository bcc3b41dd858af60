"""Round cost, speedup and the best draft length."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specmodel import rounds
from specmodel.acceptance import Geometric, tokens_per_round
from specmodel.errors import InputError

alphas = st.floats(0.0, 1.0)
costs = st.floats(0.0, 2.0)


def test_round_cost_under_each_charge() -> None:
    # 1.2 plain steps of verification, 4 drafts at 0.1: 1.2; 1.2 x 1.4; 1.2 + 0.4.
    by_hand = {"none": 1.2, "scaled": 1.68, "added": 1.6}
    for charge in rounds.CHARGES:
        cost = rounds.round_cost(4, draft_cost=0.1, verify_ratio=1.2, charge=charge)
        assert cost == pytest.approx(by_hand[charge])


def test_no_draft_is_a_plain_step_whatever_the_charge() -> None:
    for charge in rounds.CHARGES:
        assert rounds.round_cost(0, draft_cost=0.5, verify_ratio=1.0, charge=charge, engine_ratio=0.3) == 1.0
        table = np.asarray(rounds.round_cost(np.array([0, 1]), draft_cost=0.5, charge=charge))
        assert table[0] == 1.0


@given(alpha=alphas, cost=costs)
def test_one_draft_pays_iff_alpha_exceeds_its_cost(alpha: float, cost: float) -> None:
    assume(abs(alpha - cost) > 1e-12)
    assert (float(rounds.speedup(alpha, 1, cost)) > 1.0) == (alpha > cost)


@given(alpha=st.floats(0.01, 0.995), cost=st.floats(0.005, 1.5))
def test_best_k_by_enumeration_is_a_neighbour_of_the_closed_form(alpha: float, cost: float) -> None:
    best = rounds.best(rounds.depths(Geometric(alpha), draft_cost=cost, max_k=600)).k
    closed = rounds.continuous_best_k(alpha, cost)
    assert math.floor(closed) - 1e-9 <= best <= math.ceil(closed) + 1e-9


@given(alpha=st.floats(1e-6, 1 - 1e-6), cost=st.floats(1e-6, 0.999))
def test_the_closed_form_is_a_stationary_point(alpha: float, cost: float) -> None:
    k = rounds.continuous_best_k(alpha, cost)
    assume(0.01 < k < 4000)
    here, step = float(rounds.speedup(alpha, k, cost)), max(1e-3, 1e-3 * k)
    assert here >= float(rounds.speedup(alpha, k - min(step, k), cost)) * (1 - 1e-12)
    assert here >= float(rounds.speedup(alpha, k + step, cost)) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("alpha", "cost", "expected"),
    [(0.0, 0.1, 0.0), (1.0, 0.1, math.inf), (0.8, 0.0, math.inf), (0.8, 1.0, 0.0), (0.3, 0.9, 0.0)],
)
def test_the_closed_form_at_its_edges(alpha: float, cost: float, expected: float) -> None:
    assert rounds.continuous_best_k(alpha, cost) == expected


@given(k=st.integers(1, 20), cost=st.floats(1.0, 10.0))
def test_the_alpha_that_pays_breaks_even(k: int, cost: float) -> None:
    alpha = rounds.pays_from_alpha(k, cost)
    if alpha is None:
        assert cost > k + 1
    else:
        assert float(tokens_per_round(alpha, k)) == pytest.approx(cost, rel=1e-9)


@given(alpha=alphas, cost=costs, within=st.floats(0.0, 0.5))
def test_the_flat_band_holds_the_best_and_only_close_ones(alpha: float, cost: float, within: float) -> None:
    rows = rounds.depths(Geometric(alpha), draft_cost=cost, max_k=24)
    band, top = rounds.flat_band(rows, within), rounds.best(rows)
    assert band.k_min <= top.k <= band.k_max
    assert all(rounds.regret(rows, k) <= within + 1e-12 for k in range(band.k_min, band.k_max + 1))


def test_a_tuned_depth_for_the_wrong_alpha_has_regret() -> None:
    rows = rounds.depths(Geometric(0.5), draft_cost=0.1)
    wrong = rounds.best(rounds.depths(Geometric(0.8), draft_cost=0.1)).k
    # 001, chapter 2: k = 6 gives 1.240 where k = 2 gives 1.458.
    assert rounds.regret(rows, wrong) == pytest.approx(1 - 1.240234375 / 1.4583333333333335, rel=1e-9)


def test_a_list_of_rates_stops_the_search_where_it_ends() -> None:
    law = rounds.acceptance_from(acceptance=[0.9, 0.8])
    assert rounds.depths(law, draft_cost=0.01)[-1].k == 2
    longer = rounds.acceptance_from(acceptance=[0.9, 0.8], extend=True)
    assert rounds.depths(longer, draft_cost=0.01)[-1].k == rounds.DEFAULT_MAX_K


def test_alpha_and_a_list_together_are_refused() -> None:
    with pytest.raises(InputError, match="not both"):
        rounds.acceptance_from(0.8, [0.5])
    with pytest.raises(InputError, match="must be given"):
        rounds.acceptance_from()
