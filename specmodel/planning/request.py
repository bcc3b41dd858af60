"""What a plan is asked: the deployment, its drafts with what is known of them, and its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel.rounds import DEFAULT_MAX_K, acceptance_from

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance

DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DEFAULT_CONTEXTS = (1024, 8192)


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One draft to consider, with the acceptance known for it.

    Attributes
    ----------
    name : str
        As `specmodel drafts` names it: a method, a model id, a path.
    acceptance : tuple of float or None
        Share of rounds accepting position 1, 2, ...; rates given all before with `conditional`.
    alpha : float or None
        Instead: one chance for every tested token. Without either, what is assumed for the method is used.
    acceptance_from : str or None
        Instead: an engine's log, metrics or benchmark file.
    model : str or None
        The draft model behind `draft-model`, `hybrid` and `pipelined`.
    checkpoint : str or None
        Its name for the engine's configuration; the name above where left out.
    tp : int or None
        GPUs of the draft.
    """

    name: str
    acceptance: tuple[float, ...] | None = None
    alpha: float | None = None
    conditional: bool = False
    extend: bool = False
    acceptance_from: str | None = None
    model: str | None = None
    checkpoint: str | None = None
    tp: int | None = None

    def law(self) -> Acceptance | None:
        """The acceptance given; None where none was."""
        if self.acceptance_from is not None:
            from specmodel import evidence

            return evidence.alpha(evidence.read(self.acceptance_from), describe=False).acceptance()
        if self.acceptance is None and self.alpha is None:
            return None
        return acceptance_from(self.alpha, self.acceptance, conditional=self.conditional, extend=self.extend)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything that `plan` is asked; also the form of a deployment file (TOML or JSON), key by key."""

    model: str = "llama-3.1-8b"
    device: str = "h100-sxm"
    weights: str | None = None
    kv: str | None = None
    tp: int = 1
    ep: int = 1
    engine: str = "vllm"
    engine_version: str | None = None
    drafts: tuple[DraftRequest, ...] = (DraftRequest("eagle3"),)
    batch: tuple[int, ...] = DEFAULT_BATCHES
    context: tuple[int, ...] = DEFAULT_CONTEXTS
    context_weights: tuple[float, ...] | None = None
    max_k: int = DEFAULT_MAX_K // 2
    max_levels: int = 4
    fidelity: str | None = None
    memory_fraction: float | None = None
    kv_reread: float | None = None
    calibration: str | None = None
    target_checkpoint: str | None = None
    isl: int | None = None
    osl: int | None = None
    lossy: bool = False
