"""What TensorRT-LLM prints: benchmark report, iteration statistics, metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specmodel.evidence.checks import (
    NothingToReadError,
    UnusableError,
    number,
    part_from_totals,
    rounds_from_length,
    whole,
)
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import Part
from specmodel.evidence.prometheus import Scrapes, intervals

FORM = "bonus token included in the length, rate = accepted/drafted, nothing per position"


def from_scrapes(scrapes: Scrapes, collector: Collector) -> None:
    """Two counters and a gauge; one newer build drops "num_" from the names."""
    for key in [
        key for key in scrapes.series if key[0] in ("spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    ]:
        scrapes.series[key[0].replace("spec_decode_", "spec_decode_num_"), key[1]] = scrapes.series.pop(key)
    names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    for interval in intervals(scrapes, names, collector):
        try:
            missing = [name for name in names if (name, "") not in interval.increase]
            if missing:
                raise UnusableError(f"trtllm_{missing[0]}_total is missing")
            drafted, accepted = (interval.increase[name, ""] for name in names)
            length = interval.gauges.get(("spec_decode_acceptance_length", ""))
            rounds = 0.0
            if length is not None and not math.isfinite(length):
                length = None
            if drafted and collector.k:
                rounds = drafted / collector.k
            elif drafted and length is not None:
                rounds = rounds_from_length(accepted, length, 6, drafted, None)
            elif drafted:
                raise UnusableError("neither k nor an acceptance length says how many rounds there were")
            part = part_from_totals(
                labels={"source": interval.place[0], **scrapes.labels},
                convention=f"TensorRT-LLM metrics: {FORM}",
                rounds=rounds,
                drafted=drafted,
                accepted=accepted,
                k=collector.k,
                warn=collector.warn,
                place=interval.place[0],
            )
        except UnusableError as error:
            collector.bad(*interval.place, str(error), counted_already=True)
            continue
        collector.add(part, "intervals")


def from_report(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """`trtllm-bench --report_json`: averages over requests, times their number.

    Its length is output tokens / (iterations + 1), slightly low for short replies, and its draft tokens are
    the longest draft x iterations, so a draft-length schedule understates the rate.
    """
    stats = record.get("decoding_stats")
    if not isinstance(stats, dict):
        raise NothingToReadError("TensorRT-LLM report of a run without speculation")
    requests = whole(_inner(record, "request_info", "num_requests"), "num_requests")
    drafted = requests * number(_inner(stats, "num_draft_tokens_percentiles", "average"), "draft tokens")
    accepted = requests * number(
        _inner(stats, "num_accepted_draft_tokens_percentiles", "average"), "accepted tokens"
    )
    length = number(_inner(stats, "acceptance_length_percentiles", "average"), "acceptance length")
    rounds = drafted / collector.k if collector.k else rounds_from_length(accepted, length, 6, drafted, None)
    collector.warn(
        f"{source}: the report's length is output/(iterations + 1), slightly low for short replies, and a "
        "schedule that "
        "shortens drafts understates its rate"
    )
    return part_from_totals(
        labels={"source": source, "method": str(stats.get("mode", ""))},
        convention=f"TensorRT-LLM report: averages over requests; {FORM}",
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        k=collector.k,
        warn=collector.warn,
        place=source,
    )


def from_iteration(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """One line of iteration statistics: every request with draft tokens is one round."""
    stats = record["specDecodingStats"]
    if not isinstance(stats, dict):
        raise NothingToReadError("iteration without speculation")
    rounds = whole(stats.get("numRequestsWithDraftTokens"), "numRequestsWithDraftTokens")
    drafted = whole(stats.get("numDraftTokens"), "numDraftTokens")
    return part_from_totals(
        labels={"source": source},
        convention=f"TensorRT-LLM iteration statistics: {FORM}",
        rounds=rounds,
        drafted=drafted,
        accepted=whole(stats.get("numAcceptedTokens"), "numAcceptedTokens"),
        k=None,
        warn=collector.warn,
        place=source,
    )


def _inner(record: Mapping[str, Any], outer: str, inner: str) -> object:
    found = record.get(outer)
    if not isinstance(found, dict) or inner not in found:
        raise UnusableError(f"{outer}.{inner} is missing")
    return found[inner]
