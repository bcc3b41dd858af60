"""`drafts`: every method on one workload, each at its own best draft length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.answers.common import draft_notes, draft_warnings, joined, the_deployment, trust
from specmodel.answers.ranges import around, range_words, uncertainty
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT
from specmodel.drafters.formulas import speedup_per_gb
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.result import Result
from specmodel.rounds import DEFAULT_MAX_K, acceptance_from
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter

# What is compared when nothing is named; a draft model, a hybrid and a pipeline need a model named with them.
COMPARED = (
    "eagle3",
    "eagle",
    "eagle2",
    "medusa",
    "medusa-typical",
    "mtp",
    "parallel",
    "sparse-self",
    "early-exit",
    "lookahead",
    "lookup",
    "suffix",
    "retrieval",
)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One method at its best draft length on this workload. `speedup_per_gb` is None where nothing is added.

    `low` and `high` are the 10-90 % range of the speedup at this acceptance; None where the fidelity was never compared.
    """

    method: str
    k: int
    width: int
    tokens_per_round: float
    round_cost: float
    speedup: float
    low: float | None
    high: float | None
    draft_share: float
    extra_bytes: float
    speedup_per_gb: float | None
    exact: bool
    illustrative: bool
    needs: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A method that this target cannot run, and why."""

    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class DraftsResult(Result):
    """The answer of `drafts`, best first; field names are the JSON keys. `low` and `high` are those of the first."""

    inputs: dict[str, object]
    drafts: list[DraftRow]
    left_out: list[LeftOut]
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def drafts(
    deployment: Deployment | None = None,
    *,
    names: Sequence[str] = (),
    model: str | None = None,
    batch: int = 1,
    context: int = 1024,
    acceptance: Acceptance | Sequence[float] | Mapping[str, Acceptance] | None = None,
    max_k: int = DEFAULT_MAX_K,
) -> DraftsResult:
    """Draft methods side by side, each at its own best k, from the passes that each launches.

    Parameters
    ----------
    names : sequence of str
        Methods, model ids or paths; every method that needs no further model by default.
    model : str, optional
        A draft model to compare with, and behind `hybrid` and `pipelined`.
    acceptance : Acceptance, rates by position or mapping, optional
        Measured acceptance, of all of them or by the name given; without one a method uses what is assumed for it,
        and says so.
    """
    setting = the_deployment(deployment)
    if not isinstance(setting.model, Model):
        raise InputError("model", setting.name, "is given as totals: name an architecture to time drafts")
    batch = checks.whole("batch", batch, low=1, high=MAX_BATCH)
    context = checks.whole("ctx", context, low=1, high=MAX_CONTEXT)
    max_k = checks.whole("max_k", max_k, low=1, high=MAX_K)
    named = [names] if isinstance(names, str) else checks.listed("names", names)
    wanted = [*(named or COMPARED), *((model, "hybrid", "pipelined") if model and not named else ())]
    if named and model is not None and not {"draft-model", "hybrid", "pipelined"} & {*map(str, named)}:
        wanted.append(model)
    laws: Mapping[str, Acceptance] = {}
    common = None
    if isinstance(acceptance, Mapping):
        laws = acceptance
    elif acceptance is not None:
        common = acceptance_from(acceptance=acceptance)
    rows, left_out = [], []
    notes, doubtful = [], []
    for name in wanted:
        law = laws.get(name, common)
        try:
            found = joined(setting, name, model=model)
            assert found is not None
            rows.append(_row(setting, found, law, batch, context, max_k))
            notes += draft_notes(found)
            doubtful += draft_warnings(setting, found, context, measured=law is not None)
        except InputError as error:
            if named:
                raise
            left_out.append(LeftOut(name, error.allowed))
    rows.sort(key=lambda row: -row.speedup)
    return DraftsResult(
        inputs={
            **setting.describe(),
            "batch": batch,
            "context": context,
            "max_k": max_k,
            "fidelity": setting.timing.fidelity,
            "charge": "added",
        },
        drafts=rows,
        left_out=left_out,
        low=rows[0].low if rows else None,
        high=rows[0].high if rows else None,
        trust=trust(setting),
        why=_why(rows),
        assumptions=[
            "each draft's own passes are charged",
            *notes,
            *setting.assumptions,
            *range_words(uncertainty(setting, found) if rows else None),
        ],
        warnings=[
            *setting.warnings,
            *doubtful,
            *(["acceptance marked illustrative is a lesson's example: measure your own"] if any(
                row.illustrative for row in rows
            ) else []),
        ],
    )  # fmt: skip


def _row(
    setting: Deployment, found: Drafter, law: Acceptance | None, batch: int, context: int, max_k: int
) -> DraftRow:
    method = found.method
    assumed = None if law is not None else method.assumed
    used = law if law is not None else method.assumed.law
    speculation = Speculation(setting, found)
    tokens, cost = speculation.table(used, max_k, batch, context)
    k = int(np.argmax(tokens[1:] / cost[1:])) + 1 if len(tokens) > 1 else 0
    taken = speculation.round_time(k, batch, context, used)
    verified = float(taken.verify_s) / float(setting.plain_seconds(batch, context))
    low, high = around(uncertainty(setting, found), float(tokens[k]), float(cost[k]), verified)
    held = setting.memory(context, batch=batch, width=found.width(k), draft=found.artefact)
    extra = sum(line.bytes for line in held.per_gpu if line.line.startswith("draft")) * setting.tp
    return DraftRow(
        method=found.name,
        k=k,
        width=found.width(k),
        tokens_per_round=float(tokens[k]),
        round_cost=float(cost[k]),
        speedup=float(tokens[k] / cost[k]),
        low=low,
        high=high,
        draft_share=float(taken.draft_s / taken.seconds),
        extra_bytes=extra,
        speedup_per_gb=speedup_per_gb(float(tokens[k] / cost[k]), extra),
        exact=method.exact,
        illustrative=assumed is not None and assumed.illustrative,
        needs=method.needs,
        source="measured" if assumed is None else assumed.source,
    )


def _why(rows: Sequence[DraftRow]) -> str:
    if not rows:
        return "no method named can run on this target"
    top = rows[0]
    if top.speedup <= 1.0:
        return f"none pays: the best, {top.method}, costs {top.round_cost:.2f} plain steps for {top.tokens_per_round:.2f} tokens"
    said = (
        f"{top.method} yields {top.tokens_per_round:.2f} tokens for {top.round_cost:.2f} plain steps; "
        f"{top.draft_share:.0%} of its round is drafting"
    )
    if not top.illustrative:
        return said
    measured = next((row for row in rows if not row.illustrative), None)
    known = (
        "" if measured is None else f"; of measured ones {measured.method} leads with {measured.speedup:.2f}x"
    )
    return f"{said}; but that acceptance is a lesson's illustration{known}"
