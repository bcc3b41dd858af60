"""Token trees against brute force: every tree of a size, every outcome of a verification."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.acceptance import PerPosition, expected_tokens, tokens_per_round
from specmodel.errors import InputError
from specmodel.sampling import candidate_set
from specmodel.tree_search import best_shape, best_tree, best_tree_by_programming, dynamic_tokens
from specmodel.trees import Siblings, Tree, any_taken, dense_nodes, taken

MASSES = (0.55, 0.22, 0.12, 0.06)
BOTH: tuple[Siblings, ...] = ("exclusive", "independent")


def every_tree(nodes: int, ranks: int, depth: int) -> set[tuple[tuple[int, ...], ...]]:
    """Every tree of that many nodes as a set of rank paths, built by adding one node in every way."""
    found: set[tuple[tuple[int, ...], ...]] = {()}
    for _ in range(nodes):
        grown = set()
        for paths in found:
            for stem in [(), *paths]:
                used = [path[-1] for path in paths if path[:-1] == stem]
                if len(stem) < depth and len(used) < ranks:
                    grown.add(tuple(sorted([*paths, (*stem, len(used))])))
        found = grown
    return found


def walks(tree: Tree, rates: Any, siblings: str) -> float:
    """Mean tokens over every outcome: enumerate which candidates would pass, then walk as an engine does."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)

    def down(node: int, level: int) -> float:
        total = 1.0  # the token that verification adds: correction or bonus
        below = sorted(children.get(node, []), key=lambda child: tree.ranks[child])
        if siblings == "exclusive":
            return total + sum(
                float(rates[level][tree.ranks[child]]) * down(child, level + 1) for child in below
            )
        for outcome in itertools.product((True, False), repeat=len(below)):
            chance = 1.0
            for child, passes in zip(below, outcome, strict=True):
                rate = float(rates[level][tree.ranks[child]])
                chance *= rate if passes else 1.0 - rate
            first = next((child for child, passes in zip(below, outcome, strict=True) if passes), None)
            if first is not None:
                total += chance * down(first, level + 1)
        return total

    return down(-1, 0)


@st.composite
def acceptances(draw: st.DrawFn, levels: int = 3, ranks: int = 3, falling: bool = True) -> Any:
    rows = []
    for _ in range(levels):
        row = sorted(draw(st.lists(st.floats(0.0, 1.0), min_size=ranks, max_size=ranks)), reverse=True)
        total = sum(row) or 1.0
        rows.append([rate / max(1.0, total) for rate in row])
    return np.array(rows)


# A tree and its parts ------------------------------------------------------------------------------------


def test_shapes() -> None:
    tree = Tree.dense([2, 2])
    assert (tree.nodes, tree.width, tree.depth) == (6, 7, 2)
    assert tree.levels == (1, 1, 2, 2, 2, 2)
    assert tree.paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    assert Tree.from_paths(reversed(tree.paths)) == tree
    assert Tree.chain(3) == Tree((-1, 0, 1), (0, 0, 0))
    assert Tree.multichain(5, 8).nodes == 40
    assert Tree.chain(0) == Tree((), ())
    assert dense_nodes([4] * 4) == Tree.dense([4] * 4).nodes == 340


def test_mask_lets_a_position_see_itself_and_its_ancestors() -> None:
    tree = Tree((-1, 0, 0, -1), (0, 0, 1, 1))
    assert tree.mask().astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]
    assert (Tree.chain(4).mask() == np.tri(5, dtype=bool)).all()


@given(paths=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=8))
def test_mask_equals_prefixes_of_paths(paths: list[tuple[int, ...]]) -> None:
    closed = {path[:length] for path in paths for length in range(1, len(path) + 1)}
    tree = Tree.from_paths(closed)
    names: list[tuple[int, ...]] = [(), *tree.paths]
    wanted = [[row[: len(column)] == column for column in names] for row in names]
    assert (tree.mask() == np.array(wanted)).all()


# What a tree yields --------------------------------------------------------------------------------------


@pytest.mark.parametrize("siblings", BOTH)
@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.8, 1.0])
def test_a_chain_yields_the_geometric_series(alpha: float, siblings: Siblings) -> None:
    assert Tree.chain(5).expected_tokens([alpha], siblings=siblings) == pytest.approx(
        tokens_per_round(alpha, 5)
    )


