"""How much to measure: tested tokens, rounds and requests for a wanted half-width of alpha."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from specmodel import checks
from specmodel.acceptance import MAX_K, tokens_per_round
from specmodel.errors import InputError
from specmodel.evidence import trials
from specmodel.evidence.intervals import normal_quantile


@dataclass(frozen=True, slots=True)
class SampleSize:
    """What must be measured.

    Attributes
    ----------
    independent_tests : int
        Tested tokens if all were independent: alpha (1 - alpha) (z / half_width)^2, rounded up.
    design_effect : float
        How many times more are needed because the tests of one request resemble each other: 1 + (m - 1) icc
        for m tests per request.
    tested_tokens : int
        independent_tests x design_effect.
    tested_per_round, drafted_per_round : float
        Tests stop at the first rejection: sum of alpha^i for i < k, against k drafted.
    rounds, requests, drafted_tokens : int
    requests_if_independent : int
        Without the design effect.
    requests_if_drafted : int
        What comes out if drafted tokens are taken for tests: too few.
    """

    half_width: float
    k: int
    alpha: float
    icc: float
    level: float
    tokens_per_request: float
    independent_tests: int
    design_effect: float
    tested_tokens: int
    tested_per_round: float
    drafted_per_round: float
    tokens_per_round: float
    rounds: int
    rounds_per_request: float
    requests: int
    drafted_tokens: int
    requests_if_independent: int
    requests_if_drafted: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**found, "warnings": list(self.warnings)}


def sample_size(
    half_width: float,
    k: int,
    alpha: float = 0.8,
    icc: float = 0.0,
    *,
    level: float = 0.95,
    tokens_per_request: float = 128.0,
    design_effect: float | None = None,
) -> SampleSize:
    """Tested tokens, rounds and requests that give alpha to within +- half_width.

    Parameters
    ----------
    half_width : float
        Half of the interval's width, above 0.
    k : int
        Draft tokens per round.
    alpha : float
        Expected acceptance of a tested token; 0.5 is the worst case.
    icc : float
        Correlation of two tests of one request, 0 to 1; `alpha(...).heterogeneity.icc` measures it.
    level : float
        Coverage of the interval.
    tokens_per_request : float
        Length of a reply.
    design_effect : float, optional
        Instead of icc, where it was measured.

    Raises
    ------
    InputError
        For a value out of range.

    Examples
    --------
    >>> plan = sample_size(0.02, 4, 0.8)
    >>> plan.tested_tokens, f"{plan.tested_per_round:.2f}", plan.requests
    (1537, '2.95', 14)
    """
    checks.real("half_width", half_width, low=0.0, high=0.5, above=True)
    checks.whole("k", k, low=1, high=MAX_K)
    checks.real("alpha", alpha, low=0.0, high=1.0)
    checks.real("icc", icc, low=0.0, high=1.0)
    checks.real("tokens_per_request", tokens_per_request, low=1.0)
    if not 0.5 <= checks.real("level", level, low=0.0, high=1.0) < 1.0:
        raise InputError("level", level, "must be from 0.5 to below 1")
    warnings = []
    share = alpha
    if not 0.0 < alpha < 1.0:
        share = 0.99 if alpha == 1.0 else 0.01
        warnings.append(f"at alpha = {alpha:g} nothing varies; planned for {share:g}")
    z = normal_quantile(level)
    independent = trials.trials_needed(share, half_width, z=z)
    per_round = trials.tested_per_round(share, k)
    emitted = float(tokens_per_round(share, k))
    rounds_each = max(trials.rounds_per_request(tokens_per_request, share, k), 1.0)
    tests_each = per_round * rounds_each
    effect = 1.0 + (max(tests_each, 1.0) - 1.0) * icc
    if design_effect is not None:
        effect = checks.real("design_effect", design_effect, low=0.0, above=True)
    tested = math.ceil(independent * effect - 1e-9)
    requests = math.ceil(tested / tests_each)
    if icc == 0.0 and design_effect is None:
        warnings.append(
            "icc = 0 takes all tests as independent; acceptance comes in bursts, so expect to need more"
        )
    if requests < 10:
        warnings.append(f"{requests} requests cannot show how much requests differ; take 30 or more")
    return SampleSize(
        half_width=half_width,
        k=k,
        alpha=alpha,
        icc=icc,
        level=level,
        tokens_per_request=tokens_per_request,
        independent_tests=independent,
        design_effect=effect,
        tested_tokens=tested,
        tested_per_round=per_round,
        drafted_per_round=float(k),
        tokens_per_round=emitted,
        rounds=math.ceil(tested / per_round),
        rounds_per_request=rounds_each,
        requests=requests,
        drafted_tokens=math.ceil(tested / per_round) * k,
        requests_if_independent=math.ceil(independent / tests_each),
        requests_if_drafted=math.ceil(independent / (k * rounds_each)),
        warnings=tuple(warnings),
    )


def half_width(
    rounds: float, k: int, alpha: float, *, design_effect: float = 1.0, level: float = 0.95
) -> float:
    r"""Half-width of alpha after so many rounds, :math:`z\sqrt{\alpha(1-\alpha)\,d / n}`.

    n is the number of tested tokens, rounds x sum of alpha^i for i < k, and d the design effect.

    Raises
    ------
    InputError
        For a value out of range.
    """
    checks.real("rounds", rounds, low=0.0, above=True)
    checks.whole("k", k, low=1, high=MAX_K)
    checks.real("alpha", alpha, low=0.0, high=1.0)
    checks.real("design_effect", design_effect, low=0.0, above=True)
    tests = rounds * math.fsum(alpha**i for i in range(k))
    return normal_quantile(level) * math.sqrt(alpha * (1.0 - alpha) * design_effect / tests)
