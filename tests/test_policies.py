"""Depth by batch and context, the cost of changing it, the shared idle budget and fairness."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import specmodel
from specmodel import policies
from specmodel.acceptance import Geometric, PerPosition
from specmodel.answers.batches import breakeven
from specmodel.answers.schedule import policy
from specmodel.errors import InputError
from specmodel.operating_range import DepthInterval
from specmodel.planning import headroom, switching
from specmodel.policies import Surface

speedups = st.floats(0.05, 8.0)
LESSON = 156  # positions: an A100's idle budget


@st.composite
def surfaces(draw: st.DrawFn) -> Surface:
    """Any table of speedups, k = 0 at 1, some of the largest batches not fitting at the longer contexts."""
    depths, rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    steps = draw(st.lists(st.integers(1, 5), min_size=rows, max_size=rows))
    batches = list(itertools.accumulate(steps))
    limits = [draw(st.integers(0 if column else batches[0], batches[-1])) for column in range(columns)]
    cells = st.lists(speedups, min_size=depths * rows * columns, max_size=depths * rows * columns)
    table = np.array(draw(cells)).reshape(depths, rows, columns)
    table[0] = 1.0
    seconds = np.array(draw(st.lists(st.floats(1e-4, 1.0), min_size=rows * columns, max_size=rows * columns)))
    return Surface(
        ks=tuple(range(depths)),
        batches=tuple(batches),
        contexts=tuple(range(1, columns + 1)),
        speedup=table,
        step_seconds=seconds.reshape(rows, columns),
        fits=np.array(batches)[:, None] <= np.array(limits)[None, :],
    )


# Depth by batch


@given(found=surfaces(), data=st.data())
def test_regret_is_a_share_and_the_best_depth_has_none(found: Surface, data: st.DataObject) -> None:
    ks = data.draw(
        st.lists(st.sampled_from(found.ks), min_size=len(found.batches), max_size=len(found.batches))
    )
    lost = policies.regret(found, ks)
    assert (lost >= 0).all()
    assert (lost < 1).all()
    assert (policies.regret(found, policies.best_k(found)) <= 1e-12).all()
    assert (lost[~found.fits] == 0).all()


@given(found=surfaces())
def test_one_schedule_for_all_contexts_loses_least(found: Surface) -> None:
    """Against every possible choice at each batch, by the definition of regret."""
    chosen = policies.by_batch_only(found)
    for place in range(len(found.batches)):
        if not found.fits[place].any():
            continue
        losses = []
        for k in found.ks:
            ks = chosen.copy()
            ks[place] = k
            losses.append(policies.regret(found, ks)[place].sum())
        assert losses[int(chosen[place])] == pytest.approx(min(losses), abs=1e-9)


@given(found=surfaces())
def test_levels_say_the_same_as_the_depths(found: Surface) -> None:
    ks = policies.by_batch_only(found)
    schedule = policies.levels(found.batches, ks)
    assert (policies.depth_at(schedule, found.batches) == ks).all()
    assert schedule[0].from_ == found.batches[0]
    assert schedule[-1].to == found.batches[-1]
    assert all(b.from_ == a.to + 1 and a.k != b.k for a, b in itertools.pairwise(schedule))


@given(found=surfaces(), objective=st.sampled_from(policies.OBJECTIVES), limit=st.floats(1e-5, 2.0))
def test_the_operating_point_is_the_best_of_all_cells(found: Surface, objective: str, limit: float) -> None:
    point = policies.operating_point(found, objective, context=1, tpot_limit_s=limit, price_per_hour=2.0)
    cells = []
    for (k, gains), (place, batch) in itertools.product(
        zip(found.ks, found.speedup, strict=True), enumerate(found.batches)
    ):
        tpot = found.step_seconds[place, 0] / gains[place, 0]
        if found.fits[place, 0] and tpot <= limit:
            cells.append((k, tpot, batch / tpot, 2.0 / 3600 / (batch / tpot) * 1e6))
    if not cells:
        assert point is None
        return
    assert point is not None
    assert point.tpot_ms <= limit * 1e3 * (1 + 1e-12)
    assert point.cost_per_million_tokens is not None
    reached = {
        "latency": (point.tpot_ms * 1e-3, min(cell[1] for cell in cells)),
        "throughput": (-point.tokens_per_second, min(-cell[2] for cell in cells)),
        "cost": (point.cost_per_million_tokens, min(cell[3] for cell in cells)),
    }[objective]
    assert reached[0] == pytest.approx(reached[1])


@given(found=surfaces(), data=st.data())
def test_adapting_through_a_day_beats_every_fixed_depth(found: Surface, data: st.DataObject) -> None:
    loads = data.draw(st.lists(st.sampled_from(found.batches), min_size=1, max_size=8))
    k = data.draw(st.sampled_from(found.ks))
    day = policies.day(found, loads, context=1, fixed_k=k)
    assert day.adaptive_gain >= max(1.0, day.fixed_gain) * (1 - 1e-12)
    if k == 0:
        assert day.fixed_gain == pytest.approx(1.0)


def test_a_cost_of_not_speculating_is_paid_by_k_0_alone() -> None:
    found = headroom.lesson_surface(Geometric(0.7), budget=LESSON, batches=[1, 140], draft_cost=0.1, max_k=4)
    assert policies.best_k(found)[:, 0].tolist() == [4, 0]
    kept = found.with_cost_of_zero(0.25)
    assert kept.speedup[0].tolist() == [[0.8], [0.8]]
    assert (kept.speedup[1:] == found.speedup[1:]).all()
    # k = 1 at batch 140: 1.7 tokens for 280/156 + 0.1 steps, less than 1 but more than 0.8.
    assert policies.best_k(kept)[:, 0].tolist() == [4, 1]


@pytest.mark.parametrize("charge", ["none", "scaled", "added"])
def test_the_levels_are_the_depths_that_breakeven_finds(charge: str) -> None:
    """The lecture's setting, by code that shares nothing with the surface but the pass times."""
    setting = specmodel.deploy("lecture-7b", "lecture-h100", fidelity="textbook")
    found = policy(setting, contexts=(640,), alpha=0.8, charge=charge)
    other = breakeven(setting, context=640, alpha=0.8, draft_cost=0.15, charge=charge)
    assert found.levels == other.k_by_batch
    assert found.regret == 0.0
    assert found.levels[-1].to == found.memory_limit_batch == 745


