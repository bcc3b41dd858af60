"""`specmodel breakeven`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specmodel import rounds
from specmodel.cli import options
from specmodel.cli.bundles import bundled
from specmodel.cli.setting import describe
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment


@bundled(setting=describe, acceptance=options.law)
def breakeven(
    setting: Deployment,
    acceptance: Acceptance | None,
    ctx: options.Ctx = 1024,
    draft_cost: Annotated[
        float | None,
        options.real("--draft-cost", "One draft pass over one plain step, >= 0; 0.15 by default."),
    ] = None,
    charge: options.Charge = "added",
    draft: options.Draft = None,
    draft_model: options.DraftModel = None,
    draft_tp: options.DraftTp = None,
    k: options.K = "best",
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    surface: Annotated[
        bool,
        typer.Option("--surface", help="The same over batches and contexts, and the context where it flips."),
    ] = False,
    batches: Annotated[
        str | None,
        typer.Option("--batches", help="With --surface: batches, separated by commas; 1,4,16,64,256."),
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option("--contexts", help="With --surface: contexts; 256,1024,4096,16384,65536 by default."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print every batch interval in which speculation pays, and what binds where memory ends."""
    from specmodel.answers import batches as answers

    common: dict[str, Any] = {
        "acceptance": acceptance,
        "draft_cost": draft_cost,
        "charge": charge,
        "draft": draft,
        "draft_model": draft_model,
        "draft_tp": draft_tp,
        "k": options.depth(k),
        "max_k": max_k,
    }
    if surface:
        grid = {
            name: options.wholes(name, text)
            for name, text in (("batches", batches), ("contexts", contexts))
            if text is not None
        }
        _surface(setting, {**common, **grid}, as_json)
        return
    for field, value in (("batches", batches), ("contexts", contexts)):
        if value is not None:
            raise InputError(field, value, "changes nothing without --surface")
    result = answers.breakeven(setting, context=ctx, **common)
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.breakeven(result)


def _surface(setting: Deployment, asked: dict[str, Any], as_json: bool) -> None:
    from specmodel.answers.break_even_surface import break_even_surface

    result = break_even_surface(setting, **asked)
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    cells = {(cell.batch, cell.context): cell for cell in result.surface}
    lengths = [one.context for one in result.by_context]

    def speedup(batch: int, context: int) -> str:
        cell = cells[batch, context]
        return f"{cell.speedup:.2f}x k{cell.k}" if cell.fits else "no memory"

    def needed(batch: int, context: int) -> str:
        cell = cells[batch, context]
        if not cell.fits:
            return "no memory"
        return "unreachable" if cell.alpha_needed is None else f"{cell.alpha_needed:.2f}"

    for title, shown in (("speedup and best k", speedup), ("the alpha that breaks even", needed)):
        render.listing(
            f"{title}: {setting.name} on {setting.device.id}",
            ("batch", *(f"ctx {context:,}" for context in lengths)),
            [
                (
                    (f"{batch:,}", *(shown(batch, context) for context in lengths)),
                    render.LOSS if any(cells[batch, c].pays is False for c in lengths) else "",
                )
                for batch in sorted({cell.batch for cell in result.surface})
            ],
        )
    for one in result.by_context:
        crossing = (
            "never loses" if one.first_losing_batch is None else f"loses from batch {one.first_losing_batch}"
        )
        render.say(f"context {one.context:,}: {crossing}; {one.memory_limit_batch:,} sequences fit")
    render.closing(
        why=result.why, assumptions=result.assumptions, trust=result.trust, warnings=result.warnings
    )
