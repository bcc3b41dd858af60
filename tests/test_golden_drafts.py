"""Every golden value on verification, trees, draft methods and sample sizes, computed by public functions.

Expected values were recomputed from the lectures (tests/golden.json); where a lecture prints something else
the test's name says `printed_wrong` and the case's note says how.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from specmodel import rounds
from specmodel.acceptance import Geometric, PerPosition, expected_tokens, tokens_per_round
from specmodel.architecture import Architecture, Layer
from specmodel.drafters import formulas as draft_formulas
from specmodel.drafters import heads as draft_heads
from specmodel.drafters import lookahead
from specmodel.drafters.combined import Hybrid, Mixture
from specmodel.drafters.sources import DraftModel, EarlyExit, Lookup
from specmodel.evidence import trials
from specmodel.layers.feed_forward import Dense
from specmodel.layers.mixers import Attention
from specmodel.planning import headroom
from specmodel.sampling import candidate_set, exact
from specmodel.tree_search import best_tree
from specmodel.trees import Tree, any_taken, dense_nodes
from tests.golden_cases import ROWS, cases, matches

PREFIXES = (
    *("rej", "medusa", "tree", "eagle", "eagle2", "eagle3"),
    *("lookahead", "mtp", "pipeline", "alpha", "cross", "draft"),
)
LEFT_OUT = {"medusa-implied-speedup": "one printed number divided by another: nothing is modelled"}

Inputs = dict[str, Any]
TARGET = Architecture("any", "llama", 4096, 32_000, (), tied=False)


def speedup(i: Inputs) -> float:
    return float(rounds.speedup(i["alpha"], i["k"], i["c"]))


def tokens(i: Inputs) -> float:
    return float(tokens_per_round(i["alpha"], i["k"]))


def best_k(alpha: float, c: float, k_max: int) -> rounds.Depth:
    return rounds.best(rounds.depths(Geometric(alpha), draft_cost=c, max_k=k_max))


def layer(i: Inputs) -> Layer:
    """The textbook layer, 12 d^2: one KV head per head, two feed-forward matrices of 4d."""
    return Layer(Attention(i["d"] // 128, i["d"] // 128, 128, 128), Dense(4 * i["d"], gated=False))


def eagle_parameters(i: Inputs) -> int:
    return draft_heads.eagle("lesson", layer(i), i["d"], 128_000).parameters


def medusa_matrix(i: Inputs, which: int) -> int:
    """Elements of one Medusa head's residual block (0) or projection onto the vocabulary (1)."""
    head = draft_heads.medusa("lesson", i["d"], i.get("vocab", 128_000), heads=1)
    return head.others[which][1].elements


def table(i: Inputs) -> Any:
    return exact(i["p"], i["q"])


def hybrid(i: Inputs, failed: bool) -> Hybrid:
    return Hybrid(
        hit=Lookup(ratio=i["tau_hit"], per_token=True),
        miss=DraftModel(ratio=i["tau_miss"]),
        hit_share=i["cover"],
        charge_failed=failed,
    )


def hybrid_speedup(i: Inputs) -> float:
    law = Mixture(i["cover"], Geometric(i["alpha_hit"]), Geometric(i["alpha_miss"]))
    return hybrid(i, failed=False).depths(law, max_k=i["k"])[-1].speedup


def requests(i: Inputs, *, tested_only: bool) -> float:
    return trials.requests_needed(i["n"], i["tokens"], i["alpha"], i["k"], tested_only=tested_only)


def medusa_step(i: Inputs, root: int) -> float:
    return float(i["step_ms"] * headroom.overload(i["nodes"] + root, i["budget"]))


def coverage(i: Inputs) -> dict[str, float]:
    dense = Tree.dense([len(i["masses"])] * i["heads"]).expected_tokens(i["masses"])
    kept = best_tree(i["masses"], i["keep"], i["heads"]).expected_tokens(i["masses"])
    return {"dense": dense, "top64": kept, "share_of_extra": (kept - 1.0) / (dense - 1.0)}


