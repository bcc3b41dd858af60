"""Further flags of an engine that takes its settings on the command line: option names to flags and back."""

from __future__ import annotations

from collections.abc import Mapping

from specmodel.errors import InputError, unknown_name
from specmodel.export.command_line import Command
from specmodel.export.settings import check_name, is_number


def flag_of(name: str) -> str:
    """``spec_draft_n_min`` is ``--spec-draft-n-min``; one word is a short flag, ``ngld`` is ``-ngld``."""
    return f"--{name.replace('_', '-')}" if "_" in name else f"-{name}"


def switches(kinds: Mapping[str, str]) -> list[str]:
    """The flags that take no value."""
    return [flag_of(name) for name, kind in kinds.items() if kind == "switch"]


def to_flags(options: Mapping[str, object], kinds: Mapping[str, str]) -> list[str]:
    """Flags for the options of a request; `kinds` says for each known name: whole, number, text or switch.

    Raises
    ------
    InputError
        For an unknown name or a value of another kind.
    """
    flags: list[str] = []
    for name, value in options.items():
        if name not in kinds:
            raise unknown_name("option", name, kinds)
        kind, flag = kinds[name], flag_of(name)
        if kind == "switch":
            if value is not True:
                raise InputError(flag, value, "is a switch: give true, or leave it out")
            flags.append(flag)
            continue
        if kind == "whole" and (type(value) is not int or value < 0):
            raise InputError(flag, value, "must be a whole number, at least 0")
        if kind == "number" and not is_number(value):
            raise InputError(flag, value, "must be a number")
        if kind == "text":
            if not isinstance(value, str):
                raise InputError(flag, value, "must be text")
            check_name(flag, value)
        flags += [flag, str(value)]
    return flags


def from_command(command: Command, kinds: Mapping[str, str]) -> dict[str, object]:
    """The options that a command gives."""
    options: dict[str, object] = {}
    for name, kind in kinds.items():
        flag = flag_of(name)
        if flag not in command.flags:
            continue
        if kind == "switch":
            options[name] = True
        elif kind == "text":
            options[name] = command.flags[flag]
        else:
            options[name] = command.whole(flag) if kind == "whole" else command.real(flag)
    return options
