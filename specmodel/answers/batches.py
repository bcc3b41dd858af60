"""`breakeven`: the batches in which speculation pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, rounds
from specmodel.acceptance import MAX_K
from specmodel.answers.common import (
    draft_cost_of,
    draft_notes,
    draft_warnings,
    draft_words,
    joined,
    law_or_default,
    the_deployment,
    trust,
    verify_ratios,
)
from specmodel.answers.ranges import Uncertainty, around, range_words, uncertainty
from specmodel.deployment import MAX_CONTEXT
from specmodel.operating_range import operating_range
from specmodel.result import Result
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter
    from specmodel.operating_range import Binding, DepthInterval, Interval, Range


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch: the draft length asked for, or the best of at least 1, and what it gives.

    `low` and `high` are the 10-90 % range of the speedup; null where the fidelity was never compared.
    """

    batch: int
    k: int
    tokens_per_round: float
    round_cost: float
    speedup: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class BreakevenResult(Result):
    """The answer of `breakeven`; field names are the JSON keys.

    `low` and `high` are the break-even batches at the ends of the speedup's range; null where none is in memory, as
    for `break_even_batch`.
    """

    inputs: dict[str, object]
    context: int
    k: int | str
    intervals: list[Interval]
    break_even_batch: float | None
    first_losing_batch: int | None
    crossings: list[float]
    memory_limit_batch: int
    fits: bool
    at_limit: Binding | None
    k_by_batch: list[DepthInterval]
    by_batch: list[BatchRow]
    speedup_at_1: float | None
    speedup_at_limit: float | None
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def breakeven(
    deployment: Deployment | None = None,
    *,
    context: int = 1024,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    draft_cost: float | None = None,
    charge: str = "added",
    draft: str | Drafter | None = None,
    draft_model: str | None = None,
    draft_tp: int | None = None,
    k: int | None = None,
    max_k: int = rounds.DEFAULT_MAX_K,
) -> BreakevenResult:
    """Every batch interval in which speculation pays, up to the batch that memory allows.

    Parameters
    ----------
    deployment : Deployment, optional
        Llama-3.1-8B in bf16 on one H100 SXM by default; see `specmodel.deploy`.
    draft, draft_model, draft_tp
        A draft as `specmodel drafts` names it: its own passes are charged instead of `draft_cost`, its weights and
        cache come out of the same memory, and what is assumed of it holds where no acceptance is given.
    k : int, optional
        A fixed draft length; the best of at least 1 at each batch by default.

    Raises
    ------
    InputError
        One line naming the value and what is allowed.
    """
    setting = the_deployment(deployment)
    context = checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    drafter = joined(setting, draft, model=draft_model, tp=draft_tp)
    cost = draft_cost_of(draft_cost, charge, drafter)
    k = None if k is None else checks.whole("k", k, high=MAX_K)
    max_k = checks.whole("max_k", max_k, high=MAX_K)
    law, said = law_or_default(alpha, acceptance, conditional=conditional, extend=extend, drafter=drafter)

    def ranged(verify_factor: float = 1.0, gain_factor: float = 1.0) -> Range:
        return operating_range(
            setting,
            law,
            context=context,
            draft_cost=cost,
            charge=charge,
            drafter=drafter,
            k=k,
            max_k=max_k,
            verify_factor=verify_factor,
            gain_factor=gain_factor,
        )

    found, off = ranged(), uncertainty(setting, drafter)
    measured = alpha is not None or acceptance is not None
    warnings = [*setting.warnings, *draft_warnings(setting, drafter, context, measured=measured)]
    if found.memory_limit_batch == 0:
        warnings.append(setting.why_nothing_fits(context))
    return BreakevenResult(
        inputs={
            **setting.describe(),
            "alpha": getattr(law, "alpha", None),
            "acceptance": None if hasattr(law, "alpha") else list(law.survival(law.max_k or max_k)),
            "draft": None if drafter is None else drafter.name,
            "draft_cost": cost if drafter is None else None,
            "charge": charge,
            "max_k": max_k,
            "fidelity": setting.timing.fidelity,
        },
        context=context,
        k="best" if k is None else k,
        intervals=list(found.intervals),
        break_even_batch=found.break_even_batch,
        first_losing_batch=found.first_losing_batch,
        crossings=list(found.crossings),
        memory_limit_batch=found.memory_limit_batch,
        fits=found.memory_limit_batch > 0,
        at_limit=found.at_limit,
        k_by_batch=list(found.depths),
        by_batch=_by_batch(
            setting, law, drafter, found.memory_limit_batch, context, cost, charge, k, max_k, off
        ),
        speedup_at_1=found.speedup_at_1,
        speedup_at_limit=found.speedup_at_limit,
        low=None if off is None else ranged(1.0 + off.verify, off.low).break_even_batch,
        high=None if off is None else ranged(1.0 - off.verify, off.high).break_even_batch,
        trust=trust(setting),
        why=_why_range(setting, found, context),
        assumptions=[
            said,
            draft_words(drafter, charge, cost),
            *draft_notes(drafter),
            *setting.assumptions,
            *range_words(off),
        ],
        warnings=warnings,
    )


