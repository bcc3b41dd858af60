"""What several answers ask for and say in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specmodel import checks
from specmodel.answers.ranges import borrowed
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter

DEFAULT_ALPHA = 0.8
DEFAULT_DRAFT_COST = 0.15


def the_deployment(given: Deployment | None) -> Deployment:
    """The deployment asked about; Llama-3.1-8B in bf16 on one H100 SXM where none is given."""
    from specmodel.deployment import Deployment, deploy

    if given is None:
        return deploy()
    if not isinstance(given, Deployment):
        raise InputError("deployment", given, "must be what specmodel.deploy(...) returns")
    return given


def verify_ratios(deployment: Deployment, batch: int, context: int, max_k: int) -> list[float]:
    """Verification pass of k = 0 ... max_k over a plain step."""
    import numpy as np

    checks.whole("batch", batch, low=1, high=checks.MAX_BATCH)
    checks.whole("ctx", context, low=1, high=checks.MAX_CONTEXT)
    widths = np.arange(1, max_k + 2)
    times = np.asarray(deployment.verify_seconds(batch, context, widths)) * np.ones(widths.size)
    return [float(ratio) for ratio in times / float(deployment.plain_seconds(batch, context))]


def joined(
    deployment: Deployment,
    draft: str | Path | Drafter | None,
    *,
    model: str | None = None,
    tp: int | None = None,
) -> Drafter | None:
    """The draft of that name on this target; None where none is named, and what needs one is refused.

    Raises
    ------
    InputError
        For an unknown draft, one that this target cannot run, or a target given as totals.
    """
    if draft is None:
        for field, value in (("draft model", model), ("draft tp", tp)):
            if value is not None:
                raise InputError(field, value, "changes nothing without a draft")
        return None
    from specmodel.drafters.drafter import Drafter
    from specmodel.drafters.names import drafter
    from specmodel.model import Model

    if isinstance(draft, Drafter):
        return draft
    if not isinstance(draft, (str, Path)):
        raise InputError("draft", draft, "must be a name, a path or a Drafter")

    if not isinstance(deployment.model, Model):
        raise InputError("draft", draft, f"{deployment.name} is given as totals: name an architecture")
    found = drafter(draft, deployment.model, tp=tp, model=model)
    missing = found.method.missing(deployment.model.architecture)
    if missing is not None:
        raise InputError("draft", draft, f"cannot draft for {deployment.name}: {missing}")
    return found


def draft_notes(drafter: Drafter | None) -> list[str]:
    """What was assumed of a draft's shape, for the list of assumptions; not what is merely told about it."""
    if drafter is None:
        return []
    notes = getattr(drafter.artefact, "notes", ())
    return [f"{drafter.name}: {note}" for note in notes if note.startswith(("family rule", "unverified"))]


def draft_warnings(
    deployment: Deployment, drafter: Drafter | None, context: int, *, measured: bool = True
) -> list[str]:
    """Where a draft on this deployment is not to be trusted."""
    if drafter is None:
        return []
    from specmodel.planning.doubts import doubts

    raised = doubts(deployment, drafter, [context], measured=measured)
    return [f"{drafter.name}: {doubt.reason}" for doubt in raised if doubt.applies(context)]


def charge_words(charge: str, cost: float) -> str:
    """How a draft cost enters."""
    return {
        "none": "the draft's time is not charged",
        "scaled": f"draft time stretches the verification pass: x (1 + {cost:g} k)",
        "added": f"each draft pass adds {cost:g} of a plain step",
    }[charge]


def trust(deployment: Deployment | None) -> str:
    """How far to trust an answer, in one phrase."""
    if deployment is None:
        return "exact arithmetic on the inputs given; no kernel or engine time is modelled"
    if deployment.timing.fidelity != "calibrated":
        return "a lower bound on time: real decode kernels are 25-90 % slower than a datasheet roofline"
    if borrowed(deployment):
        return (
            f"constants of related devices stand in for {deployment.device.id}, at its own datasheet rates: "
            "the ranges are half as wide again"
        )
    return "calibrated on measured kernels"
