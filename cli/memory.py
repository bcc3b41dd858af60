"""`specmodel memory`."""

from __future__ import annotations

from typing import Annotated

import typer

from specmodel.cli import options


def memory(
    model: options.Model = "llama-3.1-8b",
    device: options.Device = "h100-sxm",
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    ctx: options.Ctx = 1024,
    batch: options.Batch = 1,
    k: Annotated[
        int,
        typer.Option("--k", parser=options.whole, metavar="WHOLE", help="Draft tokens verified per round."),
    ] = 0,
    draft: options.Draft = None,
    draft_tp: Annotated[
        int | None,
        typer.Option(
            "--draft-tp", parser=options.whole, metavar="WHOLE", help="GPUs of the draft; all by default."
        ),
    ] = None,
    engine: options.Engine = "ideal",
    memory_fraction: options.MemoryFraction = None,
    kv_bytes_per_token: options.KvBytes = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            "--reserve", help="Activations and graphs on one GPU, as 4 GiB, instead of an estimate."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print what each GPU keeps, line by line, whether it fits, and the largest batch that does."""
    from specmodel.answers import footprint
    from specmodel.deployment import deploy
    from specmodel.units import parse_bytes, show_bytes

    setting = deploy(
        model,
        device,
        weights=weights,
        kv=kv,
        tp=tp,
        engine=engine,
        memory_fraction=memory_fraction,
        kv_bytes_per_token=kv_bytes_per_token,
    )
    result = footprint.memory(
        setting,
        context=ctx,
        batch=batch,
        k=k,
        draft=draft,
        draft_tp=draft_tp,
        reserve_bytes=None if reserve is None else parse_bytes(reserve, "reserve"),
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.listing(
        f"memory of GPU {result.limiting_rank}: {setting.name} on {tp} x {setting.device.id}, "
        f"context {ctx:,}, batch {batch:,}",
        ("line", "GB", "GiB"),
        [
            ((line.line, f"{line.bytes / 1e9:,.3f}", f"{line.bytes / 2**30:,.3f}"), "")
            for line in result.per_gpu
            if line.bytes
        ],
    )
    held = sum(line.bytes for line in result.per_gpu)
    render.say(
        f"{'fits' if result.fits else 'DOES NOT FIT'}: {show_bytes(held)} of {show_bytes(result.gpu_bytes)}; "
        f"at most {result.max_batch:,} sequences of {ctx:,} tokens, {result.kv_tokens:,} tokens in the KV pool",
        render.BEST if result.fits else render.LOSS,
    )
    render.closing(why=result.why, assumptions=result.assumptions, warnings=result.warnings)