def test_a_chain_with_rates_by_level_is_acceptance_per_position() -> None:
    rates = [0.8, 0.7, 0.5]
    chain = Tree.chain(3).expected_tokens([[rate] for rate in rates])
    assert chain == pytest.approx(expected_tokens(PerPosition.from_conditional(rates), 3))


@pytest.mark.parametrize("siblings", BOTH)
@given(
    rates=acceptances(),
    paths=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=7),
)
def test_expected_tokens_equal_the_mean_over_every_outcome(
    rates: Any, paths: list[tuple[int, ...]], siblings: Siblings
) -> None:
    """Also for trees that skip a rank."""
    tree = Tree.from_paths({path[:length] for path in paths for length in range(1, len(path) + 1)})
    assert tree.expected_tokens(rates, siblings=siblings) == pytest.approx(walks(tree, rates, siblings))


def test_the_two_readings_of_siblings() -> None:
    assert any_taken([0.4, 0.4], siblings="independent") == pytest.approx(0.64)
    assert any_taken([0.4, 0.4], siblings="exclusive") == pytest.approx(0.8)
    assert taken([0.5, 0.5], 1, siblings="independent")[0] == pytest.approx([0.5, 0.25])


def test_candidate_sets_give_the_acceptance_of_exclusive_siblings() -> None:
    """A full tree over one pair of laws yields the geometric series of the set's overlap."""
    found = candidate_set([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], 2)
    tree = Tree.dense([2, 2, 2])
    assert tree.expected_tokens(found.accept_by_rank) == pytest.approx(tokens_per_round(found.overlap, 3))


# The best tree -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(rates=acceptances(), nodes=st.integers(0, 6), depth=st.integers(1, 3), siblings=st.sampled_from(BOTH))
def test_greedy_and_programming_equal_the_best_of_every_tree(
    rates: Any, nodes: int, depth: int, siblings: Siblings
) -> None:
    trees = [Tree.from_paths(paths) for size in range(nodes + 1) for paths in every_tree(size, 3, depth)]
    best = max(walks(tree, rates, siblings) for tree in trees)
    greedy = best_tree(rates, nodes, depth, siblings=siblings)
    programmed = best_tree_by_programming(rates, nodes, depth, siblings=siblings)
    assert greedy.nodes == max(tree.nodes for tree in trees)
    for found in (greedy, programmed):
        assert found.nodes <= nodes
        assert found.depth <= depth
        assert found.expected_tokens(rates, siblings=siblings) == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(
    rates=st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=2, max_size=2),
    nodes=st.integers(1, 6),
)
def test_programming_is_optimal_for_independent_siblings_in_any_order(rates: Any, nodes: int) -> None:
    best = (
        max(walks(Tree.from_paths(paths), rates, "independent") for paths in every_tree(nodes, 3, 2))
        if nodes
        else 1
    )
    found = best_tree_by_programming(rates, nodes, 2, siblings="independent")
    assert found.expected_tokens(rates, siblings="independent") == pytest.approx(best)


@pytest.mark.parametrize("siblings", BOTH)
@pytest.mark.parametrize(("nodes", "depth"), [(64, 4), (64, 2), (200, 6), (340, 4)])
def test_two_algorithms_agree_on_large_trees(nodes: int, depth: int, siblings: Siblings) -> None:
    yields = [
        search(MASSES, nodes, depth, siblings=siblings).expected_tokens(MASSES, siblings=siblings)
        for search in (best_tree, best_tree_by_programming)
    ]
    assert yields[0] == pytest.approx(yields[1], rel=1e-12)


def test_64_of_the_340_nodes_of_the_dense_tree() -> None:
    """Brute force of another kind: the 64 largest of all 340 products of masses."""
    products = sorted(
        (float(np.prod(path)) for level in range(1, 5) for path in itertools.product(MASSES, repeat=level)),
        reverse=True,
    )
    assert best_tree(MASSES, 64, 4).expected_tokens(MASSES) == pytest.approx(1.0 + sum(products[:64]))
    assert best_tree(MASSES, 340, 4).expected_tokens(MASSES) == pytest.approx(1.0 + sum(products))


