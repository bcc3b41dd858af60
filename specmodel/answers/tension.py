"""What a combination of levers does to speculation, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specmodel.units import show_bytes

if TYPE_CHECKING:
    from specmodel.composition import Cause, Combination, Effect, LeverResult, Reach
    from specmodel.planning.levers import Speculation

SAME = 0.005  # what moves by less than this share counts as unmoved
WAITS = {"memory": "memory", "compute": "arithmetic", "fixed": "the fixed times of its kernels"}


def removes(found: Combination, place: int) -> str:
    """The bound that a lever lowers, from what to what."""
    step = found.steps[place]
    if step.term == "speculation":
        if not step.k:
            return "none: it does not speculate here"
        return (
            f"one read of weights and caches per token: k {step.k} shares it among the tokens of a round; the pass "
            f"waits for {WAITS[step.bound]} ({step.memory_ms:.3g} ms memory, {step.compute_ms:.3g} ms arithmetic)"
        )
    before: LeverResult | None = found.steps[place - 1] if place else None
    weights = found.baseline.weight_bytes_read(found.batch) if before is None else before.weight_bytes
    cache = found.baseline.cache_bytes if before is None else before.cache_bytes
    if step.term == "weights":
        return f"weights read per step: {show_bytes(weights)} to {show_bytes(step.weight_bytes)}"
    if step.term == "cache":
        verb = "none, it adds to the" if step.cache_bytes > cache else "the"
        return f"{verb} cache read per sequence: {show_bytes(cache)} to {show_bytes(step.cache_bytes)}"
    return f"weights read per GPU: {show_bytes(weights)} to {show_bytes(step.weight_bytes)}, with all-reduces added"


def tension(found: Combination, speculation: Speculation | None) -> str:
    """Which lever works against speculation, or for it, and by how much."""
    effect = found.effect
    if effect is None or speculation is None:
        return "no lever speculates: the others share the read of memory, which each of them shortens for the next"
    if len(found.steps) == 1:
        return "speculation is the only lever: nothing works against it"
    by_reach = not close(effect.reach_before.size, effect.reach_after.size)
    before, after = (
        (effect.reach_before.size, effect.reach_after.size)
        if by_reach
        else (effect.gain_before, effect.gain_after)
    )
    if close(before, after):
        return (
            f"no tension at batch {found.batch:,}: speculation yields {effect.gain_after:.2f}x with the other levers "
            f"as without, and {_pays(effect.reach_after)}"
        )
    cause = _main_cause(effect, by_reach, fell=after < before)
    sentence = (
        "speculation sells arithmetic that idles while memory is read: "
        f"{_mechanism(found, cause, fell=after < before)}, so {_movement(found, effect, by_reach)}"
    )
    sentence += _bystanders(found, cause)
    if speculation.charge != "none" and effect.cost_after > effect.cost_before * (1 + SAME):
        costs = f"{effect.cost_after:.3g} of a step, not {effect.cost_before:.3g}"
        sentence += f"; the draft did not shrink and now costs {costs}"
    return sentence


def why_not_the_product(found: Combination, speculation: Speculation | None) -> str:
    """Why the product of single gains is, or is not, the truth."""
    at = f"at batch {found.batch:,}"
    if len(found.steps) == 1:
        return f"one lever: {found.actual:.3f}x {at}"
    if close(found.product, found.actual):
        return f"the levers touch independent terms {at}: {found.actual:.3f}x, as the product of single gains says"
    effect, reasons = found.effect, []
    others = [step for step in found.steps if step.term != "speculation"]
    if len(others) > 1 and not close(math.prod(step.alone for step in others), others[-1].cumulative):
        reasons.append("weights and caches share one read, so cutting one raises the share of the other")
    if effect is not None and speculation is not None:
        if speculation.charge != "none" and not close(effect.cost_before, effect.cost_after):
            reasons.append(
                f"a draft pass costs {effect.cost_after:.3g} of the new step, not {effect.cost_before:.3g}"
            )
        if effect.bound_after == "compute" != effect.bound_before:
            reasons.append("the verification pass now waits for arithmetic, which no longer idles")
    why = "; ".join(reasons) or "each changes what the others find"
    return f"together {found.actual:.3f}x {at}, not the product {found.product:.3f}x: {why}"


def close(one: float, other: float) -> bool:
    """Whether two values differ by no more than SAME."""
    if one == other:
        return True
    return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= SAME * max(one, other)


def _main_cause(effect: Effect, by_reach: bool, *, fell: bool) -> Cause:
    """The term whose undoing brings back most of what was lost, or takes most of what was won."""

    def undone(cause: Cause) -> tuple[float, float]:
        return (cause.reach.size if by_reach else 0.0, cause.gain)

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
    verb = "shorten" if sizes[1] < sizes[0] else "lengthen"
    if (sizes[1] < sizes[0]) == fell:
        return f"the {what} {verb} that read ({shown})"
    # A round costs less of a plain step only if its verification pass changed by another factor.
    order = "less" if verb == "lengthen" else "more"
    return f"the {what} {verb} the verification pass {order} than the plain step ({shown})"


def _movement(found: Combination, effect: Effect, by_reach: bool) -> str:
    one, other = effect.reach_before, effect.reach_after
    if not by_reach:
        gains = f"{effect.gain_after:.2f}x on top of the others and {effect.gain_before:.2f}x alone"
        return f"at batch {found.batch:,} it yields {gains}, and {_pays(other)}"
    if one.batch is not None and other.batch is not None:
        falls = other.size < one.size
        factor = max(one.size, other.size) / min(one.size, other.size)
        verb = "falls" if falls else "rises"
        return f"its break-even batch {verb} from {one.batch:.1f} to {other.batch:.1f} (a factor of {factor:.2f})"
    fitted, fit = (
        setting.deployment.memory_limit_batch(setting.context) for setting in (found.baseline, found.combined)
    )
    was = _pays(one).replace("pays", "paid").replace("loses", "lost").removesuffix(" that fits")
    return f"where {fitted:,} sequences fitted {was}, and where {fit:,} fit {_pays(other).removesuffix(' that fits')}"


def _pays(reach: Reach) -> str:
    if reach.batch is not None:
        return f"it pays up to batch {reach.batch:.1f}"
    return {
        "always": "it pays in every batch that fits",
        "never": "it pays in no batch that fits",
        "gains later": "it loses at small batches and pays at larger ones",
        "nothing fits": "there is nothing to speculate for",
    }[reach.outcome]


def _bystanders(found: Combination, cause: Cause) -> str:
    """What the other of weights and caches did, where a lever touched it."""
    touched = {step.term for step in found.steps}
    base, after = found.baseline, found.combined
    if cause.term != "cache" and "cache" in touched:
        if close(base.cache_bytes, after.cache_bytes):
            return f"; the cache is no cause, {show_bytes(after.cache_bytes)} per sequence in both"
        return f"; the cache per sequence went from {show_bytes(base.cache_bytes)} to {show_bytes(after.cache_bytes)}"
    if cause.term != "weights" and "weights" in touched:
        sizes = [setting.weight_bytes_read(found.batch) for setting in (base, after)]
        return f"; the weights read went from {show_bytes(sizes[0])} to {show_bytes(sizes[1])}"
    return ""
