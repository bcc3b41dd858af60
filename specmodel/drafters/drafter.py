"""A draft method joined to what it runs: which passes it launches in a round of k, and what it keeps in memory.

drafting.py says what a method is; here it is tied to a target and, where it has one, to a draft model or head, so that
its time follows from the same kernels as the target's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from specmodel.architecture import Mtp
from specmodel.drafters import passes as draft_passes
from specmodel.drafters.base import Draft
from specmodel.drafters.combined import Hybrid, Pipelined
from specmodel.drafters.heads import DraftHead
from specmodel.drafters.passes import DraftPass
from specmodel.drafters.sources import DraftModel, EarlyExit, Lookahead, Lookup, SparseSelf
from specmodel.drafters.trained import Medusa, Parallel
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.passes import Split, draft_layout
from specmodel.units import smaller

if TYPE_CHECKING:
    from specmodel.units import Numeric

T = TypeVar("T")

LOOKUP_YIELD = 0.3
"""Share of the tokens copied by a look-up that are accepted, where one was found (fitted: hardware/engines/vllm.toml)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """One method on one target.

    Attributes
    ----------
    method : Draft
        What kind of draft it is: passes, width, exactness, assumed acceptance.
    target : Model
        The model it drafts for.
    artefact : Model, DraftHead, Mtp or None
        The draft model, head or module it runs; None where there is none (look-ups, the target itself).
    tp : int or None
        GPUs of the draft; None lays it out as the target.
    kv_budget : int or None
        Cached tokens per sequence that a draft model with a sparse cache keeps (MagicDec); None keeps all.
    branching : int
        Tokens that every draft pass after the first works on per sequence: 1 in a chain, more in a tree.
    nodes : int or None
        Nodes of the token tree, root not counted; None for a chain.
    hit_share : float or None
        Share of sequences in which a look-up finds something; the others are verified without drafts. None reads it
        off the tokens per round.
    """

    method: Draft
    target: Model
    artefact: Model | DraftHead | Mtp | None = None
    tp: int | None = None
    kv_budget: int | None = None
    branching: int = 1
    nodes: int | None = None
    hit_share: float | None = None

    @property
    def name(self) -> str:
        """The method, and what it runs."""
        named = getattr(self.artefact, "name", None)
        return self.method.method if named is None else f"{self.method.method} ({named})"

    def width(self, k: int) -> int:
        """Positions verified, root included; 1 when nothing is drafted."""
        if k == 0:
            return 1
        return self.method.width(k) if self.nodes is None else self.nodes + 1

    def mean_width(self, k: int, tokens: float) -> float:
        """Positions verified per sequence on average, at so many tokens per round.

        A sequence in which a look-up finds nothing brings its root alone; the fewer tokens a round yields, the more
        such sequences there were.
        """
        if k == 0 or not self.may_miss:
            return self.width(k)
        share = self.hit_share
        if share is None:
            share = min(1.0, max(0.0, tokens - 1.0) / (LOOKUP_YIELD * k))
        return 1.0 + share * (self.method.width(k) - 1)

    @property
    def may_miss(self) -> bool:
        """Whether some sequences of a round bring no draft: chains of look-ups."""
        return self.nodes is None and isinstance(self._basic, Lookup)

    @property
    def branches(self) -> bool:
        """Whether its draft is a tree that is grown and cut anew in every round."""
        return self.branching > 1

    @property
    def _basic(self) -> Draft:
        return self.method.draft if isinstance(self.method, Pipelined) else self.method

    def lookups(self, k: int) -> int:
        """Look-ups per round."""
        return int(k > 0 and isinstance(self._basic, (Lookup, Hybrid)))

    def launches(self, k: int, *, batch: Numeric, context: Numeric, split: Split) -> list[DraftPass]:
        """The draft passes of a round of k, as groups of equal ones.

        batch and context may be arrays. A head's first pass works on all positions just verified, to catch up on what
        was accepted; the later ones on one token per sequence.
        """
        if k == 0:
            return []
        layout = draft_layout(split, self.tp)
        return self._launches(self.method, k, batch, context, layout)

    def _launches(
        self, method: Draft, k: int, batch: Numeric, context: Numeric, split: Split
    ) -> list[DraftPass]:
        if isinstance(method, Pipelined):
            return self._launches(method.draft, k, batch, context, split)
        if isinstance(method, Hybrid):
            missed = 1.0 - method.hit_share
            return [
                replace(one, count=one.count * missed)
                for one in self._launches(method.miss, k, batch, context, split)
            ]
        if isinstance(method, (Lookup, Lookahead)):
            return []
        if isinstance(method, SparseSelf):
            kept = smaller(context, method.budget)
            one = draft_passes.model_pass(
                self.target, batch=batch, context=kept, width=self.branching, split=split
            )
            return [replace(one, count=k)]
        if isinstance(method, EarlyExit):
            one = draft_passes.early_exit_pass(
                self.target, method.exit_layer, batch=batch, context=context, split=split
            )
            return [replace(one, count=k)]
        if isinstance(method, DraftModel):
            model = self._needs(Model, "a draft model")
            kept = context if self.kv_budget is None else smaller(context, self.kv_budget)
            one = draft_passes.model_pass(model, batch=batch, context=kept, width=self.branching, split=split)
            return [replace(one, count=k)]
        if isinstance(self.artefact, Mtp):
            first, later = (
                draft_passes.mtp_pass(
                    self.artefact, self.target, batch=batch, context=context, width=width, split=split
                )
                for width in (k + 1, 1)
            )
            return [first, replace(later, count=k - 1)] if k > 1 else [first]
        return self._head_launches(method, k, batch, context, split)

    def _head_launches(
        self, method: Draft, k: int, batch: Numeric, context: Numeric, split: Split
    ) -> list[DraftPass]:
        if isinstance(method, Parallel) and isinstance(self.artefact, Model):
            # PARD: a draft model reads what was accepted, and k masks, in one pass.
            return [
                draft_passes.model_pass(self.artefact, batch=batch, context=context, width=k + 1, split=split)
            ]
        head = self._needs(DraftHead, "a draft head")

        def one(width: int, predicted: int, fused: bool) -> DraftPass:
            return draft_passes.head_pass(
                head,
                self.target,
                batch=batch,
                context=context,
                width=width,
                predicted=predicted,
                fused=fused,
                split=split,
            )

        if isinstance(method, Medusa):
            return [one(1, 1, False)]
        if isinstance(method, Parallel):
            return [one(k + 1, k, True)]
        first = one(k + 1, 1, True)
        if k == 1:
            return [first]
        later = one(self.branching, self.branching, head.kind == "eagle")
        return [first, replace(later, count=k - 1)]

    def _needs(self, kind: type[T], what: str) -> T:
        if not isinstance(self.artefact, kind):
            raise InputError("draft", self.method.method, f"needs {what}")
        return self.artefact
