"""`specmodel calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmodel.cli import options
from specmodel.errors import InputError


def calibrate(
    files: Annotated[list[str], typer.Argument(help="CSV tables of measured kernel times.")],
    device: Annotated[
        str | None, typer.Option("--device", help="What was measured, for files that do not say.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Where to write the constants (TOML); other commands take --calibration."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit the constants of kernels to measured times, with their errors."""
    import json

    from specmodel import calibration
    from specmodel.result import SCHEMA, plain

    report = calibration.calibrate(files, device)
    if out is not None:
        try:
            Path(out).write_text(report.calibration.to_toml(), encoding="utf-8")
        except OSError as error:
            raise InputError("out", out, f"cannot be written: {error.strerror}") from None
    if as_json:
        content = {
            "schema": SCHEMA,
            "fits": plain(report.calibration.fits),
            "problems": plain(report.problems),
        }
        typer.echo(json.dumps(content, indent=2, allow_nan=False))
        return
    from specmodel.cli import render

    render.listing(
        "constants fitted (times in us, shares of the datasheet's rates)",
        ("device", "kind", "format", "framework", "rows", "error", "left out", "constants"),
        [
            (
                (
                    fit.device,
                    fit.kind,
                    fit.format,
                    fit.framework,
                    f"{fit.rows:,}",
                    "-" if fit.error is None else f"{fit.error:.1%}",
                    "-" if fit.left_out is None else f"{fit.left_out:.1%}",
                    ", ".join(
                        f"{name} {getattr(fit.constants, name):.3g}" for name in type(fit.constants).FITTED
                    ),
                ),
                "",
            )
            for fit in report.calibration.fits
        ],
    )
    if out is not None:
        render.say(f"written to {out}: give it to other commands with --calibration")
    render.closing(warnings=report.problems)
