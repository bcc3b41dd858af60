# mypy: disable-error-code="misc, no-untyped-call, no-any-return"
"""An NVIDIA GPU as a machine to measure: cold buffers, CUDA graphs and events, ceilings, clocks."""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton

from specmodel.errors import InputError
from specmodel.hardware.kernels import chain, cuda
from specmodel.hardware.machine import Ceilings, Grid, Point

GIB = 2**30
_TYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0}
# Cuts of the attention kernel to choose from, for each cache format and height of the query tile. What suits
# a GPU depends on its registers and shared memory, so it is measured.
_LAUNCHES = (cuda.Launch(64, 4, 3), cuda.Launch(128, 4, 2), cuda.Launch(128, 8, 3), cuda.Launch(32, 4, 4))
_TUNED_ROWS = 32
_GRAPH_S = 400e-6  # a graph holds launches for at least so long: the cost of starting it must not show
_COLD_CACHES = 4.0  # data that a graph reads, in last-level caches


class CudaMachine:
    """The Triton attention kernel and torch's matrix products on one GPU."""

    backend = "cuda"
    trial = (32, 4096)  # sequences and cached tokens at which cuts of the attention kernel are compared

    def __init__(self, *, pool_bytes: float | None = None) -> None:
        self.place = _gpu()
        properties = torch.cuda.get_device_properties(self.place)
        self.name = str(properties.name)
        self.device = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        self._id = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "0"
        self.memory_bytes = float(properties.total_memory)
        self.l2_bytes = float(getattr(properties, "L2_cache_size", 0) or 64 << 20)
        self.capability = (int(properties.major), int(properties.minor))
        self._multiprocessors = int(properties.multi_processor_count)
        self._prepare(pool_bytes or min(20 * GIB, 0.4 * torch.cuda.mem_get_info(self.place)[0]))

    def _prepare(self, pool_bytes: float) -> None:
        """Buffers, and which formats this GPU has."""
        self.weight_formats: tuple[str, ...] = (
            ("bf16", "int8") if cuda.has_linear_int8(self.place) else ("bf16",)
        )
        self.cache_formats: tuple[str, ...] = ("bf16", "fp8") if self.capability >= (9, 0) else ("bf16",)
        # One pool of bf16 numbers; int8 weights are its bytes. fp8 has its own: not all bytes are numbers.
        self._pool = torch.empty(int(pool_bytes) // 2, dtype=torch.bfloat16, device=self.place).normal_(
            0.0, 0.02
        )
        self._pool8: Any = None
        self._cache = self._pool[:0]
        self._launches: dict[tuple[str, int, int], cuda.Launch] = {}
        torch.manual_seed(0)

    def grid(self, quick: bool) -> Grid:
        room = 0.9 * self._pool.numel()  # bytes: the fp8 pool has as many elements, of one byte
        if quick:
            return Grid(
                ("llama-3.1-8b",), (1, 4, 16, 64), (1024, 8192), (1, 2, 5), (1024,), (1, 2, 5),
                most_tokens=512, cache_bytes=min(room, 4e9), visits=3, visit_s=0.002,
            )  # fmt: skip
        return Grid(
            ("llama-3.1-8b", "qwen3-1.7b"), (1, 2, 4, 8, 16, 32, 64, 128, 256),
            (512, 1024, 2048, 4096, 8192, 16384, 32768), (1, 2, 3, 4, 5, 6, 8, 9),
            (1024, 8192), (1, 2, 3, 5, 9),
            most_tokens=2304, cache_bytes=min(room, 9.5e9), visits=3, visit_s=0.002,
        )  # fmt: skip

    def framework(self, point: Point) -> str:
        return "specmodel"

    def format_bytes(self, name: str) -> float:
        return _BYTES[name]

    def prepared(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def check(self) -> None:
        """Compare the kernel with attention in float64 on this GPU."""
        torch.manual_seed(1)
        for cache, (width, group, dim) in itertools.product(self.cache_formats, ((1, 4, 128), (5, 8, 64))):
            batch, kv_heads, capacity = 3, 2, 700
            q = torch.randn(batch, width, kv_heads * group, dim, device=self.place).to(torch.bfloat16)
            k, v = torch.randn(2, batch, kv_heads, capacity, dim, device=self.place).to(_TYPES[cache])
            lengths = torch.tensor([capacity, 333, width], dtype=torch.int32, device=self.place)
            got = cuda.attention(q, k, v, lengths)
            error = float((got.double() - _expected(q, k, v, lengths.tolist())).abs().max())
            if not error < 0.05:
                raise InputError(
                    "backend",
                    "cuda",
                    f"the kernel is wrong by {error:.2g} with {cache} cache on {self.name}: not measured",
                )

    def timer(self, point: Point) -> Callable[[], float]:
        run, moved = {"gemm": self._gemm, "attention": self._attention, "layer": self._layer}[point.kind](
            point
        )
        return self._replayed(run, moved)

    def _replayed(self, run: Callable[[int], object], moved_bytes: float) -> Callable[[], float]:
        """Capture enough cold launches in a CUDA graph; each call replays it and says how long one took."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(0)  # compiles
            once = _elapsed(lambda: run(1))
        torch.cuda.current_stream().wait_stream(side)
        cold = math.ceil(_COLD_CACHES * self.l2_bytes / moved_bytes)
        launches = max(2, min(200, max(cold, math.ceil(_GRAPH_S / once))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for turn in range(launches):
                run(turn)
        graph.replay()
        kept = (graph, run)  # a graph does not own the tensors that it reads: they live as long as its timer
        return lambda: _elapsed(kept[0].replay) / launches

    def window(self, turn: int, shape: Sequence[int], format_name: str = "bf16") -> torch.Tensor:
        """The next stretch of the pool, as a contiguous tensor; each turn starts where the last ended."""
        pool = self._pool
        if format_name == "int8":
            pool = pool.view(torch.int8)
        elif format_name == "fp8":
            if self._pool8 is None:
                self._pool8 = torch.empty(pool.numel(), dtype=torch.float8_e4m3fn, device=self.place)
                for part, source in zip(self._pool8.chunk(64), pool.chunk(64), strict=True):
                    part.copy_(source * 50)
            pool = self._pool8
        count = math.prod(shape)
        start = turn * count % max(1, pool.numel() - count)
        start -= start % 256
        return pool[start : start + count].view(*shape)

    def _gemm(self, point: Point) -> tuple[Callable[[int], object], float]:
        n, k, m = point.sizes
        x = torch.randn(m, k, device=self.place).to(torch.bfloat16)
        moved = n * k * _BYTES[point.weights]
        if point.weights == "int8":
            scales = torch.full((n,), 0.01, dtype=torch.bfloat16, device=self.place)
            return lambda turn: cuda.linear_int8(x, self.window(turn, (n, k), "int8"), scales), moved
        return lambda turn: cuda.linear(x, self.window(turn, (n, k))), moved

    def _attention(self, point: Point) -> tuple[Callable[[int], object], float]:
        batch, context, width = point.sizes
        launch = self._launch(point)
        q, lengths, seen = self._queries(point)
        size = (2, batch, point.shape.kv_heads, context + width, point.shape.head_dim)

        def run(turn: int) -> object:
            k, v = self.window(turn, size, point.cache)
            return cuda.attention(q, k, v, lengths, seen, launch=launch)

        return run, math.prod(size) * _BYTES[point.cache]

    def _layer(self, point: Point) -> tuple[Callable[[int], object], float]:
        batch, context, width = point.sizes
        shape, launch = point.shape, self._launch(point)
        _, lengths, seen = self._queries(point)
        x = torch.randn(batch, width, shape.hidden, device=self.place).to(torch.bfloat16)
        size = (2, batch, shape.kv_heads, context + width, shape.head_dim)
        # Apart from the pool: a layer writes into its cache, and the pool holds other layers' weights.
        if self._cache.numel() < math.prod(size):
            self._cache = self.window(0, size).flatten().clone()
        k, v = self._cache[: math.prod(size)].view(size)
        sizes = {name: n * k for name, (n, k) in shape.matrices.items()}
        weight_elements = sum(sizes.values())

        def run(turn: int) -> object:
            flat = self.window(turn, (weight_elements,)).split(list(sizes.values()))
            parts = zip(shape.matrices.items(), flat, strict=True)
            weights = {name: part.view(rows, columns) for (name, (rows, columns)), part in parts}
            return cuda.layer_pass(shape, weights, k, v, x, lengths, seen, launch)

        return run, 2.0 * (weight_elements + k.numel() + v.numel())

    def _queries(self, point: Point) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, lengths and mask of a point, made before a graph is captured."""
        batch, context, width = point.sizes
        size = (batch, width, point.shape.heads, point.shape.head_dim)
        q = torch.randn(size, device=self.place).to(torch.bfloat16)
        lengths = torch.full((batch,), context + width, dtype=torch.int32, device=self.place)
        seen = torch.tensor([chain(width)] * batch, dtype=torch.int64, device=self.place)
        return q, lengths, seen

    def _launch(self, point: Point) -> cuda.Launch:
        """The fastest cut for this cache format and query tile, tried once."""
        rows = cuda.rows_of(point.sizes[2], point.shape.group)
        key = (point.cache, rows, point.shape.head_dim)
        if rows > _TUNED_ROWS:
            return cuda.launch_of(rows)
        if key not in self._launches:
            trial = Point("attention", point.shape, (*self.trial, point.sizes[2]), cache=point.cache)
            self._launches[key] = self._fastest(trial, key)
        return self._launches[key]

    def _fastest(self, trial: Point, key: tuple[str, int, int]) -> cuda.Launch:
        seconds: dict[cuda.Launch, float] = {}
        for launch in _LAUNCHES:
            self._launches[key] = launch
            try:
                timer = self.timer(trial)
            except triton.runtime.errors.OutOfResources:
                continue  # more shared memory than this GPU has
            seconds[launch] = min(timer() for _ in range(5))
        return min(seconds, key=lambda launch: seconds[launch])

    def ceilings(self) -> Ceilings:
        """Best of several: copying and reading half of the pool, square matrix products."""
        half = self._pool.numel() // 2
        source, target = self._pool[:half], self._pool[half : 2 * half]
        moved = 2.0 * half
        copy = _best(lambda: target.copy_(source))
        read = _best(lambda: torch.linalg.vector_norm(source, ord=float("inf")))
        side = 8192
        a, b = (self.window(turn, (side, side)) for turn in range(2))
        work = 2.0 * side**3
        peaks = {"bf16": work / _best(lambda: a @ b.T)}
        if self.capability >= (8, 9):
            a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            one = torch.ones((), device=self.place)
            with contextlib.suppress(RuntimeError):  # this torch may have no fp8 product for this GPU
                peaks["fp8"] = work / _best(
                    lambda: torch._scaled_mm(a8, b8.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
                )
        return Ceilings(
            max(moved / read, 2 * moved / copy), 2 * moved / copy, peaks, {"norm_bytes_per_s": moved / read}
        )

    def identity(self) -> Mapping[str, Any]:
        return {
            "gpu": self.name,
            "compute_capability": ".".join(map(str, self.capability)),
            "multiprocessors": self._multiprocessors,
            "memory_bytes": self.memory_bytes,
            "l2_bytes": self.l2_bytes,
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "cuda": str(torch.version.cuda),
                "triton": str(triton.__version__),
                "driver": _smi(self._id, "driver_version"),
                "system": f"{platform.system()} {platform.machine()}",
            },
        }

    def state(self) -> Mapping[str, Any]:
        names = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")
        launches = {"/".join(map(str, key)): str(launch) for key, launch in self._launches.items()}
        return {name: _smi(self._id, name) for name in names} | {"chosen_launches": launches}


def _gpu() -> torch.device:
    """The current GPU; where there is none that serves, an InputError that says what is missing."""
    if torch.version.cuda is None:
        raise InputError("backend", "cuda", f"this torch ({torch.__version__}) was built without CUDA")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        try:
            torch.cuda.init()
            reason = str(said[0].message) if said else "torch sees none"
        except (RuntimeError, AssertionError) as error:
            reason = str(error)
        reason = re.split(r"\.\s|\n", reason.strip())[0].rstrip(".")
        raise InputError("backend", "cuda", f"no usable NVIDIA GPU: {reason}")
    place = torch.device("cuda", torch.cuda.current_device())
    capability = torch.cuda.get_device_capability(place)
    if capability < (8, 0):
        raise InputError(
            "backend",
            "cuda",
            f"{torch.cuda.get_device_name(place)} has no bf16: compute capability 8.0 is needed",
        )
    return place


def _expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Attention of a chain in float64, one sequence after another."""
    width, group = q.shape[1], q.shape[2] // k.shape[1]
    out = []
    for b, length in enumerate(lengths):
        keys, values = (t[b, :, :length].double().repeat_interleave(group, 0) for t in (k, v))
        scores = torch.einsum("whd,hld->hwl", q[b].double(), keys) * q.shape[3] ** -0.5
        token = torch.arange(length, device=q.device) - (length - width)
        scores = scores.masked_fill(
            token[None, :] > torch.arange(width, device=q.device)[:, None], -torch.inf
        )
        out.append(torch.einsum("hwl,hld->whd", scores.softmax(-1), values))
    return torch.stack(out)


def _elapsed(work: Callable[[], object]) -> float:
    """Seconds on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def _best(work: Callable[[], object], times: int = 8) -> float:
    work()
    return min(_elapsed(work) for _ in range(times))


def _smi(gpu: str, name: str) -> str:
    """What nvidia-smi says of a GPU; "" without it."""
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader", f"--id={gpu}"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip().splitlines()[0] if said.stdout.strip() else ""
