"""What several test files need."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from specmodel.cli.app import main
from tests.cli_runs import Run

# No deadlines: machines are shared. Where changes are judged the same examples run each time; elsewhere new ones.
settings.register_profile("specmodel", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("specmodel")

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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line called in this process: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specmodel", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        code = end.value.code
        return (code if isinstance(code, int) else 0), shown.out, shown.err

    return call
