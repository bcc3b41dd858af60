"""What measuring asks of a machine, and the points it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from specmodel.hardware.kernels import LayerShape

Kind = Literal["gemm", "attention", "layer"]
KINDS: tuple[Kind, ...] = ("gemm", "attention", "layer")

# The columns of each kind's file up to the time. GEMM: y[m, n] = x[m, k] w[n, k]. Attention: kv_len counts
# the q_len new tokens. Layer: `batch` sequences with `context` cached tokens each, `width` new ones.
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "gemm": ("fw", "dtype", "n", "k", "m"),
    "attention": ("fw", "kv", "hq", "hkv", "hd", "b", "kv_len", "q_len"),
    "layer": ("fw", "dtype", "kv", "layer", "batch", "context", "width"),
}

# Names of number formats in the files, as those of other measurements have them.
WEIGHT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8_wo"}


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to time.

    ``sizes`` is (n, k, m) for a GEMM, (batch, context, width) for attention and for a layer. ``weights``
    and ``cache`` are number formats ("" where the kind has none).
    """

    kind: Kind
    shape: LayerShape
    sizes: tuple[int, int, int]
    weights: str = ""
    cache: str = ""

    def fields(self, framework: str) -> tuple[str, ...]:
        """Its row in the file of its kind, without the time."""
        shape, (first, second, third) = self.shape, self.sizes
        weights = WEIGHT_NAMES.get(self.weights, self.weights)
        values: tuple[object, ...]
        if self.kind == "gemm":
            values = (framework, weights, first, second, third)
        elif self.kind == "attention":
            heads = (shape.heads, shape.kv_heads, shape.head_dim)
            values = (framework, self.cache, *heads, first, second + third, third)
        else:
            values = (framework, weights, self.cache, shape.name, *self.sizes)
        return tuple(str(value) for value in values)


@dataclass(frozen=True, slots=True)
class Grid:
    """Which points to measure, and how long.

    ``block`` points take turns: each is visited ``visits`` times, the others in between, so that what slows the
    machine for a second does not spoil one point alone, and what slows it for longer spoils all alike. A visit
    takes samples for ``visit_s`` seconds, at least one. Points whose samples other processes disturbed are visited
    again, for ``patience_s`` seconds in all.
    """

    layers: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    widths: tuple[int, ...]
    layer_contexts: tuple[int, ...]
    layer_widths: tuple[int, ...]
    most_tokens: int
    cache_bytes: float
    visits: int
    visit_s: float
    patience_s: float = 0.0
    block: int = 12


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The best a machine was seen to do, whatever the work: what a roofline is drawn under.

    Rates in B/s and FLOP/s; ``others`` holds further figures by name and unit.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, float]
    others: Mapping[str, float] = field(default_factory=dict)


class Machine(Protocol):
    """A CPU or a GPU with the small decode kernel on it."""

    backend: str
    device: str  # id: lower case, hyphens
    name: str  # as people call it
    memory_bytes: float
    weight_formats: tuple[str, ...]
    cache_formats: tuple[str, ...]

    def grid(self, quick: bool) -> Grid:
        """The points this machine is measured at by default."""

    def framework(self, point: Point) -> str:
        """Whose kernel times this point."""

    def format_bytes(self, name: str) -> float:
        """Bytes per stored number."""

    def prepared(self) -> AbstractContextManager[object]:
        """What must hold while anything is timed."""

    def check(self) -> None:
        """Refuse to time a kernel that computes something else (InputError)."""

    def ceilings(self) -> Ceilings:
        """Measure what the machine can do at most."""

    def timer(self, point: Point) -> Callable[[], float]:
        """Prepare a point and warm it up; each call runs it on data no cache holds and says how long. [s]"""

    def identity(self) -> Mapping[str, Any]:
        """What must be the same for two runs to be comparable: hardware, threads, versions."""

    def state(self) -> Mapping[str, Any]:
        """What may change from run to run: clocks, load, temperature."""
