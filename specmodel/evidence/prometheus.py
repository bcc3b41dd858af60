"""Metrics in Prometheus text form: one scrape, or several to difference, restarts included."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from specmodel.evidence.collector import Collector

PREFIXES = ("vllm:", "sglang:", "trtllm_", "llamacpp:")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')

ABSENT = ("", 0)  # the place of a line that is not there

Key = tuple[str, str]  # name without its engine prefix and "_total", position label


@dataclass(slots=True)
class Series:
    """The values of one metric by scrape, nan where a scrape lacks it or holds no number; and where each stood."""

    values: list[float] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)

    def put(self, scrape: int, value: float, place: tuple[str, int]) -> None:
        """Add the value of this scrape (from 0)."""
        missing = scrape - len(self.values)
        self.values += [math.nan] * missing + [value]
        self.places += [ABSENT] * missing + [place]

    def at(self, scrape: int) -> float:
        """The value of this scrape, or nan."""
        return self.values[scrape] if scrape < len(self.values) else math.nan

    def holds(self, scrape: int) -> bool:
        """Whether this scrape had a line for the metric, with a number in it or not."""
        return scrape < len(self.places) and self.places[scrape] != ABSENT

    def last(self) -> float:
        """The last number, or nan."""
        return next((value for value in reversed(self.values) if math.isfinite(value)), math.nan)


@dataclass(frozen=True, slots=True)
class Interval:
    """Increase of every counter between two scrapes, and the gauges at the later one."""

    increase: Mapping[Key, float]
    gauges: Mapping[Key, float]
    place: tuple[str, int]


@dataclass(slots=True)
class Scrapes:
    """The samples of one server process: engine prefix, its own labels, series by name and position."""

    engine: str
    labels: Mapping[str, str]
    series: dict[Key, Series] = field(default_factory=dict)
    count: int = 0
    _file: str = ""
    _seen: set[Key] = field(default_factory=set)

    def put(self, key: Key, value: float, place: tuple[str, int]) -> None:
        """Add a sample; a series that comes again, or another file, begins the next scrape."""
        if not self.count or key in self._seen or place[0] != self._file:
            self.count += 1
            self._file = place[0]
            self._seen.clear()
        self._seen.add(key)
        self.series.setdefault(key, Series()).put(self.count - 1, value, place)

    @property
    def first(self) -> Series:
        """The series that was seen first."""
        return next(iter(self.series.values()))


class Metrics:
    """Collects sample lines, and groups them by engine and labels.

    A series that comes again, in the same file or in the next one, is the next scrape of the same server;
    with `separate` files are different servers, and every file stands alone.
    """

    def __init__(self, collector: Collector, separate: bool = False) -> None:
        self._collector = collector
        self._separate = separate
        self.groups: dict[tuple[str, ...], Scrapes] = {}

    def line(self, source: str, number: int, text: str) -> bool:
        """Take one line if it is a speculation metric of a known engine; say whether it was."""
        if not text.startswith(PREFIXES):
            return False
        prefix = next(p for p in PREFIXES if text.startswith(p))
        if "spec_" not in text.split("{", 1)[0].split(" ", 1)[0]:
            return False
        match = _SAMPLE.match(text)
        if match is None:
            self._collector.bad(source, number, f"not a metrics line: {text[:60]!r}")
            return True
        name = match[1].removeprefix(prefix)
        if name.endswith(("_created", "_bucket", "_sum", "_count")):
            return True
        labels = dict(_LABEL.findall(match[2] or ""))
        if labels.get("tp_rank", "0") != "0":  # every rank repeats the same numbers
            return True
        try:
            value = float(match[3])
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value >= 0.0:
            self._collector.good()
        else:
            self._collector.bad(source, number, f"{name} is {match[3]}")
            value = math.nan
        position = labels.pop("position", "")
        own = {
            key: text for key, text in sorted(labels.items()) if key in ("engine", "model_name", "dp_rank")
        }
        group = (prefix, *(f"{k}={v}" for k, v in own.items()), source if self._separate else "")
        scrapes = self.groups.setdefault(group, Scrapes(prefix, own))
        scrapes.put((name.removesuffix("_total"), position), value, (source, number))
        return True

    def finish(self) -> None:
        """Turn the groups into parts."""
        from specmodel.evidence import llamacpp, sglang, trtllm, vllm

        readers = {
            "vllm:": vllm.from_scrapes,
            "sglang:": sglang.from_scrapes,
            "trtllm_": trtllm.from_scrapes,
            "llamacpp:": llamacpp.from_scrapes,
        }
        for scrapes in self.groups.values():
            readers[scrapes.engine](scrapes, self._collector)


def intervals(scrapes: Scrapes, counters: tuple[str, ...], collector: Collector) -> list[Interval]:
    """Increases between scrapes; from zero where there is one scrape only.

    A counter that fell was restarted with its process, so all counters of the group then count from zero. A
    scrape that lacks some of the counters, or a number in them, is left out.
    """
    wanted = {key: series for key, series in scrapes.series.items() if key[0] in counters}
    if not wanted:
        return []
    complete = []
    for at in range(scrapes.count):
        present = [series for series in wanted.values() if series.holds(at)]
        if all(math.isfinite(series.at(at)) for series in wanted.values()):
            complete.append(at)
        elif present and len(present) < len(wanted):
            collector.bad(*present[0].places[at], "scrape is incomplete: other counters are missing", True)
    if scrapes.count > 1 and len(complete) < 2:
        return []
    result = []
    pairs = list(pairwise(complete)) if scrapes.count > 1 else [(-1, at) for at in complete]
    for start, end in pairs:
        before = {key: series.at(start) if start >= 0 else 0.0 for key, series in wanted.items()}
        after = {key: series.at(end) for key, series in wanted.items()}
        fell = [key for key in wanted if after[key] < before[key]]
        if fell:
            source, line = wanted[fell[0]].places[end]
            collector.warn(
                f"{source}:{line}: {scrapes.engine}{fell[0][0]} fell from {before[fell[0]]:g} to {after[fell[0]]:g}: "
                "a restart, counted from zero; if the files are of different servers, or the later scrape came "
                "first, read them separately or in order"
            )
        increase = {key: after[key] - (0.0 if fell else before[key]) for key in wanted}
        gauges = {key: series.at(end) for key, series in scrapes.series.items() if key not in wanted}
        result.append(Interval(increase, gauges, next(iter(wanted.values())).places[end]))
    return result


def by_position(increase: Mapping[Key, float], name: str) -> list[float]:
    """The values of a counter with a position label, in order of position."""
    found = {
        int(position): value for (n, position), value in increase.items() if n == name and position.isdigit()
    }
    return [found.get(index, 0.0) for index in range(max(found, default=-1) + 1)]
