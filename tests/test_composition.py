"""Levers together: each alone, their product, the truth, and what they do to speculation."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specmodel
from specmodel.acceptance import Geometric, PerPosition
from specmodel.answers.combination import ComposeResult, compose
from specmodel.composition import combine, gains
from specmodel.datasheets import Device
from specmodel.deployment import Deployment
from specmodel.engine import IDEAL, EngineTime
from specmodel.errors import InputError
from specmodel.model import Totals
from specmodel.operating_range import textbook_break_even
from specmodel.passes import Split
from specmodel.planning import levers
from specmodel.planning.levers import Setting, Speculating, Speculation
from specmodel.roofline import Textbook

MIXED = 0.082e9  # bytes of a sequence's cache, as the lecture rounds it: 640 x 128 K, and 4,096 x 20 K


def lecture(kv_bytes_per_token: float = MIXED / 640) -> Deployment:
    return specmodel.deploy(
        "lecture-7b", "lecture-h100", fidelity="textbook", kv_bytes_per_token=kv_bytes_per_token
    )


def exercise(kv: float = MIXED / 4096, **asked: Any) -> ComposeResult:
    """The lecture's exercise 5: 4-bit weights and a compressed cache at 4,096 tokens, against 640 tokens before."""
    return compose(
        lecture(),
        context=4096,
        baseline_context=640,
        weight_bytes=3.47e9,
        kv_bytes_per_token=kv,
        alpha=0.8,
        **asked,
    )


def step(found: ComposeResult, term: str) -> Any:
    return next(row for row in found.steps if row.term == term)


# The lecture's exercise


def test_exercise_5_falls_from_251_to_64_sequences() -> None:
    """250.8 and 64.5 recomputed in tests/golden.json (batch-breakeven-k4, compose-ex5-breakeven-k4)."""
    found = exercise(k=4, charge="none")
    assert found.baseline_break_even_batch is not None
    assert found.break_even_batch is not None
    assert round(found.baseline_break_even_batch, 1) == 250.8
    assert round(found.break_even_batch, 1) == 64.5
    assert abs(found.product / found.actual - 1) > 0.01
    assert "the weights shorten that read (13.5 GB to 3.47 GB a step)" in found.tension
    assert "falls from 250.8 to 64.5 (a factor of 3.89)" in found.tension
    assert "the cache is no cause" in found.tension


def test_a_true_20_kib_moves_the_cache_a_little() -> None:
    found = exercise(kv=20 * 1024, k=4, charge="none")
    assert found.break_even_batch is not None
    assert round(found.break_even_batch, 1) == 66.8
    assert "the weights shorten that read" in found.tension


def test_the_steps_tell_where_it_was_lost() -> None:
    """More context: no batch loses. The compressed cache brings the crossing back, the weights move it."""
    longer, cache, weights, speculation = exercise(k=4, charge="none").steps
    assert (longer.name, longer.break_even_batch, longer.break_even) == ("context 4,096", None, "always")
    assert cache.break_even_batch == pytest.approx(250.794, abs=1e-3)
    assert weights.break_even_batch == pytest.approx(64.463, abs=1e-3)
    assert speculation.break_even_alone == pytest.approx(250.794, abs=1e-3)
    assert longer.removes.startswith("none")
    assert "13.5 GB to 3.47 GB" in weights.removes


def test_the_draft_keeps_its_seconds() -> None:
    """Plain steps by hand: 13.582 GB before, 3.552 GB after; the draft's 0.15 becomes 0.574 at equal caches."""
    found = compose(lecture(), context=640, weight_bytes=3.47e9, alpha=0.8)
    assert found.draft_cost_alone == 0.15
    assert found.draft_cost_on_top == pytest.approx(0.15 * 13.582 / 3.552)
    assert found.steps[-1].k == 1  # best k of c 0.574 at alpha 0.8 (golden compose-draft-cost-after-w4)
    assert found.actual < 0.7 * found.product
    assert "the draft did not shrink and now costs 0.574 of a step, not 0.15" in found.tension
    stated = compose(lecture(), context=640, weight_bytes=3.47e9, alpha=0.8, draft_cost_after=0.15)
    assert stated.draft_cost_on_top == 0.15
    assert stated.actual == pytest.approx(stated.product)


