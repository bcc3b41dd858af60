"""`specmodel compose`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from specmodel import checks, rounds
from specmodel.cli import options
from specmodel.cli.bundles import bundled, without
from specmodel.cli.setting import describe

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment


# What it changes is described apart from the baseline.
@bundled(setting=without(describe, "weights", "kv", "kv_bytes_per_token", "tp", "ep"), acceptance=options.law)
def compose(
    setting: Deployment,
    acceptance: Acceptance | None,
    batch: options.Batch = 1,
    ctx: options.Ctx = 1024,
    baseline_ctx: Annotated[
        int | None,
        options.integer("--baseline-ctx", "Context of the baseline, where it differs."),
    ] = None,
    weights: options.Weights = None,
    weight_bytes: Annotated[
        str | None,
        typer.Option("--weight-bytes", help="Size of the changed weights, as 3.47 GB, instead of a format."),
    ] = None,
    kv: options.Kv = None,
    kv_bytes_per_token: Annotated[
        float | None,
        options.real("--kv-bytes-per-token", "Bytes per token of a compressed cache."),
    ] = None,
    baseline_kv_bytes_per_token: Annotated[
        float | None,
        options.real("--baseline-kv-bytes-per-token", "The same of the baseline."),
    ] = None,
    tp: Annotated[
        int | None,
        options.integer("--tp", "GPUs of the changed deployment."),
    ] = None,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="Leave speculation out.")] = False,
    draft_cost: options.DraftCost = 0.15,
    charge: options.Charge = "added",
    k: options.K = "best",
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    as_json: options.Json = False,
) -> None:
    """Evaluate weight format, cache, tensor parallelism and speculation together, not multiplied."""
    from specmodel.answers import combination
    from specmodel.deployment import with_cache
    from specmodel.units import parse_bytes

    if kv_bytes_per_token is not None:
        checks.real("kv bytes per token", kv_bytes_per_token, low=1.0, high=1e9)

    if baseline_kv_bytes_per_token is not None:
        setting = replace(
            setting,
            model=with_cache(setting.model, baseline_kv_bytes_per_token, "baseline kv bytes per token"),
        )
    result = combination.compose(
        setting,
        batch=batch,
        context=ctx,
        baseline_context=baseline_ctx,
        weights=weights,
        weight_bytes=None if weight_bytes is None else parse_bytes(weight_bytes, "weight bytes"),
        kv=kv,
        kv_bytes_per_token=kv_bytes_per_token,
        tp=tp,
        speculate=not no_speculation,
        acceptance=acceptance,
        draft_cost=draft_cost,
        charge=charge,
        k=options.depth(k),
        max_k=max_k,
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.listing(
        f"levers on {setting.name}, {setting.device.id}, batch {batch:,}, context {ctx:,}",
        ("lever", "alone", "cumulative", "break-even batch"),
        [
            (
                (
                    step.name,
                    f"{step.alone:.3f}x",
                    f"{step.cumulative:.3f}x",
                    "-" if step.break_even_batch is None else f"{step.break_even_batch:,.1f}",
                ),
                render.LOSS if step.alone < 1.0 else "",
            )
            for step in result.steps
        ],
    )
    render.say(f"product {result.product:.3f}x, together {result.actual:.3f}x", render.BEST)
    render.say(
        f"break-even batch: {result.break_even or '-'} (baseline: {result.baseline_break_even or '-'})"
    )
    render.say(f"tension: {result.tension}")
    render.closing(
        why=result.why, assumptions=result.assumptions, trust=result.trust, warnings=result.warnings
    )
