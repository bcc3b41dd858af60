"""What counts say: survival and conditional rates, alpha, tokens per round, all with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specmodel.errors import InputError
from specmodel.evidence.cautions import cautions
from specmodel.evidence.counts import Evidence, Part, pooled
from specmodel.evidence.geometric import GeometricFit, geometric_fit
from specmodel.evidence.heterogeneity import Autocorrelation, Heterogeneity, autocorrelation, heterogeneity
from specmodel.evidence.intervals import Estimated, chain, design_effect, normal_quantile, share_design_effect
from specmodel.evidence.sampling import Draws, draws

if TYPE_CHECKING:
    from specmodel.acceptance import Geometric, PerPosition

WHY_NOT_ALPHA = (
    "accepted / drafted is not alpha: tokens drafted behind the first rejection are never tested, and this "
    "share counts "
    "them as misses; alpha is accepted / (accepted + rejected tests)"
)


@dataclass(frozen=True, slots=True)
class TokensPerRound:
    """Mean tokens per round, bonus or correction token included.

    `pooled` weights every round alike and is what throughput follows; `per_request` weights every request
    alike and is what a user feels; they differ because requests that accept little need more rounds. `at_k`
    is 1 + the sum of the survival rates, which differs from `pooled` only where draft lengths were mixed.
    """

    pooled: float | None
    low: float | None = None
    high: float | None = None
    per_request: float | None = None
    per_request_low: float | None = None
    per_request_high: float | None = None
    at_k: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Acceptance from evidence.

    Attributes
    ----------
    rounds : float or None
        Rounds with a draft; None where the source printed rates without their number.
    requests : int or None
    drafted, accepted, tested : float or None
        Tokens. Tested: up to and including the first rejection of each round.
    k, k_min : int or None
        Most and fewest draft tokens per round.
    survival, conditional : tuple, length k
        Rates per position; None at a position that nothing reached.
    survival_interval, conditional_interval : tuple of (low, high)
    by_position : bool
        False: the source printed totals only, and the rates assume one alpha at every position.
    alpha : Estimated
        Maximum likelihood over tested tokens.
    naive : Estimated
        The same with the interval of independent tests (normal), which is too narrow for bursty acceptance.
    lesson : Estimated
        accepted / drafted, which is not alpha: see `lesson_why`.
    interval : str
        How the intervals were made.
    """

    rounds: float | None
    requests: int | None
    drafted: float | None
    accepted: float | None
    tested: float | None
    k: int | None
    k_min: int | None
    survival: tuple[float, ...]
    survival_interval: tuple[tuple[float | None, float | None], ...]
    conditional: tuple[float | None, ...]
    conditional_interval: tuple[tuple[float | None, float | None], ...]
    by_position: bool
    alpha: Estimated
    naive: Estimated
    lesson: Estimated
    tokens_per_round: TokensPerRound
    level: float
    interval: str
    design_effect: float | None
    fit: GeometricFit | None
    heterogeneity: Heterogeneity | None
    autocorrelation: Autocorrelation | None
    convention: str
    labels: Mapping[str, str]
    sources: tuple[str, ...]
    records: int
    lost: int
    dropped: tuple[str, ...]
    warnings: tuple[str, ...]
    draws: Draws | None = field(default=None, repr=False)
    part: Part | None = field(default=None, repr=False)

    @property
    def lesson_why(self) -> str:
        """Why accepted / drafted is not alpha."""
        return WHY_NOT_ALPHA

    @property
    def one_alpha_describes(self) -> bool | None:
        """Whether one alpha describes all positions; None where positions are unknown."""
        return None if self.fit is None else self.fit.adequate

    def acceptance(self) -> PerPosition | Geometric:
        """The law for the rest of specmodel: the measured survival, or one alpha where positions are unknown.

        Raises
        ------
        InputError
            Where nothing was drafted, or k is unknown.
        """
        from specmodel.acceptance import Geometric, PerPosition

        if self.alpha.value is None:
            raise InputError(
                "acceptance", None, "the evidence holds no tested draft token, or does not say k"
            )
        if self.by_position:
            return PerPosition(self.survival)
        return Geometric(self.alpha.value)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything that is shown."""
        return {
            "rounds": self.rounds,
            "requests": self.requests,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tested": self.tested,
            "k": self.k,
            "k_min": self.k_min,
            "survival": list(self.survival),
            "survival_interval": [list(pair) for pair in self.survival_interval],
            "conditional": list(self.conditional),
            "conditional_interval": [list(pair) for pair in self.conditional_interval],
            "by_position": self.by_position,
            "alpha": {**self.alpha.to_dict(), "one_alpha_describes": self.one_alpha_describes},
            "naive": self.naive.to_dict(),
            "lesson": {**self.lesson.to_dict(), "why": self.lesson_why},
            "tokens_per_round": self.tokens_per_round.to_dict(),
            "level": self.level,
            "interval": self.interval,
            "design_effect": self.design_effect,
            "fit": None if self.fit is None else self.fit.to_dict(),
            "heterogeneity": None if self.heterogeneity is None else self.heterogeneity.to_dict(),
            "autocorrelation": None if self.autocorrelation is None else self.autocorrelation.to_dict(),
            "convention": self.convention,
            "labels": dict(self.labels),
            "sources": list(self.sources),
            "records": self.records,
            "lost": self.lost,
            "dropped": list(self.dropped),
            "warnings": list(self.warnings),
        }


def alpha(
    evidence: Evidence, *, level: float = 0.95, resamples: int = 2000, seed: int = 0, describe: bool = True
) -> Estimate:
    """Acceptance rates and tokens per round with intervals.

    Parameters
    ----------
    evidence : Evidence
        From `read`.
    level : float
        Coverage of the intervals.
    resamples : int
        Draws for the bootstrap over requests (or of the posterior, where rounds count as independent).
    seed : int
    describe : bool
        Also fit the differences between requests and the autocorrelation.

    Returns
    -------
    Estimate
        Where nothing was drafted alpha is undefined (None) and tokens per round is 1.

    Raises
    ------
    InputError
        If level or resamples are out of range.
    """
    if not 0.5 <= level < 1.0:
        raise InputError("level", level, "must be from 0.5 to below 1")
    if not 100 <= resamples <= 100_000:
        raise InputError("resamples", resamples, "must be from 100 to 100,000")
    part, left_out = pooled(evidence.parts)
    clusters = part.clusters
    found = draws(part, level, resamples, np.random.default_rng(seed))
    z = normal_quantile(level)
    tested = np.array(part.tested)
    fit = None
    effect = _effect(part)
    if part.by_position:
        fit = geometric_fit(tested, np.array(part.survived), effect or 1.0)
    trials = float(tested.sum()) if part.by_position else None
    naive = (
        _wald(found.alpha.value, trials or _expected_tests(part, found), z)
        if part.counted
        else Estimated(None)
    )
    drafted = part.drafted
    share = part.accepted / drafted if drafted else None
    rates, survival = _rates(part, found)
    estimate = Estimate(
        rounds=part.rounds if part.counted else None,
        requests=_requests(part),
        drafted=drafted if part.counted else None,
        accepted=part.accepted if part.counted else None,
        tested=trials if part.counted else None,
        k=part.k,
        k_min=part.k_min,
        survival=survival,
        survival_interval=found.survival,
        conditional=rates,
        conditional_interval=found.conditional,
        by_position=part.by_position,
        alpha=found.alpha,
        naive=naive,
        lesson=_wald(share, drafted if part.counted else None, z),
        tokens_per_round=TokensPerRound(
            pooled=1.0 + part.accepted / part.rounds if part.rounds else 1.0,
            low=found.tokens[0],
            high=found.tokens[1],
            per_request=found.per_request.value,
            per_request_low=found.per_request.low,
            per_request_high=found.per_request.high,
            at_k=1.0 + math.fsum(survival) if survival or not part.rounds else None,
        ),
        level=level,
        interval=found.how,
        design_effect=effect,
        fit=fit,
        heterogeneity=heterogeneity(clusters) if clusters is not None and describe else None,
        autocorrelation=autocorrelation(clusters) if clusters is not None and describe else None,
        convention=part.convention,
        labels=part.labels,
        sources=evidence.sources,
        records=evidence.records,
        lost=evidence.lost,
        dropped=tuple(map(str, evidence.dropped)),
        warnings=(),
        draws=found,
        part=part,
    )
    return replace(estimate, warnings=(*evidence.warnings, *left_out, *cautions(estimate, part)))


def _rates(part: Part, found: Draws) -> tuple[tuple[float | None, ...], tuple[float, ...]]:
    """Conditional rates and survival: counted, or those of one alpha."""
    if part.by_position:
        conditional, survival = chain(np.array(part.tested), np.array(part.survived))
        return tuple(None if math.isnan(r) else float(r) for r in conditional), tuple(map(float, survival))
    if found.alpha.value is None or part.k is None:
        return (), ()
    a = found.alpha.value
    return (a,) * part.k, tuple(a**i for i in range(1, part.k + 1))


def _requests(part: Part) -> int | None:
    """How many requests there were; an estimate where memory held a share of them only."""
    if part.moments is not None:
        return part.moments.requests
    if part.clusters is None or part.clusters.kind != "requests":
        return None
    return round(len(part.clusters.rounds) / part.clusters.kept)


def _effect(part: Part) -> float | None:
    if part.moments is not None:
        m = part.moments
        return share_design_effect(m.aa, m.at, m.tt, sum(part.survived), sum(part.tested), m.requests)
    return design_effect(part.clusters) if part.clusters is not None else None


def _expected_tests(part: Part, found: Draws) -> float | None:
    """Tested tokens that one alpha implies, where positions are unknown."""
    if found.alpha.value is None or part.k is None:
        return None
    return part.rounds * math.fsum(found.alpha.value**i for i in range(part.k))


def _wald(share: float | None, trials: float | None, z: float) -> Estimated:
    if share is None or not trials:
        return Estimated(share)
    half = z * math.sqrt(share * (1.0 - share) / trials)
    return Estimated(share, max(0.0, share - half), min(1.0, share + half))
