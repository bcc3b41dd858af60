"""The command line: parse, call the library, render. `main` turns every input error into one line and exit code 2."""

from __future__ import annotations

import sys

import typer

from specmodel.cli import breakeven, devices, models, optimize, step
from specmodel.errors import InputError

app = typer.Typer(
    name="specmodel",
    help="Should this deployment speculate: with which draft length, up to which batch, for what gain?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("optimize")(optimize.optimize)
app.command("breakeven")(breakeven.breakeven)
app.command("step")(step.step)
app.command("devices")(devices.devices)
app.command("models")(models.models)

# Typer carries its own copy of Click from 0.25 on; the base of its usage errors is found without naming either.
UsageProblem: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def main() -> None:
    """Entry point of the `specmodel` script."""
    code: object = 0
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _refuse(f"{_option(error.field)} = {error.shown}: {error.allowed}")
    except UsageProblem as error:
        message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
        if message:  # without one it was a call without arguments, which printed the help
            _refuse(message)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("specmodel: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe left (head, less): not an error of ours. Standard output is closed for good.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(message: str) -> None:
    typer.echo(f"specmodel: {message}", err=True)
    sys.exit(2)


def _option(field: str) -> str:
    """How a person typed a field: `draft cost` is --draft-cost when some command has that option."""
    words, comma, rest = field.partition(",")
    flag = "--" + words.replace(" ", "-").replace("_", "-")
    if any(
        flag in parameter.opts
        for command in typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
        for parameter in command.params
    ):
        return flag + comma + rest
    return field
