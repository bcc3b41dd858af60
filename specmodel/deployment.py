"""What is asked about: a model in a precision, on so many GPUs, timed at a fidelity.

The door through which every command and every Python verb enters: names become values here, and are checked once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog, checks, passes
from specmodel.engine import IDEAL, EngineTime
from specmodel.errors import InputError
from specmodel.model import Model, Totals
from specmodel.roofline import FIDELITIES, Datasheet, PassTime, Textbook, Timing
from specmodel.units import show_bytes

if TYPE_CHECKING:
    from specmodel.constants import Calibration
    from specmodel.device import Device
    from specmodel.units import Numeric

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_DEVICE = "h100-sxm"
DEFAULT_CONTEXT = 1024
MAX_CONTEXT = 100_000_000  # longer than any model reads; stops slips such as bytes given for tokens
MAX_BATCH = 1_000_000


def kv_budget_bytes(memory_bytes: float, fraction: float, weight_bytes: float) -> float:
    """What is left for KV caches once the weights lie in the usable share of memory; 0 where they do not fit. [B]"""
    return max(0.0, fraction * memory_bytes - weight_bytes)


def sequences_that_fit(budget_bytes: float, bytes_per_sequence: float) -> int:
    """Whole sequences that a KV budget holds."""
    checks.real("bytes per sequence", bytes_per_sequence, low=0.0, above=True)
    return min(MAX_BATCH, int(checks.real("budget", budget_bytes, low=0.0) / bytes_per_sequence))


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on GPUs, ready to be timed."""

    model: Model | Totals
    device: Device
    timing: Timing
    split: passes.Split
    memory_fraction: float
    engine: EngineTime
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.model.name

    def pass_time(self, batch: Numeric, context: Numeric, width: Numeric = 1) -> PassTime:
        """Time of a pass of `width` positions per sequence; arrays broadcast."""
        return self.timing.time(
            passes.forward_pass(self.model, batch=batch, context=context, width=width, split=self.split)
        )

    def plain_seconds(self, batch: Numeric, context: Numeric) -> Numeric:
        """One plain decode step, engine time included. [s]"""
        engine = self.engine
        return (
            self.pass_time(batch, context).seconds + engine.target_pass_s + engine.gpu_pass_s * (self.tp - 1)
        )

    def verify_seconds(self, batch: Numeric, context: Numeric, width: Numeric) -> Numeric:
        """One verification pass of `width` positions, with the engine's time of a pass and of a round. [s]"""
        engine, sequences = self.engine, np.asarray(batch)
        fixed: Numeric = engine.target_pass_s + engine.gpu_pass_s * (self.tp - 1) + engine.round_s
        per_batch: Numeric = engine.sequence_s * sequences + engine.position_s * sequences * (
            np.asarray(width) - 1
        )
        return self.pass_time(batch, context, width).seconds + fixed + per_batch

    @property
    def tp(self) -> int:
        return self.split.tp

    def kv_bytes(self, context: int) -> float:
        """KV cache and constant state of one sequence, all GPUs together. [B]"""
        if isinstance(self.model, Totals):
            return self.model.kv_bytes_per_token * context * self.split.kv_scale
        return float(self.model.kv_bytes(context)) * self.split.kv_scale + self.model.state_bytes()

    def memory_limit_batch(self, context: int) -> int:
        """The most sequences of `context` cached tokens that fit beside the weights; 0 when none does."""
        return sequences_that_fit(self.kv_budget(), self.kv_bytes(context))

    def kv_budget(self) -> float:
        """Memory left for KV caches. [B]"""
        return kv_budget_bytes(
            self.tp * self.device.memory_bytes, self.memory_fraction, self.model.weight_bytes
        )

    def why_nothing_fits(self, context: int) -> str:
        """The sentence for a batch limit of 0."""
        usable = self.tp * self.memory_fraction * self.device.memory_bytes
        if self.kv_budget() == 0.0:
            return (
                f"does not fit: the weights take {show_bytes(self.model.weight_bytes)}, "
                f"{show_bytes(self.model.weight_bytes - usable)} more than the {show_bytes(usable)} usable"
            )
        return (
            f"does not fit: one sequence of {context:,} tokens takes {show_bytes(self.kv_bytes(context))}, "
            f"{show_bytes(self.kv_bytes(context) - self.kv_budget())} more than is left beside the weights"
        )

    def describe(self) -> dict[str, object]:
        """What was asked, for the answer's `inputs`."""
        precision = getattr(self.model, "precision", None)
        return {
            "model": self.model.name,
            "device": self.device.id,
            "tp": self.tp,
            "weights": None if precision is None else precision.weights.name,
            "kv": None if precision is None else precision.kv.name,
            "weight_bytes": self.model.weight_bytes,
            "kv_bytes_per_token": self.model.kv_bytes_per_token * self.split.kv_scale,
            "memory_fraction": self.memory_fraction,
            "engine": self.engine.id,
        }

    def speedups(
        self,
        tokens: np.ndarray,
        *,
        k: Numeric,
        batch: Numeric,
        context: Numeric,
        draft_cost: float,
        charge: str,
    ) -> Numeric:
        """Speedup for every (k, batch, context), broadcast; `tokens` holds tokens per round by k."""
        from specmodel.rounds import round_cost

        plain = self.plain_seconds(batch, context)
        verify = self.verify_seconds(batch, context, np.asarray(k) + 1)
        cost = round_cost(np.asarray(k), draft_cost=draft_cost, verify_ratio=verify / plain, charge=charge)
        yielded: Numeric = tokens[np.asarray(k)]
        return yielded / cost


