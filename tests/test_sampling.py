"""Exact verification by algebra, by enumeration and by a million samples; lossy rules by their distortion."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from specmodel import sampling
from specmodel.errors import InputError
from specmodel.sampling import candidate_set, exact
from specmodel.verification import lossy
from specmodel.verification.laws import (
    Array,
    entropy,
    greedy,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    kl_divergence,
    law,
    law_from_logits,
    shaped,
    tempered,
    total_variation,
)
from specmodel.verification.samplers import draw, sample_candidates, sample_rounds, sample_rule

P, Q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
SAMPLES = 1_000_000
SMALLEST_P_VALUE = 1e-6


@st.composite
def laws(draw: st.DrawFn, tokens: int | None = None) -> Array:
    """A law, often with exact zeros, ties, and masses down to 1e-12."""
    size = draw(st.integers(1, 8)) if tokens is None else tokens
    weight = st.sampled_from([0.0, 1e-12, 0.5, 1.0]) | st.floats(0.0, 1.0)
    weights = np.array(draw(st.lists(weight, min_size=size, max_size=size)))
    weights[draw(st.integers(0, size - 1))] += 1.0
    return np.asarray(weights / weights.sum())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    size = draw(st.integers(1, 8))
    return draw(laws(size)), draw(laws(size))


def random_pairs(count: int, seed: int) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(seed)
    found = []
    for case in range(count):
        size = int(rng.integers(2, 13))
        p, q = rng.dirichlet(np.full(size, 0.7)), rng.dirichlet(np.full(size, 0.7))
        if case % 4 == 0:  # supports that differ
            p[0], q[-1] = 0.0, 0.0
        found.append((p / p.sum(), q / q.sum()))
    return found


def agrees(tokens: Any, p: Array) -> bool:
    """Whether sampled tokens follow p: nothing outside its support, chi-square inside."""
    counts = np.bincount(tokens, minlength=p.size)
    expected = p * len(tokens)
    assert counts[p == 0.0].sum() == 0
    likely = expected >= 5.0
    if likely.sum() < 2:
        return True
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    kept = wanted > 0.0
    return bool(
        chisquare(observed[kept], wanted[kept] * (observed.sum() / wanted.sum())).pvalue > SMALLEST_P_VALUE
    )


# The two-branch table ------------------------------------------------------------------------------------


def test_the_two_branches_in_exact_arithmetic() -> None:
    p, q = (
        [Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)],
        [Fraction(4, 10), Fraction(4, 10), Fraction(2, 10)],
    )
    overlap = sum(map(min, p, q))
    left = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
    table = exact([float(x) for x in p], [float(x) for x in q])
    assert table.accept == pytest.approx([float(min(Fraction(1), a / b)) for a, b in zip(p, q, strict=True)])
    assert table.overlap == pytest.approx(float(overlap))
    assert table.residual == pytest.approx([float(x / sum(left)) for x in left])
    assert table.accepted_mass + table.corrected_mass == pytest.approx([float(x) for x in p])
    assert table.preserved


def test_the_answer_as_json() -> None:
    answer = exact(P, Q).to_dict()
    assert {"accept", "residual", "emitted", "overlap", "distance", "preserved", "rule"} <= set(answer)
    assert answer["residual"] == [1.0, 0.0, 0.0]
    assert isinstance(answer["overlap"], float)


@given(pair=pairs())
def test_the_emitted_law_is_the_target(pair: tuple[Array, Array]) -> None:
    p, q = pair
    table = exact(p, q)
    assert table.emitted == pytest.approx(p, abs=1e-12)
    assert table.preserved
    assert float(table.divergence) == pytest.approx(0.0, abs=1e-9)
    for values in (table.accept, table.residual, table.emitted):
        assert np.isfinite(values).all()
        assert ((values >= 0.0) & (values <= 1.0 + 1e-12)).all()
    assert sampling.emitted(p, q) == pytest.approx(table.emitted, abs=1e-15)


@given(pair=pairs())
def test_overlap_is_one_minus_the_total_variation(pair: tuple[Array, Array]) -> None:
    p, q = pair
    assert float(sampling.overlap(p, q)) == pytest.approx(1.0 - float(total_variation(p, q)), abs=1e-12)
    assert float(sampling.overlap(p, q)) == pytest.approx(float(sampling.overlap(q, p)), abs=1e-12)


def test_no_rule_of_the_accept_and_replace_kind_accepts_more() -> None:
    """Optimal transport: no coupling of p and q lets two tokens agree more often (linear program)."""
    from scipy.optimize import linprog

    for p, q in random_pairs(5, 3):
        size = p.size
        rows = np.kron(np.eye(size), np.ones(size))
        columns = np.kron(np.ones(size), np.eye(size))
        best = linprog(
            -np.eye(size).ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([p, q]), bounds=(0, 1)
        )
        assert float(sampling.overlap(p, q)) == pytest.approx(-best.fun, abs=1e-8)


def test_laws_come_in_batches() -> None:
    p = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    table = exact(p, Q)
    assert table.accept.shape == (2, 3)
    assert table.overlap == pytest.approx([0.9, 0.4])
    for row in range(2):
        assert table.residual[row] == pytest.approx(exact(p[row], Q).residual)


@pytest.mark.parametrize("temperature", [0.0, 1e-300])
def test_temperature_zero_is_token_for_token_identity(temperature: float) -> None:
    table = exact(P, Q, temperature=temperature)
    assert table.emitted.tolist() == [1.0, 0.0, 0.0]
    assert table.accept.tolist() == [1.0, 0.0, 0.0]
    assert table.overlap == pytest.approx(0.4)


# Shaping -------------------------------------------------------------------------------------------------


def test_temperature_is_the_softmax_of_scaled_logits() -> None:
    logits = np.array([2.0, 0.5, -1.0, -np.inf])
    assert tempered(law_from_logits(logits), 0.5) == pytest.approx(law_from_logits(logits / 0.5))
    assert tempered(P, 1.0) == pytest.approx(P)


def test_shaping_by_hand() -> None:
    p = [0.4, 0.3, 0.2, 0.1]
    assert keep_top_k(p, 2) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert keep_top_k([0.25] * 4, 2).tolist() == [0.5, 0.5, 0, 0]
    assert keep_top_p(p, 0.7) == pytest.approx([4 / 7, 3 / 7, 0, 0])  # 0.4 + 0.3 reaches 0.7: no third token
    assert keep_top_p(p, 0.71) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert keep_top_p(p, 1e-300) == pytest.approx([1, 0, 0, 0])
    assert keep_min_p(p, 0.5) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    # Top-k renormalises before top-p counts: 4/7 alone already holds 0.55.
    assert shaped(p, top_k=2, top_p=0.55) == pytest.approx([1, 0, 0, 0])


@given(p=laws(), k=st.integers(1, 9), mass=st.floats(0.01, 1.0), share=st.floats(0.0, 1.0))
def test_shaping_keeps_the_likeliest_and_their_proportions(
    p: Array, k: int, mass: float, share: float
) -> None:
    for kept in (keep_top_k(p, k), keep_top_p(p, mass), keep_min_p(p, share)):
        assert kept.sum() == pytest.approx(1.0)
        assert kept.argmax() == p.argmax()
        inside = kept > 0.0
        assert p[inside] / p[inside].sum() == pytest.approx(kept[inside])
        assert p[inside].min() >= p[~inside].max(initial=0.0) - 1e-15
    assert (keep_top_k(p, k) > 0.0).sum() <= k
    assert p[keep_top_p(p, mass) > 0.0].sum() >= mass - 1e-9


def test_distances_by_hand() -> None:
    assert float(total_variation([1, 0], [0, 1])) == 1.0
    assert float(kl_divergence([1, 0], [0.5, 0.5])) == pytest.approx(math.log(2))
    assert float(kl_divergence([0.5, 0.5], [1, 0])) == math.inf
    wanted = 0.5 * (math.log(0.25) - math.log(1e-310))
    assert float(kl_divergence([0.5, 0.5], [1e-310, 1.0])) == pytest.approx(wanted)
    assert float(entropy([0.25] * 4)) == pytest.approx(math.log(4))


# Several candidates --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    pair=pairs(),
    candidates=st.integers(1, 3),
    how=st.sampled_from(["without replacement", "with replacement", "top"]),
)
def test_candidate_sets_keep_the_law_however_drawn(
    pair: tuple[Array, Array], candidates: int, how: Any
) -> None:
    p, q = pair
    candidates = min(candidates, p.size)
    found = candidate_set(p, q, candidates, drawn=how)
    assert found.emitted == pytest.approx(p, abs=1e-9)
    assert found.accept_by_rank.sum() == pytest.approx(found.overlap, abs=1e-9)
    if how != "top":
        assert found.accept_by_rank[0] == pytest.approx(float(sampling.overlap(p, q)))


def test_candidates_without_replacement_in_exact_arithmetic() -> None:
    """Every ordered pair of candidates and both branches of both tests, in fractions."""
    p = [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]
    q = [Fraction(1, 5), Fraction(1, 5), Fraction(3, 5)]

    def leftover(r: list[Fraction], d: list[Fraction]) -> list[Fraction]:
        left = [max(Fraction(0), a - b) for a, b in zip(r, d, strict=True)]
        return [x / sum(left) for x in left]

    out, rank = [Fraction(0)] * 3, [Fraction(0)] * 2
    for first, second in itertools.permutations(range(3), 2):
        rest = [Fraction(0) if x == first else q[x] / (1 - q[first]) for x in range(3)]
        weight = q[first] * rest[second]
        passed = min(Fraction(1), p[first] / q[first])
        out[first] += weight * passed
        rank[0] += weight * passed
        r = leftover(p, q)
        passed_too = min(Fraction(1), r[second] / rest[second])
        out[second] += weight * (1 - passed) * passed_too
        rank[1] += weight * (1 - passed) * passed_too
        last = leftover(r, rest) if r != rest else r
        for token in range(3):
            out[token] += weight * (1 - passed) * (1 - passed_too) * last[token]
    assert out == p
    found = candidate_set([float(x) for x in p], [float(x) for x in q], 2)
    assert found.accept_by_rank == pytest.approx([float(x) for x in rank])


def test_top_candidates_exclude_each_other() -> None:
    """Likeliest tokens of the draft: each is taken with the target's own probability of it."""
    found = candidate_set(P, [0.1, 0.6, 0.3], 2, drawn="top")
    assert found.accept_by_rank == pytest.approx([0.3, 0.2])


