"""`specmodel models`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specmodel.cli import options


def models(
    name: Annotated[str | None, typer.Argument(help="One model: a catalogue id, alias or path.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the models known, or show what follows from one config."""
    from specmodel.model_list import model_rows
    from specmodel.result import SCHEMA, plain

    found = model_rows([name] if name is not None else None)
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "models": plain(found)}, indent=2, allow_nan=False))
        return
    from specmodel.cli import render

    render.models(found)
