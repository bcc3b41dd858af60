"""A CPU as a machine to measure: cold buffers, ceilings, versions."""

from __future__ import annotations

import itertools
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from specmodel.hardware.kernels import LAYERS, cpu
from specmodel.hardware.kernels.cpu import Floats
from specmodel.hardware.machine import Ceilings, Grid, Point

GIB = 2**30
_SYSFS = Path("/sys/devices/system/cpu/cpu0")


class CpuMachine:
    """NumPy and BLAS in float32 on all cores; torch in bf16 beside it where torch is installed."""

    backend = "cpu"

    def __init__(self, *, pool_bytes: float | None = None) -> None:
        self.name = _model_name()
        self.threads = cpu.thread_count()
        self.device = f"cpu-{_slug(self.name)}-{self.threads}-cores"
        self.cache_bytes = _last_level_cache()
        # Keys, values and weights all lie in one pool; each run takes the next window of it, so what the
        # last runs left in the cache is of no use to it.
        self.memory_bytes = _memory_bytes()
        self._pool = _filled(pool_bytes or min(0.4 * self.memory_bytes, 1.25 * GIB + 8 * self.cache_bytes))
        self._torch = _torch()
        self.weight_formats: tuple[str, ...] = ("fp32", "bf16") if self._torch else ("fp32",)
        self.cache_formats: tuple[str, ...] = self.weight_formats
        self._pool16: Any = None
        self._cache: Floats = np.empty(0, np.float32)

    def grid(self, quick: bool) -> Grid:
        room = 4.0 * len(self._pool)
        if quick:
            return Grid(
                ("qwen3-1.7b",), (1, 2, 4, 8, 16, 32), (256, 1024, 4096), (1, 3, 5, 9), (1024,), (1, 5),
                most_tokens=160, cache_bytes=min(room, 0.6e9), visits=6, visit_s=0.02, patience_s=5.0, block=200,
            )  # fmt: skip
        return Grid(
            ("qwen3-1.7b", "llama-3.2-1b"), (1, 2, 4, 8, 16, 24, 32), (512, 1024, 2048, 4096, 8192),
            (1, 2, 3, 5, 9), (1024, 4096), (1, 2, 3, 5, 9),
            most_tokens=288, cache_bytes=min(room, 1.1e9), visits=5, visit_s=0.03, patience_s=30.0, block=200,
        )  # fmt: skip

    def framework(self, point: Point) -> str:
        return "torch" if "bf16" in (point.weights, point.cache) else "specmodel"

    def format_bytes(self, name: str) -> float:
        return {"fp32": 4.0, "bf16": 2.0}[name]

    def check(self) -> None:
        """Nothing to do: the kernel runs where its tests ran, on the same NumPy."""

    def prepared(self) -> AbstractContextManager[object]:
        return cpu.one_blas_thread()

    def windows(self, turn: int, sizes: Sequence[int]) -> list[Floats]:
        """Stretches of the pool, of so many elements each; each turn starts where the last ended."""
        start = turn * sum(sizes) % max(1, len(self._pool) - sum(sizes))
        start -= start % 16  # a cache line
        stops = list(itertools.accumulate(sizes, initial=start))
        return [self._pool[first:stop] for first, stop in itertools.pairwise(stops)]

    def timer(self, point: Point) -> Callable[[], float]:
        if self.framework(point) == "torch":
            run = self._torch_run(point)
        else:
            run = {"gemm": self._gemm, "attention": self._attention, "layer": self._layer}[point.kind](point)
        turns = itertools.count()
        run(next(turns))

        def sample() -> float:
            turn = next(turns)
            start = time.perf_counter()
            run(turn)
            return time.perf_counter() - start

        return sample

    def _gemm(self, point: Point) -> Callable[[int], object]:
        n, k, m = point.sizes
        x = np.random.default_rng(0).standard_normal((k, m), dtype=np.float32)
        return lambda turn: cpu.linear(self.windows(turn, [n * k])[0].reshape(n, k), x)

    def _attention(self, point: Point) -> Callable[[int], object]:
        batch, context, width = point.sizes
        shape = point.shape
        cached = _cache_shape(point)
        q = np.random.default_rng(0).standard_normal(
            (batch, width, shape.heads, shape.head_dim), dtype=np.float32
        )

        def run(turn: int) -> object:
            k, v = (part.reshape(cached) for part in self.windows(turn, [int(np.prod(cached))] * 2))
            return cpu.attention(q, k, v, [context + width] * batch)

        return run

    def _layer(self, point: Point) -> Callable[[int], object]:
        batch, context, width = point.sizes
        matrices, cached = point.shape.matrices, _cache_shape(point)
        sizes = [n * k for n, k in matrices.values()]
        # A layer writes keys and values. Written into the pool they would be some later layer's weights, and
        # grow from pass to pass; apart, they stay ordinary numbers, cold after the weights read in between.
        held = int(np.prod(cached))
        if len(self._cache) < 2 * held:
            self._cache = self._pool[: 2 * held].copy()
        k, v = (self._cache[part * held : (part + 1) * held].reshape(cached) for part in range(2))
        x = np.random.default_rng(0).standard_normal((point.shape.hidden, batch * width), dtype=np.float32)

        def run(turn: int) -> object:
            parts = zip(matrices.items(), self.windows(turn, sizes), strict=True)
            weights = {name: part.reshape(size) for (name, size), part in parts}
            return cpu.layer_pass(point.shape, weights, k, v, x, [context + width] * batch)

        return run

    def _torch_run(self, point: Point) -> Callable[[int], object]:
        """The same products by torch in bf16: its linear layer, and its own attention with packed queries."""
        torch, shape = self._torch, point.shape
        if self._pool16 is None:
            self._pool16 = torch.from_numpy(self._pool).to(torch.bfloat16)
        elements = len(self._pool16)

        def window(turn: int, count: int) -> Any:
            start = turn * count % max(1, elements - count)
            return self._pool16[start - start % 32 :][:count]

        if point.kind == "gemm":
            n, k, m = point.sizes
            x = torch.randn(m, k).to(torch.bfloat16)
            return lambda turn: torch.nn.functional.linear(x, window(turn, n * k).view(n, k))
        batch, context, width = point.sizes
        q = torch.randn(batch, shape.kv_heads, width * shape.group, shape.head_dim).to(torch.bfloat16)
        size = (2, batch, shape.kv_heads, context + width, shape.head_dim)

        def run(turn: int) -> object:
            k, v = window(turn, int(np.prod(size))).view(size)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        return run

    def ceilings(self) -> Ceilings:
        """Best of several: reading (BLAS matrix times vector), copying, triad, a square matrix product."""
        third = len(self._pool) // 3
        a, b, c = (self._pool[i * third : (i + 1) * third] for i in range(3))
        parts = np.array_split(np.arange(third), self.threads * 64)
        pieces = [slice(int(part[0]), int(part[-1]) + 1) for part in parts]

        def triad(piece: slice) -> None:
            np.multiply(c[piece], np.float32(0.5), out=a[piece])
            np.add(a[piece], b[piece], out=a[piece])

        def on_all(work: Callable[[slice], object]) -> Callable[[], object]:
            return lambda: cpu.share_out(work, pieces)

        columns = 4096
        wide = b[: third - third % columns].reshape(-1, columns)
        rows = [slice(first, first + 64) for first in range(0, len(wide), 64)]
        vector, square = np.ones(columns, np.float32), np.full((2048, 2048), 0.01, np.float32)
        seconds = {
            "read": _best(lambda: cpu.share_out(lambda some: wide[some] @ vector, rows)),
            "sum": _best(on_all(lambda piece: b[piece].sum())),
            "copy": _best(on_all(lambda piece: np.copyto(a[piece], b[piece]))),
            "triad": _best(on_all(triad)),
            "matmul": _best(lambda: cpu.linear(square, square)),
        }
        self._pool[: 2 * third] = self._pool[-2 * third :]  # the triad may have left tiny numbers
        others = {
            "sum_bytes_per_s": b.nbytes / seconds["sum"],
            "triad_bytes_per_s": 3 * b.nbytes / seconds["triad"],
        }
        # What BLAS does for exactly one token, and no wider pass can use: beside the plain pass of `linear`.
        for name, (n, k) in LAYERS["qwen3-1.7b"].matrices.items():
            others[f"one_token_{name}_s"] = _best(self._one_token(n, k))
        read = max(wide.nbytes / seconds["read"], others["sum_bytes_per_s"])
        return Ceilings(
            read, 2 * b.nbytes / seconds["copy"], {"fp32": 2 * 2048**3 / seconds["matmul"]}, others
        )

    def _one_token(self, n: int, k: int) -> Callable[[], object]:
        x, turns = np.ones(k, np.float32), itertools.count()

        def run() -> None:
            weight = self.windows(next(turns), [n * k])[0].reshape(n, k)
            cpu.share_out(lambda first: weight[first : first + 256] @ x, range(0, n, 256))

        return run

    def identity(self) -> Mapping[str, Any]:
        blas: Any = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        versions = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "blas": f"{blas.get('name')} {blas.get('version')}",
            "system": f"{platform.system()} {platform.machine()}",
        }
        if self._torch:
            versions["torch"] = str(self._torch.__version__)
        return {
            "cpu": self.name,
            "threads": self.threads,
            "last_level_cache_bytes": self.cache_bytes,
            "versions": versions,
        }

    def state(self) -> Mapping[str, Any]:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return {"load_average_1min": load, "clock_mhz": _clock_mhz()}


