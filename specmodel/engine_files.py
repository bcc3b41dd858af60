"""Files of engine times: TOML with a value, a unit and a source per figure.

name = "vLLM"
framework = "vllm"
evidence = "..."

[times]
round_s = { value = 4.1e-4, unit = "s", source = "fit" }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specmodel.engine import TIMES, EngineTime
from specmodel.errors import InputError, unknown_name

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TEXTS = tuple(field.name for field in fields(EngineTime) if field.name not in (*TIMES, "id", "kv_reread"))
FIGURES = (*TIMES, "kv_reread")
_ENTRY = ("value", "unit", "source", "note", "low", "high")


def read_engine(path: str | Path | Traversable) -> EngineTime:
    """The engine a file describes; its id is the file's name where it gives none.

    Raises
    ------
    InputError
        For a file that cannot be read, is no TOML, or holds a key or value that is not allowed.
    """
    source = Path(path) if isinstance(path, str) else path
    try:
        table = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("engine", str(path), f"cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("engine", source.name, f"is no TOML file: {error}") from None
    times = table.pop("times", {})
    if not isinstance(times, Mapping):
        raise InputError(f"{source.name}: times", times, "must be a table [times]")
    for key, text in table.items():
        if key not in (*TEXTS, "id"):
            raise unknown_name(f"{source.name}: key", key, ("id", *TEXTS, "times"))
        if not isinstance(text, str):
            raise InputError(f"{source.name}: {key}", text, "must be text")
    identity = source.name.removesuffix(".toml")
    values = {key: _figure(source.name, key, entry) for key, entry in times.items()}
    return EngineTime(**{"id": identity, "name": identity, **table, **values})


def _figure(file: str, key: str, entry: object) -> float:
    if key not in FIGURES:
        raise unknown_name(f"{file}: times", key, FIGURES)
    value: Any = entry
    if isinstance(entry, Mapping):
        for name in entry:
            if name not in _ENTRY:
                raise unknown_name(f"{file}: {key}", name, _ENTRY)
        value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{file}: {key}", entry, "must be a number, or a table with a value")
    return float(value)


def engine_toml(engine: EngineTime, notes: Mapping[str, Mapping[str, str | float]]) -> str:
    """The file of an engine; `notes` holds source, note, low and high by figure."""
    lines = [f'id = "{engine.id}"']
    lines += [f"{key} = {_quoted(getattr(engine, key))}" for key in TEXTS if getattr(engine, key)]
    lines += ["", "[times]"]
    for key in FIGURES:
        value = getattr(engine, key)
        if value == (1.0 if key == "kv_reread" else 0.0) and key not in notes:
            continue
        unit = "1" if key == "kv_reread" else "s"
        parts = [f"value = {value:.4g}", f'unit = "{unit}"']
        for name, told in notes.get(key, {}).items():
            parts.append(f"{name} = {told:.4g}" if isinstance(told, float) else f"{name} = {_quoted(told)}")
        lines.append(f"{key} = {{ {', '.join(parts)} }}")
    return "\n".join(lines) + "\n"


def _quoted(text: object) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
