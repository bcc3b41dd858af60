"""Levels of a schedule, and their reduction against every assignment of k to batches."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.export import Schedule, first_batches, reduce_levels


def test_neighbours_with_the_same_k_are_one_level() -> None:
    assert Schedule.from_triples([[1, 4, 3], [5, 9, 3], [10, None, 0]]).describe() == "1-9: 3, 10 and up: off"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "at least one level"),
        ([[2, 4, 1]], "must be 1"),
        ([[1, 4, 1], [6, 9, 2]], "must be 5"),
        ([[1, 4, 1], [4, 9, 2]], "must be 5"),
        ([[1, None, 1], [5, 9, 2]], "only the last"),
        ([[1, 0, 1]], "at least 1"),
        ([[1, 4, -1]], "from 0"),
        ([[1, 4]], "from, to, k"),
    ],
)
def test_levels_that_are_no_schedule_are_refused(rows: list[list[int]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Schedule.from_triples(rows)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=12, unique=True).map(sorted))
def test_each_batch_looked_at_lies_in_its_own_range(batches: list[int]) -> None:
    starts = first_batches(batches)
    ends = [start - 1 for start in starts[1:]] + [batches[-1]]
    assert starts[0] == 1
    assert all(start <= batch <= end for start, batch, end in zip(starts, batches, ends, strict=True))


def fits(ks: tuple[int, ...], max_levels: int, monotone: bool, min_k: int, largest_first: bool) -> bool:
    runs = 1 + sum(a != b for a, b in pairwise(ks))
    falls = all(a >= b for a, b in pairwise(ks))
    return (
        runs <= max_levels
        and (falls or not monotone)
        and min(ks) >= min_k
        and (ks[0] == max(ks) or not largest_first)
    )


@settings(max_examples=120, deadline=None)
@given(
    speedups=st.integers(1, 6).flatmap(
        lambda batches: st.lists(
            st.lists(st.floats(0.3, 3.0), min_size=4, max_size=4), min_size=batches, max_size=batches
        )
    ),
    max_levels=st.integers(1, 4),
    monotone=st.booleans(),
    min_k=st.integers(0, 2),
    largest_first=st.booleans(),
    seed=st.integers(0, 10),
)
def test_reduction_is_the_best_of_all(
    speedups: list[list[float]],
    max_levels: int,
    monotone: bool,
    min_k: int,
    largest_first: bool,
    seed: int,
) -> None:
    batches = [4**i for i in range(len(speedups))]
    weights = np.random.default_rng(seed).uniform(0.1, 1.0, len(batches))
    found = reduce_levels(
        batches,
        speedups,
        weights=weights,
        max_levels=max_levels,
        monotone=monotone,
        min_k=min_k,
        largest_first=largest_first,
    )

    def regret(ks: tuple[int, ...]) -> float:
        lost = [1 - row[k] / max(row) for row, k in zip(speedups, ks, strict=True)]
        return float(np.average(lost, weights=weights))

    allowed = [
        ks
        for ks in product(range(4), repeat=len(batches))
        if fits(ks, max_levels, monotone, min_k, largest_first)
    ]
    assert found.ks in allowed
    assert found.regret == pytest.approx(min(map(regret, allowed)), abs=1e-9)
    assert found.regret == pytest.approx(regret(found.ks), abs=1e-12)
    assert len(found.schedule.levels) <= max_levels
    assert [found.schedule.k_at(batch) for batch in batches] == list(found.ks)


def test_reduction_names_what_it_gives_up() -> None:
    # k = 1 everywhere loses 1 - 0.9 / 1.0 at batch 1, which counts three quarters; two levels lose nothing.
    one = reduce_levels([1, 4], [[1.0, 0.9], [1.0, 2.0]], max_levels=1, weights=[3.0, 1.0])
    assert (one.ks, one.worst_batch) == ((1, 1), 1)
    assert one.worst_regret == pytest.approx(0.1)
    assert one.regret == pytest.approx(0.75 * 0.1)
    two = reduce_levels([1, 4], [[1.0, 0.9], [1.0, 2.0]])
    assert (two.ks, two.regret, two.schedule.describe()) == ((0, 1), 0.0, "1-2: off, 3-4: 1")


def test_a_level_that_gains_nothing_is_not_opened() -> None:
    found = reduce_levels([1, 2, 4, 8], [[1.0, 1.5, 1.5]] * 4)
    assert (found.ks, len(found.schedule.levels)) == ((1, 1, 1, 1), 1)


def test_a_cell_that_cannot_run_is_not_chosen() -> None:
    found = reduce_levels([1, 64], [[1.0, 2.0], [1.0, float("-inf")]])
    assert found.ks == (1, 0)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"speedups": [[1.0, 2.0]]}, "one row per batch"),
        ({"batches": [4, 1]}, "ascending"),
        ({"ks": [1, 1]}, "ascending"),
        ({"min_k": 5}, "at most 1"),
        ({"weights": [1.0]}, "one for each"),
        ({"weights": [0.0, 0.0]}, "above 0"),
        ({"weights": [1.0, float("nan")]}, "weights"),
        ({"speedups": [[0.0, 0.0], [1.0, 1.0]]}, "above 0"),
        ({"max_levels": 0}, "from 1"),
    ],
)
def test_tables_that_make_no_sense_are_refused(changed: dict[str, object], says: str) -> None:
    plain: dict[str, object] = {"batches": [1, 4], "speedups": [[1.0, 2.0], [1.0, 0.5]]}
    arguments = plain | changed
    with pytest.raises(InputError, match=says):
        reduce_levels(arguments.pop("batches"), arguments.pop("speedups"), **arguments)  # type: ignore[arg-type]
