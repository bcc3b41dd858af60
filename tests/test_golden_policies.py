"""Every golden value on combined levers, the shared idle budget, tiers, fairness and the race.

Expected values were recomputed by hand (tests/golden.json); where the lesson prints something else, or claims what its
own numbers contradict, the test's name says `printed_wrong`. Each value is computed here from the case's inputs by the
public functions that the commands use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specmodel import operating_range, roofline, rounds
from specmodel.acceptance import Geometric, tokens_per_round
from specmodel.composition import combine
from specmodel.datasheets import Device
from specmodel.deployment import Deployment
from specmodel.engine import IDEAL
from specmodel.formats import weight_stream_tokens_per_second
from specmodel.model import Totals
from specmodel.passes import Split
from specmodel.planning import headroom, levers
from specmodel.roofline import Textbook
from specmodel.units import GB
from tests.golden_cases import cases, matches

CHARGE = {"none": "none", "mult": "scaled", "add": "added"}
Inputs = dict[str, Any]
JOINING = {
    "among": False
}  # the lesson's count: k + 1 positions on top of the batch for every speculating request


def lecture(i: Inputs) -> Deployment:
    """The lecture's step model; one 'token' of context carries the whole cache of a sequence."""
    device = Device(
        id="lecture",
        name="the lecture's GPU",
        architecture="Hopper",
        memory_bytes=80e9,
        bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12,
        peak_flops_per_s={"bf16": i["effective_tflops"] * 1e12},
    )
    totals = Totals("lecture", i.get("w_before", 13.5) * GB, i["gflop"] * 1e9, i["kv_gb_per_seq"] * GB)
    return Deployment(totals, device, Textbook(device), Split(), 0.95, IDEAL, (), ())


def after_quantising(i: Inputs, to_gb: float, convention: str) -> float | None:
    """Break-even batch once the weights take `to_gb` and the draft costs what the case says of the new step."""
    speculation = levers.Speculation(
        Geometric(i["alpha"]),
        k=i["k"],
        draft_cost=i["c"],
        stated_cost=i["c"],
        charge=CHARGE[convention],
    )
    found = combine(lecture(i), [levers.weight_bytes(to_gb * GB)], speculation, context=1)
    return None if found.effect is None else found.effect.reach_after.batch


def fall(i: Inputs) -> float:
    """Break-even before over break-even after."""
    speculation = levers.Speculation(Geometric(i["alpha"]), k=i["k"], draft_cost=0.0, charge="none")
    effect = combine(lecture(i), [levers.weight_bytes(i["w_after"] * GB)], speculation, context=1).effect
    assert effect is not None
    return effect.reach_before.size / effect.reach_after.size


LECTURE = {
    "kv_gb_per_seq": 0.082,
    "bw_tb_s": 3.35,
    "gflop": 13.48,
    "effective_tflops": 494.5,
    "k": 4,
    "alpha": 0.8,
}


def quantised_draft_cost(i: Inputs) -> Any:
    cost = levers.kept_draft_cost(1.0, i["draft_gb"], i["target_gb"])
    top = rounds.best(rounds.depths(Geometric(i["alpha"]), draft_cost=float(cost), max_k=i["k_max"]))
    return {"c": cost, "k": top.k, "speedup": top.speedup}


def unquantised_module(i: Inputs) -> Any:
    cost = levers.kept_draft_cost(i["c_bf16"], i["bf16_gb"], i["gb"])
    stream = weight_stream_tokens_per_second(i["gb"] * GB, bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12)
    return {"c": cost, "toks": stream * rounds.speedup(i["alpha"], i["k"], float(cost))}


def printed_chain(i: Inputs) -> Any:
    """The lecture's rounded intermediate values, carried on by hand as it does."""
    const, slope = i["coef"] * i["weight_gb"], i["coef"] * i["kv_gb"]
    batch = operating_range.textbook_break_even(
        i["coef"],
        1,
        weight_bytes=i["weight_gb"],
        kv_bytes_per_sequence=i["kv_gb"],
        seconds_per_position=i["compute_slope"],
        bandwidth_bytes_per_s=1.0,
    )
    return {"const": const, "slope": slope, "B": batch}


COMPOSE: dict[str, Callable[[Inputs], Any]] = {
    "compose-ex5-kv-gb": lambda i: i["tokens"] * i["kib_per_token"] * 1000 / GB,
    "compose-ex5-compute-slope": lambda i: (
        1e3
        * roofline.step_seconds(
            i["positions"] * i["gflop"] * 1e9,
            0.0,
            flops_per_s=i["effective_tflops"] * 1e12,
            bandwidth_bytes_per_s=1.0,
        )
    ),
    "compose-ex5-coefficient": lambda i: tokens_per_round(i["alpha"], i["k"]) / i["bw_tb_s"],
    "compose-ex5-breakeven-k4": lambda i: after_quantising(i, i["weight_gb"], i["convention"]),
    "compose-ex5-breakeven-k3": lambda i: after_quantising(i, i["weight_gb"], i["convention"]),
    "compose-ex5-fall-factor": lambda i: fall({**LECTURE, **i}),
    "compose-ex5-breakeven-draft": lambda i: {
        name: after_quantising(i, i["weight_gb"], name) for name in ("mult", "add")
    },
    "compose-draft-cost-after-w4": quantised_draft_cost,
    "compose-breakeven-identity": lambda i: fall({**i, "w_before": i["weight_gb"]}),
    "compose-ex5-printed-chain": printed_chain,
    "compose-003-unquantised-draft": unquantised_module,
}


