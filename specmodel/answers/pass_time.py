"""`step`: the time of one target pass, or of a draft's passes, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specmodel import checks, roofline
from specmodel.acceptance import MAX_K
from specmodel.answers.common import draft_notes, draft_warnings, joined, the_deployment, trust
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.passes import forward_pass
from specmodel.result import Result
from specmodel.roofline import Kernel, KernelTime, PassTime, Textbook
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter


@dataclass(frozen=True, slots=True)
class StepKernel:
    """One line of `step`: all launches of a kernel. [s]"""

    name: str
    kind: str
    count: int
    seconds: float
    memory_seconds: float
    compute_seconds: float
    fixed_seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class StepResult(Result):
    """The answer of `step`; field names are the JSON keys.

    `seconds` holds the engine's time of the pass, which is a line of `kernels` too; `low` and `high` are the 10-90 %
    range of measured times around it, at the calibrated fidelity. For a draft, times are those of all its passes of a
    round of k, and `draft_cost` is one of them over a plain step.
    """

    inputs: dict[str, object]
    seconds: float
    low: float | None
    high: float | None
    bound: str
    memory_seconds: float
    compute_seconds: float
    fixed_seconds: float
    fixed_share: float
    kernels: list[StepKernel]
    plain_seconds: float
    ratio_to_plain: float
    draft_cost: float | None
    ridge_flop_per_byte: float
    flop_per_byte: float
    idle_share_of_peak: float
    idle_share_of_effective: float
    largest_free_width: int | None
    fits: bool
    memory_limit_batch: int
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The pass asked about: kernels and how many launches of each (all passes of a draft together), their time, the
    engine's, how many passes."""

    name: str
    launched: list[tuple[Kernel, float]]
    taken: PassTime
    engine_s: float
    passes: float


def step(
    deployment: Deployment | None = None,
    *,
    batch: int = 1,
    context: int = 1024,
    k: int | None = None,
    draft: str | Drafter | None = None,
    draft_model: str | None = None,
    draft_tp: int | None = None,
) -> StepResult:
    """Time of one target pass, plain or verifying k drafts, or of a draft's passes in a round of k, kernel by kernel.

    Parameters
    ----------
    k : int, optional
        Drafts verified, 0 (the default) for a plain step; with a draft, tokens that it drafts, 1 by default.
    draft, draft_model, draft_tp
        A draft as `specmodel drafts` names it, the model behind it, and how many GPUs it runs on.

    Raises
    ------
    InputError
        One line naming the value and what is allowed.
    """
    setting = the_deployment(deployment)
    batch = checks.whole("batch", batch, low=1, high=MAX_BATCH)
    context = checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    drafter = joined(setting, draft, model=draft_model, tp=draft_tp)
    k = checks.whole("k", (0 if drafter is None else 1) if k is None else k, high=MAX_K)
    asked = (
        _target_pass(setting, batch, context, k)
        if drafter is None
        else _draft_passes(setting, drafter, batch, context, k)
    )
    taken, seconds = asked.taken, float(asked.taken.seconds) + asked.engine_s
    fixed = float(taken.fixed_seconds) + asked.engine_s
    memory, compute = float(taken.memory_seconds), float(taken.compute_seconds)
    whole = PassTime(seconds, memory, compute, fixed, ())
    plain = setting.pass_time(batch, context)
    plain_seconds = float(setting.plain_seconds(batch, context))
    flops, moved, at_peak = _work(setting, asked.launched)
    low, high = _range(setting, asked)
    limit = setting.memory_limit_batch(context)
    return StepResult(
        inputs={
            **setting.describe(),
            "batch": batch,
            "context": context,
            "k": k,
            "width": k + 1 if drafter is None else None,
            "pass": asked.name,
            "draft": None if drafter is None else drafter.name,
            "fidelity": setting.timing.fidelity,
            "charge": None,
        },
        seconds=seconds,
        low=low,
        high=high,
        bound=whole.bound,
        memory_seconds=memory,
        compute_seconds=compute,
        fixed_seconds=fixed,
        fixed_share=fixed / seconds,
        kernels=_lines(asked),
        plain_seconds=plain_seconds,
        ratio_to_plain=seconds / plain_seconds,
        draft_cost=None if drafter is None else seconds / asked.passes / plain_seconds,
        ridge_flop_per_byte=roofline.ridge(_rate(setting), setting.device.bandwidth_bytes_per_s),
        flop_per_byte=flops / moved,
        idle_share_of_peak=1.0 - min(1.0, at_peak / seconds),
        idle_share_of_effective=1.0 - min(1.0, compute / seconds),
        largest_free_width=None
        if drafter is not None
        else roofline.largest_free_width(
            float(plain.memory_seconds), float(plain.compute_seconds) / batch, batch
        ),
        fits=batch <= limit,
        memory_limit_batch=limit,
        trust=trust(setting),
        why=_why(whole),
        assumptions=[*draft_notes(drafter), *setting.assumptions],
        warnings=[
            *setting.warnings,
            *draft_warnings(setting, drafter, context),
            *(
                [f"batch {batch:,} does not fit at context {context:,}: at most {limit:,} sequences do"]
                if batch > limit
                else []
            ),
        ],
    )


