"""What vLLM prints: counters, log lines of all versions, per-request metrics, benchmark files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from specmodel.evidence.checks import (
    NothingToReadError,
    UnusableError,
    part_from_totals,
    rounds_from_length,
    survival_rates,
    survivors,
    whole,
)
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import Part
from specmodel.evidence.prometheus import Scrapes, by_position, intervals

COUNTERS = (
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
)
_FIELD = re.compile(r"([A-Z][A-Za-z -]*): ([^A-Z]*?)(?=,? [A-Z]|\.?\s*$)")
_OLD = "Speculative metrics:"
_NEW = "SpecDecoding metrics:"
_CONSOLE = re.compile(
    r"^\s*(Acceptance rate \(%\)|Drafts|Draft tokens|Accepted tokens|Position (\d+)):\s+(\S+)\s*$"
)


def from_scrapes(scrapes: Scrapes, collector: Collector, engine: str = "vLLM") -> None:
    """Counters of one engine: value over number of drafts is the unconditional rate per position."""
    found = intervals(scrapes, COUNTERS, collector)
    scraped = scrapes.count
    how = "since the start of the server" if scraped == 1 else f"difference of {scraped} scrapes"
    for interval in found:
        up = interval.increase
        try:
            missing = [name for name in COUNTERS[:3] if (name, "") not in up]
            if missing:
                raise UnusableError(f"counter {missing[0]} is missing")
            reached = by_position(up, COUNTERS[3])
            part = part_from_totals(
                labels={"source": found[-1].place[0], **scrapes.labels},
                convention=f"{engine} counters, {how}: unconditional per position, bonus token not counted",
                rounds=up[COUNTERS[0], ""],
                drafted=up[COUNTERS[1], ""],
                accepted=up[COUNTERS[2], ""],
                survived=reached,
                k=collector.k if not reached else None,
                warn=collector.warn,
                place=interval.place[0],
            )
        except UnusableError as error:
            collector.bad(*interval.place, str(error), counted_already=True)
            continue
        collector.add(part, "intervals")


def log_line(text: str, source: str, number: int, collector: Collector) -> Part | None:
    """One log line, or None where it is another line. The values are of the last interval, not cumulative."""
    if _NEW in text:
        return _current(text.split(_NEW, 1)[1], source, number, collector)
    if _OLD in text:
        return _early(text.split(_OLD, 1)[1], source, number, collector)
    return None


def _current(text: str, source: str, number: int, collector: Collector) -> Part:
    fields = {name: value.strip().rstrip(",") for name, value in _FIELD.findall(text)}
    try:
        accepted, drafted = _count(fields, "Accepted"), _count(fields, "Drafted")
        vector = fields["Per-position acceptance rate"]
        length = fields["Mean acceptance length"]
        rate = fields.get("Avg Draft acceptance rate") or fields["Draft acceptance rate"]
    except KeyError as error:
        raise UnusableError(f"line is cut off: no {error.args[0]}") from None
    labels = {"source": source}
    form = "vLLM log: unconditional fractions per position, length with the bonus token, rate in percent"
    if not drafted:
        return part_from_totals(
            labels=labels,
            convention=form,
            rounds=0,
            accepted=accepted,
            drafted=drafted,
            warn=collector.warn,
            place=source,
        )
    shares = (
        [] if not vector else survival_rates([_float(x) for x in vector.split(",")], "per-position rates")
    )
    if not rate.endswith("%"):
        raise UnusableError(f"draft acceptance rate {rate!r} is not in percent, as this line always is")
    if abs(_float(rate.rstrip("%")) - 100.0 * accepted / drafted) > 0.06:
        raise UnusableError(
            f"acceptance rate {rate} disagrees with {accepted:g} accepted of {drafted:g} drafted"
        )
    k = len(shares) or collector.k
    rounds = (
        rounds_from_length(accepted, _float(length), 2, drafted, k) if accepted else drafted / (k or math.nan)
    )
    if not math.isfinite(rounds):
        raise UnusableError("nothing was accepted, and the number of rounds is not printed")
    return part_from_totals(
        labels=labels,
        convention=form,
        rounds=rounds,
        accepted=accepted,
        drafted=drafted,
        survived=survivors(rounds, shares),
        k=k,
        slack=0.001,
        warn=collector.warn,
        place=source,
    )


def _early(text: str, source: str, number: int, collector: Collector) -> Part:
    """Before 0.8: accepted counts matches behind the first miss too, so the emitted tokens decide."""
    fields = {name: value.strip().rstrip(",") for name, value in _FIELD.findall(text)}
    try:
        k = int(_count(fields, "Number of speculative tokens"))
        accepted = _count(fields, "Number of accepted tokens")
        drafted = _count(fields, "Number of draft tokens")
        emitted = _count(fields, "Number of emitted tokens")
    except KeyError as error:
        raise UnusableError(f"line is cut off: no {error.args[0]}") from None
    if not k or not drafted:
        raise NothingToReadError("no draft tokens yet")
    rounds = drafted / k
    efficiency = emitted / (rounds * (k + 1))
    printed = fields.get("System efficiency", "")
    if printed and abs(_float(printed) - efficiency) > 0.001:
        raise UnusableError(
            f"system efficiency {printed} disagrees with {emitted:g} emitted tokens ({efficiency:.3f})"
        )
    collector.warn(
        f"{source}:{number}: accepted/drafted would give {1.0 + accepted / rounds:.2f} tokens per round, "
        "the emitted "
        f"tokens give {emitted / rounds:.2f}; this engine counts matches behind the first miss, so emitted "
        "is used"
    )
    return part_from_totals(
        labels={"source": source},
        convention="vLLM before 0.8: accepted counts matches behind the first miss; emitted tokens used",
        rounds=rounds,
        accepted=emitted - rounds,
        drafted=drafted,
        k=k,
        warn=collector.warn,
        place=source,
    )


def console_field(text: str) -> tuple[str, float] | None:
    """A line of the block that `vllm bench serve` prints, as (name, value)."""
    match = _CONSOLE.match(text)
    if match is None:
        return None
    return match[1], _float(match[3])


def console_part(fields: Mapping[str, float], source: str, number: int, collector: Collector) -> Part:
    """The block of `vllm bench serve`: everything in percent."""
    try:
        counts = [whole(fields[name], name) for name in ("Drafts", "Draft tokens", "Accepted tokens")]
    except KeyError as error:
        raise UnusableError(f"block is cut off: no {error.args[0]}") from None
    rounds, drafted, accepted = counts
    shares = survival_rates(
        [v / 100.0 for n, v in sorted(fields.items(), key=_position) if n.startswith("Position")], "positions"
    )
    return part_from_totals(
        labels={"source": source},
        convention="vllm bench serve console: percent per position, unconditional",
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        survived=survivors(rounds, shares),
        slack=0.001,
        warn=collector.warn,
        place=source,
    )


def from_bench(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """`vllm bench serve` JSON: the rate is in percent, the list per position in fractions."""
    if record.get("spec_decode_num_drafts") is None:
        raise NothingToReadError("vllm bench serve of a server without speculation counters")
    rounds = whole(record["spec_decode_num_drafts"], "spec_decode_num_drafts")
    drafted = whole(record.get("spec_decode_draft_tokens"), "spec_decode_draft_tokens")
    accepted = whole(record.get("spec_decode_accepted_tokens"), "spec_decode_accepted_tokens")
    shares = record.get("spec_decode_per_position_acceptance_rates") or []
    found = survival_rates(shares, "spec_decode_per_position_acceptance_rates")
    rate = record.get("spec_decode_acceptance_rate")
    if rate is not None and drafted:
        percent = number_of(rate)
        if abs(percent - 100.0 * accepted / drafted) > 0.05:
            raise UnusableError(
                f"spec_decode_acceptance_rate {percent:g} (percent in this format) disagrees with "
                f"{accepted} accepted of "
                f"{drafted} drafted ({100.0 * accepted / drafted:.4g} %)"
            )
    labels = {"source": source, **_text(record, {"model_id": "model_name", "label": "label"})}
    return part_from_totals(
        labels=labels,
        convention="vllm bench serve: rate in percent, per position in fractions, unconditional",
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        survived=survivors(rounds, found),
        slack=1e-6,
        k=None if found else collector.k,
        warn=collector.warn,
        place=source,
    )


def per_request(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The speculation block of a response, or of an AIPerf record, if `record` holds one."""
    metrics = record.get("metrics")
    inner = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    found = inner if isinstance(inner, dict) else record
    return found if "acceptance_histogram" in found else None