def chain_against_tree(i: Inputs) -> dict[str, float]:
    tree = Tree.dense(i["widths"])
    rates = [i["alpha"]] * max(i["widths"])
    return {
        "chain": Tree.chain(i["chain"]).expected_tokens([i["alpha"]]),
        "tree": tree.expected_tokens(rates, siblings="independent"),
    }


def half_each(i: Inputs) -> list[float]:
    def at(alpha: float, c: float) -> float:
        return float(rounds.speedup(alpha, i["k"], c))

    base, full = at(i["alpha0"], i["c0"]), at(i["alpha1"], i["c1"])
    partial = [at(i["alpha1"], i["c0"]), at(i["alpha0"], i["c1"])]
    return [(one - base) / (full - base) for one in partial]


def per_parameter(i: Inputs) -> dict[str, float | None]:
    """Per billion parameters: at one byte each, per GB."""
    small, eagle = (
        draft_formulas.speedup_per_gb(gain, params * 1e9) for gain, params in (i["small"], i["eagle"])
    )
    assert eagle is not None
    return {"small": small, "eagle": eagle, "medusa_tie_speedup": eagle * i["medusa_params_b"]}


def pool(i: Inputs) -> dict[str, float]:
    passes = lookahead.mean_passes(i["hit"], i["passes_hit"], i["passes_cold"])
    warm = lookahead.tokens_per_pass(i["window"], passes)
    cold = lookahead.tokens_per_pass(i["window"], i["passes_cold"])
    return {"pool": warm, "cold": cold, "gain": warm / cold}


EQUATIONS, RIGHT = [[2.0, 1.0], [1.0, 3.0]], [6.0, 7.0]  # 2x + y = 6, x + 3y = 7


def fixed_point(i: Inputs) -> list[float]:
    values = [0.0, 0.0]
    for _ in range(80):
        values = lookahead.jacobi_sweep(EQUATIONS, RIGHT, values)
    assert values == pytest.approx(lookahead.gauss_seidel_sweep(EQUATIONS, RIGHT, values), abs=1e-14)
    return values


def naive(i: Inputs) -> Any:
    return exact(i["p"], i["q"], rule="top-1")


def reconstructed(i: Inputs) -> list[float]:
    """The draft law that the text implies, and that it gives back the text's acceptances and leftovers."""
    first, last = i["p"][0] - i["residual_mass"][0], i["p"][2]
    q = [first, 1.0 - first - last, last]
    found = exact(i["p"], q)
    assert found.accept == pytest.approx(i["accept"])
    assert found.corrected_mass == pytest.approx(i["residual_mass"])
    return q


def sources(i: Inputs) -> dict[str, rounds.Depth]:
    return {name: best_k(alpha, c, i["k_max"]) for name, (alpha, c) in i["options"].items()}