def test_a_draft_that_runs_out_of_candidates_stops() -> None:
    found = candidate_set([0.2, 0.3, 0.5], [1.0, 0.0, 0.0], 3)
    assert found.accept_by_rank == pytest.approx([0.2, 0.0, 0.0])
    assert found.emitted == pytest.approx([0.2, 0.3, 0.5])
    tokens = sample_candidates([0.2, 0.3, 0.5], [1.0, 0.0, 0.0], 3, 20_000, 1).tokens
    assert agrees(tokens, np.array([0.2, 0.3, 0.5]))


# A million samples ---------------------------------------------------------------------------------------


def test_a_million_samples_of_chain_and_candidates_follow_the_target() -> None:
    for case, (p, q) in enumerate(random_pairs(20, 2024)):
        several = sample_candidates(p, q, min(3, p.size), SAMPLES, case)
        assert agrees(several.tokens, p), (case, "candidates")
        chain = sample_rounds(np.stack([p, q, p]), np.stack([q, p]), SAMPLES, case)
        assert agrees(chain.tokens[:, 0], p), (case, "first token")
        # Given that the first draft passed, the next emitted token follows the target's second law.
        assert agrees(chain.tokens[chain.accepted >= 1, 1], q), (case, "second token")
        assert agrees(chain.tokens[chain.accepted == 2, 2], p), (case, "bonus token")
        share = float(np.mean(chain.accepted >= 1))
        chance = float(sampling.overlap(p, q))
        assert share == pytest.approx(chance, abs=6.0 * math.sqrt(0.25 / SAMPLES))


