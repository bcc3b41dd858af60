"""Token trees: several candidates per position, verified in one pass.

A node is a drafted token; the root, the last token that is certain, is not counted among the nodes but is
verified with them, so ``width = nodes + 1``. Children of a node carry a rank: 0 is the draft's first choice.

What a candidate is worth is its acceptance, by level and rank, under one of two readings:

``exclusive``
    Of siblings at most one is the target's token, so their acceptances add. ``acceptance[r]`` is the chance
    that the candidate of rank r is the one taken, as measured per rank or as `candidate_set` returns it.
``independent``
    Each candidate passes a test of its own, in order of rank, and the first to pass is taken: r is taken
    with a_r times the chance that those before it failed. Distinct tokens are not independent; many texts
    assume it, and it understates a tree whose a_r are chances of being the target's token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specmodel import checks
from specmodel.errors import InputError
from specmodel.verification.laws import Array

Siblings = Literal["exclusive", "independent"]
SIBLINGS = ("exclusive", "independent")

LARGEST_TREE = 100_000


@dataclass(frozen=True, slots=True)
class Tree:
    """A token tree without its root: ``parents[i]`` < i is the node that node i hangs from, -1 the root.

    ``ranks[i]`` is the place of node i among the draft's candidates there. Siblings differ in rank.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.ranks) or len(self.parents) > LARGEST_TREE:
            raise InputError(
                "parents", self.parents, f"needs one rank per node, at most {LARGEST_TREE} nodes"
            )
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise InputError(
                    "parents", self.parents, f"node {node} must hang from an earlier node or from -1"
                )
        if any(rank < 0 for rank in self.ranks):
            raise InputError("ranks", self.ranks, "ranks count from 0")
        if len(set(zip(self.parents, self.ranks, strict=True))) != self.nodes:
            raise InputError("ranks", self.ranks, "siblings must differ in rank")

    @classmethod
    def chain(cls, k: int) -> Tree:
        """k tokens one after the other."""
        return cls.multichain(1, k)

    @classmethod
    def multichain(cls, count: int, depth: int) -> Tree:
        """Several chains side by side that share the root only (SpecInfer's expansion <count, 1, 1, ...>)."""
        checks.whole("count", count, low=1, high=LARGEST_TREE)
        checks.whole("depth", depth, high=LARGEST_TREE)
        parents = [
            chain * depth + step - 1 if step else -1 for chain in range(count) for step in range(depth)
        ]
        ranks = [0 if step else chain for chain in range(count) for step in range(depth)]
        return cls(tuple(parents), tuple(ranks))

    @classmethod
    def dense(cls, branching: Sequence[int]) -> Tree:
        """Every node of level l has ``branching[l]`` children (Medusa's full tree: top-s of every head)."""
        if dense_nodes(branching) > LARGEST_TREE:
            raise InputError("branching", branching, f"makes more than {LARGEST_TREE} nodes")
        parents: list[int] = []
        ranks: list[int] = []
        level = [-1]
        for children in branching:
            first = len(parents)
            parents += [node for node in level for _ in range(children)]
            ranks += [rank for _ in level for rank in range(children)]
            level = list(range(first, len(parents)))
        return cls(tuple(parents), tuple(ranks))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> Tree:
        """From ranks along each path, e.g. ``[(0,), (1,), (0, 0)]``: how Medusa and vLLM write a tree."""
        known: dict[tuple[int, ...], int] = {(): -1}
        for path in sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path)):
            if path[:-1] not in known:
                raise InputError("paths", path, "every prefix of a path must be a path too")
            known.setdefault(path, len(known) - 1)
        del known[()]
        parents = tuple(known.get(path[:-1], -1) for path in known)
        return cls(parents, tuple(path[-1] for path in known))

    @property
    def nodes(self) -> int:
        """Drafted tokens."""
        return len(self.parents)

    @property
    def width(self) -> int:
        """Positions the target scores, root included."""
        return self.nodes + 1

    @property
    def levels(self) -> tuple[int, ...]:
        """Distance of every node from the root, 1 for its children."""
        found: list[int] = []
        for parent in self.parents:
            found.append(found[parent] + 1 if parent >= 0 else 1)
        return tuple(found)

    @property
    def depth(self) -> int:
        """Longest path, which is also the number of draft passes one after the other."""
        return max(self.levels, default=0)

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Ranks from the root to every node."""
        found: list[tuple[int, ...]] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), rank))
        return tuple(found)

    def mask(self) -> NDArray[np.bool_]:
        """Which position may attend to which, shape (width, width), root first: itself and its ancestors."""
        allowed = np.eye(self.width, dtype=bool)
        allowed[:, 0] = True
        for node, parent in enumerate(self.parents):
            allowed[node + 1] |= allowed[parent + 1]
        return allowed

    def path_probabilities(self, acceptance: ArrayLike, *, siblings: Siblings = "exclusive") -> Array:
        """Chance that verification walks to each node, shape (nodes,)."""
        rates = by_level(acceptance, self.depth, siblings=siblings)
        if self.nodes and max(self.ranks) >= rates.shape[1]:
            raise InputError(
                "acceptance", rates.shape[1], f"ranks needed, the tree uses {max(self.ranks) + 1}"
            )
        reached = np.zeros(self.nodes)
        left_over: dict[int, float] = {}  # chance that every sibling tested so far failed
        levels = self.levels
        for node in sorted(range(self.nodes), key=lambda node: (self.parents[node], self.ranks[node])):
            parent = self.parents[node]
            rate = float(rates[levels[node] - 1, self.ranks[node]])
            before = left_over.get(parent, 1.0) if siblings == "independent" else 1.0
            left_over[parent] = before * (1.0 - rate)
            reached[node] = (reached[parent] if parent >= 0 else 1.0) * before * rate
        return reached

    def expected_tokens(self, acceptance: ArrayLike, *, siblings: Siblings = "exclusive") -> float:
        """Tokens per round of this tree: one, plus the chance of reaching each node.

        Parameters
        ----------
        acceptance : array, shape (ranks,) or (levels, ranks)
            Acceptance of a candidate given that its parent was accepted; one axis holds at every level.
        siblings : {"exclusive", "independent"}
            How siblings go together, see the module.
        """
        return 1.0 + float(self.path_probabilities(acceptance, siblings=siblings).sum())


def by_level(acceptance: ArrayLike, depth: int, *, siblings: Siblings = "exclusive") -> Array:
    """Candidate acceptances, checked, shape (depth, ranks); one axis is repeated at every level."""
    checks.choice("siblings", siblings, SIBLINGS)
    try:
        rates = np.asarray(acceptance, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("acceptance", acceptance, "must be numbers, by rank or by level and rank") from None
    if rates.ndim not in (1, 2) or rates.shape[-1] == 0:
        raise InputError("acceptance", acceptance, "must be shaped (ranks,) or (levels, ranks)")
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise InputError("acceptance", acceptance, "every acceptance must be between 0 and 1")
    if siblings == "exclusive" and (rates.sum(axis=-1) > 1.0 + 1e-9).any():
        raise InputError(
            "acceptance", acceptance, "exclusive siblings must not sum to more than 1 on a level"
        )
    if rates.ndim == 1:
        return np.broadcast_to(rates, (depth, rates.size))
    if len(rates) < depth:
        raise InputError("acceptance", len(rates), f"levels given, the tree is {depth} deep")
    return rates[:depth]


def taken(acceptance: ArrayLike, depth: int, *, siblings: Siblings = "exclusive") -> Array:
    """Chance that verification takes each rank, given the parent, when no rank before it is left out."""
    rates = by_level(acceptance, depth, siblings=siblings)
    if siblings == "exclusive":
        return rates
    failed = np.cumprod(1.0 - rates, axis=1)
    return np.asarray(rates * np.concatenate([np.ones((depth, 1)), failed[:, :-1]], axis=1))


def any_taken(acceptance: ArrayLike, *, siblings: Siblings = "exclusive") -> float:
    """Chance that one of the candidates of a single position is taken."""
    return min(1.0, float(taken(acceptance, 1, siblings=siblings).sum()))


def dense_nodes(branching: Sequence[int]) -> int:
    """Nodes of the tree where a node of level l has ``branching[l]`` children: sum of s^i if all have s."""
    total, level = 0, 1
    for children in branching:
        level *= checks.whole("branching", children, low=1, high=LARGEST_TREE)
        total += level
    return total
