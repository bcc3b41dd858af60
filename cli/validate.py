"""`specmodel validate`."""

from __future__ import annotations

from typing import Annotated

import typer

from specmodel.cli import options


def validate(
    files: Annotated[
        list[str] | None, typer.Argument(help="CSV tables of measured times; the shipped set by default.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="What was measured, for files that do not say.")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="List every row.")] = False,
    framework: Annotated[
        str | None,
        typer.Option("--framework", help="Whose constants, for rows that name none: vllm, sglang, trtllm."),
    ] = None,
    calibration: options.CalibrationFile = None,
    as_json: options.Json = False,
) -> None:
    """Compare predicted with measured times, row by row."""
    from specmodel import validation

    constants = None
    if calibration is not None:
        from specmodel.calibration_files import read_calibration

        constants = read_calibration(calibration)
    result = validation.validate(
        files or None, device=device, rows=rows, framework=framework, calibration=constants
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    render.listing(
        "predicted against measured",
        ("file", "kind", "rows", "predicted", "median", "mean", "bias", "datasheet median"),
        [
            (
                (
                    one.file,
                    one.kind,
                    f"{one.rows:,}",
                    f"{one.predicted_rows:,}",
                    share(one.median_abs_error),
                    share(one.mean_abs_error),
                    share(one.bias),
                    share(one.datasheet_median_abs_error),
                ),
                "",
            )
            for one in result.files
        ],
    )
    for row in result.rows or ():
        predicted = f"not predicted: {row.reason}" if row.predicted is None else f"{row.predicted:.4g}"
        render.say(f"{row.file} row {row.row}: measured {row.measured:.4g} {row.unit}, {predicted}")
    render.closing(warnings=result.problems)