def test_the_naive_scheme_is_caught() -> None:
    """The same test that every exact sampler passes refuses the top-1 check with its fallback."""
    caught = 0
    for case, (p, q) in enumerate(random_pairs(20, 2024)):
        naive = sample_rule(lossy.top_one(p, q), 10_000, case)
        honest = sample_rule(exact(p, q), 10_000, case)
        assert agrees(honest.tokens, p)
        caught += not agrees(naive.tokens, p)
    assert caught == 20


def test_a_chain_whose_laws_depend_on_the_token_before() -> None:
    """The joint law of two emitted tokens is the target's Markov chain, not only each one's own law."""
    rng = np.random.default_rng(5)
    target = rng.dirichlet(np.ones(4), size=(3, 4))
    draft = rng.dirichlet(np.ones(4), size=(2, 4))
    rounds = sample_rounds(target, draft, 400_000, 6, start=2)
    assert agrees(rounds.tokens[:, 0], target[0, 2])
    both = rounds.tokens[rounds.accepted >= 1][:, :2]
    for first in range(4):
        assert agrees(both[both[:, 0] == first, 1], target[1, first])
    padded = rounds.tokens == -1
    assert (padded.sum(axis=1) == 2 - rounds.accepted).all()


def test_a_tree_of_candidates_accepts_as_often_as_its_acceptances_say() -> None:
    p, q = random_pairs(1, 11)[0]
    one = candidate_set(p, q, 2)
    rounds = sample_rounds(np.stack([p, p, p]), np.stack([q, q]), 300_000, 7, candidates=2)
    assert float(rounds.accepted.mean()) == pytest.approx(one.overlap + one.overlap**2, abs=5e-3)