def test_a_sure_draft_needs_no_branches() -> None:
    assert best_tree([1.0], 5) == Tree.chain(5)
    assert best_tree([0.8, 0.0], 3).paths == Tree.chain(3).paths
    assert best_tree(MASSES, 0) == Tree((), ())


def test_of_equally_likely_paths_the_shorter_comes_first() -> None:
    """A sure continuation is as likely as its parent, and useless without it."""
    rates = [[0.5, 0.5], [1.0, 0.0]]
    tree = best_tree(rates, 2, 2)
    assert tree.paths == ((0,), (1,))
    assert best_tree(rates, 3, 2).expected_tokens(rates) == pytest.approx(2.5)


def test_a_tree_of_768_nodes_is_found_at_once() -> None:
    start = time.perf_counter()
    best_shape(
        MASSES, lambda width, depth: np.maximum(1.0, width / 60) + 0.05 * depth, max_nodes=768, max_depth=16
    )
    assert time.perf_counter() - start < 2.0


# The best shape for a device -----------------------------------------------------------------------------


def costs(limit: float, draft: float) -> Any:
    """In plain steps: flat up to `limit` positions, then linear; each level drafted costs `draft`."""
    return lambda width, depth: np.maximum(1.0, width / limit) + draft * depth


@pytest.mark.parametrize(("limit", "draft"), [(100.0, 0.02), (20.0, 0.1), (4.0, 0.3), (1.0, 0.5)])
def test_best_shape_equals_a_scan_of_sizes_and_depths(limit: float, draft: float) -> None:
    cost = costs(limit, draft)
    best = 1.0
    for nodes in range(1, 41):
        for depth in range(1, 7):
            tree = best_tree(MASSES, nodes, depth)
            best = max(best, tree.expected_tokens(MASSES) / float(cost(tree.width, tree.depth)))
    found = best_shape(MASSES, cost, max_nodes=40, max_depth=6)
    assert found.speedup == pytest.approx(best)
    assert found.tree.expected_tokens(MASSES) == pytest.approx(found.expected_tokens)
    assert found.tree.depth == found.depth
    assert found.tree.nodes == found.nodes
    assert max(row.speedup for row in found.by_size) == found.speedup


def test_where_positions_cost_more_the_tree_is_smaller_and_says_why() -> None:
    roomy, tight = (best_shape(MASSES, costs(limit, 0.05), max_nodes=128) for limit in (150.0, 6.0))
    assert roomy.nodes > tight.nodes > 0
    assert "tokens" in tight.why
    assert "time" in tight.why
    hopeless = best_shape(MASSES, costs(1.0, 1.0), max_nodes=16)
    assert (hopeless.nodes, hopeless.speedup) == (0, 1.0)
    assert hopeless.why.startswith("no tree pays")


def test_the_answer_as_json() -> None:
    answer = best_shape(MASSES, costs(50.0, 0.1), max_nodes=32, sizes=[1, 8, 32]).to_dict()
    assert {"nodes", "depth", "parents", "expected_tokens", "speedup", "by_size"} <= set(answer)
    rows = answer["by_size"]
    assert isinstance(rows, list)
    assert [row["nodes"] for row in rows] == [1, 8, 32]
    assert set(rows[0]) == {"nodes", "depth", "expected_tokens", "round_cost", "speedup"}


# Trees that follow the draft's confidence ----------------------------------------------------------------


def expectation(states: Any, weights: Any, nodes: int, beam: int) -> float:
    """Every assignment of states to the root and to the nodes expanded at depth 2, weighted."""
    total = 0.0
    for first in range(len(weights)):
        level = sorted(states[first], reverse=True)
        frontier = level[:beam]
        for seconds in itertools.product(range(len(weights)), repeat=len(frontier)):
            chance = weights[first] * float(np.prod([weights[s] for s in seconds]))
            pool = level + [p * rate for p, s in zip(frontier, seconds, strict=True) for rate in states[s]]
            total += chance * (1.0 + sum(sorted(pool, reverse=True)[:nodes]))
    return total


