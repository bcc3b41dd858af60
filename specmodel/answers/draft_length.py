"""`optimize`: the draft length with the best speedup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, rounds
from specmodel.acceptance import MAX_K
from specmodel.answers.common import charge_words, the_deployment, trust, verify_ratios
from specmodel.answers.ranges import around, range_words, uncertainty
from specmodel.result import Result

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment


@dataclass(frozen=True, slots=True)
class OptimizeResult(Result):
    """The answer of `optimize`; field names are the JSON keys.

    `low` and `high` are the 10-90 % range of the best speedup on a deployment; null for the formula alone.
    """

    inputs: dict[str, object]
    best: rounds.Depth
    ceiling: float | None
    pays_from_alpha: float | None
    flat_band: rounds.FlatBand
    by_k: list[rounds.Depth]
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def optimize(
    *,
    draft_cost: float,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    charge: str = "added",
    k: int | None = None,
    max_k: int = rounds.DEFAULT_MAX_K,
    within: float = rounds.FLAT_WITHIN,
    deployment: Deployment | None = None,
    batch: int = 1,
    context: int = 1024,
) -> OptimizeResult:
    """The draft length with the best speedup, and how much the others lose.

    Without a deployment a verification pass takes as long as a plain step (memory-bound, the formula's world).
    With one, the pass times of that model, device, batch and context decide.

    Parameters
    ----------
    draft_cost : float
        One draft pass over one plain target step, >= 0.
    alpha, acceptance, conditional, extend
        One number, or rates by position (shares of rounds; `conditional` says they are given all before), which end
        at the last position unless `extend`.
    k : int or None
        Report this draft length as `best` instead of searching.

    Raises
    ------
    InputError
        One line naming the value and what is allowed.
    """
    law = rounds.acceptance_from(alpha, acceptance, conditional=conditional, extend=extend)
    cost = checks.real("draft cost", draft_cost, low=0.0)
    max_k = checks.whole("max_k", max_k, high=MAX_K)
    batch = checks.whole("batch", batch, low=1, high=checks.MAX_BATCH)
    context = checks.whole("ctx", context, low=1, high=checks.MAX_CONTEXT)
    ratios, warnings = None, []
    if deployment is not None:
        deployment = the_deployment(deployment)
        ratios = verify_ratios(deployment, batch, context, max_k)
        warnings = list(deployment.warnings)
        limit = deployment.memory_limit_batch(context)
        if batch > limit:
            warnings.append(
                f"batch {batch:,} does not fit at context {context:,}: at most {limit:,} sequences do"
            )
    rows = rounds.depths(law, draft_cost=cost, max_k=max_k, charge=charge, verify_ratio=ratios)
    if k is None:
        top = rounds.best(rows)
    else:
        k = checks.whole("k", k, high=len(rows) - 1)
        top = rows[k]
    ratio = 1.0 if ratios is None else ratios[top.k]
    off = uncertainty(deployment)
    low, high = around(
        off if top.k else None,
        top.tokens_per_round,
        top.round_cost,
        top.round_cost if charge == "scaled" else ratio,
    )
    first = rows[1] if len(rows) > 1 else None
    assumptions = [law.describe(), charge_words(charge, cost)]
    if deployment is None:
        assumptions.append(
            "a verification pass takes as long as a plain step (memory-bound, low batch); no engine time"
        )
    else:
        assumptions += [*deployment.assumptions, *range_words(off)]
    if law.max_k is not None and law.max_k < max_k:
        assumptions.append(f"k stops at {law.max_k}, the last position the acceptance list speaks for")
    named = getattr(law, "alpha", None)
    return OptimizeResult(
        inputs={
            "alpha": named,
            "acceptance": None if named is not None else list(law.survival(min(len(rows) - 1, max_k))),
            "draft_cost": cost,
            "charge": charge,
            "k": k,
            "max_k": max_k,
            "fidelity": "formula" if deployment is None else deployment.timing.fidelity,
            "engine": "ideal",
            **({} if deployment is None else {**deployment.describe(), "batch": batch, "context": context}),
        },
        best=top,
        ceiling=rounds.tokens_ceiling(law),
        pays_from_alpha=None if first is None else rounds.pays_from_alpha(1, first.round_cost),
        flat_band=rounds.flat_band(rows, within),
        by_k=rows,
        low=low,
        high=high,
        trust=trust(deployment),
        why=_why_depth(rows, top, cost, charge),
        assumptions=assumptions,
        warnings=warnings,
    )


def _why_depth(rows: Sequence[rounds.Depth], top: rounds.Depth, cost: float, charge: str) -> str:
    if top.k == 0:
        best_other = max(rows[1:], key=lambda row: row.speedup, default=None)
        if best_other is None:
            return "no draft length was allowed"
        return (
            f"do not speculate: even k {best_other.k} yields {best_other.tokens_per_round:.3f} tokens for a round that "
            f"costs {best_other.round_cost:.3f} plain steps"
        )
    if top.k + 1 < len(rows):
        after = rows[top.k + 1]
        gained = after.tokens_per_round - top.tokens_per_round
        paid = (after.round_cost - top.round_cost) * top.speedup
        return (
            f"draft {top.k + 1} would add {gained:.3f} tokens but take the time of {paid:.3f}; "
            f"up to k {top.k} each one more than pays for itself"
        )
    return f"every draft up to k {top.k} pays for itself, and no longer one was allowed"
