"""The whole question: a deployment, its drafts and its load in; a decision, its reasons and an engine's configuration out.

For every draft, batch and context the best draft length follows from the same passes, engine times and memory ledger
as the other answers. One draft is chosen for the deployment (an engine runs one), the one with the least mean regret;
its length by batch is reduced to the few levels that engines take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specmodel import checks
from specmodel.answers.common import trust
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT, Deployment, deploy
from specmodel.drafters.names import drafter
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.planning.configuration import configuration
from specmodel.planning.doubts import Doubt, doubts, newer_than_its_times
from specmodel.planning.request import DraftRequest, PlanRequest
from specmodel.policies import Surface, regret
from specmodel.result import Result
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.acceptance import Acceptance
    from specmodel.export import EngineConfig

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cell:
    """The decision at one batch and context. `k` is 0 where not speculating is best, None where nothing is decided."""

    batch: int
    context: int
    k: int | None
    draft: str | None
    speedup: float | None
    tpot_ms: float | None
    tokens_per_second: float | None
    bound: str | None
    low: float | None
    high: float | None
    regret: float | None
    end_to_end_speedup: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class PlanInterval:
    """A run of batches at one context with the same decision."""

    context: int
    from_: int
    to: int
    k: int


@dataclass(frozen=True, slots=True)
class DraftSummary:
    """One draft over all cells that were decided: how often it is best, and what choosing it costs."""

    draft: str
    mean_regret: float
    best_in_cells: int
    best_speedup: float
    exact: bool
    acceptance: str
    refused: str


@dataclass(frozen=True, slots=True)
class PlanResult(Result):
    """The answer of `plan`; field names are the JSON keys."""

    inputs: dict[str, object]
    memory: dict[str, object]
    by_batch: list[Cell]
    intervals: list[PlanInterval]
    drafts: list[DraftSummary]
    schedule_regret: float | None
    engine_config: EngineConfig | None
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Option:
    """One draft with its surface over (k, batch, context)."""

    asked: DraftRequest
    speculation: Speculation
    law: Acceptance
    surface: Surface
    refused: NDArray[np.bool_]
    doubts: tuple[Doubt, ...] = field(default=())

    @property
    def name(self) -> str:
        return self.asked.name

    @property
    def best(self) -> Floats:
        """Best speedup per cell; 1 (do not speculate) where it is refused or does not fit."""
        best: Floats = np.where(self.refused, 1.0, self.surface.speedup.max(axis=0))
        return best


def plan(request: PlanRequest | None = None, **changes: Any) -> PlanResult:
    """Whether, with which draft, how deep and up to which batch a deployment should speculate.

    Parameters
    ----------
    request : PlanRequest, optional
        Defaults: Llama-3.1-8B in bf16 on one H100 SXM under vLLM with an EAGLE-3 head.
    changes
        Fields of the request to set.

    Raises
    ------
    InputError
        For a field out of range or an unknown name; what cannot be trusted is refused cell by cell instead.
    """
    asked = replace(request or PlanRequest(), **changes)
    batches = _ascending("batch", asked.batch, MAX_BATCH)
    contexts = _ascending("ctx", asked.context, MAX_CONTEXT)
    checks.whole("max_k", asked.max_k, high=64)
    setting = deploy(
        asked.model,
        asked.device,
        weights=asked.weights,
        kv=asked.kv,
        tp=asked.tp,
        ep=asked.ep,
        engine=asked.engine,
        fidelity=asked.fidelity,
        memory_fraction=asked.memory_fraction,
        kv_reread=asked.kv_reread,
        calibration=asked.calibration,
    )
    if not isinstance(setting.model, Model):
        raise InputError("model", setting.name, "is given as totals: name an architecture to plan for it")
    if not asked.drafts:
        raise InputError("draft", None, "name at least one draft")
    options = [_option(setting, one, batches, contexts, asked.max_k) for one in asked.drafts]
    chosen = _one_draft(options, asked.context_weights)
    top = options[chosen]
    cells, best = _cells(setting, options, chosen, batches, contexts, asked)
    config, schedule_regret, notes = configuration(
        asked, setting, top.asked, top.speculation, top.surface, top.refused
    )
    warnings = [*setting.warnings, *(str(doubt) for option in options for doubt in option.doubts), *notes]
    newer = newer_than_its_times(setting.engine.id, asked.engine_version)
    if newer is not None:
        warnings.append(newer)
    return PlanResult(
        inputs={
            **setting.describe(),
            **_inputs(asked),
            "fidelity": setting.timing.fidelity,
            "charge": "added",
        },
        memory=_memory(setting, top, batches, contexts),
        by_batch=cells,
        intervals=_intervals(cells),
        drafts=[_summary(option, best) for option in options],
        schedule_regret=schedule_regret,
        engine_config=config,
        low=min((cell.low for cell in cells if cell.low is not None), default=None),
        high=max((cell.high for cell in cells if cell.high is not None), default=None),
        trust=trust(setting),
        why=_why(top, cells),
        assumptions=[f"{one.name}: {one.law.describe()}{_assumed(one)}" for one in options]
        + list(setting.assumptions),
        warnings=list(dict.fromkeys(warnings)),
    )


def _ascending(name: str, values: Sequence[int], high: int) -> tuple[int, ...]:
    if not values:
        raise InputError(name, None, "name at least one")
    return tuple(sorted({checks.whole(name, value, low=1, high=high) for value in values}))


def _option(
    setting: Deployment, asked: DraftRequest, batches: Sequence[int], contexts: Sequence[int], max_k: int
) -> _Option:
    found = drafter(asked.name, setting.model, tp=asked.tp, model=asked.model)  # type: ignore[arg-type]
    given = asked.law()
    law = given if given is not None else found.method.assumed.law
    speculation = Speculation(setting, found)
    rows, columns = np.asarray(batches, dtype=float)[:, None], np.asarray(contexts, dtype=float)[None, :]
    speedup = speculation.speedups(law, max_k, rows, columns)
    deepest = speedup.shape[0] - 1
    limits = np.array(
        [setting.memory(c, width=found.width(deepest), draft=found.artefact).max_batch for c in contexts]
    )
    cells = (len(batches), len(contexts))
    surface = Surface(
        ks=tuple(range(deepest + 1)),
        batches=tuple(batches),
        contexts=tuple(contexts),
        speedup=speedup,
        step_seconds=np.broadcast_to(np.asarray(setting.plain_seconds(rows, columns), dtype=float), cells),
        fits=np.asarray(batches)[:, None] <= limits[None, :],
    )
    raised = doubts(setting, found, contexts, measured=given is not None)
    refused = np.zeros(cells, dtype=bool)
    for doubt in raised:
        if doubt.refuses:
            refused |= np.asarray([doubt.applies(context) for context in contexts])[None, :]
    return _Option(asked, speculation, law, surface, refused, raised)


def _one_draft(options: Sequence[_Option], weights: Sequence[float] | None) -> int:
    """The draft that loses least on average against the best of each cell."""
    best = np.max([option.best for option in options], axis=0)
    shares = np.ones(best.shape[1]) if weights is None else np.asarray(weights, dtype=float)
    if shares.shape != (best.shape[1],) or not (shares >= 0).all() or not shares.sum() > 0:
        raise InputError("context_weights", list(shares), "must be one share >= 0 per context, not all 0")
    lost = [float(((1.0 - option.best / best) * shares).mean()) for option in options]
    return int(np.argmin(lost))


def _cells(
    setting: Deployment,
    options: Sequence[_Option],
    chosen: int,
    batches: Sequence[int],
    contexts: Sequence[int],
    asked: PlanRequest,
) -> tuple[list[Cell], Floats]:
    from specmodel.bands import speedup_band

    top = options[chosen]
    best = np.max([option.best for option in options], axis=0)
    rows, columns = np.asarray(batches, dtype=float)[:, None], np.asarray(contexts, dtype=float)[None, :]
    depth = np.where(top.refused, 0, top.surface.speedup.argmax(axis=0))
    widths = np.vectorize(top.speculation.drafter.width, otypes=[float])(depth)
    taken = setting.pass_time(rows, columns, widths)
    memory, compute = (
        np.broadcast_to(np.asarray(t), depth.shape) for t in (taken.memory_seconds, taken.compute_seconds)
    )
    low, high = speedup_band(top.speculation)
    lost = regret(top.surface, depth)
    cells = []
    for i, batch in enumerate(batches):
        for j, context in enumerate(contexts):
            plain = float(top.surface.step_seconds[i, j])
            if not top.surface.fits[i, j]:
                cells.append(_blank(batch, context, "does not fit"))
                continue
            if top.refused[i, j]:
                cause = next(d.reason for d in top.doubts if d.refuses and d.applies(context))
                cells.append(_blank(batch, context, f"refused: {cause}"))
                continue
            k = int(depth[i, j])
            speedup = float(top.surface.speedup[k, i, j])
            cells.append(
                Cell(
                    batch=batch,
                    context=context,
                    k=k,
                    draft=top.name if k else None,
                    speedup=speedup,
                    tpot_ms=plain / speedup * 1e3,
                    tokens_per_second=batch * speedup / plain,
                    bound="memory" if memory[i, j] >= compute[i, j] else "compute",
                    low=None if low is None or k == 0 else speedup * low,
                    high=None if high is None or k == 0 else speedup * high,
                    regret=float(lost[i, j]),
                    end_to_end_speedup=_end_to_end(setting, asked, batch, plain, speedup),
                    reason="" if k else "the best round costs more than it yields",
                )
            )
    return cells, best


def _blank(batch: int, context: int, reason: str) -> Cell:
    return Cell(batch, context, None, None, None, None, None, None, None, None, None, None, reason)


def _end_to_end(
    setting: Deployment, asked: PlanRequest, batch: int, plain: float, speedup: float
) -> float | None:
    """Speedup of whole requests in steady state: prefill takes its time with and without speculation.

    One request of a batch of B occupies prefill + osl x step / B of the GPUs.
    """
    if asked.isl is None or asked.osl is None:
        return None
    tokens = checks.whole("isl", asked.isl, low=1, high=MAX_CONTEXT)
    decoded = checks.whole("osl", asked.osl, low=1, high=MAX_CONTEXT) * plain / batch
    # On average a prompt token attends to half of the prompt.
    prefill = float(setting.pass_time(1, tokens / 2, tokens).seconds)
    return (prefill + decoded) / (prefill + decoded / speedup)


def _intervals(cells: Sequence[Cell]) -> list[PlanInterval]:
    """Runs of equal k by context; a run ends one batch before the next decision begins."""
    found: list[PlanInterval] = []
    for context in dict.fromkeys(cell.context for cell in cells):
        column = [cell for cell in cells if cell.context == context and cell.k is not None]
        for index, cell in enumerate(column):
            k = cell.k or 0
            last = column[index + 1].batch - 1 if index + 1 < len(column) else cell.batch
            if found and found[-1].context == context and found[-1].k == k:
                found[-1] = replace(found[-1], to=last)
            else:
                found.append(PlanInterval(context, cell.batch, last, k))
    return found


def _summary(option: _Option, best: Floats) -> DraftSummary:
    usable = option.surface.fits & ~option.refused
    speedups = option.best[usable]
    lost = 1.0 - option.best / best
    causes = [doubt.reason for doubt in option.doubts if doubt.refuses]
    return DraftSummary(
        draft=option.speculation.drafter.name,
        mean_regret=float(lost.mean()),
        best_in_cells=int((lost <= 1e-12).sum()),
        best_speedup=float(speedups.max()) if speedups.size else 1.0,
        exact=option.speculation.drafter.method.exact,
        acceptance=option.law.describe(),
        refused="; ".join(causes),
    )


def _memory(
    setting: Deployment, top: _Option, batches: Sequence[int], contexts: Sequence[int]
) -> dict[str, object]:
    """The ledger at the largest batch and context asked for, and the batch that fits at each context."""
    from specmodel.result import plain

    found = top.speculation.drafter
    width = found.width(top.surface.ks[-1])
    held = setting.memory(contexts[-1], batch=batches[-1], width=width, draft=found.artefact)
    limits = [
        {"context": c, "max_batch": setting.memory(c, width=width, draft=found.artefact).max_batch}
        for c in contexts
    ]
    shown = plain(held)
    return {**(shown if isinstance(shown, dict) else {}), "by_context": limits}


def _inputs(asked: PlanRequest) -> dict[str, object]:
    """The request as a file would hold it, so that a saved plan can be run again."""
    from specmodel.result import plain

    shown = plain(asked)
    return {"request": shown}


def _assumed(option: _Option) -> str:
    if option.asked.law() is not None:
        return ""
    assumed = option.speculation.drafter.method.assumed
    loud = " ILLUSTRATIVE" if assumed.illustrative else ""
    return f" (assumed{loud}: {assumed.source})"


def _why(top: _Option, cells: Sequence[Cell]) -> str:
    decided = [cell for cell in cells if cell.k is not None]
    if not decided:
        return f"nothing is decided: {cells[0].reason}"
    paying = [cell for cell in decided if cell.k]
    if not paying:
        return f"do not speculate with {top.name}: no cell gains"
    best = max(paying, key=lambda cell: cell.speedup or 0.0)
    losing = [cell for cell in decided if not cell.k]
    first = f"{top.name} gains up to {best.speedup:.2f}x (batch {best.batch}, context {best.context:,}, k {best.k})"
    if not losing:
        return f"{first} and loses in no cell that fits"
    lost = losing[0]
    return f"{first}; from batch {lost.batch} at context {lost.context:,} a round costs more than it yields"


__all__ = ["Cell", "DraftRequest", "PlanRequest", "PlanResult", "plan"]