@pytest.mark.parametrize(("charge", "printed"), [("scaled", 25.64), ("added", 41.64)])
def test_a_draft_that_shrinks_too_gives_the_golden_crossings(charge: str, printed: float) -> None:
    found = exercise(k=4, charge=charge, draft_cost_after=0.15)
    assert found.break_even_batch == pytest.approx(printed, abs=0.005)


# Against the closed form and by hand


@settings(max_examples=40, deadline=None)
@given(
    weights=st.floats(2.0, 30.0),
    share=st.floats(0.1, 1.0),
    cache=st.floats(0.005, 0.08),
    alpha=st.floats(0.3, 0.95),
    k=st.integers(1, 6),
)
def test_break_even_of_quantised_weights_is_the_closed_form(
    weights: float, share: float, cache: float, alpha: float, k: int
) -> None:
    """13.48 GFLOP per token at 494.5 TFLOP/s and 3.35 TB/s, memory enough for every crossing."""
    device = Device("wide", "wide", "none", 1e13, 3.35e12, {"bf16": 494.5e12})
    totals = Totals("any", weights * 1e9, 13.48e9, cache * 1e9)
    setting = Deployment(totals, device, Textbook(device), Split(), 1.0, IDEAL, (), ())
    speculation = Speculation(Geometric(alpha), k=k, charge="none")
    effect = combine(setting, [levers.weight_bytes(share * weights * 1e9)], speculation, context=1).effect
    assert effect is not None
    for reach, size in ((effect.reach_before, weights), (effect.reach_after, share * weights)):
        expected = textbook_break_even(
            sum(alpha**i for i in range(k + 1)),
            k + 1,
            weight_bytes=size * 1e9,
            kv_bytes_per_sequence=cache * 1e9,
            seconds_per_position=13.48e9 / 494.5e12,
            bandwidth_bytes_per_s=3.35e12,
        )
        limit = int((1e13 - size * 1e9) / (cache * 1e9))
        if expected is None or expected > limit + 1:
            assert reach.outcome == "always"
        elif 1.0 < expected < limit:
            assert reach.batch == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    share=st.floats(0.05, 1.0),
    alpha=st.floats(0.0, 1.0),
    k=st.integers(1, 6),
    context=st.integers(1, 2000),
)
def test_independent_levers_multiply(share: float, alpha: float, k: int, context: int) -> None:
    """Batch 1, every pass bound by memory, the draft free: weights and speculation know nothing of each other."""
    found = compose(
        specmodel.deploy("lecture-7b", "lecture-h100"),
        context=context,
        weight_bytes=share * 13.5e9,
        alpha=alpha,
        k=k,
        charge="none",
    )
    assert found.steps[-1].bound == "memory"
    assert found.actual == pytest.approx(found.product, rel=1e-12)
    assert "independent" in found.why


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.05, 1.0), kv=st.floats(1.0, 131072.0), batch=st.integers(1, 200))
def test_weights_and_caches_share_one_read(share: float, kv: float, batch: int) -> None:
    """By hand: (W + B v) before over (w W + B v') after, whatever single gains say; never below the larger one."""
    found = compose(
        lecture(131072),
        context=640,
        batch=batch,
        weight_bytes=share * 13.5e9,
        kv_bytes_per_token=kv,
        speculate=False,
    )
    plain = batch * 13.48e9 / 494.5e12
    before, after = (
        max((size + batch * 640 * each) / 3.35e12, plain)
        for size, each in ((13.5e9, 131072.0), (share * 13.5e9, kv))
    )
    assert found.actual == pytest.approx(before / after)
    assert found.actual >= max(row.alone for row in found.steps) * (1 - 1e-12)
    assert found.break_even_batch is None


