"""`compose`: what quantisation, cache compression, more GPUs and speculation give together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks, levers, rounds
from specmodel.answers.common import DEFAULT_ALPHA, DEFAULT_DRAFT_COST, charge_words, trust
from specmodel.composition import combine
from specmodel.deployment import DEFAULT_CONTEXT, MAX_BATCH, MAX_CONTEXT, deploy
from specmodel.result import Result
from specmodel.units import show_bytes

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.composition import BatchRow, Cause, Combination, Effect, LeverResult, Reach
    from specmodel.deployment import Deployment

SAME = 0.005  # what moves by less than this share counts as unmoved


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
        tension=_tension(found, speculation),
        why=_why(found, speculation),
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
        removes=_removes(found, place),
    )


def _removes(found: Combination, place: int) -> str:
    """The bound that a lever lowers, from what to what."""
    step = found.steps[place]
    if step.term == "speculation":
        if not step.k:
            return "none: it does not speculate here"
        return (
            f"one read of weights and caches per token: k {step.k} shares it among the tokens of a round; the pass "
            f"waits for {step.bound} ({step.memory_ms:.3g} ms memory, {step.compute_ms:.3g} ms arithmetic)"
        )
    before: LeverResult | None = found.steps[place - 1] if place else None
    weights = found.baseline.weight_bytes_read(found.batch) if before is None else before.weight_bytes
    cache = found.baseline.cache_bytes if before is None else before.cache_bytes
    if step.term == "weights":
        return f"weights read per step: {show_bytes(weights)} to {show_bytes(step.weight_bytes)}"
    if step.term == "cache":
        verb = "adds to the" if step.cache_bytes > cache else "the"
        return f"{verb} cache read per sequence: {show_bytes(cache)} to {show_bytes(step.cache_bytes)}"
    return f"weights read per GPU: {show_bytes(weights)} to {show_bytes(step.weight_bytes)}, with all-reduces added"


def _tension(found: Combination, speculation: levers.Speculation | None) -> str:
    """One sentence: which lever works against speculation, and by how much."""
    effect = found.effect
    if effect is None or speculation is None:
        return "no lever speculates: the others share the read of memory, which each of them shortens for the next"
    if len(found.steps) == 1:
        return "speculation is the only lever: nothing works against it"
    by_reach = not _close(effect.reach_before.size, effect.reach_after.size)
    before, after = (
        (effect.reach_before.size, effect.reach_after.size)
        if by_reach
        else (effect.gain_before, effect.gain_after)
    )
    if _close(before, after):
        return (
            f"no tension at batch {found.batch:,}: speculation yields {effect.gain_after:.2f}x with the other levers as "
            f"without, and {_reach_words(effect.reach_after)}"
        )
    cause = _main_cause(effect, by_reach, fell=after < before)
    sold = "speculation sells arithmetic that idles while memory is read"
    sentence = (
        f"{sold}: {_mechanism(found, cause, fell=after < before)}, so {_movement(found, effect, by_reach)}"
    )
    sentence += _bystanders(found, cause)
    if speculation.charge != "none" and effect.cost_after > effect.cost_before * (1 + SAME):
        sentence += f"; the draft did not shrink and now costs {effect.cost_after:.3g} of a step, not {effect.cost_before:.3g}"
    return sentence


def _main_cause(effect: Effect, by_reach: bool, *, fell: bool) -> Cause:
    """The term whose undoing brings back most of what was lost, or takes most of what was won."""

    def undone(cause: Cause) -> float:
        return cause.reach.size if by_reach else cause.gain

    return (max if fell else min)(effect.causes, key=undone)


def _mechanism(found: Combination, cause: Cause, *, fell: bool) -> str:
    base, after = found.baseline, found.combined
    if cause.term == "gpus":
        return f"{after.deployment.tp} GPUs divide that read, and wait for each other"
    if cause.term == "weights":
        sizes = (base.weight_bytes_read(found.batch), after.weight_bytes_read(found.batch))
        what, per = "weights", "a step"
    else:
        sizes, what, per = (base.cache_bytes, after.cache_bytes), "caches", "per sequence"
    shown = f"{show_bytes(sizes[0])} to {show_bytes(sizes[1])} {per}"
    if (sizes[1] < sizes[0]) == fell:
        return f"the {what} {'shorten' if fell else 'lengthen'} that read ({shown})"
    return f"the {what} change the arithmetic more than that read ({shown})"


def _movement(found: Combination, effect: Effect, by_reach: bool) -> str:
    one, other = effect.reach_before, effect.reach_after
    if not by_reach:
        return (
            f"at batch {found.batch:,} it yields {effect.gain_after:.2f}x on top of the others and {effect.gain_before:.2f}x "
            f"alone, and {_reach_words(other)}"
        )
    if one.batch is not None and other.batch is not None:
        verb, factor = (
            ("falls", one.size / other.size) if other.size < one.size else ("rises", other.size / one.size)
        )
        return f"its break-even batch {verb} from {one.batch:.1f} to {other.batch:.1f} (a factor of {factor:.2f})"
    if one.batch is not None:
        return f"where it broke even at batch {one.batch:.1f}, {_reach_words(other)}"
    return f"where {_reach_words(one).replace('pays', 'paid')}, {_reach_words(other)}"


def _reach_words(reach: Reach) -> str:
    if reach.batch is not None:
        return f"it pays up to batch {reach.batch:.1f}"
    return {
        "always": "it pays in every batch that fits",
        "never": "it pays in no batch that fits",
        "gains later": "it loses at small batches and pays at larger ones",
        "nothing fits": "no batch fits",
    }[reach.outcome]


def _bystanders(found: Combination, cause: Cause) -> str:
    """What the other of weights and caches did, where a lever touched it."""
    touched = {step.term for step in found.steps}
    base, after = found.baseline, found.combined
    if cause.term != "cache" and "cache" in touched:
        if _close(base.cache_bytes, after.cache_bytes):
            return f"; the cache is no cause, {show_bytes(after.cache_bytes)} per sequence in both"
        return f"; the cache per sequence went from {show_bytes(base.cache_bytes)} to {show_bytes(after.cache_bytes)}"
    if cause.term != "weights" and "weights" in touched:
        sizes = [setting.weight_bytes_read(found.batch) for setting in (base, after)]
        return f"; the weights read went from {show_bytes(sizes[0])} to {show_bytes(sizes[1])}"
    return ""


def _why(found: Combination, speculation: levers.Speculation | None) -> str:
    """Why the product of single gains is, or is not, the truth."""
    at = f"at batch {found.batch:,}"
    if len(found.steps) == 1:
        return f"one lever: {found.actual:.3f}x {at}"
    if _close(found.product, found.actual):
        return f"the levers touch independent terms {at}: {found.actual:.3f}x, as the product of single gains says"
    effect, reasons = found.effect, []
    others = [step for step in found.steps if step.term != "speculation"]
    if len(others) > 1 and not _close(math.prod(step.alone for step in others), others[-1].cumulative):
        reasons.append("weights and caches share one read, so cutting one raises the share of the other")
    if effect is not None and speculation is not None:
        if speculation.charge != "none" and not _close(effect.cost_before, effect.cost_after):
            reasons.append(
                f"a draft pass costs {effect.cost_after:.3g} of the new step, not {effect.cost_before:.3g}"
            )
        if effect.bound_after == "compute" != effect.bound_before:
            reasons.append("the verification pass now waits for arithmetic, which no longer idles")
    why = "; ".join(reasons) or "each changes what the others find"
    return f"together {found.actual:.3f}x {at}, not the product {found.product:.3f}x: {why}"


def _close(one: float, other: float) -> bool:
    if one == other:
        return True
    return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= SAME * max(one, other)
