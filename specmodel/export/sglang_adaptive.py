"""SGLang's adaptive file: candidate numbers of draft steps by batch, buckets named by their LOWER bound."""

from __future__ import annotations

import json
from collections.abc import Mapping

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError, unknown_name
from specmodel.export.schedule import Schedule
from specmodel.export.settings import is_number

FIELD = "adaptive config"
CANDIDATES = "candidate_steps"
# What SGLang adapts by when no file is named.
BUILT_IN = (
    '{"1": {"candidate_steps": [1, 3, 5, 7]}, "8": {"candidate_steps": [0, 1, 3]},'
    ' "32": {"candidate_steps": [0, 1]}, "64": {"candidate_steps": [0]}}'
)
_DEFAULTS = ("ema_alpha", "update_interval", "warmup_batches")
_BUCKET = (CANDIDATES, "up_hysteresis", "down_hysteresis", "ceiling_coeff")


def dump(schedule: Schedule) -> str:
    """The file for a schedule: one candidate per bucket, so that k is the schedule's and nothing else."""
    return json.dumps({str(start): {CANDIDATES: [k]} for start, k in schedule.steps})


def load(text: str) -> tuple[Schedule, dict[str, object]]:
    """The largest candidate of each bucket as a schedule, and what else the file sets.

    Where a bucket has several candidates, SGLang picks one by acceptance; they are returned under
    ``candidate_steps``, by lower bound.

    Raises
    ------
    InputError
        If the file is not such JSON, names an unknown key, or does not start at batch 1.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(FIELD, text, f"must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(FIELD, text, "must be one JSON object")
    options: dict[str, object] = {}
    buckets: dict[int, tuple[int, ...]] = {}
    for key, value in content.items():
        if key.isdecimal():
            buckets[int(key)] = _candidates(key, value)
        elif key in _DEFAULTS:
            if not is_number(value):
                raise InputError(key, value, "must be a number")
            options[key] = value
        else:
            raise unknown_name(FIELD, key, (*_DEFAULTS, "a batch size, as text"))
    if 1 not in buckets or 0 in buckets:
        raise InputError(FIELD, sorted(buckets), "the smallest bucket must start at batch 1")
    ordered = sorted(buckets.items())
    if any(len(candidates) > 1 for candidates in buckets.values()):
        options[CANDIDATES] = dict(ordered)
    return Schedule.from_steps((start, max(candidates)) for start, candidates in ordered), options


def all_candidates(schedule: Schedule, options: Mapping[str, object]) -> set[int]:
    """Every number of steps that some bucket allows."""
    several = options.get(CANDIDATES)
    if isinstance(several, Mapping):
        return {step for steps in several.values() for step in steps}
    return {k for _, k in schedule.steps}


def _candidates(bucket: str, content: object) -> tuple[int, ...]:
    field = f"{FIELD}, bucket {bucket}"
    if not isinstance(content, dict):
        raise InputError(field, content, "must be an object with candidate_steps")
    for key, value in content.items():
        if key not in _BUCKET:
            raise unknown_name(field, key, _BUCKET)
        if key != CANDIDATES and not is_number(value):
            raise InputError(f"{field}, {key}", value, "must be a number")
    steps = content.get(CANDIDATES)
    if not isinstance(steps, list) or not steps:
        raise InputError(f"{field}, {CANDIDATES}", steps, "must be a list of numbers of steps")
    return tuple(checks.whole(f"{field}, {CANDIDATES}", step, high=MAX_K) for step in steps)