# Every fidelity, formats, GPUs


@pytest.mark.parametrize("fidelity", ["textbook", "datasheet", "calibrated"])
def test_four_bits_lower_depth_and_gain_at_every_fidelity(fidelity: str) -> None:
    setting = specmodel.deploy("llama-3.1-8b", "h100-sxm", fidelity=fidelity)
    found = compose(setting, weights="int4-g128", alpha=0.8)
    plain = setting.plain_seconds(1, 1024) / specmodel.deploy(
        "llama-3.1-8b", "h100-sxm", fidelity=fidelity, weights="int4-g128"
    ).plain_seconds(1, 1024)
    assert step(found, "weights").alone == pytest.approx(float(plain))
    assert found.draft_cost_on_top == pytest.approx(0.15 * float(plain))
    alone = specmodel.optimize(alpha=0.8, draft_cost=0.15, deployment=setting, context=1024)
    assert found.speculation_alone == pytest.approx(alone.best.speedup)
    assert found.steps[-1].k is not None
    assert found.steps[-1].k < alone.best.k
    assert found.actual < found.product
    assert found.tension.startswith(
        "speculation sells arithmetic that idles while memory is read: the weights"
    )


def test_all_levers_at_once_are_the_deployment_itself() -> None:
    found = compose(
        batch=32,
        context=4096,
        weights="fp8",
        kv="fp8",
        tp=2,
        acceptance=(0.8, 0.6, 0.5),
        draft_cost_after=0.1,
    )
    target = specmodel.deploy(weights="fp8", kv="fp8", tp=2)
    best = specmodel.optimize(
        acceptance=(0.8, 0.6, 0.5), draft_cost=0.1, deployment=target, batch=32, context=4096
    ).best
    base = specmodel.deploy().plain_seconds(32, 4096) / target.plain_seconds(32, 4096)
    assert found.actual == pytest.approx(float(base) * best.speedup)
    assert [row.term for row in found.steps] == ["cache", "weights", "gpus", "speculation"]
    assert found.product == pytest.approx(math.prod(row.alone for row in found.steps))
    assert found.memory_limit_batch > found.baseline_memory_limit_batch
    json.loads(found.to_json())


def test_the_order_of_levers_does_not_change_the_truth() -> None:
    speculation = Speculation(Geometric(0.7))
    chain = [levers.weight_format("nvfp4"), levers.kv_format("fp8"), levers.tensor_parallel(2)]
    setting = specmodel.deploy()
    one, other = (
        combine(setting, order, speculation, batch=16, context=2048) for order in (chain, chain[::-1])
    )
    assert one.actual == pytest.approx(other.actual)
    assert one.product == pytest.approx(other.product)


def test_engine_time_is_part_of_every_step() -> None:
    """2 ms per pass on either side of a halved read: the gain shrinks as by hand."""
    engine = EngineTime("slow", "slow", target_pass_s=2e-3)
    setting = specmodel.deploy("lecture-7b", "lecture-h100", engine=engine)
    found = compose(setting, context=1, weight_bytes=6.75e9, speculate=False)
    read = 131072.0
    by_hand = ((13.5e9 + read) / 3.35e12 + 2e-3) / ((6.75e9 + read) / 3.35e12 + 2e-3)
    assert found.actual == pytest.approx(by_hand)


def test_totals_take_formats_as_shares_of_16_bits() -> None:
    setting = Setting(lecture(131072), 640)
    changed = levers.kv_format("fp8").change(levers.weight_format("int4-g128").change(setting))
    assert changed.weight_bytes_read(1) == pytest.approx(13.5e9 * 4.125 / 16)
    assert changed.cache_bytes == pytest.approx(640 * 65536)


