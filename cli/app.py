"""The command line: parse, call the library, render. `main` turns every input error into one line and exit code 2."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from specmodel.errors import InputError, unknown_name

# In the order of the help page. Each is the function of that name in the module of that name, imported when asked for.
COMMANDS = (
    "plan",
    "optimize",
    "breakeven",
    "step",
    "memory",
    "compose",
    "policy",
    "drafts",
    "tree",
    "alpha",
    "exact",
    "derive",
    "devices",
    "models",
    "validate",
    "calibrate",
    "measure",
)


class LazyCommands(TyperGroup):
    """Builds the one command that is asked for: with all of them built at each start, every command would wait."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, for the help page and for suggestions."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments begin with; an unknown one is refused with the nearest names."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise unknown_name("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(cmd_name)(getattr(import_module(f"specmodel.cli.{cmd_name}"), cmd_name))
        return typer.main.get_command(single)


app = typer.Typer(
    name="specmodel",
    cls=LazyCommands,
    help="Should this deployment speculate: with which draft length, up to which batch, for what gain?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Should this deployment speculate: with which draft length, up to which batch, for what gain?"""


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
    """How a person typed a field: `draft cost` is --draft-cost where the command has that option."""
    words, comma, rest = field.partition(",")
    flag = "--" + words.replace(" ", "-").replace("_", "-")
    command = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    if command is None:
        return field
    group: Any = typer.main.get_command(app)
    known = {option for parameter in group.get_command(None, command).params for option in parameter.opts}
    return flag + comma + rest if flag in known else field
