"""Draft length by batch: the levels that every engine's own table is written from and read into."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError

MAX_LEVELS = 4  # one set of CUDA graphs is captured per distinct k, so engines want few


@dataclass(frozen=True, slots=True)
class Level:
    """Batches from `from_` to `to`, both included, draft k tokens. `to` None: and every larger batch."""

    from_: int
    to: int | None
    k: int

    def describe(self) -> str:
        """``1-8: 4``, ``33 and up: off``."""
        if self.to is None:
            batches = f"{self.from_} and up"
        elif self.to == self.from_:
            batches = str(self.from_)
        else:
            batches = f"{self.from_}-{self.to}"
        return f"{batches}: {self.k or 'off'}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Levels without gap or overlap, from batch 1 on; neighbours with the same k become one.

    A bounded last level ends where the evidence ends. Engines meet larger batches all the same: the last k is
    taken to go on, as vLLM and SGLang do; `closed` says so where an engine stops speculating there.

    Raises
    ------
    InputError
        If there is no level, the first does not start at 1, or two of them overlap or leave a gap.
    """

    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not self.levels:
            raise InputError("schedule", [], "needs at least one level")
        merged: list[Level] = []
        start = 1
        for position, level in enumerate(self.levels, start=1):
            field = f"schedule, level {position}"
            checks.whole(f"{field}, k", level.k, high=MAX_K)
            if level.from_ != start:
                raise InputError(f"{field}, from", level.from_, f"must be {start}: no gap, no overlap")
            if level.to is not None and level.to < level.from_:
                raise InputError(f"{field}, to", level.to, f"must be at least {level.from_}")
            if level.to is None and position < len(self.levels):
                raise InputError(f"{field}, to", None, "only the last level may be open")
            if merged and merged[-1].k == level.k:
                merged[-1] = Level(merged[-1].from_, level.to, level.k)
            else:
                merged.append(level)
            start = (level.to or 0) + 1
        object.__setattr__(self, "levels", tuple(merged))

    @classmethod
    def from_triples(cls, rows: Iterable[Sequence[int | None]]) -> Schedule:
        """From rows [from, to, k], both ends included."""
        levels = []
        for position, row in enumerate(rows, start=1):
            if len(row) != 3 or row[0] is None or row[2] is None:
                raise InputError(f"schedule, level {position}", list(row), "must be [from, to, k]")
            levels.append(Level(row[0], row[1], row[2]))
        return cls(tuple(levels))

    @classmethod
    def from_steps(cls, steps: Iterable[tuple[int, int]], to: int | None = None) -> Schedule:
        """From (first batch, k) pairs in ascending order, each valid until the next; the last until `to`."""
        pairs = list(steps)
        ends = [start - 1 for start, _ in pairs[1:]] + [to]
        return cls(tuple(Level(start, end, k) for (start, k), end in zip(pairs, ends, strict=True)))

    @classmethod
    def from_best(cls, batches: Sequence[int], ks: Sequence[int]) -> Schedule:
        """From the best k of each batch looked at; see `first_batches` for the batches between them."""
        if len(batches) != len(ks):
            raise InputError("k", list(ks), f"one for each of the {len(batches)} batches")
        starts = first_batches(batches)
        return cls.from_steps(zip(starts, ks, strict=True), to=batches[-1])

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """(first batch, k) of each level: what the schedule does, whatever bound its last level has."""
        return tuple((level.from_, level.k) for level in self.levels)

    @property
    def horizon(self) -> int | None:
        """The last batch of the last level; None when it is open."""
        return self.levels[-1].to

    @property
    def max_k(self) -> int:
        return max(level.k for level in self.levels)

    @property
    def min_k(self) -> int:
        return min(level.k for level in self.levels)

    @property
    def monotone(self) -> bool:
        """Whether k never grows with the batch."""
        ks = [level.k for level in self.levels]
        return all(later <= earlier for earlier, later in pairwise(ks))

    def k_at(self, batch: int) -> int:
        """Draft length at a batch; the last level's past its end."""
        checks.whole("batch", batch, low=1)
        return next(level.k for level in reversed(self.levels) if level.from_ <= batch)

    def at_most(self, k: int) -> Schedule:
        """The same with no level above k."""
        return Schedule(tuple(Level(level.from_, level.to, min(level.k, k)) for level in self.levels))

    def closed(self) -> Schedule:
        """What an engine does that stops speculating past the last level."""
        last = self.levels[-1]
        if last.to is None or last.k == 0:
            return self
        return Schedule((*self.levels, Level(last.to + 1, None, 0)))

    def describe(self) -> str:
        """``1-8: 4, 9-32: 2, 33 and up: off``."""
        return ", ".join(level.describe() for level in self.levels)


def first_batches(batches: Sequence[int]) -> list[int]:
    """The first batch that each batch looked at speaks for.

    Batches are looked at in steps of a factor, so the border between two of them is their geometric mean. The
    first one speaks for every smaller batch.

    Examples
    --------
    >>> first_batches([1, 4, 16])
    [1, 3, 9]
    """
    if not batches:
        raise InputError("batch", [], "needs at least one batch")
    starts = [1]
    for batch in batches:
        checks.whole("batch", batch, low=1)
    for smaller, larger in pairwise(batches):
        if larger <= smaller:
            raise InputError("batch", larger, f"must be above {smaller}: in ascending order, none twice")
        starts.append(math.isqrt(smaller * larger) + 1)
    return starts
