"""Drafts trained on one target: EAGLE heads, Medusa heads, multi-token prediction, block drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specmodel import checks
from specmodel.acceptance import Geometric, PerPosition
from specmodel.drafters import heads as draft_heads
from specmodel.drafters.base import ONE_ALPHA, Assumed, Draft
from specmodel.drafters.heads import DraftHead
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.architecture import Architecture, Mtp
    from specmodel.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle(Draft):
    """EAGLE: one layer that continues the target's features, drafting a chain."""

    method: ClassVar[str] = "eagle"
    ratio: float = 0.24 / 7.0
    head: DraftHead | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a head trained on this target",)

    @property
    def assumed(self) -> Assumed:
        source = "EAGLE (arXiv:2401.15077) table 2: 0-alpha to 4-alpha of Vicuna-7B, MT-Bench, greedy"
        return Assumed(PerPosition.from_conditional((0.79, 0.74, 0.72, 0.73, 0.67)), source)

    def head_for(self, target: Architecture) -> DraftHead:
        """The head given, or one of the target's shape."""
        return self.head or draft_heads.eagle_for(target)

    def extra_parameters(self, target: Architecture) -> int:
        return self.head_for(target).parameters

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        return self.head_for(target).kv_elements(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2(Eagle):
    """EAGLE-2: the same head grows a tree by confidence; k is its depth, ``nodes`` what is verified of it."""

    method: ClassVar[str] = "eagle2"
    nodes: int = 59

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 6) = 4.35: the chain that would yield as much as the tree of depth 6.
        source = "Spec-Bench leaderboard: 4.35 tokens for the default tree of depth 6, Vicuna-7B, greedy"
        return Assumed(Geometric(0.83539), source + ONE_ALPHA)

    def width(self, k: int) -> int:
        return self.nodes + 1 if k else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3(Eagle):
    """EAGLE-3: reads features of three layers and has a head over a reduced vocabulary; a chain here."""

    method: ClassVar[str] = "eagle3"

    @property
    def assumed(self) -> Assumed:
        # E(alpha, 5) = 3.554.
        source = "SpecForge SpecBundle dashboard: 3.55 tokens at k 5, Llama-3.1-8B-Instruct, MT-Bench, greedy"
        return Assumed(Geometric(0.78395), source + ONE_ALPHA)

    def head_for(self, target: Architecture) -> DraftHead:
        return self.head or draft_heads.eagle3_for(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Medusa(Draft):
    """Extra heads on the target's last hidden state, one per position: no draft pass, a tree to verify.

    ``ratio`` is what the heads add to the pass. Exact with the usual tests, lossy with typical acceptance.
    """

    method: ClassVar[str] = "medusa"
    ratio: float = 0.01
    heads: int = 4
    nodes: int = 63

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

    def extra_parameters(self, target: Architecture) -> int:
        heads = checks.whole("heads", self.heads, low=1, high=64)
        return draft_heads.medusa("medusa", target.hidden, target.vocabulary, heads=heads).parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaTypical(Medusa):
    """Medusa with typical acceptance: accepts more, and no longer emits the target's law."""

    method: ClassVar[str] = "medusa-typical"

    @property
    def exact(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpModules(Draft):
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

    def missing(self, target: Architecture) -> str | None:
        if target.mtp is None:
            return f"{target.name} has no MTP modules"
        if self.modules > target.mtp.modules:
            return f"{target.name} has {target.mtp.modules} MTP modules, not {self.modules}"
        return None

    def extra_parameters(self, target: Architecture) -> int:
        return self.modules * self._of(target).parameters

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        mixer = self._of(target).layer.mixer
        if mixer is None:
            return 0.0 * context
        return self.modules * mixer.cache_elements_per_token * mixer.tokens_held(context)

    def _of(self, target: Architecture) -> Mtp:
        reason = self.missing(target)
        if reason is not None or target.mtp is None:
            raise InputError("draft", self.method, str(reason))
        return target.mtp


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(Draft):
    """All k tokens in one draft pass (DFlash, P-EAGLE, PARD). Acceptance at a position may change with k.

    Without a ``head`` it is counted as one layer of the target's shape, as P-EAGLE has.
    """

    method: ClassVar[str] = "parallel"
    ratio: float = 0.05
    head: DraftHead | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return ("a block drafter trained on this target",)

    @property
    def assumed(self) -> Assumed:
        source = "one public log of 65 rounds: DFlash for Qwen3.6-27B, k 15, vLLM (a small sample)"
        return Assumed(PerPosition((0.6, 0.385, 0.215, 0.108, 0.062)), source)

    def passes(self, k: int) -> int:
        return min(k, 1)

    def extra_parameters(self, target: Architecture) -> int:
        return (self.head or draft_heads.eagle_for(target)).parameters

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        return (self.head or draft_heads.eagle_for(target)).kv_elements(context)
