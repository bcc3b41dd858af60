"""`specmodel breakeven`."""

from __future__ import annotations

import typer

from specmodel import rounds
from specmodel.cli import options


def breakeven(
    ctx: options.Ctx = 1024,
    model: options.Model = "llama-3.1-8b",
    device: options.Device = "h100-sxm",
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    alpha: options.Alpha = None,
    acceptance: options.AcceptanceList = None,
    acceptance_from: options.AcceptanceFrom = None,
    conditional: options.Conditional = False,
    extend: options.Extend = False,
    draft_cost: options.DraftCost = 0.15,
    charge: options.Charge = "added",
    k: options.K = "best",
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    fidelity: options.FidelityName = None,
    engine: options.Engine = "ideal",
    ep: options.Ep = 1,
    kv_reread: options.KvReread = None,
    calibration: options.CalibrationFile = None,
    memory_fraction: options.MemoryFraction = None,
    kv_bytes_per_token: options.KvBytes = None,
    attention_flops: options.AttentionFlops = False,
    flops_fraction: options.FlopsFraction = None,
    as_json: options.Json = False,
) -> None:
    """Print every batch interval in which speculation pays, and what binds where memory ends."""
    from specmodel.answers import batches
    from specmodel.deployment import deploy

    setting = deploy(
        model,
        device,
        weights=weights,
        kv=kv,
        tp=tp,
        fidelity=fidelity,
        engine=engine,
        ep=ep,
        kv_reread=kv_reread,
        calibration=calibration,
        memory_fraction=memory_fraction,
        kv_bytes_per_token=kv_bytes_per_token,
        attention_flops=attention_flops,
        flops_fraction=flops_fraction,
    )
    result = batches.breakeven(
        setting,
        context=ctx,
        acceptance=options.law(alpha, acceptance, acceptance_from, conditional=conditional, extend=extend),
        draft_cost=draft_cost,
        charge=charge,
        k=options.depth(k),
        max_k=max_k,
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.breakeven(result)
