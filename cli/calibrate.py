"""`specmodel calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specmodel.cli import options
from specmodel.cli.bundles import bundled, on_request
from specmodel.cli.setting import machine
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.datasheets import Device


def _constant(name: str, value: float) -> str:
    """A constant in the unit that its name ends in: times in microseconds, rates in GB/s, shares as they are."""
    if name.endswith("_bytes_per_s"):
        return f"{name.removesuffix('_bytes_per_s')} {value / 1e9:.3g} GB/s"
    if name.endswith("_s"):
        return f"{name.removesuffix('_s')} {value * 1e6:.3g} us"
    return f"{name.removesuffix('_share')} {value:.3g}"


def served(
    runs: Annotated[
        str | None,
        typer.Option(
            "--runs",
            help="Instead: two or three runs of an engine (CSV or JSON: batch, context, k, tokens_per_round, and "
            "tpot_ms, itl_ms or step_ms).",
        ),
    ] = None,
    model: options.Model = "llama-3.1-8b",
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    ep: options.Ep = 1,
    engine: options.Engine = "vllm",
    draft: options.Draft = None,
    draft_model: options.DraftModel = None,
) -> dict[str, Any]:
    """A bundle: what the runs were of."""
    return {
        "runs": runs,
        "draft": draft,
        "draft_model": draft_model,
        "deployed": {"model": model, "weights": weights, "kv": kv, "tp": tp, "ep": ep, "engine": engine},
    }


@bundled(of_runs=on_request(served, "runs"))
def calibrate(
    of_runs: dict[str, Any] | None,
    files: Annotated[
        list[str] | None, typer.Argument(help="CSV tables of measured kernel times; not with --runs.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", help="What was measured, for files that do not say; what --runs ran on."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Where to write the constants (TOML); other commands take --calibration."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fit the constants of kernels to measured times, or an engine's times to your own runs, with their errors."""
    if of_runs is not None:
        if files:
            raise InputError(
                "runs", of_runs["runs"], "kernel tables and runs are fitted apart: give one of them"
            )
        _runs(of_runs, machine(device), out, as_json)
        return
    if not files:
        raise InputError("files", None, "give CSV tables of measured kernel times, or --runs FILE")
    import json

    from specmodel import calibration
    from specmodel.cli import render
    from specmodel.result import SCHEMA, plain

    with render.working("fitting"):
        report = calibration.calibrate(files, device)
    _write(out, report.calibration.to_toml())
    if as_json:
        content = {
            "schema": SCHEMA,
            "fits": plain(report.calibration.fits),
            "problems": plain(report.problems),
        }
        typer.echo(json.dumps(content, indent=2, allow_nan=False))
        return
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


def _write(out: str | None, text: str) -> None:
    if out is None:
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("out", out, f"cannot be written: {error.strerror}") from None


def _runs(of_runs: dict[str, Any], device: Device, out: str | None, as_json: bool) -> None:
    """The engine's times from a person's runs."""
    from specmodel.answers.common import joined
    from specmodel.deployment import deploy
    from specmodel.model import Model
    from specmodel.own_runs import fit_runs, read_runs

    setting = deploy(device=device, **of_runs["deployed"])
    if not isinstance(setting.model, Model):
        raise InputError("model", setting.name, "is given as totals: name an architecture")
    found = joined(setting, of_runs["draft"], model=of_runs["draft_model"])
    report = fit_runs(read_runs(of_runs["runs"]), setting, found)
    _write(out, report.to_toml())
    if as_json:
        typer.echo(report.to_json())
        return
    from specmodel.cli import render

    render.listing(
        f"times of {report.engine.name}",
        ("time", "ms", "80 % range", "shipped", "told by the runs"),
        [
            (
                (
                    one.name,
                    f"{one.value_s * 1e3:.3g}",
                    f"{one.low_s * 1e3:.3g} to {one.high_s * 1e3:.3g}",
                    f"{one.shipped_s * 1e3:.3g}",
                    "yes" if one.told else "no",
                ),
                "",
            )
            for one in report.constants
        ],
    )
    render.listing(
        "steps in ms",
        ("run", "batch", "context", "k", "measured", "shipped times", "fitted times"),
        [
            (
                (
                    row.id or str(row.row),
                    f"{row.batch:g}",
                    f"{row.context:g}",
                    str(row.k),
                    f"{row.measured_ms:.3g}",
                    f"{row.shipped_ms:.3g}",
                    f"{row.fitted_ms:.3g}",
                ),
                "",
            )
            for row in report.rows
        ],
    )
    for finding in report.findings:
        render.say(finding)
    if out is not None:
        render.say(f"written to {out}: give it to other commands with --engine {out}")
