"""`specmodel validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel.cli import options

if TYPE_CHECKING:
    from specmodel.published.errors import SpeedupErrors
    from specmodel.validation import LayerErrors, ProductErrors


def validate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="CSV tables of measured times or published speedups; the shipped set by default."
        ),
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
    """Compare predicted with measured times and published speedups, row by row."""
    from specmodel import validation
    from specmodel.published.errors import SpeedupErrors
    from specmodel.validation import LayerErrors, ProductErrors

    constants = None
    if calibration is not None:
        from specmodel.kernel_times.files import read_calibration

        constants = read_calibration(calibration)
    from specmodel.cli import render

    with render.working("predicting"):
        result = validation.validate(
            files or None, device=device, rows=rows, framework=framework, calibration=constants
        )
    if as_json:
        typer.echo(result.to_json())
        return

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    render.listing(
        "predicted / measured - 1: median and mean of its size, bias; beside, the datasheet roofline (or E / (1 + kc))",
        ("file", "kind", "rows", "median", "mean", "bias", "beside"),
        [
            (
                (
                    one.file,
                    one.kind,
                    f"{one.rows:,}"
                    if one.predicted_rows == one.rows
                    else f"{one.predicted_rows:,} of {one.rows:,}",
                    share(one.median_abs_error),
                    share(one.mean_abs_error),
                    share(one.bias),
                    share(
                        one.ideal_median_abs_error
                        if isinstance(one, SpeedupErrors)
                        else one.datasheet_median_abs_error
                    ),
                ),
                "",
            )
            for one in result.files
        ],
    )
    for file in result.files:
        if isinstance(file, SpeedupErrors):
            _speedups(file)
        elif isinstance(file, ProductErrors):
            _products(file)
        elif isinstance(file, LayerErrors):
            _layers(file)
    for row in result.rows or ():
        predicted = (
            f"not predicted: {row.reason}" if row.predicted is None else f"predicted {row.predicted:.4g}"
        )
        measured = "" if row.measured is None else f"measured {row.measured:.4g} {row.unit}, "
        render.say(f"{row.file} row {row.row}: {measured}{predicted}")
    render.closing(warnings=result.problems)


def _products(file: ProductErrors) -> None:
    """Where products stop being bound by memory."""
    from specmodel.cli import render

    if not file.ridges:
        return
    render.listing(
        f"{file.file}: ridge, the tokens at which a product takes twice as long as with up to 4",
        ("device", "format", "by", "matrices", "measured", "predicted", "error", "datasheet"),
        [
            (
                (
                    one.device,
                    one.format,
                    one.framework,
                    f"{one.matrices:,}",
                    f"{one.measured:,.0f}",
                    f"{one.predicted:,.0f}",
                    f"{one.median_abs_error:.1%}",
                    "-" if one.datasheet is None else f"{one.datasheet:,.0f}",
                ),
                "",
            )
            for one in file.ridges
        ],
    )


def _layers(file: LayerErrors) -> None:
    """How well the price of a wider pass is predicted, and the batch at which speculation stops paying."""
    from specmodel.cli import render

    def shown(batch: float | None) -> str:
        return "-" if batch is None else f"{batch:.1f}"

    if file.ratio_median_abs_error is not None:
        render.say(
            f"{file.file}: wide pass / plain pass, {len(file.ratios):,} pairs, "
            f"median error {file.ratio_median_abs_error:.1%}"
        )

    if file.break_even:
        render.listing(
            f"{file.file}: the batch from which k free drafts no longer pay (- : not within the batches measured)",
            ("context", "k", "alpha", "measured", "predicted"),
            [
                (
                    (
                        f"{one.context:,}",
                        f"{one.k}",
                        f"{one.alpha:g}",
                        *map(shown, (one.measured, one.predicted)),
                    ),
                    "",
                )
                for one in file.break_even
            ],
        )


def _speedups(file: SpeedupErrors) -> None:
    """Where the errors of published speedups lie, and whether losses and gains were told apart."""
    from specmodel.cli import render

    render.listing(
        f"{file.file}: speedups of {file.scored_rows:,} rows that can be scored, by",
        ("by", "", "rows", "median", "mean", "bias", "ideal median"),
        [
            (
                (
                    group.by,
                    group.name,
                    f"{group.rows:,}",
                    f"{group.median_abs_error:.1%}",
                    f"{group.mean_abs_error:.1%}",
                    f"{group.bias:+.1%}",
                    f"{group.ideal_median_abs_error:.1%}",
                ),
                "",
            )
            for group in file.groups
        ],
    )
    for told, words in ((file.losses, "measured below 0.97"), (file.gains, "measured above 1.03")):
        if told.share is not None:
            side = "below" if told is file.losses else "above"
            render.say(
                f"{words}: {told.predicted:,} of {told.measured:,} predicted {side} 1 ({told.share:.0%})"
            )
