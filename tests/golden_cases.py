"""Golden values as parametrised cases, and when a computed value equals one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

ROWS = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))


def cases(prefixes: tuple[str, ...], leave_out: tuple[str, ...] = ()) -> list[ParameterSet]:
    """The cases whose id starts with one of the prefixes; the name of one that is printed wrong says so."""
    chosen = []
    for row in ROWS:
        first = row["id"].split("-")[0]
        if first not in prefixes or row["id"].startswith(leave_out or ("\0",)):
            continue
        suffix = "-printed_wrong" if row["status"] == "contradicted" else ""
        chosen.append(pytest.param(row, id=row["id"] + suffix))
    return chosen


def matches(computed: Any, case: dict[str, Any]) -> bool:
    """Whether a value equals `expected` to 1e-9: it was recomputed, so rounding of what is printed plays no part."""
    return _same(computed, case["expected"])


def _same(computed: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return set(computed) == set(expected) and all(_same(computed[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        computed = list(computed)
        return len(computed) == len(expected) and all(map(_same, computed, expected))
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return bool(computed == expected)
    return computed is not None and math.isclose(float(computed), expected, rel_tol=1e-9, abs_tol=1e-12)
