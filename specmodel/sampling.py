"""Exact verification: a drafted token is tested so that what is emitted keeps the target's law.

The draft proposes a token from ``q``. It is accepted with probability min(1, p/q); after a rejection
the token comes from what ``p`` has left over, max(0, p - q) normalised. Both branches together emit

    min(p, q) + (1 - overlap) * residual = min(p, q) + max(0, p - q) = p,

whatever ``q`` is (`specmodel.algebra` proves it). Rules that do not keep the law are in
`specmodel.verification.lossy`, where their distortion is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from specmodel import checks
from specmodel.errors import InputError, unknown_name
from specmodel.result import Result
from specmodel.verification.laws import Array, kl_divergence, law_pair, shaped, total_variation

RULES = ("exact", "typical", "top-1", "top-n", "relaxed")

# Two laws nearer than this are the same to double precision.
PRESERVED_WITHIN = 1e-9

# Ordered candidate tuples that an exact law is summed over, times the vocabulary.
LARGEST_ENUMERATION = 4_000_000


def accept_probability(p: ArrayLike, q: ArrayLike) -> Array:
    """Chance that a drafted token passes the test, min(1, p/q), shape (..., vocabulary).

    A token that the draft never proposes has q = 0; it is given 1, which no round ever uses.

    References
    ----------
    .. [1] Y. Leviathan, M. Kalman, Y. Matias, "Fast inference from transformers via speculative
       decoding", ICML 2023, arXiv:2211.17192, section 2.3 and appendix A.1.
    .. [2] C. Chen et al., "Accelerating large language model decoding with speculative sampling",
       arXiv:2302.01318, algorithm 2 and theorem 1.
    """
    target, draft = law_pair(p, q)
    return np.divide(target, draft, out=np.ones(target.shape), where=draft > target)


def overlap(p: ArrayLike, q: ArrayLike) -> Array:
    """Chance that a drafted token is accepted, the sum of min(p, q): one minus their total variation."""
    target, draft = law_pair(p, q)
    return np.asarray(np.minimum(target, draft).sum(axis=-1))


def residual(p: ArrayLike, q: ArrayLike) -> Array:
    """Law of the token that replaces a rejected one, max(0, p - q) normalised.

    Where the two laws agree nothing is ever rejected and nothing is left over; p is returned there,
    as engines do.
    """
    target, draft = law_pair(p, q)
    return _leftover(target, draft)


def emitted(p: ArrayLike, q: ArrayLike) -> Array:
    """Law of the emitted token, both branches summed; equal to p for every q."""
    target, draft = law_pair(p, q)
    accepted = np.minimum(target, draft)
    return np.asarray(accepted + (1.0 - accepted.sum(axis=-1, keepdims=True)) * _leftover(target, draft))


@dataclass(frozen=True, slots=True, eq=False)
class Verification(Result):
    """What one rule of verification does to one pair of laws, and whether the target's law survives it.

    One value per token: ``accept``, the chance that the token passes if drafted; ``residual``, the law of what
    replaces a rejected one; ``accepted_mass`` and ``corrected_mass``, the two branches that add up to ``emitted``.
    One value per law: ``overlap``, the chance that a drafted token is accepted; ``distance``, the total variation
    between emitted and p; ``divergence``, the KL divergence of emitted from p [nats].
    """

    rule: str
    preserved: bool
    p: Array
    q: Array
    accept: Array
    residual: Array
    accepted_mass: Array
    corrected_mass: Array
    emitted: Array
    overlap: Array
    distance: Array
    divergence: Array


def verification(rule: str, p: Array, q: Array, accept: Array, replacement: Array) -> Verification:
    """A rule that accepts token x with ``accept[x]`` and emits from ``replacement`` otherwise."""
    passed = q * accept
    # The mass that passed can exceed 1 by a rounding error, never by more.
    chance = np.minimum(passed.sum(axis=-1), 1.0)
    corrected = (1.0 - chance)[..., None] * replacement
    law_out = passed + corrected
    distance = total_variation(law_out, p)
    return Verification(
        rule=rule,
        preserved=bool(np.all(distance <= PRESERVED_WITHIN)),
        p=p,
        q=q,
        accept=accept,
        residual=replacement,
        accepted_mass=passed,
        corrected_mass=np.asarray(corrected),
        emitted=law_out,
        overlap=np.asarray(chance),
        distance=distance,
        divergence=kl_divergence(law_out, p),
    )


def exact(
    p: ArrayLike,
    q: ArrayLike,
    *,
    rule: str = "exact",
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    **options: Any,
) -> Verification:
    """Is the output law preserved, and what does each branch contribute?

    Parameters
    ----------
    p, q : array, shape (..., vocabulary)
        Laws of the target and of the draft for the same position.
    rule : {"exact", "typical", "top-1", "top-n", "relaxed"}
        How a drafted token is verified; all but the first are lossy (`specmodel.verification.lossy`).
    temperature, top_k, top_p, min_p
        Shaping of p before the test (`specmodel.verification.laws.shaped`); distances refer to the shaped law.
        Temperature 0 makes p a point mass, and the exact rule becomes token-for-token identity.
    options
        Passed to the lossy rule: epsilon, delta, fallback, n, margin, threshold_single, threshold_acc.

    Raises
    ------
    InputError
        If a law is not one, the vocabularies differ, or rule or option do not exist.

    Examples
    --------
    >>> table = exact([0.5, 0.3, 0.2], [0.4, 0.4, 0.2])
    >>> table.accept.round(2).tolist(), round(float(table.overlap), 2), table.residual.round(2).tolist()
    ([1.0, 0.75, 1.0], 0.9, [1.0, 0.0, 0.0])
    """
    target = shaped(p, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    target, draft = law_pair(target, q)
    if rule == "exact":
        if options:
            raise InputError("rule", rule, f"takes no option {', '.join(sorted(options))}")
        accept = accept_probability(target, draft)
        return verification(rule, target, draft, accept, _leftover(target, draft))
    from specmodel.verification import lossy

    if rule not in lossy.LOSSY_RULES:
        raise unknown_name("rule", rule, RULES)
    return lossy.verify(rule, target, draft, options)


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSet:
    """Several candidates for one position, verified one after the other.

    ``accept_by_rank[i]`` is the chance that candidate i is the one that is taken (those before it were
    rejected), so the entries add up to ``overlap``; this is the acceptance that `specmodel.trees`
    calls exclusive.
    """

    drawn: str
    accept_by_rank: Array
    emitted: Array
    overlap: float
    distance: float


def candidate_set(
    p: ArrayLike,
    q: ArrayLike,
    candidates: int,
    *,
    drawn: Literal["without replacement", "with replacement", "top"] = "without replacement",
) -> CandidateSet:
    """Verify several candidates by recursive rejection, and sum the law of what is emitted.

    Candidate i is tested against what is left of p, r_1 = p and r_{i+1} = max(0, r_i - q_i) normalised,
    where q_i is the law it was drawn from. Exact for every way of drawing:

    * ``without replacement``: q_i is q without the earlier candidates, renormalised (RSD, Sequoia);
    * ``with replacement``: q_i = q (SpecInfer);
    * ``top``: the likeliest tokens of q in order, each a point mass (EAGLE-2's trees). Then candidate i is
      taken with probability p(x_i), so acceptances of siblings add: they exclude each other.

    Drafts that run out of tokens (q has fewer than ``candidates`` with positive probability) stop early.

    Raises
    ------
    InputError
        If laws are not single ones, or drawing without replacement would need more than 4 million terms.

    References
    ----------
    .. [1] X. Miao et al., "SpecInfer", ASPLOS 2024, arXiv:2305.09781, algorithm 2, theorem 4.2.
    .. [2] W. Jeon et al., "Recursive speculative decoding", arXiv:2402.14160, algorithm 1, theorem 3.1.
    .. [3] Z. Chen et al., "Sequoia", arXiv:2402.12374, algorithm 2.
    """
    target, draft = law_pair(p, q)
    if target.ndim != 1:
        raise InputError("p", p, "candidate sets take one law at a time")
    candidates = checks.whole("candidates", candidates, low=1, high=target.size)
    if drawn == "without replacement":
        return _drawn_without_replacement(target, draft, candidates)
    if drawn == "with replacement":
        proposals = [draft] * candidates
    elif drawn == "top":
        best = np.argsort(-draft, kind="stable")[: min(candidates, int((draft > 0.0).sum()))]
        proposals = list(np.eye(draft.size)[best])
    else:
        raise unknown_name("drawn", drawn, ("without replacement", "with replacement", "top"))
    left, weight = target, 1.0
    law_out = np.zeros_like(target)
    ranks = np.zeros(candidates)
    for rank, proposal in enumerate(proposals):
        passed = weight * np.minimum(left, proposal)
        law_out += passed
        ranks[rank] = passed.sum()
        left, weight = _leftover(left, proposal), max(0.0, weight - float(passed.sum()))
    return _summed(drawn, target, law_out + weight * left, ranks)


def _drawn_without_replacement(p: Array, q: Array, candidates: int) -> CandidateSet:
    """Sum over every ordered tuple of candidates: one row per tuple that was rejected so far."""
    size = p.size
    if float(size) ** candidates > LARGEST_ENUMERATION:
        raise InputError(
            "candidates",
            candidates,
            f"{size} tokens ^ {candidates} is more than 4 million terms; sample instead",
        )
    left, draft, weight = p[None], q[None], np.ones(1)
    law_out, ranks = np.zeros(size), np.zeros(candidates)
    for rank in range(candidates):
        passed = weight[:, None] * np.minimum(left, draft)
        law_out += passed.sum(axis=0)
        ranks[rank] = passed.sum()
        rejected = weight[:, None] * np.maximum(draft - left, 0.0)  # drafted this token, and refused it
        row, token = np.nonzero(rejected)
        left, weight = _leftover(left, draft)[row], rejected[row, token]
        draft = without(draft[row], token)
        spent = draft.sum(axis=-1) == 0.0
        law_out += weight[spent] @ left[spent]
        left, draft, weight = left[~spent], draft[~spent], weight[~spent]
    return _summed("without replacement", p, law_out + weight @ left, ranks)


def without(draft: Array, token: Any) -> Array:
    """Rows of laws, each without one of its tokens, renormalised; all zero where nothing is left."""
    rest = draft.copy()
    rest[np.arange(len(rest)), token] = 0.0
    total = rest.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(rest, total, out=np.zeros_like(rest), where=total > 0.0))


def _summed(drawn: str, p: Array, law_out: Array, ranks: Array) -> CandidateSet:
    distance = float(total_variation(law_out, p))
    return CandidateSet(drawn, ranks, law_out, min(1.0, float(ranks.sum())), distance)


def _leftover(p: Array, q: Array) -> Array:
    """max(0, p - q) normalised, p where nothing is left; for laws already checked."""
    left = np.maximum(p - q, 0.0)
    total = left.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(left, total, out=p.copy(), where=total > 0.0))
