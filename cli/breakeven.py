"""`specmodel breakeven`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specmodel import rounds
from specmodel.cli import options
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.deployment import Deployment


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
    draft: options.Draft = None,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", help="The model behind draft-model, hybrid and pipelined.")
    ] = None,
    surface: Annotated[
        bool,
        typer.Option("--surface", help="The same over batches and contexts, and the context where it flips."),
    ] = False,
    batches: Annotated[
        str, typer.Option("--batches", help="Batches of the surface, separated by commas.")
    ] = "1,4,16,64,256",
    contexts: Annotated[
        str, typer.Option("--contexts", help="Contexts of the surface, separated by commas.")
    ] = "256,1024,4096,16384,65536",
    as_json: options.Json = False,
) -> None:
    """Print every batch interval in which speculation pays, and what binds where memory ends."""
    from specmodel.answers import batches as answers
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
    joined = None
    if draft is not None:
        from specmodel.draft_names import drafter
        from specmodel.model import Model

        if not isinstance(setting.model, Model):
            raise InputError("draft", draft, f"{setting.name} is given as totals: name an architecture")
        joined = drafter(draft, setting.model, model=draft_model)
    common: dict[str, Any] = {
        "acceptance": options.law(alpha, acceptance, acceptance_from, conditional=conditional, extend=extend),
        "draft_cost": draft_cost,
        "charge": charge,
        "drafter": joined,
        "k": options.depth(k),
        "max_k": max_k,
    }
    if surface:
        _surface(
            setting, common, options.wholes("batches", batches), options.wholes("contexts", contexts), as_json
        )
        return
    result = answers.breakeven(setting, context=ctx, **common)
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.breakeven(result)


def _surface(
    setting: Deployment,
    common: dict[str, Any],
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    as_json: bool,
) -> None:
    from specmodel.answers.break_even_surface import break_even_surface

    result = break_even_surface(setting, batches=batches, contexts=contexts, **common)
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    cells = {(cell.batch, cell.context): cell for cell in result.surface}
    lengths = [one.context for one in result.by_context]

    def shown(batch: int, context: int) -> str:
        cell = cells[batch, context]
        if not cell.fits:
            return "no memory"
        needed = "unreachable" if cell.alpha_needed is None else f"{cell.alpha_needed:.2f}"
        return f"{cell.speedup:.2f}x k{cell.k} | {needed}"

    render.listing(
        f"speedup, k | the alpha that breaks even: {setting.name} on {setting.device.id}",
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
