"""Rules that accept more than the exact test does, and what that costs: named lossy, distortion computed.

Every rule accepts a drafted token x with some probability and otherwise emits from a replacement law. The
law of what is emitted follows in closed form, and with it the total variation and the KL divergence from
the target: the price of the extra acceptance, per token, with nothing sampled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from specmodel import checks
from specmodel.errors import InputError, unknown_name
from specmodel.sampling import Verification, verification
from specmodel.verification.laws import Array, entropy, greedy, law_pair

Fallback = Literal["greedy", "sample"]


def typical(
    p: ArrayLike, q: ArrayLike, *, epsilon: float = 0.09, delta: float = 0.3, fallback: Fallback = "greedy"
) -> Verification:
    r"""Typical acceptance: x passes if :math:`p(x) > \min(\epsilon,\; \delta\, e^{-H(p)})`. Lossy.

    The flatter the target's law, the lower the bar. A rejected token is replaced by the target's likeliest
    one (``fallback="greedy"``, as published) or by a draw from p (``"sample"``).

    References
    ----------
    .. [1] T. Cai et al., "Medusa", ICML 2024, arXiv:2401.10774, section 2.3.1; delta = sqrt(epsilon) there.
    """
    target, draft = law_pair(p, q)
    checks.real("epsilon", epsilon, low=0.0, high=1.0)
    checks.real("delta", delta, low=0.0, high=1.0)
    bar = np.minimum(epsilon, delta * np.exp(-entropy(target)))
    return _all_or_nothing("typical", target, draft, target > bar[..., None], fallback)


def top_one(p: ArrayLike, q: ArrayLike, *, fallback: Fallback = "greedy") -> Verification:
    """Accept only the target's likeliest token, and emit that one otherwise too. Lossy.

    The naive check: exact at temperature 0, but a sampling target collapses onto its likeliest token,
    whatever the draft proposes. With ``fallback="sample"`` the rest of the law survives, too thin.
    """
    target, draft = law_pair(p, q)
    return _all_or_nothing("top-1", target, draft, greedy(target) > 0.0, fallback)


def top_n(
    p: ArrayLike, q: ArrayLike, *, n: int = 10, margin: float = 0.6, fallback: Fallback = "greedy"
) -> Verification:
    """Accept a token among the target's ``n`` likeliest and within ``margin`` of the best. Lossy.

    The relaxed acceptance that TensorRT-LLM offers for thinking phases (relaxed_topk, relaxed_delta).
    """
    target, draft = law_pair(p, q)
    checks.whole("n", n, low=1)
    checks.real("margin", margin, low=0.0, high=1.0)
    rank = np.argsort(np.argsort(-target, axis=-1, kind="stable"), axis=-1)
    near = target >= target.max(axis=-1, keepdims=True) - margin
    return _all_or_nothing("top-n", target, draft, (rank < n) & near & (target > 0.0), fallback)


def relaxed(
    p: ArrayLike, q: ArrayLike, *, threshold_single: float = 1.0, threshold_acc: float = 1.0
) -> Verification:
    """SGLang's target-only test with thresholds; exact when both are 1, lossy below.

    x passes with probability min(1, p(x) / threshold_acc), and always if p(x) >= threshold_single.
    A rejected token is replaced by a draw from p without it. The draft's law is not asked for by the
    test: with both thresholds at 1 the emitted law is p whatever q is, at the price of an acceptance
    sum(q p), which never exceeds the overlap sum(min(p, q)).

    References
    ----------
    .. [1] SGLang server arguments --speculative-accept-threshold-single and -acc.
    """
    target, draft = law_pair(p, q)
    for name, value in (("threshold_single", threshold_single), ("threshold_acc", threshold_acc)):
        checks.real(name, value, low=0.0, high=1.0, above=True)
    accept = np.where(target >= threshold_single, 1.0, np.minimum(1.0, target / threshold_acc))
    # Rejecting x (probability `refused[x]`) leaves p without x: p(y) / (1 - p(x)) for every other y.
    refused = draft * (1.0 - accept)
    spread = np.divide(refused, 1.0 - target, out=np.zeros_like(refused), where=refused > 0.0)
    corrected = target * (spread.sum(axis=-1, keepdims=True) - spread)
    total = corrected.sum(axis=-1, keepdims=True)
    replacement = np.divide(corrected, total, out=target.copy(), where=total > 0.0)
    return verification("relaxed", target, draft, accept, replacement)


LOSSY_RULES: Mapping[str, Callable[..., Verification]] = {
    "typical": typical,
    "top-1": top_one,
    "top-n": top_n,
    "relaxed": relaxed,
}


def verify(rule: str, p: ArrayLike, q: ArrayLike, options: Mapping[str, Any]) -> Verification:
    """A lossy rule by name, its options checked against what it takes."""
    if rule not in LOSSY_RULES:
        raise unknown_name("rule", rule, tuple(LOSSY_RULES))
    function = LOSSY_RULES[rule]
    known = [name for name in inspect.signature(function).parameters if name not in ("p", "q")]
    for name in options:
        if name not in known:
            raise InputError("rule", rule, f"takes no option {name}, only {', '.join(known)}")
    return function(p, q, **options)


def _all_or_nothing(rule: str, p: Array, q: Array, passes: Any, fallback: str) -> Verification:
    """Tokens that always pass, and a replacement for the others that does not look at them."""
    checks.choice("fallback", fallback, ("greedy", "sample"))
    replacement = greedy(p) if fallback == "greedy" else p
    return verification(rule, p, q, np.asarray(passes, dtype=np.float64), replacement)
