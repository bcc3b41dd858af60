"""A model as it is served: its architecture, the number formats of its parts, and what that weighs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from specmodel.architecture import Architecture, Experts
from specmodel.errors import InputError
from specmodel.formats import NumberFormat, gguf_ends, number_format

if TYPE_CHECKING:
    from specmodel.units import Numeric

QUANTISABLE = ("attention", "dense", "experts", "shared_experts")
"""Parts that a 4- or 8-bit checkpoint usually quantises; the others usually stay 16-bit."""
SIXTEEN_BIT = ("indexer", "router", "embedding", "head", "norms", "mtp")
INDEX_KEY_BYTES = 1.0 + 4 / 128
"""Bytes per cached indexer element: engines keep these keys in fp8, one float32 scale per 128."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats: of the weights, of the parts that differ, of the cache.

    Attributes
    ----------
    weights : NumberFormat
        Every part that ``parts`` does not name.
    parts : mapping of part to NumberFormat
        Where a part differs; see ``architecture.PARTS``.
    kv : NumberFormat
        Keys and values in the cache.
    """

    weights: NumberFormat
    parts: Mapping[str, NumberFormat] = field(default_factory=lambda: MappingProxyType({}))
    kv: NumberFormat = field(default_factory=lambda: number_format("bf16"))

    def of(self, part: str) -> NumberFormat:
        """The format of one part."""
        return self.parts.get(part, self.weights)


def uniform(weights: NumberFormat, kv: NumberFormat, *, tied: bool = False) -> Precision:
    """Weights in one format; where it is narrower than 16 bit, the parts that usually stay so do.

    GGUF files narrow embedding and head too; tied, both are stored as the head.
    """
    sixteen = number_format("bf16")
    if weights.bits >= sixteen.bits:
        return Precision(weights, MappingProxyType({}), kv)
    parts = dict.fromkeys(SIXTEEN_BIT, sixteen)
    ends = gguf_ends(weights)
    if ends is not None:
        embedding, head = ends
        parts |= {"embedding": head if tied else embedding, "head": head, "mtp": weights}
    return Precision(weights, MappingProxyType(parts), kv)


@dataclass(frozen=True, slots=True)
class Model:
    """What a reader returns.

    Attributes
    ----------
    architecture, precision : Architecture, Precision
        Shape and number formats.
    weight_bytes : float
        Resident decoder weights: exact where files were at hand, else counted. [B]
    notes : tuple of str
        What was assumed, filled in or found to differ; to be shown with any answer.
    source : str
        Where it was read.
    measured_bytes : bool
        True where ``weight_bytes`` comes from files.
    """

    architecture: Architecture
    precision: Precision
    weight_bytes: float
    notes: tuple[str, ...] = ()
    source: str = ""
    measured_bytes: bool = False

    @property
    def name(self) -> str:
        """The architecture's name."""
        return self.architecture.name

    def counted_bytes(self, tp: int = 1) -> Mapping[str, float]:
        """Bytes of the decoder on one of ``tp`` GPUs by part, counted from shape and formats. [B]"""
        parts = self.architecture.parts(tp)
        return {part: count * self.precision.of(part).bytes for part, count in parts.items()}

    def kv_bytes(self, context: Numeric, tp: int = 1) -> Numeric:
        """Cache of one sequence on one of ``tp`` GPUs: keys, values, indexer keys; no constant state. [B]"""
        growing = self.architecture.kv_elements(context, tp) * self.precision.kv.bytes
        return growing + self.architecture.index_elements(context) * INDEX_KEY_BYTES

    @property
    def kv_bytes_per_token(self) -> float:
        """What each further token adds in layers without a window, indexer keys left out. [B]"""
        return self.architecture.kv_elements_per_token * self.precision.kv.bytes

    def state_bytes(self, tp: int = 1) -> float:
        """Constant state of one sequence. [B]"""
        return self.architecture.state_bytes(2.0, tp)

    def streamed_bytes(self, tokens: Numeric = 1) -> Numeric:
        """Weight bytes that one pass over ``tokens`` = batch x width tokens reads. [B]

        Of the experts only the distinct ones, of an untied embedding nothing. Arrays broadcast.
        """
        architecture, counted = self.architecture, self.counted_bytes()
        fixed = sum(size for part, size in counted.items() if part not in ("experts", "embedding"))
        total: Numeric = fixed + 0.0 * tokens
        if architecture.tied:
            total = total + counted["embedding"]
        for count, layer in architecture.layers:
            if isinstance(layer.feed_forward, Experts):
                one = layer.feed_forward.expert_parameters(architecture.hidden)
                read = layer.feed_forward.expected_distinct(tokens)
                total = total + count * one * read * self.precision.of("experts").bytes
        return total

    def with_precision(self, weights: str | None = None, kv: str | None = None) -> Model:
        """The same model in other formats; parts that usually stay 16-bit do, and bytes are counted anew.

        A checkpoint that is stored in that format already (or a kind of it: fp8 in blocks) stays as it is, with the
        parts that it leaves in 16 bit.

        Raises
        ------
        InputError
            If no format has that name.
        """
        if weights is None and kv is None:
            return self
        kv_format = self.precision.kv if kv is None else number_format(kv, "kv")
        asked = None if weights is None else number_format(weights, "weights")
        if asked is None or self._is_stored_in(asked):
            return replace(self, precision=replace(self.precision, kv=kv_format))
        precision = uniform(asked, kv_format, tied=self.architecture.tied)
        counted = replace(self, precision=precision, measured_bytes=False)
        return replace(counted, weight_bytes=float(sum(counted.counted_bytes().values())))

    def _is_stored_in(self, asked: NumberFormat) -> bool:
        own = self.precision.weights
        return asked.bits < 16.0 and (own.name == asked.name or own.name.startswith(f"{asked.name}-"))


@dataclass(frozen=True, slots=True)
class Totals:
    """A model given as three totals, the lecture's way; enough for textbook fidelity and no more."""

    name: str
    weight_bytes: float
    flops_per_token: float
    kv_bytes_per_token: float
    notes: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        for key in ("weight_bytes", "flops_per_token"):
            if not 0.0 < getattr(self, key) < float("inf"):
                raise InputError(key, getattr(self, key), "must be finite and > 0")
        if not 0.0 <= self.kv_bytes_per_token < float("inf"):
            raise InputError("kv_bytes_per_token", self.kv_bytes_per_token, "must be finite and >= 0")
