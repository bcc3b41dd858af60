"""Acceptance from evidence: what engines print, as counts, and what the counts say. Names load when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specmodel.evidence.by_context import cross_at, pays_until, tokens_at
    from specmodel.evidence.counts import Clusters, Dropped, Evidence, Part
    from specmodel.evidence.depth import BestDepth, best_depth
    from specmodel.evidence.estimate import Estimate, alpha
    from specmodel.evidence.fits import Extrapolation, extrapolate
    from specmodel.evidence.geometric import alpha_from_tokens_per_round
    from specmodel.evidence.heterogeneity import BetaMixture
    from specmodel.evidence.lake import aggregate
    from specmodel.evidence.reading import read
    from specmodel.evidence.sizing import SampleSize, half_width, sample_size
    from specmodel.evidence.summary import Summary, from_summary, implied_round_cost

_HOMES = {
    "BestDepth": "depth",
    "BetaMixture": "heterogeneity",
    "Clusters": "counts",
    "Dropped": "counts",
    "Estimate": "estimate",
    "Evidence": "counts",
    "Extrapolation": "fits",
    "Part": "counts",
    "SampleSize": "sizing",
    "Summary": "summary",
    "aggregate": "lake",
    "alpha": "estimate",
    "alpha_from_tokens_per_round": "geometric",
    "best_depth": "depth",
    "cross_at": "by_context",
    "extrapolate": "fits",
    "from_summary": "summary",
    "half_width": "sizing",
    "implied_round_cost": "summary",
    "pays_until": "by_context",
    "read": "reading",
    "sample_size": "sizing",
    "tokens_at": "by_context",
}

__all__ = [
    "BestDepth",
    "BetaMixture",
    "Clusters",
    "Dropped",
    "Estimate",
    "Evidence",
    "Extrapolation",
    "Part",
    "SampleSize",
    "Summary",
    "aggregate",
    "alpha",
    "alpha_from_tokens_per_round",
    "best_depth",
    "cross_at",
    "extrapolate",
    "from_summary",
    "half_width",
    "implied_round_cost",
    "pays_until",
    "read",
    "sample_size",
    "tokens_at",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"specmodel.evidence.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'specmodel.evidence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
