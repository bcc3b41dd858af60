"""`specmodel models`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from specmodel.cli import options


def models(
    name: Annotated[str | None, typer.Argument(help="One model: a catalogue id, alias or path.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare every entry with what was published about it.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the models known, or show what follows from one config."""
    if check:
        _check(as_json)
        return
    from specmodel.model_list import model_rows
    from specmodel.result import SCHEMA, plain

    found = model_rows([name] if name is not None else None)
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "models": plain(found)}, indent=2, allow_nan=False))
        return
    from specmodel.cli import render

    render.models(found)


def _check(as_json: bool) -> None:
    """Counted against published parameters and cache sizes, one row per entry."""
    from specmodel.readers import catalogue
    from specmodel.result import SCHEMA, plain

    found = [catalogue.check(entry) for entry in catalogue.ids()]
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "models": plain(found)}, indent=2, allow_nan=False))
        return
    from specmodel.cli import render

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    def beside(counted: float | None, published: float | None) -> str:
        same = published is None or counted == published
        return shown(counted) if same else f"{shown(counted)}, published {shown(published)}"

    verdict = {True: "equal", False: "DIFFERS", None: "not compared"}
    render.listing(
        "counted against published",
        ("id", "parameters", "KV B/token", "verdict"),
        [
            (
                (
                    row.id,
                    beside(row.parameters, row.hub_elements if row.published is None else row.published),
                    beside(row.kv_bytes_per_token, row.published_kv_bytes_per_token),
                    verdict[row.equal],
                ),
                render.LOSS if row.equal is False else "",
            )
            for row in found
        ],
    )
    for row in found:
        if row.remark:
            render.say(f"{row.id}: {row.remark}", "dim")
    render.say(
        f"{sum(row.equal is True for row in found)} equal, {sum(row.equal is False for row in found)} differ, "
        f"{sum(row.equal is None for row in found)} with nothing published or refused"
    )
