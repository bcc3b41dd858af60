"""Draft heads that ride on a target: EAGLE, EAGLE-3, Medusa, MLP speculators, block drafters.

A head keeps what is its own; embedding and, where it has none, the output head are the target's and are not
counted, though the target's head is read again in every draft pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from specmodel.architecture import Architecture, Layer
from specmodel.layers.feed_forward import Dense
from specmodel.layers.matrices import Matrix
from specmodel.layers.mixers import Attention, LatentAttention

if TYPE_CHECKING:
    from specmodel.units import Numeric

HeadKind: TypeAlias = Literal["eagle", "eagle3", "medusa", "mlp_speculator", "dflash"]
EAGLE3_VOCABULARY = 32000
"""Tokens that most published EAGLE-3 heads predict."""


@dataclass(frozen=True, slots=True)
class DraftHead:
    """One draft head.

    Attributes
    ----------
    name : str
        What it is called.
    kind : str
        "eagle", "eagle3", "medusa", "mlp_speculator" or "dflash".
    hidden : int
        Its width, the target's.
    layers : tuple of (count, Layer)
        Decoder layers with a cache of their own; none in Medusa and MLP speculators.
    attention_inputs : int
        Width that q, k and v read: 2 x hidden in EAGLE-3, else hidden.
    fusion : Matrix or None
        Projects what the target hands over to the head's width; runs once per round in EAGLE-3, in
        every draft pass in EAGLE.
    others : tuple of (count, Matrix)
        Residual blocks and extra heads of Medusa and MLP speculators.
    head : Matrix
        Output head it uses, of a reduced vocabulary in EAGLE-3.
    owns_head : bool
        False where that is the target's.
    small_elements : int
        Norms and biases.
    lookup_elements : int
        Embeddings of its own, looked up and not multiplied.
    max_context : int or None
        Positions it was trained for; acceptance collapses beyond.
    notes : tuple of str
        What was assumed.
    """

    name: str
    kind: HeadKind
    hidden: int
    layers: tuple[tuple[int, Layer], ...]
    attention_inputs: int
    fusion: Matrix | None
    head: Matrix
    owns_head: bool
    small_elements: int
    lookup_elements: int = 0
    others: tuple[tuple[int, Matrix], ...] = ()
    max_context: int | None = None
    notes: tuple[str, ...] = ()
    source: str = ""

    def layer_matrices(self, layer: Layer) -> tuple[Matrix, ...]:
        """Matrices of one layer, its q, k, v as wide as they read."""
        if layer.mixer is None:
            return layer.matrices(self.hidden)
        inputs = layer.mixer.matrices(self.attention_inputs)[:-1]
        output = layer.mixer.matrices(self.hidden)[-1:]
        fed = layer.feed_forward.matrices(self.hidden) if layer.feed_forward else ()
        return inputs + output + fed

    def matrices(self) -> tuple[tuple[int, Matrix], ...]:
        """What one draft pass multiplies, with how often; fusion and ``head`` left out."""
        found = [(count, matrix) for count, layer in self.layers for matrix in self.layer_matrices(layer)]
        return (*found, *self.others)

    def parts(self, tp: int = 1) -> Mapping[str, int]:
        """Own elements on one of ``tp`` GPUs: "layers", "fusion", "head", "embedding", "norms"; no zeros."""
        layers = 0
        for count, matrix in self.matrices():
            rows, columns = matrix.per_gpu(tp) if tp > 1 else (matrix.rows, matrix.columns)
            layers += count * rows * columns
        head = 0
        if self.owns_head:
            rows, columns = self.head.per_gpu(tp) if tp > 1 else (self.head.rows, self.head.columns)
            head = rows * columns
        fusion = self.fusion.elements if self.fusion else 0
        counts = {"layers": layers, "fusion": fusion, "head": head}
        counts |= {"embedding": self.lookup_elements, "norms": self.small_elements}
        return {part: count for part, count in counts.items() if count}

    @property
    def parameters(self) -> int:
        """Own weights; the target's embedding and head are not its own."""
        return sum(self.parts().values())

    def kv_elements(self, context: Numeric, tp: int = 1) -> Numeric:
        """Cached elements of one sequence on one of ``tp`` GPUs; arrays broadcast."""
        total: Numeric = 0.0 * context
        for count, layer in self.layers:
            if layer.mixer is not None:
                held = layer.mixer.cache_elements_per_token_per_gpu(tp)
                total = total + count * held * layer.mixer.tokens_held(context)
        return total

    def attention_flops(self, context: Numeric, width: Numeric = 1) -> Numeric:
        """Arithmetic of its attention for ``width`` tokens of one sequence. [FLOP]"""
        total: Numeric = 0.0 * context * width
        for count, layer in self.layers:
            if layer.mixer is not None:
                total = total + count * layer.mixer.flops(context, width)
        return total


def _output(vocabulary: int, hidden: int) -> Matrix:
    return Matrix("head", vocabulary, hidden, "head", "rows", is_vocabulary=True)


def eagle(
    name: str, layer: Layer, hidden: int, vocabulary: int, *, layers: int = 1, max_context: int | None = None
) -> DraftHead:
    """EAGLE-1 and -2 (arXiv:2401.15077): 2H -> H projection and one layer; embedding and head shared."""
    fusion = Matrix("fc", hidden, 2 * hidden, "dense")
    return DraftHead(
        name,
        "eagle",
        hidden,
        ((layers, layer),),
        hidden,
        fusion,
        _output(vocabulary, hidden),
        owns_head=False,
        small_elements=0,
        max_context=max_context,
    )


