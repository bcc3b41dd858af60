"""How long one kernel takes: a fixed time, and a roofline at the rates that kernels really reach.

Each formula is a plain function of sizes, rates of the machine and a few fitted constants (constants.py holds
fitted values, fitting.py finds them). Sizes may be arrays and broadcast. Rates reached are shares of the
datasheet's, so the same constants apply to a sibling with another memory or clock.

Why the terms: a small kernel costs its ramp-up and tail (`fixed_s`), which CUDA graphs do not remove. A product
walks along its inner dimension one slice after another, so a long K takes time that no bandwidth shortens
(`walk_s`). Traffic and arithmetic overlap, but not perfectly: they add as the root of their squares where one
kernel does both, and plainly where weights are unpacked first or many small products follow one another.
Wave and tile counts, and rounding M up to tiles, were tried on GPUs and did not predict left-out shapes better. On a
CPU the same core copies weights into BLAS's order and then multiplies, so both add, and rounding M up shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numeric: TypeAlias = "float | NDArray[np.float64]"

ACTIVATION_BYTES = 2.0  # inputs and outputs travel in 16 bit
WARM_BELOW, COLD_ABOVE = 0.7, 1.1  # of the L2: a cache read again and again stays in it, or does not


class Terms(NamedTuple):
    """Time of a kernel, and what its traffic and its arithmetic alone would take. [s]"""

    seconds: Numeric
    memory: Numeric
    compute: Numeric
    fixed: Numeric


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """One linear layer y[m, n] = x[m, k] w[n, k].

    Attributes
    ----------
    fixed_s : float
        Ramp-up and tail. [s]
    bandwidth_share, flops_share : float
        Shares of the datasheet's bandwidth and dense peak that large products reach.
    walk_s : float
        Per element of the inner dimension. [s]
    quantise : float
        Bytes moved per activation element to bring it to the narrow format, at datasheet bandwidth. [B]
    overlap : float
        Exponent p of (memory^p + compute^p + walk^p)^(1/p): 1 adds, 2 overlaps, infinity would be a maximum.
    tile : float
        Rows are multiplied in multiples of this, empty ones included; 1 where that does not show.
    vector_rows : float
        Up to so many rows a kernel without matrix units does the work, as llama.cpp's does; 0 where there is none.
    vector_flops_per_unit, vector_bandwidth_share : float
        Its rate per multiprocessor, and its share of the bandwidth. Its traffic and arithmetic join as root of squares.
        [FLOP/s]
    """

    FITTED: ClassVar[tuple[str, ...]] = ("fixed_s", "bandwidth_share", "flops_share", "walk_s", "quantise")

    fixed_s: float
    bandwidth_share: float
    flops_share: float
    walk_s: float = 0.0
    quantise: float = 0.0
    overlap: float = 2.0
    tile: float = 1.0
    vector_rows: float = 0.0
    vector_flops_per_unit: float = 0.0
    vector_bandwidth_share: float = 0.0


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Attention of one layer over the cached tokens of every sequence.

    Attributes
    ----------
    fixed_s : float
        Ramp-up, tail and the combination of split caches. [s]
    bandwidth_share, flops_share : float
        Shares of the datasheet's bandwidth and 16-bit peak.
    head_s : float
        Per sequence and KV head: matters only for short contexts. [s]
    warm_speed : float
        How many times faster a cache is read that lies in the L2. Below 1, small caches do not fill the machine.
    wave : float
        0 to 1: how much of the machine idles in the last wave of (sequence, KV head) pairs. 1 for kernels that
        do not split a sequence.
    """

    FITTED: ClassVar[tuple[str, ...]] = (
        "fixed_s",
        "bandwidth_share",
        "flops_share",
        "head_s",
        "warm_speed",
        "wave",
    )

    fixed_s: float
    bandwidth_share: float
    flops_share: float
    head_s: float = 0.0
    warm_speed: float = 1.0
    wave: float = 0.0


@dataclass(frozen=True, slots=True)
class MoeConstants:
    """The routed experts of one layer, router and shared expert apart; terms as in `GemmConstants`, added.

    `expert_s` is what each expert on the GPU costs, hit or not: tokens are sorted by expert and blocks launched for
    all of them. [s]
    """

    FITTED: ClassVar[tuple[str, ...]] = ("fixed_s", "bandwidth_share", "flops_share", "expert_s")

    fixed_s: float
    bandwidth_share: float
    flops_share: float
    expert_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AllreduceConstants:
    """Sum over GPUs: short messages go to every peer at once, long ones are scattered, summed and gathered.

    Attributes
    ----------
    fixed_s, peer_s : float
        Latency, and what each further GPU adds. [s]
    direct_bytes_per_s : float
        Rate at which one GPU sends its message to all others. [B/s]
    relay_s, ring_bytes_per_s : float
        Extra latency and rate of the two-step way. [s], [B/s]
    congestion : float
        Exponent of (GPUs - 1) on the traffic: 1 on switched links, more where cards share a bus.
    overlap : float
        1: latency and traffic add (CUDA graph, NCCL); 2: a launch from Python hides part of the traffic.
    """

    FITTED: ClassVar[tuple[str, ...]] = (
        "fixed_s",
        "peer_s",
        "direct_bytes_per_s",
        "relay_s",
        "ring_bytes_per_s",
    )

    fixed_s: float
    peer_s: float
    direct_bytes_per_s: float
    relay_s: float
    ring_bytes_per_s: float
    congestion: float = 1.0
    overlap: float = 1.0


