"""Architecture: layers, heads, experts, windows -> parameters, FLOPs and cache per token.

Counts are elements and FLOPs; bytes follow with a Precision (model.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel.layers.feed_forward import Dense, Experts, FeedForward
from specmodel.layers.matrices import Matrix, check_tp
from specmodel.layers.mixers import Attention, LatentAttention, LinearAttention, Mixer

if TYPE_CHECKING:
    from specmodel.units import Numeric

__all__ = [
    "PARTS",
    "Architecture",
    "Attention",
    "Dense",
    "Experts",
    "FeedForward",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Matrix",
    "Mixer",
    "Mtp",
]

PARTS = (
    "attention",
    "indexer",
    "dense",
    "experts",
    "shared_experts",
    "router",
    "embedding",
    "head",
    "norms",
    "mtp",
)
"""What can have a number format of its own; "norms" holds everything small, biases and sinks too."""


def _add(counts: dict[str, int], part: str, elements: int) -> None:
    if elements:
        counts[part] = counts.get(part, 0) + elements


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer, a feed-forward, and the norms around them; hybrid stacks have layers with one of the two."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norm_elements: int = 0

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Every matrix that all tokens pass through, in order; routed experts and the indexer left out."""
        mixed = self.mixer.matrices(hidden) if self.mixer else ()
        return mixed + (self.feed_forward.matrices(hidden) if self.feed_forward else ())

    def parameters(self, hidden: int) -> int:
        """All weights, the indexer of sparse attention left out."""
        mixed = self.mixer.parameters(hidden) if self.mixer else 0
        fed = self.feed_forward.parameters(hidden) if self.feed_forward else 0
        return mixed + fed + self.norm_elements

    def active_parameters(self, hidden: int) -> int:
        """Weights that one token uses."""
        mixed = self.mixer.parameters(hidden) if self.mixer else 0
        fed = self.feed_forward.active_parameters(hidden) if self.feed_forward else 0
        return mixed + fed + self.norm_elements

    def parts(self, hidden: int, tp: int = 1) -> Mapping[str, int]:
        """Elements on one of ``tp`` GPUs by part, the indexer included."""
        counts: dict[str, int] = {}
        matrices = list(self.matrices(hidden))
        small = self.norm_elements
        if self.mixer:
            matrices += self.mixer.index_matrices(hidden)
            small += self.mixer.small_elements
            if isinstance(self.mixer, LatentAttention):
                small += self.mixer.index_small_elements
        for matrix in matrices:
            rows, columns = matrix.per_gpu(tp)
            _add(counts, matrix.part, rows * columns)
        if isinstance(self.feed_forward, Experts):
            for matrix in self.feed_forward.expert_matrices(hidden):
                rows, columns = matrix.per_gpu(tp)
                _add(counts, "experts", self.feed_forward.count * rows * columns)
            _add(counts, "router", self.feed_forward.gate_elements(hidden))
            small += self.feed_forward.count * self.feed_forward.expert_small_elements
        small += self.feed_forward.small_elements if self.feed_forward else 0
        _add(counts, "norms", small)
        return counts


