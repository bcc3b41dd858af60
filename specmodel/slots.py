"""Idle token-slots: positions that a memory-bound step computes for nothing, shared by all that want some.

A step that streams weights for t seconds has room for a fixed number of positions before arithmetic takes
longer than t. Drafts, trees and windows of every request in the batch draw on that one budget.
"""

from __future__ import annotations

from specmodel import checks


def slot_share(positions: float, slots: float) -> float:
    """Share of the budget that some positions take; above 1 they do not fit."""
    checks.real("positions", positions, low=0.0)
    return positions / checks.real("slots", slots, low=0.0, above=True)


def stretched_step_s(step_s: float, positions: float, slots: float) -> float:
    """Time of a step that scores this many positions: unchanged up to the budget, then proportional. [s]"""
    return checks.real("step_s", step_s, low=0.0) * max(1.0, slot_share(positions, slots))


def requests_within(slots: float, positions_each: int) -> int:
    """Requests that can each verify this many positions, root included, without slowing the step."""
    checks.real("slots", slots, low=0.0, above=True)
    return int(slots // checks.whole("positions", positions_each, low=1))
