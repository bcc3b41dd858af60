"""`tree`: the token tree with the best speedup on a deployment, or the best of a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specmodel import checks
from specmodel.answers.common import the_deployment, trust
from specmodel.answers.ranges import around, range_words, uncertainty
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT
from specmodel.errors import InputError
from specmodel.result import Result
from specmodel.tree_search import LARGEST_SEARCH, TreeSize, best_shape, best_tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.deployment import Deployment
    from specmodel.trees import Siblings

DEFAULT_MAX_NODES = 64
DEFAULT_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class TreeResult(Result):
    """The answer of `tree`; field names are the JSON keys. `nodes` does not count the root; width does.

    `low` and `high` are the 10-90 % range of the speedup; None where the fidelity was never compared.
    """

    inputs: dict[str, object]
    nodes: int
    depth: int
    width: int
    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    expected_tokens: float
    round_cost: float
    speedup: float
    by_size: tuple[TreeSize, ...]
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def tree(
    deployment: Deployment | None = None,
    *,
    rank_acceptance: Sequence[float],
    nodes: int | None = None,
    depth: int | None = None,
    max_nodes: int | None = None,
    max_depth: int = DEFAULT_MAX_DEPTH,
    draft_cost: float = 0.02,
    batch: int = 1,
    context: int = 1024,
    siblings: Siblings = "exclusive",
) -> TreeResult:
    """The best token tree, against what its width and depth cost on a device.

    Parameters
    ----------
    rank_acceptance : sequence of float
        Chance that the best, second best, ... candidate of a position is the one taken, non-increasing.
    nodes, depth : int, optional
        A size and the longest path asked for; without a size the one with the best speedup is taken.
    draft_cost : float
        One level of drafting over a plain step, >= 0.
    siblings : "exclusive" or "independent"
        Whether the rates are shares of one draw, which add up, or each given that the ones before failed.
    """
    setting = the_deployment(deployment)
    batch = checks.whole("batch", batch, low=1, high=MAX_BATCH)
    context = checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    per_level = checks.real("draft cost", draft_cost, low=0.0)
    if nodes is None:
        largest = checks.whole(
            "max nodes", DEFAULT_MAX_NODES if max_nodes is None else max_nodes, low=1, high=LARGEST_SEARCH
        )
    elif max_nodes is not None:
        raise InputError("max nodes", max_nodes, f"changes nothing when {nodes} nodes are asked for")
    else:
        nodes = checks.whole("nodes", nodes, low=1, high=LARGEST_SEARCH)
        largest = max(DEFAULT_MAX_NODES, nodes)
    deepest = checks.whole(
        "max depth" if depth is None else "depth", max_depth if depth is None else depth, low=1, high=64
    )
    plain = float(setting.plain_seconds(batch, context))

    def seconds(width: NDArray[Any], level: NDArray[Any]) -> NDArray[Any]:
        verify = np.asarray(setting.verify_seconds(batch, context, width))
        return np.where(width == 1, plain, verify + level * per_level * plain)

    ranks = checks.listed("rank acceptance", rank_acceptance)
    rates = [checks.real("rank acceptance", rate, low=0.0, high=1.0) for rate in ranks]
    try:
        chosen = best_shape(rates, seconds, max_nodes=largest, max_depth=deepest, siblings=siblings)
        shape = chosen.tree if nodes is None else best_tree(rates, nodes, deepest, siblings=siblings)
        tokens = shape.expected_tokens(rates, siblings=siblings)
    except InputError as error:
        if error.field != "acceptance":
            raise
        raise InputError("rank acceptance", error.value, error.allowed) from None
    warnings = list(setting.warnings)
    grown = len(shape.parents)
    if nodes is not None and grown < nodes:
        warnings.append(f"{nodes} nodes were asked for, but only {grown} fit these ranks and this depth")
    verify = float(setting.verify_seconds(batch, context, grown + 1))
    cost = float(seconds(np.array([grown + 1]), np.array([shape.depth]))[0] / plain)
    off = uncertainty(setting)
    low, high = around(off if grown else None, tokens, cost, verify / plain)
    return TreeResult(
        inputs={
            **setting.describe(),
            "rank_acceptance": rates,
            "siblings": siblings,
            "nodes": nodes,
            "depth": depth,
            "draft_cost": per_level,
            "batch": batch,
            "context": context,
            "fidelity": setting.timing.fidelity,
            "charge": "added",
        },
        nodes=grown,
        depth=shape.depth,
        width=grown + 1,
        parents=shape.parents,
        ranks=shape.ranks,
        expected_tokens=tokens,
        round_cost=cost,
        speedup=tokens / cost,
        by_size=chosen.by_size,
        low=low,
        high=high,
        trust=trust(setting),
        why=chosen.why if nodes is None else f"{nodes} nodes were asked for; best here: {chosen.why}",
        assumptions=[
            f"candidates by rank: {', '.join(f'{rate:g}' for rate in rates)} ({siblings})",
            f"each level of drafting adds {per_level:g} of a plain step",
            *setting.assumptions,
            *range_words(off),
        ],
        warnings=warnings,
    )
