"""A person's own runs -> their engine's times: two or three points of plain and speculative decoding.

What the kernels take follows from the deployment; what is left of the measured steps is the engine. Constants that the
runs cannot settle stay at the engine's shipped ones. How often the verification reads the KV cache is one of them: it
shows at long contexts, where attention is a large part of the pass.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specmodel import checks
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT, Deployment
from specmodel.engine import EngineTime
from specmodel.engine_files import engine_toml
from specmodel.errors import InputError, unknown_name
from specmodel.result import Result
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.drafters.drafter import Drafter

    Floats = NDArray[np.float64]

TIME_COLUMNS = ("tpot_ms", "itl_ms", "step_ms")
COLUMNS = ("id", "batch", "context", "k", "tokens_per_round", *TIME_COLUMNS)
MEASURED_WITHIN = 0.03  # repeated runs of one setting differ by about as much
FITTED = ("target_pass_s", "draft_pass_s", "round_s", "sequence_s")
SPREAD = 1.0  # ln: how far an engine's times may lie from the shipped ones
SMALLEST_S = {
    "target_pass_s": 2e-5,
    "draft_pass_s": 2e-5,
    "round_s": 5e-5,
    "sequence_s": 1e-6,
}  # where shipped as 0
KERNEL_SPREAD = 0.07  # ln: kernels of this machine against the calibrated ones
REREAD_CENTRE, REREAD_SPREAD = math.log(0.1), 1.5  # of ln(reads - 1): one read, unless the runs say otherwise
_80 = 1.2816


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One measured point: a plain step (k 0), or a round with what it yielded."""

    row: int
    id: str | None
    batch: float
    context: float
    k: int
    tokens_per_round: float
    step_s: float


@dataclass(frozen=True, slots=True)
class FittedTime:
    """One constant: fitted, with its 80 % range, and as shipped. `told` says whether the runs narrowed it. [s]"""

    name: str
    value_s: float
    low_s: float
    high_s: float
    shipped_s: float
    told: bool


@dataclass(frozen=True, slots=True)
class RunCheck:
    """One run, in ms per step: measured, with the shipped times, and with the fitted ones."""

    row: int
    id: str | None
    k: int
    batch: float
    context: float
    measured_ms: float
    shipped_ms: float
    fitted_ms: float


@dataclass(frozen=True, slots=True)
class RunsReport(Result):
    """What a person's runs say about their engine.

    Attributes
    ----------
    engine : EngineTime
        The fitted times; `to_toml` writes them, `--engine FILE.toml` reads them.
    kv_reread, kv_reread_low, kv_reread_high : float
        Times the verification reads the KV cache, with an 80 % range.
    kernel_factor : float
        Measured over modelled kernel time that explains the plain steps best.
    findings : tuple of str
        In sentences, the most consequential first.
    """

    inputs: dict[str, object]
    engine: EngineTime
    constants: tuple[FittedTime, ...]
    kv_reread: float
    kv_reread_low: float
    kv_reread_high: float
    kernel_factor: float
    rows: tuple[RunCheck, ...]
    findings: tuple[str, ...]

    def to_toml(self) -> str:
        """The engine's file."""
        notes: dict[str, dict[str, str | float]] = {
            one.name: {"source": "own runs" if one.told else "shipped", "low": one.low_s, "high": one.high_s}
            for one in self.constants
        }
        notes["kv_reread"] = {"source": "own runs", "low": self.kv_reread_low, "high": self.kv_reread_high}
        return engine_toml(self.engine, notes)


