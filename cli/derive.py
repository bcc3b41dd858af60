"""`specmodel derive`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specmodel.cli import options


def derive(
    topic: Annotated[str | None, typer.Argument(help="One topic; all by default.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print results as LaTeX.")] = False,
    as_json: options.Json = False,
) -> None:
    """Derive the formulas symbolically, each step proved on the spot."""
    from specmodel import algebra
    from specmodel.cli import render
    from specmodel.result import SCHEMA, plain

    with render.working("deriving"):
        found = algebra.derive(topic)
    if as_json:
        shown = [{**plain_fields(one), "expression": str(one.expression)} for one in found]
        typer.echo(json.dumps({"schema": SCHEMA, "derivations": plain(shown)}, indent=2, allow_nan=False))
        return
    for one in found:
        render.say(f"{one.topic}: {one.name}", "bold")
        render.say(one.statement)
        for step in one.steps:
            render.say(f"    {step}", "dim")
        render.say(f"    = {one.latex if latex else one.result}", render.BEST)


def plain_fields(one: object) -> dict[str, object]:
    """The parts of a derivation that JSON can hold."""
    names = ("topic", "name", "statement", "steps", "result", "latex", "arguments")
    return {name: getattr(one, name) for name in names}
