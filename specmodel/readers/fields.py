"""Typed access to the keys of a config: each value checked once, each error naming key, value and range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specmodel.errors import InputError

MOST = {
    "hidden_size": 2**20,
    "num_hidden_layers": 4096,
    "vocab_size": 2**27,
    "max_position_embeddings": 10**10,
}
"""Largest value believed; other sizes are held to ``MOST_OTHER``."""
MOST_OTHER = 2**24


class Fields:
    """The keys of one config object, the wrapper around it, and what was filled in or assumed.

    Null counts as absent everywhere, as in Hugging Face's own classes.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        outer: Mapping[str, Any] | None = None,
        defaults: Mapping[str, int] | None = None,
    ) -> None:
        self.values = values
        self.where = where
        self.outer = outer or {}
        self.defaults = defaults or {}
        self.notes: list[str] = []
        self.read: set[str] = set()

    def get(self, *keys: str) -> tuple[str, Any]:
        """The first of the keys that is present and not null, with its value; ("", None) without."""
        self.read.update(keys)
        for key in keys:
            if self.values.get(key) is not None:
                return key, self.values[key]
        return "", None

    def either(self, *keys: str) -> Any:
        """As ``get``, inside first, then in the wrapper; the value alone."""
        value = self.get(*keys)[1]
        if value is not None:
            return value
        return next((self.outer[key] for key in keys if self.outer.get(key) is not None), None)

    def error(self, key: str, value: object, allowed: str) -> InputError:
        """An error that says where the key stands."""
        return InputError(key, value, f"{allowed} ({self.where})")

    def checked(self, key: str, value: object, low: int = 1, high: int | None = None) -> int:
        """An integer in range; booleans, strings and floats are none."""
        most = MOST.get(key, MOST_OTHER) if high is None else high
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
            raise self.error(key, value, f"an integer from {low} to {most}")
        return value

    def integer(self, *keys: str, low: int = 1, high: int | None = None) -> int:
        """The first key present, the family's default (and a note that it was used), or an error."""
        found = self.optional(*keys, low=low, high=high)
        if found is None:
            raise self.error(keys[0], None, "required, and this family has no default for it")
        return found

    def optional(self, *keys: str, low: int = 1, high: int | None = None) -> int | None:
        """As ``integer``, None where neither the config nor the family says."""
        key, value = self.get(*keys)
        if value is not None:
            return self.checked(key, value, low, high)
        for name in keys:
            if name in self.defaults:
                self.notes.append(f"{name} is not in the config: the family's default {self.defaults[name]}")
                return self.defaults[name]
        return None

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; ``default`` where absent."""
        value = self.get(key)[1]
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def sequence(self, key: str, length: int) -> list[Any] | None:
        """A list with one entry per layer; None where absent."""
        value = self.get(key)[1]
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            size = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
            raise self.error(key, value, f"a list with one entry per layer, {length}, not {size}")
        return value
