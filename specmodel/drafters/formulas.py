"""Closed forms about drafts: relative costs, bits of what they read, bounds of a pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specmodel import checks
from specmodel.acceptance import tokens_per_round


def weight_ratio(draft_parameters: float, target_parameters: float) -> float:
    """Draft cost of one pass while both are memory-bound at the same precision: weights over weights."""
    checks.real("draft_parameters", draft_parameters, low=0.0)
    return draft_parameters / checks.real("target_parameters", target_parameters, low=0.0, above=True)


def exit_ratio(exit_layer: int, layers: int) -> float:
    """Draft cost of leaving the target after ``exit_layer`` of its layers, head and embedding left out."""
    checks.whole("layers", layers, low=1)
    return checks.whole("exit_layer", exit_layer, high=layers) / layers


def token_bits(vocabulary: int) -> float:
    """Bits in the choice of one token."""
    return math.log2(checks.whole("vocabulary", vocabulary, low=1))


def feature_to_token_bits(hidden: int, vocabulary: int, *, element_bits: int = 16) -> float:
    """Stored bits of a hidden state over those of a token: what EAGLE reads more than a small model does.

    Storage, not information: neighbouring features are far from independent.
    """
    return checks.whole("hidden", hidden, low=1) * element_bits / token_bits(vocabulary)


def raised_tokens(alpha: float, k: int, *gains: float) -> float:
    """Tokens per round of a chain times published improvements, e.g. 0.10 for a tree."""
    raised = float(tokens_per_round(alpha, k))
    for gain in gains:
        raised *= 1.0 + checks.real("gain", gain, low=-1.0)
    return raised


def speedup_per_gb(speedup: float, extra_bytes: float) -> float | None:
    """Speedup over the memory that the method adds, per GB; None where it adds nothing."""
    checks.real("extra_bytes", extra_bytes, low=0.0)
    return speedup / (extra_bytes / 1e9) if extra_bytes > 0.0 else None


@dataclass(frozen=True, slots=True)
class PipelineBounds:
    """Speedup when the next draft is made while this one is verified.

    ``sequential`` overlaps nothing. ``reused`` hides the draft in rounds where every token and the guess of
    the bonus token were right, so that the draft made ahead can be kept. ``perfect`` always hides it.
    """

    sequential: float
    reused: float
    perfect: float


def pipeline_bounds(alpha: float, k: int, draft_cost: float) -> PipelineBounds:
    """Bounds on pipelined drafting with memory-bound verification."""
    tokens = float(tokens_per_round(alpha, k))
    draft = k * checks.real("draft_cost", draft_cost, low=0.0)
    hidden = pipelined_round_cost(draft, kept=alpha ** (k + 1))
    return PipelineBounds(tokens / (1.0 + draft), tokens / hidden, tokens / max(1.0, draft))


def pipelined_round_cost(draft: float, *, kept: float, verify_ratio: float = 1.0) -> float:
    """Round cost when, in a share ``kept`` of rounds, the draft was made during the verification before.

    No more of it can be hidden than that verification takes. All in plain steps.
    """
    return verify_ratio + draft - kept * min(draft, verify_ratio)
