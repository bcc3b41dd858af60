"""Every example runs and gives what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXPECTED = {
    # The lecture's printed values (000, section 16): best k and speedup by alpha; crossings recomputed (golden).
    "lecture_table.py": ("best k 2, 1.508x", "best k 5, 2.108x", "323.43", "250.79", "338.73", "259.90"),
    # Exercise 5 and the NVFP4 chain, recomputed (golden compose-ex5-breakeven-k4, compose-003-unquantised-draft).
    "combined_levers.py": ("from 250.8 to 64.5", "1185 tokens/s", "1329 tokens/s"),
    "real_config.py": ("context 16,384: never loses",),
    # Counted by hand in test_cli_memory.
    "what_fits.py": ("2 GPUs, nothing drafts: 30 sequences", "4 GPUs, nothing drafts: 88 sequences"),
    # Exact by the counts chosen: 7380 / (7380 + 1845) and 7380 / 12500; k 5 as in the lecture's table.
    "acceptance_from_rounds.py": ("alpha 0.8000", "accepted / drafted 0.5904", "k 5, 2.108x"),
    "which_draft.py": ("batch 1: eagle", "batch 64: eagle3"),
    "which_tree.py": ("batch 1: ", "batch 64: "),
}


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example(script: str) -> None:
    shown = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "NO_COLOR": "1"},
    )
    for part in EXPECTED[script]:
        assert part in shown.stdout
