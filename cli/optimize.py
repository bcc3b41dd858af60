"""`specmodel optimize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel import rounds
from specmodel.cli import options
from specmodel.cli.bundles import bundled, on_request
from specmodel.cli.setting import describe
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment


@bundled(acceptance=options.law, setting=on_request(describe, "model"))
def optimize(
    acceptance: Acceptance | None,
    setting: Deployment | None,
    draft_cost: options.DraftCost,
    charge: options.Charge = "added",
    k: options.K = "best",
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    batch: Annotated[int | None, options.integer("--batch", "With --model: sequences in one step.")] = None,
    ctx: Annotated[
        int | None, options.integer("--ctx", "With --model: tokens already cached per sequence.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the draft length with the best predicted speedup."""
    from specmodel.answers import draft_length

    for field, value in (("batch", batch), ("ctx", ctx)):
        if setting is None and value is not None:
            raise InputError(field, value, "changes nothing without --model")
    result = draft_length.optimize(
        draft_cost=draft_cost,
        acceptance=acceptance,
        charge=charge,
        k=options.depth(k),
        max_k=max_k,
        deployment=setting,
        batch=1 if batch is None else batch,
        context=1024 if ctx is None else ctx,
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.optimize(result)
