"""The one error that a person's input can cause."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


class InputError(ValueError):
    """Something that a person typed, or wrote in a file, is not allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        try:
            shown = repr(value)
        except ValueError:  # Python refuses to print integers of thousands of digits
            shown = "a number of thousands of digits"
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field} = {shown}: {allowed}")
        self.field = field
        self.shown = shown
        self.value = value
        self.allowed = allowed


def unknown_name(field: str, name: str, known: Collection[str]) -> InputError:
    """The error for a name that is in no catalogue, with the nearest ones that are."""
    if not isinstance(name, str):
        return InputError(field, name, "must be a name, as text")
    by_folded = {entry.casefold(): entry for entry in known}
    near = [by_folded[match] for match in get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.5)]
    if near:
        return InputError(field, name, "did you mean " + " or ".join(repr(entry) for entry in near) + "?")
    listed = sorted(known)
    shown = ", ".join(listed[:12]) + (f", ... ({len(listed)} in all)" if len(listed) > 12 else "")
    return InputError(field, name, f"unknown name; known: {shown}")