@dataclass(frozen=True, slots=True)
class WaitConstants:
    """What tensor parallelism costs beside its all-reduces: GPUs wait for the slowest, once per all-reduce.

    Attributes
    ----------
    most_s : float
        The wait per all-reduce with many tokens. [s]
    half_tokens : float
        Tokens in the pass at which it is half of that.
    """

    FITTED: ClassVar[tuple[str, ...]] = ("most_s", "half_tokens")

    most_s: float
    half_tokens: float


@dataclass(frozen=True, slots=True)
class SmallConstants:
    """Norms, residuals, rotary embedding, gate: a fixed time, and traffic at a share of the bandwidth."""

    FITTED: ClassVar[tuple[str, ...]] = ("fixed_s", "bandwidth_share")

    fixed_s: float
    bandwidth_share: float


def gemm_seconds(
    m: Numeric,
    n: Numeric,
    k: Numeric,
    *,
    weight_bytes: Numeric,
    flops_per_s: float,
    bandwidth_bytes_per_s: float,
    constants: GemmConstants,
    sm_count: float | None = None,
) -> Terms:
    r"""Time of one linear layer.

    .. math:: t = t_0 + (t_{mem}^p + t_{comp}^p + (w K)^p)^{1/p} + q M K / BW

    Parameters
    ----------
    m : float or ndarray
        Rows: sequences x positions scored. Real values are allowed.
    n, k : float or ndarray
        Outputs and inputs on this GPU.
    weight_bytes : float or ndarray
        Stored size of the weights, scales included. [B]
    flops_per_s, bandwidth_bytes_per_s : float
        Dense peak of the format's rate, and HBM bandwidth, both from the datasheet.
    sm_count : float, optional
        Multiprocessors: without their number no vector kernel is assumed.

    Returns
    -------
    Terms
        shape broadcast(m, n, k). Not finite only where an input is not.
    """
    memory = (weight_bytes + ACTIVATION_BYTES * m * (n + k)) / (
        constants.bandwidth_share * bandwidth_bytes_per_s
    )
    rows = m if constants.tile == 1.0 else np.ceil(np.asarray(m) / constants.tile) * constants.tile
    compute = 2.0 * rows * n * k / (constants.flops_share * flops_per_s)
    joined = _joined(constants.overlap, memory, compute, constants.walk_s * k)
    quantise = constants.quantise * m * k / bandwidth_bytes_per_s if constants.quantise else 0.0
    whole = Terms(constants.fixed_s + joined + quantise, memory, compute, constants.fixed_s)
    if not (constants.vector_rows and sm_count):
        return whole
    few = np.asarray(m) <= constants.vector_rows
    memory = memory * (constants.bandwidth_share / constants.vector_bandwidth_share)
    compute = 2.0 * m * n * k / (constants.vector_flops_per_unit * sm_count)
    vector = Terms(constants.fixed_s + _joined(2.0, memory, compute), memory, compute, constants.fixed_s)
    return Terms(
        np.where(few, vector.seconds, whole.seconds),
        np.where(few, vector.memory, whole.memory),
        np.where(few, vector.compute, whole.compute),
        constants.fixed_s,
    )


def attention_seconds(
    sequences: Numeric,
    kv_heads: Numeric,
    *,
    cache_bytes: Numeric,
    flops: Numeric,
    flops_per_s: float,
    bandwidth_bytes_per_s: float,
    constants: AttentionConstants,
    l2_bytes: float | None = None,
    sm_count: float | None = None,
    replayed: bool = False,
) -> Terms:
    r"""Time of the attention kernels of one layer.

    .. math:: t = t_0 + \sqrt{t_{mem}^2 + t_{comp}^2 + (c\, b\, H_{kv})^2}

    Parameters
    ----------
    sequences, kv_heads : float or ndarray
        Sequences in the batch and KV heads on this GPU.
    cache_bytes : float or ndarray
        KV cache read: once per sequence, or once per query where a kernel re-reads it. [B]
    flops : float or ndarray
        Scores and weighted sums of all queries. [FLOP]
    flops_per_s, bandwidth_bytes_per_s, l2_bytes, sm_count : float
        Datasheet figures; the last two may be unknown.
    replayed : bool
        The same cache is read in every repetition, as benchmarks of a single kernel do: what fits the L2 stays
        there. In a real step the weights of a layer pass between two reads, and the cache is cold.
    """
    memory = cache_bytes / (constants.bandwidth_share * bandwidth_bytes_per_s)
    speed = constants.warm_speed if replayed else min(constants.warm_speed, 1.0)
    if l2_bytes and speed != 1.0:
        warm = (COLD_ABOVE - cache_bytes / l2_bytes) / (COLD_ABOVE - WARM_BELOW)
        memory = memory * (1.0 + np.minimum(np.maximum(warm, 0.0), 1.0) * (1.0 / speed - 1.0))
    if constants.wave and sm_count:
        waves = np.maximum(sequences * kv_heads / sm_count, 1e-9)
        idle = np.where(waves > 0.5, np.ceil(waves) / waves - 1.0, 0.0)
        memory = memory * (1.0 + constants.wave * idle)
    compute = flops / (constants.flops_share * flops_per_s)
    heads = constants.head_s * sequences * kv_heads
    seconds = constants.fixed_s + np.sqrt(memory * memory + compute * compute + heads * heads)
    return Terms(seconds, memory, compute, constants.fixed_s)


