"""The time formulas of formulas.py applied to the rows of a measured table.

Used twice with one meaning: fitting turns the constants until the times agree, validation puts fitted constants in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specmodel.errors import InputError
from specmodel.formats import format_names, number_format
from specmodel.kernel_times.formulas import (
    ACTIVATION_BYTES,
    AllreduceConstants,
    AttentionConstants,
    GemmConstants,
    MoeConstants,
    Terms,
    allreduce_seconds,
    attention_seconds,
    gemm_seconds,
    moe_activation_bytes,
    moe_seconds,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.datasheets import Device
    from specmodel.kernel_times.constants import Constants
    from specmodel.kernel_times.tables import Table

    Floats = NDArray[np.float64]

Times: TypeAlias = "Callable[[Constants], Terms]"

# Names of number formats in the tables where they differ from ours. "mxfp4-a8" exists in tables only: 4-bit
# experts with 8-bit activations, multiplied at the fp8 rate.
_DTYPES = {
    "int4_wo": "int4-g128",
    "int8_wo": "int8-wo",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4-a8",
    "fp8_static": "fp8",
    "e4m3": "fp8",
}
_POWER_LAW = re.compile(r"pl(\d+(?:\.\d+)?)")
# Group-limited routing (DeepSeek-V3: 8 of 256 within half of the groups): balanced rows hit half of the experts.
_GROUP_LIMITED = {(7168.0, 8.0, 256.0): 2.0}


@dataclass(frozen=True, slots=True)
class Stored:
    """What a table's format name means for bytes and arithmetic."""

    format: str
    bytes: float
    rate: str


def stored(dtype: str, label: str = "dtype") -> Stored:
    """The meaning of a format name in a table; an unknown one is an InputError."""
    name = _DTYPES.get(dtype.casefold(), dtype)
    if name == "mxfp4-a8":
        return Stored(name, number_format("mxfp4").bytes, "fp8")
    try:
        known = number_format(name)
    except InputError:
        known_names = ", ".join([*format_names()[:12], *_DTYPES])
        raise InputError(label, dtype, f"unknown number format; known: {known_names}") from None
    return Stored(known.name, known.bytes, "bf16" if known.weight_only else known.rate)


def gemm_times(table: Table, device: Device, dtype: str) -> Times:
    """Times of the rows of a GEMM table that hold one format."""
    numbers, kept = table.numbers, stored(dtype)
    m, n, k = numbers["m"], numbers["n"], numbers["k"]
    rate, _ = device.peak(kept.rate)

    def times(constants: Constants) -> Terms:
        assert isinstance(constants, GemmConstants)
        return gemm_seconds(
            m,
            n,
            k,
            weight_bytes=n * k * kept.bytes,
            flops_per_s=rate,
            bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
            constants=constants,
            sm_count=device.sm_count,
        )

    return times


def attention_times(table: Table, device: Device, kv: str, *, replayed: bool = True) -> Times:
    """Times of the rows of a decode-attention table that hold one cache format."""
    numbers, kept = table.numbers, stored(kv, "kv")
    sequences, heads, kv_heads = numbers["b"], numbers["hq"], numbers["hkv"]
    width, length = numbers["head_dim"], numbers["kv_len"]
    return partial(
        _attention,
        device,
        sequences,
        kv_heads,
        cache_bytes=sequences * length * kv_heads * 2.0 * width * kept.bytes,
        flops=4.0 * sequences * length * heads * width,
        flops_per_s=device.peak("bf16")[0],
        l2_bytes=device.l2_bytes,
        sm_count=device.sm_count,
        replayed=replayed,
    )


def width_times(table: Table, device: Device, kv: str) -> Times:
    """Times of the rows of a table of attention with several queries per sequence that hold one cache format.

    The cache is read once for all queries, arithmetic grows with them. Rows must state every size: see
    `states_sizes`. Caches are cold: tables of this kind that are fitted rotate them.
    """
    numbers, kept = table.numbers, stored(kv, "kv")
    sequences, length, queries = numbers["b"], numbers["kv_len"], numbers["q_len"]
    heads, kv_heads, width = (table.texts[name].astype(float) for name in ("hq", "hkv", "hd"))
    return partial(
        _attention,
        device,
        sequences,
        kv_heads,
        cache_bytes=sequences * length * kv_heads * 2.0 * width * kept.bytes,
        flops=4.0 * sequences * queries * length * heads * width,
        flops_per_s=device.peak("bf16")[0],
    )


