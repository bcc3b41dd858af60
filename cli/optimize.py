"""`specmodel optimize`."""

from __future__ import annotations

from typing import Annotated

import typer

from specmodel import rounds
from specmodel.cli import options


def optimize(
    draft_cost: options.DraftCost,
    alpha: options.Alpha = None,
    acceptance: options.AcceptanceList = None,
    acceptance_from: options.AcceptanceFrom = None,
    conditional: options.Conditional = False,
    extend: options.Extend = False,
    charge: options.Charge = "added",
    k: options.K = "best",
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Time the verification pass of this model instead of assuming it free."),
    ] = None,
    device: options.Device = "h100-sxm",
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    batch: options.Batch = 1,
    ctx: options.Ctx = 1024,
    fidelity: options.FidelityName = None,
    engine: options.Engine = "ideal",
    as_json: options.Json = False,
) -> None:
    """Print the draft length with the best predicted speedup."""
    from specmodel.answers import draft_length

    deployment = None
    if model is not None:
        from specmodel.deployment import deploy

        deployment = deploy(model, device, weights=weights, kv=kv, tp=tp, fidelity=fidelity, engine=engine)
    result = draft_length.optimize(
        draft_cost=draft_cost,
        acceptance=options.law(alpha, acceptance, acceptance_from, conditional=conditional, extend=extend),
        charge=charge,
        k=options.depth(k),
        max_k=max_k,
        deployment=deployment,
        batch=batch,
        context=ctx,
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.optimize(result)
