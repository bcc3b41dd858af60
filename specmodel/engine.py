"""Engine time: what a serving loop adds to the kernels of a pass.

A pass on a real engine is longer than its kernels: launching, scheduling, sampling, copying token ids. Published
speedups show that it must be counted: without it even calibrated passes promise about 20 % too much.
"""

from __future__ import annotations

from dataclasses import dataclass

from specmodel import checks

TIMES = (
    "target_pass_s",
    "draft_pass_s",
    "lookup_s",
    "round_s",
    "sequence_s",
    "position_s",
    "gpu_pass_s",
)


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Fixed times of one engine and launch style.

    Attributes
    ----------
    target_pass_s : float
        Added to every pass of the target, plain or verifying. [s]
    draft_pass_s : float
        Added to every draft pass that runs after another: launched one by one it is about a millisecond, captured in a
        CUDA graph a fraction of that. [s]
    lookup_s : float
        One look-up for a whole batch (n-gram, suffix, datastore), once per round. [s]
    round_s : float
        Added once per speculative round: acceptance test, bookkeeping, preparing the draft. [s]
    sequence_s : float
        The same, per sequence in the round. [s]
    position_s : float
        Per position verified in the batch beyond the first of each sequence: sampling over wide logits. [s]
    gpu_pass_s : float
        Added to every target pass for each GPU beyond the first, under tensor parallelism. [s]
    kv_reread : float
        Times the attention kernel reads the cache in a verification pass.
    framework : str
        Whose kernels it runs (vllm, sglang, trtllm); empty takes constants pooled over all.
    """

    id: str
    name: str
    target_pass_s: float = 0.0
    draft_pass_s: float = 0.0
    lookup_s: float = 0.0
    round_s: float = 0.0
    sequence_s: float = 0.0
    position_s: float = 0.0
    gpu_pass_s: float = 0.0
    kv_reread: float = 1.0
    framework: str = ""
    versions: str = ""
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


IDEAL = EngineTime("ideal", "no engine time", evidence="none: kernels only, an upper bound on the gain")
