"""Draws of the rates, by a bootstrap over requests or from independent tests, and their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specmodel.evidence.counts import Array, Clusters, Part
from specmodel.evidence.geometric import alphas_from_tokens_per_round, round_variance
from specmodel.evidence.intervals import (
    Estimated,
    chain,
    grouped,
    normal_quantile,
    percentiles,
    ratio_variance,
    resampled,
    share_design_effect,
    wilson,
)

Pair = tuple[float | None, float | None]
NOTHING: Pair = (None, None)
FEWEST = {"requests": 3, "blocks": 20}  # rows needed for a bootstrap; 5 for logging intervals


@dataclass(frozen=True, slots=True)
class Draws:
    """Intervals of every rate, and draws of the survival rates for what is computed from them.

    `rates` has shape (draws, k): survival a_1 ... a_k of each draw; None where there is no interval.
    """

    how: str
    alpha: Estimated
    survival: tuple[Pair, ...]
    conditional: tuple[Pair, ...]
    tokens: Pair
    per_request: Estimated
    rates: Array | None = None


def draws(part: Part, level: float, resamples: int, rng: np.random.Generator) -> Draws:
    """Intervals for a part, by the best means that it allows.

    Over requests (or logging intervals, or blocks of consecutive rounds) a bootstrap, never narrower than the
    interval of independent tests; else the latter, which is Wilson's.
    """
    if not part.rounds:
        return Draws("none: nothing was drafted", Estimated(None), (), (), NOTHING, Estimated(None))
    rows = len(part.clusters.rounds) if part.clusters is not None else 0
    enough = part.clusters is not None and rows >= FEWEST.get(part.clusters.kind, 5)
    if part.by_position:
        alone = _independent(part, level, resamples, rng)
        if part.moments is not None:
            return alone
        if enough and part.clusters is not None and part.clusters.tested is not None:
            return _joined(_over_rows(part, part.clusters, level, resamples, rng), alone)
        return alone
    return _from_means(part, part.clusters if enough else None, level, resamples, rng)


def _over_rows(
    part: Part, clusters: Clusters, level: float, resamples: int, rng: np.random.Generator
) -> Draws:
    tested, survived = clusters.tested, clusters.survived
    assert tested is not None  # the caller looked
    assert survived is not None
    k = tested.shape[1]
    own = 1.0 + clusters.accepted / clusters.rounds
    columns = [np.ones(own.size), own, clusters.rounds, clusters.accepted, tested, survived]
    table = grouped(np.column_stack(columns), rng)
    sums = resampled(table, resamples, rng)
    n, a, t, s = sums[:, 2], sums[:, 3], sums[:, 4 : 4 + k], sums[:, 4 + k :]
    conditional, survival = chain(t, s)
    rows = len(table)

    kept = clusters.kept
    rates, chained = chain(np.array(part.tested), np.array(part.survived))

    def interval(values: Array, value: float) -> Pair:
        low, high = percentiles(values, level, rows, kept, value)
        return max(0.0, low), min(1.0, high)

    with np.errstate(invalid="ignore", divide="ignore"):
        alphas, means = s.sum(axis=1) / t.sum(axis=1), 1.0 + a / n
    value = sum(part.survived) / sum(part.tested)
    low, high = interval(alphas, value)
    tokens = percentiles(means, level, rows, kept, 1.0 + part.accepted / part.rounds)
    single = Estimated(None)
    if clusters.kind == "requests":
        low_own, high_own = percentiles(sums[:, 1] / sums[:, 0], level, rows)
        single = Estimated(float(own.mean()), max(1.0, low_own), high_own)
    return Draws(
        how=f"bootstrap over {len(clusters.rounds):,} {clusters.kind}, never narrower than independent tests",
        alpha=Estimated(value, low, high),
        survival=tuple(interval(survival[:, i], float(chained[i])) for i in range(k)),
        conditional=tuple(interval(conditional[:, i], float(rates[i])) for i in range(k)),
        tokens=tokens,
        per_request=single,
        rates=survival,
    )


def _mean_of_requests(clusters: Clusters | None) -> Estimated:
    """Mean over requests of their own tokens per round, without an interval."""
    if clusters is None or clusters.kind != "requests":
        return Estimated(None)
    return Estimated(float((1.0 + clusters.accepted / clusters.rounds).mean()))


def _independent(part: Part, level: float, resamples: int, rng: np.random.Generator) -> Draws:
    """Every tested token an independent trial; fewer trials where sums over requests are known."""
    tested, survived = np.array(part.tested), np.array(part.survived)
    z = normal_quantile(level)
    effect, effects, mean_error = 1.0, np.ones(tested.size), None
    if part.moments is not None:
        m = part.moments
        total = share_design_effect(m.aa, m.at, m.tt, survived.sum(), tested.sum(), m.requests)
        effect = max(total or 1.0, 1.0)
        own = [
            share_design_effect(ss, sn, m.nn, s, part.rounds, m.requests) or 1.0
            for ss, sn, s in zip(m.ss, m.sn, survived, strict=False)
        ]
        effects = np.maximum(np.array(own + [1.0] * (tested.size - len(own))), 1.0)
        mean_error = math.sqrt(ratio_variance(m.aa, m.an, m.nn, part.accepted, part.rounds, m.requests))
    if not part.counted:
        return Draws(
            "none: the number of rounds is not known",
            Estimated(float(survived.sum() / tested.sum()) if tested.sum() else None),
            (NOTHING,) * tested.size,
            (NOTHING,) * tested.size,
            NOTHING,
            Estimated(None),
        )
    seen = tested > 0.0
    a, b = survived / effect + 0.5, (tested - survived) / effect + 0.5  # Jeffreys' posterior
    conditional = np.where(seen, rng.beta(a, b, size=(resamples, tested.size)), 0.0)
    rates: Array = np.cumprod(conditional, axis=1).astype(np.float64)
    low, high = wilson(survived.sum() / effect, tested.sum() / effect, z)
    constant = part.k_min == part.k
    tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    survival: list[Pair] = []
    for index in range(tested.size):
        if constant:
            n = part.rounds / effects[index]
            survival.append(wilson(survived[index] / effects[index], n, z))
        else:
            bounds = np.quantile(rates[:, index], tails)
            survival.append((float(bounds[0]), float(bounds[1])))
    pooled = 1.0 + part.accepted / part.rounds
    spread = np.quantile(1.0 + rates.sum(axis=1), tails) - (1.0 + rates.sum(axis=1).mean())
    tokens: Pair = (max(1.0, pooled + float(spread[0])), pooled + float(spread[1]))
    if mean_error is not None and math.isfinite(mean_error):
        tokens = (max(1.0, pooled - z * mean_error), pooled + z * mean_error)
    how = "independent tests (Wilson)"
    if part.moments is not None:
        how = f"linearised over {part.moments.requests:,} requests, never narrower than independent tests"
    single = _mean_of_requests(part.clusters)
    return Draws(
        how=how,
        alpha=Estimated(float(survived.sum() / tested.sum()), low, high),
        survival=tuple(survival),
        conditional=tuple(
            wilson(s / effect, t / effect, z) if t > 0 else NOTHING
            for s, t in zip(survived, tested, strict=True)
        ),
        tokens=tokens,
        per_request=single,
        rates=rates,
    )


def _from_means(
    part: Part, clusters: Clusters | None, level: float, resamples: int, rng: np.random.Generator
) -> Draws:
    """Totals only: alpha from the mean length, every rate from alpha."""
    mean = 1.0 + part.accepted / part.rounds
    z = normal_quantile(level)
    means: Array | None = None
    rows = 0
    tokens: Pair = NOTHING
    how = "none: the number of rounds is not known"
    k = part.drafted / part.rounds if part.drafted is not None else None
    if clusters is not None:
        table = grouped(np.column_stack([clusters.rounds, clusters.accepted]), rng)
        sums, rows = resampled(table, resamples, rng), len(table)
        means = 1.0 + sums[:, 1] / sums[:, 0]
        tokens = percentiles(means, level, rows, clusters.kept, mean)
        how = f"bootstrap over {len(clusters.rounds):,} {clusters.kind}"
    elif part.counted and k and part.k:
        alpha = float(alphas_from_tokens_per_round(np.array([min(mean, k + 1.0)]), k)[0])
        survival: Array = alpha ** np.arange(1.0, part.k + 1.0, dtype=np.float64)
        error = math.sqrt(max(round_variance(survival), 1.0 / part.rounds) / part.rounds)
        means = np.clip(rng.normal(mean, error, resamples), 1.0, k + 1.0)
        tokens = (max(1.0, mean - z * error), min(k + 1.0, mean + z * error))
        how = "independent rounds of one alpha (normal)"
    single = _mean_of_requests(clusters)
    if not k or part.k is None:
        return Draws(how, Estimated(None), (), (), tokens, single)
    value = float(alphas_from_tokens_per_round(np.array([min(mean, k + 1.0)]), k)[0])
    if means is None or tokens[0] is None or tokens[1] is None:
        return Draws(how, Estimated(value), (NOTHING,) * part.k, (NOTHING,) * part.k, tokens, single)
    ends = alphas_from_tokens_per_round(np.clip(np.array([tokens[0], tokens[1]]), 1.0, k + 1.0), k)
    low, high = float(ends[0]), float(ends[1])
    alphas = alphas_from_tokens_per_round(np.clip(means, 1.0, k + 1.0), k)
    return Draws(
        how=how,
        alpha=Estimated(value, low, high),
        survival=tuple((low**i, high**i) for i in range(1, part.k + 1)),
        conditional=((low, high),) * part.k,
        tokens=tokens,
        per_request=single,
        rates=alphas[:, None] ** np.arange(1, part.k + 1),
    )


def _joined(first: Draws, alone: Draws) -> Draws:
    """The wider of both ends."""

    def wider(a: Pair, b: Pair) -> Pair:
        lows = [x for x in (a[0], b[0]) if x is not None]
        highs = [x for x in (a[1], b[1]) if x is not None]
        return (min(lows) if lows else None, max(highs) if highs else None)

    low, high = wider((first.alpha.low, first.alpha.high), (alone.alpha.low, alone.alpha.high))
    return Draws(
        how=first.how,
        alpha=Estimated(first.alpha.value, low, high),
        survival=tuple(map(wider, first.survival, alone.survival)),
        conditional=tuple(map(wider, first.conditional, alone.conditional)),
        tokens=wider(first.tokens, alone.tokens),
        per_request=first.per_request,
        rates=first.rates,
    )
