"""Speculation on a deployment: the time of a round from its passes and the engine, and what it gains.

plain step   pass + engine per target pass
round        draft passes + engine per draft pass, verification pass + engine per target pass, engine per round
where a pass is never shorter than launching its kernels (engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel.acceptance import Acceptance, expected_tokens, expected_tokens_to
from specmodel.drafters.combined import Pipelined
from specmodel.drafters.drafter import Drafter
from specmodel.engine import EngineTime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.deployment import Deployment
    from specmodel.units import Numeric


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Where the time of a round goes, engine time included. [s] Less than the sum where the draft overlaps."""

    seconds: Numeric
    verify_s: Numeric
    draft_s: Numeric


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What a round is made of before any engine time.

    Attributes
    ----------
    verify_s : float or ndarray
        Kernels of the verification pass. [s]
    width : float or ndarray
        Positions verified per sequence, on average.
    groups : tuple of (seconds, count, layers)
        Draft passes that run one after another: kernels of one [s], how many, and its layers.
    lookups : int or ndarray
        Look-ups per round.
    branches : bool or ndarray
        Whether the draft is a tree grown anew in every round.
    """

    verify_s: Numeric
    width: Numeric
    groups: tuple[tuple[Numeric, Numeric, Numeric], ...]
    lookups: Numeric
    branches: Numeric

    def where(self, chosen: NDArray[np.bool_]) -> RoundParts:
        """The rounds of a mask, where every field is an array."""
        kept = [np.asarray(part)[chosen] for part in (self.verify_s, self.width, self.lookups, self.branches)]
        groups = [tuple(np.asarray(part)[chosen] for part in group) for group in self.groups]
        return RoundParts(kept[0], kept[1], tuple((g[0], g[1], g[2]) for g in groups), kept[2], kept[3])

    def under(self, engine: EngineTime, *, batch: Numeric, layers: Numeric, gpus: Numeric) -> RoundTime:
        """The round under an engine; `layers` and `gpus` are the target's."""
        verify = engine.target_seconds(self.verify_s, layers=layers, gpus=gpus)
        verify = verify + engine.round_seconds(batch, self.width)
        draft: Numeric = engine.lookup_s * self.lookups + engine.tree_s * self.branches
        for kernels, count, depth in self.groups:
            draft = draft + count * engine.draft_seconds(kernels, layers=depth)
        return RoundTime(verify + draft, verify, draft)


@dataclass(frozen=True, slots=True)
class Speculation:
    """A drafter at work on a deployment, under its engine's times."""

    deployment: Deployment
    drafter: Drafter

    @property
    def engine(self) -> EngineTime:
        return self.deployment.engine

    def plain_seconds(self, batch: Numeric, context: Numeric) -> Numeric:
        """One plain decode step. [s]"""
        return self.deployment.plain_seconds(batch, context)

    def round_time(
        self,
        k: int,
        batch: Numeric,
        context: Numeric,
        law: Acceptance | None = None,
        *,
        tokens: float | None = None,
    ) -> RoundTime:
        """One round of k drafts; k = 0 is a plain step. batch and context broadcast.

        Acceptance matters only for a pipelined draft, which is kept in the rounds where every token was right, and
        for look-ups, whose hits it tells. `tokens` per round may be given in place of a law.
        """
        if k == 0:
            plain = self.plain_seconds(batch, context)
            return RoundTime(plain, plain, 0.0)
        method = self.drafter.method
        parts = self.parts(k, batch, context, law, tokens=tokens)
        taken = parts.under(
            self.engine, batch=np.asarray(batch), layers=self.deployment.layers, gpus=self.deployment.tp
        )
        if isinstance(method, Pipelined):
            kept = 1.0
            if method.overlap == "reused":
                kept = (method.assumed.law if law is None else law).survival(k + 1)[-1]
            hidden = kept * np.minimum(taken.draft_s, taken.verify_s)
            return RoundTime(taken.seconds - hidden, taken.verify_s, taken.draft_s)
        return taken

    def parts(
        self,
        k: int,
        batch: Numeric,
        context: Numeric,
        law: Acceptance | None = None,
        *,
        tokens: float | None = None,
    ) -> RoundParts:
        """The passes of one round of k > 0 drafts, timed without the engine."""
        width = self._width(k, law, tokens)
        launched = self.drafter.launches(k, batch=batch, context=context, split=self.deployment.split)
        time = self.deployment.timing.time
        return RoundParts(
            verify_s=self.deployment.pass_time(batch, context, width).seconds,
            width=width,
            groups=tuple((time(one.kernels).seconds, one.count, one.layers) for one in launched),
            lookups=self.drafter.lookups(k),
            branches=self.drafter.branches,
        )

    def _width(self, k: int, law: Acceptance | None, tokens: float | None) -> float:
        """Positions verified per sequence on average."""
        if not self.drafter.may_miss:
            return self.drafter.width(k)
        if tokens is None:
            tokens = expected_tokens(self.drafter.method.assumed.law if law is None else law, k)
        return self.drafter.mean_width(k, tokens)

    def table(
        self, law: Acceptance, max_k: int, batch: Numeric, context: Numeric
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Tokens per round and round cost for k = 0 ... max_k.

        Returns
        -------
        tokens : ndarray, shape (K + 1,)
        cost : ndarray, shape (K + 1, *broadcast(batch, context))
            K is the last k that method, law and `max_k` allow.
        """
        last = self.drafter.method.last_k(law, max_k)
        plain = self.plain_seconds(batch, context)
        shape = np.broadcast(np.asarray(batch), np.asarray(context)).shape
        cost = np.ones((last + 1, *shape))
        for k in range(1, last + 1):
            cost[k] = self.round_time(k, batch, context, law).seconds / plain
        return np.array(expected_tokens_to(law, last)), cost

    def speedups(self, law: Acceptance, max_k: int, batch: Numeric, context: Numeric) -> NDArray[np.float64]:
        """Speedup for k = 0 ... K, shape (K + 1, *broadcast(batch, context)); 1 at k = 0."""
        tokens, cost = self.table(law, max_k, batch, context)
        return tokens.reshape(-1, *([1] * (cost.ndim - 1))) / cost
