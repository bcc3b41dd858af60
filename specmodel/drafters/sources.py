"""Drafts that need no training on the target: other models, parts of the target, texts, n-grams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from specmodel.acceptance import Geometric
from specmodel.drafters import formulas as draft_formulas
from specmodel.drafters.base import LESSON, ONE_ALPHA, Assumed, Draft
from specmodel.drafters.lookahead import window_positions
from specmodel.units import smaller

if TYPE_CHECKING:
    from specmodel.architecture import Architecture
    from specmodel.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel(Draft):
    """A smaller model of the same vocabulary, with a cache of its own; by default 700M beside a 7B target.

    Given its ``architecture``, weights and cache follow from that; otherwise only ``parameters`` count.
    """

    method: ClassVar[str] = "draft-model"
    ratio: float = 0.1
    parameters: int = 700_000_000
    architecture: Architecture | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a second model with the target's vocabulary",)

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 4) = 2.75.
        source = (
            "MoESD (arXiv:2505.19645) table 1: 2.75 tokens at k 4, Qwen2-0.5B for Qwen2-57B-A14B, MT-Bench"
        )
        return Assumed(Geometric(0.69557), source + ONE_ALPHA)

    def missing(self, target: Architecture) -> str | None:
        if self.architecture is None or self.architecture.vocabulary == target.vocabulary:
            return None
        return f"vocabulary {self.architecture.vocabulary}, the target's is {target.vocabulary}"

    def extra_parameters(self, target: Architecture) -> int:
        return self.parameters if self.architecture is None else self.architecture.parameters

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        return 0.0 * context if self.architecture is None else self.architecture.kv_elements(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSelf(Draft):
    """The target drafts for itself with a small part of its cache (MagicDec: StreamingLLM, SnapKV).

    No other model and no training; the draft pass streams all weights, so it pays where the cache is the
    larger part: long contexts at large batches. ``ratio`` depends on both.
    """

    method: ClassVar[str] = "sparse-self"
    ratio: float = 0.2904
    budget: int = 512

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a context much longer than the budget",)

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 3) = 2.82; the ratio is the draft pass of the same row, batch 32 on 4 H100.
        source = (
            "MagicDec (arXiv:2408.11049) table 1: 2.82 tokens at k 3, Llama-3.1-8B, 32k context, budget 512"
        )
        return Assumed(Geometric(0.77013), source + ONE_ALPHA)

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        return target.kv_elements(smaller(context, self.budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit(Draft):
    """The first layers of the target draft, the rest verify (LayerSkip and kin)."""

    method: ClassVar[str] = "early-exit"
    ratio: float = field(init=False)
    exit_layer: int = 8
    layers: int = 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", draft_formulas.exit_ratio(self.exit_layer, self.layers))

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a target trained to be left early",)

    @property
    def assumed(self) -> Assumed:
        return Assumed(Geometric(0.55), LESSON, illustrative=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(Draft):
    """Prompt lookup: continue as the last n-gram did where it occurred before. One look-up per round.

    ``per_token`` charges one per drafted token instead, as the lesson does. One alpha describes it badly:
    the first position is poor, later ones are good.
    """

    method: ClassVar[str] = "lookup"
    ratio: float = 0.002
    per_token: bool = False

    @property
    def assumed(self) -> Assumed:
        return Assumed(Geometric(0.82), f"{LESSON} (editing code)", illustrative=True)

    def passes(self, k: int) -> int:
        return 0

    def draft_cost(self, k: int) -> float:
        return self.ratio * (k if self.per_token else min(k, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix(Lookup):
    """Suffix decoding: looks up in a tree of all that was written, also for other requests."""

    method: ClassVar[str] = "suffix"

    @property
    def assumed(self) -> Assumed:
        return Assumed(Geometric(0.75), f"{LESSON} (prompt lookup on summaries)", illustrative=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval(Lookup):
    """Candidates from a datastore of texts kept in host memory (REST)."""

    method: ClassVar[str] = "retrieval"
    ratio: float = 0.007

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a datastore of similar texts",)

    @property
    def assumed(self) -> Assumed:
        return Assumed(Geometric(0.5), LESSON, illustrative=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead(Draft):
    """Jacobi windows and a pool of n-grams in the target's own pass: no draft, but a wide verification."""

    method: ClassVar[str] = "lookahead"
    ratio: float = 0.0
    window: int = 15
    ngram: int = 5
    guesses: int = 15

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 4) = 1.64 for n-grams of 5, of which the first token is already certain.
        source = "Spec-Bench leaderboard: 1.64 tokens per pass, Vicuna-7B, greedy"
        return Assumed(Geometric(0.3962), source + ONE_ALPHA)

    @property
    def deepest(self) -> int | None:
        return self.ngram - 1

    def passes(self, k: int) -> int:
        return 0

    def width(self, k: int) -> int:
        return window_positions(self.window, self.ngram, self.guesses) if k else 1
