"""What llama.cpp prints: server log, timings of a response, metrics, the speculative examples."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from specmodel.evidence import vllm
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
from specmodel.evidence.prometheus import Scrapes

_TASK = re.compile(r"task\s+(-?\d+)")
_TOTALS = re.compile(
    r"draft acceptance(?: rate)?\s*=\s*(\S+)\s*\(\s*(\d+) accepted /\s*(\d+) generated\)"
    r"(?:, mean len =\s*(\S+))?"
)
_VECTOR = re.compile(r"acc per pos = \(([^)]*)\)")
_STATISTICS = re.compile(
    r"statistics\s+(\S+):.*#gen drafts =\s*(\d+),.*#gen tokens =\s*(\d+), #acc tokens =\s*(\d+)"
)
_SHARES = re.compile(r"#acc rate/pos = \(([^)]*)\)")
_EXAMPLE = re.compile(r"\bn_(draft|predict|drafted|accept)\s*=\s*(\d+)")
FORM = "accepted/generated in fractions, length with the bonus token, fractions per position unconditional"


def from_scrapes(scrapes: Scrapes, collector: Collector) -> None:
    """The same counters as vLLM's, without labels."""
    vllm.from_scrapes(scrapes, collector, "llama.cpp")


def from_timings(record: Mapping[str, Any], source: str, line: int, collector: Collector) -> Part:
    """`timings` of a response: the first token comes from the prompt, each round adds accepted + 1.

    Where drafts were skipped (n-gram found nothing, little room left) plain steps count as rounds here.
    """
    found = record.get("timings")
    timings = found if isinstance(found, dict) else record
    if timings.get("draft_n") is None:
        raise NothingToReadError("timings of a reply without speculation")
    drafted = whole(timings["draft_n"], "draft_n")
    accepted = whole(timings.get("draft_n_accepted"), "draft_n_accepted")
    predicted = whole(timings.get("predicted_n"), "predicted_n")
    rounds: float = predicted - 1 - accepted
    if collector.k:
        rounds = drafted / collector.k
    if rounds < 0:
        raise UnusableError(f"{accepted} draft tokens accepted in a reply of {predicted}")
    return part_from_totals(
        labels={"source": source},
        convention="llama.cpp timings: totals per reply; rounds = predicted_n - 1 - accepted",
        rounds=rounds if drafted else 0.0,
        drafted=drafted,
        accepted=accepted,
        k=collector.k,
        warn=collector.warn,
        place=source,
    )


