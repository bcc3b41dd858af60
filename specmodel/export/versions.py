"""Engine versions, and in which of them something exists."""

from __future__ import annotations

import re
from typing import NamedTuple

from specmodel.errors import InputError

FINAL = 10**6  # orders a release after its candidates

_VERSION = re.compile(r"v?(\d+(?:\.\d+){1,3})(?:\.?(?:rc|a|b)(\d+))?(?:\.(?:post|dev)\d+)?(?:\+[\w.]+)?")
_BUILD = re.compile(r"b?(\d{1,6})")


class Version(NamedTuple):
    """A release: numbers, then the candidate's number (a final release sorts after its candidates)."""

    numbers: tuple[int, ...]
    candidate: int = FINAL

    def __str__(self) -> str:
        text = ".".join(map(str, self.numbers))
        return text if self.candidate == FINAL else f"{text}rc{self.candidate}"


class Span(NamedTuple):
    """Releases from `first` to `last` (None: to the newest); "0.9" as a last one takes in every 0.9.x."""

    first: str
    last: str | None = None

    def holds(self, version: Version | None) -> bool:
        """Whether a release lies in it; None is the newest."""
        if version is None:
            return self.last is None
        if version < release(self.first):
            return False
        if self.last is None:
            return True
        last = tuple(int(number) for number in self.last.split("."))
        return version.numbers[: len(last)] <= last

    def describe(self) -> str:
        return f"from {self.first}" if self.last is None else f"{self.first} to {self.last}"


def release(text: str, field: str = "engine-version") -> Version:
    """A version such as 0.33.0, v0.8.5.post1 or 1.3.0rc8.

    Raises
    ------
    InputError
        If the text is not a version.
    """
    found = _VERSION.fullmatch(text.strip())
    if not found:
        raise InputError(field, text, "must be a release number such as 0.33.0 or 1.3.0rc8")
    numbers = tuple(int(number) for number in found[1].split("."))
    return Version((*numbers, 0)[:3] if len(numbers) < 3 else numbers, int(found[2]) if found[2] else FINAL)


def build(text: str, field: str = "engine-version") -> int:
    """The number of a llama.cpp build such as b8955."""
    found = _BUILD.fullmatch(text.strip())
    if not found:
        raise InputError(field, text, "must be a build number such as b8955")
    return int(found[1])


def exists(version: Version | None, spans: tuple[Span, ...]) -> bool:
    """Whether any of the spans holds the release."""
    return any(span.holds(version) for span in spans)


def describe(spans: tuple[Span, ...]) -> str:
    """``0.8.5 to 0.9 and from 0.19.1``."""
    return " and ".join(span.describe() for span in spans)
