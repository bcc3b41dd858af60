"""`specmodel measure`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specmodel.cli import options

if TYPE_CHECKING:
    from specmodel.hardware.measure import Measurement


def measure(
    backend: Annotated[str, typer.Option("--backend", help="Where to run: cpu or cuda.")] = "cpu",
    out: Annotated[
        str | None,
        typer.Option("--out", help="Start of the file names; the machine's id in this folder by default."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small grid: under a minute on two cores.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Time the small decode kernel on this machine, in the form that calibrate and validate read."""
    from specmodel.cli import render
    from specmodel.hardware import measure as measuring

    try:
        with render.measuring_bar() as report:
            done = measuring.measure(backend, out, quick=quick, progress=report)
    except measuring.Interrupted as stopped:
        _show(stopped.measurement, as_json)
        raise
    _show(done, as_json)


def _show(done: Measurement, as_json: bool) -> None:
    from specmodel.result import SCHEMA, plain

    if as_json:
        shown: Any = plain(done)
        typer.echo(
            json.dumps({"schema": SCHEMA, **shown, "complete": done.complete}, indent=2, allow_nan=False)
        )
        return
    from specmodel.cli import render

    render.listing(
        f"{done.name}: {done.rows:,} of {done.points:,} rows in {done.seconds:.0f} s",
        ("figure", "value"),
        [((name.replace("_", " "), f"{value:,.4g}"), "") for name, value in done.figures.items()],
    )
    tables = [str(path) for path in done.files if path.suffix == ".csv"]
    kernels = " ".join(table for table in tables if not table.endswith("-layer.csv"))
    device = next((str(path) for path in done.files if path.suffix == ".toml"), "")
    render.say(f"written: {', '.join(str(path) for path in done.files)}")
    render.say(f"next: specmodel calibrate {kernels} --device {device} --out constants.toml", "dim")
    render.say(
        f"      specmodel validate {' '.join(tables)} --device {device} --calibration constants.toml", "dim"
    )
    warnings = []
    if not done.complete:
        warnings.append("not complete: the same command takes up where it ended")
    if done.disturbed > 0.1:
        warnings.append(
            f"other processes took a core in {done.disturbed:.0%} of the samples: measure on an idle machine"
        )
    render.closing(warnings=warnings)
