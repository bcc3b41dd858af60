"""Every golden value on the formula, the textbook roofline, break-even, context, KV cache and number formats.

Expected values were recomputed from the lectures by hand (tests/golden.json); where the lecture prints something else
the test's name says `printed_wrong` and the case's note says how. Each value is computed here from the case's inputs
by the public functions that the commands use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specmodel import operating_range, roofline, rounds
from specmodel.acceptance import Geometric, ceiling, expected_tokens, round_law, tokens_per_round
from specmodel.architecture import Attention
from specmodel.datasheets import Device
from specmodel.deployment import Deployment
from specmodel.engine import IDEAL
from specmodel.formats import custom_format, weight_bytes, weight_stream_tokens_per_second
from specmodel.ledger import memory
from specmodel.model import Totals
from specmodel.passes import Split
from specmodel.roofline import Textbook
from specmodel.units import GB, KIB
from tests.golden_cases import cases, matches

PREFIXES = ("geom", "roofline", "batch", "ctx", "kv", "quant")
ELSEWHERE = {"batch-a100": "shared headroom of a batch: tested with the policies"}
CHARGE = {"none": "none", "mult": "scaled", "add": "added"}
Inputs = dict[str, Any]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def deployment(i: Inputs, kv_gb: float | None = None) -> Deployment:
    """The lecture's step model: one 'token' of context carries the whole cache of a sequence."""
    rate = i.get("effective_tflops", 494.5) * 1e12
    device = Device(
        id="lecture",
        name="the lecture's GPU",
        architecture="Hopper",
        memory_bytes=80e9,
        bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12,
        peak_flops_per_s={"bf16": rate},
    )
    cache = i["kv_gb_per_seq"] if kv_gb is None else kv_gb
    totals = Totals("lecture", i["weight_gb"] * GB, i["gflop"] * 1e9, cache * GB)
    return Deployment(totals, device, Textbook(device), Split(), 0.95, IDEAL, (), ())


def terms_ms(i: Inputs, batch: int, k: int, kv_gb: float | None = None) -> tuple[float, float]:
    taken = deployment(i, kv_gb).pass_time(batch, 1, k + 1)
    return float(taken.memory_seconds) * 1e3, float(taken.compute_seconds) * 1e3


def gain(
    i: Inputs, batch: int, k: int, convention: str, kv_gb: float | None = None, c: float | None = None
) -> float:
    tokens = np.array([tokens_per_round(i["alpha"], j) for j in range(k + 1)])
    cost = i.get("c", 0.0) if c is None else c
    return float(
        deployment(i, kv_gb).speedups(
            tokens, k=k, batch=batch, context=1, draft_cost=cost, charge=CHARGE[convention]
        )
    )


def best_gain(i: Inputs, batch: int, convention: str, k_max: int) -> tuple[int, float]:
    gains = [1.0, *(gain(i, batch, k, convention) for k in range(1, k_max + 1))]
    k = int(np.argmax(gains))
    return k, gains[k]


def crossing(
    i: Inputs, k: int, convention: str, kv_gb: float | None = None, tokens: float | None = None
) -> float | None:
    return operating_range.textbook_break_even(
        tokens_per_round(i["alpha"], k) if tokens is None else tokens,
        i.get("positions", k + 1),
        weight_bytes=i["weight_gb"] * GB,
        kv_bytes_per_sequence=(i["kv_gb_per_seq"] if kv_gb is None else kv_gb) * GB,
        seconds_per_position=i["gflop"] / i["effective_tflops"] * 1e-3,
        bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12,
        draft_cost=i.get("c", 0.0),
        charge=CHARGE[convention],
    )


def best_depth(alpha: float, c: float, k_max: int) -> rounds.Depth:
    return rounds.best(rounds.depths(Geometric(alpha), draft_cost=c, max_k=k_max))


def kv_kib(i: Inputs) -> float:
    mixer = Attention(
        heads=i["kv_heads"], kv_heads=i["kv_heads"], head_dim=i["head_dim"], value_dim=i["head_dim"]
    )
    return float(i["layers"] * mixer.cache_elements_per_token * i["bytes"] / KIB)