def thirty(i: Inputs, *, among: bool) -> Any:
    wanted = float(headroom.demand(i["batch"], i["requests"], i["k"], among=among))
    longer = float(headroom.overload(wanted, i["budget"]))
    return {"demand": wanted, "ratio": longer, "step_ms": i["step_ms"] * longer}


def everyone(i: Inputs) -> list[float]:
    found = headroom.lesson_surface(
        Geometric(i["alpha"]), budget=i["budget"], batches=i["batches"], draft_cost=i["tau"], max_k=i["k"]
    )
    rounds_alike = [
        headroom.mixed_round(
            [i["k"]] * batch, Geometric(i["alpha"]), batch=batch, budget=i["budget"], draft_cost=i["tau"]
        ).speedup
        for batch in i["batches"]
    ]
    assert found.speedup[i["k"], :, 0] == pytest.approx(rounds_alike)
    return rounds_alike


def everyone_breaks_even(i: Inputs) -> Any:
    """The lesson's step as a roofline: weights that take the budget's time, positions that take one each."""

    def batch(charge: str) -> float | None:
        return operating_range.textbook_break_even(
            float(tokens_per_round(i["alpha"], i["k"])),
            i["k"] + 1,
            weight_bytes=i["budget"],
            kv_bytes_per_sequence=0.0,
            seconds_per_position=1.0,
            bandwidth_bytes_per_s=1.0,
            draft_cost=i["tau"],
            charge=charge,
        )

    return {"no_draft": batch("none"), "with_draft": batch("added")}


def server(i: Inputs) -> Any:
    found = headroom.mixed_round(
        [i["k"]] * i["requests"],
        Geometric(i["alpha"]),
        batch=i["batch"],
        budget=i["budget"],
        draft_cost=i["tau"],
    )
    plain = i["batch"] / i["step_ms"]
    assert found.tokens / (i["step_ms"] * found.round_cost) == pytest.approx(plain * found.speedup)
    return {"plain": plain, "spec": plain * found.speedup}


A100: dict[str, Callable[[Inputs], Any]] = {
    "batch-a100-headroom-140": lambda i: headroom.headroom(i["batch"], i["budget"]),
    "batch-a100-one-request": lambda i: {
        "demand": headroom.demand(i["batch"], i["requests"], i["k"], among=False),
        "fits": headroom.last_batch_admitting(i["k"], i["budget"], requests=i["requests"]) >= i["batch"],
    },
    "batch-a100-max-requests-140": lambda i: headroom.slots(i["batch"], i["k"], i["budget"], among=False),
    "batch-a100-max-requests-20": lambda i: headroom.slots(i["batch"], i["k"], i["budget"], among=False),
    "batch-a100-thirty-requests": lambda i: thirty(i, among=False),
    "batch-a100-thirty-requests-shared": lambda i: thirty(i, among=True),
    "batch-a100-headroom-20": lambda i: {
        "headroom": headroom.headroom(i["batch"], i["budget"]),
        "demand": headroom.demand(i["batch"], i["batch"], i["k"]),
    },
    "batch-a100-all-free-limit": lambda i: [
        headroom.largest_free_batch(i["k"], i["budget"], among=among) for among in (False, True)
    ],
    "batch-a100-all-speculate-gain": everyone,
    "batch-a100-all-speculate-breakeven": everyone_breaks_even,
    "batch-a100-throughput-140": server,
}


def shares(i: Inputs, rule: str, headroom_units: int = 36) -> headroom.FairShare:
    """Ten sessions of k = 4 on top of a batch that leaves 36 positions, shared by one rule."""
    rows = headroom.compare_rules(
        i.get("sessions", 10),
        4,
        Geometric(i.get("alpha", 0.7)),
        batch=156 - i.get("headroom", headroom_units),
        budget=156,
        draft_cost=i.get("tau", 0.1),
        among=False,
    )
    return next(row for row in rows if row.rule == rule)


def granted(i: Inputs) -> Any:
    row = shares(i, "priority grant")
    return {"granted": row.full, "used": row.units_used, "dropped": row.dropped}


def even(i: Inputs) -> Any:
    one, other = shares(i, "priority grant"), shares(i, "even split")
    assert one.full == i["grant"]
    assert set(other.depths) == {i["k_even"]}
    return {
        "concentrated_tokens": one.tokens,
        "even_tokens": other.tokens,
        "concentrated_per_time": one.tokens_per_step,
        "even_per_time": other.tokens_per_step,
    }


