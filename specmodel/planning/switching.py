"""Changing the depth while the batch wanders: what a change costs, and the band that keeps it from flickering.

A change is not free: graphs of another width are looked up or captured, and a draft that rested must first read what
it missed. So a better depth is taken up only when its gain, kept for as long as the batch is expected to stay, pays
for the change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from specmodel import checks
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.operating_range import DepthInterval
    from specmodel.policies import Surface


def band(switch_s: float, dwell_s: float) -> float:
    r"""The relative gain from which a change pays.

    Staying yields :math:`r D` tokens in the time D before the batch moves on, changing :math:`r' (D - s)`; so it
    pays from :math:`r'/r - 1 > s / (D - s)`.

    Returns
    -------
    float
        >= 0; `inf` where the change takes as long as the stay.

    Examples
    --------
    A change of 0.2 s for a stay of 10 s must gain 2 %:

    >>> f"{band(0.2, 10.0):.4f}"
    '0.0204'
    """
    checks.real("switch seconds", switch_s, low=0.0)
    checks.real("dwell seconds", dwell_s, low=0.0, above=True)
    return math.inf if switch_s >= dwell_s else switch_s / (dwell_s - switch_s)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Between two levels: with a rising batch the depth changes at `up`, with a falling one back at `down`.

    None where the gain never reaches the band, as far as batches were computed: then the depth stays.
    """

    k_below: int
    k_above: int
    down: int | None
    up: int | None


def boundaries(
    found: Surface, schedule: Sequence[DepthInterval], *, context: int, gain: float
) -> list[Boundary]:
    """Where to change between neighbouring levels so that the change gains at least `gain` (see `band`).

    `down` < the printed boundary <= `up`; with a gain of 0 they are neighbours.
    """
    if not gain >= 0.0:
        raise InputError("hysteresis", gain, "must be >= 0")
    column = found.column(context)
    batches = np.asarray(found.batches)
    inside = found.fits[:, column]
    rows = []
    for below, above in pairwise(schedule):
        lower, upper = (found.speedup[int(found.rows([level.k])[0]), :, column] for level in (below, above))
        rising = inside & (batches >= above.from_) & (upper > lower * (1.0 + gain))
        falling = inside & (batches <= below.to) & (lower > upper * (1.0 + gain))
        rows.append(
            Boundary(
                below.k,
                above.k,
                int(batches[falling].max()) if falling.any() else None,
                int(batches[rising].min()) if rising.any() else None,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Walk:
    """What a sequence of loads gave. `lost` is the share of tokens missing against free, instant changes."""

    ks: tuple[int, ...]
    switches: int
    tokens: float
    seconds: float
    lost: float


def follow(
    found: Surface,
    batches: Sequence[int],
    *,
    context: int,
    dwell_s: float,
    switch_s: float = 0.0,
    resume_s: float = 0.0,
    gain: float | None = None,
    start_k: int = 0,
) -> Walk:
    """Run through a sequence of batches, `dwell_s` each, taking up a better depth where its gain pays for the change.

    Parameters
    ----------
    switch_s, resume_s : float
        What a change costs, and what leaving k = 0 costs on top, where the draft has to read what it missed. [s]
    gain : float, optional
        Change above this relative gain instead of where `band` says that it pays; 0 follows every batch.
    start_k : int
        The depth before the first batch; changing from it costs like any other change.
    """
    checks.real("dwell seconds", dwell_s, low=0.0, above=True)
    checks.real("switch seconds", switch_s, low=0.0)
    checks.real("resume seconds", resume_s, low=0.0)
    rates = found.tokens_per_second[:, found.places(batches), found.column(context)]
    row = int(found.rows([start_k])[0])
    ks, tokens, switches = [], 0.0, 0
    for step in range(len(batches)):
        top = int(rates[:, step].argmax())
        price = switch_s + (resume_s if row == 0 else 0.0)
        least = band(price, dwell_s) if gain is None else gain
        changes = bool(rates[top, step] > rates[row, step] * (1.0 + least))
        row = top if changes else row
        switches += changes
        tokens += float(rates[row, step]) * max(0.0, dwell_s - price * changes)
        ks.append(found.ks[row])
    ideal = float(rates.max(axis=0).sum()) * dwell_s
    return Walk(tuple(ks), switches, tokens, dwell_s * len(batches), 1.0 - tokens / ideal)
