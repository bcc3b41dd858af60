"""What a reader of an estimate should know before using it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specmodel.evidence.counts import Part
    from specmodel.evidence.estimate import Estimate

FEW_REQUESTS = 10
FEW_TESTS = 30
LOOKUP_METHODS = ("ngram", "n-gram", "suffix", "lookup", "ngram_gpu", "sa")


def cautions(estimate: Estimate, part: Part) -> list[str]:
    """Warnings of one estimate, the most consequential first."""
    found: list[str] = []
    if not part.rounds:
        return ["nothing was drafted: alpha is undefined, tokens per round is 1"]
    if estimate.alpha.value is None:
        found.append("the source does not say how many tokens were drafted per round: alpha needs k")
    method = estimate.labels.get("method", "").casefold()
    looked_up = any(method == name or method.startswith(f"{name}-") for name in LOOKUP_METHODS)
    fit = estimate.fit
    if (fit is not None and fit.first_is_poor) or looked_up:
        found.append(
            "not described by one alpha: the first position is poor and later ones good, as n-gram and "
            "suffix drafts are; "
            "use the survival rates"
        )
    elif fit is not None and not fit.adequate:
        found.append(
            f"one alpha fits badly: a conditional rate is {fit.largest_gap:.2f} away from it; use the "
            "survival rates"
        )
    if not part.by_position and estimate.alpha.value is not None:
        found.append(
            "no rates per position in the source: alpha is solved from the mean length, as if all were equal"
        )
    if not part.counted:
        found.append("the number of rounds is not known")
    if part.k is not None and part.k_min is not None and part.k_min < part.k:
        found.append(
            f"draft lengths from {part.k_min} to {part.k} were mixed: each position uses the rounds that "
            "drafted that far"
            if part.by_position
            else f"draft lengths from {part.k_min} to {part.k} were mixed: alpha is that of the mean length"
        )
    if "; " in part.convention:
        found.append(
            "sources of different forms were added up: if they describe the same run, read one of them"
        )
    found += _about_requests(estimate, part)
    if part.by_position and part.counted:
        thin = [i for i, tests in enumerate(part.tested, start=1) if tests < FEW_TESTS]
        if thin:
            found.append(f"position {thin[0]} and beyond rest on fewer than {FEW_TESTS} tests")
    return found


def _about_requests(estimate: Estimate, part: Part) -> list[str]:
    found: list[str] = []
    clusters = part.clusters
    if part.moments is None and (clusters is None or clusters.kind == "blocks" or len(clusters.rounds) < 3):
        if part.counted:
            found.append(
                "requests are not known (or only one or two): acceptance comes in bursts, so the interval "
                "is too narrow "
                "if requests differ"
            )
    elif clusters is not None and len(clusters.rounds) < FEW_REQUESTS:
        found.append(f"{len(clusters.rounds)} {clusters.kind} only: the interval is rough")
    if clusters is not None and clusters.kept < 1.0:
        found.append(f"the interval rests on {clusters.kept:.2%} of the requests; the rates on all of them")
    tokens = estimate.tokens_per_round
    if tokens.per_request is not None and tokens.pooled is not None:
        gap = tokens.per_request / tokens.pooled - 1.0
        if abs(gap) > 0.02:
            found.append(
                f"tokens per round is {tokens.pooled:.3f} over rounds, {tokens.per_request:.3f} as a mean "
                "over requests: "
                "throughput follows the first"
            )
    return found