def test_a_schedule_that_is_handed_in_is_judged() -> None:
    setting = specmodel.deploy("lecture-7b", "lecture-h100", fidelity="textbook")
    best = policy(setting, contexts=(640,), alpha=0.8)
    fixed = policy(setting, contexts=(640,), alpha=0.8, levels=[DepthInterval(1, 745, 3)])
    expected = next(row for row in best.fixed if row.k == 3)
    assert fixed.regret == pytest.approx(expected.largest_regret)
    assert fixed.mean_regret == pytest.approx(expected.mean_regret)
    with pytest.raises(InputError, match="no level covers"):
        policy(setting, contexts=(640,), alpha=0.8, levels=[DepthInterval(1, 700, 3)])
    with pytest.raises(InputError, match="must begin after batch 400"):
        policy(
            setting, contexts=(640,), alpha=0.8, levels=[DepthInterval(1, 400, 3), DepthInterval(400, 745, 1)]
        )


# Changing the depth


@given(switch=st.floats(0.0, 10.0), dwell=st.floats(1e-3, 100.0), gain=st.floats(0.0, 3.0))
def test_the_band_is_where_changing_breaks_even(switch: float, dwell: float, gain: float) -> None:
    """Staying yields 1 token per second, changing 1 + gain for what is left of the stay."""
    changed, stayed = (1.0 + gain) * max(0.0, dwell - switch), dwell
    if abs(changed - stayed) > 1e-9 * dwell:
        assert (gain > switching.band(switch, dwell)) == (changed > stayed)


