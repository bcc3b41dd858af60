"""What fits in memory, per GPU, line by line: weights, draft, caches, logits, and what an engine keeps free.

Every line is bytes on one GPU; no line is a total. GPUs differ only where the draft runs on fewer of them
than the target: the ones with the draft decide how many tokens fit, since a token needs a slot on all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from specmodel.architecture import Mtp
from specmodel.drafters.heads import DraftHead
from specmodel.errors import InputError, unknown_name
from specmodel.layers.matrices import check_tp
from specmodel.model import Model, Totals
from specmodel.units import show_bytes

Draft: TypeAlias = Model | Totals | DraftHead | Mtp
Rule: TypeAlias = Literal["total", "static", "free"]

LOGIT_BYTES = 4.0
"""Engines sample from float32 logits, gathered over the whole vocabulary on every GPU."""
PREFILL_TOKENS = 8192
"""Tokens of the largest pass that engines keep activations for by default."""


@dataclass(frozen=True, slots=True)
class EngineRule:
    """What the memory fraction of an engine means."""

    rule: Rule
    option: str
    says: str


_TOTAL = "weights, drafts, caches, logits and activations all come out of that share of the card"
ENGINE_RULES: Mapping[str, EngineRule] = MappingProxyType(
    {
        "ideal": EngineRule("total", "memory fraction", f"{_TOTAL}; no activations counted"),
        "vllm": EngineRule("total", "gpu_memory_utilization", _TOTAL),
        "vllm-captured": EngineRule("total", "gpu_memory_utilization", _TOTAL),
        "sglang": EngineRule(
            "static",
            "mem_fraction_static",
            "weights, drafts and caches come out of that share; logits and activations out of the rest",
        ),
        "tensorrt-llm": EngineRule(
            "free",
            "free_gpu_memory_fraction",
            "caches take that share of what is free once weights and activations are loaded",
        ),
        "llama.cpp": EngineRule(
            "total", "memory fraction", f"{_TOTAL}; the engine itself has no such option"
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the ledger: what, and bytes on one GPU."""

    line: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Rank:
    """GPUs that hold the same: their numbers, their lines, and what is left of the engine's share."""

    ranks: str
    lines: tuple[Line, ...]
    used_bytes: float
    left_bytes: float
    max_batch: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The ledger of one deployment.

    Attributes
    ----------
    fits : bool
        Whether everything asked for fits on every GPU.
    short_bytes : float
        By how much it does not, on the limiting GPU; 0 where it fits. [B]
    per_gpu : tuple of Line
        Lines of the limiting GPU; names begin ``weights``, ``draft weights``, ``kv``, ``draft kv``,
        ``logits`` or ``reserve``. [B]
    limiting_rank : str
        Which GPUs those are.
    max_batch : int
        Largest batch that fits at this context and width.
    kv_tokens : int
        Tokens that the caches hold in sequences of this context, every one with a slot in the draft's too.
    kv_pool_bytes : float
        What the engine has for caches on the limiting GPU. [B]
    ranks : tuple of Rank
        All kinds of GPU, the limiting one first.
    rule : str
        What the memory fraction was taken to mean.
    notes : tuple of str
        What was assumed.
    """

    fits: bool
    short_bytes: float
    per_gpu: tuple[Line, ...]
    limiting_rank: str
    max_batch: int
    kv_tokens: int
    kv_pool_bytes: float
    ranks: tuple[Rank, ...]
    rule: str
    notes: tuple[str, ...]
    engine: str
    memory_bytes: float
    memory_fraction: float
    tp: int
    draft_tp: int | None
    batch: int
    context: int
    width: int


def target_weights(model: Model | Totals, tp: int) -> dict[str, float]:
    """Weight bytes on one of ``tp`` GPUs by part; files' own bytes spread as counted ones. [B]"""
    if isinstance(model, Totals):
        return {"weights": model.weight_bytes / tp}
    counted = model.counted_bytes(tp)
    scale = model.weight_bytes / sum(model.counted_bytes().values()) if model.measured_bytes else 1.0
    return {f"weights {part.replace('_', ' ')}": size * scale for part, size in counted.items()}


def target_caches(model: Model | Totals, context: int, width: int, tp: int) -> dict[str, float]:
    """Cache bytes of one sequence on one of ``tp`` GPUs. [B]

    A constant state needs a copy for each of the ``width`` positions of a verification pass.
    """
    if isinstance(model, Totals):
        return {"kv": model.kv_bytes_per_token * context / tp}
    architecture = model.architecture
    kept = float(architecture.kv_elements(context, tp)) * model.precision.kv.bytes
    indexed = float(model.kv_bytes(context, tp)) - kept
    found = {"kv": kept, "kv indexer": indexed, "kv state": model.state_bytes(tp) * width}
    return {line: size for line, size in found.items() if size or line == "kv"}


