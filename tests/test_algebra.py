"""The derived formulae against the numeric functions that the rest of the tool uses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from specmodel import algebra, rounds
from specmodel.acceptance import tokens_per_round
from specmodel.errors import InputError
from specmodel.operating_range import textbook_break_even
from specmodel.result import plain


@pytest.fixture(scope="module")
def derived() -> dict[str, algebra.Derivation]:
    return {f"{one.topic}/{one.name}": one for one in algebra.derive()}


ALPHAS, COSTS = np.linspace(0.05, 0.98, 15), np.linspace(0.01, 0.9, 12)


def test_every_topic_is_proved_and_printable(derived: dict[str, algebra.Derivation]) -> None:
    assert {one.topic for one in derived.values()} == set(algebra.TOPICS)
    for one in derived.values():
        assert one.statement
        assert one.steps
        assert one.latex
        assert one.result
        assert {symbol.name for symbol in one.expression.free_symbols} <= set(one.arguments)
        assert isinstance(plain(one), dict)
    assert [one.name for one in algebra.derive("depth")] == ["first token", "one more token"]


def test_a_false_step_is_not_proved() -> None:
    import sympy as sp

    with pytest.raises(AssertionError, match="not proved"):
        algebra._vanishes(sp.Min(sp.Symbol("p"), sp.Symbol("q")) - sp.Symbol("p"))


def test_unknown_topics_are_named() -> None:
    with pytest.raises(InputError, match="did you mean 'series'"):
        algebra.derive("serie")


def test_identity_on_numbers(derived: dict[str, algebra.Derivation]) -> None:
    p, q = np.random.default_rng(0).random((2, 1000))
    assert derived["exactness/identity"].function()(p, q) == pytest.approx(p, abs=1e-15)


def test_series_is_tokens_per_round(derived: dict[str, algebra.Derivation]) -> None:
    series = derived["series/tokens per round"].function()
    for k in (0, 1, 4, 16):
        grid = np.append(ALPHAS, 1.0)
        assert series(grid, k) == pytest.approx(tokens_per_round(grid, k), rel=1e-12)
    assert derived["series/limits"].function()(0.8) == pytest.approx(tokens_per_round(0.8, 400))


def test_the_first_token_pays_from_alpha_above_c(derived: dict[str, algebra.Derivation]) -> None:
    gain = derived["depth/first token"].function()
    for alpha in ALPHAS:
        for c in COSTS:
            assert gain(alpha, c) == pytest.approx(rounds.speedup(alpha, 1, c) - 1.0, abs=1e-12)
            assert (gain(alpha, c) > 0) == (alpha > c)


def test_one_more_token_pays_until_the_best_k(derived: dict[str, algebra.Derivation]) -> None:
    margin = derived["depth/one more token"].function()
    for alpha in ALPHAS:
        for c in COSTS:
            ks = np.arange(400.0)
            best = int(np.argmax(rounds.speedup(np.full(400, alpha), ks, c)))
            assert int(np.argmax(margin(alpha, c, ks) <= 0.0)) == best


def test_the_lambert_form_is_the_continuous_optimum(derived: dict[str, algebra.Derivation]) -> None:
    closed = derived["optimum/Lambert form"].function()
    slope = derived["optimum/condition"].function()
    for alpha in ALPHAS:
        for c in COSTS:
            best = float(closed(alpha, c))
            assert slope(alpha, c, best) == pytest.approx(0.0, abs=1e-9)
            assert rounds.continuous_best_k(float(alpha), float(c)) == pytest.approx(
                max(0.0, best), rel=1e-6, abs=1e-6
            )
            found = minimize_scalar(
                lambda k, alpha=alpha, c=c: -float(rounds.speedup(alpha, k, c)),
                bounds=(0.0, 400.0),
                method="bounded",
                options={"xatol": 1e-9},
            )
            assert max(0.0, best) == pytest.approx(found.x, abs=2e-3)


@pytest.mark.parametrize("charge", rounds.CHARGES)
@pytest.mark.parametrize("k", [1, 3, 4])
def test_break_even_is_where_the_two_times_meet(
    derived: dict[str, algebra.Derivation], charge: str, k: int
) -> None:
    """Against a root of the textbook times, and against the function that `breakeven` uses."""
    weights, cache, bandwidth, compute, c = 13.5e9, 0.082e9, 3.35e12, 13.48e9 / 494.5e12, 0.15
    tokens = float(tokens_per_round(0.8, k))

    def loss(batch: float) -> float:
        memory = (weights + batch * cache) / bandwidth
        plain_s, verify_s = max(memory, batch * compute), max(memory, batch * (k + 1) * compute)
        cost = rounds.round_cost(k, draft_cost=c, verify_ratio=verify_s / plain_s, charge=charge)
        return float(cost) - tokens

    arguments: list[Any] = [weights, cache, bandwidth, compute, tokens, k] + ([] if charge == "none" else [c])
    closed = float(derived[f"break-even/batch, charge {charge}"].function()(*arguments))
    assert closed == pytest.approx(brentq(loss, 1.0, 1400.0), rel=1e-9)
    numeric = textbook_break_even(
        tokens,
        k + 1,
        weight_bytes=weights,
        kv_bytes_per_sequence=cache,
        bandwidth_bytes_per_s=bandwidth,
        seconds_per_position=compute,
        draft_cost=c,
        charge=charge,
    )
    assert numeric == pytest.approx(closed, rel=1e-12)


def test_no_batch_loses_past_the_flip_context(derived: dict[str, algebra.Derivation]) -> None:
    k, compute, bandwidth, per_token = 4, 13.48e9 / 494.5e12, 3.35e12, 128 * 1024
    tokens = float(tokens_per_round(0.8, k))
    flip = float(derived["break-even/flip context"].function()(k, compute, bandwidth, tokens, per_token))
    batch = derived["break-even/batch, charge none"].function()
    assert batch(13.5e9, per_token * flip * 0.999, bandwidth, compute, tokens, k) > 5e4
    assert batch(13.5e9, per_token * flip * 1.001, bandwidth, compute, tokens, k) < 0.0  # no such batch
    assert math.isfinite(flip)
