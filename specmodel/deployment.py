"""What is asked about: a model in a precision, on so many GPUs, timed at a fidelity.

The door through which every command and every Python verb enters: names become values here, and are checked once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog, checks, ledger, passes
from specmodel.checks import MAX_BATCH, MAX_CONTEXT
from specmodel.datasheets import Device
from specmodel.engine import IDEAL, EngineTime
from specmodel.errors import InputError
from specmodel.kernel_times.constants import GIVEN, Calibration
from specmodel.model import Model, Totals
from specmodel.roofline import FIDELITIES, Datasheet, PassTime, Textbook, Timing
from specmodel.units import show_bytes

if TYPE_CHECKING:
    from specmodel.ledger import Draft as LedgerDraft
    from specmodel.ledger import Memory
    from specmodel.units import Numeric

__all__ = [
    "DEFAULT_CONTEXT",
    "DEFAULT_DEVICE",
    "DEFAULT_MODEL",
    "MAX_BATCH",
    "MAX_CONTEXT",
    "Deployment",
    "deploy",
]

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_DEVICE = "h100-sxm"
DEFAULT_CONTEXT = 1024


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
        return self._target_seconds(batch, context, 1)

    def verify_seconds(self, batch: Numeric, context: Numeric, width: Numeric) -> Numeric:
        """One verification pass of `width` positions, with the engine's time of a pass and of a round. [s]"""
        passed = self._target_seconds(batch, context, width)
        return passed + self.engine.round_seconds(np.asarray(batch), np.asarray(width))

    def _target_seconds(self, batch: Numeric, context: Numeric, width: Numeric) -> Numeric:
        kernels = self.pass_time(batch, context, width).seconds
        return self.engine.target_seconds(kernels, layers=self.layers, gpus=self.tp)

    @property
    def layers(self) -> int:
        """Layers of the model; 0 where it is given as totals."""
        return 0 if isinstance(self.model, Totals) else self.model.architecture.layer_count

    @property
    def tp(self) -> int:
        return self.split.tp

    def memory(
        self,
        context: int,
        *,
        batch: int = 1,
        width: int = 1,
        draft: LedgerDraft | None = None,
        draft_tp: int | None = None,
        reserve_bytes: float | None = None,
    ) -> Memory:
        """The memory ledger: what each GPU keeps, whether it fits, and the largest batch that does."""
        return ledger.memory(
            self.model,
            memory_bytes=self.device.memory_bytes,
            context=context,
            batch=batch,
            width=width,
            tp=self.tp,
            draft=draft,
            draft_tp=draft_tp,
            engine=self.engine.id if self.engine.id in ledger.ENGINE_RULES else IDEAL.id,
            memory_fraction=self.memory_fraction,
            reserve_bytes=reserve_bytes,
        )

    def memory_limit_batch(self, context: int, width: int = 1) -> int:
        """The most sequences of `context` cached tokens that fit, `width` positions verified each; 0 when none does."""
        return min(MAX_BATCH, self.memory(context, width=width).max_batch)

    def why_nothing_fits(self, context: int) -> str:
        """The sentence for a batch limit of 0."""
        short = show_bytes(self.memory(context).short_bytes)
        return f"does not fit: one sequence of {context:,} tokens beside the weights lacks {short} per GPU"

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
            "kv_bytes_per_token": self.model.kv_bytes_per_token,
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
    model: str | Path | Model | Totals = DEFAULT_MODEL,
    device: str | Path | Device = DEFAULT_DEVICE,
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
    calibration: Calibration | str | Path | None = None,
) -> Deployment:
    """Resolve names, check ranges and say what was assumed.

    Raises
    ------
    InputError
        For an unknown name, a value outside its range, or a combination that cannot be timed.
    """
    asked = _model(model, weights, kv)
    machine = catalog.device(str(device)) if isinstance(device, (str, Path)) else device
    if not isinstance(machine, Device):
        raise InputError("device", device, "must be a name, a .toml file or a Device")
    share = machine.usable_memory_fraction if memory_fraction is None else memory_fraction
    checks.real("memory fraction", share, low=0.0, high=1.0, above=True)
    if kv_bytes_per_token is not None:
        asked = with_cache(asked, kv_bytes_per_token)
    charged = catalog.engine(engine) if isinstance(engine, str) else engine
    if not isinstance(charged, EngineTime):
        raise InputError("engine", engine, "must be a name or an EngineTime")
    reads = charged.kv_reread if kv_reread is None else kv_reread
    constants = calibration
    if isinstance(constants, (str, Path)):
        from specmodel.kernel_times.files import read_calibration

        constants = read_calibration(constants)
    if constants is not None and not isinstance(constants, Calibration):
        raise InputError("calibration", calibration, "must be a path or a Calibration")
    split = passes.Split(tp=tp, ep=ep, kv_reread=reads)
    timing = _timing(asked, machine, fidelity, charged, constants, flops_fraction, attention_flops)
    _refuse_unused(timing, calibration, flops_fraction, attention_flops)
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
            "no engine time" if charged.is_ideal else f"engine time of {_engine_words(charged)}",
            *([] if calibration is None else [f"{_named(calibration)} before the shipped constants"]),
            *_slower_rates(asked, machine),
            *asked.notes,
        ),
        warnings=(*machine.warnings, *_timing_warnings(timing, fidelity, constants)),
    )