def read_runs(path: str | Path) -> list[OwnRun]:
    """Runs from a CSV or JSON file.

    Columns: batch, context, k (0 or empty: plain), tokens_per_round where k > 0, and one of tpot_ms (latency per
    token), step_ms or itl_ms (time between streamed chunks: vLLM streams one chunk per step).

    Raises
    ------
    InputError
        For a file that cannot be read, an unknown column, or a value out of range, with its row.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError("runs", str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError("runs", source.name, "is no UTF-8 text") from None
    runs = [_run(number, row, source.name) for number, row in _rows(text, source.name)]
    if not runs:
        raise InputError("runs", source.name, "holds no run")
    return runs


def _rows(text: str, name: str) -> list[tuple[int, Mapping[str, object]]]:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            held = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError("runs", name, f"is no JSON: {error}") from None
        listed = held.get("runs") if isinstance(held, dict) else held
        if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
            raise InputError("runs", name, "must hold a list of objects, alone or under the key runs")
        return list(enumerate(listed, 1))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    reader = csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True)
    return [
        (number, {key: value for key, value in row.items() if key}) for number, row in enumerate(reader, 1)
    ]


def _run(number: int, row: Mapping[str, object], name: str) -> OwnRun:
    where = f"{name}, run {number}"
    for key in row:
        if key not in COLUMNS:
            raise unknown_name(f"{where}: column", key, COLUMNS)

    def value(column: str, low: float, high: float, default: float | None = None) -> float:
        given = row.get(column)
        if given is None or (isinstance(given, str) and not given.strip()):
            if default is None:
                raise InputError(f"{where}: {column}", given, f"is needed: a number from {low:g} to {high:g}")
            return default
        try:
            number = float(given)  # type: ignore[arg-type]  # whatever a file holds
        except (TypeError, ValueError):
            number = math.nan
        return checks.real(f"{where}: {column}", number if number == number else given, low=low, high=high)

    k = checks.whole(f"{where}: k", value("k", 0, 256, 0.0), high=256)
    tokens = value("tokens_per_round", 1, 257) if k else 1.0
    given = [column for column in TIME_COLUMNS if row.get(column) not in (None, "")]
    if len(given) != 1:
        raise InputError(where, ", ".join(given) or None, f"give exactly one of {', '.join(TIME_COLUMNS)}")
    milliseconds = value(given[0], 1e-4, 1e6)
    step_s = milliseconds * 1e-3 * (tokens if given[0] == "tpot_ms" else 1.0)
    label = row.get("id")
    return OwnRun(
        number,
        str(label) if label else None,
        value("batch", 1, MAX_BATCH, 1.0),
        value("context", 0, MAX_CONTEXT),
        k,
        tokens,
        step_s,
    )


def fit_runs(runs: Sequence[OwnRun], deployment: Deployment, drafter: Drafter | None = None) -> RunsReport:
    """The engine times that explain a person's runs best, and what they mean.

    Parameters
    ----------
    runs : sequence of OwnRun
        At least one plain and one speculative run tell most; either alone works.
    deployment : Deployment
        What was run; its engine's times are where the fit starts.
    drafter : Drafter, optional
        The draft; needed where a run speculates.

    Raises
    ------
    InputError
        Without runs, or for speculative runs without a draft.
    """
    from scipy.optimize import least_squares

    if not runs:
        raise InputError("runs", None, "give at least one run")
    if drafter is None and any(run.k for run in runs):
        raise InputError("draft", None, "name the draft of the speculative runs")
    shipped = deployment.engine
    centres = np.log([max(getattr(shipped, name), SMALLEST_S[name]) for name in FITTED])
    measured = np.log([run.step_s for run in runs])
    start = np.concatenate([centres, [0.0, REREAD_CENTRE]])
    spreads = np.array([SPREAD] * len(FITTED) + [KERNEL_SPREAD, REREAD_SPREAD])

    def steps(values: Floats) -> Floats:
        engine, factor = _engine(shipped, values), float(np.exp(values[-2]))
        return np.array([_step_s(run, deployment, drafter, engine, factor) for run in runs])

    def residuals(values: Floats) -> Floats:
        off = (np.log(steps(values)) - measured) / MEASURED_WITHIN
        return np.concatenate([off, (values - start) / spreads])

    found = least_squares(residuals, start, x_scale=spreads, diff_step=1e-4)
    spread = np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)))
    engine = replace(
        _engine(shipped, found.x),
        name=f"{shipped.name}, from own runs",
        evidence=f"{len(runs)} runs of {deployment.name} on {deployment.tp} x {deployment.device.id}",
        source="own runs",
    )
    reads = _reads(found.x[-1], spread[-1])
    if spread[-1] > 0.8 * REREAD_SPREAD:
        engine = replace(engine, kv_reread=shipped.kv_reread)
    constants = tuple(
        FittedTime(
            name,
            float(np.exp(at)),
            float(np.exp(at - _80 * width)),
            float(np.exp(at + _80 * width)),
            getattr(shipped, name),
            bool(width < 0.8 * SPREAD),
        )
        for name, at, width in zip(FITTED, found.x, spread, strict=False)
    )
    before = [_step_s(run, deployment, drafter, shipped, 1.0) for run in runs]
    rows = tuple(
        RunCheck(
            run.row, run.id, run.k, run.batch, run.context, run.step_s * 1e3, old * 1e3, float(new) * 1e3
        )
        for run, old, new in zip(runs, before, steps(found.x), strict=True)
    )
    factor = float(np.exp(found.x[-2]))
    return RunsReport(
        {**deployment.describe(), "draft": drafter.name if drafter else None, "runs": len(runs)},
        engine,
        constants,
        *reads,
        factor,
        rows,
        tuple(_findings(runs, deployment, drafter, engine, constants, reads, factor)),
    )


def _engine(shipped: EngineTime, values: Floats) -> EngineTime:
    times: dict[str, Any] = {name: float(np.exp(value)) for name, value in zip(FITTED, values, strict=False)}
    return replace(shipped, kv_reread=1.0 + float(np.exp(min(values[-1], 9.0))), **times)


def _reads(at: float, width: float) -> tuple[float, float, float]:
    """Times the cache is read: middle and 80 % range."""
    return tuple(1.0 + math.exp(at + step * width) for step in (0.0, -_80, _80))  # type: ignore[return-value]


def _step_s(
    run: OwnRun, deployment: Deployment, drafter: Drafter | None, engine: EngineTime, factor: float
) -> float:
    """A plain step, or a round, with kernels `factor` times as long as modelled. [s]"""
    timed = replace(
        deployment, engine=engine, split=replace(deployment.split, kv_reread=max(engine.kv_reread, 1.0))
    )
    at = (run.batch, run.context)
    if run.k == 0 or drafter is None:
        kernels = float(timed.pass_time(*at).seconds) * factor
        return float(engine.target_seconds(kernels, layers=timed.layers, gpus=timed.tp))
    parts = Speculation(timed, drafter).parts(run.k, *at, tokens=run.tokens_per_round)
    scaled = replace(
        parts,
        verify_s=parts.verify_s * factor,
        groups=tuple((kernels * factor, count, layers) for kernels, count, layers in parts.groups),
    )
    return float(scaled.under(engine, batch=run.batch, layers=timed.layers, gpus=timed.tp).seconds)


def _findings(
    runs: Sequence[OwnRun],
    deployment: Deployment,
    drafter: Drafter | None,
    engine: EngineTime,
    constants: Sequence[FittedTime],
    reads: tuple[float, float, float],
    factor: float,
) -> list[str]:
    """What the fit means, in sentences."""
    found: list[str] = []
    speculative = [run for run in runs if run.k]
    if speculative and drafter is not None:
        widest = max(speculative, key=lambda run: run.batch * run.context)
        share = _attention_share(widest, deployment, drafter)
        middle, low, high = reads
        limit = drafter.width(widest.k)
        if low > 1.3:
            found.append(
                f"your verification grows as if the KV were read {min(middle, limit):.2g} times "
                f"({low:.2g} to {min(high, limit):.2g}): its kernel handles positions one by one, or in small groups"
            )
        elif high < 1.6:
            found.append("your verification reads the KV once for all positions, as it should")
        else:
            found.append(
                f"these runs cannot tell how often verification reads the KV: attention is {share:.0%} of the pass at "
                f"batch {widest.batch:g} and context {widest.context:g}; add a run at a longer context"
            )
        plain = float(deployment.plain_seconds(widest.batch, widest.context))
        if engine.round_s > 0.4 * plain:
            found.append(
                f"a round takes {engine.round_s * 1e3:.3g} ms beside its passes, {engine.round_s / plain:.1f} plain "
                "steps: host work, or a verification run as several narrow passes; a run at another k tells them apart"
            )
    for one in constants:
        if one.told and not 0.5 < (one.value_s / max(one.shipped_s, SMALLEST_S[one.name])) < 2.0:
            found.append(
                f"{one.name} is {one.value_s * 1e3:.3g} ms ({one.low_s * 1e3:.3g} to {one.high_s * 1e3:.3g}), "
                f"{one.shipped_s * 1e3:.3g} ms with the shipped times"
            )
    if not 0.95 < factor < 1.05:
        words = "longer" if factor > 1.0 else "shorter"
        found.append(
            f"kernels take {abs(factor - 1.0):.0%} {words} here than modelled: clocks, other kernels, or load"
        )
    return found


def _attention_share(run: OwnRun, deployment: Deployment, drafter: Drafter) -> float:
    """Part of a verification pass that is attention."""
    taken = deployment.pass_time(run.batch, run.context, drafter.width(run.k))
    attention = sum(float(kernel.seconds) for kernel in taken.kernels if kernel.kind == "attention")
    return attention / float(taken.seconds)