def _by_batch(
    setting: Deployment,
    law: Acceptance,
    drafter: Drafter | None,
    limit: int,
    context: int,
    cost: float,
    charge: str,
    k: int | None,
    max_k: int,
    off: Uncertainty | None,
) -> list[BatchRow]:
    """Powers of two up to the memory limit, and the limit itself."""
    batches = [2**power for power in range(limit.bit_length()) if 2**power < limit]
    rows = []
    for batch in [*batches, *([limit] if limit else [])]:
        last = max_k if k is None else k
        if drafter is None:
            ratios = verify_ratios(setting, batch, context, last)
            by_k = rounds.depths(law, draft_cost=cost, max_k=last, charge=charge, verify_ratio=ratios)
        else:
            tokens, costs = Speculation(setting, drafter).table(law, last, float(batch), float(context))
            by_k = [
                rounds.Depth(depth, float(yielded), float(one), float(yielded / one))
                for depth, (yielded, one) in enumerate(zip(tokens, costs, strict=True))
            ]
        row = by_k[k] if k is not None else rounds.best(by_k[1:] or by_k)
        if drafter is None:
            verified = row.round_cost if charge == "scaled" else ratios[row.k]
        else:
            taken = Speculation(setting, drafter).round_time(row.k, batch, context, law)
            verified = float(taken.verify_s) / float(setting.plain_seconds(batch, context))
        low, high = around(off if row.k else None, row.tokens_per_round, row.round_cost, verified)
        rows.append(BatchRow(batch, row.k, row.tokens_per_round, row.round_cost, row.speedup, low, high))
    return rows


def _why_range(setting: Deployment, found: Range, context: int) -> str:
    limit = found.at_limit
    if found.memory_limit_batch == 0:
        return setting.why_nothing_fits(context)
    if limit is None:
        return "k 0 was asked for: nothing speculates"
    terms = f"{limit.memory_ms:.3g} ms of memory traffic against {limit.compute_ms:.3g} ms of arithmetic"
    factor = f"{limit.bound}-bound by {limit.ratio:.1f}x" if limit.ratio < 1e6 else f"{limit.bound}-bound"
    where = f"at the memory limit, batch {limit.batch}, a verification pass of k {limit.k} needs {terms}: {factor}"
    if found.first_losing_batch is None:
        return f"no break-even: speculation pays in every batch that fits; {where}"
    if not any(interval.pays for interval in found.intervals):
        return f"speculation pays in no batch that fits; {where}"
    if found.break_even_batch is not None:
        crossing = f"past batch {found.break_even_batch:.1f} the extra positions cost more time than they yield tokens"
        return f"{crossing}; {where}"
    return f"it loses at batch {found.first_losing_batch} already and pays later; {where}"
