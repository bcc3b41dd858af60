"""The small decode kernel: one layer of a decoder, on a CPU (`cpu`) and on an NVIDIA GPU (`cuda`).

Both halves compute the same thing: ``width`` new tokens per sequence (the root and k drafts) against a
KV cache, reading each weight and each cached key and value once however wide the pass is. That is the one
assumption under which verification is nearly free, so it is the one worth measuring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from specmodel.errors import InputError

MAX_WIDTH = 63  # one bit per new token in a signed 64-bit word


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The sizes of one dense decoder layer with grouped-query attention and a gated feed-forward."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """(outputs, inputs) of the four weight matrices, fused as engines run them."""
        query = self.heads * self.head_dim
        return {
            "qkv": (query + 2 * self.kv_heads * self.head_dim, self.hidden),
            "o": (self.hidden, query),
            "gate_up": (2 * self.feed_forward, self.hidden),
            "down": (self.hidden, self.feed_forward),
        }

    def cache_elements(self, tokens: int) -> int:
        """Keys and values of ``tokens`` cached tokens."""
        return 2 * tokens * self.kv_heads * self.head_dim


# Shapes from the published config.json of each model.
LAYERS: Mapping[str, LayerShape] = MappingProxyType(
    {
        "qwen3-1.7b": LayerShape("qwen3-1.7b", 2048, 16, 8, 128, 6144),
        "llama-3.2-1b": LayerShape("llama-3.2-1b", 2048, 32, 8, 64, 8192),
        "llama-3.1-8b": LayerShape("llama-3.1-8b", 4096, 32, 8, 128, 14336),
    }
)


def chain(width: int) -> tuple[int, ...]:
    """Which new tokens each new token sees when they follow one another, as bits.

    Bit j of entry i is set where token i sees token j: itself and all before it.

    >>> [f"{bits:b}" for bits in chain(3)]
    ['1', '11', '111']
    """
    return tree((-1, *range(width - 1)))


def tree(parents: Sequence[int]) -> tuple[int, ...]:
    """Which new tokens each node of a token tree sees, as bits: its ancestors and itself.

    Parameters
    ----------
    parents : sequence of int
        Parent of each node, -1 for the root, which comes first; a parent precedes its children.

    Raises
    ------
    InputError
        For no node, more than 63 nodes, or a parent that does not precede its child.

    >>> [f"{bits:b}" for bits in tree([-1, 0, 0, 1])]
    ['1', '11', '101', '1011']
    """
    if not 1 <= len(parents) <= MAX_WIDTH:
        raise InputError("width", len(parents), f"must be 1 to {MAX_WIDTH} new tokens")
    seen: list[int] = []
    for node, parent in enumerate(parents):
        if not (parent == -1 if node == 0 else 0 <= parent < node):
            raise InputError("parents", list(parents), "must be -1 first, then earlier nodes")
        seen.append((seen[parent] if node else 0) | 1 << node)
    return tuple(seen)