def flat_loss(i: Inputs) -> float:
    rows = rounds.depths(Geometric(i["alpha"]), draft_cost=i["c"], max_k=i["k_max"])
    return 100 * max(rounds.regret(rows, k) for k in range(i["k_lo"], i["k_hi"] + 1))


def fixed_regret(i: Inputs, alpha: float, k: int) -> float:
    return 100 * rounds.regret(rounds.depths(Geometric(alpha), draft_cost=i["c"], max_k=i["k_max"]), k)


def speed(i: Inputs) -> Any:
    return rounds.speedup(i["alpha"], i["k"], i["c"])


def speeds(i: Inputs) -> Any:
    if "alphas" in i:
        return rounds.speedup(np.array(i["alphas"]), i["k"], i["c"])
    return rounds.speedup(i["alpha"], np.array(i["ks"]), i["c"])


def tokens(i: Inputs) -> Any:
    return tokens_per_round(i["alpha"], i["k"])


def peak(i: Inputs) -> Any:
    top = best_depth(i["alpha"], i["c"], i["k_max"])
    return {"k": top.k, "speedup": top.speedup}


def spread(i: Inputs) -> float:
    tops = [best_depth(a, c, i["k_max"]).speedup for a, c in zip(i["alphas"], i["cs"], strict=True)]
    return 100 * (1 - min(tops) / max(tops))


def law(i: Inputs) -> Any:
    found = round_law(Geometric(i["alpha"]), i["k"])
    return {"pmf": list(found.pmf), "mean": found.mean, "sd": found.deviation}


def ratio(i: Inputs) -> float:
    return float(i["draft_b"] / i["target_b"])


GEOM: dict[str, Callable[[Inputs], Any]] = {
    "geom-ceiling": lambda i: [ceiling(a) for a in i["alphas"]],
    "geom-ceiling-07": lambda i: [ceiling(a) for a in i["alphas"]],
    "geom-flat-peak-08": flat_loss,
    "geom-payoff-ratio": lambda i: (
        best_depth(i["alphas"][1], i["c"], i["k_max"]).speedup
        / best_depth(i["alphas"][0], i["c"], i["k_max"]).speedup
    ),
    "geom-fixed-k-regret": lambda i: [fixed_regret(i, a, i["k"]) for a in i["alphas"]],
    "geom-k6-near-optimal": lambda i: fixed_regret(i, i["alpha"], i["k"]),
    "geom-tenth-size-four-runs": lambda i: rounds.round_cost(i["k"], draft_cost=i["ratio"]) - 1,
    "geom-ex1-spread-pct": spread,
    "geom-ex1-powers": lambda i: [
        Geometric(a).survival(k + 1)[-1] for a, k in zip(i["alphas"], i["ks"], strict=True)
    ],
    "geom-ex1-costs": lambda i: [
        rounds.round_cost(k, draft_cost=c) for k, c in zip(i["ks"], i["cs"], strict=True)
    ],
    # A count of candidates times alpha is the guess that the lecture warns of; k = 1 is where it is right.
    "geom-naive-guess": lambda i: i["candidates"] * (tokens_per_round(i["alpha"], 1) - 1),
    "geom-draft-ms": lambda i: (rounds.round_cost(1, draft_cost=i["tau"]) - 1) * i["step_ms"],
    "geom-neg-draft-ms": lambda i: (rounds.round_cost(i["k"], draft_cost=i["tau"]) - 1) * i["step_ms"],
    "geom-round-ms": lambda i: rounds.round_cost(i["k"], draft_cost=i["tau"]) * i["step_ms"],
    "geom-sens-gain-03-07": lambda i: (
        rounds.speedup(i["b"], i["k"], i["c"]) - rounds.speedup(i["a"], i["k"], i["c"])
    ),
    "geom-sens-gain-07-09": lambda i: (
        rounds.speedup(i["b"], i["k"], i["c"]) - rounds.speedup(i["a"], i["k"], i["c"])
    ),
    "geom-neg-throughput-loss": lambda i: {
        "throughput_loss": 100 * (1 - speed(i)),
        "extra_time": 100 * (1 / speed(i) - 1),
    },
    "geom-breakeven-alpha": lambda i: [
        rounds.pays_from_alpha(k, rounds.round_cost(k, draft_cost=i["c"])) for k in i["ks"]
    ],
    "geom-pmax-07-4": lambda i: round_law(Geometric(i["alpha"]), i["k"]).pmf[-1],
    "geom-round-law-07-4": law,
    "geom-c-1b": ratio,
    "geom-c-350m": ratio,
    "geom-tau-700m": ratio,
}