@pytest.mark.parametrize("how", ["without replacement", "with replacement"])
def test_each_candidate_is_taken_as_often_as_its_rank_says(how: Any) -> None:
    """Both ways of drawing emit p; only the acceptances by rank tell them apart."""
    p, q = random_pairs(1, 11)[0]
    found = candidate_set(p, q, 3, drawn=how)
    ranks = sample_candidates(p, q, 3, 300_000, 8, replacement=how == "with replacement").rank
    shares = [float(np.mean(ranks == rank)) for rank in range(3)]
    assert shares == pytest.approx(found.accept_by_rank.tolist(), abs=5e-3)


class AlmostOne(np.random.Generator):
    """Draws the largest number below 1 every time."""

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.full(size, np.nextafter(1.0, 0.0))


def test_rounding_never_leaves_a_row() -> None:
    """Row 1 plus a number just below 1 is 2 in double precision: still a token of row 1, and a possible one."""
    table = np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    rows = np.array([0, 1, 2])
    assert draw(table, rows, AlmostOne(np.random.PCG64())).tolist() == [1, 1, 2]


def test_samples_are_seeded() -> None:
    first, second = (sample_candidates(P, Q, 2, 1000, 9).tokens for _ in range(2))
    assert (first == second).all()
    assert (first != sample_candidates(P, Q, 2, 1000, 10).tokens).any()


@given(p=laws(), seed=st.integers(0, 2**32))
def test_nothing_of_probability_zero_is_drawn(p: Array, seed: int) -> None:
    table = np.stack([p, p[::-1]])
    rows = np.arange(200) % 2
    tokens = draw(table, rows, seed)
    assert (table[rows, tokens] > 0.0).all()


def test_two_rules_with_the_same_law_are_told_apart_by_acceptance_only() -> None:
    """SGLang's target-only test at thresholds 1 is exact as well, but accepts less than the overlap."""
    p, q = np.array(P), np.array(Q)
    one, other = sample_rule(exact(p, q), 50_000, 1), sample_rule(lossy.relaxed(p, q), 50_000, 2)
    counts = np.stack([np.bincount(tokens, minlength=3) for tokens in (one.tokens, other.tokens)])
    assert chi2_contingency(counts).pvalue > SMALLEST_P_VALUE
    assert one.accepted.mean() == pytest.approx(0.9, abs=0.01)
    assert other.accepted.mean() == pytest.approx(0.36, abs=0.015)


# Lossy rules ---------------------------------------------------------------------------------------------


def test_typical_acceptance_by_hand() -> None:
    """Uniform over four: exp(-H) = 1/4, the bar is min(0.09, 0.3/4) = 0.075 and everything passes."""
    p, q = [0.25] * 4, [0.7, 0.1, 0.1, 0.1]
    table = exact(p, q, rule="typical")
    assert table.accept.tolist() == [1.0] * 4
    assert table.emitted == pytest.approx(q)  # what the draft says is what comes out
    assert float(table.distance) == pytest.approx(0.45)
    assert not table.preserved
    sharp = exact([0.97, 0.01, 0.01, 0.01], q, rule="typical")
    assert sharp.accept.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert sharp.emitted == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_top_one_collapses_onto_the_likeliest_token() -> None:
    table = exact(P, Q, rule="top-1")
    assert table.emitted.tolist() == [1.0, 0.0, 0.0]
    assert float(table.distance) == pytest.approx(0.5)
    assert float(table.divergence) == pytest.approx(math.log(2.0))
    softer = exact(P, Q, rule="top-1", fallback="sample")
    assert softer.emitted == pytest.approx([0.4 + 0.6 * 0.5, 0.6 * 0.3, 0.6 * 0.2])