def moe_seconds(
    weight_bytes: Numeric,
    activation_bytes: Numeric,
    flops: Numeric,
    *,
    experts: Numeric,
    flops_per_s: float,
    bandwidth_bytes_per_s: float,
    constants: MoeConstants,
) -> Terms:
    """Time of the routed experts of one layer: fixed, plus traffic, plus arithmetic.

    Parameters
    ----------
    experts : float or ndarray
        Routed experts on this GPU, hit or not.
    weight_bytes : float or ndarray
        Distinct experts that the tokens hit, times the size of one. [B]
    activation_bytes : float or ndarray
        Inputs, intermediate values and outputs of every (token, expert) pair. [B]
    flops : float or ndarray
        Of all (token, expert) pairs. [FLOP]

    Notes
    -----
    The terms add: one grouped kernel follows another, and while an expert's few rows are multiplied, the next
    expert's weights are not always under way. Padding rows to tiles did not predict left-out models better.
    """
    memory = (weight_bytes + activation_bytes) / (constants.bandwidth_share * bandwidth_bytes_per_s)
    compute = flops / (constants.flops_share * flops_per_s)
    fixed = constants.fixed_s + constants.expert_s * experts
    return Terms(fixed + memory + compute, memory, compute, fixed)


def moe_activation_bytes(tokens: Numeric, top_k: Numeric, hidden: Numeric, width: Numeric) -> Numeric:
    """Traffic of the (token, expert) pairs: read, gate and up written and read, product written. [B]"""
    return ACTIVATION_BYTES * tokens * top_k * (2.0 * hidden + 3.0 * width)


def allreduce_seconds(message_bytes: Numeric, gpus: Numeric, *, constants: AllreduceConstants) -> Terms:
    r"""Time of one all-reduce of `message_bytes` per GPU over `gpus` GPUs.

    .. math::
        t = a + a' (g - 1) + \min\left((g-1)^e \frac{S}{\beta_1},\; r + \frac{2 (g-1)}{g} \frac{S}{\beta_2}\right)

    0 for one GPU.
    """
    peers = np.maximum(np.asarray(gpus, dtype=float) - 1.0, 0.0)
    latency = np.where(peers > 0.0, constants.fixed_s + constants.peer_s * peers, 0.0)
    crowd = peers**constants.congestion
    direct = crowd * message_bytes / constants.direct_bytes_per_s
    steps = 2.0 * crowd / (peers + 1.0)
    ring = constants.relay_s + steps * message_bytes / constants.ring_bytes_per_s
    wire = np.minimum(direct, ring)
    return Terms(_joined(constants.overlap, latency, wire), wire, 0.0, latency)


def wait_seconds(tokens: Numeric, gpus: Numeric, *, constants: WaitConstants) -> Numeric:
    """Waiting time around one all-reduce of a pass over `tokens` positions; 0 on one GPU.

    Serving runs on several GPUs take longer than their kernels and all-reduces by about the same time per all-reduce
    whatever the model, the share of each GPU and the context; it grows with the batch and levels off.
    """
    waited = constants.most_s * tokens / (tokens + constants.half_tokens)
    return np.where(np.asarray(gpus) > 1, waited, 0.0)


def small_seconds(moved_bytes: Numeric, *, bandwidth_bytes_per_s: float, constants: SmallConstants) -> Terms:
    """Time of one small kernel that reads and writes `moved_bytes`."""
    memory = moved_bytes / (constants.bandwidth_share * bandwidth_bytes_per_s)
    return Terms(constants.fixed_s + memory, memory, 0.0, constants.fixed_s)


def _joined(exponent: float, *terms: Numeric) -> Numeric:
    """(sum of t^p)^(1/p), the common exponents without powers."""
    total: Numeric = 0.0
    if exponent == 1.0:
        for term in terms:
            total = total + term
        return total
    if exponent == 2.0:
        for term in terms:
            total = total + term * term
        return np.sqrt(total)
    for term in terms:
        total = total + np.asarray(term, dtype=float) ** exponent
    return total ** (1.0 / exponent)
