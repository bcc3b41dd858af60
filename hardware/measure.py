"""Measure the small decode kernel on this machine: its ceilings, then a grid over batch, context and width.

What it is for: the model predicts that a verification pass costs little more than a plain one until
arithmetic catches up with memory. Here both are timed, with one kernel, on data that no cache holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from specmodel.errors import InputError, unknown_name
from specmodel.hardware.findings import device_toml, figures_of
from specmodel.hardware.kernels import LAYERS
from specmodel.hardware.machine import Ceilings, Grid, Machine, Point
from specmodel.hardware.measurement_files import (
    Tables,
    alone,
    prefix_of,
    read_json,
    write_json,
    write_text,
)
from specmodel.hardware.samples import ENOUGH, Sample, calm, disturbed, median_and_spread, undisturbed, waited

BACKENDS = ("cpu", "cuda")
# Files whose change makes earlier rows incomparable.
_KERNELS = ("kernels/__init__.py", "kernels/cpu.py", "kernels/cuda.py", "on_cpu.py", "on_cuda.py")
_MOST_SAMPLES = 15  # of one visit
_LAYER_SAMPLES = 4  # at least, of one visit to a layer: few points, and what all others are to predict
_MOST_TOKENS = {"int8": 128}  # torch's weight-only product is made for few tokens, and very slow for many

Progress: TypeAlias = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What `measure` did.

    Attributes
    ----------
    backend, device, name : str
        "cpu" or "cuda"; an id, and the name people use.
    files : tuple of Path
        The CSV files, the JSON with all about the machine, and the TOML that other commands take as device.
    rows, resumed : int
        Rows in the files, and how many of them earlier runs had left.
    points : int
        Rows of a whole measurement.
    seconds : float
        Time that this run took. [s]
    disturbed : float
        Share of this run's samples in which other processes took a core. Above a tenth or so the machine was
        busy, and the times say more about that than about the kernel.
    ceilings : Ceilings
        The machine's own limits.
    figures : mapping
        What the rows say, by name: see `figures_of`.
    """

    backend: str
    device: str
    name: str
    files: tuple[Path, ...]
    rows: int
    resumed: int
    points: int
    seconds: float
    disturbed: float
    ceilings: Ceilings
    figures: Mapping[str, float]

    @property
    def complete(self) -> bool:
        """Whether the whole grid is measured."""
        return self.rows == self.points


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `measure`; what was measured until then is in the files, and in ``measurement``."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__(f"{measurement.rows} of {measurement.points} rows kept")
        self.measurement = measurement


def machine_of(backend: str) -> Machine:
    """This machine, ready to be measured.

    Raises
    ------
    InputError
        For an unknown backend; for "cuda" without torch, Triton, a driver or a GPU: which of them.
    """
    if backend == "cpu":
        from specmodel.hardware.on_cpu import CpuMachine

        return CpuMachine()
    if backend == "cuda":
        try:
            from specmodel.hardware.on_cuda import CudaMachine
        except (ImportError, OSError) as error:
            missing = getattr(error, "name", None) or str(error).splitlines()[0]
            raise InputError(
                "backend",
                backend,
                f"needs torch and Triton, {missing} is missing: pip install 'specmodel[gpu]'",
            ) from None
        return CudaMachine()
    raise unknown_name("backend", backend, BACKENDS)


def points_of(machine: Machine, grid: Grid) -> list[Point]:
    """All points of a grid, always in the same order.

    Layers come first, a wide pass right after the plain one that it is compared with. The others are shuffled: points
    that cost the same do not follow each other, so slow drift of the machine adds noise, not bias.
    """
    points: dict[Point, None] = {}
    passes = [(batch, width) for batch in grid.batches for width in grid.widths]
    for shape in (LAYERS[name] for name in grid.layers):
        for weights in machine.weight_formats:
            most = min(grid.most_tokens, _MOST_TOKENS.get(weights, grid.most_tokens))
            for n, k in shape.matrices.values():
                for tokens in sorted({batch * width for batch, width in passes}):
                    if tokens <= most:
                        points[Point("gemm", shape, (n, k, tokens), weights)] = None
        for cache in machine.cache_formats:
            for batch, width in passes:
                for context in grid.contexts:
                    held = batch * shape.cache_elements(context + width) * machine.format_bytes(cache)
                    if held <= grid.cache_bytes:
                        points[Point("attention", shape, (batch, context, width), cache=cache)] = None
    shuffled = list(points)
    random.Random(0).shuffle(shuffled)
    layers = []
    shape, first = LAYERS[grid.layers[0]], machine.weight_formats[0]
    for context in grid.layer_contexts:
        for batch in grid.batches:
            held = (
                batch * shape.cache_elements(context + max(grid.layer_widths)) * machine.format_bytes(first)
            )
            if held <= grid.cache_bytes / 2:
                for width in grid.layer_widths:
                    layers.append(Point("layer", shape, (batch, context, width), first, first))
    return layers + shuffled


