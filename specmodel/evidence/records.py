"""JSON: one document or one object per line, each recognised by its keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specmodel.errors import InputError
from specmodel.evidence import llamacpp, sglang, specbench, tables, trtllm, vllm
from specmodel.evidence.checks import NothingToReadError, UnusableError
from specmodel.evidence.collector import Collector
from specmodel.evidence.counts import Part
from specmodel.evidence.stream import LONGEST_LINE, Source

Record = Mapping[str, Any]
Reader = Callable[[Record, str, int, Collector], Part]

# What a record is, by the keys that only it has; the first that fits decides.
RUNS: tuple[tuple[Callable[[Record], bool], Reader], ...] = (
    (lambda r: "spec_decode_num_drafts" in r or "spec_decode_acceptance_length" in r, vllm.from_bench),
    (lambda r: "accept_length" in r and "server_info" in r, sglang.from_bench),
    (lambda r: "acc_length" in r and "batch_size" in r, sglang.from_batch_bench),
    (lambda r: "internal_states" in r, sglang.from_server_info),
    (lambda r: "decoding_stats" in r or ("world_info" in r and "performance" in r), trtllm.from_report),
)
REQUESTS: tuple[tuple[Callable[[Record], bool], Reader], ...] = (
    (lambda r: "specDecodingStats" in r, trtllm.from_iteration),
    (
        lambda r: isinstance(r.get("timings"), dict) or ("draft_n" in r and "predicted_n" in r),
        llamacpp.from_timings,
    ),
)
WITHOUT: tuple[tuple[str, str], ...] = (
    ("avg_ts", "llama-bench timings"),
    ("sample_batch_tokens", "a step-time table"),
    ("bias_seconds", "a step-time table"),
    ("candidate_steps", "a table of adaptive steps"),
    ("hash_ids", "a request trace"),
    ("mean_tpot_ms", "a benchmark without speculation counters"),
    ("avg_latency", "a latency benchmark"),
    ("architectures", "a model configuration"),
)


class RecordReader:
    """Takes the records of any number of sources."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._count = 0
        self._steps: dict[tuple[tuple[str, str], ...], list[tuple[str, np.ndarray[Any, Any]]]] = {}

    def document(self, source: Source) -> None:
        """A file that is one JSON value, perhaps over many lines."""
        parts, size = [], 0
        for block in source.blocks():
            parts.append("\n".join(block.lines))
            size += len(parts[-1])
            if size > LONGEST_LINE:
                raise InputError(
                    "evidence", source.name, f"one JSON document of more than {LONGEST_LINE >> 20} MiB"
                )
        try:
            value = json.loads("\n".join(parts))
        except (ValueError, RecursionError) as error:
            line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
            self._collector.bad(source.name, line, f"broken JSON: {error}")
            return
        records = value if isinstance(value, list) else [value]
        if records and all(isinstance(r, dict) and "drafted" in r and "accepted" in r for r in records):
            tables.add_records(records, [1] * len(records), source.name, self._collector)
            return
        for record in records:
            self.record(record, source.name, 1)

    def lines(self, source: Source) -> None:
        """A file of one object per line; a block of rounds is taken at once."""
        for block in source.blocks():
            lines, numbers = tables.block_lines(block)
            if not lines:
                continue
            try:
                if not all(text[0] == "{" and text[-1] == "}" for text in lines):
                    raise ValueError
                records = json.loads("[" + ",".join(lines) + "]")
                if len(records) != len(lines):
                    raise ValueError
                tables.add_records(records, numbers, source.name, self._collector)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self._one_by_one(lines, numbers, source.name)

    def _one_by_one(self, lines: list[str], numbers: list[int], name: str) -> None:
        rounds: list[Record] = []
        places: list[int] = []
        for text, number in zip(lines, numbers, strict=True):
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:60]
                self._collector.bad(name, number, f"broken JSON: {why}: {text[-40:]!r}")
                continue
            if isinstance(record, dict) and "drafted" in record and "accepted" in record:
                rounds.append(record)
                places.append(number)
            else:
                self.record(record, name, number)
        if rounds:
            tables.add_records(rounds, places, name, self._collector)

    def record(self, record: object, name: str, line: int) -> None:
        """One record of any kind."""
        collector = self._collector
        try:
            if not isinstance(record, dict):
                raise UnusableError(f"a {type(record).__name__} where an object is expected")
            self._dispatch(record, name, line)
            collector.good()
        except NothingToReadError as error:
            collector.good()
            collector.nothing(f"{name}: {error}")
        except UnusableError as error:
            collector.bad(name, line, str(error))
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            collector.bad(name, line, f"a value is not of the kind that this record has: {error}")

    def _dispatch(self, record: Record, name: str, line: int) -> None:
        collector = self._collector
        for recognised, reader in RUNS:
            if recognised(record):
                collector.add(reader(record, name, line, collector))
                return
        block = vllm.per_request(record)
        if block is not None:
            self._response(block, record, name)
            return
        block = sglang.request_block(record)
        if block is not None:
            collector.add(sglang.request_part(block, name, line, collector), "requests")
            return
        for recognised, reader in REQUESTS:
            if recognised(record):
                kind = "requests" if reader is llamacpp.from_timings else "intervals"
                collector.add(reader(record, name, line, collector), kind)
                return
        if specbench.recognised(record):
            self._answer(record, name)
            return
        vector = tables.vector_name(record)
        if vector is not None:
            collector.add(tables.vector_part(record, vector, name, line, collector))
            return
        for key, what in WITHOUT:
            if key in record or any(isinstance(v, dict) and key in v for v in record.values()):
                raise NothingToReadError(f"{what}, which holds no acceptance")
        raise UnusableError(
            f"not a record of a known kind; its keys: {', '.join(list(record)[:6]) or 'none'}"
        )

    def _response(self, block: Record, record: Record, name: str) -> None:
        drafted, accepted, ordered = vllm.request_rounds(block)
        self._count += 1
        request = str(record.get("id") or record.get("request_id") or f"#{self._count}")
        tally = self._collector.tally(
            {"source": name}, "per-request metrics: accepted drafts per step, bonus token not counted", True
        )
        tally.ordered &= ordered
        tally.add(
            np.array(drafted, dtype=np.int64), np.array(accepted, dtype=np.int64), [request] * len(drafted)
        )

    def _answer(self, record: Record, name: str) -> None:
        part = specbench.trials_part(record, name, self._collector)
        if part is not None:
            self._collector.add(part, "requests")
            return
        self._count += 1
        for steps in specbench.lengths(record):
            key = tuple(sorted(specbench.labels(record, name).items()))
            request = f"{record.get('question_id', '')}#{self._count}"
            self._steps.setdefault(key, []).append((request, np.array(steps, dtype=np.int64)))

    def finish(self) -> None:
        """Answer files do not say k: it is given, or the longest run seen."""
        longest: dict[str, int] = {}
        for key, answers in self._steps.items():
            name = dict(key)["source"]
            longest[name] = max([longest.get(name, 0), *(int(steps.max(initial=0)) for _, steps in answers)])
        for name, seen in longest.items():
            if self._collector.k is not None and seen > self._collector.k:
                raise InputError(
                    "k", self._collector.k, f"{name} holds a step that accepted {seen} draft tokens"
                )
            if not seen and not self._collector.k:
                self._collector.nothing(f"{name}: every step gave one token: a run without speculation")
            elif not self._collector.k:
                self._collector.warn(
                    f"{name}: the file does not say k; {seen}, the most accepted in a step, is taken (give k)"
                )
        for key, answers in self._steps.items():
            k = self._collector.k or longest[dict(key)["source"]]
            if not k:
                continue
            tally = self._collector.tally(
                dict(key), "Spec-Bench accept_lengths: tokens per step with the bonus token", True
            )
            for request, steps in answers:
                tally.add(np.full(steps.size, k, dtype=np.int64), steps, [request] * steps.size)
