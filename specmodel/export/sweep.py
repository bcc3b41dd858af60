"""Parameter files for ``vllm bench sweep serve``: measure the candidates before believing any plan."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError
from specmodel.export import vllm
from specmodel.export.settings import Request
from specmodel.export.versions import release
from specmodel.export.vllm_keys import NEWEST

SERVE_FILE = "serve.json"
BENCH_FILE = "bench.json"
ROUNDS = 8  # requests per slot: enough for the batch to stay full most of the time


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: the command, its two parameter files by name, and what to know about it."""

    command: str
    serve_params: str
    bench_params: str
    notes: tuple[str, ...]


def sweep(
    asked: Request,
    *,
    ks: Sequence[int],
    batches: Sequence[int] = (1, 4, 16, 64),
    input_tokens: int = 1024,
    output_tokens: int = 256,
    folder: str = "sweep",
) -> Sweep:
    """The sweep over candidate draft lengths and client concurrencies, speculation off always among them.

    Parameters
    ----------
    asked : Request
        For vLLM; its k and schedule do not matter.
    ks : sequence of int
        Candidate draft lengths.
    batches : sequence of int
        Client concurrencies.
    input_tokens, output_tokens : int
        Length of the synthetic requests.

    Raises
    ------
    InputError
        If the engine is not vLLM, a candidate is given twice, or this vLLM lacks the method.
    """
    if asked.engine != "vllm":
        raise InputError("engine", asked.engine, "only vLLM has such a sweep")
    candidates = [checks.whole("k", k, high=MAX_K) for k in ks]
    if len(set(candidates)) != len(candidates):
        raise InputError("k", candidates, "none twice")
    version = vllm.version_of(asked.version)
    rows: list[dict[str, object]] = [{"_benchmark_name": "off"}]
    notes: list[str] = []
    for k in candidates:
        if k == 0:
            continue
        config, _, notes = vllm.speculative_config(replace(asked, k=k, schedule=None))
        vllm.read_config(json.loads(json.dumps(config)), version)
        rows.append({"_benchmark_name": f"k{k}", "speculative-config": config})
    if version is not None and version != release(NEWEST):
        notes.append(f"`vllm bench sweep` was read in {NEWEST}; {version} was not checked")
    notes.append("random texts accept like nothing else: put your own requests in with --dataset-name")
    bench = ["vllm", "bench", "serve", "--model", asked.target, "--dataset-name", "random", "--ignore-eos"]
    bench += ["--random-input-len", str(checks.whole("input_tokens", input_tokens, low=1))]
    bench += ["--random-output-len", str(checks.whole("output_tokens", output_tokens, low=1))]
    load = [
        {"_benchmark_name": f"c{batch}", "max_concurrency": batch, "num_prompts": ROUNDS * batch}
        for batch in (checks.whole("batch", batch, low=1) for batch in batches)
    ]
    serve = [
        "vllm",
        "serve",
        asked.target,
        *(["--tensor-parallel-size", str(asked.tp)] if asked.tp > 1 else []),
    ]
    command = ["vllm", "bench", "sweep", "serve", "--serve-cmd", shlex.join(serve)]
    command += ["--bench-cmd", shlex.join(bench), "--serve-params", SERVE_FILE]
    command += ["--bench-params", BENCH_FILE, "-o", folder]
    return Sweep(shlex.join(command), _lines(rows), _lines(load), tuple(notes))


def _lines(rows: Sequence[object]) -> str:
    """A JSON list, one entry a line."""
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
