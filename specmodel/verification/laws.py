"""Laws over a vocabulary: checked once, shaped before a test, compared after it.

A law is an array of probabilities with the vocabulary on its last axis; the axes before it, if any,
are independent cases. ``p`` is always the target's law and ``q`` the draft's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specmodel import checks
from specmodel.errors import InputError

Array = NDArray[np.float64]

SUM_TOLERANCE = 1e-6


def law(values: ArrayLike, field: str = "law") -> Array:
    """Probabilities, checked, and scaled by their own sum so that it is 1 to the last digit.

    Parameters
    ----------
    values : array, shape (..., vocabulary)
        Non-negative, finite, summing to 1 within 1e-6 along the last axis.
    field : str
        What an error calls them.

    Raises
    ------
    InputError
        If they are not such numbers, or there is no token at all.
    """
    array = _numbers(values, field)
    if not np.isfinite(array).all():
        raise InputError(field, values, "every probability must be a finite number")
    if (array < 0.0).any():
        raise InputError(field, values, "no probability may be negative")
    if (array > 1.0 + SUM_TOLERANCE).any():
        raise InputError(field, values, "no probability may be above 1")
    total = array.sum(axis=-1, keepdims=True)
    worst = float(total.flat[int(np.abs(total - 1.0).argmax())])
    if not abs(worst - 1.0) <= SUM_TOLERANCE:
        raise InputError(field, values, f"probabilities must sum to 1 within 1e-6, these sum to {worst:.7g}")
    return np.asarray(array / total)


def law_pair(p: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
    """Target and draft law, checked, over one vocabulary, broadcast against each other."""
    target, draft = law(p, "p"), law(q, "q")
    if target.shape[-1] != draft.shape[-1]:
        raise InputError(
            "q", q, f"needs the vocabulary of p: {target.shape[-1]} tokens, not {draft.shape[-1]}"
        )
    try:
        target, draft = np.broadcast_arrays(target, draft)
    except ValueError:
        raise InputError(
            "q", q, f"shape {draft.shape} does not go with the shape {target.shape} of p"
        ) from None
    return target, draft


def law_from_logits(logits: ArrayLike) -> Array:
    """Softmax along the last axis; ``-inf`` rules a token out, but not all of them."""
    array = _numbers(logits, "logits")
    if np.isnan(array).any() or (array == np.inf).any():
        raise InputError("logits", logits, "every logit must be finite or -inf")
    top = array.max(axis=-1, keepdims=True)
    if np.isinf(top).any():
        raise InputError("logits", logits, "at least one logit must be finite")
    raised = np.exp(array - top)
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def greedy(p: ArrayLike) -> Array:
    """All mass on the likeliest token, the first of them on a tie: decoding at temperature 0."""
    target = law(p, "p")
    return _one_hot(target.argmax(axis=-1), target.shape[-1])


def tempered(p: ArrayLike, temperature: float) -> Array:
    r"""The law at another temperature, :math:`p_i^{1/T}` normalised; ``temperature=0`` is `greedy`."""
    target = law(p, "p")
    temperature = checks.real("temperature", temperature, low=0.0)
    if temperature == 0.0:
        return greedy(target)
    with np.errstate(divide="ignore", over="ignore"):
        logits = np.log(target / target.max(axis=-1, keepdims=True)) / temperature
    return law_from_logits(logits)


def keep_top_k(p: ArrayLike, count: int) -> Array:
    """The ``count`` likeliest tokens, renormalised; of equal ones the earlier is kept."""
    target = law(p, "p")
    count = checks.whole("top_k", count, low=1)
    order = np.argsort(-target, axis=-1, kind="stable")[..., :count]
    kept = np.zeros(target.shape, dtype=bool)
    np.put_along_axis(kept, order, True, axis=-1)
    return _kept(target, kept)


def keep_top_p(p: ArrayLike, mass: float) -> Array:
    """The smallest set of likeliest tokens that holds at least ``mass``, renormalised (nucleus)."""
    target = law(p, "p")
    mass = checks.real("top_p", mass, low=0.0, high=1.0, above=True)
    order = np.argsort(-target, axis=-1, kind="stable")
    ranked = np.take_along_axis(target, order, axis=-1)
    before = np.cumsum(ranked, axis=-1) - ranked
    kept = np.zeros(target.shape, dtype=bool)
    # A sum such as 0.5 + 0.3 may end one digit short of 0.8: that is no reason for one more token.
    np.put_along_axis(kept, order, before < mass - 1e-12, axis=-1)
    kept |= _one_hot(target.argmax(axis=-1), target.shape[-1]) > 0.0
    return _kept(target, kept)


def keep_min_p(p: ArrayLike, share: float) -> Array:
    """The tokens at least ``share`` times as likely as the likeliest, renormalised."""
    target = law(p, "p")
    share = checks.real("min_p", share, low=0.0, high=1.0)
    return _kept(target, target >= share * target.max(axis=-1, keepdims=True))


def shaped(
    p: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Array:
    """What the sampler really draws from: temperature, top-k, top-p and min-p in this order.

    Each step sees the renormalised result of the one before, as in the common inference engines.
    Verification must test against this law: exactness refers to it, not to the raw softmax.
    """
    target = tempered(p, temperature)
    if top_k is not None:
        target = keep_top_k(target, top_k)
    if top_p is not None:
        target = keep_top_p(target, top_p)
    if min_p is not None:
        target = keep_min_p(target, min_p)
    return target


def total_variation(p: ArrayLike, r: ArrayLike) -> Array:
    """Half of the summed absolute difference: the largest gap of any event's probability, 0 to 1."""
    one, other = law_pair(p, r)
    return np.asarray(0.5 * np.abs(one - other).sum(axis=-1))


def kl_divergence(r: ArrayLike, p: ArrayLike) -> Array:
    r"""Kullback-Leibler divergence :math:`\sum r \ln(r/p)` [nats]; ``inf`` where r emits what p rules out."""
    emitted, target = law_pair(r, p)
    inside = emitted > 0.0
    # A difference of logarithms: the ratio itself overflows where p is tiny.
    with np.errstate(divide="ignore"):
        gap = np.log(np.where(inside, emitted, 1.0)) - np.log(np.where(inside, target, 1.0))
    terms = np.where(inside, emitted * gap, 0.0)
    # Rounding can leave -1e-17 where the laws are equal.
    return np.asarray(np.maximum(terms.sum(axis=-1), 0.0))


def entropy(p: ArrayLike) -> Array:
    r"""Shannon entropy :math:`-\sum p \ln p` in nats."""
    target = law(p, "p")
    logs = np.log(target, out=np.zeros_like(target), where=target > 0.0)
    return np.asarray(-(target * logs).sum(axis=-1))


def _numbers(values: ArrayLike, field: str) -> Array:
    """An array of numbers with at least one token on its last axis."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(field, values, "must be numbers, one per token of the vocabulary") from None
    if array.ndim == 0 or array.size == 0:
        raise InputError(field, values, "needs at least one token")
    return array


def _one_hot(tokens: Any, vocabulary: int) -> Array:
    """Point masses at the given tokens."""
    return np.asarray(np.arange(vocabulary) == np.asarray(tokens)[..., None], dtype=np.float64)


def _kept(target: Array, kept: NDArray[np.bool_]) -> Array:
    """The law restricted to some tokens."""
    left = np.where(kept, target, 0.0)
    return np.asarray(left / left.sum(axis=-1, keepdims=True))
