"""`specmodel memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel.cli import options
from specmodel.cli.bundles import bundled, without
from specmodel.cli.setting import TIMING, describe

if TYPE_CHECKING:
    from specmodel.deployment import Deployment


@bundled(setting=without(describe, *TIMING))
def memory(
    setting: Deployment,
    ctx: options.Ctx = 1024,
    batch: options.Batch = 1,
    k: Annotated[int, options.integer("--k", "Draft tokens verified per round.")] = 0,
    draft: options.Draft = None,
    draft_model: options.DraftModel = None,
    draft_tp: options.DraftTp = None,
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
    from specmodel.units import parse_bytes, show_bytes

    result = footprint.memory(
        setting,
        context=ctx,
        batch=batch,
        k=k,
        draft=draft,
        draft_model=draft_model,
        draft_tp=draft_tp,
        reserve_bytes=None if reserve is None else parse_bytes(reserve, "reserve"),
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.listing(
        f"memory of GPU {result.limiting_rank}: {setting.name} on {setting.tp} x {setting.device.id}, "
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
