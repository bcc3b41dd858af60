"""Draft methods: what they cost, what they add, and whether assumed acceptance is what its source says."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel import rounds
from specmodel.acceptance import Geometric, PerPosition, tokens_per_round
from specmodel.architecture import Architecture, Layer, Mtp
from specmodel.catalog import model
from specmodel.drafters import formulas as draft_formulas
from specmodel.drafters.combined import Hybrid, Mixture, Pipelined
from specmodel.drafters.sources import DraftModel, EarlyExit, Lookahead, Lookup, Retrieval, SparseSelf
from specmodel.drafters.trained import Eagle, Eagle2, Eagle3, Medusa, MtpModules, Parallel
from specmodel.drafting import METHODS, compare, draft, runnable
from specmodel.errors import InputError
from specmodel.layers.feed_forward import Dense
from specmodel.layers.mixers import Attention
from specmodel.model import Model
from specmodel.tree_search import best_tree


def textbook(modules: int = 0) -> Architecture:
    """A target of square matrices, one KV head per head: 16 d^2 per layer, for heads have gated layers."""
    layer = Layer(Attention(32, 32, 128, 128), Dense(4 * 4096))
    mtp = Mtp(modules, layer, 4096) if modules else None
    return Architecture("textbook", "llama", 4096, 32_000, ((32, layer),), tied=False, mtp=mtp)


TARGET = textbook(modules=2)
EVERY = [draft(name) for name in METHODS]


def named(method: Any) -> str:
    return str(method.method)


# Every method --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", EVERY, ids=named)
def test_not_drafting_costs_and_yields_one_plain_step(method: Any) -> None:
    first = method.depths()[0]
    assert (first.k, first.tokens_per_round, first.round_cost, first.speedup) == (0, 1.0, 1.0, 1.0)
    assert method.width(0) == 1
    assert method.draft_cost(0) == 0.0
    assert method.passes(0) == 0


@pytest.mark.parametrize("method", EVERY, ids=named)
def test_rounds_grow_with_k(method: Any) -> None:
    rows = method.depths(max_k=16)
    assert [row.k for row in rows] == list(range(len(rows)))
    for row, after in itertools.pairwise(rows):
        assert 1.0 <= row.tokens_per_round <= after.tokens_per_round <= after.k + 1.0
        assert row.round_cost <= after.round_cost or row.k == 0
        assert method.width(after.k) >= after.k + 1
        assert method.passes(after.k) <= after.k


@pytest.mark.parametrize("method", EVERY, ids=named)
def test_every_method_says_where_its_acceptance_comes_from(method: Any) -> None:
    assumed = method.assumed
    assert len(assumed.source) > 20
    assert ("illustration" in assumed.source or "assumed" in assumed.source) == assumed.illustrative
    assert method.extra_bytes(TARGET, context=4096, batch=8) >= 0.0


def test_only_typical_acceptance_is_lossy() -> None:
    assert [method.method for method in EVERY if not method.exact] == ["medusa-typical"]
    assert not Hybrid(miss=METHODS["medusa-typical"]()).exact  # type: ignore[call-arg]
    assert not Pipelined(draft=METHODS["medusa-typical"]()).exact  # type: ignore[call-arg]


# Lessons -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "printed", "best_k", "best"),
    [
        (Retrieval(per_token=True), "1.88", 6, 1.904390595009597),
        (Lookup(per_token=True), "3.47", 22, 5.265983275180632),
        (EarlyExit(), "1.06", 1, 1.24),
    ],
    ids=lambda value: value.method if hasattr(value, "method") else None,
)
def test_the_lesson_at_k_4_and_at_the_best_k(method: Any, printed: str, best_k: int, best: float) -> None:
    rows = method.depths()
    assert f"{rows[4].speedup:.2f}" == printed
    assert rounds.best(rows).k == best_k
    assert rounds.best(rows).speedup == pytest.approx(best)


def test_a_look_up_is_paid_once_per_round() -> None:
    rows = Lookup().depths()
    assert {row.round_cost for row in rows[1:]} == {1.002}
    assert Parallel(ratio=0.05).depths()[4].round_cost == pytest.approx(1.05)
    assert Medusa(ratio=0.01).depths()[4].round_cost == pytest.approx(1.01)


@pytest.mark.parametrize(
    "method", [Eagle(ratio=0.03), DraftModel(ratio=0.1), MtpModules(ratio=0.05)], ids=named
)
@given(alpha=st.floats(0.0, 1.0), k=st.integers(1, 16))
def test_chains_follow_the_textbook_speedup(method: Any, alpha: float, k: int) -> None:
    row = method.depths(Geometric(alpha), max_k=k)[-1]
    assert row.speedup == pytest.approx(float(rounds.speedup(alpha, k, method.ratio)))


def test_verification_that_costs_more_lowers_the_best_depth() -> None:
    flat = rounds.best(Eagle().depths(Geometric(0.8)))
    steep = rounds.best(Eagle().depths(Geometric(0.8), verify_ratio=lambda width: 1.0 + 0.3 * (width - 1)))
    assert steep.k < flat.k


def test_depth_ends_with_the_method_or_the_evidence() -> None:
    assert len(MtpModules(modules=2, stacked=True).depths(Geometric(0.8))) == 3
    assert len(MtpModules(modules=2).depths(Geometric(0.8), max_k=9)) == 10
    assert len(Medusa(heads=3).depths(Geometric(0.8))) == 4
    assert len(Eagle().depths(PerPosition((0.7, 0.5)))) == 3
    assert Lookahead(window=15, ngram=5, guesses=15).width(4) == 120  # as the authors run a 7B target


# Combined methods ----------------------------------------------------------------------------------------


@given(share=st.floats(0.0, 1.0), k=st.integers(1, 8))
def test_a_hybrid_is_the_mean_of_rounds(share: float, k: int) -> None:
    """Averages of tokens and of costs over many rounds of both kinds, then their ratio."""
    hit, miss = Lookup(ratio=0.01), DraftModel(ratio=0.2)
    law = Mixture(share, Geometric(0.9), Geometric(0.6))
    row = Hybrid(hit=hit, miss=miss, hit_share=share, charge_failed=False).depths(law, max_k=k)[-1]
    tokens = share * tokens_per_round(0.9, k) + (1 - share) * tokens_per_round(0.6, k)
    cost = share * (1 + 0.01) + (1 - share) * (1 + 0.2 * k)
    assert row.speedup == pytest.approx(float(tokens) / cost)


def test_a_hybrid_that_never_or_always_hits() -> None:
    hit, miss = Lookup(), Eagle()
    assert Hybrid(hit=hit, miss=miss, hit_share=1.0).draft_cost(4) == pytest.approx(hit.draft_cost(4))
    never = Hybrid(hit=hit, miss=miss, hit_share=0.0)
    assert never.draft_cost(4) == pytest.approx(hit.draft_cost(4) + miss.draft_cost(4))
    assert never.width(4) == miss.width(4)
    assert never.extra_parameters(TARGET) == miss.extra_parameters(TARGET)


@given(alpha=st.floats(0.0, 1.0), k=st.integers(1, 12), c=st.floats(0.0, 0.5))
def test_pipelines_stay_within_their_bounds(alpha: float, k: int, c: float) -> None:
    inner, law = DraftModel(ratio=c), Geometric(alpha)
    bounds = draft_formulas.pipeline_bounds(alpha, k, c)
    reused = Pipelined(draft=inner).depths(law, max_k=k)[-1].speedup
    perfect = Pipelined(draft=inner, overlap="perfect").depths(law, max_k=k)[-1].speedup
    assert reused == pytest.approx(bounds.reused)
    assert perfect == pytest.approx(bounds.perfect)
    assert bounds.sequential <= reused * (1 + 1e-12)
    assert reused <= perfect * (1 + 1e-12)
    assert inner.depths(law, max_k=k)[-1].speedup == pytest.approx(bounds.sequential)


# What is assumed is what was published -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "k", "printed"),
    [
        (DraftModel(), 4, "2.75"),
        (SparseSelf(), 3, "2.82"),
        (Eagle2(), 6, "4.35"),
        (draft("eagle3"), 5, "3.554"),
        (Medusa(), 4, "2.58"),
        (Lookahead(), 4, "1.64"),
        (Parallel(), 5, "2.37"),
    ],
    ids=lambda value: value.method if hasattr(value, "method") else None,
)
def test_assumed_acceptance_gives_the_published_tokens(method: Any, k: int, printed: str) -> None:
    digits = len(printed) - 2
    assert f"{method.tokens_per_round(k):.{digits}f}" == printed


def test_published_tokens_are_in_the_published_set(shared: Path) -> None:
    with (shared / "published" / "speedups.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def found(**wanted: str) -> set[float]:
        return {
            round(float(row["accept_len"]), 3)
            for row in rows
            if row["accept_len"] and all(row[name].startswith(value) for name, value in wanted.items())
        }

    assert 2.75 in found(source="MoESD", draft="Qwen2-0.5B", k="4", dataset="mtbench", temperature="0")
    assert 2.82 in found(
        source="MagicDec", target_model="Llama-3.1-8B", gpu="H100", k="3", batch="32", context="32000"
    )
    assert 4.35 in found(source="Spec-Bench", method="EAGLE2")
    assert 1.64 in found(source="Spec-Bench", method="Lookahead")
    assert 3.554 in found(
        source="SpecForge", target_model="Llama-3.1-8B", k="5", dataset="mtbench", method="EAGLE-3 chain"
    )
    assert 2.58 in found(source="Hydra", method="Medusa tree", target_model="Vicuna-7B")


def test_medusa_levels_are_those_of_the_tree_that_yields_what_was_measured() -> None:
    masses = np.array([0.55, 0.22, 0.12, 0.06]) * 0.72783
    tree = best_tree(masses, 63, 4)
    reached, levels = tree.path_probabilities(masses), np.array(tree.levels)
    law = Medusa().assumed.law
    assert law.survival(4) == pytest.approx(
        [reached[levels == level].sum() for level in range(1, 5)], abs=2e-5
    )
    assert tree.width == Medusa().width(4)


# Weights and caches --------------------------------------------------------------------------------------


def test_weights_and_caches_by_method() -> None:
    layer = 16 * 4096**2
    assert Eagle().extra_parameters(TARGET) == layer + 2 * 4096**2
    # Three fused states, q, k and v twice as wide, a head over 32,000 tokens, four norms.
    wider = layer + 3 * 4096**2
    assert Eagle3().extra_parameters(TARGET) == wider + 3 * 4096**2 + 32_000 * 4096 + 4 * 4096
    assert MtpModules(modules=2).extra_parameters(TARGET) == 2 * (layer + 2 * 4096**2 + 3 * 4096)
    assert Medusa(heads=2).extra_parameters(TARGET) == 2 * (4096**2 + 4096 + 4096 * 32_000)
    assert Lookup().extra_bytes(TARGET, context=4096, batch=64) == 0.0
    assert Eagle().extra_kv_elements(TARGET, 100) == 2 * 4096 * 100
    assert MtpModules(modules=2).extra_kv_elements(TARGET, 100) == 2 * 2 * 4096 * 100
    # A budget of 512 tokens in every layer, never more than there is.
    assert SparseSelf(budget=512).extra_kv_elements(TARGET, 32_000) == 32 * 2 * 4096 * 512
    assert SparseSelf(budget=512).extra_kv_elements(TARGET, 100) == 32 * 2 * 4096 * 100


def test_a_draft_model_is_counted_from_its_architecture() -> None:
    small = replace(TARGET, layers=((2, TARGET.layers[0][1]),))
    own = DraftModel(architecture=small)
    assert own.extra_parameters(TARGET) == small.parameters
    cache = 2 * 2 * 4096 * 100
    assert own.extra_bytes(TARGET, context=100, batch=3) == 2.0 * small.parameters + 3 * cache * 2.0
    assert own.missing(TARGET) is None
    assert "vocabulary" in str(DraftModel(architecture=replace(small, vocabulary=99)).missing(TARGET))


def test_memory_takes_arrays_of_batch_and_context() -> None:
    batch, context = np.array([1.0, 8.0])[:, None], np.array([100.0, 1000.0, 8000.0])
    for method in runnable(TARGET):
        grid = method.extra_bytes(TARGET, context=context, batch=batch)
        assert np.broadcast_to(grid, (2, 3))[1, 2] == method.extra_bytes(TARGET, context=8000.0, batch=8.0)


def test_what_a_target_cannot_run_is_said() -> None:
    llama = model("llama-3.1-8b")
    assert isinstance(llama, Model)
    assert "no MTP modules" in str(MtpModules().missing(llama.architecture))
    assert {method.method for method in runnable(llama.architecture)} == set(METHODS) - {"mtp"}
    with pytest.raises(InputError, match="no MTP modules"):
        compare([MtpModules()], llama.architecture)
    with pytest.raises(InputError, match="2 MTP modules, not 3"):
        MtpModules(modules=3).extra_parameters(TARGET)


# Side by side --------------------------------------------------------------------------------------------


def test_compare_ranks_and_says_what_was_measured() -> None:
    measured = {"eagle": PerPosition((0.7, 0.5, 0.3))}
    answers = compare(EVERY, TARGET, laws=measured, context=2048, batch=4)
    assert len(answers) == len(METHODS)
    speedups = [answer.speedup for answer in answers]
    assert speedups == sorted(speedups, reverse=True)
    by_method = {answer.method: answer for answer in answers}
    assert by_method["eagle"].source == "measured"
    assert by_method["eagle"].tokens_per_round == pytest.approx(2.5)
    assert by_method["lookup"].illustrative
    assert by_method["lookup"].speedup_per_gb is None
    per_gb = by_method["eagle"].speedup / (by_method["eagle"].extra_bytes / 1e9)
    assert by_method["eagle"].speedup_per_gb == pytest.approx(per_gb)


def test_compare_at_one_depth_reproduces_the_lesson_ranking() -> None:
    laws = {
        "lookup": Geometric(0.82),
        "retrieval": Geometric(0.5),
        "draft-model": Geometric(0.6),
        "early-exit": Geometric(0.55),
    }
    methods = [Retrieval(per_token=True), EarlyExit(), DraftModel(), Lookup(per_token=True)]
    answers = compare(methods, TARGET, laws=laws, k=4)
    assert [answer.method for answer in answers] == ["lookup", "retrieval", "draft-model", "early-exit"]
    assert {answer.k for answer in answers} == {4}


# Bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: draft("eagel"),
        lambda: DraftModel(ratio=-0.1),
        lambda: DraftModel(ratio=float("nan")),
        lambda: EarlyExit(exit_layer=40, layers=32),
        lambda: Hybrid(hit_share=1.5),
        lambda: Pipelined(overlap="always"),  # type: ignore[arg-type]
        lambda: Lookahead(ngram=1).width(1),
        lambda: Medusa(heads=0).extra_parameters(TARGET),
        lambda: draft_formulas.pipeline_bounds(0.5, 4, -1.0),
        lambda: draft_formulas.token_bits(0),
    ],
)
def test_bad_input_is_refused_in_one_line(attempt: Any) -> None:
    with pytest.raises(InputError) as caught:
        attempt()
    assert "\n" not in str(caught.value)


def test_a_name_close_to_a_method_is_suggested() -> None:
    with pytest.raises(InputError, match="eagle"):
        draft("eagel")