class ServerLog:
    """Lines of one request belong together by their task number; the statistics line repeats all of them."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._open: dict[tuple[str, str], tuple[int, int, int, str]] = {}
        self._without: dict[str, list[int]] = {}
        self._statistics: dict[tuple[str, str], tuple[str, int]] = {}
        self._example: dict[str, int] = {}
        self._found: set[str] = set()

    def line(self, text: str, source: str, number: int) -> bool:
        """Take one line if it is one of ours; say whether it carried evidence."""
        if "draft acceptance" in text:
            return self._totals(text, source, number)
        if "acc per pos" in text:
            match = _VECTOR.search(text)
            if match is None:
                raise UnusableError("acc per pos line is cut off")
            self._close((source, _task(text)), match[1])
            return True
        if "#gen drafts" in text and "statistics" in text:
            self._statistics[source, text.split("statistics", 1)[1].split(":", 1)[0].strip()] = (text, number)
            return False
        if text.lstrip().startswith(("n_draft", "n_predict", "n_accept")):
            return self._example_line(text, source, number)
        return False

    def _totals(self, text: str, source: str, number: int) -> bool:
        match = _TOTALS.search(text)
        if match is None:
            raise UnusableError("draft acceptance line is cut off")
        accepted, drafted = int(match[2]), int(match[3])
        if drafted and abs(_float(match[1]) - accepted / drafted) > 1e-4:
            raise UnusableError(
                f"draft acceptance {match[1]} disagrees with {accepted} accepted of {drafted} generated"
            )
        task = (source, _task(text))
        self._close(task, None)
        if match[4] is None and not self._collector.k:
            self._without.setdefault(source, []).append(number)
            return True
        self._open[task] = (accepted, drafted, number, match[4] or "")
        if len(self._open) > 256:  # a request whose vector line never came
            self._close(next(iter(self._open)), None)
        return True

    def _close(self, task: tuple[str, str], vector: str | None) -> None:
        """Finish a request once its vector has come, or its next line shows that none will."""
        if task not in self._open:
            return
        accepted, drafted, number, length = self._open.pop(task)
        source = task[0]
        try:
            shares = survival_rates([_float(x) for x in vector.split(",")], "acc per pos") if vector else []
            k = len(shares) or self._collector.k
            if length and (accepted or not k):
                rounds = rounds_from_length(accepted, _float(length), 2, drafted, k) if accepted else math.nan
            else:
                rounds = drafted / k if k else math.nan
            if not math.isfinite(rounds):
                raise NothingToReadError("nothing accepted, number of rounds unknown")
            part = part_from_totals(
                labels={"source": source},
                convention=f"llama.cpp log: {FORM}",
                rounds=rounds,
                drafted=drafted,
                accepted=accepted,
                survived=survivors(rounds, shares),
                k=k,
                slack=0.001,
                warn=self._collector.warn,
                place=source,
            )
        except NothingToReadError:
            self._without.setdefault(source, []).append(number)
            return
        except UnusableError as error:
            self._collector.bad(source, number, str(error), counted_already=True)
            return
        self._found.add(source)
        self._collector.add(part, "requests")

    def _example_line(self, text: str, source: str, number: int) -> bool:
        for name, value in _EXAMPLE.findall(text):
            self._example[name] = int(value)
        if "accept" not in self._example or "n_accept" not in text:
            return False
        found, self._example = self._example, {}
        if not {"draft", "predict", "drafted"} <= found.keys():
            raise UnusableError("n_draft, n_predict or n_drafted is missing before n_accept")
        part = part_from_totals(
            labels={"source": source},
            convention="llama.cpp speculative example: totals; rounds = n_predict - n_accept",
            rounds=max(found["predict"] - found["accept"], 0),
            drafted=found["drafted"],
            accepted=found["accept"],
            k=found["draft"],
            warn=self._collector.warn,
            place=source,
        )
        self._collector.add(part, "requests")
        return True

    def finish(self) -> None:
        """Close what is open; use the statistics line only where nothing else was printed."""
        for task in list(self._open):
            self._close(task, None)
        for source, lines in self._without.items():
            self._collector.warn(
                f"{source}:{lines[0]}: neither rounds nor mean length printed (an older build, or nothing "
                "accepted): "
                f"{len(lines)} request(s) left out; give k to use them"
            )
        for (source, method), (text, number) in self._statistics.items():
            if source not in self._found:
                self._from_statistics(source, method, text, number)

    def _from_statistics(self, source: str, method: str, text: str, number: int) -> None:
        match, shares = _STATISTICS.search(text), _SHARES.search(text)
        try:
            if match is None:
                raise UnusableError("statistics line is cut off, or of a build that prints no drafts")
            rounds = int(match[2])
            found = (
                survival_rates([_float(x) for x in shares[1].split(",")], "acc rate/pos") if shares else []
            )
            part = part_from_totals(
                labels={"source": source, "method": method},
                convention=f"llama.cpp statistics line, since the start: {FORM}",
                rounds=rounds,
                drafted=int(match[3]),
                accepted=int(match[4]),
                survived=survivors(rounds, found),
                k=None if found else self._collector.k,
                slack=0.001,
                warn=self._collector.warn,
                place=source,
            )
        except UnusableError as error:
            self._collector.bad(source, number, str(error))
            return
        self._collector.good()
        self._collector.add(part)


def _task(text: str) -> str:
    match = _TASK.search(text)
    return match[1] if match else ""


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnusableError(f"{text.strip()!r} is not a number") from None
