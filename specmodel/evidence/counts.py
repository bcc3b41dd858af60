"""What every source becomes: counts per position, with labels and the convention they came in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specmodel.errors import InputError

Array = NDArray[np.float64]

LARGEST_K = 1024  # a longer draft in one round is a damaged number, not a draft


@dataclass(frozen=True, slots=True)
class Clusters:
    """Counts of each request, one row each, because rounds of one request resemble each other.

    Attributes
    ----------
    kind : str
        "requests"; "intervals" (one row per logging interval); "blocks" (runs of consecutive rounds).
    rounds, accepted : ndarray, shape (rows,)
        Rounds with a draft, and draft tokens accepted in them.
    tested, survived : ndarray, shape (rows, k), or None
        Draft tokens tested at a position, and accepted there; None where only totals were printed.
    products : ndarray, shape (rows, 5), or None
        Of the accepted counts x in their order: number of neighbours, sum x^2, sum of neighbour products,
        first x, last x.
    kept : float
        Share of the requests that have a row; below 1 where there were more than memory should hold.
    """

    kind: str
    rounds: Array
    accepted: Array
    tested: Array | None = None
    survived: Array | None = None
    products: Array | None = None
    kept: float = 1.0


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of squares over requests: what is left of the requests after an aggregation out of memory.

    n is rounds, t tested tokens, a accepted tokens and s_i survivors at position i, each of one request.
    """

    requests: int
    nn: float
    tt: float
    aa: float
    at: float
    an: float
    ss: tuple[float, ...]
    sn: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Counts of one source under one set of labels.

    Attributes
    ----------
    labels : mapping
        source, workload, engine, method, ... as far as they are known.
    convention : str
        The form in which the source printed its numbers.
    rounds : float
        Rounds with a draft. Where `counted` is False only a relative weight.
    drafted : float or None
        Draft tokens proposed.
    accepted : float
        Draft tokens accepted, bonus token not among them.
    k, k_min : int or None
        Most and fewest tokens drafted in one round; None where nothing tells.
    tested, survived : tuple of float
        Per position; empty where the source printed totals only.
    counted : bool
        False: the source printed rates without the number of rounds behind them.
    """

    labels: Mapping[str, str]
    convention: str
    rounds: float
    accepted: float
    drafted: float | None = None
    k: int | None = None
    k_min: int | None = None
    tested: tuple[float, ...] = ()
    survived: tuple[float, ...] = ()
    counted: bool = True
    clusters: Clusters | None = None
    moments: Moments | None = None

    @property
    def by_position(self) -> bool:
        """Whether counts per position are known."""
        return bool(self.tested)


@dataclass(frozen=True, slots=True)
class Dropped:
    """One record that could not be used, and why."""

    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was read: parts by label, what was lost on the way, and what the reader should know.

    Attributes
    ----------
    parts : tuple of Part
    records : int
        Lines or objects that should have carried evidence, the dropped ones included.
    lost : int
        How many of them were dropped; `dropped` shows the first twenty.
    warnings : tuple of str
    """

    parts: tuple[Part, ...]
    records: int = 0
    lost: int = 0
    dropped: tuple[Dropped, ...] = ()
    warnings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def by(self, label: str) -> dict[str, Evidence]:
        """Split by a label ("workload", "source", ...), the values in sorted order.

        Raises
        ------
        InputError
            If no part carries the label.
        """
        known = sorted({name for part in self.parts for name in part.labels})
        if label not in known:
            raise InputError(
                "by", label, f"not a label of this evidence; it has: {', '.join(known) or 'none'}"
            )
        values = sorted({part.labels.get(label, "") for part in self.parts})
        return {
            value or "(none)": replace(
                self, parts=tuple(part for part in self.parts if part.labels.get(label, "") == value)
            )
            for value in values
        }

    @property
    def lost_share(self) -> float:
        """Share of the records that was dropped."""
        return self.lost / self.records if self.records else 0.0