def _attention(
    device: Device,
    sequences: Floats,
    kv_heads: Floats,
    constants: Constants,
    *,
    cache_bytes: Floats,
    flops: Floats,
    flops_per_s: float,
    l2_bytes: float | None = None,
    sm_count: float | None = None,
    replayed: bool = False,
) -> Terms:
    """Times of attention over rows; a warm cache only where the size of L2 is given."""
    assert isinstance(constants, AttentionConstants)
    return attention_seconds(
        sequences,
        kv_heads,
        cache_bytes=cache_bytes,
        flops=flops,
        flops_per_s=flops_per_s,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        constants=constants,
        l2_bytes=l2_bytes,
        sm_count=sm_count,
        replayed=replayed,
    )


def states_sizes(table: Table) -> NDArray[np.bool_]:
    """Rows of a table of attention widths that state heads and their size as whole numbers."""
    stated = [np.char.isdigit(table.texts[name]) & (table.texts[name] != "0") for name in ("hq", "hkv", "hd")]
    numbers = [np.isfinite(table.numbers[name]) for name in ("b", "kv_len", "q_len")]
    both: NDArray[np.bool_] = np.logical_and.reduce([*stated, *numbers])
    return both


def moe_times(table: Table, device: Device, dtype: str) -> Times:
    """Times of the rows of an expert table that hold one format."""
    numbers, kept = table.numbers, stored(dtype)
    hidden, top_k, tokens = numbers["hidden"], numbers["topk"], numbers["m"]
    width = numbers["inter"] / numbers["tp"]
    one = 3.0 * hidden * width
    weights = experts_hit(table) * one * kept.bytes
    moved = moe_activation_bytes(tokens, top_k, hidden, width)
    flops = 2.0 * one * tokens * top_k
    rate, _ = device.peak(kept.rate)

    def times(constants: Constants) -> Terms:
        assert isinstance(constants, MoeConstants)
        return moe_seconds(
            weights,
            moved,
            flops,
            experts=numbers["experts"],
            flops_per_s=rate,
            bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
            constants=constants,
        )

    return times


def allreduce_times(table: Table, device: Device, impl: str) -> Times:
    """Times of the rows of an all-reduce table; a device sets nothing but which constants apply."""
    numbers = table.numbers

    def times(constants: Constants) -> Terms:
        assert isinstance(constants, AllreduceConstants)
        return allreduce_seconds(numbers["bytes"], numbers["ngpu"], constants=constants)

    return times


def experts_hit(table: Table) -> NDArray[np.float64]:
    """Distinct experts of each row: all that the tokens can reach when balanced, fewer under a power law ("pl1.2").

    Any other distribution counts as independent and uniform.
    """
    numbers, spread = table.numbers, table.texts["dist"]
    tokens, top_k, experts = numbers["m"], numbers["topk"], numbers["experts"]
    groups = [_GROUP_LIMITED.get(key, 1.0) for key in zip(numbers["hidden"], top_k, experts, strict=True)]
    hit: NDArray[np.float64] = np.minimum(experts / np.array(groups), tokens * top_k)
    for row in np.flatnonzero(spread != "balanced"):
        law = _POWER_LAW.fullmatch(str(spread[row]))
        if law:
            hit[row] = power_law_distinct(tokens[row], top_k[row], int(experts[row]), float(law[1]))
        else:
            hit[row] = experts[row] * (1.0 - (1.0 - min(1.0, top_k[row] / experts[row])) ** tokens[row])
    return hit


def power_law_distinct(tokens: float, top_k: float, experts: int, exponent: float) -> float:
    """Experts with at least one token when their loads follow a power law.

    Loads are taken at the middle of equal shares of the law x^-exponent, between one token and four fifths of all
    (between 0.01 and 2 while there are fewer choices than experts), scaled to tokens x top_k and rounded.
    """
    pairs = tokens * top_k
    low, high = (1.0, max(0.8 * tokens, 1.0001)) if pairs > experts else (0.01, 2.0)
    middle = (np.arange(experts) + 0.5) / experts
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        loads = low * (high / low) ** middle
    else:
        loads = ((high**power - low**power) * middle + low**power) ** (1.0 / power)
    loads = np.minimum(loads / loads.sum() * pairs, tokens)
    whole = np.round(loads)
    short = int(pairs - whole.sum())
    if short > 0:
        whole[np.argsort(whole - loads)[:short]] += 1.0
    return float(min((whole > 0.0).sum(), pairs))


def small_bytes(rows: NDArray[np.float64], elements: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Traffic of a small kernel on a table: rows x elements read and written; the gate reads two inputs. [B]"""
    return (3.0 if name == "silu_mul" else 2.0) * ACTIVATION_BYTES * rows * elements