COMPUTE: dict[str, Callable[[Inputs], Any]] = {
    # exact verification
    "rej-greedy-identity": lambda i: {"alpha": table(i).overlap, "output": table(i).emitted},
    "rej-identity-000": lambda i: table(i).accepted_mass + table(i).corrected_mass,
    "rej-abc-q-reconstructed": reconstructed,
    "rej-abc-accept": lambda i: table(i).accept,
    "rej-abc-ratio-c": lambda i: exact([i["p"], 1 - i["p"]], [i["q"], 1 - i["q"]]).accept[0],
    "rej-abc-residual": lambda i: table(i).residual,
    "rej-abc-residual-mass": lambda i: table(i).corrected_mass.sum(),
    "rej-abc-output": lambda i: table(i).emitted,
    "rej-abc-alpha": lambda i: table(i).overlap,
    "rej-naive-collapse": lambda i: naive(i).emitted,
    "rej-naive-tv": lambda i: naive(i).distance,
    "rej-naive-accept-rate": lambda i: naive(i).overlap,
    "rej-perfect-draft": lambda i: table(i).overlap,
    "rej-disjoint-draft": lambda i: {"alpha": table(i).overlap, "output": table(i).emitted},
    "rej-003-min": lambda i: table(i).accepted_mass,
    "rej-003-alpha": lambda i: table(i).overlap,
    "rej-003-residual": lambda i: table(i).residual,
    "rej-003-output": lambda i: table(i).emitted,
    # how much to measure
    "alpha-n-trials": lambda i: trials.trials_needed(i["alpha"], i["half_width"], z=i["z"]),
    "alpha-verifs-per-request": lambda i: trials.rounds_per_request(i["tokens"], i["alpha"], i["k"]),
    "alpha-drafted-per-request": lambda i: (
        i["k"] * trials.rounds_per_request(i["tokens"], i["alpha"], i["k"])
    ),
    "alpha-requests": lambda i: requests(i, tested_only=False),
    "alpha-requests-ceil": lambda i: math.ceil(requests(i, tested_only=False)),
    "alpha-requests-tested-only": lambda i: {
        "tested_per_pass": trials.tested_per_round(i["alpha"], i["k"]),
        "requests": math.ceil(requests(i, tested_only=True)),
    },
    "alpha-requests-inflated": lambda i: [
        trials.with_design_effect(i["base"], factor) for factor in i["factors"]
    ],
    "alpha-interval-sqrt-step": lambda i: trials.standard_error_allowed(i["half_width"], z=i["z"]),
    "alpha-interval-variance-step": lambda i: trials.standard_error_allowed(i["half_width"], z=i["z"]) ** 2,
    "alpha-fraction-is-not-alpha": lambda i: trials.accepted_share(i["alpha"], i["k"]),
    "alpha-fraction-plugback": lambda i: speedup({**i, "alpha": trials.accepted_share(i["alpha"], i["k"])}),
    "alpha-1000-rounds": lambda i: trials.half_width_after(i["rounds"], i["alpha"], i["k"], z=i["z"]),
    # draft sources
    "draft-small-chat": speedup,
    "draft-lookup-code": speedup,
    "draft-lookup-code-e": tokens,
    "draft-lookup-summary": speedup,
    "draft-lookup-creative": speedup,
    "draft-lookup-no-match": speedup,
    "draft-retrieval": speedup,
    "draft-self-tau": lambda i: EarlyExit(exit_layer=i["exit_layer"], layers=i["layers"]).ratio,
    "draft-self-spec": speedup,
    "draft-ranking": lambda i: sorted(
        i["options"], key=lambda name: -rounds.speedup(i["options"][name][0], i["k"], i["options"][name][1])
    ),
    "draft-best-k": lambda i: {
        name: {"k": depth.k, "speedup": depth.speedup} for name, depth in sources(i).items()
    },
    "draft-memory-gb": lambda i: (
        DraftModel(parameters=round(i["params_b"] * 1e9)).extra_bytes(
            TARGET, weight_bytes=i["bytes_per_param"]
        )
        / 1e9
    ),
    "draft-hybrid-tau": lambda i: hybrid(i, failed=False).draft_cost(1),
    "draft-hybrid-tau-with-failed-lookup": lambda i: hybrid(i, failed=True).draft_cost(1),
    "draft-hybrid-speedup": hybrid_speedup,
    # trees and Medusa
    "tree-7-node-chain-vs-tree": chain_against_tree,
    "medusa-dense-4-4": lambda i: dense_nodes([i["top"]] * i["heads"]),
    "medusa-dense-4-3": lambda i: dense_nodes([i["top"]] * i["heads"]),
    "medusa-dense-2-2": lambda i: dense_nodes([i["top"]] * i["heads"]),
    "medusa-mask-2-2": lambda i: Tree.dense([i["top"]] * i["heads"]).mask().sum(),
    "medusa-dense-grid": lambda i: [
        [dense_nodes([top] * heads) for top in i["tops"]] for heads in i["heads"]
    ],
    "medusa-dense-vs-budget": lambda i: headroom.budget_share(i["nodes"], i["budget"]),
    "medusa-dense-step-ms": lambda i: {"nodes_only": medusa_step(i, 0), "with_root": medusa_step(i, 1)},
    "medusa-sparse-share-pct": lambda i: 100 * headroom.budget_share(i["nodes"], i["budget"]),
    "medusa-sparse-max-requests": lambda i: [
        headroom.slots(0, each - 1, i["budget"], among=False) for each in i["positions"]
    ],
    "medusa-naive-head-params-m": lambda i: medusa_matrix(i, 1) / 1e6,
    "medusa-naive-4-heads-vs-draft": lambda i: draft_formulas.weight_ratio(
        i["heads"] * medusa_matrix(i, 1),
        i["draft_m"] * 1e6,
    ),
    "medusa-head-params-m": lambda i: i["heads"] * medusa_matrix(i, 0) / 1e6,
    "medusa-head-params-one-m": lambda i: i["heads"] * medusa_matrix(i, 0) / 1e6,
    "medusa-head-mb": lambda i: i["heads"] * medusa_matrix(i, 0) * i["bytes"] / 1e6,
    "medusa-head-share-pct": lambda i: (
        100 * i["heads"] * medusa_matrix(i, 0) * i["bytes"] / (i["target_gb"] * 1e9)
    ),
    "medusa-mass-tail-vs-top": lambda i: any_taken(i["masses"][2:]) / any_taken(i["masses"][:1]),
    "medusa-mass-tail-vs-total": lambda i: any_taken(i["masses"][2:]) / any_taken(i["masses"]),
    "medusa-sparse-64-coverage": coverage,
    "medusa-best-of-2": lambda i: any_taken([i["p"]] * i["s"], siblings="independent"),
    "medusa-best-of-2-exclusive": lambda i: any_taken([i["p"]] * i["s"], siblings="exclusive"),
    "medusa-tree-e": lambda i: expected_tokens(PerPosition.from_conditional(i["level_survival"]), 2),
    "medusa-chain-e": tokens,
    "medusa-tree-e-like-for-like": lambda i: expected_tokens(
        PerPosition.from_conditional(i["level_survival"]), 2
    ),
    # EAGLE
    "eagle-token-bits": lambda i: draft_formulas.token_bits(i["vocab"]),
    "eagle-hidden-bits-ratio": lambda i: math.log10(
        draft_formulas.feature_to_token_bits(i["d"], i["vocab"], element_bits=i["bits"])
    ),
    "eagle-layer-params-b": lambda i: layer(i).parameters(i["d"]) / 1e9,
    "eagle-total-params-b": lambda i: eagle_parameters(i) / 1e9,
    "eagle-tau": lambda i: draft_formulas.weight_ratio(i["draft_b"] * 1e9, i["target_b"] * 1e9),
    "eagle-token-level": speedup,
    "eagle-speedup": speedup,
    "eagle-alpha-only": speedup,
    "eagle-tau-only": speedup,
    "eagle-half-each": half_each,
    "eagle-vs-token-ratio": lambda i: (
        rounds.speedup(i["alpha1"], i["k"], i["c1"]) / rounds.speedup(i["alpha0"], i["k"], i["c0"])
    ),
    "eagle-param-fraction": lambda i: draft_formulas.weight_ratio(i["eagle_b"], i["draft_b"]),
    "eagle-speedup-per-bparam": per_parameter,
    "eagle-effective-alpha": lambda i: [rounds.pays_from_alpha(i["k"], value) for value in i["tokens"]],
    "eagle-70b-tau": lambda i: draft_formulas.weight_ratio(eagle_parameters(i), i["target_b"] * 1e9),
    "eagle-best-k": lambda i: {
        "k": best_k(i["alpha"], i["c"], i["k_max"]).k,
        "speedup": best_k(i["alpha"], i["c"], i["k_max"]).speedup,
    },
    "eagle-vs-small-by-baseline": lambda i: [
        rounds.speedup(i["alpha_eagle"], i["k"], i["c_eagle"]) / rounds.speedup(alpha, i["k"], i["c_small"])
        for alpha in i["alphas"]
    ],
    "eagle2-tokens": lambda i: draft_formulas.raised_tokens(i["alpha"], i["k"], i["gain"]),
    "eagle2-speedup": lambda i: (
        draft_formulas.raised_tokens(i["alpha"], i["k"], i["gain"])
        / rounds.round_cost(i["k"], draft_cost=i["c"])
    ),
    "eagle2-range": lambda i: [draft_formulas.raised_tokens(i["alpha"], i["k"], gain) for gain in i["gains"]],
    "eagle3-tokens": lambda i: draft_formulas.raised_tokens(i["alpha"], i["k"], i["gain2"], i["gain3"]),
    "eagle3-speedup": lambda i: (
        draft_formulas.raised_tokens(i["alpha"], i["k"], i["gain2"], i["gain3"])
        / rounds.round_cost(i["k"], draft_cost=i["c"])
    ),
    # lookahead
    "lookahead-gs-round1": lambda i: lookahead.gauss_seidel_sweep(EQUATIONS, RIGHT, [i["x0"], i["y0"]]),
    "lookahead-jacobi-round1": lambda i: lookahead.jacobi_sweep(EQUATIONS, RIGHT, [i["x0"], i["y0"]]),
    "lookahead-jacobi-round2": lambda i: lookahead.jacobi_sweep(EQUATIONS, RIGHT, [i["x0"], i["y0"]]),
    "lookahead-fixed-point": fixed_point,
    "lookahead-w8-3-passes": lambda i: lookahead.tokens_per_pass(sum(i["confirmed"]), len(i["confirmed"])),
    "lookahead-w8-ms": lambda i: [
        i["step_ms"] * i["tokens"] / lookahead.tokens_per_pass(i["tokens"], passes)
        for passes in (i["passes"], i["tokens"])
    ],
    "lookahead-worst-case": lambda i: [lookahead.tokens_per_pass(window, window) for window in i["windows"]],
    "lookahead-best-2-passes": lambda i: [
        lookahead.tokens_per_pass(i["window"], passes) for passes in i["passes"]
    ],
    "lookahead-pool-avg-passes": lambda i: lookahead.mean_passes(i["hit"], i["passes_hit"], i["passes_cold"]),
    "lookahead-pool-tokens-per-pass": pool,
    "lookahead-window-share-pct": lambda i: [
        100 * headroom.budget_share(window, i["budget"]) for window in i["windows"]
    ],
    "lookahead-eos-waste": lambda i: lookahead.positions_wasted(i["window"], i["remaining"]),
    "lookahead-never-slower-batch": lambda i: [
        1.0 / headroom.overload(batch * i["window"], i["budget"]) for batch in i["batches"]
    ],
    # the rest
    "pipeline-bounds": lambda i: [
        getattr(draft_formulas.pipeline_bounds(i["alpha"], i["k"], i["tau"]), name)
        for name in ("sequential", "reused", "perfect")
    ],
    "mtp-003-e": tokens,
    "mtp-003-s": speedup,
    "cross-optimal-k-by-c": lambda i: [best_k(i["alpha"], c, i["k_max"]).k for c in i["cs"]],
}


@pytest.mark.parametrize("case", cases(PREFIXES, tuple(LEFT_OUT)))
def test_golden(case: dict[str, Any]) -> None:
    assert matches(COMPUTE[case["id"]](case["inputs"]), case), case["note"]


def test_no_case_is_left_out_in_silence() -> None:
    ids = {row["id"] for row in ROWS if row["id"].split("-")[0] in PREFIXES}
    assert set(COMPUTE) | set(LEFT_OUT) == ids
    assert not set(COMPUTE) & set(LEFT_OUT)


def test_the_lesson_of_exclusive_candidates() -> None:
    """The printed 0.64 treats two distinct tokens as independent; they exclude each other."""
    top = candidate_set([0.4, 0.4, 0.2], [0.4, 0.4, 0.2], 2, drawn="top")
    assert top.overlap == pytest.approx(any_taken([0.4, 0.4], siblings="exclusive"))
