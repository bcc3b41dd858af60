"""Which parts of a decoder a quantisation config names: module lists, globs and regular expressions.

A pattern is held against the module names that a decoder of so many layers has; a part that is only partly
named (some layers, some projections) gets a share between 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..errors import InputError

PREFIXES = ("model.", "language_model.model.", "model.language_model.")
MODULES: dict[str, tuple[str, ...]] = {
    "attention": (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "linear_attn.in_proj_qkv",
        "linear_attn.out_proj",
    ),
    "dense": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "experts": ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj"),
    "shared_experts": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.down_proj"),
}
"""Module names inside a layer, by part; ``_SPELLINGS`` holds what else families call them."""
_SPELLINGS = (
    ("mlp.shared_experts.", "mlp.shared_expert."),
    ("mlp.experts.", "block_sparse_moe.experts."),
    ("mlp.", "feed_forward."),
)
OUTSIDE: dict[str, str] = {"head": "lm_head", "embedding": "embed_tokens"}
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
            if "layers" in parts:
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


def modules(part: str, layers: int, per_layer: bool) -> list[tuple[str, ...]]:
    """Names of the modules of a part, each with its spellings; one layer stands for all unless asked."""
    if part in OUTSIDE:
        return [(OUTSIDE[part],)]
    found = []
    for layer in range(layers) if per_layer else (layers // 2,):
        for module in MODULES[part]:
            spellings = {module}
            for usual, other in _SPELLINGS:
                spellings |= {name.replace(usual, other, 1) for name in spellings if name.startswith(usual)}
            found.append(tuple(f"layers.{layer}.{name}" for name in sorted(spellings)))
    return found


def share(patterns: Patterns, part: str, layers: int) -> float:
    """Share of a part's modules that the patterns name, 0 to 1."""
    listed = modules(part, layers, patterns.is_per_layer)
    hits = sum(any(patterns.names(name) for name in spellings) for spellings in listed)
    return hits / len(listed)
