"""Estimates: closed forms and brute force for the values, seeded data sets for the coverage of the intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtri

from specmodel.acceptance import Geometric, PerPosition, expected_tokens
from specmodel.errors import InputError
from specmodel.evidence import (
    BetaMixture,
    Evidence,
    Part,
    alpha,
    alpha_from_tokens_per_round,
    best_depth,
    read,
)
from specmodel.evidence.counts import Clusters
from specmodel.evidence.heterogeneity import heterogeneity
from specmodel.evidence.intervals import percentiles, ratio_variance, wilson
from specmodel.evidence.tally import Tally

K = 4
REQUESTS, ROUNDS = 40, 30
SETS = 200  # of each kind


def counted(accepted: NDArray[np.int64], requests: list[str] | None, k: int = K) -> Evidence:
    """Rounds of k drafts as evidence."""
    tally = Tally(requests is not None)
    tally.add(np.full(accepted.size, k), accepted, requests)
    return Evidence((tally.part({}, "rounds"),))


def accepted_of(rng: np.random.Generator, alphas: NDArray[np.float64], k: int = K) -> NDArray[np.int64]:
    """Accepted drafts of rounds with these alphas: tests until the first rejection."""
    passed = rng.random((alphas.size, k)) < alphas[:, None]
    accepted: NDArray[np.int64] = np.cumprod(passed, axis=1).sum(axis=1).astype(np.int64)
    return accepted


def truth(moment: Callable[[int], float]) -> tuple[float, list[float], float]:
    """(alpha over tested tokens, survival, tokens per round) from E[alpha^i]."""
    survival = [moment(i) for i in range(1, K + 1)]
    return sum(survival) / (1.0 + sum(survival[:-1])), survival, 1.0 + sum(survival)


def data_set(kind: str, seed: int) -> tuple[NDArray[np.int64], tuple[float, list[float], float]]:
    """Forty requests of thirty rounds, and what a very long log of the same source would say."""
    rng = np.random.default_rng([seed, len(kind)])
    size = REQUESTS * ROUNDS
    if kind == "geometric":
        a = float(rng.uniform(0.4, 0.9))
        return accepted_of(rng, np.full(size, a)), truth(lambda i: a**i)
    if kind == "heterogeneous":
        a, b = float(rng.uniform(3, 8)), float(rng.uniform(1.5, 4))
        alphas = np.repeat(rng.beta(a, b, REQUESTS), ROUNDS)
        return accepted_of(rng, alphas), truth(lambda i: prod((a + j) / (a + b + j) for j in range(i)))
    high, low = float(rng.uniform(0.85, 0.95)), float(rng.uniform(0.3, 0.6))
    easy = np.empty((REQUESTS, ROUNDS), dtype=bool)  # easy and hard stretches of ten rounds on average
    easy[:, 0] = rng.random(REQUESTS) < 0.5
    for at in range(1, ROUNDS):
        easy[:, at] = easy[:, at - 1] ^ (rng.random(REQUESTS) < 0.1)
    return accepted_of(rng, np.where(easy, high, low).ravel()), truth(lambda i: (high**i + low**i) / 2)


NAMES = [str(i) for i in range(REQUESTS) for _ in range(ROUNDS)]


@pytest.mark.parametrize("kind", ["geometric", "heterogeneous", "bursty"])
def test_intervals_cover_the_truth_where_the_naive_one_fails(kind: str) -> None:
    """200 seeded data sets of each kind. The naive interval (independent tests) holds for equal requests only."""
    hits = {"alpha": 0, "tokens": 0, "survival": 0, "naive": 0, "lesson": 0}
    for seed in range(SETS):
        accepted, (a, survival, tokens) = data_set(kind, seed)
        found = alpha(counted(accepted, NAMES), resamples=600, seed=seed, describe=False)
        assert found.alpha.low is not None
        assert found.alpha.high is not None
        assert found.tokens_per_round.low is not None
        assert found.tokens_per_round.high is not None
        assert found.naive.low is not None
        assert found.naive.high is not None
        assert found.lesson.low is not None
        assert found.lesson.high is not None
        hits["alpha"] += found.alpha.low <= a <= found.alpha.high
        hits["tokens"] += found.tokens_per_round.low <= tokens <= found.tokens_per_round.high
        pairs = zip(survival, found.survival_interval, strict=True)
        hits["survival"] += sum(
            low is not None and high is not None and low <= s <= high for s, (low, high) in pairs
        )
        hits["naive"] += found.naive.low <= a <= found.naive.high
        hits["lesson"] += found.lesson.low <= a <= found.lesson.high
    share = {name: count / SETS / (K if name == "survival" else 1) for name, count in hits.items()}
    for name in ("alpha", "tokens", "survival"):
        assert 0.90 <= share[name] <= 0.99, (name, share)
    assert share["lesson"] == 0.0  # accepted / drafted is not alpha
    assert (share["naive"] > 0.85) if kind == "geometric" else (share["naive"] < 0.75), share


def test_blocks_of_rounds_widen_the_interval_where_requests_are_unknown() -> None:
    """The same bursty rounds without names: half as wide again as independent tests would say, at least."""
    accepted, _ = data_set("bursty", 1)
    without = alpha(counted(accepted, None))
    assert "blocks" in without.interval
    assert without.alpha.low is not None
    assert without.alpha.high is not None
    assert without.naive.low is not None
    assert without.naive.high is not None
    assert without.alpha.high - without.alpha.low > 1.3 * (without.naive.high - without.naive.low)
    assert without.autocorrelation is not None
    assert without.autocorrelation.significant


@given(
    tests=st.lists(st.tuples(st.integers(0, K), st.integers(0, 5)), min_size=1, max_size=60),
)
@settings(max_examples=40, deadline=None)
def test_rates_equal_counting(tests: list[tuple[int, int]]) -> None:
    """Against brute force over the rounds, mixed draft lengths and requests included."""
    accepted = np.array([a for a, _ in tests], dtype=np.int64)
    drafted = np.maximum(accepted, [1 + (r % K) for _, r in tests])
    tally = Tally(True)
    tally.add(drafted, accepted, [str(r) for _, r in tests])
    found = alpha(Evidence((tally.part({}, "rounds"),)), resamples=100)
    tested = [
        sum(d >= i and a >= i - 1 for d, a in zip(drafted, accepted, strict=True)) for i in range(1, K + 1)
    ]
    survived = [sum(a >= i for a in accepted) for i in range(1, K + 1)]
    assert found.rounds == len(tests)
    assert found.tested == sum(tested)
    assert found.alpha.value == pytest.approx(sum(survived) / sum(tested))
    for rate, s, t in zip(found.conditional, survived, tested, strict=False):
        assert rate is None if t == 0 else rate == pytest.approx(s / t)
    assert found.tokens_per_round.pooled == pytest.approx(1 + accepted.mean())
    assert found.alpha.low is not None
    assert found.alpha.high is not None
    assert found.alpha.value is not None
    assert 0.0 <= found.alpha.low <= found.alpha.value <= found.alpha.high <= 1.0
    for low, high in found.survival_interval:
        assert low is not None
        assert high is not None
        assert 0.0 <= low <= high <= 1.0
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_lessons_recipe_returns_less_than_alpha() -> None:
    """alpha 0.8 at k = 4 reads 0.59: (E - 1) / k with E = 3.3616."""
    rounds = 5**4
    survived = tuple(float(rounds * 0.8**i) for i in range(1, 5))
    part = Part(
        {}, "exact", rounds, sum(survived), 4.0 * rounds, 4, 4, (float(rounds), *survived[:3]), survived
    )
    found = alpha(Evidence((part,)))
    assert found.alpha.value == pytest.approx(0.8)
    assert found.lesson.value == pytest.approx(0.5904)
    assert "never tested" in found.to_dict()["lesson"]["why"]
    assert found.tested == pytest.approx(2.952 * rounds)


def test_nothing_drafted_is_undefined_and_no_error() -> None:
    part = Part({}, "empty", 0.0, 0.0, 0.0, None, None)
    found = alpha(Evidence((part,)))
    assert found.alpha.value is None
    assert found.tokens_per_round.pooled == 1.0
    assert found.survival == ()
    assert any("undefined" in text for text in found.warnings)
    with pytest.raises(InputError, match="no tested draft token"):
        found.acceptance()


def test_the_result_has_the_keys_that_the_command_promises() -> None:
    accepted, _ = data_set("geometric", 0)
    found = alpha(counted(accepted, NAMES)).to_dict()
    assert set(found) >= {
        "rounds",
        "survival",
        "conditional",
        "alpha",
        "tokens_per_round",
        "k",
        "convention",
        "warnings",
    }
    assert set(found["alpha"]) >= {"value", "low", "high"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_acceptance_hands_on_the_measured_rates() -> None:
    accepted, _ = data_set("bursty", 0)
    found = alpha(counted(accepted, NAMES))
    law = found.acceptance()
    assert isinstance(law, PerPosition)
    assert expected_tokens(law, K) == pytest.approx(found.tokens_per_round.pooled)
    totals = Part({}, "totals", 100.0, 155.0, 300.0, 3, 3)
    assert isinstance(alpha(Evidence((totals,))).acceptance(), Geometric)


@pytest.mark.parametrize(("level", "resamples"), [(0.2, 1000), (1.0, 1000), (0.95, 3), (math.nan, 1000)])
def test_settings_out_of_range_are_refused(level: float, resamples: int) -> None:
    accepted, _ = data_set("geometric", 0)
    with pytest.raises(InputError):
        alpha(counted(accepted, NAMES), level=level, resamples=resamples)


# Brown, Cai, DasGupta 2001 give no table; Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3 (Wilson).
@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (81, 263, "0.2553", "0.3662"),
        (15, 148, "0.0624", "0.1605"),
        (0, 20, "0.0000", "0.1611"),
        (1, 29, "0.0061", "0.1718"),
    ],
)
def test_wilson_matches_newcombe(successes: int, trials: int, low: str, high: str) -> None:
    found = wilson(successes, trials, 1.959963984540054)
    assert (f"{found[0]:.4f}", f"{found[1]:.4f}") == (low, high)


def test_few_rows_get_the_t_interval_of_a_normal_mean() -> None:
    """The bootstrap of a mean of n normal values has spread s sqrt((n-1)/n) / sqrt(n); t s / sqrt(n) is wanted.

    t of 7 degrees at 95 %: 2.365, as in any table.
    """
    n, s = 8, 1.7
    ranks = (np.arange(200_000) + 0.5) / 200_000
    spread = s * math.sqrt((n - 1) / n) / math.sqrt(n)
    low, high = percentiles(spread * ndtri(ranks), 0.95, n)
    assert high == pytest.approx(2.365 * s / math.sqrt(n), rel=1e-3)
    assert low == pytest.approx(-high)


def test_a_share_of_the_requests_shrinks_and_moves_the_interval() -> None:
    ranks = (np.arange(100_000) + 0.5) / 100_000
    low, high = percentiles(0.5 + 0.1 * ndtri(ranks), 0.95, 1000, kept=0.25, value=0.6)
    assert (low + high) / 2 == pytest.approx(0.6)
    assert (high - low) / 2 == pytest.approx(
        0.05 * 1.962 * math.sqrt(1000 / 999), rel=1e-3
    )  # t of 999 degrees


def test_equal_requests_are_called_different_one_time_in_twenty() -> None:
    rng = np.random.default_rng(21)
    names = [str(i) for i in range(30) for _ in range(20)]
    found = [alpha(counted(accepted_of(rng, np.full(600, 0.7)), names), resamples=100) for _ in range(60)]
    values = [one.heterogeneity.p_value for one in found if one.heterogeneity is not None]
    assert len(values) == 60
    assert max(values) <= 1.0
    assert 1 <= sum(value < 0.05 for value in values) <= 8


def test_the_linearised_variance_is_that_of_a_mean_for_equal_sizes() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(5.0, 1.0, 50)
    x = np.full(50, 2.0)
    found = ratio_variance(float(y @ y), float(x @ y), float(x @ x), float(y.sum()), float(x.sum()), 50)
    assert found == pytest.approx(np.var(y / 2.0, ddof=1) / 50)


@given(alpha_=st.floats(0.0, 1.0), k=st.integers(1, 32))
def test_alpha_from_the_mean_length_is_the_inverse(alpha_: float, k: int) -> None:
    tokens = math.fsum(alpha_**i for i in range(k + 1))
    back = alpha_from_tokens_per_round(tokens, k)
    assert math.fsum(back**i for i in range(k + 1)) == pytest.approx(tokens, rel=1e-12)


def test_alpha_from_the_mean_length_refuses_the_impossible() -> None:
    for tokens, k in ((0.5, 3), (4.1, 3), (math.nan, 3), (2.0, 0)):
        with pytest.raises(InputError):
            alpha_from_tokens_per_round(tokens, k)


def test_differences_between_requests_are_measured() -> None:
    """Requests drawn from Beta(6, 3): mean 2/3, correlation 1/10; equal requests show none."""
    rng = np.random.default_rng(3)
    names = [str(i) for i in range(400) for _ in range(40)]
    spread = alpha(counted(accepted_of(rng, np.repeat(rng.beta(6, 3, 400), 40)), names)).heterogeneity
    equal = alpha(counted(accepted_of(rng, np.full(16_000, 2 / 3)), names)).heterogeneity
    assert spread is not None
    assert spread.mean == pytest.approx(2 / 3, abs=0.02)
    assert spread.icc == pytest.approx(0.1, abs=0.02)
    assert spread.p_value < 1e-6
    assert equal is not None
    assert equal.icc < 0.003
    assert equal.p_value > 0.01
    assert spread.requests == 400


def test_the_beta_fit_sits_at_the_top_of_its_likelihood() -> None:
    """Against a direct search of the same likelihood, written with factorials, over a fine grid."""
    accepted, tests = np.array([3, 9, 5, 0, 8, 7]), np.array([10, 10, 9, 4, 8, 12])
    clusters = Clusters(
        "requests", tests * 1.0, accepted * 1.0, tests[:, None] * 1.0, accepted[:, None] * 1.0
    )
    found = heterogeneity(clusters)
    assert found is not None

    def likelihood(a: float, b: float) -> float:
        return math.fsum(
            math.fsum(math.log((a + i) / (a + b + i)) for i in range(s))
            + math.fsum(math.log((b + i) / (a + b + s + i)) for i in range(t - s))
            for s, t in zip(accepted.tolist(), tests.tolist(), strict=True)
        )

    best = max(likelihood(a, b) for a in np.linspace(0.5, 6, 100) for b in np.linspace(0.5, 6, 100))
    assert likelihood(found.a, found.b) >= best - 1e-9


def test_pooled_and_per_request_means_differ_and_are_told_apart() -> None:
    """Two kinds of request with as many tokens each: the slow kind has more rounds."""
    accepted = np.array(([4] * 10 + [0] * 50) * 10)
    names = [f"{i}{'fast' if j < 10 else 'slow'}" for i in range(10) for j in range(60)]
    found = alpha(counted(accepted, names))
    assert found.tokens_per_round.pooled == pytest.approx(1 + 4 / 6)
    assert found.tokens_per_round.per_request == pytest.approx(3.0)
    assert any("mean over requests" in text for text in found.warnings)


def test_autocorrelation_of_a_known_chain() -> None:
    """Rounds that repeat the last one with chance 0.6, else are drawn anew: correlation 0.6."""
    rng = np.random.default_rng(11)
    fresh = rng.integers(0, 5, 60_000)
    keep = rng.random(60_000) < 0.6
    chain = fresh.copy()
    for at in range(1, chain.size):
        if keep[at] and at % 600:
            chain[at] = chain[at - 1]
    found = alpha(counted(chain, [str(i // 600) for i in range(chain.size)])).autocorrelation
    assert found is not None
    assert found.overall == pytest.approx(0.6, abs=0.02)
    assert found.within == pytest.approx(0.6, abs=0.02)
    assert found.significant
    assert found.neighbours == 60_000 - 100


def test_best_depth_moves_inside_the_interval_and_says_what_it_costs() -> None:
    accepted, _ = data_set("geometric", 4)
    found = alpha(counted(accepted[:60], NAMES[:60]))
    best = best_depth(found, lambda k: 1.0 + 0.1 * k)
    assert best.k_low is not None
    assert best.k_high is not None
    assert best.k_low <= best.k <= best.k_high
    assert best.regret is not None
    assert best.regret_high is not None
    assert 0.0 <= best.regret <= best.regret_high < 1.0
    tokens = [1.0, *(1.0 + sum(found.survival[:k]) for k in range(1, K + 1))]
    assert best.k == max(range(K + 1), key=lambda k: tokens[k] / (1.0 + 0.1 * k if k else 1.0))
    assert best_depth(found, lambda k: 100.0).k == 0
    with pytest.raises(InputError, match="must be above 0"):
        best_depth(found, lambda k: 0.0)


def test_more_evidence_narrows_range_and_regret() -> None:
    rng = np.random.default_rng(2)
    few, many = (
        best_depth(
            alpha(counted(accepted_of(rng, np.full(n, 0.7)), [str(i // 20) for i in range(n)])),
            lambda k: 1 + 0.1 * k,
        )
        for n in (200, 20_000)
    )
    assert few.regret is not None
    assert many.regret is not None
    assert many.regret < few.regret


@given(a=st.floats(0.05, 50.0), b=st.floats(0.05, 50.0))
def test_the_beta_mixture_is_the_mean_of_powers(a: float, b: float) -> None:
    """Against numerical integration of alpha^i over the Beta law."""
    from scipy.special import betaln

    law = BetaMixture(a, b)
    exact = [math.exp(betaln(a + i, b) - betaln(a, b)) for i in range(1, 7)]
    assert law.survival(6) == pytest.approx(exact, rel=1e-9)
    rates = PerPosition(law.survival(6)).conditional
    assert all(second >= first - 1e-12 for first, second in pairwise(rates))


def test_a_tally_in_pieces_equals_one_in_one_go() -> None:
    accepted, _ = data_set("bursty", 2)
    for names in (NAMES, None):
        whole = counted(accepted, names).parts[0]
        tally = Tally(names is not None)
        for start in range(0, accepted.size, 77):
            piece = slice(start, start + 77)
            tally.add(np.full(accepted[piece].size, K), accepted[piece], names[piece] if names else None)
        parts = tally.part({}, "rounds")
        assert parts.tested == whole.tested
        assert parts.survived == whole.survived
        assert parts.clusters is not None
        assert whole.clusters is not None
        if names:
            assert np.array_equal(parts.clusters.rounds, whole.clusters.rounds)
            assert parts.clusters.products is not None
            assert whole.clusters.products is not None
            assert np.allclose(parts.clusters.products, whole.clusters.products)


def test_many_requests_keep_the_totals_and_a_fair_share_of_rows() -> None:
    rng = np.random.default_rng(0)
    tally = Tally(True, most_cells=20_000)
    total = 0
    for start in range(0, 60_000, 1000):
        accepted = accepted_of(rng, np.full(4000, 0.7))
        tally.add(np.full(4000, K), accepted, [f"request-{start + i % 1000}" for i in range(4000)])
        total += 4000
    part = tally.part({}, "rounds")
    assert part.rounds == total
    assert part.clusters is not None
    assert part.clusters.kept < 1.0
    assert len(part.clusters.rounds) * (K + 1) <= 20_000
    assert len(part.clusters.rounds) == pytest.approx(60_000 * part.clusters.kept, rel=0.1)
    assert set(part.clusters.rounds) == {4.0}  # a request is kept whole
    found = alpha(Evidence((part,)))
    assert found.alpha.low is not None
    assert found.alpha.high is not None
    assert found.naive.high is not None
    assert found.naive.low is not None
    assert found.alpha.high - found.alpha.low < 1.3 * (found.naive.high - found.naive.low)


def test_blocks_stay_few_however_long_the_log() -> None:
    tally = Tally(False)
    rng = np.random.default_rng(0)
    for _ in range(40):
        tally.add(np.full(10_000, K), accepted_of(rng, np.full(10_000, 0.6)))
    clusters = tally.part({}, "rounds").clusters
    assert isinstance(clusters, Clusters)
    assert 200 <= len(clusters.rounds) <= 512
    assert clusters.rounds.sum() == 400_000


def test_ngram_drafts_are_not_described_by_one_alpha(shared: Path) -> None:
    """Measured: n-gram's first position 0.07 to 0.17, later ones 0.56 to 0.96; EAGLE's are nearly equal."""
    data = json.loads((shared / "samples" / "specdecode_bench_derived.json").read_text(encoding="utf-8"))[
        "data"
    ]
    for workload, methods in data.items():
        for method, poor in (("ngram", True), ("eagle", False)):
            histogram = methods[method]["emitted_per_step_histogram_from_1"]
            accepted = np.repeat(np.arange(len(histogram)), histogram)
            found = alpha(counted(accepted, None, k=len(histogram) - 1), resamples=100, describe=False)
            assert found.fit is not None, workload
            assert found.fit.first_is_poor is poor, (workload, method)
            assert any("not described by one alpha" in text for text in found.warnings) is poor
            assert found.tokens_per_round.pooled == pytest.approx(
                methods[method]["mean_acceptance_length_incl_bonus"], abs=1e-4
            )


def test_a_method_that_looks_up_is_named_whatever_its_rates() -> None:
    found = alpha(read_vector('{"survival": [0.7, 0.49], "rounds": 500, "method": "ngram"}'))
    assert any("not described by one alpha" in text for text in found.warnings)


def read_vector(text: str) -> Evidence:
    """Evidence from one JSON object."""
    import io

    return read(io.BytesIO(text.encode()))