def _model(model: str | Path | Model | Totals, weights: str | None, kv: str | None) -> Model | Totals:
    """The model by name or path, or as given, in the formats asked for."""
    if isinstance(model, (str, Path)):
        return catalog.model(str(model), weights=weights, kv=kv)
    if isinstance(model, Model):
        return model.with_precision(weights, kv)
    if not isinstance(model, Totals):
        raise InputError("model", model, "must be a name, a path, a Model or Totals")
    for field, value in (("weights", weights), ("kv", kv)):
        if value is not None:
            raise InputError(field, value, f"{model.name} is given as totals only")
    return model


def _refuse_unused(
    timing: Timing,
    calibration: Calibration | str | Path | None,
    flops_fraction: float | None,
    attention_flops: bool,
) -> None:
    """What this fidelity would not look at is refused: a person who gives it expects it to count."""
    if timing.fidelity != "textbook":
        if flops_fraction is not None:
            raise InputError("flops fraction", flops_fraction, "applies to --fidelity textbook only")
        if attention_flops:
            raise InputError("attention flops", attention_flops, "applies to --fidelity textbook only")
    if timing.fidelity != "calibrated" and calibration is not None:
        raise InputError("calibration", _named(calibration), f"changes nothing at fidelity {timing.fidelity}")


def _named(calibration: Calibration | str | Path) -> str:
    return str(calibration) if isinstance(calibration, (str, Path)) else "the calibration given"


def _slower_rates(model: Model | Totals, device: Device) -> list[str]:
    """What is multiplied at another rate than its format's, because the hardware lacks that one."""
    if isinstance(model, Totals):
        return []
    rates = {model.precision.of(part).rate for part in model.counted_bytes()}
    return [note for rate in sorted(rates) if (note := device.peak(rate)[1]) is not None]


def _timing_warnings(timing: Timing, asked: str | None, calibration: Calibration | None) -> list[str]:
    """What a person should mind about the constants behind the times."""
    device = timing.device
    if asked is None and timing.fidelity == "datasheet":
        return [f"no measured kernels stand in for {device.id}: times at datasheet rates are lower bounds"]
    if calibration is not None and not any(fit.device in (device.id, GIVEN) for fit in calibration.fits):
        return [f"none of the constants given is for {device.id}: the shipped ones are used"]
    return []


def with_cache(
    model: Model | Totals, bytes_per_token: float, field: str = "kv bytes per token"
) -> Model | Totals:
    """The model with a cache of so many bytes per token: the counted elements, stored in more or fewer bits."""
    checks.real(field, bytes_per_token, low=1.0, high=1e9)
    if isinstance(model, Totals):
        return replace(model, kv_bytes_per_token=bytes_per_token)
    if model.kv_bytes_per_token == 0.0:
        raise InputError(field, bytes_per_token, f"{model.name} has no cache that grows without bound")
    kv = model.precision.kv
    given = replace(kv, bits=kv.bits * bytes_per_token / model.kv_bytes_per_token, source="given per token")
    return replace(model, precision=replace(model.precision, kv=given))


def _engine_words(engine: EngineTime) -> str:
    """Whose fixed times, of which versions; an engine without rows of its own says so."""
    if not engine.source:
        return f"{engine.name} ({engine.evidence or 'times given by hand'})"
    return f"{engine.name} ({engine.versions})" if engine.versions else engine.name


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
    from specmodel.kernel_times.calibrated import Calibrated

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
