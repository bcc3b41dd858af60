"""A shell command taken apart into flags and what they are given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from specmodel.errors import InputError

_NUMBER = re.compile(r"-\.?\d")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Command:
    """Flags with their values ("" for a switch) and the words outside of flags, in order."""

    words: tuple[str, ...]
    flags: Mapping[str, str]

    def whole(self, flag: str) -> int | None:
        """The whole number given to a flag; None without the flag."""
        given = self.flags.get(flag)
        if given is None:
            return None
        if not re.fullmatch(r"\d{1,9}", given):
            raise InputError(flag, given, "must be a whole number")
        return int(given)

    def real(self, flag: str) -> float | None:
        """The number given to a flag; None without the flag."""
        given = self.flags.get(flag)
        if given is None:
            return None
        if not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", given):
            raise InputError(flag, given, "must be a number")
        return float(given)


def parse(
    text: str, *, switches: Collection[str] = (), aliases: Mapping[str, str] | None = None, fold: bool = False
) -> Command:
    """A command as the shell and the usual option parsers read it.

    Parameters
    ----------
    switches : collection of str
        Flags that take no value. Any other flag takes the word after it, unless that is a flag as well.
    aliases : mapping
        Other spellings of a flag; found flags are reported under the first one.
    fold : bool
        Read ``_`` in flag names as ``-``.

    Raises
    ------
    InputError
        If a quotation is left open.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError("command", text, f"cannot be read by a shell: {error}") from None
    while words and _ASSIGNMENT.match(words[0]):
        del words[0]
    outside: list[str] = []
    flags: dict[str, str] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not _is_flag(word):
            outside.append(word)
            continue
        name, equals, value = word.partition("=")
        if fold:
            name = name[:2] + name[2:].replace("_", "-")
        name = (aliases or {}).get(name, name)
        if not equals and name not in switches and position < len(words) and not _is_flag(words[position]):
            value = words[position]
            position += 1
        flags[name] = value
    return Command(tuple(outside), flags)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)