def _cache_shape(point: Point) -> tuple[int, int, int, int]:
    """Of keys, and of values: whole blocks."""
    batch, context, width = point.sizes
    shape = point.shape
    capacity = cpu.padded(context + width, cpu.block_tokens(shape.head_dim))
    return batch, shape.kv_heads, capacity, shape.head_dim


def _best(run: Callable[[], object], times: int = 9) -> float:
    """The shortest of several runs; the first, which warms up, does not count."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _filled(size_bytes: float) -> Floats:
    """A pool of ordinary numbers: no zeros, whose pages might all be one, and none too small to be quick."""
    pool = np.empty(int(size_bytes) // 4, np.float32)
    some = np.random.default_rng(0).standard_normal(min(len(pool), 1 << 22), dtype=np.float32) * np.float32(
        0.02
    )
    for start in range(0, len(pool), len(some)):
        pool[start : start + len(some)] = some[: len(pool) - start]
    return pool


def _torch() -> Any:
    """torch where it is installed, else None."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    torch.set_grad_enabled(False)
    return torch


def _slug(text: str) -> str:
    return re.sub(
        r"[^a-z0-9]+", "-", re.sub(r"\((?:R|TM)\)|\bCPU\b|@.*", " ", text, flags=re.I).lower()
    ).strip("-")


def _model_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _clock_mhz() -> float | None:
    try:
        found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return max(float(mhz) for mhz in found) if found else None


def _last_level_cache() -> int:
    """Bytes of the largest cache that the system reports; 64 MiB where it does not say."""
    sizes = []
    for file in _SYSFS.glob("cache/index*/size"):
        found = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
        if found:
            sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes, default=64 << 20)


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 8.0 * GIB