def kv_budget_bytes(card: float, fraction: float, weights: float) -> float:
    held = Totals("lecture", weights, 1.0, 1.0)
    return memory(held, memory_bytes=card, memory_fraction=fraction, context=1).kv_pool_bytes


def sequences_that_fit(budget: float, bytes_per_sequence: float) -> int:
    """One byte of weights beside the budget: a model without weights is none."""
    held = Totals("lecture", 1.0, 1.0, bytes_per_sequence)
    return memory(held, memory_bytes=budget + 1.0, memory_fraction=1.0, context=1).max_batch


def roof(i: Inputs) -> tuple[float, float]:
    return i["peak_tflops"] * 1e12, i["bw_tb_s"] * 1e12


def busy(i: Inputs, rate: str) -> float:
    step = roofline.step_seconds(
        i["gflop"] * 1e9, i["weight_gb"] * GB, flops_per_s=1e18, bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12
    )
    return 100 * float(roofline.busy_share(i["gflop"] * 1e9, step, i[rate] * 1e12))


def stream_ms(gigabytes: float, bw_tb_s: float) -> float:
    return 1e3 * float(
        roofline.step_seconds(0.0, gigabytes * GB, flops_per_s=1.0, bandwidth_bytes_per_s=bw_tb_s * 1e12)
    )


def arithmetic_ms(gflop: float, tflops: float) -> float:
    return 1e3 * float(
        roofline.step_seconds(gflop * 1e9, 0.0, flops_per_s=tflops * 1e12, bandwidth_bytes_per_s=1.0)
    )


def intensity(i: Inputs) -> Any:
    per_byte = i["positions"] * i["gflop"] / (i["weight_gb"] + i["kv_gb_per_seq"])
    return {"flop_per_byte": per_byte, "past_ridge": per_byte > i["ridge"]}


ROOFLINE: dict[str, Callable[[Inputs], Any]] = {
    "roofline-h100-params-to-gflop": lambda i: i["params_b"] * i["flop_per_param"],
    "roofline-h100-weight-gb": lambda i: weight_bytes(i["params_b"] * 1e9, "bf16") / GB,
    "roofline-a100-weight-gb": lambda i: weight_bytes(i["params_b"] * 1e9, "bf16") / GB,
    "roofline-h100-step-ms": lambda i: stream_ms(i["weight_gb"], i["bw_tb_s"]),
    "roofline-a100-step-ms": lambda i: stream_ms(i["weight_gb"], i["bw_tb_s"]),
    "roofline-h100-step-with-kv-ms": lambda i: stream_ms(
        i["weight_gb"] + i["batch"] * i["kv_gb_per_seq"], i["bw_tb_s"]
    ),
    "roofline-h100-flop-per-byte": lambda i: i["gflop"] / i["weight_gb"],
    "roofline-h100-ridge": lambda i: roofline.ridge(*roof(i)),
    "roofline-h100-util-pct": lambda i: busy(i, "peak_tflops"),
    "roofline-h100-idle-pct": lambda i: 100 - busy(i, "peak_tflops"),
    "roofline-h100-util-effective-pct": lambda i: busy(i, "effective_tflops"),
    "roofline-h100-effective-fraction": lambda i: i["effective_tflops"] / i["peak_tflops"],
    "roofline-h100-ms-per-token": lambda i: arithmetic_ms(i["gflop"], i["effective_tflops"]),
    "roofline-verify-5-positions-ms": lambda i: arithmetic_ms(
        i["positions"] * i["gflop"], i["effective_tflops"]
    ),
    "roofline-verify-4-extra-ms": lambda i: arithmetic_ms(i["positions"] * i["gflop"], i["effective_tflops"]),
    "roofline-verify-intensity": intensity,
    "roofline-h100-max-free-k-batch1": lambda i: (
        roofline.largest_free_width(
            stream_ms(i["weight_gb"] + i["kv_gb_per_seq"], i["bw_tb_s"]) / 1e3,
            arithmetic_ms(i["gflop"], i["effective_tflops"]) / 1e3,
        )
        - 1
    ),
    "roofline-a100-budget": lambda i: roofline.token_budget(
        *roof(i), bytes_per_parameter=i["bytes_per_param"], flops_per_parameter=i["flop_per_param"]
    ),
    "roofline-a100-token-compute-ms": lambda i: arithmetic_ms(i["gflop"], i["peak_tflops"]),
    "roofline-a100-util-pct": lambda i: 100 / i["budget"],
    "roofline-a100-idle-pct": lambda i: 100 - 100 / i["budget"],
    "roofline-a100-budget-half-peak": lambda i: roofline.ridge(
        i["fraction"] * i["peak_tflops"] * 1e12, i["bw_tb_s"] * 1e12
    ),
    "roofline-70b-2xh100": lambda i: {
        "step_ms": stream_ms(weight_bytes(i["params_b"] * 1e9, "bf16") / GB, i["gpus"] * i["bw_tb_s"]),
        "budget": roofline.ridge(i["gpus"] * i["peak_tflops"] * 1e12, i["gpus"] * i["bw_tb_s"] * 1e12),
    },
    "roofline-cross-idle": lambda i: [
        roofline.ridge(peak * 1e12, bandwidth * 1e12) for peak, bandwidth in (i["h100"], i["a100"])
    ],
}

