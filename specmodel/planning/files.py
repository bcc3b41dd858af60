"""A deployment file (TOML or JSON), or a saved plan, -> PlanRequest; checked key by key."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from specmodel.errors import InputError, unknown_name
from specmodel.planning.request import DraftRequest, PlanRequest

LARGEST_FILE = 4_000_000  # bytes; a request is a page of text, a saved plan some hundred kilobytes


def read_request(path: str | Path) -> PlanRequest:
    """What a file asks: the keys of PlanRequest, drafts as a list of tables; or a plan saved earlier.

    Raises
    ------
    InputError
        For a file that cannot be read or parsed, an unknown key (with the nearest), or a value of the wrong type.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise InputError("file", str(path), f"must be at most {LARGEST_FILE:,} bytes")
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "file", str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        content: Any = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "file", str(path), f"is neither JSON nor TOML: {' '.join(str(error).split())[:160]}"
        ) from None
    if not isinstance(content, dict):
        raise InputError("file", str(path), "must hold one object")
    if "schema" in content:
        inputs = content.get("inputs")
        content = inputs.get("request") if isinstance(inputs, dict) else None
        if not isinstance(content, dict):
            raise InputError("file", str(path), "is a saved answer, but not of `plan`")
    return request_from(content, file.name)


def request_from(content: dict[str, Any], where: str) -> PlanRequest:
    """The request that a parsed file holds."""
    _known_keys(content, PlanRequest, where)
    drafts = content.get("drafts")
    if drafts is not None:
        if not isinstance(drafts, list):
            raise InputError(f"{where}: drafts", drafts, "must be a list of tables, or of names")
        for entry in drafts:
            if isinstance(entry, dict):
                _known_keys(entry, DraftRequest, f"{where}: drafts")
        content = {**content, "drafts": [{"name": one} if isinstance(one, str) else one for one in drafts]}
    from pydantic import TypeAdapter, ValidationError

    try:
        # Strict, so that "8" is not taken for 8; lists stand for tuples in both file forms.
        return TypeAdapter(PlanRequest).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{where}: {place}", first.get("input"), first["msg"].lower()) from None
    except (TypeError, ValueError) as error:
        raise InputError("file", where, f"holds a value that is no text, number or list: {error}") from None


def _known_keys(content: dict[str, Any], kind: type, where: str) -> None:
    names = [one.name for one in fields(kind)]
    for key in content:
        if key not in names:
            raise unknown_name(f"{where}: key", key, names)