def filled(i: Inputs) -> Any:
    row = shares(i, "water-fill")
    assert sorted(row.depths) == [2] * 4 + [3] * 6
    assert row.units_used == 36
    return {"tokens": row.tokens, "per_time": row.tokens_per_step}


def best_depth(alpha: float, c: float, k_max: int = 32) -> rounds.Depth:
    return rounds.best(rounds.depths(Geometric(alpha), draft_cost=c, max_k=k_max))


def chat_range(i: Inputs) -> list[float]:
    """The draft costs, in steps of 0.0001, at which one of these depths is best."""
    good = [n for n in range(1, 400) if best_depth(i["alpha"], n * i["step"]).k in i["k_in"]]
    assert good == list(range(good[0], good[-1] + 1))
    return [good[0] * i["step"], good[-1] * i["step"]]


def core_chain(i: Inputs) -> list[float]:
    rate = {"flops_per_s": i["peak_tflops"] * 1e12, "bandwidth_bytes_per_s": i["bw_tb_s"] * 1e12}
    return [
        1e3 * float(roofline.step_seconds(i["weight_gb"] * 1e9, i["weight_gb"] * GB, **rate)),
        roofline.token_budget(*rate.values(), bytes_per_parameter=2.0),
        i["alpha"],
        float(tokens_per_round(i["alpha"], i["k"])),
        float(rounds.speedup(i["alpha"], i["k"], i["c"])),
    ]


POLICY: dict[str, Callable[[Inputs], Any]] = {
    "policy-fairness-headroom": lambda i: headroom.headroom(i["batch"], i["budget"]),
    "policy-fairness-demand": lambda i: headroom.demand(0, i["sessions"], i["k"], among=False),
    "policy-fairness-grant": granted,
    "policy-fairness-grant-single-count": lambda i: headroom.slots(156 - i["headroom"], i["k"], 156),
    "policy-fairness-even-split": even,
    "policy-fairness-waterfill": filled,
    "policy-diurnal-tiers": lambda i: list(
        headroom.tier(np.array(i["batches"]), i["k"], i["budget"], near_slots=i["near_slots"])
    ),
    "policy-diurnal-slots": lambda i: {
        "headroom": headroom.headroom(np.array(i["batches"]), i["budget"]),
        "slots": headroom.slots(np.array(i["batches"]), i["k"], i["budget"], among=False),
    },
    "policy-tier-cutpoints": lambda i: [
        headroom.largest_free_batch(i["k"], i["budget"], among=False),
        headroom.largest_free_batch(i["k"], i["budget"]),
        headroom.last_batch_admitting(i["k"], i["budget"]),
        i["budget"],
    ],
    # Whatever the source of its drafts, a chain of k is verified at k + 1 positions.
    "policy-near-saturated-cheap-draft": lambda i: [headroom.demand(1, 1, i["k"])] * 3,
    "policy-adaptive-kmax": lambda i: [
        headroom.largest_common_k(batch, n, i["budget"], among=False) for batch, n in i["pairs"]
    ],
    "policy-race-kink": lambda i: headroom.last_batch_admitting(i["k"], i["budget"]),
    "policy-race-chat-peak": lambda i: {
        "k": best_depth(i["alpha"], i["c"], i["k_max"]).k,
        "speedup": best_depth(i["alpha"], i["c"], i["k_max"]).speedup,
    },
    "policy-race-chat-tau-range": chat_range,
    "policy-race-code": lambda i: rounds.speedup(i["alpha"], i["k"], i["c"]),
    "policy-race-creative": lambda i: [rounds.speedup(i["alpha"], i["k"], c) for c in i["cs"]],
    "policy-band-2-to-35": lambda i: {
        name: rounds.speedup(alpha, i["k"], c) for name, (alpha, c) in i["options"].items()
    },
    "policy-core-chain": core_chain,
    # Counting what a lesson lists is no feature; the sum is checked so that the case is not skipped.
    "policy-count-mechanisms": lambda i: sum(i.values()),
}

MISC: dict[str, Callable[[Inputs], Any]] = {
    "misc-class-minutes": lambda i: sum(i["segments"]),  # bookkeeping of the lecture, as above
    "misc-vocab-1-of": lambda i: math.log2(i["vocab"]),
}

COMPUTE = {**COMPOSE, **A100, **POLICY, **MISC}
CASES = [
    case
    for case in cases(("compose", "policy", "misc", "batch"))
    if not str(case.id).startswith("batch") or str(case.id).startswith("batch-a100")
]


@pytest.mark.parametrize("case", CASES)
def test_golden(case: dict[str, Any]) -> None:
    assert matches(COMPUTE[case["id"]](case["inputs"]), case), case["note"]


def test_no_case_is_left_out() -> None:
    assert {str(case.id).removesuffix("-printed_wrong") for case in CASES} == set(COMPUTE)
