"""Rounds, folded into counts as they arrive: a billion rounds take the memory of a few thousand requests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specmodel.evidence.counts import Clusters, Part

Ints = NDArray[np.int64]

MOST_CELLS = 4_000_000  # per-request counts held at once, two arrays of 4 bytes each
BLOCKS = 512  # runs of consecutive rounds, where requests are not known
PRODUCTS = 5  # neighbours, sum x^2, sum of neighbour products, first, last: see counts.Clusters


class Tally:
    """Counts of one set of labels.

    With request names each request keeps a row. When the rows would exceed `MOST_CELLS`, half of the requests
    (by a hash of the name, so a request is kept whole or not at all) give up theirs; the totals stay
    complete. Without names, consecutive rounds form blocks, and blocks merge in pairs as the log grows.
    """

    def __init__(self, named: bool, most_cells: int = MOST_CELLS) -> None:
        self.named = named
        self.most_cells = most_cells
        self.grid: Ints = np.zeros((1, 1), dtype=np.int64)  # rounds by (drafted, accepted)
        self._index: dict[str, int] = {}
        self._used = 0
        self._accepted = np.zeros((16, 2), dtype=np.int32)  # per row: rounds by accepted count
        self._reached = np.zeros((16, 2), dtype=np.int32)  # per row: rounds by last position tested
        self._products = _fresh(16)
        self._keep_below = 1 << 32
        self._block = 8
        self._seen = 0
        self.ordered = True

    @property
    def rounds(self) -> int:
        """Rounds so far, those without a draft included."""
        return int(self.grid.sum())

    def add(self, drafted: Ints, accepted: Ints, requests: Sequence[str] | None = None) -> None:
        """Fold in rounds in the order in which they happened.

        Parameters
        ----------
        drafted, accepted : int64 ndarray, shape (n,)
            Checked before: 0 <= accepted <= drafted <= LARGEST_K.
        requests : sequence of str, length n
            Needed when `named`.
        """
        if not drafted.size:
            return
        width = int(drafted.max()) + 1
        if width > len(self.grid):
            self.grid = np.pad(self.grid, ((0, width - len(self.grid)),) * 2)
        size = len(self.grid)
        self.grid += np.bincount(drafted * size + accepted, minlength=size * size).reshape(size, size)
        self._widen(width)
        if self.named:
            rows = self._rows_of(requests or ())
        else:
            while self._seen + drafted.size > self._block * BLOCKS:
                self._merge_blocks()
            rows = (self._seen + np.arange(drafted.size)) // self._block
            self._seen += drafted.size
            self._reserve(int(rows[-1]) + 1)
            self._used = max(self._used, int(rows[-1]) + 1)
        use = (rows >= 0) & (drafted > 0)
        self._fold(rows[use], drafted[use], accepted[use])

    def _fold(self, rows: Ints, drafted: Ints, accepted: Ints) -> None:
        if not rows.size:
            return
        touched, r = np.unique(rows, return_inverse=True)
        width, n = self._accepted.shape[1], touched.size
        for table, column in ((self._accepted, accepted), (self._reached, np.minimum(accepted + 1, drafted))):
            cells = np.bincount(r * width + column, minlength=n * width)
            table[touched] += cells.reshape(n, width).astype(np.int32)
        order = np.argsort(r, kind="stable")
        r, x = r[order], accepted[order].astype(np.float64)
        first = np.flatnonzero(np.diff(r, prepend=-1))
        last = np.append(first[1:], r.size) - 1
        inside = np.ones(r.size, dtype=bool)
        inside[first] = False
        here = np.flatnonzero(inside)
        p = self._products[touched]
        p[:, 0] += np.bincount(r[here], minlength=n)
        p[:, 1] += np.bincount(r, weights=x * x, minlength=n)
        p[:, 2] += np.bincount(r[here], weights=x[here] * x[here - 1], minlength=n)
        known = p[:, 4] >= 0.0  # the row has rounds from an earlier call: one more pair of neighbours
        p[known, 0] += 1.0
        p[known, 2] += p[known, 4] * x[first[known]]
        p[~known, 3] = x[first[~known]]
        p[:, 4] = x[last]
        self._products[touched] = p

    def _rows_of(self, requests: Sequence[str]) -> Ints:
        index, limit = self._index, self._keep_below
        rows = np.fromiter((index.get(name, -1) for name in requests), dtype=np.int64, count=len(requests))
        missing = np.flatnonzero(rows < 0)
        if not missing.size:
            return rows
        for at in missing.tolist():
            name = requests[at]
            row = index.get(name, -1)
            if row < 0 and _hash(name) < limit:
                row = len(index)
                index[name] = row
            rows[at] = row
        self._used = len(index)
        self._reserve(self._used)
        if self._used * self._accepted.shape[1] <= self.most_cells:
            return rows
        self._give_up(self._accepted.shape[1])
        return self._rows_of(requests)

    def _give_up(self, width: int) -> None:
        """Keep the requests in the lower half of the hashes kept so far, until half the room is free."""
        while len(self._index) * width > self.most_cells // 2 and self._keep_below > 1:
            self._keep_below //= 2
            kept = [name for name in self._index if _hash(name) < self._keep_below]
            rows = np.array([self._index[name] for name in kept], dtype=np.int64)
            self._accepted = self._accepted[rows] if rows.size else self._accepted[:1] * 0
            self._reached = self._reached[rows] if rows.size else self._reached[:1] * 0
            self._products = self._products[rows] if rows.size else _fresh(1)
            self._index = {name: row for row, name in enumerate(kept)}
            self._used = len(kept)

    def _merge_blocks(self) -> None:
        """Make every two neighbouring blocks one, with the neighbours across their border."""
        even = -(-self._used // 2) * 2
        self._reserve(even)
        a, b = self._products[0:even:2].copy(), self._products[1:even:2].copy()
        both = (a[:, 4] >= 0.0) & (b[:, 4] >= 0.0)
        merged = a.copy()
        merged[:, :3] += b[:, :3]
        merged[both, 0] += 1.0
        merged[both, 2] += a[both, 4] * b[both, 3]
        merged[:, 4] = np.where(b[:, 4] >= 0.0, b[:, 4], a[:, 4])
        merged[:, 3] = np.where(a[:, 4] >= 0.0, a[:, 3], b[:, 3])
        self._accepted = self._accepted[0:even:2] + self._accepted[1:even:2]
        self._reached = self._reached[0:even:2] + self._reached[1:even:2]
        self._products = merged
        self._used = even // 2
        self._block *= 2

    def _widen(self, width: int) -> None:
        more = width - self._accepted.shape[1]
        if more > 0:
            if self._used * width > self.most_cells:
                self._give_up(width)
            self._accepted = np.pad(self._accepted, ((0, 0), (0, more)))
            self._reached = np.pad(self._reached, ((0, 0), (0, more)))

    def _reserve(self, rows: int) -> None:
        """Room for `rows` rows; new ones have no last accepted count yet (-1)."""
        have = len(self._accepted)
        if rows > have:
            more = max(rows, 2 * have) - have
            self._accepted = np.pad(self._accepted, ((0, more), (0, 0)))
            self._reached = np.pad(self._reached, ((0, more), (0, 0)))
            self._products = np.concatenate([self._products, _fresh(more)])

    def part(self, labels: Mapping[str, str], convention: str) -> Part:
        """The counts so far. Rounds without a draft are left out of them."""
        return from_grid(self.grid, labels, convention, self._clusters())

    def _clusters(self) -> Clusters | None:
        accepted, reached = self._accepted[: self._used], self._reached[: self._used]
        rounds = accepted.sum(axis=1)
        filled = rounds > 0
        if not filled.any():
            return None
        columns = np.arange(accepted.shape[1])
        return Clusters(
            kind="requests" if self.named else "blocks",
            rounds=rounds[filled].astype(np.float64),
            accepted=(accepted[filled] @ columns).astype(np.float64),
            tested=_at_least(reached[filled]),
            survived=_at_least(accepted[filled]),
            products=self._products[: self._used][filled].copy() if self.ordered else None,
            kept=self._keep_below / (1 << 32),
        )


def from_grid(grid: Ints, labels: Mapping[str, str], convention: str, clusters: Clusters | None) -> Part:
    """Counts from rounds by (drafted, accepted); the row of rounds without a draft is left out."""
    size = len(grid)
    with_draft = grid.copy()
    with_draft[0] = 0
    drafts = with_draft.sum(axis=1)
    depths = np.flatnonzero(drafts)
    drafted, accepted = np.indices(grid.shape)
    k = int(depths[-1]) if depths.size else 0
    reached = np.bincount(
        np.minimum(accepted + 1, drafted).ravel(), weights=with_draft.ravel(), minlength=size
    )
    survivors = with_draft.sum(axis=0)
    return Part(
        labels=labels,
        convention=convention,
        rounds=float(drafts.sum()),
        drafted=float(drafts @ np.arange(size)),
        accepted=float((with_draft * accepted).sum()),
        k=k or None,
        k_min=int(depths[0]) if depths.size else None,
        tested=tuple(_at_least(reached[None, :])[0, :k].tolist()),
        survived=tuple(_at_least(survivors[None, :])[0, :k].tolist()),
        clusters=clusters,
    )


def _at_least(histogram: NDArray[np.generic]) -> NDArray[np.float64]:
    """From rounds by count to rounds with at least 1, 2, ... (columns)."""
    return np.cumsum(histogram[:, ::-1], axis=1, dtype=np.float64)[:, ::-1][:, 1:]


def _fresh(rows: int) -> NDArray[np.float64]:
    products = np.zeros((rows, PRODUCTS))
    products[:, 3:] = -1.0
    return products


def _hash(name: str) -> int:
    """Spread names over 32 bits, the same in every process."""
    return (zlib.crc32(name.encode("utf-8", "replace")) * 2654435761) & 0xFFFFFFFF
