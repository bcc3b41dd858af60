"""One weight matrix as engines run it, and its share on one GPU under tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Literal

from specmodel.errors import InputError

Split = Literal["rows", "columns", "none"]
VOCABULARY_QUANTUM = 64
"""Engines (vLLM, SGLang) pad the vocabulary to a multiple of this, then to one of the GPU count."""


def check_tp(tp: int) -> None:
    """Refuse a GPU count that is no positive integer."""
    if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
        raise InputError("tp", tp, "an integer >= 1")


def divided(count: int, tp: int, what: str) -> int:
    """``count / tp``, refused where it leaves a rest, as engines do."""
    check_tp(tp)
    if count % tp:
        legal = [n for n in range(1, min(count, 256) + 1) if count % n == 0]
        raise InputError("tp", tp, f"{count} {what} divide by {', '.join(map(str, legal[:12]))} only")
    return count // tp


def kv_heads_per_gpu(kv_heads: int, tp: int) -> int:
    """KV heads that one GPU holds: divided while there are enough, then replicated, one on each GPU.

    Raises
    ------
    InputError
        If neither of ``kv_heads`` and ``tp`` divides the other.
    """
    check_tp(tp)
    if kv_heads % tp == 0:
        return kv_heads // tp
    if tp % kv_heads == 0:
        return 1
    raise InputError("tp", tp, f"must divide the {kv_heads} KV heads, or be a multiple of them")


def padded_vocabulary(vocabulary: int, tp: int = 1, quantum: int = VOCABULARY_QUANTUM) -> int:
    """Rows of the output head once padded so that it splits evenly over ``tp`` GPUs.

    >>> padded_vocabulary(129280, 24), padded_vocabulary(151552, 6, quantum=1)
    (129408, 151554)
    """
    check_tp(tp)
    step = lcm(quantum, tp)
    return -(-vocabulary // step) * step


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix product ``y[rows] = W[rows, columns] x[columns]``, fused as engines fuse it.

    Attributes
    ----------
    name : str
        "qkv", "o", "gate_up", "down", "router", "q_a", ...
    rows, columns : int
        Outputs and inputs on one GPU that holds all of it.
    part : str
        Which entry of a Precision it is stored in.
    split : "rows", "columns" or "none"
        The dimension that tensor parallelism divides; "none" is replicated on every GPU.
    units, unit : int, str
        What must divide by the GPU count (attention heads, feed-forward width), and its name.
    kv_heads, kv_rows : int
        KV heads among the rows, and rows of each: replicated once there are more GPUs than KV heads.
    is_vocabulary : bool
        Rows are tokens: padded, never refused.
    """

    name: str
    rows: int
    columns: int
    part: str
    split: Split = "none"
    units: int = 0
    unit: str = "rows"
    kv_heads: int = 0
    kv_rows: int = 0
    is_vocabulary: bool = False

    @property
    def elements(self) -> int:
        """Weights in it."""
        return self.rows * self.columns

    def per_gpu(self, tp: int) -> tuple[int, int]:
        """Rows and columns that one of ``tp`` GPUs holds, padding and replication included.

        Raises
        ------
        InputError
            If heads or width do not divide, as engines refuse them.
        """
        check_tp(tp)
        if self.is_vocabulary:
            return padded_vocabulary(self.rows, tp) // tp, self.columns
        if self.split == "none" or tp == 1:
            return self.rows, self.columns
        divided(self.units or (self.rows if self.split == "rows" else self.columns), tp, self.unit)
        if self.split == "columns":
            return self.rows, self.columns // tp
        shared = self.kv_heads * self.kv_rows
        kept = kv_heads_per_gpu(self.kv_heads, tp) * self.kv_rows if self.kv_heads else 0
        return (self.rows - shared) // tp + kept, self.columns
