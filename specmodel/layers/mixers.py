"""What mixes tokens in a layer: softmax attention, latent attention, linear attention.

Each knows its weight matrices, the elements a token leaves in the cache, the state that does not grow,
and how many cached tokens a query reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from specmodel.layers.matrices import Matrix, kv_heads_per_gpu
from specmodel.units import smaller

if TYPE_CHECKING:
    from specmodel.units import Numeric


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention over all tokens, the last ``window`` of them, or a chunk of that size.

    Attributes
    ----------
    heads, kv_heads : int
        Query heads, and key-value heads they share.
    head_dim, value_dim : int
        Elements of a key and of a value.
    window : int or None
        Tokens kept; None keeps all. A chunk of n tokens is counted as a window of n, its most.
    owns_cache : bool
        False where the layer reads the keys and values of another one: no k, v projection, no cache.
    gated : bool
        An output gate doubles the query projection.
    value_is_key : bool
        Values come from the key projection (both are cached).
    small_elements : int
        Biases, query and key norms, attention sinks.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    owns_cache: bool = True
    gated: bool = False
    value_is_key: bool = False
    small_elements: int = 0

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The fused input projection and the output projection."""
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        output = Matrix(
            "o",
            hidden,
            self.heads * self.value_dim,
            "attention",
            "columns",
            units=self.heads,
            unit="attention heads",
        )
        if not self.owns_cache:
            query = Matrix(
                "q", queries, hidden, "attention", "rows", units=self.heads, unit="attention heads"
            )
            return query, output
        kv_rows = self.head_dim + (0 if self.value_is_key else self.value_dim)
        fused = Matrix(
            "qkv",
            queries + self.kv_heads * kv_rows,
            hidden,
            "attention",
            "rows",
            units=self.heads,
            unit="attention heads",
            kv_heads=self.kv_heads,
            kv_rows=kv_rows,
        )
        return fused, output

    def index_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """None: only sparse latent attention has an indexer."""
        return ()

    def parameters(self, hidden: int) -> int:
        """All weights, biases and norms included."""
        return sum(matrix.elements for matrix in self.matrices(hidden)) + self.small_elements

    @property
    def cache_elements_per_token(self) -> int:
        """Key and value elements one token adds, all KV heads."""
        return self.kv_heads * (self.head_dim + self.value_dim) if self.owns_cache else 0

    def cache_elements_per_token_per_gpu(self, tp: int) -> int:
        """The same on one of ``tp`` GPUs; at least one KV head, replicated beyond."""
        if not self.owns_cache:
            return 0
        return kv_heads_per_gpu(self.kv_heads, tp) * (self.head_dim + self.value_dim)

    @property
    def index_elements_per_token(self) -> int:
        """0: no indexer."""
        return 0

    @property
    def state_elements(self) -> int:
        """0: nothing constant is kept."""
        return 0

    def state_bytes(self, element_bytes: float = 2.0) -> float:
        """0: nothing constant is kept."""
        return 0.0

    def tokens_held(self, context: Numeric) -> Numeric:
        """Cached tokens of a sequence of that length."""
        return context if self.window is None else smaller(context, self.window)

    def tokens_read(self, context: Numeric) -> Numeric:
        """Cached tokens that a query reads: all that are held."""
        return self.tokens_held(context)

    def flops(self, context: Numeric, width: Numeric = 1) -> Numeric:
        """Scores and weighted sum of ``width`` queries per sequence over the cached tokens. [FLOP]

        The at most ``width`` new tokens themselves are not counted.
        """
        return 2.0 * self.heads * (self.head_dim + self.value_dim) * width * self.tokens_held(context)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), optionally sparse.

    One latent of ``kv_rank`` elements and one rotary key of ``rope_dim`` are cached per token for all
    heads; every GPU keeps all of it. With ``index_heads`` a small indexer picks the ``index_top_k`` tokens
    that a query attends to (DeepSeek-V3.2); its keys are cached besides.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_top_k: int = 0
    small_elements: int = 0

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Down-projections (replicated), up-projections and output (split by heads).

        "kv_b" is what decoding absorbs into the query and the output: the same weights and arithmetic.
        """
        latent = self.kv_rank + self.rope_dim
        query_rows = self.heads * (self.nope_dim + self.rope_dim)

        def by_heads(name: str, rows: int, columns: int) -> Matrix:
            return Matrix(name, rows, columns, "attention", "rows", units=self.heads, unit="attention heads")

        up = by_heads("kv_b", self.heads * (self.nope_dim + self.value_dim), self.kv_rank)
        output = Matrix(
            "o",
            hidden,
            self.heads * self.value_dim,
            "attention",
            "columns",
            units=self.heads,
            unit="attention heads",
        )
        if self.q_rank is None:
            down = Matrix("kv_a", latent, hidden, "attention")
            return by_heads("q", query_rows, hidden), down, up, output
        down = Matrix("qkv_a", self.q_rank + latent, hidden, "attention")
        return down, by_heads("q_b", query_rows, self.q_rank), up, output

    def index_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The indexer's projections, replicated; empty without one."""
        if not self.index_heads:
            return ()
        inputs = self.q_rank if self.q_rank is not None else hidden
        return (
            Matrix("index_q", self.index_heads * self.index_dim, inputs, "indexer"),
            Matrix("index_k", self.index_dim, hidden, "indexer"),
            Matrix("index_weights", self.index_heads, hidden, "indexer"),
        )

    @property
    def index_small_elements(self) -> int:
        """Weight and bias of the layer norm on the indexer's keys."""
        return 2 * self.index_dim if self.index_heads else 0

    def parameters(self, hidden: int) -> int:
        """All weights, norms included, the indexer left out."""
        return sum(matrix.elements for matrix in self.matrices(hidden)) + self.small_elements

    @property
    def cache_elements_per_token(self) -> int:
        """One latent and one rotary key, whatever the number of heads; no factor 2."""
        return self.kv_rank + self.rope_dim

    def cache_elements_per_token_per_gpu(self, tp: int) -> int:
        """The same on every GPU: the latent cannot be divided by heads."""
        return self.cache_elements_per_token

    @property
    def index_elements_per_token(self) -> int:
        """Indexer key elements cached besides."""
        return self.index_dim if self.index_heads else 0

    @property
    def state_elements(self) -> int:
        """0: nothing constant is kept."""
        return 0

    def state_bytes(self, element_bytes: float = 2.0) -> float:
        """0: nothing constant is kept."""
        return 0.0

    def tokens_held(self, context: Numeric) -> Numeric:
        """Cached tokens: all of them."""
        return context

    def tokens_read(self, context: Numeric) -> Numeric:
        """Latents that a query reads: at most ``index_top_k`` where an indexer picks them."""
        return smaller(context, self.index_top_k) if self.index_heads else context

    def flops(self, context: Numeric, width: Numeric = 1) -> Numeric:
        """Absorbed attention of ``width`` queries per sequence over the latents. [FLOP]

        2 x heads x (rank + rope) for the scores, 2 x heads x rank for the sum, and the indexer's scores
        over the whole context.
        """
        attended = 2.0 * self.heads * (2 * self.kv_rank + self.rope_dim) * width * self.tokens_read(context)
        return attended + 2.0 * self.index_heads * self.index_dim * width * context


