"""How far a speedup may lie from the predicted one: the 10-90 % range that stands beside every answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter

# Verification pass over plain step, predicted against composed measured kernels: 80 % lie within these shares.
RATIO_ERROR_16_BIT, RATIO_ERROR_NARROW = 0.04, 0.08
BORROWED = 1.5  # how much wider where the constants are a sibling's


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What a speedup may be off by.

    Attributes
    ----------
    low, high : float
        Factors on the whole speedup.
    verify : float
        Share by which the verification pass over a plain step may be off either way.
    what : str
        What these were found on.
    """

    what: str
    low: float = 1.0
    high: float = 1.0
    verify: float = 0.0

    def around(self, tokens: float, cost: float, verified: float) -> tuple[float, float]:
        """Low and high of tokens / cost, where `verified` of the cost scales with the verification pass."""
        off = self.verify * verified
        return self.low * tokens / (cost + off), self.high * tokens / (cost - off)

    def words(self) -> str:
        """The phrase for the list of assumptions."""
        return f"80 % range: {self.what}"


def uncertainty(deployment: Deployment | None, drafter: Drafter | None = None) -> Uncertainty | None:
    """What speedups of a deployment may be off by; None where nothing was compared.

    With a draft's own passes or an engine's times, published speedups are what predictions were compared with. With a
    stated draft cost and no engine, only the verification pass is predicted, and that was compared with measured
    kernels. The paper fidelities were not: they leave out what makes kernels slow, and by how much depends on the pass.
    """
    if deployment is None or deployment.timing.fidelity != "calibrated":
        return None
    if drafter is not None or not deployment.engine.is_ideal:
        from specmodel.bands import band_for

        band = band_for(deployment.engine)
        if band is None:
            return None
        what = f"published speedups against predicted ones, {band.kind}, {band.rows} rows of {band.sources} sources"
        return Uncertainty(what, low=band.low, high=band.high)
    precision = getattr(deployment.model, "precision", None)
    narrow = precision is not None and precision.weights.bits < 16.0
    error = RATIO_ERROR_NARROW if narrow else RATIO_ERROR_16_BIT
    if borrowed(deployment):
        error *= BORROWED
    return Uncertainty(
        f"the verification pass within {error:.0%}, the draft cost and the acceptance taken as given",
        verify=error,
    )


def around(
    off: Uncertainty | None, tokens: float, cost: float, verified: float
) -> tuple[float | None, float | None]:
    """`Uncertainty.around`, or nothing where there is none."""
    return (None, None) if off is None else off.around(tokens, cost, verified)


def range_words(off: Uncertainty | None) -> list[str]:
    """What the ranges rest on, for the list of assumptions."""
    return [] if off is None else [off.words()]


def borrowed(deployment: Deployment) -> bool:
    """Whether some kernel of a pass is timed with constants of another device."""
    from specmodel.kernel_times.calibrated import Calibrated
    from specmodel.passes import forward_pass

    timing = deployment.timing
    if not isinstance(timing, Calibrated):
        return False
    kernels = forward_pass(deployment.model, batch=1, context=1024, split=deployment.split)
    return timing.band(kernels).origin == "default"
