"""`compose`: what quantisation, cache compression, more GPUs and speculation give together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, rounds
from specmodel.acceptance import MAX_K
from specmodel.answers.common import DEFAULT_ALPHA, DEFAULT_DRAFT_COST, charge_words, trust
from specmodel.answers.tension import removes, tension, why_not_the_product
from specmodel.composition import combine
from specmodel.deployment import DEFAULT_CONTEXT, MAX_BATCH, MAX_CONTEXT, deploy
from specmodel.planning import levers
from specmodel.result import Result

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.composition import BatchRow, Combination
    from specmodel.deployment import Deployment


@dataclass(frozen=True, slots=True)
class ComposeStep:
    """One lever. Gains are tokens per second over those of the plain baseline.

    `break_even_batch` is that of speculation with the levers up to this one, `break_even_alone` with this one only;
    None where `break_even` (`always`, `never`, ...) says why there is no such batch.
    """

    name: str
    term: str
    alone: float
    cumulative: float
    break_even_batch: float | None
    break_even: str | None
    break_even_alone: float | None
    k: int | None
    draft_cost: float | None
    memory_ms: float
    compute_ms: float
    bound: str
    removes: str


@dataclass(frozen=True, slots=True)
class ComposeResult(Result):
    """The answer of `compose`; field names are the JSON keys."""

    inputs: dict[str, object]
    steps: list[ComposeStep]
    product: float
    actual: float
    break_even_batch: float | None
    break_even: str | None
    baseline_break_even_batch: float | None
    baseline_break_even: str | None
    speculation_alone: float | None
    speculation_on_top: float | None
    draft_cost_alone: float | None
    draft_cost_on_top: float | None
    by_batch: list[BatchRow]
    baseline_memory_limit_batch: int
    memory_limit_batch: int
    fits: bool
    low: float | None
    high: float | None
    tension: str
    why: str
    trust: str
    assumptions: list[str]
    warnings: list[str]


def compose(
    deployment: Deployment | None = None,
    *,
    batch: int = 1,
    context: int = DEFAULT_CONTEXT,
    baseline_context: int | None = None,
    weights: str | None = None,
    weight_bytes: float | None = None,
    kv: str | None = None,
    kv_bytes_per_token: float | None = None,
    tp: int | None = None,
    speculate: bool = True,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    draft_cost: float = DEFAULT_DRAFT_COST,
    draft_cost_after: float | None = None,
    charge: str = "added",
    k: int | None = None,
    max_k: int = rounds.DEFAULT_MAX_K,
) -> ComposeResult:
    """Any set of levers on a baseline deployment: each alone, their product, and the truth.

    Parameters
    ----------
    deployment : Deployment, optional
        The baseline; Llama-3.1-8B in bf16 on one H100 SXM by default.
    batch, context
        Where gains are compared. Break-even batches are found over all batches that fit.
    baseline_context : int, optional
        Context of the baseline where it differs: then the longer context is one more step.
    weights, kv : str, optional
        Number formats of the changed deployment.
    weight_bytes : float, optional
        Size of the changed weights instead, for a model given as totals. [B]
    kv_bytes_per_token : float, optional
        Bytes per token of a compressed cache. [B]
    tp : int, optional
        GPUs of the changed deployment.
    draft_cost, draft_cost_after
        One draft pass over a plain step of the baseline; and over one of the changed target, where it is known. By
        default the draft keeps its seconds, so the same draft costs more of a shorter step.

    Raises
    ------
    InputError
        One line naming the value and what is allowed.
    """
    setting = deployment or deploy()
    checks.whole("batch", batch, low=1, high=MAX_BATCH)
    checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    start = context if baseline_context is None else baseline_context
    checks.whole("baseline ctx", start, low=1, high=MAX_CONTEXT)
    asked: list[levers.Lever] = []
    if start != context:
        asked.append(levers.longer_context(context))
    if kv is not None:
        asked.append(levers.kv_format(kv))
    if kv_bytes_per_token is not None:
        asked.append(levers.kv_compression(kv_bytes_per_token))
    if weights is not None:
        asked.append(levers.weight_format(weights))
    if weight_bytes is not None:
        asked.append(levers.weight_bytes(weight_bytes))
    if tp is not None:
        asked.append(levers.tensor_parallel(tp))
    k = None if k is None else checks.whole("k", k, high=MAX_K)
    max_k = checks.whole("max_k", max_k, high=MAX_K)
    speculation = None
    if speculate:
        assumed = DEFAULT_ALPHA if alpha is None and acceptance is None else alpha
        speculation = levers.Speculation(
            law=rounds.acceptance_from(assumed, acceptance, conditional=conditional, extend=extend),
            k=k,
            draft_cost=checks.real("draft cost", draft_cost, low=0.0),
            charge=charge,
            max_k=max_k,
            stated_cost=draft_cost_after,
        )
    found = combine(setting, asked, speculation, batch=batch, context=start)
    return _result(found, speculation, draft_cost_after)


def _result(
    found: Combination, speculation: levers.Speculation | None, stated: float | None
) -> ComposeResult:
    base, after, effect = found.baseline, found.combined, found.effect
    limits = [setting.deployment.memory_limit_batch(setting.context) for setting in (base, after)]
    warnings = list(base.deployment.warnings)
    for setting, limit, which in zip((base, after), limits, ("baseline", "combination"), strict=True):
        if limit == 0:
            warnings.append(f"{which}: {setting.deployment.why_nothing_fits(setting.context)}")
        elif found.batch > limit:
            warnings.append(
                f"{which}: batch {found.batch:,} does not fit at context {setting.context:,}: at most {limit:,} do"
            )
    assumptions = list(base.deployment.assumptions)
    if base.context != after.context:
        assumptions.append(f"the baseline is taken at context {base.context:,}")
    if speculation is not None:
        assumptions += [
            speculation.law.describe(),
            charge_words(speculation.charge, speculation.draft_cost),
            "the draft keeps its seconds when the target changes"
            if stated is None
            else f"once the target changes a draft pass costs {stated:g} of its step, as stated",
            "the draft's own weights and cache are not counted against memory",
        ]
    if any(step.term == "gpus" for step in found.steps):
        assumptions.append("gains count the deployment, not each of its GPUs")
    return ComposeResult(
        inputs={
            **base.deployment.describe(),
            "batch": found.batch,
            "context": after.context,
            "baseline_context": base.context,
            "levers": [step.name for step in found.steps],
            "alpha": None if speculation is None else getattr(speculation.law, "alpha", None),
            "acceptance": _rates(speculation),
            "k": None if speculation is None else speculation.k,
            "draft_cost": None if speculation is None else speculation.draft_cost,
            "draft_cost_after": stated,
            "charge": None if speculation is None else speculation.charge,
            "fidelity": base.deployment.timing.fidelity,
        },
        steps=[_step(found, place) for place in range(len(found.steps))],
        product=found.product,
        actual=found.actual,
        break_even_batch=None if effect is None else effect.reach_after.batch,
        break_even=None if effect is None else effect.reach_after.outcome,
        baseline_break_even_batch=None if effect is None else effect.reach_before.batch,
        baseline_break_even=None if effect is None else effect.reach_before.outcome,
        speculation_alone=None if effect is None else effect.gain_before,
        speculation_on_top=None if effect is None else effect.gain_after,
        draft_cost_alone=None if effect is None else effect.cost_before,
        draft_cost_on_top=None if effect is None else effect.cost_after,
        by_batch=list(found.by_batch),
        baseline_memory_limit_batch=limits[0],
        memory_limit_batch=limits[1],
        fits=found.batch <= min(limits),
        low=None,
        high=None,
        tension=tension(found, speculation),
        why=why_not_the_product(found, speculation),
        trust=trust(base.deployment),
        assumptions=assumptions,
        warnings=warnings,
    )


def _rates(speculation: levers.Speculation | None) -> list[float] | None:
    if speculation is None or hasattr(speculation.law, "alpha"):
        return None
    return list(speculation.law.survival(speculation.law.max_k or speculation.max_k))


def _step(found: Combination, place: int) -> ComposeStep:
    step = found.steps[place]
    return ComposeStep(
        name=step.name,
        term=step.term,
        alone=step.alone,
        cumulative=step.cumulative,
        break_even_batch=None if step.reach is None else step.reach.batch,
        break_even=None if step.reach is None else step.reach.outcome,
        break_even_alone=None if step.reach_alone is None else step.reach_alone.batch,
        k=step.k,
        draft_cost=step.draft_cost,
        memory_ms=step.memory_ms,
        compute_ms=step.compute_ms,
        bound=step.bound,
        removes=removes(found, place),
    )
