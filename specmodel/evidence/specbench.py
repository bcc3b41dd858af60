"""Spec-Bench and EAGLE answer files: tokens gained per verification step, or trials per depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specmodel.evidence.checks import UnusableError, whole
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import LARGEST_K, Part


def recognised(record: Mapping[str, Any]) -> bool:
    """Whether this is a line of an answer file."""
    choices = record.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and isinstance(choices[0], dict)
        and ("turns" in choices[0] or "accept_lengths" in choices[0])
        and ("question_id" in record or "accept_lengths" in choices[0] or "alpha_num" in choices[0])
    )


def lengths(record: Mapping[str, Any]) -> list[list[int]]:
    """Accepted drafts of every step, one list per choice; the file counts the bonus token (at least 1)."""
    found = []
    for choice in record["choices"]:
        if not isinstance(choice, dict) or "accept_lengths" not in choice:
            raise UnusableError("no accept_lengths: without the list per step only means could be had")
        steps = [whole(value, "accept_lengths") for value in choice["accept_lengths"]]
        if steps and min(steps) < 1:
            raise UnusableError("accept_lengths holds 0; the bonus token is included, so at least 1")
        if steps and max(steps) > LARGEST_K:
            raise UnusableError(f"accept_lengths holds {max(steps)}")
        found.append([step - 1 for step in steps])
    return found


def trials(record: Mapping[str, Any]) -> tuple[list[int], list[int]] | None:
    """EAGLE's alpha mode: (accepted, tried) per depth, the choices summed; None where it was off."""
    accepted: list[int] = []
    tried: list[int] = []
    for choice in record["choices"]:
        if not isinstance(choice, dict) or "alpha_num" not in choice:
            return None
        for total, name in ((accepted, "alpha"), (tried, "alpha_num")):
            values = choice.get(name)
            if not isinstance(values, list):
                raise UnusableError(f"{name} is not a list")
            total.extend([0] * (len(values) - len(total)))
            for index, value in enumerate(values):
                total[index] += whole(value, name)
    for depth, (a, t) in enumerate(zip(accepted, tried, strict=False), start=1):
        if a > t:
            raise UnusableError(f"alpha: {a} accepted of {t} tried at depth {depth}")
    if len(accepted) != len(tried):
        raise UnusableError("alpha and alpha_num differ in length")
    return accepted, tried


def trials_part(record: Mapping[str, Any], source: str, collector: Collector) -> Part | None:
    """Counts of one question in alpha mode, or None where it was off."""
    found = trials(record)
    if found is None:
        return None
    accepted, tried = found
    while tried and not tried[-1]:
        tried.pop()
        accepted.pop()
    return Part(
        labels=labels(record, source),
        convention="EAGLE alpha mode: accepted and tried per depth, conditional",
        rounds=float(tried[0]) if tried else 0.0,
        accepted=float(sum(accepted)),
        k=len(tried),
        k_min=len(tried),
        tested=tuple(map(float, tried)),
        survived=tuple(map(float, accepted)),
    )


def labels(record: Mapping[str, Any], source: str) -> dict[str, str]:
    """Source, model and category; the category is the workload."""
    found = {"source": source}
    for key, label in (("category", "workload"), ("model_id", "model_name")):
        if isinstance(record.get(key), str):
            found[label] = record[key]
    return found
