"""Seeded samplers of verification, many rounds at once: the theorem tried instead of proved.

Rounds that went through the same accepted and rejected tokens share their laws, so laws are kept in tables
with one row per history, and a round is an index into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specmodel import checks
from specmodel.errors import InputError
from specmodel.sampling import Verification, residual, without
from specmodel.verification.laws import Array, law, law_pair

Ints = NDArray[np.int64]
Seed = int | np.random.Generator

# Table entries held at once; longer runs are cut into pieces.
LARGEST_TABLE = 8_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SampledTokens:
    """One emitted token per round, and which candidate it was (-1: the replacement after rejections)."""

    tokens: Ints
    rank: Ints

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether a drafted token was taken."""
        return self.rank >= 0


@dataclass(frozen=True, slots=True, eq=False)
class SampledRounds:
    """Emitted tokens per round, padded with -1 to shape (rounds, k+1), and how many drafts were accepted."""

    tokens: Ints
    accepted: Ints


def draw(table: ArrayLike, rows: Any, seed: Seed) -> Ints:
    """One token per entry of ``rows``, from that row of a table of laws, by inverse distribution function.

    Tokens of probability zero are never drawn.
    """
    laws = np.atleast_2d(np.asarray(table, dtype=np.float64))
    index = np.asarray(rows, dtype=np.int64)
    size = laws.shape[-1]
    steps = np.cumsum(laws, axis=-1)
    # A row without mass (a draft that ran out of tokens) is in nobody's `rows`, but must not break the order.
    steps = np.divide(steps, steps[:, -1:], out=np.ones_like(steps), where=steps[:, -1:] > 0.0)
    # Row r occupies (r, r+1] of one increasing list, so that a single search serves every row.
    steps += np.arange(len(laws))[:, None]
    aimed = index + _rng(seed).random(index.shape)
    tokens = np.searchsorted(steps.ravel(), aimed, side="right") - index * size
    # Rounding can carry a number just below r+1 up to it, which is past the last likely token.
    last = size - 1 - np.argmax(laws[:, ::-1] > 0.0, axis=-1)
    return np.asarray(np.minimum(tokens, last[index]))


def sample_rule(rule: Verification, rounds: int, seed: Seed) -> SampledTokens:
    """Play one rule, exact or lossy: draft from q, accept or not, replace what was rejected."""
    if rule.p.ndim != 1:
        raise InputError("p", rule.p.shape, "sampling takes one law at a time")
    rng, rows = _rng(seed), np.zeros(checks.whole("rounds", rounds, low=1), dtype=np.int64)
    drafted = draw(rule.q, rows, rng)
    passed = rng.random(rounds) < rule.accept[drafted]
    replaced = draw(rule.residual, rows, rng)
    return SampledTokens(np.where(passed, drafted, replaced), np.where(passed, 0, -1))


def sample_candidates(
    p: ArrayLike, q: ArrayLike, candidates: int, rounds: int, seed: Seed, *, replacement: bool = False
) -> SampledTokens:
    """Verify several candidates per round by recursive rejection (`specmodel.sampling.candidate_set`).

    Candidates are drawn from q, without replacement unless asked otherwise; one of them is a plain test.
    """
    target, draft = law_pair(p, q)
    if target.ndim != 1:
        raise InputError("p", p, "sampling takes one law at a time")
    rng = _rng(seed)
    tokens, ranks = [], []
    for piece in _pieces(rounds, target.size):
        token, rank = _verify(
            target[None], draft[None], np.zeros(piece, dtype=np.int64), candidates, rng, replacement
        )
        tokens.append(token)
        ranks.append(rank)
    return SampledTokens(np.concatenate(tokens), np.concatenate(ranks))


