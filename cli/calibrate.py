"""`specmodel calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmodel.cli import options
from specmodel.errors import InputError


def _constant(name: str, value: float) -> str:
    """A constant in the unit that its name ends in: times in microseconds, rates in GB/s, shares as they are."""
    if name.endswith("_bytes_per_s"):
        return f"{name.removesuffix('_bytes_per_s')} {value / 1e9:.3g} GB/s"
    if name.endswith("_s"):
        return f"{name.removesuffix('_s')} {value * 1e6:.3g} us"
    return f"{name.removesuffix('_share')} {value:.3g}"


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
        "constants fitted: median error, and on shapes left out; times in us, rates as shares of the datasheet's",
        ("device", "kind", "format", "by", "rows", "error", "left", "constants"),
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
                        _constant(name, getattr(fit.constants, name)) for name in type(fit.constants).FITTED
                    )
                    + (f" (at a limit: {', '.join(fit.at_bound)})" if fit.at_bound else ""),
                ),
                "",
            )
            for fit in report.calibration.fits
        ],
    )
    if out is not None:
        render.say(f"written to {out}: give it to other commands with --calibration")
    render.closing(warnings=report.problems)