def test_relaxed_thresholds_by_hand() -> None:
    table = exact(P, Q, rule="relaxed", threshold_acc=0.5)
    assert table.accept == pytest.approx([1.0, 0.6, 0.4])
    # Refused: B 0.4 x 0.4, C 0.2 x 0.6; each replaced by p without it.
    out = [0.4 + 0.16 * 0.5 / 0.7 + 0.12 * 0.5 / 0.8, 0.24 + 0.12 * 0.3 / 0.8, 0.08 + 0.16 * 0.2 / 0.7]
    assert table.emitted == pytest.approx(out)
    always = exact(P, Q, rule="relaxed", threshold_single=0.3)
    assert always.accept == pytest.approx([1.0, 1.0, 0.2])


@given(pair=pairs())
def test_relaxed_thresholds_of_one_are_exact(pair: tuple[Array, Array]) -> None:
    p, q = pair
    table = lossy.relaxed(p, q)
    assert table.preserved
    assert float(table.overlap) <= float(sampling.overlap(p, q)) + 1e-12


@given(pair=pairs(), rule=st.sampled_from(["typical", "top-1", "top-n", "relaxed"]), sampled=st.booleans())
def test_every_lossy_rule_emits_a_law_the_target_allows(
    pair: tuple[Array, Array], rule: str, sampled: bool
) -> None:
    p, q = pair
    options: dict[str, Any] = {"relaxed": {"threshold_acc": 0.4, "threshold_single": 0.6}}.get(rule, {})
    if rule != "relaxed" and sampled:
        options = {"fallback": "sample"}
    table = exact(p, q, rule=rule, **options)
    assert table.emitted.sum() == pytest.approx(1.0)
    assert (table.emitted[p == 0.0] <= 1e-15).all()
    assert 0.0 <= float(table.distance) <= 1.0
    assert math.isfinite(float(table.divergence))
    # Pinsker's inequality ties the two distances together.
    assert float(table.distance) <= math.sqrt(float(table.divergence) / 2.0) + 1e-7


def test_lossy_rules_sample_what_they_say() -> None:
    for rule in ("typical", "top-1", "top-n", "relaxed"):
        options: dict[str, Any] = {"threshold_acc": 0.5} if rule == "relaxed" else {}
        table = exact([0.4, 0.3, 0.2, 0.06, 0.04], [0.1, 0.2, 0.3, 0.2, 0.2], rule=rule, **options)
        assert agrees(sample_rule(table, 200_000, 4).tokens, table.emitted)


# Bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "said"),
    [
        ([], [], "at least one token"),
        ([0.5, 0.6], [0.5, 0.5], "sum to 1"),
        ([1.5, -0.5], [0.5, 0.5], "negative"),
        ([1e308, 1e308], [0.5, 0.5], "above 1"),
        ([math.nan, 1.0], [0.5, 0.5], "finite"),
        ([math.inf, 1.0], [0.5, 0.5], "finite"),
        (["a", "b"], [0.5, 0.5], "numbers"),
        ([[0.5, 0.5], [1.0]], [0.5, 0.5], "numbers"),
        (1.0, 1.0, "at least one token"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "vocabulary of p"),
        ([[0.5, 0.5]] * 2, [[0.5, 0.5]] * 3, "shape"),
    ],
)
def test_what_is_not_a_law_is_refused_in_one_line(p: Any, q: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        exact(p, q)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "exakt"},
        {"rule": "exact", "epsilon": 0.1},
        {"rule": "typical", "threshold_acc": 0.5},
        {"rule": "typical", "epsilon": 2.0},
        {"rule": "typical", "fallback": "none"},
        {"rule": "relaxed", "threshold_acc": 0.0},
        {"rule": "top-n", "n": 0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"min_p": 1.5},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        exact(P, Q, **options)


def test_samplers_refuse_bad_shapes() -> None:
    with pytest.raises(InputError, match="one position less"):
        sample_rounds([P], [Q], 10, 1)
    with pytest.raises(InputError, match="rounds"):
        sample_candidates(P, Q, 1, 0, 1)
    with pytest.raises(InputError, match="candidates"):
        candidate_set(P, Q, 4)
    with pytest.raises(InputError, match="4 million"):
        candidate_set(np.full(1000, 1e-3), np.full(1000, 1e-3), 3)
    with pytest.raises(InputError, match="one law at a time"):
        candidate_set([P, P], Q, 2)


def test_a_law_is_scaled_to_sum_to_one_exactly() -> None:
    assert law([0.3333333, 0.3333333, 0.3333334]).sum() == pytest.approx(1.0, abs=1e-16)
    assert greedy([0.4, 0.4, 0.2]).tolist() == [1.0, 0.0, 0.0]
