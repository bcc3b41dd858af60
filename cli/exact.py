"""`specmodel exact`."""

from __future__ import annotations

from typing import Annotated

import typer

from specmodel.cli import options


def exact(
    p: Annotated[
        str, typer.Option("--p", help="The target's law: probabilities of the tokens, summing to 1.")
    ],
    q: Annotated[str, typer.Option("--q", help="The draft's law over the same tokens.")],
    rule: Annotated[
        str, typer.Option("--rule", help="exact, or a lossy rule: typical, top-1, top-n, relaxed.")
    ] = "exact",
    temperature: Annotated[
        float,
        options.real("--temperature", "Shapes p; 0 is greedy."),
    ] = 1.0,
    as_json: options.Json = False,
) -> None:
    """Print both branches of the verification of one token, and whether the target's law is preserved."""
    from specmodel import sampling

    result = sampling.exact(
        options.numbers("p", p), options.numbers("q", q), rule=rule, temperature=temperature
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    columns = (
        result.p,
        result.q,
        result.accept,
        result.accepted_mass,
        result.residual,
        result.corrected_mass,
    )
    render.listing(
        f"one drafted token under the rule {result.rule}",
        ("token", "p", "q", "accept", "accepted", "residual", "corrected", "emitted"),
        [
            ((str(token), *(f"{column[token]:.4f}" for column in (*columns, result.emitted))), "")
            for token in range(result.p.size)
        ],
    )
    render.say(f"accepted with chance {float(result.overlap):.4f} (the overlap of p and q)")
    if result.preserved:
        render.say("the target's law is preserved: accepted + corrected = p", render.BEST)
    else:
        render.say(
            f"LOSSY: the emitted law is {float(result.distance):.4f} from p in total variation, "
            f"KL {float(result.divergence):.4f} nats",
            render.LOSS,
        )
