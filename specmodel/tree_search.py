"""The best token tree: of a size, of a depth, for a device, and grown anew in every context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specmodel import checks
from specmodel.errors import InputError
from specmodel.result import Result
from specmodel.trees import Siblings, Tree, by_level, taken
from specmodel.verification.laws import Array, law

LARGEST_SEARCH = 4096
LARGEST_PROGRAM = 1024  # dynamic programming holds a nodes x nodes table

RoundCost = Callable[[NDArray[np.int64], NDArray[np.int64]], ArrayLike]


def best_tree(
    acceptance: ArrayLike, nodes: int, depth: int | None = None, *, siblings: Siblings = "exclusive"
) -> Tree:
    """The tree of ``nodes`` drafted tokens that yields most, at most ``depth`` deep.

    A tree yields one token plus the sum of its nodes' path probabilities. Every factor is at most 1, so a
    node's ancestors are never less likely than it, and the likeliest paths always hang together: taking
    the ``nodes`` likeliest is optimal, with a limit on depth as well.

    Parameters
    ----------
    acceptance : array, shape (ranks,) or (levels, ranks)
        Acceptance of a candidate given its parent; must not rise with the rank (rank 0 is the best
        candidate). With two axes the levels limit the depth.
    depth : int, optional
        Longest path allowed.

    References
    ----------
    .. [1] J. Wang et al., "OPT-Tree", arXiv:2406.17276, theorem 3.1.
    .. [2] Z. Chen et al., "Sequoia", arXiv:2402.12374, section 3.1 (by dynamic programming).
    """
    paths = _likeliest_paths(_falling(acceptance, nodes, depth, siblings), nodes)
    return _grown(paths, paths.ranking(len(paths.chance))[:nodes])


def best_tree_by_programming(
    acceptance: ArrayLike, nodes: int, depth: int, *, siblings: Siblings = "exclusive"
) -> Tree:
    """The same by dynamic programming over subtrees, for acceptances in any order of rank.

    With f(l, r) the chance that rank r is taken at level l, a subtree of n nodes at level l yields

    .. math:: V_l(n) = 1 + \\max_{n_0 + n_1 + \\dots = n - 1} \\sum_r f(l+1, r) \\, V_{l+1}(n_r)

    where no rank is used before those above it. Independent siblings may be worth more at a later rank
    (a_0 = 0.1, a_1 = 0.9), which the likeliest-path rule does not cover.

    References
    ----------
    .. [1] Z. Chen et al., "Sequoia", arXiv:2402.12374, section 3.1 and appendix.
    """
    checks.whole("nodes", nodes, high=LARGEST_PROGRAM)
    depth = min(checks.whole("depth", depth), nodes)
    chance = taken(acceptance, depth, siblings=siblings)
    ranks = chance.shape[1]
    budgets = np.arange(nodes + 1)
    # split[m, j]: what is left of a budget m when the first child's subtree takes j of it.
    left = budgets[:, None] - budgets[None, :]
    possible = (left >= 0) & (budgets[None, :] >= 1)
    value = (budgets >= 1).astype(np.float64)  # a leaf is worth one token, however many nodes it is given
    choices = np.zeros((depth, ranks, nodes + 1), dtype=np.int64)
    for level in reversed(range(depth)):
        children = np.zeros(nodes + 1)  # best yield of the ranks from r on, by budget
        for rank in reversed(range(ranks)):
            split = np.where(possible, chance[level, rank] * value[None, :] + children[left], -1.0)
            best = split.argmax(axis=1)
            gain = np.take_along_axis(split, best[:, None], axis=1)[:, 0]
            choices[level, rank] = np.where(gain > 0.0, best, 0)
            children = np.maximum(gain, 0.0)
        value = np.where(budgets >= 1, 1.0 + np.concatenate([[0.0], children[:-1]]), 0.0)
    parents: list[int] = []
    names: list[int] = []
    waiting = [(-1, 0, nodes)]
    while waiting:
        parent, level, budget = waiting.pop(0)
        for rank in range(ranks if level < depth else 0):
            share = int(choices[level, rank, budget])
            if share == 0:
                break
            parents.append(parent)
            names.append(rank)
            waiting.append((len(parents) - 1, level + 1, share - 1))
            budget -= share
    return Tree(tuple(parents), tuple(names))


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The best tree of one size on a device; ``round_cost`` is in plain steps."""

    nodes: int
    depth: int
    expected_tokens: float
    round_cost: float
    speedup: float


@dataclass(frozen=True, slots=True)
class TreeChoice(Result):
    """The tree to use on a device, what other sizes would have given, and why not a larger one."""

    nodes: int
    depth: int
    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    expected_tokens: float
    round_cost: float
    speedup: float
    by_size: tuple[TreeSize, ...]
    why: str

    @property
    def tree(self) -> Tree:
        """The shape itself."""
        return Tree(self.parents, self.ranks)


