"""The command line called in this process, for the tests of what a person meets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., tuple[int, str, str]]


def answer(run: Run, *arguments: str) -> dict[str, Any]:
    """What --json prints: one object and nothing else."""
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    loaded: dict[str, Any] = json.loads(out, parse_constant=refuse_constant)
    assert loaded["schema"] == 1
    return loaded


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def refusal(run: Run, *arguments: str) -> str:
    """The one line of a refused call."""
    code, out, err = run(*arguments)
    assert code == 2, (out, err)
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err