KV: dict[str, Callable[[Inputs], Any]] = {
    "kv-gqa8-kib-per-token": kv_kib,
    "kv-mha-reduction": lambda i: kv_kib(i) / i["compressed_kib"],
    "kv-gqa8-to-20kib": lambda i: i["gqa8_kib"] / i["compressed_kib"],
    "kv-seq-640-mixed-gb": lambda i: i["tokens"] * i["kib_per_token"] * 1000 / GB,
    "kv-seq-640-binary-gb": lambda i: i["tokens"] * i["kib_per_token"] * KIB / GB,
    "kv-seq-16k-gb": lambda i: i["tokens"] * i["kib_per_token"] * KIB / GB,
    "kv-budget-gb": lambda i: kv_budget_bytes(i["hbm_gb"] * GB, i["usable"], i["weight_gb"] * GB) / GB,
    "kv-max-seqs": lambda i: sequences_that_fit(i["budget_gb"] * GB, i["kv_gb_per_seq"] * GB),
    "kv-max-seqs-binary": lambda i: sequences_that_fit(
        i["budget_gb"] * GB, i["tokens"] * i["kib_per_token"] * KIB
    ),
    "kv-max-seqs-16k": lambda i: sequences_that_fit(
        i["budget_gb"] * GB, i["tokens"] * i["kib_per_token"] * KIB
    ),
    "kv-max-seqs-16k-with-draft": lambda i: sequences_that_fit(
        i["budget_gb"] * GB, i["tokens"] * i["kib_per_token"] * KIB * (1 + i["draft_ratio"])
    ),
    "kv-draft-kib-per-token": lambda i: i["target_kib"] / i["ratio"],
    "kv-draft-seq-gb": lambda i: i["tokens"] * i["kib_per_token"] * 1000 / GB,
    "kv-draft-increase-pct": lambda i: 100 * i["draft_gb"] / i["target_gb"],
    "kv-draft-share-claim": lambda i: {
        "pct_of_target_kv": 100 / i["ratio"],
        "pct_of_budget_b164": 100 * i["batch"] * i["draft_gb"] / i["budget_gb"],
    },
    "kv-draft-concurrency": lambda i: sequences_that_fit(
        i["budget_gb"] * GB, (i["target_gb"] + i["draft_gb"]) * GB
    ),
    "kv-draft-concurrency-loss-pct": lambda i: 100 * (1 - i["after"] / i["before"]),
    "kv-draft-with-weights": lambda i: sequences_that_fit(
        (i["budget_gb"] - i["draft_weight_gb"]) * GB, (i["target_gb"] + i["draft_gb"]) * GB
    ),
    "kv-step-bytes-b164": lambda i: terms_ms({**i, "bw_tb_s": 1.0, "gflop": 1.0}, i["batch"], 0)[0],
    "kv-step-bytes-b164-draft": lambda i: terms_ms(
        {**i, "bw_tb_s": 1.0, "gflop": 1.0}, i["batch"], 0, i["kv_gb_per_seq"] + i["draft_gb"]
    )[0],
    "kv-draft-added-ms": lambda i: stream_ms(i["batch"] * i["draft_gb"], i["bw_tb_s"]),
    "kv-draft-added-pct": lambda i: (
        100 * i["batch"] * i["draft_gb"] / terms_ms({**i, "bw_tb_s": 1.0, "gflop": 1.0}, i["batch"], 0)[0]
    ),
    "kv-draft-effect-on-step-b164": lambda i: {
        "without": max(terms_ms(i, i["batch"], i["k"])),
        "with_draft_kv": max(terms_ms(i, i["batch"], i["k"], i["kv_gb_per_seq"] + i["draft_gb"])),
    },
}