def best_shape(
    acceptance: ArrayLike,
    cost: RoundCost,
    *,
    max_nodes: int = 64,
    max_depth: int = 8,
    sizes: Sequence[int] | None = None,
    siblings: Siblings = "exclusive",
) -> TreeChoice:
    """Nodes and depth with the best speedup where width and depth cost what they cost.

    Parameters
    ----------
    acceptance : array, shape (ranks,) or (levels, ranks)
        As for `best_tree`.
    cost : callable (width, depth) -> seconds
        Time of a round that drafts ``depth`` levels and verifies ``width`` positions, root included, for
        whole arrays at once; ``cost(1, 0)`` is a plain step.
    max_nodes, max_depth : int
        The largest tree to consider.
    sizes : sequence of int, optional
        Node counts to report in ``by_size``; powers of two and the best one otherwise.

    Notes
    -----
    No tree at all (nodes 0, speedup 1) is always a candidate.
    """
    chance = _falling(acceptance, max_nodes, max_depth, siblings)
    paths = _likeliest_paths(chance, max_nodes)
    tokens, depths = _tables(paths, len(chance), max_nodes)
    widths = np.broadcast_to(np.arange(max_nodes + 1) + 1, tokens.shape)
    seconds = np.asarray(cost(widths, depths), dtype=np.float64)
    if seconds.shape != tokens.shape or not (np.isfinite(seconds) & (seconds > 0.0)).all():
        raise InputError("cost", cost, "must return one positive, finite time per width and depth")
    ratio = seconds / seconds[0, 0]
    speedup = tokens / ratio
    limit = speedup.argmax(axis=0)  # the best depth limit of every size
    every = np.arange(max_nodes + 1)
    rows = [
        TreeSize(int(n), int(depths[d, n]), float(tokens[d, n]), float(ratio[d, n]), float(speedup[d, n]))
        for n, d in zip(every, limit, strict=True)
    ]
    best = max(rows, key=lambda row: row.speedup)
    if sizes is None:
        sizes = sorted({0, best.nodes, max_nodes, *(2**power for power in range(max_nodes.bit_length()))})
    listed = tuple(rows[checks.whole("sizes", size, high=max_nodes)] for size in sizes)
    shape = _grown(paths, paths.ranking(int(limit[best.nodes]))[: best.nodes])
    return TreeChoice(
        nodes=best.nodes,
        depth=best.depth,
        parents=shape.parents,
        ranks=shape.ranks,
        expected_tokens=best.expected_tokens,
        round_cost=best.round_cost,
        speedup=best.speedup,
        by_size=listed,
        why=_why(rows, best),
    )


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """Tokens per round of a tree grown by confidence, its standard error, and those of the best fixed tree."""

    expected_tokens: float
    standard_error: float
    fixed_tokens: float