def padded(rows: Array, width: int) -> Array:
    """`rows` with columns of zeros up to `width`."""
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def joined_clusters(parts: Sequence[Part]) -> Clusters | None:
    """The rows of several parts under each other, or None where one of them has none."""
    found = [part.clusters for part in parts if part.clusters is not None]
    if not found or len(found) != len(parts):
        return None
    kinds = {clusters.kind for clusters in found}
    tested = survived = products = None
    if all(c.tested is not None and c.survived is not None for c in found):
        width = max(c.tested.shape[1] for c in found if c.tested is not None)
        tested = np.concatenate([padded(c.tested, width) for c in found if c.tested is not None])
        survived = np.concatenate([padded(c.survived, width) for c in found if c.survived is not None])
    if all(c.products is not None for c in found):
        products = np.concatenate([c.products for c in found if c.products is not None])
    return Clusters(
        kind=kinds.pop() if len(kinds) == 1 else "groups",
        rounds=np.concatenate([c.rounds for c in found]),
        accepted=np.concatenate([c.accepted for c in found]),
        tested=tested,
        survived=survived,
        products=products,
        kept=min(c.kept for c in found),
    )


def summed(vectors: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Element-wise sum of vectors of different lengths."""
    total: list[float] = []
    for vector in vectors:
        total.extend([0.0] * (len(vector) - len(total)))
        for index, value in enumerate(vector):
            total[index] += value
    return tuple(total)


def pooled(parts: Sequence[Part]) -> tuple[Part, tuple[str, ...]]:
    """One part from several, and what had to be left out for it.

    Weights without a count of rounds cannot be added to counts, and totals cannot be added to counts per
    position: where the better kind exists the other is left out, and said to be.
    """
    warnings = []
    chosen = [part for part in parts if part.rounds > 0]
    if not chosen:
        first = parts[0]
        return replace(first, k=max((p.k for p in parts if p.k is not None), default=None)), ()
    better = [part for part in chosen if part.counted]
    if better and len(better) < len(chosen):
        warnings.append(
            "left out: "
            + _named(set_aside(chosen, better))
            + " (rates without a number of rounds behind them)"
        )
        chosen = better
    better = [part for part in chosen if part.by_position]
    if better and len(better) < len(chosen):
        share = sum(part.rounds for part in better) / sum(part.rounds for part in chosen)
        warnings.append(
            f"left out: {_named(set_aside(chosen, better))} (totals only); counts per position are known for "
            f"{share:.1%} of the rounds"
        )
        chosen = better
    depths = [part.k for part in chosen if part.k is not None]
    shortest = [part.k_min for part in chosen if part.k_min is not None]
    drafts = [part.drafted for part in chosen if part.drafted is not None]
    whole = len(chosen) == 1 and chosen[0].moments is not None
    names = list(dict.fromkeys(part.convention for part in chosen))
    return (
        Part(
            labels=_common(chosen),
            convention="; ".join(name.replace("; ", ", ") for name in names),
            rounds=sum(part.rounds for part in chosen),
            accepted=sum(part.accepted for part in chosen),
            drafted=sum(drafts) if len(drafts) == len(chosen) else None,
            k=max(depths) if len(depths) == len(chosen) else None,
            k_min=min(shortest) if len(depths) == len(chosen) and shortest else None,
            tested=summed(part.tested for part in chosen),
            survived=summed(part.survived for part in chosen),
            counted=all(part.counted for part in chosen),
            clusters=joined_clusters(chosen),
            moments=chosen[0].moments if whole else _added([part.moments for part in chosen]),
        ),
        tuple(warnings),
    )


def set_aside(all_parts: Sequence[Part], kept: Sequence[Part]) -> list[Part]:
    """The parts that are not among the kept ones (by identity)."""
    keep = {id(part) for part in kept}
    return [part for part in all_parts if id(part) not in keep]


def _named(parts: Sequence[Part]) -> str:
    names = list(dict.fromkeys(part.labels.get("source", part.convention) for part in parts))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _common(parts: Sequence[Part]) -> dict[str, str]:
    """Labels that all parts share."""
    first = dict(parts[0].labels)
    return {k: v for k, v in first.items() if all(part.labels.get(k) == v for part in parts)}


def _added(moments: Sequence[Moments | None]) -> Moments | None:
    """Sums of squares of disjoint sets of requests add up."""
    known = [m for m in moments if m is not None]
    if not known or len(known) != len(moments):
        return None
    return Moments(
        requests=sum(m.requests for m in known),
        nn=sum(m.nn for m in known),
        tt=sum(m.tt for m in known),
        aa=sum(m.aa for m in known),
        at=sum(m.at for m in known),
        an=sum(m.an for m in known),
        ss=summed(m.ss for m in known),
        sn=summed(m.sn for m in known),
    )
