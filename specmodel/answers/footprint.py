"""`memory`: what a deployment keeps on each GPU, and what fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.answers.common import draft_notes, joined, the_deployment
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT
from specmodel.result import Result
from specmodel.units import show_bytes

if TYPE_CHECKING:
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter
    from specmodel.ledger import Line, Rank


@dataclass(frozen=True, slots=True)
class MemoryResult(Result):
    """The answer of `memory`; field names are the JSON keys. Bytes are those of the GPU that limits.

    Nothing is timed and nothing estimated but the reserve, so `low` and `high` are None.
    """

    inputs: dict[str, object]
    fits: bool
    short_bytes: float
    per_gpu: tuple[Line, ...]
    max_batch: int
    kv_tokens: int
    kv_pool_bytes: float
    gpu_bytes: float
    limiting_rank: str
    ranks: tuple[Rank, ...]
    low: float | None
    high: float | None
    why: str
    assumptions: list[str]
    warnings: list[str]


def memory(
    deployment: Deployment | None = None,
    *,
    context: int = 1024,
    batch: int = 1,
    k: int = 0,
    draft: str | Drafter | None = None,
    draft_model: str | None = None,
    draft_tp: int | None = None,
    reserve_bytes: float | None = None,
) -> MemoryResult:
    """The memory ledger of a deployment: weights, caches, wide logits, the draft's share, line by line.

    Parameters
    ----------
    k : int
        Draft tokens verified per round: the logits of k + 1 positions per sequence are kept.
    draft, draft_model, draft_tp
        A draft as `specmodel drafts` names it, the model behind it, and its GPUs; its weights and cache come out of
        the same memory.
    reserve_bytes : float, optional
        Activations and graphs on one GPU; by default an estimate, 0 for the engine `ideal`.
    """
    setting = the_deployment(deployment)
    context = checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    batch = checks.whole("batch", batch, low=1, high=MAX_BATCH)
    k = checks.whole("k", k, high=MAX_K)
    drafter = joined(setting, draft, model=draft_model, tp=draft_tp)
    artefact = None if drafter is None else drafter.artefact
    held = setting.memory(
        context,
        batch=batch,
        width=k + 1 if drafter is None else drafter.width(k),
        draft=artefact,
        draft_tp=draft_tp if artefact is not None else None,
        reserve_bytes=reserve_bytes,
    )
    warnings = list(setting.warnings)
    if not held.fits:
        warnings.append(
            f"does not fit: {show_bytes(held.short_bytes)} too little on GPU {held.limiting_rank}; "
            f"at most {held.max_batch:,} sequences of {context:,} tokens do"
        )
    largest = max(held.per_gpu, key=lambda line: line.bytes)
    return MemoryResult(
        inputs={
            **setting.describe(),
            "context": context,
            "batch": batch,
            "k": k,
            "draft": None if drafter is None else drafter.name,
            "draft_tp": held.draft_tp,
            "fidelity": None,
            "charge": None,
        },
        fits=held.fits,
        short_bytes=held.short_bytes,
        per_gpu=held.per_gpu,
        max_batch=held.max_batch,
        kv_tokens=held.kv_tokens,
        kv_pool_bytes=held.kv_pool_bytes,
        gpu_bytes=held.memory_bytes,
        limiting_rank=held.limiting_rank,
        ranks=held.ranks,
        low=None,
        high=None,
        why=f"GPU {held.limiting_rank} limits; its largest line is {largest.line} with {show_bytes(largest.bytes)}",
        assumptions=[*draft_notes(drafter), *held.notes],
        warnings=warnings,
    )