def measure(
    backend: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    *,
    quick: bool = False,
    progress: Progress | None = None,
    machine: Machine | None = None,
    grid: Grid | None = None,
) -> Measurement:
    """Time the decode kernel on this machine and write what `calibrate` and `validate` read.

    Parameters
    ----------
    backend : {"cpu", "cuda"}
        Where to run.
    out : path, optional
        Start of the file names (an ending .csv is taken off); default: the machine's id, here. Written are
        ``-gemm.csv``, ``-attention.csv``, ``-layer.csv``, ``.json`` (machine, versions, clocks, ceilings) and
        ``.toml`` (the machine as a device whose peaks are its measured ceilings).
    quick : bool
        A small grid: under a minute on two cores.
    progress : callable, optional
        Called with (points done, points in all, what comes next).
    machine, grid : optional
        In place of this machine and its default grid.

    Returns
    -------
    Measurement

    Raises
    ------
    InputError
        For a backend that cannot run here or fails on the way, and for files that cannot be written, are in
        use, or hold another measurement.
    Interrupted
        On Ctrl-C, a KeyboardInterrupt; the same call takes up where it ended.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    prefix = None if out is None else prefix_of(out)
    machine = machine or machine_of(backend)
    prefix = prefix or prefix_of(machine.device)
    grid = grid or machine.grid(quick)
    begun = time.monotonic()
    with alone(prefix), machine.prepared():
        run = _Run(machine, grid, prefix, quick, progress or (lambda done, total, what: None))
        try:
            run.measure()
        except KeyboardInterrupt:
            raise Interrupted(run.close(time.monotonic() - begun)) from None
        except (
            RuntimeError,
            MemoryError,
            OSError,
        ) as error:  # out of memory, a full disk, a GPU that fell off
            kept = run.close(time.monotonic() - begun)
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                "backend", backend, f"failed, {kept.rows} of {kept.points} rows are kept: {said}"
            ) from None
        return run.close(time.monotonic() - begun)


class _Run:
    """One measurement under way."""

    def __init__(self, machine: Machine, grid: Grid, prefix: Path, quick: bool, progress: Progress) -> None:
        self.machine, self.grid, self.progress = machine, grid, progress
        self.points = points_of(machine, grid)
        identity = dict(machine.identity())
        provenance = provenance_of(identity, machine, quick)
        self.command = f"specmodel measure --backend {machine.backend}" + (" --quick" if quick else "")
        comments = [
            f"specmodel {_version()}, its own decode kernel; all about the machine in {prefix.name}.json",
            self.command,
            f"gpu {machine.device}" if machine.backend == "cuda" else f"device {prefix.name}.toml",
            "us = median; spread = (upper - lower quartile) / median",
        ]
        self.tables = Tables(prefix, comments, provenance)
        self.json, self.toml = (prefix.with_name(f"{prefix.name}{suffix}") for suffix in (".json", ".toml"))
        earlier = read_json(self.json)
        if earlier.get("provenance") != provenance:
            earlier = {}
        self.record: dict[str, Any] = {
            "schema": 1,
            "what": "times of the project's own decode kernel",
            "command": self.command,
            "backend": machine.backend,
            "device": machine.device,
            "name": machine.name,
            "quick": quick,
            "provenance": provenance,
            "identity": identity,
            "ceilings": earlier.get("ceilings"),
            "grid": asdict(grid),
            "runs": [*earlier.get("runs", []), {"started": _now(), "state": dict(machine.state())}],
        }
        self.resumed = self.rows
        self.samples = self.disturbed = 0
        self.patience_s = 0.0  # earned block by block: the first must not use up what all may have

    def _times(self) -> dict[Point, float]:
        """The points measured so far, by this run or earlier ones. [s]"""
        fields = {point: point.fields(self.machine.framework(point)) for point in self.points}
        done = self.tables.done
        return {point: done[point.kind][row] for point, row in fields.items() if row in done[point.kind]}

    @property
    def rows(self) -> int:
        return len(self._times())

    def measure(self) -> None:
        measured = self._times()
        todo = [point for point in self.points if point not in measured]
        total = len(self.points)
        self.progress(total - len(todo), total, "checking the kernel")
        self.machine.check()
        if self.record["ceilings"] is None:
            self.progress(total - len(todo), total, "the machine's own ceilings")
            self.record["ceilings"] = asdict(self.machine.ceilings())
        write_json(self.json, self.record)
        write_text(self.toml, device_toml(self.machine, self.ceilings, self.json.name))
        for start in range(0, len(todo), self.grid.block):
            block = todo[start : start + self.grid.block]
            samples: list[list[Sample]] = [[] for _ in block]
            try:
                self._sample(block, samples, total - len(todo) + start, total)
            finally:  # interrupted, too: what has been visited often enough is kept
                for point, taken in zip(block, samples, strict=True):
                    if len(taken) >= min(ENOUGH, self.grid.visits):
                        self._keep(point, undisturbed(taken))
        self.progress(total, total, "done")

    def _keep(self, point: Point, samples: Sequence[float]) -> None:
        seconds, spread = median_and_spread(samples)
        self.tables.append(
            point.kind, point.fields(self.machine.framework(point)), seconds, spread, len(samples)
        )

    def _sample(self, block: Sequence[Point], samples: list[list[Sample]], done: int, total: int) -> None:
        """Time some points in turns, there and back."""
        timers = []
        for point in block:
            self.progress(done, total, f"{point.kind} {' x '.join(map(str, point.sizes))}")
            timers.append(self.machine.timer(point))
        visits = self.grid.visits
        for visit in range(visits):
            self.progress(done + visit * len(block) // visits, total, f"turn {visit + 1} of {visits}")
            for at in range(len(block)) if visit % 2 == 0 else reversed(range(len(block))):
                self._visit(block[at], timers[at], samples[at])
        self.patience_s += self.grid.patience_s * len(block) / total
        while self.patience_s > 0.0 and (
            unsure := [at for at, taken in enumerate(samples) if not calm(taken)]
        ):
            begun = time.perf_counter()
            for at in unsure:
                self._visit(block[at], timers[at], samples[at])
            self.patience_s -= time.perf_counter() - begun

    def _visit(self, point: Point, timer: Callable[[], float], samples: list[Sample]) -> None:
        until = time.perf_counter() + self.grid.visit_s
        fewest = _LAYER_SAMPLES if point.kind == "layer" else 1
        for taken in range(1, _MOST_SAMPLES + 1):
            before = waited()
            seconds = timer()
            sample = seconds, waited() - before
            samples.append(sample)
            self.samples += 1
            self.disturbed += disturbed(sample)
            if taken >= fewest and time.perf_counter() >= until:
                return

    @property
    def ceilings(self) -> Ceilings:
        return Ceilings(
            **(
                self.record["ceilings"]
                or {"read_bytes_per_s": 0.0, "copy_bytes_per_s": 0.0, "matmul_flops_per_s": {}}
            )
        )

    def close(self, seconds: float) -> Measurement:
        """Write down how it went."""
        rows = self.rows
        figures = figures_of(self.machine, self._times(), self.ceilings)
        disturbed = self.disturbed / self.samples if self.samples else 0.0
        self.record["runs"][-1] |= {
            "disturbed": round(disturbed, 3),
            "ended": _now(),
            "seconds": round(seconds, 1),
            "state_after": dict(self.machine.state()),
        }
        self.record |= {
            "rows": rows,
            "points": len(self.points),
            "complete": rows == len(self.points),
            "figures": figures,
        }
        write_json(self.json, self.record)
        return Measurement(
            self.machine.backend,
            self.machine.device,
            self.machine.name,
            (*self.tables.paths.values(), self.json, self.toml),
            rows,
            self.resumed,
            len(self.points),
            seconds,
            disturbed,
            self.ceilings,
            figures,
        )


def provenance_of(identity: Mapping[str, Any], machine: Machine, quick: bool) -> str:
    """A short digest of what rows must share to stand in one file: machine, versions, kernels."""
    digest = hashlib.sha256(
        json.dumps([machine.device, quick, identity], sort_keys=True, default=str).encode()
    )
    for name in _KERNELS:
        digest.update(files("specmodel.hardware").joinpath(name).read_bytes())
    return digest.hexdigest()[:16]


def _version() -> str:
    try:
        return version("specmodel")
    except PackageNotFoundError:  # run from a checkout
        return "from source"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