def dynamic_tokens(
    states: ArrayLike,
    weights: ArrayLike,
    *,
    nodes: int,
    depth: int,
    beam: int,
    samples: int = 20_000,
    seed: int = 0,
) -> DynamicTree:
    """Expected tokens of a tree whose shape follows the draft's confidence (EAGLE-2), siblings exclusive.

    Every node is in one of several states, independently: sure or unsure of its continuation. The draft
    sees the state when it expands the node. As in EAGLE-2, each level expands the ``beam`` likeliest nodes
    of the level before, and at the end the ``nodes`` likeliest of all are verified. The mean over contexts
    is sampled with a fixed seed.

    Parameters
    ----------
    states : array, shape (states, ranks)
        Acceptance by rank in each state, as the draft's calibrated confidence states it.
    weights : array, shape (states,)
        How often each state occurs.
    nodes, depth, beam : int
        Verified nodes, draft passes, nodes expanded per pass.

    References
    ----------
    .. [1] Y. Li et al., "EAGLE-2", EMNLP 2024, arXiv:2406.16858, sections 4.1 and 4.2.
    """
    share = law(weights, "weights")
    if share.ndim != 1 or np.ndim(states) != 2 or len(np.asarray(states)) != share.size:
        raise InputError("states", states, "needs one row of acceptances per weight")
    rates = by_level(states, share.size)
    checks.whole("nodes", nodes, high=LARGEST_SEARCH)
    checks.whole("depth", depth, high=LARGEST_SEARCH)
    checks.whole("beam", beam, low=1, high=LARGEST_SEARCH)
    checks.whole("samples", samples, low=2, high=10_000_000)
    rng = np.random.default_rng(seed)
    yields = []
    most = max(1, 2_000_000 // max(1, depth * beam * rates.shape[1]))
    for start in range(0, samples, most):
        count = min(most, samples - start)
        frontier = np.ones((count, 1))
        pool = []
        for _ in range(depth):
            state = rng.choice(share.size, size=frontier.shape, p=share)
            children = (frontier[..., None] * rates[state]).reshape(count, -1)
            pool.append(children)
            frontier = -np.sort(-children, axis=1)[:, :beam]
        every = np.concatenate(pool, axis=1) if pool else np.zeros((count, 0))
        yields.append(1.0 - np.sort(-every, axis=1)[:, :nodes].sum(axis=1))
    found = np.concatenate(yields)
    mean = share @ rates
    fixed = best_tree(-np.sort(-mean), nodes, depth).expected_tokens(-np.sort(-mean))
    error = float(found.std(ddof=1) / np.sqrt(samples))
    return DynamicTree(float(found.mean()), error, fixed)


@dataclass(frozen=True, slots=True)
class _Paths:
    """The likeliest paths of every level: chance, level (from 1), index of the parent path (-1), rank."""

    chance: Array
    level: NDArray[np.int64]
    parent: NDArray[np.int64]
    rank: NDArray[np.int64]

    def ranking(self, depth: int) -> NDArray[np.int64]:
        """Paths up to a depth, likeliest first; on ties the shorter, so that parents precede children."""
        order = np.lexsort((self.level, -self.chance))
        return order[self.level[order] <= depth]


def _likeliest_paths(chance: Array, nodes: int) -> _Paths:
    """At most ``nodes`` paths per level: no tree of that many nodes can use another one."""
    found: list[tuple[Array, NDArray[np.int64], NDArray[np.int64]]] = []
    level, first = np.ones(1), -1
    ranks = chance.shape[1]
    for rates in chance:
        children = (level[:, None] * rates[None, :]).ravel()
        order = np.argsort(-children, kind="stable")[:nodes]
        found.append((children[order], first + order // ranks, order % ranks))
        level = children[order]
        first = sum(len(row[0]) for row in found[:-1])
    sizes = [len(row[0]) for row in found]
    empty = np.zeros(0, dtype=np.int64)
    return _Paths(
        np.concatenate([row[0] for row in found] or [np.zeros(0)]),
        np.repeat(np.arange(1, len(found) + 1), sizes),
        np.concatenate([row[1] for row in found] or [empty]),
        np.concatenate([row[2] for row in found] or [empty]),
    )


def _tables(paths: _Paths, depth: int, nodes: int) -> tuple[Array, NDArray[np.int64]]:
    """Expected tokens and true depth of the best tree, shape (depth limit from 0, nodes from 0)."""
    tokens = np.ones((depth + 1, nodes + 1))
    depths = np.zeros((depth + 1, nodes + 1), dtype=np.int64)
    for limit in range(1, depth + 1):
        kept = paths.ranking(limit)[:nodes]
        size = len(kept)
        tokens[limit, 1 : size + 1] += np.cumsum(paths.chance[kept])
        tokens[limit, size + 1 :] = tokens[limit, size]
        depths[limit, 1 : size + 1] = np.maximum.accumulate(paths.level[kept])
        depths[limit, size + 1 :] = depths[limit, size]
    return tokens, depths


def _grown(paths: _Paths, kept: NDArray[np.int64]) -> Tree:
    """A tree from chosen paths, numbered level by level."""
    ordered = np.sort(kept)  # paths are stored level by level, likeliest first
    number = {int(path): node for node, path in enumerate(ordered)}
    parents = tuple(number.get(int(paths.parent[path]), -1) for path in ordered)
    return Tree(parents, tuple(int(paths.rank[path]) for path in ordered))


def _falling(acceptance: ArrayLike, nodes: int, depth: int | None, siblings: Siblings) -> Array:
    """Chances of being taken by level and rank, for acceptances that do not rise with the rank."""
    checks.whole("nodes", nodes, high=LARGEST_SEARCH)
    given = np.shape(acceptance)
    levels = given[0] if len(given) == 2 else nodes
    limit = min(levels, nodes) if depth is None else min(checks.whole("depth", depth), levels, nodes)
    rates = by_level(acceptance, limit, siblings=siblings)
    if (np.diff(rates, axis=1) > 1e-12).any():
        raise InputError(
            "acceptance", acceptance, "must not rise with the rank: rank 0 is the best candidate"
        )
    return taken(acceptance, limit, siblings=siblings)


def _why(rows: Sequence[TreeSize], best: TreeSize) -> str:
    """What twice as many nodes would bring and cost."""
    if best.nodes == 0:
        tried = max(rows[1:], key=lambda row: row.speedup, default=best)
        return (
            f"no tree pays: the least bad has {tried.nodes} nodes, yields {tried.expected_tokens:.2f} tokens "
            f"and takes {tried.round_cost:.2f} plain steps"
        )
    bigger = rows[min(2 * best.nodes, len(rows) - 1)]
    if bigger.nodes == best.nodes:
        return f"{best.nodes} nodes is the largest size allowed; a larger one may be better still"
    more = bigger.expected_tokens / best.expected_tokens - 1.0
    cost = bigger.round_cost / best.round_cost - 1.0
    return (
        f"{best.nodes} nodes: growing to {bigger.nodes} would add {more:.1%} tokens but {cost:.1%} time, "
        f"since a round then takes {bigger.round_cost:.2f} plain steps instead of {best.round_cost:.2f}"
    )
