"""What a draft method is: the interface that all of them share.

A method says what a round of k drafts takes (passes one after the other, width verified, extra weights and
cache), whether the target's law survives, what it needs, and which acceptance is assumed when nothing was
measured. ``ratio`` is one of its passes, or look-ups, over a plain target pass at the same batch and context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specmodel import checks, rounds
from specmodel.acceptance import Acceptance, expected_tokens
from specmodel.errors import InputError
from specmodel.rounds import DEFAULT_MAX_K, Depth

if TYPE_CHECKING:
    from specmodel.architecture import Architecture
    from specmodel.units import Numeric

LESSON = "lesson on draft sources, an illustration and not a measurement: measure your own"
ONE_ALPHA = "; as one alpha at every depth"  # measured at one k, extended geometrically


@dataclass(frozen=True, slots=True)
class Assumed:
    """An acceptance taken for want of a measurement, and where it comes from."""

    law: Acceptance
    source: str
    illustrative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What every method offers; on its own a chain of k passes of something that costs ``ratio``.

    Attributes
    ----------
    ratio : float
        One draft pass over one plain target pass, >= 0.
    """

    method: ClassVar[str]
    ratio: float

    def __post_init__(self) -> None:
        checks.real("draft_cost", self.ratio, low=0.0)

    @property
    def assumed(self) -> Assumed:
        """The acceptance used when none is given."""
        raise InputError("acceptance", None, f"must be given: nothing is assumed for {self.method}")

    @property
    def exact(self) -> bool:
        """Whether the emitted law is the target's."""
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        """What must exist before it can run."""
        return ()

    @property
    def deepest(self) -> int | None:
        """The largest k that it can draft; None for any."""
        return None

    def passes(self, k: int) -> int:
        """Draft passes that must run one after the other."""
        return k

    def width(self, k: int) -> int:
        """Positions that the target verifies, root included."""
        return k + 1

    def draft_cost(self, k: int) -> float:
        """Draft time of a whole round, in plain target passes."""
        return self.passes(k) * self.ratio

    def missing(self, target: Architecture) -> str | None:
        """Why this target cannot run it, or None."""
        return None

    def extra_parameters(self, target: Architecture) -> int:
        """Weights that come on top of the target's; its own embedding and head are not counted again."""
        return 0

    def extra_kv_elements(self, target: Architecture, context: Numeric) -> Numeric:
        """Cache elements per sequence on top of the target's own; arrays broadcast."""
        return 0.0 * context

    def extra_bytes(
        self,
        target: Architecture,
        *,
        context: Numeric = 0,
        batch: Numeric = 0,
        weight_bytes: float = 2.0,
        kv_bytes: float = 2.0,
    ) -> Numeric:
        """Memory that it adds, at so many bytes per weight and per cached element; arrays broadcast. [B]"""
        cache = batch * self.extra_kv_elements(target, context)
        return self.extra_parameters(target) * weight_bytes + cache * kv_bytes

    def tokens_per_round(self, k: int, law: Acceptance | None = None) -> float:
        """Expected tokens per round; with a tree, ``law`` is survival by depth of what was accepted."""
        return expected_tokens(self.assumed.law if law is None else law, k)

    def round_cost(self, k: int, law: Acceptance | None = None, *, verify_ratio: float = 1.0) -> float:
        """Round time over plain step time; ``verify_ratio`` is the verification pass over a plain one."""
        each = self.draft_cost(k) / k if k else 0.0
        return float(rounds.round_cost(k, draft_cost=each, verify_ratio=verify_ratio))

    def depths(
        self,
        law: Acceptance | None = None,
        *,
        max_k: int = DEFAULT_MAX_K,
        verify_ratio: Callable[[int], float] = lambda width: 1.0,
    ) -> list[Depth]:
        """Every k from 0 to the last that method and acceptance speak for.

        ``verify_ratio`` gives the verification pass over a plain pass for a width, 1 while memory-bound.
        """
        rows = []
        for k in range(self.last_k(law, max_k) + 1):
            tokens = self.tokens_per_round(k, law)
            cost = self.round_cost(k, law, verify_ratio=verify_ratio(self.width(k)))
            rows.append(Depth(k, tokens, cost, tokens / cost))
        return rows

    def last_k(self, law: Acceptance | None, max_k: int) -> int:
        """The largest k to consider: of the method, of the acceptance, of the caller."""
        known = (self.assumed.law if law is None else law).max_k
        bounds = [checks.whole("max_k", max_k), self.deepest, known]
        return min(bound for bound in bounds if bound is not None)