LinearKind = Literal["gated_delta_net", "mamba2", "lightning"]


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A recurrent state instead of a cache: gated delta net, Mamba-2, lightning attention.

    For Mamba-2 the groups are ``key_heads`` of ``key_dim`` (the state size) and the heads are
    ``value_heads`` of ``value_dim``. Each speculative position needs its own copy of the state, or a replay.

    Attributes
    ----------
    conv_width : int
        Taps of the short convolution; 1 means none.
    state_element_bytes : float or None
        Bytes of a recurrent element where the config says so (4 for float32); None follows the model.
    """

    kind: LinearKind
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_width: int = 1
    state_element_bytes: float | None = None

    @property
    def _keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def _values(self) -> int:
        return self.value_heads * self.value_dim

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Input projections by kind, and the output projection."""
        keys, values = self._keys, self._values
        unit = "linear-attention heads"

        def rows(name: str, count: int, kv_heads: int = 0, kv_rows: int = 0) -> Matrix:
            return Matrix(
                name,
                count,
                hidden,
                "attention",
                "rows",
                units=self.value_heads,
                unit=unit,
                kv_heads=kv_heads,
                kv_rows=kv_rows,
            )

        output = Matrix(
            "o",
            hidden,
            values,
            "attention",
            "columns",
            units=self.value_heads,
            unit=unit,
        )
        if self.kind == "lightning":
            return rows("qkv", 2 * keys + values), rows("gate", values), output
        if self.kind == "mamba2":
            groups = rows("in", 2 * values + 2 * keys + self.value_heads, self.key_heads, 2 * self.key_dim)
            return groups, output
        return (
            rows("qkvz", 2 * keys + 2 * values, self.key_heads, 2 * self.key_dim),
            rows("ba", 2 * self.value_heads),
            output,
        )

    def index_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """None."""
        return ()

    @property
    def small_elements(self) -> int:
        """Convolution taps, decay and step parameters, the norm on the output."""
        channels = 2 * self._keys + self._values
        if self.kind == "lightning":
            return self._values
        if self.kind == "mamba2":
            return (self.conv_width + 1) * channels + 3 * self.value_heads + self._values
        return self.conv_width * channels + 2 * self.value_heads + self.value_dim

    def parameters(self, hidden: int) -> int:
        """All weights, convolution and norms included."""
        return sum(matrix.elements for matrix in self.matrices(hidden)) + self.small_elements

    @property
    def cache_elements_per_token(self) -> int:
        """0: the cache does not grow."""
        return 0

    def cache_elements_per_token_per_gpu(self, tp: int) -> int:
        """0: the cache does not grow."""
        return 0

    @property
    def index_elements_per_token(self) -> int:
        """0: no indexer."""
        return 0

    @property
    def recurrent_elements(self) -> int:
        """The matrix-valued state: one key x value matrix per value head."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def conv_elements(self) -> int:
        """Past inputs that the short convolution still needs."""
        return (2 * self._keys + self._values) * (self.conv_width - 1)

    @property
    def state_elements(self) -> int:
        """Elements kept per sequence, whatever its length."""
        return self.recurrent_elements + self.conv_elements

    def state_bytes(self, element_bytes: float = 2.0) -> float:
        """Bytes kept per sequence; the convolution in the model's format, the state in its own. [B]"""
        own = element_bytes if self.state_element_bytes is None else self.state_element_bytes
        return self.recurrent_elements * own + self.conv_elements * element_bytes

    def tokens_held(self, context: Numeric) -> Numeric:
        """0 tokens are cached."""
        return 0.0 * context

    def tokens_read(self, context: Numeric) -> Numeric:
        """0 tokens are cached."""
        return 0.0 * context

    def flops(self, context: Numeric, width: Numeric = 1) -> Numeric:
        """State update and read-out for ``width`` tokens, whatever the context. [FLOP]

        A rank-one update and a product with the query are 2 each per state element; the delta rule
        first reads what the state predicts, 2 more.
        """
        per_element = 6.0 if self.kind == "gated_delta_net" else 4.0
        taps = 2.0 * self.conv_width * (2 * self._keys + self._values) if self.conv_width > 1 else 0.0
        return (per_element * self.recurrent_elements + taps) * width + 0.0 * context


Mixer: TypeAlias = Attention | LatentAttention | LinearAttention
