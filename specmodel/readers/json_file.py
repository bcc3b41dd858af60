"""JSON that people hand in: bounded in size and depth, no key twice, one clear line when it is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specmodel.errors import InputError

CONFIG_LIMIT_BYTES = 16 * 2**20
INDEX_LIMIT_BYTES = 64 * 2**20
DEPTH_LIMIT = 64


def shown(name: str) -> str:
    """A name out of a file, fit for one line: no control characters, at most 80 long."""
    plain = "".join(mark if mark.isprintable() else "?" for mark in name[:81])
    return plain if len(plain) <= 80 else plain[:77] + "..."


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, refused where a key comes twice: which one counts would be a guess."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, value in pairs:
            if key in seen:
                raise InputError(shown(key), value, "given twice in one JSON object; keep one")
            seen.add(key)
    return found


def _is_too_deep(found: object) -> bool:
    """Whether objects and lists are nested past the limit."""
    level = [found]
    for _ in range(DEPTH_LIMIT):
        level = [
            inner
            for holder in level
            if isinstance(holder, (dict, list))
            for inner in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return False
    return True


def read_text(path: Path, limit_bytes: int = CONFIG_LIMIT_BYTES, field: str = "model") -> str:
    """The text of a file that is not larger than it may be.

    Raises
    ------
    InputError
        If it cannot be read, is larger than ``limit_bytes`` or is not UTF-8.
    """
    try:
        size = path.stat().st_size
        if size > limit_bytes:
            allowed = f"at most {limit_bytes // 2**20} MiB; this file has {size} bytes"
            raise InputError(field, str(path), allowed)
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except OSError as error:
        raise InputError(field, str(path), f"cannot be read: {error.strerror or error}") from None
    if len(raw) > limit_bytes:
        raise InputError(field, str(path), f"at most {limit_bytes // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(field, str(path), "must be UTF-8 text holding JSON") from None


def parse_object(text: str, where: str, field: str = "model") -> dict[str, Any]:
    """The JSON object in a text.

    Raises
    ------
    InputError
        If the text is empty, not JSON, nested too deeply, no object, or names a key twice.
    """
    if not text.strip():
        raise InputError(field, where, "is empty; a JSON object is expected")
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except InputError as error:
        raise InputError(error.field, error.value, f"{error.allowed} ({where})") from None
    except json.JSONDecodeError as error:
        allowed = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise InputError(field, where, allowed) from None
    except RecursionError:
        raise InputError(field, where, "nested too deeply for a config") from None
    except ValueError as error:
        raise InputError(field, where, f"not JSON: {error}") from None
    if _is_too_deep(found):
        raise InputError(field, where, "nested too deeply for a config")
    if not isinstance(found, dict):
        raise InputError(field, where, f"holds a {type(found).__name__}; a JSON object is expected")
    return found


def read_object(path: Path, limit_bytes: int = CONFIG_LIMIT_BYTES, field: str = "model") -> dict[str, Any]:
    """The JSON object in a file; see ``parse_object`` for what is refused."""
    return parse_object(read_text(path, limit_bytes, field), str(path), field)
