"""What several answers say in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specmodel import checks

if TYPE_CHECKING:
    from specmodel.deployment import Deployment

DEFAULT_ALPHA = 0.8
DEFAULT_DRAFT_COST = 0.15


def verify_ratios(deployment: Deployment, batch: int, context: int, max_k: int) -> list[float]:
    import numpy as np

    from specmodel.deployment import MAX_BATCH, MAX_CONTEXT

    checks.whole("batch", batch, low=1, high=MAX_BATCH)
    checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    widths = np.arange(1, max_k + 2)
    times = np.asarray(deployment.verify_seconds(batch, context, widths)) * np.ones(widths.size)
    return [float(ratio) for ratio in times / float(deployment.plain_seconds(batch, context))]


def charge_words(charge: str, cost: float) -> str:
    return {
        "none": "the draft's time is not charged",
        "scaled": f"draft time stretches the verification pass: x (1 + {cost:g} k)",
        "added": f"each draft pass adds {cost:g} of a plain step",
    }[charge]


def trust(deployment: Deployment | None) -> str:
    if deployment is None:
        return "exact arithmetic on the inputs given; no kernel or engine time is modelled"
    return {
        "textbook": "a lower bound on time: real decode kernels are 25-90 % slower than a datasheet roofline",
        "datasheet": "a lower bound on time: real decode kernels are 25-90 % slower than a datasheet roofline",
        "calibrated": "calibrated on measured kernels",
    }[deployment.timing.fidelity]
