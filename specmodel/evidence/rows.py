"""Counts that arrive already summed (a log line, a request, an interval), kept as rows; memory bounded."""

from __future__ import annotations

import numpy as np

from specmodel.evidence.counts import Clusters, Part, summed

MOST_ROWS = 32_768


class Rows:
    """Sums parts that share labels and convention, and keeps each as a row for the intervals.

    When there are too many rows, neighbours become one: a group of requests is still independent of the next.
    """

    def __init__(self, kind: str | None, most_rows: int = MOST_ROWS) -> None:
        self.kind = kind
        self.most_rows = most_rows
        self._first: Part | None = None
        self._rounds: list[float] = []
        self._accepted: list[float] = []
        self._tested: list[tuple[float, ...]] = []
        self._survived: list[tuple[float, ...]] = []
        self._total = np.zeros(3)  # rounds, accepted, drafted
        self._drafted_known = True
        self._k: int | None = None
        self._k_min: int | None = None
        self._k_known = True

    def add(self, part: Part) -> None:
        """Add one part; the first one's labels and convention stand for all."""
        if self._first is None:
            self._first = part
        self._drafted_known &= part.drafted is not None
        self._total += (part.rounds, part.accepted, part.drafted or 0.0)
        if not part.rounds:
            return
        self._k_known &= part.k is not None
        if part.k is not None:
            self._k = part.k if self._k is None else max(self._k, part.k)
            shortest = part.k if part.k_min is None else part.k_min
            self._k_min = shortest if self._k_min is None else min(self._k_min, shortest)
        self._rounds.append(part.rounds)
        self._accepted.append(part.accepted)
        self._tested.append(part.tested)
        self._survived.append(part.survived)
        if len(self._rounds) > (self.most_rows if self.kind else 1):
            self._halve()

    def _halve(self) -> None:
        if self.kind is not None:
            self.kind = "groups of neighbours"
        self._rounds = [sum(self._rounds[i : i + 2]) for i in range(0, len(self._rounds), 2)]
        self._accepted = [sum(self._accepted[i : i + 2]) for i in range(0, len(self._accepted), 2)]
        self._tested = [summed(self._tested[i : i + 2]) for i in range(0, len(self._tested), 2)]
        self._survived = [summed(self._survived[i : i + 2]) for i in range(0, len(self._survived), 2)]

    def part(self) -> Part:
        """The sum, with the rows as clusters where there are several."""
        first = self._first
        if first is None:
            raise ValueError("nothing was added")
        width = max((len(row) for row in self._tested), default=0)
        clusters = None
        tested = _table(self._tested, width)
        survived = _table(self._survived, width)
        if self.kind is not None and len(self._rounds) > 1:
            clusters = Clusters(
                kind=self.kind,
                rounds=np.array(self._rounds),
                accepted=np.array(self._accepted),
                tested=tested if width else None,
                survived=survived if width else None,
            )
        return Part(
            labels=first.labels,
            convention=first.convention,
            rounds=float(self._total[0]),
            accepted=float(self._total[1]),
            drafted=float(self._total[2]) if self._drafted_known else None,
            k=(self._k if self._k_known else None) if self._rounds else first.k,
            k_min=(self._k_min if self._k_known else None) if self._rounds else first.k,
            tested=tuple(tested.sum(axis=0).tolist()),
            survived=tuple(survived.sum(axis=0).tolist()),
            counted=first.counted,
            clusters=clusters,
        )


def _table(rows: list[tuple[float, ...]], width: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    table = np.zeros((len(rows), width))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