@given(found=surfaces(), gain=st.floats(0.0, 1.0))
def test_boundaries_move_outwards_with_the_gain_asked_for(found: Surface, gain: float) -> None:
    # Of two depths that are equal but for rounding the shallower is best, though the deeper may come out ahead.
    ordered = np.sort(found.speedup, axis=0)
    assume((np.diff(ordered, axis=0) > 1e-9 * ordered[1:]).all())
    column = found.fits[:, 0]
    found = found.up_to(int(np.array(found.batches)[column].max()))
    schedule = policies.levels(found.batches, policies.best_k(found)[:, 0])
    free = switching.boundaries(found, schedule, context=1, gain=0.0)
    for at_once, later, (below, above) in zip(
        free,
        switching.boundaries(found, schedule, context=1, gain=gain),
        itertools.pairwise(schedule),
        strict=True,
    ):
        assert (at_once.up, at_once.k_below, at_once.k_above) == (above.from_, below.k, above.k)
        assert at_once.down is not None
        assert below.from_ <= at_once.down <= below.to
        assert later.up is None or later.up >= above.from_
        assert later.down is None or later.down <= at_once.down


@given(found=surfaces(), data=st.data(), dwell=st.floats(0.1, 10.0), switch=st.floats(0.0, 2.0))
def test_following_the_load_never_beats_the_best_plan(
    found: Surface, data: st.DataObject, dwell: float, switch: float
) -> None:
    loads = data.draw(st.lists(st.sampled_from(found.batches), min_size=1, max_size=4))
    walk = switching.follow(found, loads, context=1, dwell_s=dwell, switch_s=switch)
    rates = found.tokens_per_second[:, found.places(loads), 0]
    plans = []
    for plan in itertools.product(range(len(found.ks)), repeat=len(loads)):
        before = (0, *plan)
        plans.append(
            sum(
                rates[row, step] * (max(0.0, dwell - switch) if row != before[step] else dwell)
                for step, row in enumerate(plan)
            )
        )
    assert walk.tokens <= max(plans) * (1 + 1e-9)
    assert -1e-12 <= walk.lost < 1
    # A single stay is decided alone, and so decided best.
    first = switching.follow(found, loads[:1], context=1, dwell_s=dwell, switch_s=switch)
    alone = [rates[row, 0] * (max(0.0, dwell - switch) if row else dwell) for row in range(len(found.ks))]
    assert first.tokens == pytest.approx(max(alone))


@given(found=surfaces(), data=st.data())
def test_free_changes_lose_nothing(found: Surface, data: st.DataObject) -> None:
    loads = data.draw(st.lists(st.sampled_from(found.batches), min_size=1, max_size=6))
    walk = switching.follow(found, loads, context=1, dwell_s=1.0)
    assert walk.lost == pytest.approx(0.0, abs=1e-12)


def test_a_draft_that_rested_is_slower_to_return() -> None:
    found = headroom.lesson_surface(Geometric(0.7), budget=LESSON, batches=[10, 140], draft_cost=0.1, max_k=4)
    free = switching.follow(found, [140, 10, 140, 10], context=0, dwell_s=1.0)
    assert free.ks == (0, 4, 0, 4)
    # Returning takes longer than the stay: once at rest, it rests.
    held = switching.follow(found, [140, 10, 140, 10], context=0, dwell_s=1.0, resume_s=1.5)
    assert held.ks == (0, 0, 0, 0)
    assert held.switches == 0


# The shared idle budget


counts = st.integers(0, 200)


@given(batch=st.integers(0, 200), k=st.integers(1, 12), budget=st.integers(1, 300), among=st.booleans())
def test_slots_are_the_most_that_fit(batch: int, k: int, budget: int, among: bool) -> None:
    found = int(headroom.slots(batch, k, budget, among=among))
    most = batch if among else budget
    fitting = [n for n in range(most + 1) if headroom.demand(batch, n, k, among=among) <= budget]
    assert found == max(fitting, default=0)


@given(
    batch=st.integers(1, 120), requests=st.integers(1, 40), budget=st.integers(1, 300), among=st.booleans()
)
def test_the_common_depth_is_the_deepest_that_fits(
    batch: int, requests: int, budget: int, among: bool
) -> None:
    found = headroom.largest_common_k(batch, requests, budget, among=among)
    fitting = [k for k in range(1, budget + 1) if headroom.demand(batch, requests, k, among=among) <= budget]
    assert found == max(fitting, default=0)


@given(k=st.integers(0, 20), budget=st.integers(1, 400), among=st.booleans())
def test_the_largest_free_batch_is_the_last_without_overload(k: int, budget: int, among: bool) -> None:
    found = headroom.largest_free_batch(k, budget, among=among)
    assert headroom.demand(found, found, k, among=among) <= budget
    assert headroom.demand(found + 1, found + 1, k, among=among) > budget


