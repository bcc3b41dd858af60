"""Repeated times of one thing: which of them count, and what they say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypeAlias

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Sample: TypeAlias = tuple[float, int]  # seconds, and how often another process took a core meanwhile
_ENOUGH = 3  # that a median needs


def undisturbed(samples: Sequence[Sample]) -> list[float]:
    """The times that count: of the samples in which no other process took a core.

    Where there are fewer than three, the three fastest: disturbance only ever adds time.

    >>> undisturbed([(1.0, 0), (5.0, 3), (1.1, 0), (1.2, 0), (0.9, 1)])
    [1.0, 1.1, 1.2]
    >>> undisturbed([(1.0, 2), (5.0, 3), (1.1, 0), (9.0, 4)])
    [1.0, 1.1, 5.0]
    """
    clean = [seconds for seconds, taken_away in samples if not taken_away]
    return clean if calm(samples) else sorted(seconds for seconds, _ in samples)[:_ENOUGH]


def calm(samples: Sequence[Sample]) -> bool:
    """Whether enough samples were not disturbed at all."""
    return sum(not taken_away for _, taken_away in samples) >= min(_ENOUGH, len(samples))


def switches() -> int:
    """How often the system took a core away from this process so far (0 where it does not say)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0


def median_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """The median of some times, and the distance of their quartiles relative to it (0 for one sample).

    >>> median_and_spread([2.0, 1.0, 3.0])
    (2.0, 0.5)
    """
    middle = statistics.median(samples)
    if len(samples) < 2:
        return middle, 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, (high - low) / middle
