"""How an answer becomes JSON: plain values only, no NaN, no infinity, `schema` first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

SCHEMA = 1


def plain(value: object) -> object:
    """A value made of dict, list, str, int, float, bool and None only.

    Dataclasses become dicts (a trailing underscore in a field name, needed for `from`, is dropped), arrays become
    lists, and what is not finite becomes None: JSON has no word for it, and "no bound" is an answer.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name.rstrip("_"): plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, without importing NumPy
        return plain(value.tolist())
    return str(value)


class Result:
    """What every answer can do."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """The answer as plain values, with the schema number first."""
        content = plain(self)
        if not isinstance(content, dict):
            raise TypeError(f"{type(self).__name__} is not a dataclass")
        return {"schema": SCHEMA, **content}

    def to_json(self) -> str:
        """One JSON object."""
        import json

        return json.dumps(self.to_dict(), indent=2, allow_nan=False)
