"""In which batches speculation pays: against brute force over every integer, in any units, near every edge."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel import catalog
from specmodel.acceptance import Geometric
from specmodel.deployment import Deployment, deploy
from specmodel.model import Totals
from specmodel.operating_range import Range, operating_range, scan_batches

WEIGHTS, FLOPS = 13.5e9, 13.48e9
CHARGES = ("none", "scaled", "added")


def lecture(kv: float, memory: float, scale: float = 1.0, work: float = 1.0) -> Deployment:
    """The lecture's model and card with another cache and memory; bytes and FLOPs counted in other units."""
    card = catalog.device("lecture-h100")
    card = replace(
        card,
        memory_bytes=memory * scale,
        bandwidth_bytes_per_s=card.bandwidth_bytes_per_s * scale,
        peak_flops_per_s={rate: peak * work for rate, peak in card.peak_flops_per_s.items()},
    )
    return deploy(Totals("t", WEIGHTS * scale, FLOPS * work, kv * scale), card, fidelity="textbook")


def brute_force(
    kv: float, context: int, limit: int, alpha: float, k: int, cost: float, charge: str
) -> list[bool]:
    """Whether each batch pays, from the two rooflines written out: 3.35 TB/s, half of 989 TFLOP/s."""
    tokens = sum(alpha**i for i in range(k + 1))
    pays = []
    for batch in range(1, limit + 1):
        memory, position = (WEIGHTS + batch * context * kv) / 3.35e12, batch * FLOPS / 494.5e12
        plain, verify = max(memory, position), max(memory, (k + 1) * position)
        ratio = verify / plain
        round_cost = {"none": ratio, "scaled": ratio * (1 + k * cost), "added": ratio + k * cost}[charge]
        pays.append(tokens / round_cost > 1.0 + 1e-12)
    return pays