@given(k=st.integers(1, 12), budget=st.integers(5, 400))
def test_tiers_only_rise_with_the_batch(k: int, budget: int) -> None:
    batches = list(range(1, budget + 5))
    runs = headroom.tier_runs(batches, float(budget), k)
    order = [headroom.TIERS.index(run.tier) for run in runs]
    assert order == sorted(set(order))
    assert (runs[0].from_, runs[-1].to, runs[-1].tier) == (1, budget + 4, "over budget")


@pytest.mark.parametrize("context", [1, 4096])
def test_the_budget_of_a_deployment_is_where_arithmetic_takes_over(context: int) -> None:
    setting = specmodel.deploy("llama-3.1-8b", "h100-sxm", fidelity="textbook")
    batch = np.array([1.0, 16.0])
    positions = headroom.position_budget(setting, batch, context)
    taken = setting.pass_time(batch, context, positions / batch)
    assert taken.compute_seconds == pytest.approx(taken.memory_seconds)


def test_the_lesson_and_a_deployment_on_its_gpu_agree() -> None:
    """16-bit weights of 7B on 2.0 TB/s and 312 TFLOP/s: 156 positions, and the same depths but for rounding."""
    setting = specmodel.deploy("lecture-7b", "lecture-a100", kv_bytes_per_token=1)
    budget = float(headroom.position_budget(setting, 1, 1))
    assert budget == pytest.approx(LESSON, rel=0.002)
    batches = [1, 10, 20, 31, 40, 80, 140]
    law = Geometric(0.7)
    lesson = headroom.lesson_surface(law, budget=budget, batches=batches, draft_cost=0.1, max_k=8)
    found = policies.surface(setting, law, batches=batches, contexts=[1], draft_cost=0.1, max_k=8)
    assert lesson.speedup[:, :, 0] == pytest.approx(found.speedup[:, :, 0], rel=1e-6)


# Fairness


@given(wanted=st.lists(st.integers(0, 5), min_size=1, max_size=4), units=st.integers(0, 14))
def test_water_fill_is_max_min_fair(wanted: list[int], units: int) -> None:
    given_out = headroom.water_fill(wanted, units)
    assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))
    assert sum(given_out) == min(units, sum(wanted))
    every = itertools.product(*(range(want + 1) for want in wanted))
    fairest = max(sorted(shares) for shares in every if sum(shares) <= units)
    assert sorted(given_out) == fairest
    if len(set(wanted)) == 1:
        assert given_out == sorted(given_out, reverse=True)


@given(wanted=st.lists(st.integers(0, 9), max_size=12), units=st.integers(0, 60))
def test_no_rule_gives_more_than_there_is_or_than_is_wanted(wanted: list[int], units: int) -> None:
    for rule in headroom.RULES.values():
        given_out = rule(wanted, units)
        assert sum(given_out) <= units
        assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))
    first = headroom.priority_grant(wanted, units)
    assert all(got in (0, want) for got, want in zip(first, wanted, strict=True))
    left = units - sum(first)
    assert all(want > left for got, want in zip(first, wanted, strict=True) if got < want)


@given(
    alpha=st.floats(0.0, 1.0),
    cost=st.floats(0.0, 1.0),
    batch=st.integers(1, 200),
    data=st.data(),
    among=st.booleans(),
)
def test_sharing_does_not_overload_the_step(
    alpha: float, cost: float, batch: int, data: st.DataObject, among: bool
) -> None:
    sessions = data.draw(st.integers(1, batch))
    rows = headroom.compare_rules(
        sessions, 4, Geometric(alpha), batch=batch, budget=LESSON, draft_cost=cost, among=among
    )
    for row in rows:
        added = sum(headroom.positions_added(k, among=among) for k in row.depths if k)
        assert added <= max(0, LESSON - batch)
        assert row.tokens >= sessions * (1 - 1e-12)
        if not any(row.depths):
            assert row.batch_speedup == pytest.approx(1.0)
    filled, split = rows[2], rows[1]
    assert filled.tokens >= split.tokens * (1 - 1e-12)


# The verb


