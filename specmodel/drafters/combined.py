"""Drafts made of drafts: a look-up with a model behind it, and drafting while the target verifies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from specmodel import checks
from specmodel.acceptance import Acceptance
from specmodel.drafters.base import Assumed, Draft
from specmodel.drafters.formulas import pipelined_round_cost
from specmodel.drafters.sources import DraftModel, Lookup

if TYPE_CHECKING:
    from specmodel.architecture import Architecture
    from specmodel.units import Numeric


@dataclass(frozen=True, slots=True)
class Mixture:
    """Rounds of two kinds: survival is the mean of theirs, weighted by the share of rounds."""

    share: float
    first: Acceptance
    second: Acceptance

    @property
    def max_k(self) -> int | None:
        bounds = [bound for bound in (self.first.max_k, self.second.max_k) if bound is not None]
        return min(bounds, default=None)

    def survival(self, k: int) -> tuple[float, ...]:
        """Share of all rounds that accept at least 1, 2, ..., k drafts."""
        pairs = zip(self.first.survival(k), self.second.survival(k), strict=True)
        return tuple(self.share * one + (1.0 - self.share) * other for one, other in pairs)

    def describe(self) -> str:
        return f"{self.share:.0%} of rounds: {self.first.describe()}; else {self.second.describe()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Draft):
    """A look-up where it hits, a model where it does not, chosen anew in every round.

    ``hit_share`` is a share of rounds, not of tokens. With ``charge_failed`` a miss pays for both. Tokens and
    costs are averaged apart and then divided: the mean of two speedups is not the speedup.
    """

    method: ClassVar[str] = "hybrid"
    ratio: float = field(init=False)
    hit: Draft = field(default_factory=Lookup)
    miss: Draft = field(default_factory=DraftModel)
    hit_share: float = 0.3
    charge_failed: bool = True

    def __post_init__(self) -> None:
        checks.real("hit_share", self.hit_share, low=0.0, high=1.0)
        object.__setattr__(self, "ratio", self.draft_cost(1))

    @property
    def exact(self) -> bool:
        return self.hit.exact and self.miss.exact

    @property
    def needs(self) -> tuple[str, ...]:
        return self.hit.needs + self.miss.needs

    @property
    def assumed(self) -> Assumed:
        hit, miss = self.hit.assumed, self.miss.assumed
        source = f"hit: {hit.source}; miss: {miss.source}; share of hits assumed"
        return Assumed(Mixture(self.hit_share, hit.law, miss.law), source, illustrative=True)

    @property
    def deepest(self) -> int | None:
        bounds = [bound for bound in (self.hit.deepest, self.miss.deepest) if bound is not None]
        return min(bounds, default=None)

    def passes(self, k: int) -> int:
        return self.miss.passes(k)

    def width(self, k: int) -> int:
        return max(self.hit.width(k), self.miss.width(k))

    def draft_cost(self, k: int) -> float:
        failed = self.hit.draft_cost(k) if self.charge_failed else 0.0
        on_miss = self.miss.draft_cost(k) + failed
        return self.hit_share * self.hit.draft_cost(k) + (1.0 - self.hit_share) * on_miss

    def missing(self, target: Architecture) -> str | None:
        return self.hit.missing(target) or self.miss.missing(target)

    def extra_parameters(self, target: Architecture) -> int:
        return self.hit.extra_parameters(target) + self.miss.extra_parameters(target)

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        return self.hit.extra_kv_elements(target, context) + self.miss.extra_kv_elements(target, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelined(Draft):
    """Drafting the next round while this one is verified, on devices of its own.

    ``reused`` hides the draft only in rounds where everything was right; ``perfect`` always, a bound that
    branching drafts approach (`specmodel.drafters.formulas.pipeline_bounds`).
    """

    method: ClassVar[str] = "pipelined"
    ratio: float = field(init=False)
    draft: Draft = field(default_factory=DraftModel)
    overlap: Literal["reused", "perfect"] = "reused"

    def __post_init__(self) -> None:
        checks.choice("overlap", self.overlap, ("reused", "perfect"))
        object.__setattr__(self, "ratio", self.draft.ratio)

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.draft.needs, "a second device for the draft")

    @property
    def exact(self) -> bool:
        return self.draft.exact

    @property
    def assumed(self) -> Assumed:
        return self.draft.assumed

    @property
    def deepest(self) -> int | None:
        return self.draft.deepest

    def passes(self, k: int) -> int:
        return self.draft.passes(k)

    def width(self, k: int) -> int:
        return self.draft.width(k)

    def draft_cost(self, k: int) -> float:
        return self.draft.draft_cost(k)

    def last_k(self, law: Acceptance | None, max_k: int) -> int:
        last = self.draft.last_k(law, max_k)
        known = (self.assumed.law if law is None else law).max_k
        # Keeping the draft needs the chance of one token more than the round drafts.
        return last if self.overlap == "perfect" or known is None else min(last, known - 1)

    def round_cost(self, k: int, law: Acceptance | None = None, *, verify_ratio: float = 1.0) -> float:
        if k == 0:
            return 1.0
        if self.overlap == "perfect":
            return max(verify_ratio, self.draft_cost(k))
        kept = (self.assumed.law if law is None else law).survival(k + 1)[-1]
        return pipelined_round_cost(self.draft_cost(k), kept=kept, verify_ratio=verify_ratio)

    def missing(self, target: Architecture) -> str | None:
        return self.draft.missing(target)

    def extra_parameters(self, target: Architecture) -> int:
        return self.draft.extra_parameters(target)

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        return self.draft.extra_kv_elements(target, context)
