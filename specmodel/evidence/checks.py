"""From the totals an engine prints to a checked Part, and how many rounds a printed mean length implies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from specmodel.evidence.counts import LARGEST_K, Clusters, Part

Warn = Callable[[str], None]


class UnusableError(ValueError):
    """A record that contradicts itself or lacks what is needed; the reader adds file and line."""


class NothingToReadError(ValueError):
    """A sound record that says nothing about acceptance, as a run without speculation."""


def whole(value: object, name: str) -> int:
    """A count: a finite whole number from 0 on.

    Raises
    ------
    UnusableError
        For anything else, nan and Infinity included.
    """
    found = number(value, name)
    if found < 0 or found != math.floor(found):
        raise UnusableError(f"{name} is {value!r}, not a count")
    return int(found)


def number(value: object, name: str) -> float:
    """A finite number; UnusableError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnusableError(
            f"{name} is {str(value)[:40]!r}, not a number" if value is not None else f"{name} is None"
        )
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise UnusableError(f"{name} is {found}, not a finite number")
    return found


def rates(values: object, name: str) -> list[float]:
    """A list of fractions per position; UnusableError where one is outside 0 to 1."""
    if not isinstance(values, list | tuple) or len(values) > LARGEST_K:
        raise UnusableError(f"{name} is not a list of rates")
    found = [number(value, f"{name}[{index}]") for index, value in enumerate(values)]
    for index, value in enumerate(found):
        if not 0.0 <= value <= 1.0:
            raise UnusableError(f"{name}: position {index + 1} is {value:g}, outside 0 to 1")
    return found


def survival_rates(values: object, name: str) -> list[float]:
    """Fractions that do not increase with the position, as unconditional rates must."""
    found = rates(values, name)
    for index in range(1, len(found)):
        if found[index] > found[index - 1]:
            raise UnusableError(
                f"{name}: survival rises from {found[index - 1]:g} to {found[index]:g} at position "
                f"{index + 1}"
            )
    return found


def rounds_from_length(
    accepted: float, length: float, decimals: int, drafted: float | None, k: int | None
) -> float:
    """Rounds behind a printed mean length: accepted / (length - 1), bonus token included in the length.

    Where the length was rounded, drafted / k is taken instead if that is whole and lies within the rounding.

    Raises
    ------
    UnusableError
        Where the length is below 1 or nothing tells the number.
    """
    if not length >= 1.0:
        raise UnusableError(f"mean length is {length:g}, below 1 (the bonus token is included)")
    half = 0.5 * 10.0**-decimals
    fewest = accepted / (length + half - 1.0)
    most = accepted / (length - half - 1.0) if length - half > 1.0 else math.inf
    if drafted is not None and k:
        full = drafted / k
        if full == math.floor(full) and fewest - 1.0 <= full <= most + 1.0:
            return full
    if accepted > 0 and length > 1.0:
        return float(round(accepted / (length - 1.0)))
    raise UnusableError("nothing was accepted, and the number of rounds is not printed")


def survivors(rounds: float, shares: Sequence[float]) -> tuple[float, ...]:
    """Rounds that reached each position, from rounded shares."""
    return tuple(float(round(rounds * share)) for share in shares)


def part_from_totals(
    *,
    labels: Mapping[str, str],
    convention: str,
    rounds: float,
    accepted: float,
    drafted: float | None,
    warn: Warn,
    place: str,
    survived: Sequence[float] = (),
    k: int | None = None,
    slack: float = 0.0,
    clusters: Clusters | None = None,
    counted: bool = True,
) -> Part:
    """Counts from totals that an engine printed, checked against each other.

    Parameters
    ----------
    survived : sequence of float
        Rounds that reached position 1, 2, ...; empty where not printed.
    k : int, optional
        Draft tokens per round; without it drafted / rounds, where that is whole.
    place : str
        What the warnings begin with; without a line number, so that equal ones are said once.
    slack : float
        How far sums may disagree because the source rounded, as a share of the rounds.

    Raises
    ------
    UnusableError
        Where the numbers contradict each other.
    """
    if drafted is not None and accepted > drafted:
        raise UnusableError(f"accepted {accepted:g} exceeds drafted {drafted:g}")
    if not rounds:
        if accepted or drafted:
            raise UnusableError(f"{accepted:g} accepted of {drafted or 0:g} drafted in no round")
        return Part(labels, convention, 0.0, 0.0, 0.0, k, k, counted=counted)
    if k is None and survived:
        k = len(survived)
    if k is None and drafted is not None:
        mean = drafted / rounds
        k = math.ceil(mean - 0.02)
        if abs(mean - k) > 0.02:
            warn(f"{place}: the mean draft is no whole number of tokens: k differs between rounds")
    if k is not None and k > LARGEST_K:
        raise UnusableError(f"{k} tokens drafted in a round")
    if k is not None and accepted > rounds * k * (1.0 + slack) + 0.5:
        raise UnusableError(
            f"mean length {1.0 + accepted / rounds:.4g} exceeds k + 1 = {k + 1} (the bonus token is included)"
        )
    before = rounds
    for index, reached in enumerate(survived):
        if reached > before + 1e-9:
            raise UnusableError(
                f"survival rises: {reached:g} rounds reached position {index + 1}, {before:g} the one before"
            )
        before = reached
    if survived and abs(sum(survived) - accepted) > 0.5 * len(survived) + slack * rounds * len(survived):
        raise UnusableError(
            f"positions sum to {sum(survived):g} accepted tokens, the total says {accepted:g}"
        )
    k_min = k
    if k is not None and drafted is not None:
        missing = rounds * k - drafted
        if missing < -0.02 * rounds:
            raise UnusableError(f"{drafted:g} drafted in {rounds:g} rounds of at most {k}")
        if missing > 0.02 * rounds:
            k_min = math.floor(drafted / rounds)
            if survived:
                warn(
                    f"{place}: some rounds drafted fewer than {k} tokens, and count as misses behind them: "
                    "the survival rates are lower bounds"
                )
    tested = (rounds, *survived[:-1]) if survived else ()
    return Part(
        labels=labels,
        convention=convention,
        rounds=rounds,
        accepted=accepted,
        drafted=drafted if drafted is not None else (rounds * k if k is not None else None),
        k=k,
        k_min=k_min,
        tested=tuple(tested),
        survived=tuple(survived),
        counted=counted,
        clusters=clusters,
    )