def test_policy_says_all_that_was_asked_for() -> None:
    found = policy(
        specmodel.deploy("llama-3.1-8b", "h100-sxm"),
        contexts=(1024, 4096),
        context_weights=(3, 1),
        acceptance=(0.76, 0.55, 0.40, 0.29),
        objective="cost",
        gpu_price_per_hour=3.0,
        tpot_limit_ms=20.0,
        switch_seconds=0.05,
        dwell_seconds=2.0,
        batch=200,
        sessions=10,
        day=(4, 64, 256),
    )
    answer: dict[str, Any] = json.loads(found.to_json())
    assert answer["schema"] == 1
    assert set(answer["levels"][0]) == {"from", "to", "k"}
    assert answer["levels"][0]["from"] == 1
    assert answer["levels"][-1]["to"] == answer["memory_limit_batch"]
    assert 0 <= answer["mean_regret"] <= answer["regret"] < 0.05
    ks = [level["k"] for level in answer["levels"]]
    assert ks == sorted(ks, reverse=True)
    for point in answer["by_context"]:
        assert point["best"]["tpot_ms"] <= 20.0
        assert (
            point["best"]["cost_per_million_tokens"]
            < point["best_without_speculation"]["cost_per_million_tokens"]
        )
    assert {rule["rule"] for rule in answer["fairness"]["rules"]} == set(headroom.RULES)
    assert answer["day"]["adaptive_gain"] >= answer["day"]["fixed_gain"]
    assert answer["switching"]["gain"] == pytest.approx(0.05 / 1.95)
    assert answer["idle"]["tiers"][0]["from"] == 1


def test_what_does_not_fit_is_said_and_not_scheduled() -> None:
    found = policy(specmodel.deploy("llama-3.1-70b", "h100-sxm"), tpot_limit_ms=10.0, day=(3,))
    assert (found.fits, found.levels, found.regret, found.idle) == (False, [], 0.0, None)
    assert any("does not fit" in line for line in found.warnings)
    assert any("day: batch 3" in line for line in found.warnings)


@settings(max_examples=25, deadline=None)
@given(alpha=st.floats(0.0, 1.0), cost=st.floats(0.0, 1.5), context=st.integers(1, 40_000))
def test_policy_never_loses_to_plain_decoding(alpha: float, cost: float, context: int) -> None:
    setting = specmodel.deploy("lecture-7b", "lecture-h100")
    found = policy(setting, contexts=(context,), alpha=alpha, draft_cost=cost, max_k=8)
    assert found.regret <= 1e-12
    assert all(row.speedup >= 1.0 - 1e-12 for row in found.by_batch)
    json.loads(found.to_json())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"contexts": ()}, "ctx"),
        ({"contexts": (4096, 1024)}, "ascending"),
        ({"contexts": (0,)}, "ctx = 0"),
        ({"context_weights": (1, 2)}, "one share"),
        ({"objective": "speed"}, "latency, throughput, cost"),
        ({"objective": "cost"}, "gpu price"),
        ({"gpu_price_per_hour": -1.0}, "gpu price = -1"),
        ({"tpot_limit_ms": 0.0}, "tpot limit"),
        ({"switch_seconds": 1.0}, "dwell"),
        ({"switch_seconds": -1.0, "dwell_seconds": 1.0}, "switch seconds = -1"),
        ({"sessions": 3}, "batch"),
        ({"sessions": 30, "batch": 3}, "sessions = 30"),
        ({"k": 0}, "k = 0"),
        ({"day": (0,)}, "day = 0"),
        ({"cost_of_zero": -0.1}, "cost of k 0"),
        ({"alpha": float("nan")}, "alpha"),
        ({"draft_cost": -1.0}, "draft cost"),
        ({"charge": "half"}, "none, scaled, added"),
    ],
)
def test_bad_input_is_one_line(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        policy(specmodel.deploy("lecture-7b", "lecture-h100"), **asked)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_of_rates_ends_the_depths() -> None:
    found = policies.surface(
        specmodel.deploy("lecture-7b", "lecture-h100"),
        PerPosition((0.8, 0.6)),
        batches=[1],
        contexts=[640],
        draft_cost=0.1,
    )
    assert found.ks == (0, 1, 2)