@dataclass(frozen=True, slots=True)
class Mtp:
    """Multi-token-prediction modules: one decoder layer each, a 2H -> H projection and three norms.

    Embedding and head are shared with the target when it runs, even where the checkpoint stores copies.

    Attributes
    ----------
    modules : int
        How many the checkpoint holds; engines reuse the last one for more draft tokens.
    layer : Layer
        The decoder layer inside one module.
    hidden : int
        Width of the model.
    """

    modules: int
    layer: Layer
    hidden: int

    @property
    def _projection(self) -> int:
        return 2 * self.hidden * self.hidden + 3 * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of one module."""
        return self.layer.parameters(self.hidden) + self._projection

    @property
    def active_parameters(self) -> int:
        """Weights of one module that one token uses."""
        return self.layer.active_parameters(self.hidden) + self._projection


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder: what follows on paper from its shape.

    Attributes
    ----------
    name, family : str
        What it is called, and the ``model_type`` it was read as.
    hidden, vocabulary : int
        Width and token count.
    layers : tuple of (count, Layer)
        Equal layers counted together; order does not matter to any figure here.
    tied : bool
        The output head is the embedding.
    max_context : int or None
        Positions it was trained for.
    final_norm_elements : int
        The norm before the head.
    mtp : Mtp or None
        Its own draft modules; counted in none of the figures here.
    unverified : tuple of str
        Why its figures were not checked against a published count; empty where they were.
    """

    name: str
    family: str
    hidden: int
    vocabulary: int
    layers: tuple[tuple[int, Layer], ...]
    tied: bool
    max_context: int | None = None
    final_norm_elements: int = 0
    mtp: Mtp | None = None
    unverified: tuple[str, ...] = ()

    @property
    def layer_count(self) -> int:
        """Layers in all."""
        return sum(count for count, _ in self.layers)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def head(self) -> Matrix:
        """The output head, run over every verified position; the embedding itself where tied."""
        return Matrix("head", self.vocabulary, self.hidden, "head", "rows", is_vocabulary=True)

    def _ends(self) -> int:
        return self.embedding_parameters * (1 if self.tied else 2) + self.final_norm_elements

    @property
    def parameters(self) -> int:
        """Decoder weights with embedding and head; MTP, vision towers and indexers left out."""
        inner = sum(count * layer.parameters(self.hidden) for count, layer in self.layers)
        return inner + self._ends()

    @property
    def active_parameters(self) -> int:
        """The same with only the experts that one token uses; the whole embedding table still counts."""
        inner = sum(count * layer.active_parameters(self.hidden) for count, layer in self.layers)
        return inner + self._ends()

    @property
    def streamed_parameters(self) -> int:
        """Weights that one token at batch 1 reads: active, less an embedding table looked up by row."""
        return self.active_parameters - (0 if self.tied else self.embedding_parameters)

    @property
    def indexer_parameters(self) -> int:
        """Weights of the sparse-attention indexers, which ``parameters`` leaves out."""
        return sum(count for part, count in self.parts().items() if part == "indexer") + sum(
            count * layer.mixer.index_small_elements
            for count, layer in self.layers
            if isinstance(layer.mixer, LatentAttention)
        )

    def parts(self, tp: int = 1) -> Mapping[str, int]:
        """Elements on one of ``tp`` GPUs by part: indexers included, MTP left out; tied models have no head.

        Raises
        ------
        InputError
            If heads or widths do not divide over ``tp`` GPUs.
        """
        check_tp(tp)
        counts: dict[str, int] = {}
        for count, layer in self.layers:
            for part, elements in layer.parts(self.hidden, tp).items():
                _add(counts, part, count * elements)
        if tp == 1:
            table = self.embedding_parameters
        else:
            rows, columns = self.head.per_gpu(tp)
            table = rows * columns
        _add(counts, "embedding", table)
        if not self.tied:
            _add(counts, "head", table)
        _add(counts, "norms", self.final_norm_elements)
        return counts

    def mixers(self) -> Iterator[tuple[int, Mixer]]:
        """Groups of equal layers that have a mixer."""
        for count, layer in self.layers:
            if layer.mixer is not None:
                yield count, layer.mixer

    def kv_elements(self, context: Numeric, tp: int = 1) -> Numeric:
        """Cached elements of one sequence on one of ``tp`` GPUs; windows saturate. Arrays broadcast.

        Indexer keys (``index_elements``) and constant states (``state_bytes``) come on top.
        """
        total: Numeric = 0.0 * context
        for count, mixer in self.mixers():
            held = mixer.cache_elements_per_token_per_gpu(tp)
            total = total + count * held * mixer.tokens_held(context)
        return total

    def index_elements(self, context: Numeric) -> Numeric:
        """Indexer key elements of one sequence, the same on every GPU."""
        total: Numeric = 0.0 * context
        for count, mixer in self.mixers():
            total = total + count * mixer.index_elements_per_token * mixer.tokens_held(context)
        return total

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that each further token adds for ever: layers without a window only."""
        return sum(
            count * mixer.cache_elements_per_token
            for count, mixer in self.mixers()
            if not (isinstance(mixer, Attention) and mixer.window is not None)
        )

    def state_bytes(self, element_bytes: float = 2.0, tp: int = 1) -> float:
        """Constant state of one sequence in linear-attention layers, divided over ``tp`` GPUs. [B]"""
        check_tp(tp)
        return sum(count * mixer.state_bytes(element_bytes) for count, mixer in self.mixers()) / tp

    @property
    def flops_per_token(self) -> float:
        """2 x the weights that multiply one token: head included, embedding look-up and attention not."""
        multiplied = self.head.elements
        for count, layer in self.layers:
            inner = sum(matrix.elements for matrix in layer.matrices(self.hidden))
            if layer.mixer is not None:
                inner += sum(matrix.elements for matrix in layer.mixer.index_matrices(self.hidden))
            if isinstance(layer.feed_forward, Experts):
                inner += layer.feed_forward.top_k * layer.feed_forward.expert_parameters(self.hidden)
            multiplied += count * inner
        return 2.0 * multiplied

    def attention_flops(self, context: Numeric, width: Numeric = 1) -> Numeric:
        """Arithmetic of the mixers for ``width`` new tokens of one sequence; arrays broadcast. [FLOP]"""
        total: Numeric = 0.0 * context * width
        for count, mixer in self.mixers():
            total = total + count * mixer.flops(context, width)
        return total
