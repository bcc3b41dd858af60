"""`specmodel step`."""

from __future__ import annotations

from typing import Annotated

import typer

from specmodel.cli import options


def step(
    model: options.Model = "llama-3.1-8b",
    device: options.Device = "h100-sxm",
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    batch: options.Batch = 1,
    ctx: options.Ctx = 1024,
    k: Annotated[
        int,
        typer.Option(
            "--k",
            parser=options.whole,
            metavar="WHOLE",
            help="Draft tokens verified in the pass; 0 is a plain step.",
        ),
    ] = 0,
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
    """Print the time of a plain step, or of a verification pass of k drafts, kernel by kernel."""
    from specmodel.answers import pass_time
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
    result = pass_time.step(setting, batch=batch, context=ctx, k=k)
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.step(result)
