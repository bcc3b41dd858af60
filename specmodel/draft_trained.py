"""Drafts trained on one target: EAGLE heads, Medusa heads, multi-token prediction, block drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specmodel import draft_formulas
from specmodel.acceptance import Geometric, PerPosition
from specmodel.draft_base import Assumed, Draft
from specmodel.draft_formulas import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle(Draft):
    """EAGLE: one layer that continues the target's features, drafting a chain."""

    method: ClassVar[str] = "eagle"
    ratio: float = 0.24 / 7.0

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a head trained on this target",)

    @property
    def assumed(self) -> Assumed:
        source = "EAGLE (arXiv:2401.15077) table 2: 0-alpha to 4-alpha of Vicuna-7B, MT-Bench, greedy"
        return Assumed(PerPosition.from_conditional((0.79, 0.74, 0.72, 0.73, 0.67)), source)

    def extra_parameters(self, shape: Shape) -> int:
        return draft_formulas.eagle_parameters(shape)

    def extra_kv_elements(self, shape: Shape, context: int) -> int:
        return shape.kv_elements_per_layer * context


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2(Eagle):
    """EAGLE-2: the same head grows a tree by confidence; k is its depth, ``nodes`` what is verified of it."""

    method: ClassVar[str] = "eagle2"
    nodes: int = 59

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 6) = 4.35: the chain that would yield as much as the tree of depth 6.
        source = "Spec-Bench leaderboard: 4.35 tokens for the default tree of depth 6, Vicuna-7B, greedy"
        return Assumed(Geometric(0.83539), source)

    def width(self, k: int) -> int:
        return self.nodes + 1 if k else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3(Eagle):
    """EAGLE-3: reads features of three layers and has a head over a reduced vocabulary; a chain here."""

    method: ClassVar[str] = "eagle3"
    draft_vocabulary: int = 32_000

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 5) = 3.554.
        source = "SpecForge SpecBundle dashboard: 3.55 tokens at k 5, Llama-3.1-8B-Instruct, MT-Bench, greedy"
        return Assumed(Geometric(0.78395), source)

    def extra_parameters(self, shape: Shape) -> int:
        return draft_formulas.eagle3_parameters(shape, draft_vocabulary=self.draft_vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Medusa(Draft):
    """Extra heads on the target's last hidden state, one per position: no draft pass, a tree to verify.

    ``ratio`` is what the heads add to the pass. Exact with the usual tests, lossy with typical acceptance.
    """

    method: ClassVar[str] = "medusa"
    ratio: float = 0.01
    heads: int = 4
    nodes: int = 63
    own_projection: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        return ("heads trained on this target",)

    @property
    def assumed(self) -> Assumed:
        # Rank masses (0.55, 0.22, 0.12, 0.06) of the lesson, times 0.72783 so that the best tree of 63 nodes
        # and four levels yields 2.58; the survival of that tree by level.
        source = (
            "Hydra repository: 2.58 tokens of Medusa's tree, Vicuna-7B, MT-Bench; by level as in the lesson"
        )
        return Assumed(PerPosition((0.69144, 0.47618, 0.28735, 0.12503)), source)

    @property
    def deepest(self) -> int | None:
        return self.heads

    def passes(self, k: int) -> int:
        return 0

    def width(self, k: int) -> int:
        return self.nodes + 1 if k else 1

    def draft_cost(self, k: int) -> float:
        return self.ratio if k else 0.0

    def extra_parameters(self, shape: Shape) -> int:
        vocabulary = shape.vocabulary if self.own_projection else 0
        return draft_formulas.medusa_parameters(shape.hidden, self.heads, vocabulary=vocabulary, biases=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaTypical(Medusa):
    """Medusa with typical acceptance: accepts more, and no longer emits the target's law."""

    method: ClassVar[str] = "medusa-typical"

    @property
    def exact(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp(Draft):
    """Multi-token-prediction modules that come with the target: one reused for every k, or stacked."""

    method: ClassVar[str] = "mtp"
    ratio: float = 0.05
    modules: int = 1
    stacked: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a checkpoint with MTP modules",)

    @property
    def assumed(self) -> Assumed:
        source = "DeepSeek-V3 report (arXiv:2412.19437) section 5.4.3: 85-90 % of second tokens; the middle"
        return Assumed(PerPosition((0.875,)), source)

    @property
    def deepest(self) -> int | None:
        return self.modules if self.stacked else None

    def extra_parameters(self, shape: Shape) -> int:
        return draft_formulas.mtp_parameters(shape, self.modules)

    def extra_kv_elements(self, shape: Shape, context: int) -> int:
        return self.modules * shape.kv_elements_per_layer * context


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(Draft):
    """All k tokens in one draft pass (DFlash, P-EAGLE, PARD). Acceptance at a position may change with k.

    ``layers`` of the target's kind, embedding and head shared; PARD, a small model of its own, states its
    ``parameters`` instead.
    """

    method: ClassVar[str] = "parallel"
    ratio: float = 0.05
    layers: int = 1
    parameters: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a block drafter trained on this target",)

    @property
    def assumed(self) -> Assumed:
        source = "one public log of 65 rounds: DFlash for Qwen3.6-27B, k 15, vLLM (a small sample)"
        return Assumed(PerPosition((0.6, 0.385, 0.215, 0.108, 0.062)), source)

    def passes(self, k: int) -> int:
        return min(k, 1)

    def extra_parameters(self, shape: Shape) -> int:
        if self.parameters is not None:
            return self.parameters
        return self.layers * shape.layer_parameters + 2 * shape.hidden**2

    def extra_kv_elements(self, shape: Shape, context: int) -> int:
        return self.layers * shape.kv_elements_per_layer * context
