"""Speculation on a deployment: the time of a round from its passes and the engine, and what it gains.

plain step   pass + engine per target pass
round        draft passes + engine per draft pass, verification pass + engine per target pass, engine per round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel.acceptance import Acceptance, expected_tokens_to
from specmodel.draft_combined import Pipelined
from specmodel.drafter import Drafter
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
        self, k: int, batch: Numeric, context: Numeric, law: Acceptance | None = None
    ) -> RoundTime:
        """One round of k drafts; k = 0 is a plain step. batch and context broadcast.

        `law` matters only for a pipelined draft, which is kept in the rounds where every token was right.
        """
        if k == 0:
            plain = self.plain_seconds(batch, context)
            return RoundTime(plain, plain, 0.0)
        engine, width = self.engine, self.drafter.width(k)
        verify = self.deployment.verify_seconds(batch, context, width)
        draft: Numeric = 0.0
        launched = 0.0
        for group in self.drafter.launches(k, batch=batch, context=context, split=self.deployment.split):
            taken = self.deployment.timing.time(group.kernels)
            draft = draft + group.count * taken.seconds
            launched += group.count
        draft = draft + engine.draft_pass_s * launched + engine.lookup_s * self.drafter.lookups(k)
        seconds = verify + draft
        method = self.drafter.method
        if isinstance(method, Pipelined):
            kept = 1.0
            if method.overlap == "reused":
                kept = (method.assumed.law if law is None else law).survival(k + 1)[-1]
            seconds = seconds - kept * np.minimum(draft, verify)
        return RoundTime(seconds, verify, draft)

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
