"""The command line: parse, call the library, render. `main` turns every input error into one line and exit code 2."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

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


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"specmodel {version('specmodel')}")
        except PackageNotFoundError:
            typer.echo("specmodel, not installed: run from its source folder")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Should this deployment speculate: with which draft length, up to which batch, for what gain?"""


# Typer carries its own copy of Click from 0.25 on; the base of its usage errors is found without naming either.
UsageProblem: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def main() -> None:
    """Entry point of the `specmodel` script. Exit codes: 0, 2 for bad input, 1 where the answer cannot be given."""
    if sys.stdout is None:  # closed before the start, as by >&-
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 shows "?" for what it cannot
            stream.reconfigure(errors="replace")
    code: object = 0
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _end(f"{_option(error.field)} = {error.shown}: {error.allowed}", 2)
    except UsageProblem as error:
        message = _usage(error)
        if message:  # without one it was a call without arguments, which printed the help
            _end(message, 2)
    except (typer.Abort, KeyboardInterrupt):
        _end("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe left (head, less): not an error of ours
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _drop_output()
        _end(f"the answer cannot be written: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("SPECMODEL_TRACEBACK"):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        _end(f"a fault of specmodel's own, please report it with the command ({said[:200]})", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"specmodel: {message}", err=True)
    sys.exit(code)


def _drop_output() -> None:
    """Point standard output nowhere, so that Python does not try to flush it again when it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no file behind it: nothing to flush
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _usage(error: Exception) -> str:
    """One line for a wrong call: the option, the value and what is allowed, where the error knows them."""
    asked, said = getattr(error, "param", None), getattr(error, "message", "")
    if type(error) is typer.BadParameter and asked is not None and said:
        return f"{asked.opts[0]} = {said}"
    return " ".join(error.format_message().split())  # type: ignore[attr-defined]


def _option(field: str) -> str:
    """How a person typed a field: `draft cost` is --draft-cost where the command has that option."""
    words, comma, rest = ("acceptance from" if field == "evidence" else field).partition(",")
    flag = "--" + words.replace(" ", "-").replace("_", "-")
    command = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    if command is None:
        return field
    group: Any = typer.main.get_command(app)
    known = {option for parameter in group.get_command(None, command).params for option in parameter.opts}
    return flag + comma + rest if flag in known else field
