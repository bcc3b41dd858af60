"""Measuring: what is written, what survives an interruption, and who may write at the same time."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmodel.errors import InputError
from specmodel.hardware.kernels import LAYERS
from specmodel.hardware.kernels.cpu import thread_count
from specmodel.hardware.machine import COLUMNS, KINDS, Ceilings, Grid, Point
from specmodel.hardware.measure import (
    Interrupted,
    Measurement,
    machine_of,
    measure,
    points_of,
)
from specmodel.hardware.measurement_files import alone
from specmodel.hardware.on_cpu import CpuMachine
from specmodel.hardware.samples import disturbed, median_and_spread, undisturbed, waited

GRID = Grid(("qwen3-1.7b",), (1, 2, 4), (100, 300), (1, 5), (100,), (1, 5), 16, 1e12, visits=2, visit_s=0.0)


class Clock:
    """A machine whose times are made up, so that what is derived from them is known."""

    backend, device, name = "cpu", "cpu-clock", "A clock"
    memory_bytes = 1e10
    weight_formats: tuple[str, ...] = ("fp32",)
    cache_formats: tuple[str, ...] = ("fp32",)

    def __init__(self, *, stop_after: int | None = None, version: str = "1") -> None:
        self.timed: list[Point] = []
        self.stop_after, self.version = stop_after, version

    def grid(self, quick: bool) -> Grid:
        return GRID

    def framework(self, point: Point) -> str:
        return "specmodel"

    def format_bytes(self, name: str) -> float:
        return 4.0

    def prepared(self) -> AbstractContextManager[object]:
        return nullcontext()

    def check(self) -> None:
        pass

    def ceilings(self) -> Ceilings:
        return Ceilings(40e9, 20e9, {"fp32": 100e9})

    def timer(self, point: Point) -> Callable[[], float]:
        if self.stop_after is not None and len(self.timed) >= self.stop_after:
            raise KeyboardInterrupt
        self.timed.append(point)
        first, second, third = point.sizes
        return lambda: 1e-3 * first if point.kind == "gemm" else 1e-4 * first * second * (1 + third)

    def identity(self) -> Mapping[str, Any]:
        return {"version": self.version}

    def state(self) -> Mapping[str, Any]:
        return {}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def run(tmp_path: Path, machine: Clock) -> Measurement:
    return measure("cpu", tmp_path / "m.csv", machine=machine)


def test_the_files_have_the_columns_of_measured_kernels(tmp_path: Path) -> None:
    """As gemm_h100_sxm.csv and attn_qlen.csv of the published measurements have them."""
    done = run(tmp_path, Clock())
    assert done.complete
    assert [path.name for path in done.files] == [*(f"m-{kind}.csv" for kind in KINDS), "m.json", "m.toml"]
    gemm, attention = rows_of(tmp_path / "m-gemm.csv"), rows_of(tmp_path / "m-attention.csv")
    assert set(gemm[0]) >= {"fw", "dtype", "n", "k", "m", "us"}
    assert set(attention[0]) >= {"kv", "hq", "hkv", "hd", "b", "kv_len", "q_len", "us"}
    assert {row["dtype"] for row in gemm} == {"float32"}
    assert {(row["kv_len"], row["q_len"]) for row in attention} == {
        ("101", "1"), ("105", "5"), ("301", "1"), ("305", "5"),
    }  # fmt: skip
    assert all(float(row["us"]) == pytest.approx(1e3 * float(row["n"]), rel=1e-3) for row in gemm)


def test_the_points_are_those_of_the_grid_once_each_and_always_in_the_same_order() -> None:
    machine = Clock()
    points = points_of(machine, GRID)
    assert points == points_of(machine, GRID)
    assert len(set(points)) == len(points)
    # 4 matrices x {1, 2, 4, 5, 10} tokens (20 is above most_tokens), 3 x 2 x 2 attention, 3 x 2 layers.
    assert [sum(p.kind == kind for p in points) for kind in KINDS] == [20, 12, 6]
    assert {p.sizes[:2] for p in points if p.kind == "gemm"} == set(LAYERS["qwen3-1.7b"].matrices.values())


def test_a_cache_that_does_not_fit_is_left_out() -> None:
    grid = Grid(("qwen3-1.7b",), (1, 64), (1000,), (1,), (), (), 1, 1e8, 1, 0.0)
    assert [p.sizes for p in points_of(Clock(), grid) if p.kind == "attention"] == [(1, 1000, 1)]


def test_an_interruption_keeps_whole_rows_and_the_next_run_takes_up_there(tmp_path: Path) -> None:
    first, second = Clock(stop_after=30), Clock()
    with pytest.raises(Interrupted) as caught:
        run(tmp_path, first)
    kept = caught.value.measurement
    assert 0 < kept.rows < kept.points
    assert json.loads((tmp_path / "m.json").read_text())["complete"] is False
    assert sum(len(rows_of(tmp_path / f"m-{kind}.csv")) for kind in KINDS) == kept.rows
    done = run(tmp_path, second)
    assert (done.complete, done.resumed) == (True, kept.rows)
    assert len(second.timed) == done.points - kept.rows
    for kind in KINDS:
        rows = rows_of(tmp_path / f"m-{kind}.csv")
        assert len(rows) == len({tuple(row[c] for c in COLUMNS[kind]) for row in rows})
    record = json.loads((tmp_path / "m.json").read_text())
    assert record["complete"] is True
    assert len(record["runs"]) == 2
    assert not (tmp_path / "m.lock").exists()


def test_a_machine_that_fails_on_the_way_keeps_its_rows_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, timer = Clock(), Clock.timer

    def failing(point: Point) -> Callable[[], float]:
        if len(machine.timed) == 20:
            raise RuntimeError("CUDA out of memory.\nTried to allocate")
        return timer(machine, point)

    monkeypatch.setattr(machine, "timer", failing)
    with pytest.raises(InputError, match=r"failed, 12 of 38 rows are kept: CUDA out of memory\.$"):
        run(tmp_path, machine)
    assert run(tmp_path, Clock()).resumed == 12


def test_a_finished_measurement_is_not_repeated(tmp_path: Path) -> None:
    run(tmp_path, Clock())
    before = (tmp_path / "m-gemm.csv").read_bytes()
    again = Clock()
    assert run(tmp_path, again).complete
    assert again.timed == []
    assert (tmp_path / "m-gemm.csv").read_bytes() == before


def test_a_row_that_was_cut_short_is_measured_again(tmp_path: Path) -> None:
    run(tmp_path, Clock())
    path = tmp_path / "m-gemm.csv"
    whole = path.read_text()
    path.write_text(whole[:-9])  # the machine lost power while this row was written
    again = Clock()
    assert run(tmp_path, again).complete
    assert len(again.timed) == 1
    assert sorted(path.read_text().splitlines()) == sorted(whole.splitlines())


def test_rows_of_another_machine_or_version_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path, Clock())
    before = (tmp_path / "m-gemm.csv").read_bytes()
    with pytest.raises(InputError, match="another machine's or version's measurement"):
        run(tmp_path, Clock(version="2"))
    assert (tmp_path / "m-gemm.csv").read_bytes() == before


def test_a_file_that_is_no_measurement_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "m-layer.csv").write_bytes(b"\xff\xfe my own notes")
    with pytest.raises(InputError, match="is no measurement"):
        run(tmp_path, Clock())
    assert (tmp_path / "m-layer.csv").read_bytes() == b"\xff\xfe my own notes"
    assert not (tmp_path / "m-gemm.csv").exists()


@pytest.mark.parametrize("out", ["", ".", "nowhere/m.csv"])
def test_a_place_where_no_file_can_be_is_refused(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="out"):
        measure("cpu", out, machine=Clock())
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_do_not_write_the_same_file(tmp_path: Path) -> None:
    with alone(tmp_path / "m"), pytest.raises(InputError, match=f"process {os.getpid()}"):
        run(tmp_path, Clock())
    assert run(tmp_path, Clock()).complete


HOLD = """
import sys
from pathlib import Path
from specmodel.hardware.measurement_files import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_run_that_was_killed_leaves_no_lock_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "m")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"process {holder.pid}"):
            run(tmp_path, Clock())
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert run(tmp_path, Clock()).complete


