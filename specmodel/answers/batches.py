"""`breakeven`: the batches in which speculation pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, rounds
from specmodel.answers.common import the_deployment, trust, verify_ratios
from specmodel.answers.ranges import around
from specmodel.answers.speculating import Speculating, speculating
from specmodel.deployment import MAX_CONTEXT
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
    asked = speculating(
        the_deployment(deployment),
        alpha=alpha,
        acceptance=acceptance,
        conditional=conditional,
        extend=extend,
        draft_cost=draft_cost,
        charge=charge,
        draft=draft,
        draft_model=draft_model,
        draft_tp=draft_tp,
        k=k,
        max_k=max_k,
    )
    context = checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    setting, off, found = asked.setting, asked.off, asked.batches(context)
    warnings = asked.warnings(context)
    if found.memory_limit_batch == 0:
        warnings.append(setting.why_nothing_fits(context))

    def crossing(verify_factor: float, gain_factor: float) -> float | None:
        return asked.batches(context, verify_factor=verify_factor, gain_factor=gain_factor).break_even_batch

    return BreakevenResult(
        inputs=asked.inputs(),
        context=context,
        k="best" if asked.k is None else asked.k,
        intervals=list(found.intervals),
        break_even_batch=found.break_even_batch,
        first_losing_batch=found.first_losing_batch,
        crossings=list(found.crossings),
        memory_limit_batch=found.memory_limit_batch,
        fits=found.memory_limit_batch > 0,
        at_limit=found.at_limit,
        k_by_batch=list(found.depths),
        by_batch=_by_batch(asked, context, found.memory_limit_batch),
        speedup_at_1=found.speedup_at_1,
        speedup_at_limit=found.speedup_at_limit,
        low=None if off is None else crossing(1.0 + off.verify, off.low),
        high=None if off is None else crossing(1.0 - off.verify, off.high),
        trust=trust(setting),
        why=_why_range(setting, found, context),
        assumptions=asked.assumptions(),
        warnings=warnings,
    )


def _by_batch(asked: Speculating, context: int, limit: int) -> list[BatchRow]:
    """Powers of two up to the memory limit, and the limit itself."""
    batches = [2**power for power in range(limit.bit_length()) if 2**power < limit]
    return [_row(asked, context, batch) for batch in [*batches, *([limit] if limit else [])]]


def _row(asked: Speculating, context: int, batch: int) -> BatchRow:
    setting, law, k = asked.setting, asked.law, asked.k
    last = asked.max_k if k is None else k
    if asked.drafter is None:
        ratios = verify_ratios(setting, batch, context, last)
        by_k = rounds.depths(
            law, draft_cost=asked.draft_cost, max_k=last, charge=asked.charge, verify_ratio=ratios
        )
    else:
        speculation = Speculation(setting, asked.drafter)
        tokens, costs = speculation.table(law, last, float(batch), float(context))
        by_k = [
            rounds.Depth(depth, float(yielded), float(one), float(yielded / one))
            for depth, (yielded, one) in enumerate(zip(tokens, costs, strict=True))
        ]
    row = by_k[k] if k is not None else rounds.best(by_k[1:] or by_k)
    if asked.drafter is None:
        verified = row.round_cost if asked.charge == "scaled" else ratios[row.k]
    else:
        taken = speculation.round_time(row.k, batch, context, law)
        verified = float(taken.verify_s) / float(setting.plain_seconds(batch, context))
    low, high = around(asked.off if row.k else None, row.tokens_per_round, row.round_cost, verified)
    return BatchRow(batch, row.k, row.tokens_per_round, row.round_cost, row.speedup, low, high)


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