def request_rounds(block: Mapping[str, Any]) -> tuple[list[int], list[int], bool]:
    """(drafted, accepted) of every round of one request, and whether they stand in their order.

    The list per step where it is there, else the histogram (index or key = accepted drafts).
    """
    steps = whole(block.get("num_spec_steps"), "num_spec_steps")
    total = whole(block.get("num_accepted_draft_tokens"), "num_accepted_draft_tokens")
    k = whole(block.get("num_spec_tokens"), "num_spec_tokens")
    histogram = block["acceptance_histogram"]
    if isinstance(histogram, dict):
        pairs = [(int(key), whole(value, "acceptance_histogram")) for key, value in histogram.items()]
    else:
        pairs = [(index, whole(value, "acceptance_histogram")) for index, value in enumerate(histogram)]
    if sum(count for _, count in pairs) != steps:
        raise UnusableError(
            f"acceptance_histogram holds {sum(c for _, c in pairs)} steps, num_spec_steps says {steps}"
        )
    if sum(index * count for index, count in pairs) != total:
        raise UnusableError(
            f"acceptance_histogram holds {sum(i * c for i, c in pairs)} accepted tokens, the total says "
            f"{total}"
        )
    accepted = block.get("per_step_accepted")
    drafted = block.get("per_step_drafted")
    if isinstance(accepted, list) and isinstance(drafted, list) and accepted:
        a = [whole(value, "per_step_accepted") for value in accepted]
        d = [whole(value, "per_step_drafted") for value in drafted]
        if len(a) != len(d) or len(a) != steps or sum(a) != total:
            raise UnusableError("per_step_accepted disagrees with the totals")
        if any(x > y for x, y in zip(a, d, strict=True)):
            raise UnusableError("per_step_accepted exceeds per_step_drafted")
        return d, a, True
    flat = [index for index, count in pairs for _ in range(count)]
    if flat and max(flat) > k:
        raise UnusableError(f"acceptance_histogram reaches {max(flat)}, num_spec_tokens is {k}")
    if block.get("num_draft_tokens") not in (None, k * steps):
        raise UnusableError(
            "drafts of different lengths, and no list per step (ask the engine for detailed metrics)"
        )
    return [k] * len(flat), flat, False


def number_of(value: object) -> float:
    """A finite number, from a number or its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnusableError(f"{value!r} is not a number")
    found = _float(str(value))
    if not math.isfinite(found):
        raise UnusableError(f"{value!r} is not a finite number")
    return found


def _text(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    return {label: record[key] for key, label in names.items() if isinstance(record.get(key), str)}


def _position(item: tuple[str, float]) -> int:
    digits = item[0].rpartition(" ")[2]
    return int(digits) if digits.isdigit() else -1


def _count(fields: Mapping[str, str], name: str) -> float:
    return float(whole(_float(fields[name].split(" ")[0].rstrip(".")), name))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnusableError(f"{text.strip()!r} is not a number") from None
