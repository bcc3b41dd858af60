"""`specmodel drafts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel import rounds
from specmodel.cli import options
from specmodel.cli.bundles import bundled
from specmodel.cli.setting import describe

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment


@bundled(setting=describe, acceptance=options.law)
def drafts(
    setting: Deployment,
    acceptance: Acceptance | None,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Methods, model ids or paths; all that need no further model by default."),
    ] = None,
    batch: options.Batch = 1,
    ctx: options.Ctx = 1024,
    draft_model: Annotated[
        str | None,
        typer.Option("--draft-model", help="A draft model to compare, and behind hybrid and pipelined."),
    ] = None,
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    as_json: options.Json = False,
) -> None:
    """Compare draft methods on one workload, each at its own best draft length."""
    from specmodel.answers import draft_methods

    result = draft_methods.drafts(
        setting,
        names=list(names or []),
        model=draft_model,
        batch=batch,
        context=ctx,
        acceptance=acceptance,
        max_k=max_k,
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    best = result.drafts[0].method if result.drafts and result.drafts[0].speedup > 1.0 else None
    render.listing(
        f"drafts for {setting.name} on {setting.device.id}, batch {batch:,}, context {ctx:,}",
        ("method", "k", "width", "tokens", "cost", "speedup", "+GB", "law", "acceptance"),
        [
            (
                (
                    row.method.split(" ")[0],
                    str(row.k),
                    str(row.width),
                    f"{row.tokens_per_round:.2f}",
                    f"{row.round_cost:.2f}",
                    f"{row.speedup:.2f}x",
                    f"{row.extra_bytes / 1e9:.2f}",
                    "kept" if row.exact else "LOSSY",
                    "ILLUSTRATIVE"
                    if row.illustrative
                    else "given"
                    if row.source == "measured"
                    else "published",
                ),
                render.BEST if row.method == best else render.LOSS if row.speedup < 1.0 else "",
            )
            for row in result.drafts
        ],
    )
    for row in result.drafts:
        render.say(f"{row.method}: {row.source}", "dim")
    for left in result.left_out:
        render.say(f"left out: {left.method}: {left.reason}", "dim")
    render.closing(
        why=result.why, assumptions=result.assumptions, trust=result.trust, warnings=result.warnings
    )
