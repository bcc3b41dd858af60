"""Which parts of a decoder a quantisation config names: module lists, globs and regular expressions.

A pattern is held against the module names that a decoder of so many layers has; a part that is only partly
named (some layers, some projections) gets a share between 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from specmodel.architecture import Experts, Layer, LinearAttention
from specmodel.errors import InputError

PREFIXES = ("model.", "language_model.model.", "model.language_model.")
_SOFTMAX = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_LINEAR = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")
_DENSE = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_EXPERTS = ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj")
_SHARED = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj")
_SPELLINGS = (
    ("self_attn.", "mixer."),
    ("linear_attn.", "mixer."),
    ("mlp.shared_experts.", "mlp.shared_expert."),
    ("mlp.experts.", "block_sparse_moe.experts."),
    ("mlp.", "feed_forward."),
    ("mlp.", "mixer."),
)
"""What families call the same module."""
OUTSIDE = {"head": "lm_head", "embedding": "embed_tokens"}
_MOST_PATTERNS = 1024
_MOST_REPEATS = 5


class Patterns:
    """A list of names, globs and ``re:`` expressions, ready to be asked about many modules."""

    def __init__(self, patterns: Iterable[object], key: str, where: str) -> None:
        self.exact: set[tuple[str, ...]] = set()
        self.globs: list[tuple[str, ...]] = []
        self.expressions: list[re.Pattern[str]] = []
        self.is_per_layer = False
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise InputError(key, pattern, f"a list of module names ({where})")
            self.is_per_layer |= any(part.isdigit() for part in re.split(r"\W+", pattern))
            if pattern.startswith("re:"):
                self.expressions.append(_compiled(pattern[3:], key, where))
                continue
            parts = tuple(part for part in pattern.split(".") if part)
            if "layers" in parts and not parts[0].startswith("mtp"):
                parts = parts[parts.index("layers") :]
            if not parts:
                continue
            if any(mark in pattern for mark in "*?["):
                self.globs.append(parts)
            else:
                self.exact.add(parts)
        if len(self.globs) + len(self.expressions) > _MOST_PATTERNS:
            raise InputError(
                key, len(self.globs) + len(self.expressions), f"at most {_MOST_PATTERNS} patterns"
            )

    def __bool__(self) -> bool:
        return bool(self.exact or self.globs or self.expressions)

    def names(self, module: str) -> bool:
        """Whether any pattern names this module or something that holds it."""
        parts = tuple(module.split("."))
        size = len(parts)
        if self.exact and any(
            parts[start:stop] in self.exact for start in range(size) for stop in range(start + 1, size + 1)
        ):
            return True
        if any(_runs_in(pattern, parts) for pattern in self.globs):
            return True
        if not self.expressions:
            return False
        full = [prefix + module for prefix in PREFIXES] + [module]
        return any(expression.match(name) for expression in self.expressions for name in full)


def _runs_in(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the pattern's dotted pieces match consecutive pieces of a name."""
    span = len(pattern)
    return any(
        all(
            fnmatchcase(part, piece) for piece, part in zip(pattern, parts[start : start + span], strict=True)
        )
        for start in range(len(parts) - span + 1)
    )


def _compiled(expression: str, key: str, where: str) -> re.Pattern[str]:
    """A regular expression that cannot take for ever: few unbounded repeats, none of a group."""
    repeats = len(re.findall(r"[*+]|\{\d+,\d*\}", expression))
    if len(expression) > 512 or repeats > _MOST_REPEATS or re.search(r"\)[*+{]", expression):
        raise InputError(key, "re:" + expression, f"a simpler regular expression is expected ({where})")
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        raise InputError(key, "re:" + expression, f"not a regular expression ({where})") from None


def _inside(part: str, layer: Layer) -> tuple[str, ...]:
    """Modules of a part in one layer, empty where the layer has none."""
    if part == "attention":
        if layer.mixer is None:
            return ()
        return _LINEAR if isinstance(layer.mixer, LinearAttention) else _SOFTMAX
    if isinstance(layer.feed_forward, Experts):
        if part == "experts":
            return _EXPERTS
        return _SHARED if part == "shared_experts" and layer.feed_forward.shared_width else ()
    return _DENSE if part == "dense" and layer.feed_forward is not None else ()


def modules(part: str, layers: Sequence[Layer]) -> list[tuple[str, ...]]:
    """Names of the modules of a part in these layers, each with its spellings."""
    if part in OUTSIDE:
        return [(OUTSIDE[part],)]
    found = []
    for number, layer in enumerate(layers):
        for module in _inside(part, layer):
            spellings = {module}
            for usual, other in _SPELLINGS:
                spellings |= {name.replace(usual, other, 1) for name in spellings if name.startswith(usual)}
            found.append(tuple(f"layers.{number}.{name}" for name in sorted(spellings)))
    return found


def share(patterns: Patterns, part: str, layers: Sequence[Layer]) -> float:
    """Share of a part's modules that the patterns name, 0 to 1; 0 where the decoder has no such part."""
    listed = modules(part, layers)
    if not patterns.is_per_layer and listed:
        # one layer of each kind stands for all
        unlike = {tuple(name.split(".", 2)[-1] for name in spellings): spellings for spellings in listed}
        listed = list(unlike.values())
    hits = sum(any(patterns.names(name) for name in spellings) for spellings in listed)
    return hits / len(listed) if listed else 0.0