def test_a_draft_known_in_seconds_needs_no_cost() -> None:
    """A draft that takes 1 ms beside a 4.05 ms step, and beside the quantised one."""
    speculation = Speculation(Geometric(0.8), k=2, draft_seconds=lambda batch, context: 1e-3)
    effect = combine(lecture(), [levers.weight_bytes(3.47e9)], speculation, context=640).effect
    assert effect is not None
    assert effect.cost_before == pytest.approx(1e-3 / (13.582e9 / 3.35e12))
    assert effect.cost_after == pytest.approx(1e-3 / (3.552e9 / 3.35e12))


@given(batch=st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_gains_broadcast_over_batches(batch: list[int]) -> None:
    start = Setting(lecture(), 640)
    after = levers.weight_bytes(3.47e9).change(start)
    speculation = Speculation(Geometric(0.8))
    together = gains(start, after, speculation, np.array(batch, dtype=float))
    assert together == pytest.approx([float(gains(start, after, speculation, one)[0]) for one in batch])


def test_speculating_deployment_counts_the_draft_from_before() -> None:
    start, after = lecture(), levers.weight_bytes(3.47e9).change(Setting(lecture(), 640)).deployment
    own = Speculating.on(after, start, Speculation(Geometric(0.8), draft_cost=0.2))
    batch = np.array([1.0, 100.0])
    seconds = own.cost_of_draft(batch, 640) * own.plain_seconds(batch, 640)
    assert seconds == pytest.approx(0.2 * start.plain_seconds(batch, 640))


# Sentences and input


def test_where_nothing_loses_the_gain_tells_the_tension() -> None:
    found = compose(weights="int4-g128", alpha=0.8, context=16384, batch=4)
    assert (found.break_even_batch, found.break_even) == (None, "always")
    assert f"{found.speculation_on_top:.2f}x on top of the others" in found.tension
    assert f"{found.speculation_alone:.2f}x alone" in found.tension


def test_without_speculation_nothing_breaks_even() -> None:
    found = compose(weights="fp8", kv="fp8", speculate=False)
    assert found.tension.startswith("no lever speculates")
    assert found.speculation_alone is None
    assert all(row.break_even is None for row in found.steps)


def test_what_does_not_fit_is_said() -> None:
    found = compose(specmodel.deploy("llama-3.1-70b", "h100-sxm"), weights="int4-g128", batch=64)
    assert found.baseline_memory_limit_batch == 0
    assert not found.fits
    assert found.baseline_break_even == "nothing fits"
    assert any(line.startswith("baseline: does not fit") for line in found.warnings)
    assert "where 0 sequences fitted" in found.tension


def test_speculation_alone_is_one_lever() -> None:
    found = compose(acceptance=PerPosition((0.7, 0.5)))
    assert found.product == found.actual == found.speculation_alone
    assert "nothing works against it" in found.tension


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"speculate": False}, "levers"),
        ({"weights": "int3"}, "weights = 'int3'"),
        ({"kv": "fp9"}, "kv = 'fp9'"),
        ({"weight_bytes": 0.0}, "weight bytes"),
        ({"kv_bytes_per_token": -1.0}, "compressed kv bytes per token"),
        ({"tp": 0}, "tp = 0"),
        ({"tp": 2}, "one GPU only"),
        ({"batch": 0}, "batch = 0"),
        ({"context": 0}, "ctx = 0"),
        ({"baseline_context": 0}, "baseline ctx"),
        ({"alpha": 1.2}, "alpha = 1.2"),
        ({"draft_cost": -1.0}, "draft cost"),
        ({"draft_cost_after": -1.0}, "draft cost after"),
        ({"charge": "mult"}, "none, scaled, added"),
        ({"k": -1}, "k = -1"),
        ({"acceptance": (0.5,), "k": 3}, "k = 3"),
    ],
)
def test_bad_input_is_one_line(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        compose(lecture(), **asked)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_architecture_is_counted_from_a_format() -> None:
    with pytest.raises(InputError, match="give a weight format"):
        compose(weight_bytes=4e9)