def off_by_one(i: Inputs) -> float:
    """The mistake that explains a printed number: six terms of tokens for five positions."""
    memory, _ = terms_ms(i, i["batch"], 0)
    _, compute = terms_ms(i, i["batch"], i["positions"] - 1)
    return float(tokens_per_round(i["alpha"], i["terms"] - 1)) * memory / compute


def yield_ratio(i: Inputs) -> Any:
    memory, _ = terms_ms(i, 164, 0)
    _, one = terms_ms(i, 1, 0)
    return {
        "model": [tokens_per_round(i["alpha"], k) / (k + 1) for k in i["ks"]],
        "implied": [printed * 164 * one / memory for printed in i["gains_b164"]],
    }


BATCH: dict[str, Callable[[Inputs], Any]] = {
    "batch-gain-b256-k1-as-printed": lambda i: i["E"] * i["mem_ms"] / i["comp_ms"] / i["draft"],
    "batch-closing-claim": lambda i: [best_gain(i, 1, "mult", 16)[1], gain(i, 256, 1, "mult")],
    "batch-gain-b164-best": lambda i: {
        name: dict(zip(("k", "gain"), best_gain(i, i["batch"], name, i["k_max"]), strict=True))
        for name in ("mult", "add")
    },
    "batch-alt-off-by-one-gain": off_by_one,
    "batch-alt-off-by-one-breakeven": lambda i: crossing(
        i, i["positions"] - 1, "none", tokens=float(tokens_per_round(i["alpha"], i["terms"] - 1))
    ),
    "batch-yield-ratio": yield_ratio,
    "batch-crossover": lambda i: [crossing({**i, "alpha": 0.0}, k, "none") for k in i["ks"]],
    "batch-k1-breakeven": lambda i: [crossing(i, i["k"], name) for name in ("none", "mult", "add")],
    "batch-b500-recommend": lambda i: {
        f"k{k}_{name}": gain(i, i["batch"], k, name) for name in ("none", "mult") for k in (1, 4)
    },
    "batch-adaptive-k-mult": lambda i: [best_gain(i, b, "mult", i["k_max"])[0] for b in i["batches"]],
    "batch-adaptive-k-add": lambda i: [best_gain(i, b, "add", i["k_max"])[0] for b in i["batches"]],
    "batch-ex2-printed-depths": lambda i: [best_gain(i, b, "mult", i["k_max"])[0] for b in i["batches"]],
}


def batch_case(name: str, i: Inputs) -> Any:
    """Cases whose formula follows from the name: terms, gains and crossings."""
    if name in BATCH:
        return BATCH[name](i)
    draft = i.get("draft_kv_gb")
    cache = None if draft is None else i["kv_gb_per_seq"] + draft
    if name.startswith("batch-mem"):
        return terms_ms(i, i["batch"], 0)[0]
    if name.startswith("batch-comp"):
        return terms_ms(i, i["batch"], i["k"])[1]
    if name.startswith("batch-columns"):
        return {
            "memory": terms_ms(i, i["batch"], 0)[0],
            "compute_k3": terms_ms(i, i["batch"], 3)[1],
            "compute_k4": terms_ms(i, i["batch"], 4)[1],
        }
    if name.startswith("batch-breakeven-all"):
        return [crossing(i, k, i["convention"]) for k in i["ks"]]
    if name.startswith("batch-breakeven"):
        return crossing(i, i["k"], i["convention"], cache)
    if "k" in i:
        return gain(i, i["batch"], i["k"], i["convention"], cache)
    k, value = best_gain(i, i["batch"], i["convention"], i["k_max"])
    return {"k": k, "speedup": value}


