"""What SGLang prints: gauges, the decode line of its log, response metadata, benchmark files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specmodel.evidence.checks import NothingToReadError, UnusableError, number, part_from_totals, whole
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import Part
from specmodel.evidence.prometheus import Scrapes, intervals
from specmodel.evidence.rows import Rows

_DECODE = re.compile(
    r"#running-req: (\d+).*?accept len: (\d+\.?\d*|nan|inf)(?:.*?accept rate: (\d+\.?\d*|nan|inf))?",
    re.IGNORECASE,
)
_TIMES = re.compile(r"^\[(\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)")
_THROUGHPUT = re.compile(r"gen throughput \(token/s\): (\d+\.?\d*)")
_ADAPTED = re.compile(r"Adaptive spec params updated: steps (\d+) -> (\d+)")


def from_scrapes(scrapes: Scrapes, collector: Collector) -> None:
    """Gauges hold the last logging interval only: several scrapes are averaged, by their verify calls."""
    lengths = scrapes.series.get(("spec_accept_length", ""))
    source, line = scrapes.first.places[-1]
    if lengths is None:
        if any("spec_verify_calls" in name for name, _ in scrapes.series):
            return  # the tokenizer's series, handled with the scheduler's
        collector.bad(source, line, "sglang:spec_accept_length is missing", counted_already=True)
        return
    steps = scrapes.series.get(("spec_num_steps", ""))
    nodes = scrapes.series.get(("spec_num_draft_tokens", ""))
    calls = intervals(scrapes, ("spec_verify_calls",), collector)
    counted = bool(calls)
    pairs = [(call.gauges["spec_accept_length", ""], sum(call.increase.values())) for call in calls]
    if counted:
        collector.warn(
            f"{source}: the length is of the last logging interval, the number of rounds of a longer time"
        )
    for length, weight in pairs or [(value, 1.0) for value in lengths.values]:
        if not math.isfinite(length):
            continue
        k = collector.k
        if steps is not None:
            k = int(steps.last()) if math.isfinite(steps.last()) else k
            if nodes is not None and k is not None and nodes.last() != k + 1:
                collector.warn(
                    f"{source}: {nodes.last():g} draft tokens (root counted) at depth {k}: a tree; per-depth rates "
                    "are not those of a chain"
                )
        elif nodes is not None and math.isfinite(nodes.last()):
            k = int(nodes.last()) - 1
        labels = {"source": source, **scrapes.labels}
        try:
            part = _from_length(
                length if weight else 1.0,
                weight if length else 0.0,
                k,
                labels,
                "SGLang gauges",
                counted,
                collector,
            )
        except UnusableError as error:
            collector.bad(source, line, str(error), counted_already=True)
            continue
        collector.add(part, "intervals")


class DecodeLog:
    """Decode lines: a length, a rate and the running requests, but no number of rounds.

    A line sums up a fixed number of steps of the running requests, so those are its weight. With times and
    throughputs of two lines or more the rounds follow: tokens between the lines / length.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None], Rows] = {}
        self._seconds: dict[str, float] = {}
        self._scales: dict[str, list[float]] = {}
        self._changed: set[str] = set()

    def line(self, text: str, source: str, line: int) -> bool:
        """Take one line if it is one of ours; say whether it carried evidence."""
        if "accept len:" not in text:
            if _ADAPTED.search(text):
                self._changed.add(source)
            return False
        match = _DECODE.search(text)
        if match is None:
            raise UnusableError("decode line is cut off or not a number")
        running, length = int(match[1]), float(match[2])
        if not math.isfinite(length) or length < 1.0:
            raise UnusableError(f"accept len is {match[2]} (the bonus token is included, so at least 1)")
        k = None if match[3] is None else _depth(length, float(match[3]), source in self._changed)
        if k is not None and length > k + 1.005:
            raise UnusableError(f"accept len {length:g} exceeds k + 1 = {k + 1}")
        if running:
            row = Part({"source": source}, "", float(running), (length - 1.0) * running, k=k, counted=False)
            self._rows.setdefault((source, k), Rows("intervals")).add(row)
            self._time(text, source, length, running)
        return True

    def _time(self, text: str, source: str, length: float, running: int) -> None:
        when, speed = _TIMES.match(text), _THROUGHPUT.search(text)
        if not when or not speed:
            return
        now = int(when[2]) * 3600.0 + int(when[3]) * 60.0 + int(when[4])
        before = self._seconds.get(source)
        self._seconds[source] = now
        scales = self._scales.setdefault(source, [])
        if before is not None and now > before and len(scales) < 1000:
            scales.append(float(speed[1]) * (now - before) / (length * running))

    def finish(self, collector: Collector) -> None:
        """Turn the lines into parts."""
        for source in dict.fromkeys(name for name, _ in self._rows):
            scales = sorted(self._scales.get(source, []))
            steps = scales[len(scales) // 2] if scales else 1.0
            depths = [k for name, k in self._rows if name == source and k is not None]
            only = depths[0] if len(depths) == 1 else None
            if source in self._changed:
                collector.warn(f"{source}: the engine changed its number of steps while running: mixed k")
            for (name, k), rows in self._rows.items():
                if name == source:
                    collector.parts.append(
                        _scaled(rows.part(), k or only or collector.k, steps, bool(scales))
                    )
            if not scales:
                collector.warn(f"{source}: the log does not say how many rounds a line stands for")


def _scaled(part: Part, k: int | None, steps: float, counted: bool) -> Part:
    """A part whose rounds were running requests, with the steps that each line stands for."""
    clusters = part.clusters
    if clusters is not None:
        clusters = replace(clusters, rounds=clusters.rounds * steps, accepted=clusters.accepted * steps)
    return replace(
        part,
        convention="SGLang log: length with the bonus token; k from length and rate, a chain assumed",
        rounds=part.rounds * steps,
        accepted=part.accepted * steps,
        drafted=None if k is None else part.rounds * steps * k,
        k=k,
        k_min=k,
        counted=counted,
        clusters=clusters,
    )


def from_bench(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """`bench_serving` output: the length is an average since the start of the server, not over the run."""
    if record.get("accept_length") is None:
        raise NothingToReadError("accept_length is null: a run without speculation, or unknown")
    length = number(record["accept_length"], "accept_length")
    info = record.get("server_info")
    info = info if isinstance(info, dict) else {}
    labels = {"source": source, **({"method": str(m)} if (m := info.get("speculative_algorithm")) else {})}
    k = collector.k
    if isinstance(info.get("speculative_num_steps"), int):
        k = info["speculative_num_steps"]
    elif isinstance(info.get("speculative_num_draft_tokens"), int):
        k = info["speculative_num_draft_tokens"] - 1
    tokens = record.get("total_output_tokens")
    counted = isinstance(tokens, int) and isinstance(record.get("completed"), int)
    rounds = 1.0
    if counted:  # the first token of a request comes from its prompt, not from a round
        rounds = (whole(tokens, "total_output_tokens") - whole(record["completed"], "completed")) / max(
            length, 1.0
        )
    collector.warn(f"{source}: accept_length is averaged since the start of the server, not over the run")
    return _from_length(length, rounds, k, labels, "SGLang bench_serving", counted, collector)


def from_batch_bench(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """`bench_one_batch_server` output: mean length only."""
    if record.get("acc_length") in (None, -1, -1.0):
        raise NothingToReadError("acc_length is empty: a run without speculation")
    length = number(record["acc_length"], "acc_length")
    batch, out = whole(record.get("batch_size"), "batch_size"), whole(record.get("output_len"), "output_len")
    rounds = batch * max(out - 1, 0) / max(length, 1.0)
    return _from_length(
        length, rounds, collector.k, {"source": source}, "SGLang bench_one_batch", True, collector
    )


def from_server_info(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """`/server_info`: mean length since the start."""
    states = record["internal_states"]
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    if first.get("avg_spec_accept_length") is None:
        raise NothingToReadError("server_info of a server without speculation")
    length = number(first["avg_spec_accept_length"], "avg_spec_accept_length")
    steps = record.get("speculative_num_steps")
    k = steps if isinstance(steps, int) else collector.k
    return _from_length(length, 1.0, k, {"source": source}, "SGLang server_info", False, collector)


def request_block(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The speculation part of a response, if `record` is one."""
    meta = record.get("meta_info")
    found = meta if isinstance(meta, dict) else record
    return found if "spec_verify_ct" in found else None


def request_part(block: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """One response: the histogram of correct drafts where it is there, else totals."""
    rounds = whole(block["spec_verify_ct"], "spec_verify_ct")
    accepted = whole(block.get("spec_num_correct_drafts"), "spec_num_correct_drafts")
    drafted = whole(block.get("spec_num_proposed_drafts"), "spec_num_proposed_drafts")
    histogram = block.get("spec_correct_drafts_histogram") or []
    survived: list[float] = []
    if histogram:
        counts = [whole(value, "spec_correct_drafts_histogram") for value in histogram]
        if sum(counts) != rounds or sum(i * c for i, c in enumerate(counts)) != accepted:
            raise UnusableError("spec_correct_drafts_histogram disagrees with the totals")
        k = max(math.ceil(drafted / rounds) if rounds else 0, len(counts) - 1)
        survived = [float(sum(counts[i:])) for i in range(1, k + 1)]
    return part_from_totals(
        labels={"source": source},
        convention="SGLang responses: histogram of correct drafts, bonus token not counted",
        rounds=rounds,
        accepted=accepted,
        drafted=drafted,
        survived=survived,
        k=None if survived else collector.k,
        warn=collector.warn,
        place=source,
    )


def _from_length(
    length: float,
    rounds: float,
    k: int | None,
    labels: Mapping[str, str],
    form: str,
    counted: bool,
    collector: Collector,
) -> Part:
    if length < 1.0:
        raise UnusableError(f"mean length is {length:g}, below 1 (the bonus token is included)")
    return part_from_totals(
        labels=labels,
        convention=f"{form}: mean length with the bonus token, nothing per position",
        rounds=round(rounds) if counted and rounds >= 1.0 else rounds,
        accepted=(length - 1.0) * (round(rounds) if counted and rounds >= 1.0 else rounds),
        drafted=None,
        k=k,
        slack=0.005,
        warn=collector.warn,
        place=str(labels.get("source", "")),
        counted=counted,
    )


def _depth(length: float, rate: float, changing: bool) -> int | None:
    """k from a length and a rate with two decimals each, where only one whole number fits."""
    if not math.isfinite(rate) or not 0.0 <= rate <= 1.0:
        raise UnusableError(f"accept rate is {rate:g}, outside 0 to 1 (a fraction in this log)")
    accepted = length - 1.0
    fewest = math.ceil(max(accepted - 0.005, 0.0) / (rate + 0.005) - 1e-9)
    if rate <= 0.005:
        return None
    most = math.floor((accepted + 0.005) / (rate - 0.005) + 1e-9)
    if fewest > most:
        if changing:
            return None
        raise UnusableError(
            f"accept len {length:g} and accept rate {rate:g} fit no whole number of draft tokens"
        )
    return fewest if fewest == most and fewest else None