@pytest.mark.parametrize(("nodes", "beam"), [(3, 2), (5, 2), (4, 3)])
def test_dynamic_trees_against_every_assignment_of_states(nodes: int, beam: int) -> None:
    states, weights = [[0.9, 0.05, 0.01], [0.3, 0.25, 0.2]], [0.4, 0.6]
    found = dynamic_tokens(states, weights, nodes=nodes, depth=2, beam=beam, samples=40_000, seed=3)
    wanted = expectation(states, weights, nodes, beam)
    assert found.expected_tokens == pytest.approx(wanted, abs=5.0 * found.standard_error)


def test_dynamic_trees_without_anything_to_see_are_fixed() -> None:
    found = dynamic_tokens([list(MASSES)], [1.0], nodes=64, depth=4, beam=64, samples=2)
    assert found.expected_tokens == pytest.approx(best_tree(MASSES, 64, 4).expected_tokens(MASSES))
    assert found.standard_error == 0.0


def test_each_level_expands_the_likeliest_of_the_level_before() -> None:
    """One state, three levels, three expanded per level: EAGLE-2's procedure written out with sorted lists."""
    rates = (0.4, 0.35, 0.05)
    frontier, pool = [1.0], []
    for _ in range(3):
        children = [chance * rate for chance in frontier for rate in rates]
        pool += children
        frontier = sorted(children, reverse=True)[:3]
    found = dynamic_tokens([rates], [1.0], nodes=12, depth=3, beam=3, samples=2)
    assert found.expected_tokens == pytest.approx(1.0 + sum(sorted(pool, reverse=True)[:12]))


@settings(max_examples=15, deadline=None)
@given(rates=acceptances(levels=2), share=st.floats(0.1, 0.9), nodes=st.integers(1, 12))
def test_seeing_the_context_never_yields_less(rates: Any, share: float, nodes: int) -> None:
    found = dynamic_tokens(rates, [share, 1.0 - share], nodes=nodes, depth=3, beam=12, samples=3000)
    assert found.expected_tokens >= found.fixed_tokens - 5.0 * found.standard_error - 1e-12


# Bad input -----------------------------------------------------------------------------------------------


def refused() -> Iterator[Any]:
    yield lambda: Tree((0,), (0,))
    yield lambda: Tree((-1, 2), (0, 0))
    yield lambda: Tree((-1,), ())
    yield lambda: Tree((-1,), (-1,))
    yield lambda: Tree((-1, -1), (0, 0))
    yield lambda: Tree.dense([0])
    yield lambda: Tree.dense([50] * 5)
    yield lambda: Tree.chain(-1)
    yield lambda: Tree.multichain(0, 3)
    yield lambda: Tree.from_paths([(0, 1)])
    yield lambda: Tree.chain(2).expected_tokens([1.2])
    yield lambda: Tree.chain(2).expected_tokens([float("nan")])
    yield lambda: Tree.chain(2).expected_tokens(["a"])
    yield lambda: Tree.chain(2).expected_tokens([])
    yield lambda: Tree.chain(2).expected_tokens([[0.5]])
    yield lambda: Tree.dense([3]).expected_tokens([0.5, 0.3])
    yield lambda: Tree.dense([2]).expected_tokens([0.6, 0.6])
    yield lambda: Tree.chain(2).expected_tokens([0.6], siblings="cousins")  # type: ignore[arg-type]
    yield lambda: best_tree([0.2, 0.6], 4)
    yield lambda: best_tree(MASSES, -1)
    yield lambda: best_tree(MASSES, 2.5)  # type: ignore[arg-type]
    yield lambda: best_tree_by_programming(MASSES, 5000, 3)
    yield lambda: best_shape(MASSES, lambda width, depth: width * 0.0)
    yield lambda: best_shape(MASSES, lambda width, depth: 1.0)
    yield lambda: best_shape(MASSES, costs(1.0, 0.0), max_nodes=8, sizes=[9])
    yield lambda: dynamic_tokens(MASSES, [1.0], nodes=4, depth=2, beam=2)
    yield lambda: dynamic_tokens([MASSES, MASSES], [1.0], nodes=4, depth=2, beam=2)
    yield lambda: dynamic_tokens([MASSES], [1.0], nodes=4, depth=2, beam=0)


@pytest.mark.parametrize("attempt", list(refused()))
def test_bad_input_is_refused_in_one_line(attempt: Any) -> None:
    with pytest.raises(InputError) as caught:
        attempt()
    assert "\n" not in str(caught.value)
