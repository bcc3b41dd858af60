"""Where the model is not to be trusted: reasons to refuse a cell of a plan, or to warn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel.architecture import LinearAttention
from specmodel.drafters.heads import DraftHead
from specmodel.model import Model

if TYPE_CHECKING:
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter

HOST_BOUND = ("transformers",)
# Engines whose kernels for quantised weights take time with every position; how much is known for some devices.
PER_TOKEN_KERNELS = ("llama.cpp",)
# First release that may run an engine's draft passes in a graph, which its engine times are older than.
CAPTURED_DRAFTS = {"vllm": (0, 11, 2)}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason. It holds at contexts above `beyond`; `refuses` says that no number is given there."""

    reason: str
    refuses: bool
    beyond: int = 0

    def applies(self, context: int) -> bool:
        """Whether it holds at this context."""
        return context > self.beyond

    def __str__(self) -> str:
        where = f" beyond context {self.beyond:,}" if self.beyond else ""
        return f"{'refused' if self.refuses else 'mind'}{where}: {self.reason}"


def doubts(
    setting: Deployment, found: Drafter, contexts: Sequence[int], *, measured: bool
) -> tuple[Doubt, ...]:
    """What speaks against trusting an answer for this draft on this deployment.

    Parameters
    ----------
    measured : bool
        Whether the acceptance was given by the person; then a head used past its training length only warns.
    """
    raised = []
    if setting.tp > 1 and setting.device.link_bytes_per_s is None:
        raised.append(
            Doubt(
                f"{setting.device.id} has no fast link on record: tensor parallelism over PCIe is unmeasured here",
                refuses=True,
            )
        )
    if setting.engine.id in HOST_BOUND:
        raised.append(
            Doubt(
                f"{setting.engine.name} launches kernels one by one from Python: its steps are bound by the host, "
                "which this model does not time",
                refuses=True,
            )
        )
    if isinstance(setting.model, Model):
        weights = setting.model.precision.weights
        if (
            setting.engine.id in PER_TOKEN_KERNELS
            and weights.weight_only
            and not _kernels_known(setting, weights.name)
        ):
            raised.append(
                Doubt(
                    f"{setting.engine.name} may verify {weights.name} weights one position at a time on this device, "
                    "which costs a step per position: measure two points and give them to `specmodel calibrate --runs`",
                    refuses=True,
                )
            )
        if any(isinstance(mixer, LinearAttention) for _, mixer in setting.model.architecture.mixers()):
            raised.append(
                Doubt(
                    "linear-attention layers keep a state per speculated position or replay it after a rejection; "
                    "no measured kernel stands behind their verification time",
                    refuses=False,
                )
            )
    trained = found.artefact.max_context if isinstance(found.artefact, DraftHead) else None
    if trained is not None and max(contexts) > trained:
        raised.append(
            Doubt(
                f"the head states {trained:,} positions: published heads lose their acceptance past that"
                + (
                    "; the acceptance given is taken to hold there"
                    if measured
                    else "; none was given for there"
                ),
                refuses=not measured,
                beyond=trained,
            )
        )
    return tuple(raised)


def newer_than_its_times(engine: str, version: str | None) -> str | None:
    """What to mind where a release is newer than the runs that the engine's times were fitted to."""
    first = CAPTURED_DRAFTS.get(engine)
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    if first is None or numbers is None or tuple(int(part or 0) for part in numbers.groups()) < first:
        return None
    return (
        f"engine times are of releases before {'.'.join(map(str, first))}; later ones run drafts in a graph, and small targets "
        f"gain more (EAGLE-3 on Qwen3-1.7B to 8B, one H20: 1.7x measured, 1.25x to 1.5x predicted): --engine {engine}-captured"
    )


def _kernels_known(setting: Deployment, weights: str) -> bool:
    """Whether the time of several positions through such a kernel is known on that device."""
    from specmodel.kernel_times.calibrated import Calibrated
    from specmodel.kernel_times.formulas import GemmConstants

    if not isinstance(setting.timing, Calibrated) or setting.device.sm_count is None:
        return False
    fit = setting.timing.calibration.find(setting.device, "gemm", weights, setting.engine.framework)
    return fit is not None and isinstance(fit.constants, GemmConstants) and fit.constants.vector_rows > 0.0