def draft_weights(draft: Draft, target: Model | Totals, tp: int) -> float:
    """Weight bytes of a draft on one of ``tp`` GPUs; heads in 16 bit, MTP as the target stores it. [B]"""
    if isinstance(draft, (Model, Totals)):
        return sum(target_weights(draft, tp).values())
    if isinstance(draft, Mtp):
        one = sum(draft.layer.parts(draft.hidden, tp).values()) + 2 * draft.hidden**2 + 3 * draft.hidden
        stored = target.precision.of("mtp").bytes if isinstance(target, Model) else 2.0
        return draft.modules * one * stored
    return 2.0 * sum(draft.parts(tp).values())


def draft_caches(draft: Draft, target: Model | Totals, context: int, width: int, tp: int) -> float:
    """Cache bytes of a draft for one sequence on one of ``tp`` GPUs; heads keep the target's format. [B]"""
    if isinstance(draft, (Model, Totals)):
        return sum(target_caches(draft, context, width, tp).values())
    element = target.precision.kv.bytes if isinstance(target, Model) else 2.0
    if isinstance(draft, Mtp):
        mixer = draft.layer.mixer
        if mixer is None:
            return 0.0
        held = mixer.cache_elements_per_token_per_gpu(tp) * float(mixer.tokens_held(context))
        return draft.modules * held * element
    return float(draft.kv_elements(context, tp)) * element


def activation_bytes(model: Model | Totals, tp: int) -> float:
    """Activations of the largest prefill pass on one of ``tp`` GPUs, an estimate. [B]

    Four vectors of hidden size and three of the widest feed-forward per token, 16-bit.
    """
    if isinstance(model, Totals):
        return 0.0
    architecture = model.architecture
    widest = 0
    for _, layer in architecture.layers:
        fed = layer.feed_forward
        if fed is None:
            continue
        top_k, shared = getattr(fed, "top_k", 1), getattr(fed, "shared_width", 0)
        widest = max(widest, fed.width * top_k + shared)
    return PREFILL_TOKENS * 2.0 * (4 * architecture.hidden + 3 * widest / tp)


