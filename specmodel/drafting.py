"""Where candidates come from: the draft methods by name, and side by side on one workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specmodel import rounds
from specmodel.acceptance import Acceptance
from specmodel.drafters import formulas as draft_formulas
from specmodel.drafters.base import Draft
from specmodel.drafters.combined import Hybrid, Pipelined
from specmodel.drafters.sources import (
    DraftModel,
    EarlyExit,
    Lookahead,
    Lookup,
    Retrieval,
    SparseSelf,
    Suffix,
)
from specmodel.drafters.trained import Eagle, Eagle2, Eagle3, Medusa, MedusaTypical, MtpModules, Parallel
from specmodel.errors import InputError, unknown_name
from specmodel.rounds import DEFAULT_MAX_K

if TYPE_CHECKING:
    from specmodel.architecture import Architecture

METHODS: Mapping[str, type[Draft]] = {
    kind.method: kind
    for kind in (
        DraftModel,
        SparseSelf,
        EarlyExit,
        Eagle,
        Eagle2,
        Eagle3,
        Medusa,
        MedusaTypical,
        MtpModules,
        Lookup,
        Suffix,
        Retrieval,
        Lookahead,
        Parallel,
        Hybrid,
        Pipelined,
    )
}


def draft(name: str) -> Draft:
    """A method by name, with the ratio and acceptance assumed for it."""
    if name not in METHODS:
        raise unknown_name("draft", name, tuple(METHODS))
    return METHODS[name]()  # type: ignore[call-arg]  # every method but the base has a default ratio


def runnable(target: Architecture) -> list[Draft]:
    """Every method, as assumed by default, that this target can run."""
    every = [draft(name) for name in METHODS]
    return [method for method in every if method.missing(target) is None]


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """One method on one workload, at its own best k or at a given one."""

    method: str
    k: int
    tokens_per_round: float
    round_cost: float
    speedup: float
    extra_bytes: float
    speedup_per_gb: float | None
    exact: bool
    illustrative: bool
    needs: tuple[str, ...]
    source: str


def compare(
    drafts: Sequence[Draft],
    target: Architecture,
    *,
    laws: Mapping[str, Acceptance] | None = None,
    k: int | None = None,
    max_k: int = DEFAULT_MAX_K,
    context: int = 0,
    batch: int = 0,
    verify_ratio: Callable[[int], float] = lambda width: 1.0,
) -> list[DraftAnswer]:
    """Methods side by side, best first, from their ratios.

    Parameters
    ----------
    drafts : sequence of Draft
        What to compare.
    target : Architecture
        For the weights and caches that heads add.
    laws : mapping, optional
        Measured acceptance by method; the others use what is assumed for them, and say so.
    k : int, optional
        One depth for all; otherwise each at its own best. Methods that cannot go so deep stop at their last.

    Raises
    ------
    InputError
        If the target cannot run one of them (`runnable` lists those it can).
    """
    answers = []
    for method in drafts:
        reason = method.missing(target)
        if reason is not None:
            raise InputError("draft", method.method, reason)
        law = (laws or {}).get(method.method)
        rows = method.depths(law, max_k=max_k if k is None else k, verify_ratio=verify_ratio)
        best = rounds.best(rows) if k is None else rows[-1]
        extra = float(method.extra_bytes(target, context=context, batch=batch))
        answers.append(
            DraftAnswer(
                method=method.method,
                k=best.k,
                tokens_per_round=best.tokens_per_round,
                round_cost=best.round_cost,
                speedup=best.speedup,
                extra_bytes=extra,
                speedup_per_gb=draft_formulas.speedup_per_gb(best.speedup, extra),
                exact=method.exact,
                illustrative=law is None and method.assumed.illustrative,
                needs=method.needs,
                source="measured" if law is not None else method.assumed.source,
            )
        )
    return sorted(answers, key=lambda answer: -answer.speedup)
