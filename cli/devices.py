"""`specmodel devices`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specmodel.cli import options


def devices(
    name: Annotated[str | None, typer.Argument(help="One device, with the source of every figure.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the devices known, or one with its sources."""
    from specmodel import catalog
    from specmodel.result import SCHEMA, plain

    found = [catalog.datasheet(one) for one in (catalog.devices() if name is None else [name])]
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "devices": plain(found)}, indent=2, allow_nan=False))
        return
    from specmodel.cli import render

    if name is None:
        render.devices(found)
    else:
        render.device(found[0])