def eagle3(
    name: str,
    layer: Layer,
    hidden: int,
    draft_vocabulary: int,
    *,
    target_hidden: int | None = None,
    captured_layers: int = 3,
    layers: int = 1,
    max_context: int | None = None,
    notes: tuple[str, ...] = (),
) -> DraftHead:
    """EAGLE-3 (arXiv:2503.01840): fuses ``captured_layers`` hidden states of the target, owns its head.

    q, k and v read the token embedding beside the fused state, 2 x hidden; four norms of hidden size.
    """
    fusion = Matrix("fc", hidden, captured_layers * (target_hidden or hidden), "dense")
    return DraftHead(
        name,
        "eagle3",
        hidden,
        ((layers, layer),),
        2 * hidden,
        fusion,
        _output(draft_vocabulary, hidden),
        owns_head=True,
        small_elements=4 * hidden,
        max_context=max_context,
        notes=notes,
    )


def medusa(name: str, hidden: int, vocabulary: int, *, heads: int, blocks: int = 1) -> DraftHead:
    """Medusa (arXiv:2401.10774): per head ``blocks`` residual layers and an output matrix of its own."""
    residual = Matrix("medusa_block", hidden, hidden, "dense")
    extra = Matrix("medusa_head", vocabulary, hidden, "head", "rows", is_vocabulary=True)
    return DraftHead(
        name,
        "medusa",
        hidden,
        (),
        hidden,
        None,
        extra,
        owns_head=False,
        small_elements=heads * blocks * hidden,
        others=((heads * blocks, residual), (heads, extra)),
    )


def mlp_speculator(
    name: str, width: int, inner: int, vocabulary: int, *, steps: int, tied: bool
) -> DraftHead:
    """MLP speculator (arXiv:2404.19124): per step an embedding, a projection, a norm and a head.

    ``tied`` shares embedding, norm, head, and the projections after the first, between the steps.
    """
    first = Matrix("speculator_in", inner, width, "dense")
    later = Matrix("speculator_step", inner, inner, "dense")
    head = Matrix("speculator_head", vocabulary, inner, "head", "rows", is_vocabulary=True)
    copies = 1 if tied else steps
    others = [(1, first), (copies, head)]
    projections = min(1, steps - 1) if tied else steps - 1
    if projections:
        others.insert(1, (projections, later))
    return DraftHead(
        name,
        "mlp_speculator",
        width,
        (),
        width,
        None,
        head,
        owns_head=False,
        small_elements=copies * 2 * inner,
        lookup_elements=copies * vocabulary * inner,
        others=tuple(others),
        notes=("unverified: counted from the published structure, no element count was at hand",),
    )


def dflash(
    name: str,
    layer: Layer,
    hidden: int,
    vocabulary: int,
    *,
    layers: int,
    captured_layers: int,
    max_context: int | None = None,
) -> DraftHead:
    """DFlash block drafter: a few layers that draft a whole block of masked tokens in one pass.

    It fuses ``captured_layers`` hidden states of the target; embedding and head are the target's.
    """
    fusion = Matrix("fc", hidden, captured_layers * hidden, "dense")
    return DraftHead(
        name,
        "dflash",
        hidden,
        ((layers, layer),),
        hidden,
        fusion,
        _output(vocabulary, hidden),
        owns_head=False,
        small_elements=2 * hidden + layers * layer.norm_elements,
        max_context=max_context,
        notes=("unverified: counted from the published structure, no element count was at hand",),
    )


def attention_of(target: Architecture) -> Attention:
    """The attention shape that a head for this target takes: full, ungated, of its softmax layers."""
    for _, mixer in target.mixers():
        if isinstance(mixer, Attention):
            return Attention(mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.value_dim)
        if isinstance(mixer, LatentAttention):
            return Attention(mixer.heads, mixer.heads, mixer.value_dim, mixer.value_dim)
    return Attention(max(1, target.hidden // 128), max(1, target.hidden // 128), 128, 128)


def eagle3_for(target: Architecture) -> DraftHead:
    """An EAGLE-3 head for a target whose own head is not known: the family rule.

    One dense layer of the target's width and attention shape, its feed-forward width (four times the
    hidden size where the target has experts), 32,000 draft tokens.
    """
    rule = "family rule: no head of this target is known; one layer of its shape, 32,000 draft tokens"
    widths = [layer.feed_forward.width for _, layer in target.layers if isinstance(layer.feed_forward, Dense)]
    has_experts = any(
        layer.feed_forward is not None and not isinstance(layer.feed_forward, Dense)
        for _, layer in target.layers
    )
    notes = [rule]
    if has_experts or not widths:
        width = 4 * target.hidden
        notes.append("unverified: feed-forward of four times the hidden size, as the target has experts")
    else:
        width = max(widths)
    layer = Layer(attention_of(target), Dense(width), 0)
    vocabulary = min(EAGLE3_VOCABULARY, target.vocabulary)
    return eagle3(f"eagle3 for {target.name}", layer, target.hidden, vocabulary, notes=tuple(notes))


def eagle_for(target: Architecture) -> DraftHead:
    """An EAGLE head for a target: one dense layer of its shape under its own embedding and head."""
    shape = eagle3_for(target).layers[0][1]
    return eagle(f"eagle for {target.name}", shape, target.hidden, target.vocabulary)
