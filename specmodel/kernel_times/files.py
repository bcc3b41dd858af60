"""Constants as they stand in TOML files: the shipped ones and those that `calibrate` writes and people edit."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from specmodel.errors import InputError, unknown_name
from specmodel.kernel_times.constants import FORMS, POOLED, Calibration, Constants, Fit

_MAX_FILE_BYTES = 4_000_000


def read_calibration(path: str | Path) -> Calibration:
    """Constants from a TOML file that `specmodel calibrate` wrote, or one in its form.

    Raises
    ------
    InputError
        For a file that cannot be read, is not TOML, or holds what is not allowed: one line naming file and key.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            "calibration", str(path), f"cannot be read: {getattr(error, 'strerror', error)}"
        ) from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError("calibration", str(path), "must be a TOML file of at most 4 MB")
    try:
        tables = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            "calibration", str(path), f"must be a TOML file: {' '.join(str(error).split())[:200]}"
        ) from None
    return Calibration(tuple(read_fits(tables, path.name)))


def read_fits(tables: Mapping[str, Any], where: str) -> Iterator[Fit]:
    """The [[fit]] tables of a file, checked key by key."""
    listed = tables.get("fit", [])
    if not isinstance(listed, list) or not (listed or "family" in tables):
        raise InputError(f"{where}: fit", listed, "must be one or more tables [[fit]]")
    for number, table in enumerate(listed, start=1):
        yield _read_fit(table, f"{where}: fit {number}")


def _read_fit(table: object, label: str) -> Fit:
    if not isinstance(table, dict):
        raise InputError(label, table, "must be a table")
    known = {entry.name for entry in fields(Fit)}
    for key in table:
        if key not in known:
            raise unknown_name(f"{label} key", key, sorted(known))
    kind = _text(table, "kind", label)
    if kind not in FORMS:
        raise unknown_name(f"{label} kind", kind, FORMS)
    numbers = {key: _number(table, key, label) for key in ("low", "middle", "high") if key in table}
    origin = table.get("origin", "measured")
    if origin not in ("measured", "default"):
        raise InputError(f"{label} origin", origin, "must be measured or default")
    return Fit(
        device=_text(table, "device", label),
        kind=kind,
        format=_text(table, "format", label, empty=True),
        framework=_text(table, "framework", label) if "framework" in table else POOLED,
        constants=_constants(kind, table.get("constants"), label),
        standard_errors=_errors(table.get("standard_errors", {}), label),
        rows=int(_number(table, "rows", label, low=0.0)) if "rows" in table else 0,
        error=_number(table, "error", label, low=0.0) if "error" in table else None,
        left_out=_number(table, "left_out", label, low=0.0) if "left_out" in table else None,
        low=numbers.get("low", 1.0),
        middle=numbers.get("middle", 1.0),
        high=numbers.get("high", 1.0),
        origin=origin,
        source=_text(table, "source", label) if "source" in table else label,
        at_bound=tuple(str(name) for name in table.get("at_bound", ())),
    )


def _constants(kind: str, table: object, label: str) -> Constants:
    form = FORMS[kind]
    if not isinstance(table, dict):
        raise InputError(f"{label} constants", table, "must be a table of numbers")
    entries = {entry.name: entry for entry in fields(form)}
    for key in table:
        if key not in entries:
            raise unknown_name(f"{label} constant", key, entries)
    may_be_zero = {name for name in entries if entries[name].default in (0.0,)} | {
        "peer_s",
        "relay_s",
        "fixed_s",
    }
    values = {}
    for name, entry in entries.items():
        if name in table:
            values[name] = _number(table, name, label, low=0.0, zero=name in may_be_zero)
        elif not isinstance(entry.default, float):
            raise InputError(f"{label} constants", table, f"{name} is missing")
    return form(**values)


def _errors(table: object, label: str) -> dict[str, float]:
    if not isinstance(table, dict):
        raise InputError(f"{label} standard_errors", table, "must be a table of numbers")
    return {str(name): _number(table, name, label, low=0.0) for name in table}


def _text(table: Mapping[str, Any], key: str, label: str, *, empty: bool = False) -> str:
    value = table.get(key, "" if empty else None)
    if not isinstance(value, str) or not (value or empty) or len(value) > 500:
        raise InputError(f"{label} {key}", value, "must be a text")
    return value


def _number(table: Mapping[str, Any], key: str, label: str, *, low: float = 0.0, zero: bool = True) -> float:
    value = table[key]
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or value < low or (value == 0.0 and not zero):
        raise InputError(
            f"{label} {key}", value, f"must be a finite number {'>=' if zero else 'above'} {low:g}"
        )
    return float(value)


def toml_text(fits: Iterable[Fit]) -> str:
    """The text that `read_calibration` reads back."""
    return "\n".join(["# Constants fitted by specmodel calibrate; SI units.", *map(_table, fits)]) + "\n"


def _table(fit: Fit) -> str:
    """One [[fit]] table; four significant digits are more than any of these numbers carries."""
    lines = ["", "[[fit]]"]
    for name in ("device", "kind", "format", "framework"):
        lines.append(f"{name} = {_quoted(getattr(fit, name))}")
    lines.append(f"origin = {_quoted(fit.origin)}")
    lines.append(f"source = {_quoted(fit.source)}")
    lines.append(f"rows = {fit.rows}")
    for name in ("error", "left_out", "low", "middle", "high"):
        value = getattr(fit, name)
        if value is not None:
            lines.append(f"{name} = {value:.4g}" if value else f"{name} = 0.0")
    if fit.at_bound:
        lines.append(f"at_bound = [{', '.join(map(_quoted, fit.at_bound))}]")
    pairs = [(entry.name, getattr(fit.constants, entry.name)) for entry in fields(fit.constants)]
    lines.append("constants = { " + ", ".join(f"{name} = {_shown(value)}" for name, value in pairs) + " }")
    if fit.standard_errors:
        shown = ", ".join(f"{name} = {_shown(value)}" for name, value in fit.standard_errors.items())
        lines.append(f"standard_errors = {{ {shown} }}")
    return "\n".join(lines)


def _shown(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(mark in text for mark in ".e") else text + ".0"


def _quoted(text: str) -> str:
    """A TOML basic string; control characters have no business in one line."""
    kept = "".join(letter for letter in text if letter.isprintable())
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
