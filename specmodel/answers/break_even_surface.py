"""`breakeven --surface`: the same over batch and context: where it pays, the acceptance needed, the flip context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks, rounds
from specmodel.acceptance import MAX_K, tokens_per_round
from specmodel.answers.common import the_deployment, trust
from specmodel.answers.speculating import Speculating, speculating
from specmodel.deployment import MAX_BATCH, MAX_CONTEXT
from specmodel.operating_range import TIE
from specmodel.result import Result
from specmodel.speculation import Speculation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment
    from specmodel.drafters.drafter import Drafter

    Floats = NDArray[np.float64]
    Depths = tuple[NDArray[np.int64], Floats]

DEFAULT_BATCHES = (1, 4, 16, 64, 256)
DEFAULT_CONTEXTS = (256, 1024, 4096, 16384, 65536)
SHORTEST = 16  # tokens; the flip is looked for from here on
PER_DOUBLING = 3  # contexts tried per doubling before the flip is located exactly


@dataclass(frozen=True, slots=True)
class SurfaceCell:
    """One batch and context. `alpha_needed` is None where no acceptance is enough ("unreachable").

    `low` and `high` are the 10-90 % range of the speedup; None where the fidelity was never compared.
    """

    batch: int
    context: int
    fits: bool
    k: int | None
    speedup: float | None
    low: float | None
    high: float | None
    pays: bool | None
    alpha_needed: float | None
    k_at_alpha_needed: int | None


@dataclass(frozen=True, slots=True)
class ContextRange:
    """The batch intervals of one context in short."""

    context: int
    memory_limit_batch: int
    break_even_batch: float | None
    first_losing_batch: int | None


@dataclass(frozen=True, slots=True)
class SurfaceResult(Result):
    """The answer of `breakeven --surface`; field names are the JSON keys.

    `flip_context` is the context past which no batch that fits loses; None where some batch loses at every context,
    0 where none loses at any.
    """

    inputs: dict[str, object]
    k: int | str
    surface: list[SurfaceCell]
    by_context: list[ContextRange]
    flip_context: int | None
    low: float | None
    high: float | None
    trust: str
    why: str
    assumptions: list[str]
    warnings: list[str]


def break_even_surface(
    deployment: Deployment | None = None,
    *,
    batches: Sequence[int] = DEFAULT_BATCHES,
    contexts: Sequence[int] = DEFAULT_CONTEXTS,
    alpha: float | None = None,
    acceptance: Sequence[float] | Acceptance | None = None,
    conditional: bool = False,
    extend: bool = False,
    draft_cost: float | None = None,
    charge: str = "added",
    draft: str | Drafter | None = None,
    draft_model: str | None = None,
    draft_tp: int | None = None,
    k: int | None = None,
    max_k: int = rounds.DEFAULT_MAX_K,
) -> SurfaceResult:
    """Speedup and the acceptance needed at every batch and context, and the flip context between them.

    Parameters are those of `breakeven`, with several batches and contexts.
    """
    setting = the_deployment(deployment)
    sizes = sorted({checks.whole("batch", batch, low=1, high=MAX_BATCH) for batch in batches})
    lengths = sorted({checks.whole("ctx", context, low=1, high=MAX_CONTEXT) for context in contexts})
    asked = speculating(
        setting,
        alpha=alpha,
        acceptance=acceptance,
        conditional=conditional,
        extend=extend,
        draft_cost=draft_cost,
        charge=charge,
        draft=draft,
        draft_model=draft_model,
        draft_tp=draft_tp,
        k=None if k is None else checks.whole("k", k, low=1, high=MAX_K),
        max_k=checks.whole("max_k", max_k, low=1, high=MAX_K),
    )
    law, off = asked.law, asked.off
    ranges = {context: asked.batches(context) for context in lengths}

    def costs_at(batches: Sequence[float], contexts: Sequence[int], factor: float = 1.0) -> Depths:
        return _costs(asked, batches, contexts, factor)

    ks, costs = costs_at(sizes, lengths)
    slower, faster = (
        (None, None)
        if off is None
        else (
            costs_at(sizes, lengths, 1.0 + off.verify)[1] / off.low,
            costs_at(sizes, lengths, 1.0 - off.verify)[1] / off.high,
        )
    )
    tokens = 1.0 + np.array([sum(law.survival(int(depth))) for depth in ks])
    speedup = tokens[:, None, None] / costs
    needed = alpha_needed(ks, costs)
    cells = []
    for i, batch in enumerate(sizes):
        for j, context in enumerate(lengths):
            if batch > ranges[context].memory_limit_batch:
                cells.append(SurfaceCell(batch, context, False, None, None, None, None, None, None, None))
                continue
            best, cheapest = int(speedup[:, i, j].argmax()), int(needed[:, i, j].argmin())
            enough = float(needed[cheapest, i, j])
            reachable = enough <= 1.0
            cells.append(
                SurfaceCell(
                    batch,
                    context,
                    True,
                    int(ks[best]),
                    float(speedup[best, i, j]),
                    None if slower is None else float(tokens[best] / slower[best, i, j]),
                    None if faster is None else float(tokens[best] / faster[best, i, j]),
                    bool(speedup[best, i, j] > 1.0 + TIE),
                    enough if reachable else None,
                    int(ks[cheapest]) if reachable else None,
                )
            )

    def loses(tried: Sequence[int]) -> list[bool | None]:
        """Whether some batch that fits loses; batches 10 % apart are looked at."""
        limits = [_limit(setting, asked.drafter, context) for context in tried]
        largest = max(limits)
        if largest == 0:
            return [None] * len(tried)
        some = np.unique(np.geomspace(1, largest, int(np.log(largest) / np.log(1.1)) + 2).round())
        depths, found = costs_at(some.tolist(), tried)
        yielded = 1.0 + np.array([sum(law.survival(int(depth))) for depth in depths])
        best = (yielded[:, None, None] / found).max(axis=0)
        lost = best <= 1.0 + TIE
        return [
            None if limit == 0 else bool((lost[:, column] & (some <= limit)).any())
            for column, limit in enumerate(limits)
        ]

    flip = flip_context(loses)
    return SurfaceResult(
        inputs=asked.inputs(),
        k="best" if asked.k is None else asked.k,
        surface=cells,
        by_context=[
            ContextRange(c, r.memory_limit_batch, r.break_even_batch, r.first_losing_batch)
            for c, r in ranges.items()
        ],
        flip_context=flip,
        low=None,
        high=None,
        trust=trust(setting),
        why=_why(flip),
        assumptions=asked.assumptions(),
        warnings=asked.warnings(lengths[-1]),
    )


def _limit(setting: Deployment, drafter: Drafter | None, context: int) -> int:
    if drafter is None:
        return setting.memory_limit_batch(context)
    tp = None if drafter.artefact is None else drafter.tp
    return setting.memory(context, draft=drafter.artefact, draft_tp=tp).max_batch


def alpha_needed(ks: NDArray[np.int64], costs: Floats) -> Floats:
    """The alpha at which k drafts break even at each round cost; infinity where none does.

    ks has shape (K,), costs (K, ...). Tokens per round rise with alpha, so each is found by halving an interval.
    """
    depth = ks.reshape(-1, *([1] * (costs.ndim - 1))) * np.ones_like(costs)
    low, high = np.zeros_like(costs), np.ones_like(costs)
    for _ in range(52):  # to the last bit of a number between 0 and 1
        middle = 0.5 * (low + high)
        enough = np.asarray(tokens_per_round(middle, depth)) >= costs
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    found = np.where(costs <= 1.0, 0.0, high)
    return np.where(costs > depth + 1.0, np.inf, found)


def flip_context(
    loses: Callable[[Sequence[int]], Sequence[bool | None]], longest: int = MAX_CONTEXT
) -> int | None:
    """The context past which no batch that fits loses; 0 where none ever does, None where one always does.

    `loses` says for several contexts at once whether some batch loses there, None where nothing fits.
    """
    steps = int(PER_DOUBLING * np.log2(longest / SHORTEST)) + 1
    tried = [int(SHORTEST * 2.0 ** (step / PER_DOUBLING)) for step in range(steps)]
    verdicts = [verdict for verdict in loses(tried) if verdict is not None]
    losing = [index for index, verdict in enumerate(verdicts) if verdict]
    if not losing:
        return 0 if verdicts else None
    if losing[-1] == len(verdicts) - 1:
        return None
    low, high = tried[losing[-1]], tried[losing[-1] + 1]
    while high - low > 1:
        middle = (low + high) // 2
        if loses([middle])[0]:
            low = middle
        else:
            high = middle
    return low


def _costs(
    asked: Speculating, batches: Sequence[float], contexts: Sequence[int], verify_factor: float
) -> Depths:
    """Draft lengths, and round costs of shape (k, batch, context), verification stretched by a factor."""
    setting, law, drafter, k = asked.setting, asked.law, asked.drafter, asked.k
    rows, columns = np.asarray(batches, dtype=float)[:, None], np.asarray(contexts, dtype=float)[None, :]
    shape = (len(batches), len(contexts))
    plain = setting.plain_seconds(rows, columns)
    if drafter is not None:
        speculation = Speculation(setting, drafter)
        last = drafter.method.last_k(law, asked.max_k if k is None else k)
        ks = np.arange(1, last + 1) if k is None else np.array([k])
        taken = [speculation.round_time(int(depth), rows, columns, law) for depth in ks]
        costs = [(one.seconds + (verify_factor - 1.0) * one.verify_s) / plain for one in taken]
        return ks, np.stack([np.broadcast_to(np.asarray(one), shape) for one in costs])
    last = asked.max_k if law.max_k is None else min(asked.max_k, law.max_k)
    ks = np.arange(1, last + 1) if k is None else np.array([k])
    ratio = verify_factor * setting.verify_seconds(rows, columns, ks[:, None, None] + 1) / plain
    found = rounds.round_cost(
        ks[:, None, None], draft_cost=asked.draft_cost, verify_ratio=ratio, charge=asked.charge
    )
    return ks, np.broadcast_to(np.asarray(found), (ks.size, *shape))


def _why(flip: int | None) -> str:
    if flip is None:
        return "at every context that fits some batch loses: there is no flip"
    if flip == 0:
        return "no batch that fits loses at any context"
    return f"past {flip:,} cached tokens no batch that fits loses: the cache read hides the extra positions"