def _target_pass(setting: Deployment, batch: int, context: int, k: int) -> _Asked:
    kernels = forward_pass(setting.model, batch=batch, context=context, width=k + 1, split=setting.split)
    taken = setting.timing.time(kernels)
    served = (
        setting.plain_seconds(batch, context) if k == 0 else setting.verify_seconds(batch, context, k + 1)
    )
    engine = max(0.0, float(served) - float(taken.seconds))
    launched = [(kernel, float(kernel.count)) for kernel in kernels]
    return _Asked("plain" if k == 0 else "verify", launched, taken, engine, 1)


def _draft_passes(setting: Deployment, drafter: Drafter, batch: int, context: int, k: int) -> _Asked:
    """All passes of a round of k, as if they were one."""
    checks.whole("k", k, low=1, high=drafter.method.deepest or MAX_K)
    groups = drafter.launches(k, batch=batch, context=context, split=setting.split)
    if not groups:
        raise InputError("draft", drafter.name, "launches no passes of its own: there is nothing to time")
    times = [(setting.timing.time(group.kernels), group.count) for group in groups]
    terms = {
        term: sum(float(getattr(one, term)) * count for one, count in times)
        for term in ("seconds", "memory_seconds", "compute_seconds", "fixed_seconds")
    }
    parts = tuple(
        replace(
            part,
            count=round(part.count * count),
            seconds=part.seconds * count,
            memory_seconds=part.memory_seconds * count,
            compute_seconds=part.compute_seconds * count,
            fixed_seconds=part.fixed_seconds * count,
        )
        for one, count in times
        for part in one.kernels
    )
    taken = PassTime(**terms, kernels=parts)
    launched = [(kernel, kernel.count * group.count) for group in groups for kernel in group.kernels]
    served = float(Speculation(setting, drafter).round_time(k, batch, context).draft_s)
    engine = max(0.0, served - float(taken.seconds))
    return _Asked("draft", launched, taken, engine, sum(group.count for group in groups))


def _work(setting: Deployment, launched: Sequence[tuple[Kernel, float]]) -> tuple[float, float, float]:
    """FLOPs of a pass, bytes that it moves, and how long its arithmetic would take at the peak. [FLOP, B, s]

    Counted as the fidelity counts them: the textbook leaves activations out, and attention unless asked. What goes
    over a link is no memory traffic.
    """
    timing, device = setting.timing, setting.device
    textbook = isinstance(timing, Textbook)
    flops = moved = at_peak = 0.0
    for kernel, count in launched:
        if kernel.kind == "allreduce":
            continue
        counted = float(kernel.flops)
        if not textbook or timing.attention_flops:  # type: ignore[attr-defined]
            counted += float(kernel.attention_flops)
        flops += count * counted
        at_peak += count * counted / device.peak(kernel.rate)[0]
        read = float(kernel.weight_bytes + kernel.cache_bytes)
        moved += count * (read if textbook else read + float(kernel.activation_bytes))
    return flops, moved, at_peak


def _rate(setting: Deployment) -> float:
    """The arithmetic rate that the weights of this deployment are multiplied at, as its fidelity takes it. [FLOP/s]"""
    stored = setting.model.precision.weights.rate if isinstance(setting.model, Model) else "bf16"
    fraction = setting.timing.fraction if isinstance(setting.timing, Textbook) else 1.0
    return fraction * setting.device.peak(stored)[0]


def _range(setting: Deployment, asked: _Asked) -> tuple[float | None, float | None]:
    """Where 80 % of measured times are expected; the engine's time is added as it stands. [s]"""
    from specmodel.kernel_times.calibrated import Calibrated

    if not isinstance(setting.timing, Calibrated):
        return None, None
    kernels = [replace(kernel, count=max(1, round(count))) for kernel, count in asked.launched]
    band = setting.timing.band(kernels)
    seconds = float(asked.taken.seconds)
    return band.low * seconds + asked.engine_s, band.high * seconds + asked.engine_s


def _lines(asked: _Asked) -> list[StepKernel]:
    rows = [_line(part) for part in asked.taken.kernels]
    if asked.engine_s > 0.0:
        engine, passes = asked.engine_s, max(1, round(asked.passes))
        rows.append(StepKernel("engine", "engine", passes, engine, 0.0, 0.0, engine, "fixed"))
    return rows


def _line(part: KernelTime) -> StepKernel:
    one = PassTime(part.seconds, part.memory_seconds, part.compute_seconds, part.fixed_seconds, ())
    return StepKernel(
        part.name,
        part.kind,
        part.count,
        float(part.seconds),
        float(part.memory_seconds),
        float(part.compute_seconds),
        float(part.fixed_seconds),
        one.bound,
    )


def _why(whole: PassTime) -> str:
    terms = {
        "memory": (float(whole.memory_seconds), "memory traffic"),
        "compute": (float(whole.compute_seconds), "arithmetic"),
        "fixed": (float(whole.fixed_seconds), "fixed times"),
    }
    first, second = sorted(terms.values(), reverse=True)[:2]
    factor = f" ({first[0] / second[0]:.1f}x)" if second[0] > 0.0 else ""
    against = f"{first[0] * 1e3:.3g} ms of {first[1]} against {second[0] * 1e3:.3g} ms of {second[1]}"
    return f"{whole.bound} binds: {against}{factor}"
