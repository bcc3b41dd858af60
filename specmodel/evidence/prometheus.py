"""Metrics in Prometheus text form: one scrape, or several to difference, restarts included."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specmodel.evidence.collector import Collector

PREFIXES = ("vllm:", "sglang:", "trtllm_", "llamacpp:")
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')

Key = tuple[str, str]  # name without its engine prefix and "_total", position label


@dataclass(slots=True)
class Series:
    """The values of one metric in the order of the scrapes, each with where it stood."""

    values: list[float] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Interval:
    """Increase of every counter between two scrapes, and the gauges at the later one."""

    increase: Mapping[Key, float]
    gauges: Mapping[Key, float]
    place: tuple[str, int]
    resets: tuple[str, ...] = ()


@dataclass(slots=True)
class Scrapes:
    """The samples of one server process: engine prefix, its own labels, series by name and position."""

    engine: str
    labels: Mapping[str, str]
    series: dict[Key, Series] = field(default_factory=dict)

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
        if not (math.isfinite(value) and value >= 0.0):
            self._collector.bad(source, number, f"{name} is {match[3]}")
            return True
        self._collector.good()
        position = labels.pop("position", "")
        own = {
            key: text for key, text in sorted(labels.items()) if key in ("engine", "model_name", "dp_rank")
        }
        group = (prefix, *(f"{k}={v}" for k, v in own.items()), source if self._separate else "")
        scrapes = self.groups.setdefault(group, Scrapes(prefix, own))
        series = scrapes.series.setdefault((_plain(name), position), Series())
        series.values.append(value)
        series.places.append((source, number))
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
    last scrape that lacks some of the series is cut off and left out.
    """
    wanted = {key: series for key, series in scrapes.series.items() if key[0] in counters}
    if not wanted:
        return []
    counts = {len(series.values) for series in wanted.values()}
    whole = min(counts)
    if len(counts) > 1:
        for series in wanted.values():
            for source, line in series.places[whole:]:
                collector.bad(
                    source, line, "scrape is incomplete: other counters are missing", counted_already=True
                )
    result = []
    for at in range(0 if whole == 1 else 1, whole):
        before = {key: series.values[at - 1] if at else 0.0 for key, series in wanted.items()}
        after = {key: series.values[at] for key, series in wanted.items()}
        fell = [key for key in wanted if after[key] < before[key]]
        resets = []
        for key in fell[:1]:
            source, line = wanted[key].places[at]
            resets.append(
                f"{source}:{line}: {scrapes.engine}{key[0]} fell from {before[key]:g} to {after[key]:g}: a "
                "restart, counted "
                "from zero; if the files are of different servers, or the later scrape came first, read them "
                "separately or in order"
            )
        increase = {key: after[key] - (0.0 if fell else before[key]) for key in wanted}
        gauges = {
            key: series.values[min(at, len(series.values) - 1)]
            for key, series in scrapes.series.items()
            if key not in wanted
        }
        place = next(iter(wanted.values())).places[at]
        result.append(Interval(increase, gauges, place, tuple(resets)))
    for interval in result:
        for text in interval.resets:
            collector.warn(text)
    return result


def by_position(increase: Mapping[Key, float], name: str) -> list[float]:
    """The values of a counter with a position label, in order of position."""
    found = {
        int(position): value for (n, position), value in increase.items() if n == name and position.isdigit()
    }
    return [found.get(index, 0.0) for index in range(max(found, default=-1) + 1)]


def _plain(name: str) -> str:
    return name.removesuffix("_total")