def _positive(field: str, value: float, *, zero: bool = False) -> float:
    """A finite number above 0 (or from 0 on)."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        raise InputError(field, value, "a finite number >= 0" if zero else "a finite number > 0")
    return float(value)


def _count(field: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(field, value, f"an integer from 1 to {most}")
    return value


@dataclass(frozen=True, slots=True)
class _Share:
    """One kind of GPU: what is resident, what a sequence adds, and the card."""

    weights: Mapping[str, float]
    drafts: float
    caches: Mapping[str, float]
    draft_cache: float
    logits: float
    activations: float
    card: float
    fraction: float
    rule: Rule

    @property
    def resident(self) -> float:
        return sum(self.weights.values()) + self.drafts

    @property
    def per_sequence(self) -> float:
        return sum(self.caches.values()) + self.draft_cache

    def pool(self, batch: int) -> float:
        """Bytes for caches once everything else is placed; negative where that does not fit."""
        passing = self.logits * batch + self.activations
        if self.rule == "free":
            left = self.card - self.resident - passing
            return self.fraction * left if left > 0 else left
        if self.rule == "static":
            return self.fraction * self.card - self.resident
        return self.fraction * self.card - self.resident - passing

    def short(self, batch: int) -> float:
        """Bytes by which a batch does not fit; 0 or less where it does."""
        over = self.per_sequence * batch - self.pool(batch)
        if self.rule == "static":
            passing = self.logits * batch + self.activations
            over = max(over, passing - (1.0 - self.fraction) * self.card)
        return over

    def max_batch(self) -> int:
        """Largest batch that fits; 0 where not even the weights do."""
        low, high = 0, 1
        while high < 2**40 and self.short(high) <= 0:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.short(middle) <= 0 else (low, middle)
        return low

    def kv_tokens(self, batch: int, context: int) -> int:
        """Tokens in sequences of this context that the pool holds."""
        pool = self.pool(batch)
        if pool <= 0 or self.per_sequence <= 0:
            return 0
        return int(pool / self.per_sequence * context)

    def lines(self, batch: int) -> tuple[Line, ...]:
        found = [Line(line, size) for line, size in self.weights.items()]
        if self.drafts:
            found.append(Line("draft weights", self.drafts))
        found += [Line(line, size * batch) for line, size in self.caches.items()]
        if self.draft_cache:
            found.append(Line("draft kv", self.draft_cache * batch))
        if self.logits:
            found.append(Line("logits", self.logits * batch))
        if self.activations:
            found.append(Line("reserve for activations and graphs", self.activations))
        outside = self.card - self.resident - self.pool(batch) - self.logits * batch - self.activations
        found.append(Line("reserve outside the engine's share", max(0.0, outside)))
        return tuple(found)


def _numbers(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _draft_tp(tp: int, draft_tp: int | None) -> int:
    chosen = tp if draft_tp is None else draft_tp
    check_tp(chosen)
    if chosen > tp or tp % chosen:
        raise InputError("draft_tp", draft_tp, f"must divide tp = {tp}")
    return chosen


def memory(
    model: Model | Totals,
    *,
    memory_bytes: float,
    context: int,
    batch: int = 1,
    width: int = 1,
    tp: int = 1,
    draft: Draft | None = None,
    draft_tp: int | None = None,
    engine: str = "ideal",
    memory_fraction: float = 0.9,
    reserve_bytes: float | None = None,
) -> Memory:
    """What a deployment keeps on each GPU, whether it fits, and what is the most that does.

    Parameters
    ----------
    model : Model or Totals
        The target.
    memory_bytes : float
        Memory of one GPU. [B]
    context : int
        Tokens cached per sequence.
    batch : int
        Sequences in one step.
    width : int
        Positions of the verification pass, root included (k + 1); 1 without speculation.
    tp : int
        GPUs that the target is split over.
    draft : Model, Totals, DraftHead or Mtp, optional
        What drafts; its weights and its cache come out of the same memory.
    draft_tp : int, optional
        GPUs that the draft is split over, the first ones; as many as ``tp`` by default.
    engine : str
        Which engine's meaning of the fraction holds: see ``ENGINE_RULES``.
    memory_fraction : float
        That fraction, above 0, at most 1.
    reserve_bytes : float, optional
        Activations and graphs on one GPU; by default an estimate (``activation_bytes``), 0 for "ideal". [B]

    Raises
    ------
    InputError
        If a value is out of range, or heads do not divide over the GPUs.
    """
    card = _positive("memory_bytes", memory_bytes)
    _count("context", context, 10**9)
    _count("batch", batch, 10**7)
    _count("width", width, 10**4)
    check_tp(tp)
    if engine not in ENGINE_RULES:
        raise unknown_name("engine", engine, ENGINE_RULES)
    if not 0.0 < _positive("memory_fraction", memory_fraction) <= 1.0:
        raise InputError("memory_fraction", memory_fraction, "above 0, at most 1")
    rule = ENGINE_RULES[engine]
    if reserve_bytes is not None:
        activations = _positive("reserve_bytes", reserve_bytes, zero=True)
    else:
        activations = 0.0 if engine == "ideal" else activation_bytes(model, tp)
    vocabulary = model.architecture.vocabulary if isinstance(model, Model) else 0
    split = _draft_tp(tp, draft_tp) if draft is not None else tp

    def share(with_draft: bool, over: int) -> _Share:
        holds = draft if with_draft else None
        return _Share(
            weights=target_weights(model, tp),
            drafts=draft_weights(holds, model, over) if holds is not None else 0.0,
            caches=target_caches(model, context, width, tp),
            draft_cache=draft_caches(holds, model, context, width, over) if holds is not None else 0.0,
            logits=LOGIT_BYTES * vocabulary * width,
            activations=activations,
            card=card,
            fraction=memory_fraction,
            rule=rule.rule,
        )

    def rank(shared: _Share, first: int, last: int) -> Rank:
        used = shared.resident + shared.per_sequence * batch
        return Rank(
            ranks=_numbers(first, last),
            lines=shared.lines(batch),
            used_bytes=used + shared.logits * batch + shared.activations,
            left_bytes=-shared.short(batch),
            max_batch=shared.max_batch(),
            kv_tokens=shared.kv_tokens(batch, context),
        )

    limiting = share(draft is not None, split)
    ranks = [rank(limiting, 0, split - 1)]
    notes = list(model.notes)
    notes.append(f"{rule.option} {memory_fraction:g}: {rule.says}")
    if draft is not None and split < tp:
        ranks.append(rank(share(False, tp), split, tp - 1))
        notes.append(_trade_off(ranks, share(True, tp).kv_tokens(batch, context), split, tp))
    short = limiting.short(batch)
    return Memory(
        fits=short <= 0.0,
        short_bytes=max(0.0, short),
        per_gpu=ranks[0].lines,
        limiting_rank=ranks[0].ranks,
        max_batch=ranks[0].max_batch,
        kv_tokens=ranks[0].kv_tokens,
        kv_pool_bytes=max(0.0, limiting.pool(batch)),
        ranks=tuple(ranks),
        rule=f"{engine}: {rule.says}",
        notes=tuple(notes),
        engine=engine,
        memory_bytes=card,
        memory_fraction=memory_fraction,
        tp=tp,
        draft_tp=split if draft is not None else None,
        batch=batch,
        context=context,
        width=width,
    )


def _trade_off(ranks: list[Rank], split_tokens: int, draft_tp: int, tp: int) -> str:
    """What it costs to keep the draft on fewer GPUs than the target."""
    here, elsewhere = ranks[0], ranks[1]
    idle = elsewhere.left_bytes - here.left_bytes
    lost = 1.0 - here.kv_tokens / split_tokens if split_tokens else 0.0
    return (
        f"the draft on {draft_tp} of {tp} GPUs needs less communication, but GPU {here.ranks} limits: "
        f"{show_bytes(idle)} more stay idle on each other GPU, and {here.kv_tokens} tokens fit instead of "
        f"{split_tokens} with the draft over all ({lost:.0%} fewer)"
    )
