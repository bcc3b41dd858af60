"""`specmodel tree`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel.cli import options
from specmodel.cli.bundles import bundled
from specmodel.cli.setting import describe

if TYPE_CHECKING:
    from specmodel.deployment import Deployment


MOST_DRAWN = 64


@bundled(setting=describe)
def tree(
    setting: Deployment,
    rank_acceptance: Annotated[
        str,
        typer.Option("--rank-acceptance", help="Chance that the best, second best, ... candidate is taken."),
    ],
    nodes: Annotated[int | None, options.integer("--nodes", "Nodes asked for, root not counted.")] = None,
    depth: Annotated[int | None, options.integer("--depth", "Longest path allowed.")] = None,
    max_nodes: Annotated[
        int | None, options.integer("--max-nodes", "Largest tree considered; 64 by default.")
    ] = None,
    draft_cost: Annotated[float, options.real("--draft-cost", "One level of drafting / plain step.")] = 0.02,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent", help="Rates given that the candidates before failed, not shares of one draw."
        ),
    ] = False,
    batch: options.Batch = 1,
    ctx: options.Ctx = 1024,
    as_json: options.Json = False,
) -> None:
    """Print the token tree with the best speedup here, or the best of a given size."""
    from specmodel.answers import token_tree

    result = token_tree.tree(
        setting,
        rank_acceptance=options.numbers("rank acceptance", rank_acceptance),
        nodes=nodes,
        depth=depth,
        max_nodes=max_nodes,
        draft_cost=draft_cost,
        batch=batch,
        context=ctx,
        siblings="independent" if independent else "exclusive",
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    children: dict[int, list[tuple[int, str]]] = {}
    for node, (parent, rank) in enumerate(zip(result.parents, result.ranks, strict=True)):
        if node < MOST_DRAWN:  # numbered level by level, so what is left out is deepest
            children.setdefault(parent, []).append((node, f"candidate {rank + 1}"))
    render.branches("root (the last token)", children)
    if result.nodes > MOST_DRAWN:
        render.say(f"{result.nodes - MOST_DRAWN} deeper nodes are not drawn; --json lists all", "dim")
    render.listing(
        f"tree sizes for {setting.name} on {setting.device.id}, batch {batch:,}, context {ctx:,}",
        ("nodes", "depth", "tokens", "round cost", "speedup"),
        [
            (
                (
                    str(row.nodes),
                    str(row.depth),
                    f"{row.expected_tokens:.3f}",
                    f"{row.round_cost:.3f}",
                    f"{row.speedup:.3f}x",
                ),
                render.BEST if row.nodes == result.nodes else render.LOSS if row.speedup < 1.0 else "",
            )
            for row in result.by_size
        ],
    )
    render.say(
        f"{result.nodes} nodes, depth {result.depth}, width {result.width}: {result.expected_tokens:.4f} tokens per "
        f"round, {result.speedup:.3f}x",
        render.BEST,
    )
    render.closing(
        why=result.why, assumptions=result.assumptions, trust=result.trust, warnings=result.warnings
    )