def critical(i: Inputs, k: int) -> float:
    return operating_range.critical_context(
        float(tokens_per_round(i["alpha"], k)),
        k + 1,
        seconds_per_position=i["gflop"] / i["effective_tflops"] * 1e-3,
        kv_bytes_per_token=i["kib_per_token"] * KIB,
        bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12,
    )


def ctx_case(name: str, i: Inputs) -> Any:
    if name == "ctx-critical-tokens-k1-5":
        return [critical(i, k) for k in i["ks"]]
    if name.startswith("ctx-critical"):
        return critical(i, i["k"])
    if name == "ctx-4096-gqa8-never":
        return crossing(i, i["k"], i["convention"])
    if name == "ctx-16k-gain":
        return gain(i, i["batch"], i["k"], "mult")
    if name == "ctx-16k-ratio-with-attention-flops":
        mixer = Attention(heads=32, kv_heads=8, head_dim=i["d_model"] // 32, value_dim=i["d_model"] // 32)
        i = {**i, "gflop": i["gflop"] + i["layers"] * mixer.flops(i["tokens"]) / 1e9}
    memory, compute = terms_ms(i, i["batch"], i["k"])
    return memory / compute


def quant_case(name: str, i: Inputs) -> Any:
    if "params_b" in i:
        overhead = i.get("overhead_bits", i.get("scale_bits", 0) / i.get("group", 1))
        stored = custom_format("lecture", i["bits"] + overhead, "bf16", True, "the lecture's bits and scales")
        return weight_bytes(i["params_b"] * 1e9, stored) / GB
    if name == "quant-003-factor-2838":
        return rounds.speedup(i["alpha"], i["k"], i["c"])
    ceiling_per_s = weight_stream_tokens_per_second(i["gb"] * GB, bandwidth_bytes_per_s=i["bw_tb_s"] * 1e12)
    return ceiling_per_s * (rounds.speedup(i["alpha"], i["k"], i["c"]) if "alpha" in i else 1.0)


def geom_case(name: str, i: Inputs) -> Any:
    if name in GEOM:
        return GEOM[name](i)
    if "k_max" in i:
        return peak(i)
    if "ks" in i or "alphas" in i:
        return speeds(i)
    return speed(i) if "c" in i else tokens(i)


def computed(case: dict[str, Any]) -> Any:
    name, i = case["id"], case["inputs"]
    match name.split("-")[0]:
        case "geom":
            return geom_case(name, i)
        case "roofline":
            return ROOFLINE[name](i)
        case "kv":
            return KV[name](i)
        case "batch":
            return batch_case(name, i)
        case "ctx":
            return ctx_case(name, i)
    return quant_case(name, i)


@pytest.mark.parametrize("case", cases(PREFIXES, leave_out=tuple(ELSEWHERE)))
def test_golden(case: dict[str, Any]) -> None:
    assert matches(computed(case), case)


def test_crossings_found_numerically_equal_the_closed_form() -> None:
    i = {
        "weight_gb": 13.5,
        "kv_gb_per_seq": 0.082,
        "bw_tb_s": 3.35,
        "gflop": 13.48,
        "effective_tflops": 494.5,
        "alpha": 0.8,
        "c": 0.15,
    }
    for name, charge in CHARGE.items():
        for k in (1, 3, 4):
            found = operating_range.operating_range(
                deployment(i), Geometric(0.8), context=1, draft_cost=0.15, charge=charge, k=k
            )
            closed = crossing(i, k, name)
            assert closed is not None
            assert found.break_even_batch == pytest.approx(closed, rel=1e-9)
            assert found.first_losing_batch == math.ceil(closed)
            assert expected_tokens(Geometric(0.8), k) > 1