SLOW = """
import signal, sys, time
from specmodel.hardware.machine import Ceilings, Grid
from specmodel.hardware.measure import Interrupted, measure
from specmodel.hardware.on_cpu import CpuMachine
signal.signal(signal.SIGINT, signal.default_int_handler)
machine = CpuMachine(pool_bytes=2.6e8)
machine.ceilings = lambda: Ceilings(1.0, 1.0, {"fp32": 1.0})
grid = Grid(("llama-3.2-1b",), (1,), (64,), (1,), (), (), 1, 1e7, visits=1000, visit_s=0.01)
try:
    measure("cpu", sys.argv[1], machine=machine, grid=grid, progress=lambda *what: print(what, flush=True))
except Interrupted as interrupted:
    print(interrupted, flush=True)
    sys.exit(130)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_run_in_the_middle_of_a_sample(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(tmp_path / "m")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        while "gemm" not in child.stdout.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        said = child.stdout.read()
    assert (child.returncode, said.splitlines()[-1]) == (130, "0 of 5 rows kept")
    assert json.loads((tmp_path / "m.json").read_text())["complete"] is False
    assert not (tmp_path / "m.lock").exists()


def test_figures_follow_from_the_rows(tmp_path: Path) -> None:
    figures = run(tmp_path, Clock()).figures
    # Largest plain cache: 4 sequences of 301 tokens, 8 heads x 128 x 2 x 4 bytes; 1e-4 x 4 x 300 x 2 s.
    rate = 4 * 301 * 8 * 128 * 2 * 4 / (1e-4 * 4 * 300 * 2)
    assert figures["attention_of_read"] == pytest.approx(rate / 40e9, abs=1e-4)
    assert figures["attention_of_copy"] == pytest.approx(rate / 20e9, abs=1e-4)
    assert figures["attention_wide"] == 3.0
    assert figures["layer_b4_c100_w5"] == 3.0


def test_the_device_file_holds_the_measured_ceilings(tmp_path: Path) -> None:
    run(tmp_path, Clock())
    device = tomllib.loads((tmp_path / "m.toml").read_text())
    assert device["bandwidth"] == {"value": 40e9, "unit": "B/s", "kind": "measured", "source": "run"}
    assert device["peak_bf16"]["value"] == 100e9
    assert "m.json" in device["sources"]["run"]["title"]


def test_samples_in_which_others_took_the_cores_do_not_count() -> None:
    assert undisturbed([(9.0, 4.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.01)]) == [1.0, 2.0, 3.0]
    # Too few to choose from: the fastest, since disturbance only adds time.
    assert undisturbed([(9.0, 4.0), (1.0, 0.2), (2.0, 0.0), (3.0, 0.1)]) == [1.0, 2.0, 3.0]
    assert undisturbed([(1.0, 0.2)]) == [1.0]
    assert median_and_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, 2 / 3)
    assert median_and_spread([7.0]) == (7.0, 0.0)


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="only Linux tells how long threads waited"
)
def test_a_thread_that_others_keep_from_a_core_has_waited() -> None:
    """Twice as many busy threads as cores: about half of their time is waiting."""
    stop = threading.Event()

    def spin() -> None:  # hashing lets go of the interpreter lock
        while not stop.is_set():
            hashlib.sha256(bytes(1 << 20)).digest()

    threads = [threading.Thread(target=spin) for _ in range(2 * thread_count())]
    before, begun = waited(), time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    elapsed, wait = time.perf_counter() - begun, waited() - before
    stop.set()
    for thread in threads:
        thread.join()
    assert wait > 0.2 * elapsed
    assert disturbed((elapsed, wait))


def test_what_was_timed_often_enough_is_kept_when_it_is_interrupted(tmp_path: Path) -> None:
    class Stops(Clock):
        """Ctrl-C at the tenth sample of the second visit."""

        samples = 0

        def timer(self, point: Point) -> Callable[[], float]:
            run_once = super().timer(point)

            def sample() -> float:
                self.samples += 1
                if self.samples > 40:
                    raise KeyboardInterrupt
                return run_once()

            return sample

    grid = dataclasses.replace(GRID, block=1000, visits=1)
    with pytest.raises(Interrupted) as caught:
        measure("cpu", tmp_path / "m", machine=Stops(), grid=grid)
    kept = caught.value.measurement.rows
    assert kept == 40 - 6 * 3  # six layers, four samples each, come first
    assert measure("cpu", tmp_path / "m", machine=Clock(), grid=grid).resumed == kept


def test_progress_is_told_from_the_first_point_to_the_last(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    done = measure("cpu", tmp_path / "m", machine=Clock(), progress=lambda *what: said.append(what))
    assert [now for now, _, _ in said] == sorted(now for now, _, _ in said)
    assert {total for _, total, _ in said} == {done.points}
    assert said[-1] == (done.points, done.points, "done")


def test_this_cpu_is_measured_in_every_kind(tmp_path: Path) -> None:
    machine = CpuMachine(pool_bytes=2.6e8)
    grid = Grid(("llama-3.2-1b",), (1, 2), (64,), (1, 3), (64,), (1, 3), 6, 1e7, visits=1, visit_s=0.0)
    done = measure("cpu", tmp_path / "cpu", machine=machine, grid=grid)
    assert done.complete
    times = [float(row["us"]) for kind in KINDS for row in rows_of(tmp_path / f"cpu-{kind}.csv")]
    assert len(times) == done.points
    assert min(times) > 0.0
    assert done.ceilings.matmul_flops_per_s["fp32"] > 1e8
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert record["identity"]["threads"] >= 1
    assert record["identity"]["versions"]["numpy"] == np.__version__


def test_windows_of_the_pool_follow_each_other_so_that_data_is_cold() -> None:
    machine = CpuMachine(pool_bytes=4e6)
    start = machine._pool.__array_interface__["data"][0]
    places = []
    for turn in range(40):
        parts = machine.windows(turn, [1000, 2000])
        assert [len(part) for part in parts] == [1000, 2000]
        places.append((parts[0].__array_interface__["data"][0] - start) // 4)
    assert max(places) + 3000 <= len(machine._pool)
    assert all(abs(b - a) >= 3000 - 16 for a, b in itertools.pairwise(places))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InputError, match="unknown name; known: cpu, cuda"):
        machine_of("metal")


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("specmodel.hardware.on_cuda")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=r"torch is missing: pip install 'specmodel\[gpu\]'") as caught:
        machine_of("cuda")
    assert "\n" not in str(caught.value)
