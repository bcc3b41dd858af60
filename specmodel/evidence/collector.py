"""What a reader fills while it reads: parts, dropped records, warnings."""

from __future__ import annotations

from specmodel.errors import InputError
from specmodel.evidence.counts import Dropped, Evidence, Part
from specmodel.evidence.rows import Rows
from specmodel.evidence.tally import Tally

LOSS_ALLOWED = 0.01
SHOWN = 20
MOST_WARNINGS = 100


class Collector:
    """Gathers parts, and counts every record that should have carried evidence."""

    def __init__(self, k: int | None = None, convention: str | None = None) -> None:
        self.k = k
        self.convention = convention
        self.records = 0
        self.lost = 0
        self.parts: list[Part] = []
        self.sources: list[str] = []
        self._rows: dict[tuple[object, ...], Rows] = {}
        self._tallies: dict[tuple[object, ...], tuple[Tally, dict[str, str], str]] = {}
        self.first_k: dict[tuple[tuple[str, str], ...], int] = {}
        self._nothing: list[str] = []
        self._dropped: list[Dropped] = []
        self._warnings: dict[str, int] = {}

    def good(self, count: int = 1) -> None:
        """Count records that could be used."""
        self.records += count

    def bad(self, source: str, line: int, reason: str, counted_already: bool = False) -> None:
        """Note one record that could not be used; `counted_already` where `good` had counted it."""
        self.records += 0 if counted_already else 1
        self.lost += 1
        if len(self._dropped) < SHOWN:
            self._dropped.append(Dropped(source, line, reason))

    def nothing(self, text: str) -> None:
        """Note something sound that holds no acceptance."""
        if text not in self._nothing and len(self._nothing) < SHOWN:
            self._nothing.append(text)

    def warn(self, text: str) -> None:
        """Note something that the reader of the answer should know, once."""
        if text in self._warnings or len(self._warnings) < MOST_WARNINGS:
            self._warnings[text] = self._warnings.get(text, 0) + 1

    def add(self, part: Part, kind: str | None = None) -> None:
        """Take one part; equal labels and convention are summed, `kind` says what each part is."""
        labels = tuple(sorted(part.labels.items()))
        key: tuple[object, ...] = (part.convention, labels, part.by_position, part.counted, kind)
        if not part.rounds:  # nothing happened in it: it joins the part of its kind, if there is one
            key = next((k for k in self._rows if k[:2] == key[:2] and k[4] == kind), key)
        self._rows.setdefault(key, Rows(kind)).add(part)

    def tally(self, labels: dict[str, str], convention: str, named: bool) -> Tally:
        """Where the rounds of these labels are counted."""
        key = (convention, tuple(sorted(labels.items())), named)
        if key not in self._tallies:
            self._tallies[key] = (Tally(named), labels, convention)
        return self._tallies[key][0]

    def _gather(self) -> list[Part]:
        found = list(self.parts)
        found += [tally.part(labels, convention) for tally, labels, convention in self._tallies.values()]
        return found + [rows.part() for rows in self._rows.values()]

    def evidence(self, lenient: bool) -> Evidence:
        """All that was gathered.

        Raises
        ------
        InputError
            If nothing is left, or more than 1 % of the records was lost and `lenient` is not set.
        """
        first = str(self._dropped[0]) if self._dropped else ""
        names = ", ".join(self.sources[:3]) + (" ..." if len(self.sources) > 3 else "")
        parts = self._gather()
        if not parts:
            why = f"; first of {self.lost} dropped: {first}" if first else ""
            why = why or ("; " + self._nothing[0] if self._nothing else "")
            raise InputError("evidence", names, f"holds no rounds that could be used{why}")
        share = self.lost / self.records if self.records else 0.0
        if share > LOSS_ALLOWED and not lenient:
            raise InputError(
                "evidence",
                names,
                f"{self.lost} of {self.records} records dropped ({share:.1%}, at most 1 % is allowed "
                "unless lenient); "
                f"first: {first}",
            )
        warnings = [text if n == 1 else f"{text} ({n} times)" for text, n in self._warnings.items()]
        warnings += [f"left out: {text}" for text in self._nothing]
        if self.lost:
            warnings.insert(0, f"{self.lost} of {self.records} records dropped ({share:.2%}); first: {first}")
        return Evidence(
            parts=tuple(parts),
            records=self.records,
            lost=self.lost,
            dropped=tuple(self._dropped),
            warnings=tuple(warnings),
            sources=tuple(self.sources),
        )
