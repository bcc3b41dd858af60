"""A plan's draft and its length by batch, written for the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specmodel.drafters.heads import DraftHead
from specmodel.errors import InputError
from specmodel.model import Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.deployment import Deployment
    from specmodel.export import EngineConfig
    from specmodel.planning.request import DraftRequest, PlanRequest
    from specmodel.policies import Surface
    from specmodel.speculation import Speculation

ENGINE_WRITERS = {
    "vllm": "vllm",
    "vllm-captured": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
    "llama.cpp": "llama.cpp",
}


def configuration(
    asked: PlanRequest,
    setting: Deployment,
    draft: DraftRequest,
    speculation: Speculation,
    surface: Surface,
    refused: NDArray[np.bool_],
) -> tuple[EngineConfig | None, float | None, list[str]]:
    """The configuration, the mean regret of its few levels, and what to mind.

    One table serves all contexts: at each batch the speedups of the contexts that fit are averaged (by weight). An
    engine or method without a writer gives None and says why.
    """
    writer = ENGINE_WRITERS.get(setting.engine.id)
    if writer is None:
        return None, None, [f"no configuration is written for {setting.engine.name}"]
    from specmodel import export

    usable = surface.fits & ~refused
    weights = (
        np.ones(len(surface.contexts)) if asked.context_weights is None else np.asarray(asked.context_weights)
    )
    share = usable * weights[None, :]
    kept = share.sum(axis=1) > 0
    if not kept.any():
        return None, None, ["no configuration: no cell was decided"]
    mean = (surface.speedup * share[None]).sum(axis=2)[:, kept] / share.sum(axis=1)[kept]
    batches = [batch for batch, keep in zip(surface.batches, kept, strict=True) if keep]
    reduced = export.reduce_levels(
        batches,
        mean.T,
        ks=surface.ks,
        max_levels=asked.max_levels,
        monotone=_monotone(mean),
        largest_first=writer == "tensorrt-llm",
        min_k=1 if writer == "tensorrt-llm" else 0,  # its drafter loses its state at 0
    )
    try:
        request = export.Request(
            engine=writer,
            target=asked.target_checkpoint or _hub_name(setting),
            method=speculation.drafter.method.method,
            draft_model=_checkpoint(draft, speculation, writer),
            version=asked.engine_version,
            schedule=reduced.schedule,
            tp=setting.tp,
            kv=None if setting.model.precision.kv.name == "bf16" else setting.model.precision.kv.name,  # type: ignore[union-attr]
            max_batch=batches[-1],
            lossy=asked.lossy,
        )
        written = export.write(request)
        if len(reduced.schedule.levels) > 1 and export.read(written).schedule is None:
            # No table in this engine or version: the one length that loses least over all batches.
            lost = 1.0 - mean / mean.max(axis=0)
            written = export.write(
                replace(request, schedule=None, k=int(surface.ks[int(lost.mean(axis=1).argmin())]))
            )
    except InputError as error:
        return None, reduced.regret, [f"no configuration for {setting.engine.name}: {error}"]
    return written, reduced.regret, list(written.notes)


def _monotone(mean: NDArray[np.float64]) -> bool:
    """Whether the best k never grows with the batch; a mixture of experts can lose at batch 1 and win later."""
    best = mean.argmax(axis=0)
    return bool((np.diff(best) <= 0).all())


def _hub_name(setting: Deployment) -> str:
    from specmodel.readers import catalogue

    found = catalogue.lookup(setting.name)
    return setting.name if found is None or found.hub is None else found.hub


def _checkpoint(draft: DraftRequest, speculation: Speculation, writer: str) -> str | None:
    """What the engine should load as the draft; a placeholder that says so where only the kind is known."""
    from specmodel.export import words

    method = speculation.drafter.method.method
    if words.method_id(method) in words.NO_CHECKPOINT:
        return None
    if draft.checkpoint is not None:
        return draft.checkpoint
    artefact = speculation.drafter.artefact
    if isinstance(artefact, Model):
        from specmodel.readers import catalogue

        found = catalogue.lookup(artefact.name)
        return artefact.name if found is None or found.hub is None else found.hub
    if isinstance(artefact, DraftHead):
        return f"YOUR-{method.upper()}-HEAD"
    return None
