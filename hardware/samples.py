"""Repeated times of one thing: which of them count, and what they say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

Sample: TypeAlias = tuple[float, float]  # seconds, and how many of them a thread waited for a core
ENOUGH = 3  # that a median needs
_MOST_WAITED = 0.02  # of a sample's time, before it counts as disturbed
_TASKS = Path("/proc/self/task")


def undisturbed(samples: Sequence[Sample]) -> list[float]:
    """The times that count: of the samples in which no other process held a core that was wanted.

    Where there are fewer than three, the three fastest: disturbance only ever adds time.

    >>> undisturbed([(1.0, 0.0), (5.0, 3.0), (1.1, 0.0), (1.2, 0.01), (0.9, 0.1)])
    [1.0, 1.1, 1.2]
    >>> undisturbed([(1.0, 0.2), (5.0, 3.0), (1.1, 0.0), (9.0, 4.0)])
    [1.0, 1.1, 5.0]
    """
    clean = [sample[0] for sample in samples if not disturbed(sample)]
    return clean if calm(samples) else sorted(seconds for seconds, _ in samples)[:ENOUGH]


def disturbed(sample: Sample) -> bool:
    """Whether threads of this process waited for a core for a noticeable part of the time."""
    seconds, wait = sample
    return wait > _MOST_WAITED * seconds


def calm(samples: Sequence[Sample]) -> bool:
    """Whether enough samples were not disturbed."""
    return sum(not disturbed(sample) for sample in samples) >= min(ENOUGH, len(samples))


def waited() -> float:
    """How long threads of this process, ready to run, have waited for a core so far (0 where Linux does not say). [s]

    The kernel runs as many threads as there are cores, so it is other processes that they wait for.
    """
    total = 0
    for file in _TASKS.glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[1])  # time on a core, time waiting for one, turns; in ns
        except (OSError, IndexError, ValueError):  # a thread that ended, a kernel without the figures
            continue
    return total / 1e9


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
