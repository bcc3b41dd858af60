"""Engine time: what a serving loop adds to the kernels of a pass.

A pass on a real engine is longer than its kernels: launching, scheduling, sampling, copying token ids. Published
speedups show that it must be counted: without it even calibrated passes promise about 20 % too much.

Two kinds of time. Some is added to the kernels whatever they take. Some is a floor: a pass whose kernels are launched
one by one from the host is never shorter than its launches, and hides them where its kernels take longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import checks

if TYPE_CHECKING:
    from specmodel.units import Numeric

TIMES = (
    "target_pass_s",
    "target_layer_s",
    "gpu_pass_s",
    "draft_pass_s",
    "draft_launch_s",
    "draft_layer_s",
    "lookup_s",
    "round_s",
    "tree_s",
    "sequence_s",
    "position_s",
)


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Fixed times of one engine and launch style.

    Attributes
    ----------
    target_pass_s : float
        Added to every pass of the target, plain or verifying. [s]
    target_layer_s : float
        Launching one layer of the target from the host; 0 where passes are captured in CUDA graphs. A floor. [s]
    gpu_pass_s : float
        Added to every target pass for each GPU beyond the first, under tensor parallelism. [s]
    draft_pass_s : float
        Added to every draft pass that runs after another. [s]
    draft_launch_s, draft_layer_s : float
        Launching one draft pass from the host, and each of its layers. A floor. [s]
    lookup_s : float
        One look-up for a whole batch (n-gram, suffix, datastore), once per round. [s]
    round_s : float
        Added once per speculative round: acceptance test, bookkeeping, preparing the draft. [s]
    tree_s : float
        Added once per round in which the draft branches: choosing nodes, the mask, moving the accepted path. [s]
    sequence_s : float
        Per sequence in the round. [s]
    position_s : float
        Per position verified in the batch beyond the first of each sequence: sampling over wide logits. [s]
    kv_reread : float
        Times the attention kernel reads the cache in a verification pass.
    framework : str
        Whose kernels it runs (vllm, sglang, trtllm), or whose all-reduces (nccl); empty takes constants pooled over
        all.
    """

    id: str
    name: str
    target_pass_s: float = 0.0
    target_layer_s: float = 0.0
    gpu_pass_s: float = 0.0
    draft_pass_s: float = 0.0
    draft_launch_s: float = 0.0
    draft_layer_s: float = 0.0
    lookup_s: float = 0.0
    round_s: float = 0.0
    tree_s: float = 0.0
    sequence_s: float = 0.0
    position_s: float = 0.0
    kv_reread: float = 1.0
    framework: str = ""
    versions: str = ""
    date: str = ""
    evidence: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for field in TIMES:
            checks.real(field, getattr(self, field), low=0.0, high=10.0)
        checks.real("kv_reread", self.kv_reread, low=1.0, high=1e4)

    @property
    def is_ideal(self) -> bool:
        """Whether it charges nothing."""
        return self.kv_reread == 1.0 and not any(getattr(self, field) for field in TIMES)

    def target_seconds(self, kernels_s: Numeric, *, layers: Numeric, gpus: Numeric) -> Numeric:
        """One pass of the target whose kernels take `kernels_s`; arrays broadcast. [s]"""
        floored = _at_least(kernels_s, self.target_layer_s * layers) if self.target_layer_s else kernels_s
        return floored + (self.target_pass_s + self.gpu_pass_s * (gpus - 1))

    def round_seconds(self, batch: Numeric, width: Numeric) -> Numeric:
        """What a round of `width` positions per sequence costs beside its passes; arrays broadcast. [s]"""
        return self.round_s + (self.sequence_s + self.position_s * (width - 1.0)) * batch

    def draft_seconds(self, kernels_s: Numeric, *, layers: Numeric) -> Numeric:
        """One draft pass whose kernels take `kernels_s`; arrays broadcast. [s]"""
        launches = self.draft_launch_s + self.draft_layer_s * layers
        floored = _at_least(kernels_s, launches) if self.draft_launch_s or self.draft_layer_s else kernels_s
        return floored + self.draft_pass_s


IDEAL = EngineTime("ideal", "no engine time", evidence="none: kernels only, an upper bound on the gain")


def _at_least(value: Numeric, limit: Numeric) -> Numeric:
    """max(value, limit), elementwise where the value is an array."""
    if isinstance(value, (int, float)) and isinstance(limit, (int, float)):
        return max(value, limit)
    import numpy as np

    return np.maximum(value, limit)
