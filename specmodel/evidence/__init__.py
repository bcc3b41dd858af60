"""Acceptance from evidence: what engines print, as counts, and what the counts say; names load lazily."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specmodel.evidence.counts import Clusters, Dropped, Evidence, Part
    from specmodel.evidence.estimate import Estimate, alpha
    from specmodel.evidence.reading import read

_HOME = {
    "Clusters": "counts",
    "Dropped": "counts",
    "Estimate": "estimate",
    "Evidence": "counts",
    "Part": "counts",
    "alpha": "estimate",
    "read": "reading",
}

__all__ = ["Clusters", "Dropped", "Estimate", "Evidence", "Part", "alpha", "read"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"specmodel.evidence.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
