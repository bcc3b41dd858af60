"""`specmodel step`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel.cli import options
from specmodel.cli.bundles import bundled
from specmodel.cli.setting import describe

if TYPE_CHECKING:
    from specmodel.deployment import Deployment


@bundled(setting=describe)
def step(
    setting: Deployment,
    batch: options.Batch = 1,
    ctx: options.Ctx = 1024,
    k: Annotated[
        int | None,
        options.integer("--k", "Draft tokens verified, 0 for a plain step; or drafted, with --draft."),
    ] = None,
    draft: options.Draft = None,
    draft_model: options.DraftModel = None,
    draft_tp: options.DraftTp = None,
    as_json: options.Json = False,
) -> None:
    """Print the time of a plain step, of a verification pass of k drafts, or of a draft's passes, kernel by kernel."""
    from specmodel.answers import pass_time

    result = pass_time.step(
        setting, batch=batch, context=ctx, k=k, draft=draft, draft_model=draft_model, draft_tp=draft_tp
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.step(result)
