"""What is asked about speculation on a deployment: whose acceptance, whose draft time, which depths; checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specmodel import checks, rounds
from specmodel.acceptance import MAX_K
from specmodel.answers.common import (
    DEFAULT_ALPHA,
    DEFAULT_DRAFT_COST,
    charge_words,
    draft_notes,
    draft_warnings,
    joined,
)
from specmodel.answers.ranges import Uncertainty, range_words, uncertainty
from specmodel.errors import InputError
from specmodel.operating_range import operating_range

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter
    from specmodel.operating_range import Range


@dataclass(frozen=True, slots=True)
class Speculating:
    """A deployment, the acceptance, and a draft: by its cost in plain steps, or by its own passes.

    Attributes
    ----------
    said : str
        The phrase for the acceptance, with its source where it was assumed.
    measured : bool
        Whether the acceptance was given rather than assumed.
    k : int or None
        A fixed draft length; None for the best.
    """

    setting: Deployment
    law: Acceptance
    said: str
    measured: bool
    drafter: Drafter | None
    draft_cost: float
    charge: str
    k: int | None
    max_k: int

    @property
    def off(self) -> Uncertainty | None:
        """What its speedups may be off by."""
        return uncertainty(self.setting, self.drafter)

    def batches(self, context: int, *, verify_factor: float = 1.0, gain_factor: float = 1.0) -> Range:
        """In which batches it pays at one context."""
        return operating_range(
            self.setting,
            self.law,
            context=context,
            draft_cost=self.draft_cost,
            charge=self.charge,
            drafter=self.drafter,
            k=self.k,
            max_k=self.max_k,
            verify_factor=verify_factor,
            gain_factor=gain_factor,
        )

    def inputs(self) -> dict[str, object]:
        """For the answer's `inputs`."""
        named = getattr(self.law, "alpha", None)
        return {
            **self.setting.describe(),
            "alpha": named,
            "acceptance": None
            if named is not None
            else list(self.law.survival(self.law.max_k or self.max_k)),
            "draft": None if self.drafter is None else self.drafter.name,
            "draft_cost": self.draft_cost if self.drafter is None else None,
            "charge": self.charge,
            "max_k": self.max_k,
            "fidelity": self.setting.timing.fidelity,
        }

    def assumptions(self) -> list[str]:
        """What was assumed, in phrases."""
        charged = (
            charge_words(self.charge, self.draft_cost)
            if self.drafter is None
            else f"the passes of {self.drafter.name} are charged"
        )
        return [
            self.said,
            charged,
            *draft_notes(self.drafter),
            *self.setting.assumptions,
            *range_words(self.off),
        ]

    def warnings(self, context: int) -> list[str]:
        """What to mind at contexts up to this one."""
        doubts = draft_warnings(self.setting, self.drafter, context, measured=self.measured)
        return [*self.setting.warnings, *doubts]


def speculating(
    setting: Deployment,
    *,
    alpha: float | None,
    acceptance: Sequence[float] | Acceptance | None,
    conditional: bool,
    extend: bool,
    draft_cost: float | None,
    charge: str,
    draft: str | Path | Drafter | None,
    draft_model: str | None,
    draft_tp: int | None,
    k: int | None,
    max_k: int,
) -> Speculating:
    """What a person gave, checked; alpha 0.8 and a draft cost of 0.15 where nothing was given.

    A draft brings the acceptance that is assumed of it, and its own passes: beside those a draft cost or another charge
    is refused.
    """
    drafter = joined(setting, draft, model=draft_model, tp=draft_tp)
    checks.choice("charge", charge, rounds.CHARGES)
    if drafter is None:
        cost = checks.real("draft cost", DEFAULT_DRAFT_COST if draft_cost is None else draft_cost, low=0.0)
    else:
        cost = 0.0
        if draft_cost is not None:
            allowed = f"the passes of {drafter.name} are charged: give one or the other"
            raise InputError("draft cost", draft_cost, allowed)
        if charge != "added":
            raise InputError(
                "charge", charge, f"the passes of {drafter.name} are added: nothing else applies"
            )
    measured = alpha is not None or acceptance is not None
    assumed = None if measured or drafter is None else _assumed(drafter)
    if assumed is None:
        alpha = alpha if measured else DEFAULT_ALPHA
        law = rounds.acceptance_from(alpha, acceptance, conditional=conditional, extend=extend)
        said = law.describe()
    else:
        law, said = assumed
    return Speculating(
        setting=setting,
        law=law,
        said=said,
        measured=measured,
        drafter=drafter,
        draft_cost=cost,
        charge=charge,
        k=None if k is None else checks.whole("k", k, high=MAX_K),
        max_k=checks.whole("max_k", max_k, high=MAX_K),
    )


def _assumed(drafter: Drafter) -> tuple[Acceptance, str] | None:
    """The acceptance that is assumed of a draft, and its source; None where nothing is."""
    try:
        assumed = drafter.method.assumed
    except InputError:
        return None
    return assumed.law, f"{assumed.law.describe()}: {assumed.source}"
