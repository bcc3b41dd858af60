"""Public reports on acceptance: what their numbers imply. Each check is a test or stands in `NEEDS_PASSES`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from specmodel import rounds
from specmodel.acceptance import Geometric, PerPosition, expected_tokens, tokens_per_round
from specmodel.errors import InputError
from specmodel.evidence import (
    alpha,
    best_depth,
    cross_at,
    from_summary,
    implied_round_cost,
    pays_until,
    read,
    tokens_at,
)
from specmodel.evidence.estimate import Estimate

# Checks that need timed passes or a plan, and are tested with those.
NEEDS_PASSES = {
    "C03-c": "throughput ratio of k = 2 and k = 4 for one user: needs the verification pass of a mixture of experts",
    "C03-d": "throughput ratio for eight users: the same",
    "C03-e": "best k against concurrency: the same",
    "C10-d": "warning about the draft's max_position_embeddings: needs the planned context and the draft's config",
}


@pytest.fixture(scope="module")
def published(shared: Path) -> dict[str, dict[str, Any]]:
    """The cases by id, as the reference folder tells them."""
    found = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((shared / "cases").glob("c*.json"))
    ]
    return {case["id"]: case for case in found}


def check(published: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """One check of a case."""
    return next(c for c in published[name.split("-")[0]]["checks"] if c["id"] == name)


def vector(rates: list[float], rounds_: int | None = None) -> Estimate:
    """An estimate from unconditional rates, read as a user would hand them in."""
    row = {"per_position": rates, **({} if rounds_ is None else {"rounds": rounds_})}
    return alpha(read(io.BytesIO(json.dumps(row).encode()), convention="survival"))


def test_every_check_of_these_cases_is_tested_or_listed(published: dict[str, dict[str, Any]]) -> None:
    tested = {
        name.removeprefix("test_").split("__")[0].upper().replace("_", "-")
        for name in globals()
        if "test_c" in name
    }
    every = {
        c["id"] for case in ("C03", "C07", "C08", "C09", "C10", "C18") for c in published[case]["checks"]
    }
    assert {name.upper() for name in every} == tested | {name.upper() for name in NEEDS_PASSES}


@pytest.mark.parametrize("k", [4, 2])
def test_c03_a__tokens_per_round(published: dict[str, dict[str, Any]], k: int) -> None:
    expected = check(published, "C03-a" if k == 4 else "C03-b")
    rates = published["C03"]["inputs"]["acceptance_per_position_unconditional"][f"k{k}"]
    found = vector(rates)
    assert found.tokens_per_round.pooled == pytest.approx(expected["value"], abs=expected["tol_abs"])
    share = published["C03"]["expected"]["derived"]["mean_draft_acceptance"][f"k{k}"]
    assert found.lesson.value == pytest.approx(share, abs=0.001)


test_c03_b__tokens_per_round = test_c03_a__tokens_per_round


OLD_LINE = (
    "INFO 10-21 08:00:00 metrics.py:350] Speculative metrics: Draft acceptance rate: {draft_acceptance_rate}, System "
    "efficiency: {system_efficiency}, Number of speculative tokens: {num_spec_tokens}, Number of accepted tokens: "
    "{accepted}, Number of draft tokens: {drafted}, Number of emitted tokens: {emitted}."
)


def old_log(published: dict[str, dict[str, Any]]) -> Estimate:
    return alpha(read(io.BytesIO(OLD_LINE.format(**published["C07"]["inputs"]["log"]).encode())))


def test_c07_a__emitted_tokens_decide(published: dict[str, dict[str, Any]]) -> None:
    expected = check(published, "C07-a")
    found = old_log(published)
    assert found.rounds == published["C07"]["expected"]["derived"]["rounds"]
    assert found.tokens_per_round.pooled == pytest.approx(expected["value"], abs=expected["tol_abs"])


def test_c07_b__geometric_alpha(published: dict[str, dict[str, Any]]) -> None:
    expected = check(published, "C07-b")
    assert old_log(published).alpha.value == pytest.approx(expected["value"], abs=expected["tol_abs"])


def test_c07_c__the_disagreement_is_said(published: dict[str, dict[str, Any]]) -> None:
    assert any("2.93" in text and "2.39" in text for text in old_log(published).warnings)


def test_c08_a__k_of_a_block(published: dict[str, dict[str, Any]]) -> None:
    row = published["C08"]["inputs"]["table"][1]
    found = from_summary(
        row["K"], size_is="block", mean_accepted=row["mean_accepted"], rate=row["acceptance"], digits=2
    )
    assert found.k == check(published, "C08-a")["value"]


def test_c08_b__tokens_per_round(published: dict[str, dict[str, Any]]) -> None:
    expected = check(published, "C08-b")
    row = published["C08"]["inputs"]["table"][1]
    found = from_summary(row["K"], size_is="block", mean_accepted=row["mean_accepted"])
    assert found.tokens_per_round == pytest.approx(expected["value"], abs=expected["tol_abs"])


def test_c08_c__round_cost_from_the_speedup(published: dict[str, dict[str, Any]]) -> None:
    expected = check(published, "C08-c")
    cost = implied_round_cost(2.05, published["C08"]["inputs"]["speedup_at_K4"]["GB10"])
    assert cost == pytest.approx(expected["value"], rel=expected["tol_rel"])


def test_c08_d__a_row_that_disagrees_is_refused(published: dict[str, dict[str, Any]]) -> None:
    row = published["C08"]["inputs"]["table"][2]
    with pytest.raises(InputError, match="K means something else"):
        from_summary(
            row["K"], size_is="block", mean_accepted=row["mean_accepted"], rate=row["acceptance"], digits=2
        )


def block_log(published: dict[str, dict[str, Any]]) -> Estimate:
    log = published["C09"]["inputs"]["log"]
    line = (
        f"SpecDecoding metrics: Mean acceptance length: {log['mean_acceptance_length']}, "
        "Accepted throughput: 8.90 tokens/s, "
        f"Drafted throughput: 97.50 tokens/s, Accepted: {log['accepted']} tokens, Drafted: {log['drafted']} tokens, "
        f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in log['per_position'])}, "
        f"Avg Draft acceptance rate: {100 * log['avg_draft_acceptance']:.1f}%"
    )
    return alpha(read(io.BytesIO(line.encode())))


def test_c09_a__rounds(published: dict[str, dict[str, Any]]) -> None:
    assert block_log(published).rounds == check(published, "C09-a")["value"]


def test_c09_b__tokens_per_round(published: dict[str, dict[str, Any]]) -> None:
    expected = check(published, "C09-b")
    found = block_log(published)
    assert found.tokens_per_round.pooled == pytest.approx(expected["value"], abs=expected["tol_abs"])
    rates = published["C09"]["expected"]["derived"]["conditional_rates"]
    assert list(found.conditional[:5]) == pytest.approx(rates, abs=0.004)  # the log rounds to three digits


@pytest.mark.parametrize("name", ["C09-c", "C09-d"])
def test_c09_c__best_k(published: dict[str, dict[str, Any]], name: str) -> None:
    expected = check(published, name)
    marginal = expected["where"]["marginal_verify_cost"]
    found = best_depth(block_log(published), lambda k: 1.0 + marginal * k)
    assert found.k == expected["value"]
    assert found.k_low is not None
    assert found.k_high is not None
    assert found.k_low <= found.k <= found.k_high <= 6


test_c09_d__best_k = test_c09_c__best_k


@pytest.mark.parametrize("marginal", [1e-6, 0.001, 0.02, 0.3, 3.0])
def test_c09_e__never_beyond_five(published: dict[str, dict[str, Any]], marginal: float) -> None:
    assert (
        best_depth(block_log(published), lambda k: 1.0 + marginal * k).k < check(published, "C09-e")["value"]
    )


def test_c10_a__where_the_head_stops_paying(published: dict[str, dict[str, Any]]) -> None:
    expected, inputs = check(published, "C10-a"), published["C10"]["inputs"]
    full, window = inputs["tokens_per_round"]["full"], inputs["tokens_per_round"]["sliding_window"]
    assert pays_until(inputs["context_k"], full, 1.3) == pytest.approx(
        expected["value"], abs=expected["tol_abs"]
    )
    assert pays_until(inputs["context_k"], window, 1.3) is None


def test_c10_b__where_the_heads_change_places(published: dict[str, dict[str, Any]]) -> None:
    expected, inputs = check(published, "C10-b"), published["C10"]["inputs"]
    curves = inputs["tokens_per_round"]
    (crossing,) = cross_at(inputs["context_k"], curves["full"], curves["sliding_window"])
    assert crossing == pytest.approx(expected["value"], abs=expected["tol_abs"])


def test_c10_c__a_loss_at_16k(published: dict[str, dict[str, Any]]) -> None:
    where, inputs = check(published, "C10-c")["where"], published["C10"]["inputs"]
    tokens = tokens_at(where["context_k"], inputs["context_k"], inputs["tokens_per_round"]["full"])
    assert tokens / where["round_cost"] < check(published, "C10-c")["value"]
    with pytest.raises(InputError, match="measured from 2 to 20 only"):
        tokens_at(32, inputs["context_k"], inputs["tokens_per_round"]["full"])


def test_c18_a__an_oracle_draft(published: dict[str, dict[str, Any]]) -> None:
    formula = published["C18"]["inputs"]["formula"]
    for k, expected in published["C18"]["expected"]["derived"]["oracle_speedup"].items():
        assert rounds.speedup(1.0, int(k), formula["cost_ratio"]) == pytest.approx(expected, abs=0.0005)


def test_c18_b__all_accepted() -> None:
    assert tokens_per_round(1.0, 8) == 9
    assert expected_tokens(PerPosition((1.0,) * 8), 8) == 9


def test_c18_c__no_cancellation_near_one() -> None:
    assert tokens_per_round(0.999999999999, 8) == pytest.approx(9, abs=1e-6)


def test_c18_d__no_drafts(published: dict[str, dict[str, Any]]) -> None:
    assert all(tokens_per_round(a, 0) == 1 for a in published["C18"]["inputs"]["grid"]["alpha"])


def test_c18_e__k_zero_is_plain_decoding() -> None:
    assert rounds.speedup(0.7, 0, 0.5) == 1.0
    assert best_depth(vector([0.1, 0.01]), lambda k: 2.0).by_k[0][3] == 1.0


ZERO = """\
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 0
"""


def test_c18_f__counters_before_the_first_draft() -> None:
    for text in (ZERO, '{"survival": [0.0, 0.0], "rounds": 0}', "drafted,accepted\n0,0\n"):
        found = alpha(read(io.BytesIO(text.encode())))
        assert found.alpha.value is None
        assert found.tokens_per_round.pooled == 1.0
        assert found.rounds == 0
        json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf")])
def test_c18_g__what_is_no_rate_is_refused(bad: float) -> None:
    with pytest.raises(InputError):
        Geometric(bad)
    with pytest.raises(InputError):
        PerPosition((bad,))
    with pytest.raises(InputError, match="holds no rounds"):
        vector([bad, 0.1])
    for k in (-1, 2.5):
        with pytest.raises(InputError):
            Geometric(0.5).survival(k)  # type: ignore[arg-type]