def deploy(
    model: str | Model | Totals = DEFAULT_MODEL,
    device: str | Device = DEFAULT_DEVICE,
    *,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    ep: int = 1,
    kv_reread: float | None = None,
    fidelity: str | None = None,
    memory_fraction: float | None = None,
    kv_bytes_per_token: float | None = None,
    attention_flops: bool = False,
    flops_fraction: float | None = None,
    engine: str | EngineTime = IDEAL.id,
    calibration: Calibration | str | None = None,
) -> Deployment:
    """Resolve names, check ranges and say what was assumed.

    Raises
    ------
    InputError
        For an unknown name, a value outside its range, or a combination that cannot be timed.
    """
    asked = catalog.model(model, weights=weights, kv=kv) if isinstance(model, str) else model
    machine = catalog.device(device) if isinstance(device, str) else device
    share = machine.usable_memory_fraction if memory_fraction is None else memory_fraction
    checks.real("memory fraction", share, low=0.0, high=1.0, above=True)
    scale = 1.0
    if kv_bytes_per_token is not None:
        given = checks.real("kv bytes per token", kv_bytes_per_token, low=1.0, high=1e9)
        scale = given / asked.kv_bytes_per_token
    charged = catalog.engine(engine) if isinstance(engine, str) else engine
    reads = charged.kv_reread if kv_reread is None else kv_reread
    if isinstance(calibration, str):
        from specmodel.calibration_files import read_calibration

        calibration = read_calibration(calibration)
    split = passes.Split(tp=tp, ep=ep, kv_reread=reads, kv_scale=scale)
    timing = _timing(asked, machine, fidelity, charged, calibration, flops_fraction, attention_flops)
    notes = asked.notes if isinstance(asked, (Model, Totals)) else ()
    return Deployment(
        model=asked,
        device=machine,
        timing=timing,
        split=split,
        memory_fraction=share,
        engine=charged,
        assumptions=(
            f"{asked.name} {_formats(asked)} on {f'{tp} x ' if tp > 1 else ''}{machine.id}",
            f"fidelity {timing.fidelity}: {_level_words(timing)}",
            f"{share:g} of {show_bytes(tp * machine.memory_bytes)} usable",
            "no engine time" if charged.is_ideal else f"engine time of {charged.name}",
            *notes,
        ),
        warnings=tuple(machine.warnings),
    )


def _formats(model: Model | Totals) -> str:
    if isinstance(model, Totals):
        return f"given as totals ({show_bytes(model.weight_bytes)} of weights)"
    return f"with {model.precision.weights.name} weights and {model.precision.kv.name} KV"


def _timing(
    model: Model | Totals,
    device: Device,
    fidelity: str | None,
    engine: EngineTime,
    calibration: Calibration | None,
    flops_fraction: float | None,
    attention_flops: bool,
) -> Timing:
    """The timing asked for; by default the best there is: calibrated where constants exist, else datasheet."""
    if fidelity is not None:
        checks.choice("fidelity", fidelity, FIDELITIES)
    if isinstance(model, Totals):
        if fidelity not in (None, "textbook"):
            raise InputError("fidelity", fidelity, f"{model.name} is given as totals: only textbook applies")
        fidelity = "textbook"
    if fidelity == "textbook":
        return Textbook(device, fraction=flops_fraction, attention_flops=attention_flops)
    if fidelity == "datasheet":
        return Datasheet(device)
    from specmodel.calibrated import Calibrated

    try:
        return Calibrated(device, framework=engine.framework or None, calibration=calibration)
    except InputError:
        if fidelity == "calibrated":
            raise
        return Datasheet(device)


def _level_words(timing: Timing) -> str:
    if isinstance(timing, Textbook):
        share = "peak" if timing.fraction == 1.0 else f"{timing.fraction:g} of peak"
        attention = "with" if timing.attention_flops else "without"
        return f"one roofline over the whole step, arithmetic at {share}, {attention} attention FLOPs"
    if isinstance(timing, Datasheet):
        return "one roofline per kernel, at datasheet rates"
    return "one time per kernel, with constants fitted to measured kernels"
