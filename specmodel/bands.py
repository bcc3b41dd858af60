"""How far a measured speedup may lie from a predicted one: 10 and 90 % quantiles of measured / predicted.

From published rows, each predicted with engine times fitted to the other sources (engine_fit.py): what to expect of a
deployment that was in no table.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specmodel.engine import EngineTime
    from specmodel.speculation import Speculation


@dataclass(frozen=True, slots=True)
class SpeedupBand:
    """Factors on a predicted speedup between which 80 % of measured ones lay, and what that rests on."""

    kind: str
    low: float
    middle: float
    high: float
    rows: int
    sources: int
    what: str


def band_for(engine: EngineTime, fidelity: str = "calibrated") -> SpeedupBand | None:
    """The band of speedups under an engine; None where no such prediction was ever compared with rows."""
    if fidelity != "calibrated":
        return None
    if engine.is_ideal:
        return _bands()["kernels alone"]
    if engine.target_layer_s:
        return _bands()["host-bound"]
    return _bands()["engine with rows" if engine.source else "engine without rows"]


def speedup_band(speculation: Speculation) -> tuple[float | None, float | None]:
    """Low and high factor for the speedups of a draft on a deployment; None where nothing is known."""
    band = band_for(speculation.engine, speculation.deployment.timing.fidelity)
    return (None, None) if band is None else (band.low, band.high)


@cache
def _bands() -> dict[str, SpeedupBand]:
    file = files("specmodel") / "hardware" / "published" / "speedup-bands.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))["band"]
    return {table["kind"]: SpeedupBand(**table) for table in tables}
