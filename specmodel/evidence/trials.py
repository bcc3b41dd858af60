"""How much to measure: tests, rounds and requests until alpha is known well enough.

Only drafts that were *tested* are trials. After a rejection the rest of a draft is thrown away unseen, so a
round of k drafts holds 1 + alpha + ... + alpha^(k-1) trials, not k.
"""

from __future__ import annotations

import math

from specmodel import checks
from specmodel.acceptance import tokens_per_round

Z_95 = 1.96  # two-sided 95 % of the normal law


def standard_error_allowed(half_width: float, *, z: float = Z_95) -> float:
    """Standard error at which the interval has this half-width."""
    checks.real("half_width", half_width, low=0.0, above=True)
    return half_width / checks.real("z", z, low=0.0, above=True)


def trials_needed(alpha: float, half_width: float, *, z: float = Z_95) -> int:
    """Independent tests for an interval of this half-width around alpha (normal approximation)."""
    checks.real("alpha", alpha, low=0.0, high=1.0)
    exact = alpha * (1.0 - alpha) / standard_error_allowed(half_width, z=z) ** 2
    return math.ceil(exact - 1e-9)


def half_width_after(rounds: float, alpha: float, k: int, *, z: float = Z_95) -> float:
    """Half-width of the interval after so many rounds of k drafts, counting tested drafts only."""
    trials = checks.real("rounds", rounds, low=0.0, above=True) * tested_per_round(alpha, k)
    return z * math.sqrt(alpha * (1.0 - alpha) / trials)


def tested_per_round(alpha: float, k: int) -> float:
    """Drafts that a round tests: all up to the first rejection, that one included."""
    return float(tokens_per_round(alpha, checks.whole("k", k, low=1) - 1))


def accepted_share(alpha: float, k: int) -> float:
    """Accepted over drafted, (E - 1)/k: what counters give. Not alpha: untested drafts count against it."""
    return (float(tokens_per_round(alpha, k)) - 1.0) / checks.whole("k", k, low=1)


def rounds_per_request(tokens: float, alpha: float, k: int) -> float:
    """Verification passes in a reply of this many tokens."""
    return checks.real("tokens", tokens, low=0.0, above=True) / float(tokens_per_round(alpha, k))


def requests_needed(trials: float, tokens: float, alpha: float, k: int, *, tested_only: bool = True) -> float:
    """Replies that hold so many trials, a real number to be rounded up.

    With ``tested_only=False`` every drafted token counts as a trial, which is too optimistic.
    """
    per_round = tested_per_round(alpha, k) if tested_only else float(checks.whole("k", k, low=1))
    return checks.real("trials", trials, low=0.0) / (per_round * rounds_per_request(tokens, alpha, k))


def with_design_effect(count: float, effect: float) -> float:
    """A sample size for tests that come in clusters: acceptance is bursty, and each counts for less."""
    return checks.real("count", count, low=0.0) * checks.real("effect", effect, low=1.0)
