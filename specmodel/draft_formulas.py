"""Closed forms about drafts: parameters of heads, bits of what they read, bounds of a pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specmodel import checks
from specmodel.acceptance import tokens_per_round


@dataclass(frozen=True, slots=True)
class Shape:
    """What a draft head takes over from its target: widths and counts, matrices only.

    ``layer_parameters`` is one decoder layer, ``qkv_rows`` the outputs of its q, k and v projections
    together, ``kv_elements_per_layer`` what one token caches in it.
    """

    hidden: int
    layers: int
    vocabulary: int
    layer_parameters: int
    qkv_rows: int
    kv_elements_per_layer: int

    @classmethod
    def square(cls, hidden: int, layers: int, vocabulary: int) -> Shape:
        """The textbook layer: 4 d^2 attention with one KV head per head, 8 d^2 feed-forward."""
        return cls(hidden, layers, vocabulary, textbook_layer_parameters(hidden), 3 * hidden, 2 * hidden)

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that a token adds to the target's own cache."""
        return self.layers * self.kv_elements_per_layer


def textbook_layer_parameters(hidden: int) -> int:
    """12 d^2: a decoder layer without grouped heads or gates."""
    return 12 * checks.whole("hidden", hidden, low=1) ** 2


def eagle_parameters(shape: Shape) -> int:
    """EAGLE and EAGLE-2: one layer and the 2d -> d fusion of token and feature; embedding, head are shared.

    Y. Li et al., arXiv:2401.15077, section 3.2; 14 d^2 for the textbook layer.
    """
    return shape.layer_parameters + 2 * shape.hidden**2


def eagle3_parameters(shape: Shape, *, draft_vocabulary: int = 32_000) -> int:
    """EAGLE-3: 3d -> d fusion, a layer whose q, k and v read 2d, four norms, and a head over fewer tokens.

    Y. Li et al., arXiv:2503.01840, section 3.1; layout as in vLLM's llama_eagle3 loader.
    """
    hidden = shape.hidden
    layer = shape.layer_parameters + hidden * shape.qkv_rows
    return 3 * hidden**2 + layer + 4 * hidden + checks.whole("draft_vocabulary", draft_vocabulary) * hidden


def mtp_parameters(shape: Shape, modules: int) -> int:
    """Multi-token-prediction modules: one layer, a 2d -> d projection and three norms each."""
    one = shape.layer_parameters + 2 * shape.hidden**2 + 3 * shape.hidden
    return checks.whole("modules", modules, low=1) * one


def medusa_parameters(
    hidden: int, heads: int, *, layers: int = 1, vocabulary: int = 0, biases: bool = False
) -> int:
    """Medusa heads: ``layers`` residual d x d blocks each, and a d x V projection unless it is shared.

    T. Cai et al., arXiv:2401.10774, section 2.2.1: published heads carry their own projection, so
    layers (d^2 + d) + d V each. A head that is a bare projection has ``layers=0``.
    """
    checks.whole("hidden", hidden, low=1)
    block = hidden**2 + (hidden if biases else 0)
    each = checks.whole("layers", layers) * block + hidden * checks.whole("vocabulary", vocabulary)
    return checks.whole("heads", heads, low=1) * each


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