def sample_rounds(
    p: ArrayLike, q: ArrayLike, rounds: int, seed: Seed, *, candidates: int = 1, start: int = 0
) -> SampledRounds:
    """Play whole rounds of a chain, or of a tree with ``candidates`` children at every node.

    Parameters
    ----------
    p : array, shape (k+1, vocabulary) or (k+1, vocabulary, vocabulary)
        The target's law at each position; with three axes it depends on the token before it, the middle
        axis. The last position gives the bonus token of a round in which all k drafts passed.
    q : array, shape (k, vocabulary) or (k, vocabulary, vocabulary)
        The draft's, likewise.
    candidates : int
        Candidates per position, drawn without replacement; 1 is a chain.
    start : int
        The token before the first position.
    """
    target, draft = law(p, "p"), law(q, "q")
    for field, values in (("p", target), ("q", draft)):
        if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[1] != values.shape[2]):
            raise InputError(field, values.shape, "must be shaped (positions, [vocabulary,] vocabulary)")
    size = target.shape[-1]
    if len(target) != len(draft) + 1 or draft.shape[-1] != size:
        raise InputError("q", draft.shape, "needs one position less than p, and p's vocabulary")
    checks.whole("start", start, high=size - 1)
    shape = (len(target), size, size)
    target = np.broadcast_to(target if target.ndim == 3 else target[:, None], shape)
    draft = np.broadcast_to(draft if draft.ndim == 3 else draft[:, None], (len(draft), size, size))
    rng = _rng(seed)
    pieces = [
        _play(target, draft, piece, candidates, start, rng) for piece in _pieces(rounds, size * len(target))
    ]
    return SampledRounds(
        np.concatenate([piece.tokens for piece in pieces]),
        np.concatenate([piece.accepted for piece in pieces]),
    )


def _play(
    target: Array, draft: Array, rounds: int, candidates: int, start: int, rng: np.random.Generator
) -> SampledRounds:
    """Rounds side by side; those with a rejection leave, the others go on from the accepted token."""
    depth = len(draft)
    tokens = np.full((rounds, depth + 1), -1, dtype=np.int64)
    accepted = np.zeros(rounds, dtype=np.int64)
    alive, before = np.arange(rounds), np.full(rounds, start, dtype=np.int64)
    for position in range(depth):
        token, rank = _verify(target[position], draft[position], before, candidates, rng, False)
        tokens[alive, position] = token
        passed = rank >= 0
        alive, before = alive[passed], token[passed]
        accepted[alive] += 1
    tokens[alive, depth] = draw(target[depth], before, rng)
    return SampledRounds(tokens, accepted)


def _verify(
    p: Array, q: Array, rows: Ints, candidates: int, rng: np.random.Generator, replacement: bool
) -> tuple[Ints, Ints]:
    """Recursive rejection for many rounds: round i tests against rows[i] of the tables p and q."""
    checks.whole("candidates", candidates, low=1)
    size = p.shape[-1]
    tokens = np.full(len(rows), -1, dtype=np.int64)
    ranks = np.full(len(rows), -1, dtype=np.int64)
    left, draft = p, q
    waiting = np.arange(len(rows))
    for rank in range(candidates):
        drafted = draw(draft, rows, rng)
        ratio = np.divide(left, draft, out=np.ones_like(left), where=draft > left)
        passed = rng.random(len(rows)) < ratio[rows, drafted]
        tokens[waiting[passed]], ranks[waiting[passed]] = drafted[passed], rank
        waiting, rows, drafted = waiting[~passed], rows[~passed], drafted[~passed]
        # Rejected rounds with the same history share the next row of the tables.
        history, rows = np.unique(rows * size + drafted, return_inverse=True)
        row, token = np.divmod(history, size)
        left = residual(left[row], draft[row]) if len(row) else left
        draft = draft[row] if replacement else without(draft[row], token)
        spent = draft.sum(axis=-1)[rows] == 0.0 if len(row) else np.zeros(0, dtype=bool)
        tokens[waiting[spent]] = draw(left, rows[spent], rng)
        waiting, rows = waiting[~spent], rows[~spent]
        if not len(waiting):
            return tokens, ranks
    tokens[waiting] = draw(left, rows, rng)
    return tokens, ranks


def _pieces(rounds: int, entries: int) -> list[int]:
    """Rounds cut so that a table with a row per round stays small."""
    most = max(1, LARGEST_TABLE // entries)
    whole, rest = divmod(checks.whole("rounds", rounds, low=1), most)
    return [most] * whole + ([rest] if rest else [])


def _rng(seed: Seed) -> np.random.Generator:
    return seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
