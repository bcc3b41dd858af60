"""Tokens per round against printed tables, exact arithmetic and laws."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel.acceptance import (
    Geometric,
    PerPosition,
    ceiling,
    expected_tokens,
    expected_tokens_to,
    round_law,
    tokens_per_round,
)
from specmodel.errors import InputError

# Leviathan et al. 2023, arXiv:2211.17192, Table 1 (c = 0): alpha, gamma, SPEED as printed.
TABLE_1 = [(0.6, 2, "1.96"), (0.7, 3, "2.53"), (0.8, 5, "3.69"), (0.9, 10, "6.86")]
alphas = st.floats(0.0, 1.0) | st.floats(0.0, 1e-6).map(lambda gap: 1.0 - gap)


@pytest.mark.parametrize(("alpha", "k", "printed"), TABLE_1)
def test_tokens_per_round_matches_leviathan_table_1(alpha: float, k: int, printed: str) -> None:
    assert f"{tokens_per_round(alpha, k):.2f}" == printed


@given(alpha=alphas, k=st.integers(0, 64))
def test_tokens_per_round_equals_the_exact_series(alpha: float, k: int) -> None:
    exact = sum(Fraction(alpha) ** i for i in range(k + 1))
    assert tokens_per_round(alpha, k) == pytest.approx(float(exact), rel=1e-13)


@given(alpha=alphas, k=st.integers(0, 64))
def test_tokens_per_round_lies_between_one_and_its_bounds(alpha: float, k: int) -> None:
    tokens = tokens_per_round(alpha, k)
    assert 1.0 <= tokens <= (k + 1) * (1 + 1e-15)
    bound = ceiling(alpha)
    assert bound is None or tokens <= bound * (1 + 1e-14)


@given(low=alphas, high=alphas, k=st.integers(0, 40))
def test_tokens_per_round_never_falls_with_alpha_or_k(low: float, high: float, k: int) -> None:
    low, high = sorted((low, high))
    slack = 1 - 1e-14
    assert tokens_per_round(high, k) >= tokens_per_round(low, k) * slack
    assert tokens_per_round(low, k + 1) >= tokens_per_round(low, k) * slack


@given(alpha=st.lists(alphas, min_size=1, max_size=5), k=st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_arrays_give_what_scalars_give(alpha: list[float], k: list[int]) -> None:
    table = np.asarray(tokens_per_round(np.array(alpha)[:, None], np.array(k)[None, :]))
    assert table.shape == (len(alpha), len(k))
    for i, a in enumerate(alpha):
        for j, depth in enumerate(k):
            assert table[i, j] == pytest.approx(tokens_per_round(a, depth), rel=1e-14)


def test_a_list_of_shares_of_rounds_is_summed() -> None:
    assert expected_tokens(PerPosition((0.844, 0.599, 0.385, 0.271)), 4) == pytest.approx(3.099, abs=1e-12)


def test_conditional_rates_multiply() -> None:
    law = PerPosition.from_conditional((0.844, 0.599, 0.385, 0.271))
    assert f"{expected_tokens(law, 4):.3f}" == "2.597"
    assert law.conditional == pytest.approx((0.844, 0.599, 0.385, 0.271))


@given(rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_conditional_and_unconditional_rates_are_inverse(rates: list[float]) -> None:
    law = PerPosition.from_conditional(rates)
    again = PerPosition.from_conditional(law.conditional)
    assert again.rates == pytest.approx(law.rates)


def test_a_list_ends_where_it_was_measured_unless_extended_on_purpose() -> None:
    rates = (0.8, 0.4)
    with pytest.raises(InputError, match="2 positions only"):
        PerPosition(rates).survival(3)
    assert PerPosition(rates, tail="geometric").survival(4) == pytest.approx((0.8, 0.4, 0.2, 0.1))


@given(alpha=st.floats(0.0, 1.0), k=st.integers(1, 12))
def test_a_geometric_list_equals_the_geometric_law(alpha: float, k: int) -> None:
    law = Geometric(alpha)
    listed = PerPosition(law.survival(k))
    assert expected_tokens_to(listed, k) == pytest.approx(expected_tokens_to(law, k), rel=1e-12)


@given(alpha=st.floats(0.0, 1.0), k=st.integers(0, 12))
def test_the_law_of_a_round_sums_to_one_and_has_the_expected_mean(alpha: float, k: int) -> None:
    law = round_law(Geometric(alpha), k)
    assert sum(law.pmf) == pytest.approx(1.0)
    assert law.mean == pytest.approx(tokens_per_round(alpha, k))


@pytest.mark.parametrize(
    ("rates", "named"),
    [
        ((0.5, 0.6), "must not be above position 1"),
        ((1.2,), "from 0 to 1"),
        ((float("nan"),), "finite"),
        ((), "at least one"),
    ],
)
def test_impossible_lists_are_refused_by_name(rates: tuple[float, ...], named: str) -> None:
    with pytest.raises(InputError, match=named):
        PerPosition(rates)


@pytest.mark.parametrize("alpha", [-0.1, 1.2, float("nan"), float("inf")])
def test_impossible_alphas_are_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha"):
        tokens_per_round(alpha, 4)
    with pytest.raises(InputError, match="alpha"):
        tokens_per_round(np.array([0.5, alpha]), 4)