@settings(max_examples=60, deadline=None)
@given(
    kv=st.floats(1e3, 5e5),
    context=st.integers(1, 20_000),
    memory=st.floats(14.3e9, 90e9),
    alpha=st.just(0.0) | st.floats(1e-6, 1.0),  # smaller ones are ties to the last bit
    k=st.integers(1, 12),
    cost=st.just(0.0) | st.floats(1e-6, 1.2),
    charge=st.sampled_from(CHARGES),
)
def test_intervals_equal_a_scan_over_every_integer(
    kv: float, context: int, memory: float, alpha: float, k: int, cost: float, charge: str
) -> None:
    setting = lecture(kv, memory)
    limit = int((0.95 * memory - WEIGHTS) // (kv * context))
    found = operating_range(setting, Geometric(alpha), context=context, draft_cost=cost, charge=charge, k=k)
    assert abs(found.memory_limit_batch - min(limit, 1_000_000)) <= 1  # one ulp of the division
    tried = min(
        found.memory_limit_batch, 6000
    )  # every integer up to here, whatever the spacing of the search
    pays = brute_force(kv, context, tried, alpha, k, cost, charge)
    expected = [(flag, len(list(run))) for flag, run in groupby(pays)]
    inside = [(one.pays, min(one.to, tried) - one.from_ + 1) for one in found.intervals if one.from_ <= tried]
    assert inside == expected
    assert len(found.crossings) == max(0, len(found.intervals) - 1)
    for interval, crossing in zip(found.intervals, found.crossings, strict=False):
        assert interval.to <= crossing <= interval.to + 1
    if found.break_even_batch is not None:
        assert found.first_losing_batch == int(found.break_even_batch) + (found.break_even_batch % 1 > 0) or (
            abs(found.break_even_batch - round(found.break_even_batch)) < 1e-6
        )


@settings(max_examples=30, deadline=None)
@given(
    scale=st.sampled_from([1e-6, 1e-3, 1e3, 2.0**30]),
    work=st.sampled_from([1e-9, 1e-3, 1e6]),
    context=st.integers(64, 4000),
    alpha=st.floats(0.05, 0.99),
)
def test_other_units_change_no_answer(scale: float, work: float, context: int, alpha: float) -> None:
    """Bytes counted in kilobytes with the bandwidth in kB/s, FLOPs in billions: the same batches pay."""

    def ranged(setting: Deployment) -> Range:
        return operating_range(setting, Geometric(alpha), context=context, draft_cost=0.1, max_k=8)

    one, other = ranged(lecture(131072.0, 80e9)), ranged(lecture(131072.0, 80e9, scale, work))
    assert abs(one.memory_limit_batch - other.memory_limit_batch) <= 1
    assert other.crossings == pytest.approx(one.crossings, rel=1e-9)
    assert [i.pays for i in one.intervals] == [i.pays for i in other.intervals]
    assert other.speedup_at_1 == pytest.approx(one.speedup_at_1, rel=1e-12)


def test_a_mixture_of_experts_loses_first_and_gains_later() -> None:
    """Qwen3-30B-A3B: at small batches extra positions bring extra experts, at 64 all are read anyway."""
    setting = deploy("qwen3-30b-a3b", "h200", fidelity="datasheet")
    law = Geometric(0.6)
    found = operating_range(setting, law, context=512, draft_cost=0.02, k=3)
    tokens = np.array([1.0, 1.6, 1.96, 2.176])
    every = np.arange(1, found.memory_limit_batch + 1)
    speedups = setting.speedups(
        tokens, k=3, batch=every.astype(float), context=512, draft_cost=0.02, charge="added"
    )
    expected = [
        (flag, len(list(run))) for flag, run in groupby((np.asarray(speedups) > 1.0 + 1e-12).tolist())
    ]
    assert [(one.pays, one.to - one.from_ + 1) for one in found.intervals] == expected
    assert [one.pays for one in found.intervals][:2] == [False, True]
    assert found.first_losing_batch == 1
    assert len(found.crossings) == len(found.intervals) - 1


def test_the_best_depth_by_batch_is_that_of_a_scan() -> None:
    setting, law = lecture(131072.0, 80e9), Geometric(0.8)
    found = operating_range(setting, law, context=640, draft_cost=0.15, max_k=8)
    by_batch = {batch: one.k for one in found.depths for batch in range(one.from_, one.to + 1)}
    tokens = np.array([sum(0.8**i for i in range(k + 1)) for k in range(9)])
    for batch in range(1, found.memory_limit_batch + 1, 7):
        table = [
            float(setting.speedups(tokens, k=k, batch=batch, context=640, draft_cost=0.15, charge="added"))
            for k in range(9)
        ]
        assert by_batch[batch] == int(np.argmax(table))


def test_wide_logits_come_out_of_the_same_memory() -> None:
    """k 8: nine rows of 128,256 float32 logits per sequence of 64 tokens (8 MB of cache): 36 % more per sequence."""
    setting = deploy("llama-3.1-8b", "h100")
    plain = setting.memory_limit_batch(64)
    found = operating_range(setting, Geometric(0.9), context=64, draft_cost=0.0, charge="none", k=8)
    cache, logits = 64 * 131072, 4 * 128256
    room = 0.9 * 80 * 2**30 - 16060522496
    assert plain == int(room / (cache + logits))
    assert found.memory_limit_batch == int(room / (cache + 9 * logits))
    searched = operating_range(setting, Geometric(0.9), context=64, draft_cost=0.02)
    assert found.memory_limit_batch <= searched.memory_limit_batch < plain


def test_slower_verification_and_smaller_gains_move_the_crossing_down() -> None:
    setting, law = lecture(131072.0, 80e9), Geometric(0.8)

    def crossing(**factors: float) -> float:
        found = operating_range(setting, law, context=640, draft_cost=0.15, k=4, **factors).break_even_batch  # type: ignore[arg-type]
        assert found is not None
        return found

    assert crossing(verify_factor=1.05) < crossing() < crossing(verify_factor=0.95)
    assert crossing(gain_factor=0.9) < crossing() < crossing(gain_factor=1.1)
    # Added: tokens / (f r + k c) = 1, so r = (tokens - k c) / f; r grows as 5 B t / memory time where it binds.
    tokens = sum(0.8**i for i in range(5))
    for factor in (0.9, 1.1):
        batch = crossing(verify_factor=factor)
        memory, position = (WEIGHTS + batch * 640 * 131072) / 3.35e12, batch * FLOPS / 494.5e12
        assert 5 * position / max(memory, position) == pytest.approx((tokens - 0.6) / factor, rel=1e-6)


@given(limit=st.integers(1, 1_000_000))
@settings(max_examples=50, deadline=None)
def test_every_batch_is_looked_at_or_has_a_neighbour_within_a_percent(limit: int) -> None:
    batches = scan_batches(limit)
    assert batches[0] == 1
    assert batches[-1] == limit
    gaps = np.diff(batches)
    assert (gaps >= 1).all()
    assert (gaps[batches[:-1] < 2048] == 1).all()
    assert (gaps <= np.maximum(1, 0.0101 * batches[:-1] + 1)).all()


@settings(max_examples=40, deadline=None)
@given(work=st.floats(3e6, 2e8), k=st.integers(1, 6), alpha=st.floats(0.3, 0.95))
def test_between_the_batches_looked_at_the_change_is_found_to_the_last_one(
    work: float, k: int, alpha: float
) -> None:
    """Models of little arithmetic break even at thousands: E W / (beta ((k + 1) t - E v / beta)), solved by hand."""
    card = catalog.device("lecture-h100")
    setting = deploy(Totals("t", WEIGHTS, work, 1e3), card, fidelity="textbook")
    found = operating_range(setting, Geometric(alpha), context=1, draft_cost=0.0, charge="none", k=k)
    tokens = sum(alpha**i for i in range(k + 1))
    position = work / 494.5e12
    per_sequence = (k + 1) * position - tokens * 1e3 / 3.35e12
    if per_sequence <= 0:
        assert found.break_even_batch is None
        return
    exact = tokens * WEIGHTS / (3.35e12 * per_sequence)
    # The plain step must still wait for memory there; past that point the ratio stays at k + 1 > E.
    if exact * position <= (WEIGHTS + exact * 1e3) / 3.35e12 and 2100 < exact < found.memory_limit_batch - 1:
        assert found.break_even_batch == pytest.approx(exact, rel=1e-9)
        assert found.intervals[0].to == int(exact)
        assert found.first_losing_batch == int(exact) + 1


def test_a_stretched_verification_stretches_a_scaled_draft_with_it() -> None:
    """Scaled: f r (1 + k c) = E, so r = E / (f (1 + k c)) where it breaks even."""
    setting, law = lecture(131072.0, 80e9), Geometric(0.8)
    tokens = sum(0.8**i for i in range(5))
    for factor in (0.95, 1.05):
        batch = operating_range(
            setting, law, context=640, draft_cost=0.15, charge="scaled", k=4, verify_factor=factor
        ).break_even_batch
        assert batch is not None
        memory, position = (WEIGHTS + batch * 640 * 131072) / 3.35e12, batch * FLOPS / 494.5e12
        assert 5 * position / max(memory, position) == pytest.approx(tokens / (factor * 1.6), rel=1e-6)
