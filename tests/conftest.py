"""What several test files need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; what needs it is skipped, visibly, without it."""
    if not SHARED.is_dir():
        pytest.skip("the reference data folder ../shared is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def golden() -> dict[str, dict[str, Any]]:
    """The recomputed lecture values, by id."""
    rows = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))
    return {row["id"]: row for row in rows}
