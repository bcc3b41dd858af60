"""vLLM's speculative config, written and read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

from specmodel.errors import InputError
from specmodel.export import command_line
from specmodel.export.schedule import Schedule
from specmodel.export.settings import EngineConfig, Reading, Request, Written, meant, refuse_lossy
from specmodel.export.versions import Version, exists, release
from specmodel.export.vllm_keys import (
    NEWEST,
    OLDEST,
    SCHEDULE,
    SCHEDULE_SPANS,
    SWITCH,
    SWITCH_WORKS,
    check_key,
    check_method,
    check_sampling,
    lossy_keys,
)
from specmodel.export.words import PARALLEL, kv_word, method_of

FLAG = "--speculative-config"
_ALIASES = {
    "-sc": FLAG,
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
}
_SHORTHANDS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
# The methods whose k the older model runner can change with the batch.
_OLDER_RUNNER = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
_SCHEDULE_KEYS = (SCHEDULE, SWITCH)
_STRUCTURE = ("method", "model", "num_speculative_tokens", *_SCHEDULE_KEYS)


def version_of(text: str | None) -> Version | None:
    """The release; None for the newest one read.

    Raises
    ------
    InputError
        If it is older than what was read.
    """
    if text is None:
        return None
    version = release(text)
    if version < release(OLDEST):
        raise InputError("engine-version", text, f"the oldest vLLM release read is {OLDEST}")
    return version


def speculative_config(asked: Request) -> tuple[dict[str, object], Schedule | None, list[str]]:
    """The config as a dict, the schedule that it really carries, and what there is to say about it."""
    version = version_of(asked.version)
    word, notes = asked.word, _version_notes(version)
    check_method(word, version)
    if asked.tree is not None:
        raise InputError("tree", asked.tree, "vLLM drafts chains; SGLang and TensorRT-LLM grow trees")
    config: dict[str, object] = {"method": word}
    if asked.draft_model is not None:
        config["model"] = asked.draft_model
    config["num_speculative_tokens"] = asked.length
    if asked.method in PARALLEL:
        check_key("parallel_drafting", True, version)
        config["parallel_drafting"] = True
    schedule = asked.table
    if schedule is not None:
        schedule = _add_schedule(config, asked, schedule, version, notes)
    for key, value in asked.options.items():
        if key in config or key in _STRUCTURE:
            raise InputError("option", key, "is set by the request itself")
        check_key(key, value, version)
        config[key] = value
    draft_tp = asked.options.get("draft_tensor_parallel_size")
    if draft_tp not in (None, 1, asked.tp):
        raise InputError("draft_tensor_parallel_size", draft_tp, f"must be 1 or the target's {asked.tp}")
    refuse_lossy(lossy_keys(config), asked)
    if asked.method == "eagle2":
        notes.append("EAGLE-2 heads run as a chain in vLLM: its dynamic tree is not there")
    if word == "mtp" and asked.length > 1:
        notes.append(
            "if the checkpoint predicts more than one token per module, k must be a multiple of that number"
        )
    if word == "draft_model" and exists(version, SWITCH_WORKS):
        notes.append("draft models run on the old engine (V0) only in this release")
    return config, schedule, notes


def _version_notes(version: Version | None) -> list[str]:
    if version is None:
        return [f"no engine version given: written for vLLM {NEWEST}, the newest form read"]
    if version > release(NEWEST):
        return [f"vLLM {version} is newer than {NEWEST}, the newest form read"]
    return []


def _add_schedule(
    config: dict[str, object], asked: Request, schedule: Schedule, version: Version | None, notes: list[str]
) -> Schedule | None:
    """Write the schedule where the release has one; return what the engine will really do."""
    named = f"vLLM {version}" if version else "vLLM"
    if exists(version, SWITCH_WORKS):
        return _add_switch(config, asked, schedule, notes)
    if not exists(version, SCHEDULE_SPANS):
        notes.append(
            f"{named} cannot change k with the batch (no switch works between 0.10 and 0.24; the schedule exists "
            f"from {SCHEDULE_SPANS[0].first}): k stays {asked.length}. For {schedule.describe()} run two "
            "deployments, or switch outside of the engine"
        )
        return None
    if asked.data_parallel > 1:
        notes.append(
            f"vLLM ignores a schedule when data_parallel_size is above 1: k stays {asked.length}; "
            "separate servers behind a router keep it"
        )
        return None
    config["num_speculative_tokens"] = schedule.max_k
    end = max(asked.planned_batch or 0, schedule.levels[-1].from_)
    config[SCHEDULE] = [
        [level.from_, end if level is schedule.levels[-1] else level.to, level.k] for level in schedule.levels
    ]
    if asked.word not in _OLDER_RUNNER or asked.method in PARALLEL:
        notes.append(f"the older model runner changes k with the batch only for {', '.join(_OLDER_RUNNER)}")
    notes.append("on the older model runner a schedule makes the CUDA graphs piecewise: measure both")
    return schedule


def _add_switch(
    config: dict[str, object], asked: Request, schedule: Schedule, notes: list[str]
) -> Schedule | None:
    """Releases before 0.10 can only stop speculating above one batch size."""
    ends = schedule.closed()
    if len(ends.levels) == 2 and ends.levels[1].k == 0 and (ends.levels[0].to or 0) >= 2:
        config["num_speculative_tokens"] = ends.levels[0].k
        config[SWITCH] = ends.levels[0].to
        notes.append(f"{SWITCH} counts queued requests; it works on the old engine (V0) only")
        return ends
    notes.append(
        f"this release can only stop speculating above one batch, not follow {schedule.describe()}: "
        f"k stays {asked.length}"
    )
    return None


def write(asked: Request) -> Written:
    """The command with the config in it, and what reading it must give."""
    command = ["vllm", "serve", asked.target]
    kv = kv_word(asked.kv, "vllm")
    config, schedule = "", None
    notes = _version_notes(version_of(asked.version))
    if asked.speculates:
        content, schedule, notes = speculative_config(asked)
        config = json.dumps(content, separators=(",", ":"), allow_nan=False)
        command += [FLAG, config]
    if asked.tp > 1:
        command += ["--tensor-parallel-size", str(asked.tp)]
    if asked.data_parallel > 1:
        command += ["--data-parallel-size", str(asked.data_parallel)]
    if asked.max_batch is not None:
        command += ["--max-num-seqs", str(asked.max_batch)]
    if kv is not None:
        command += ["--kv-cache-dtype", kv]
        if asked.version is not None and release(asked.version) != release(NEWEST) and kv != "fp8":
            notes.append(f"--kv-cache-dtype {kv} was read in vLLM {NEWEST} only")
    extra = {"parallel_drafting": True} if asked.method in PARALLEL else {}
    wanted = meant(asked, kv=kv, schedule=schedule, max_batch=asked.max_batch, extra=extra)
    return Written(
        EngineConfig("vllm", asked.version, shlex.join(command), config, None, tuple(notes)), wanted
    )


def read(text: str, version: str | None = None, files: Mapping[str, str] | None = None) -> Reading:
    """The JSON of ``--speculative-config``, or a whole ``vllm serve`` command.

    Raises
    ------
    InputError
        Naming the key that this release does not have or does not allow.
    """
    known = version_of(version)
    if text.lstrip().startswith("{"):
        return read_config(_json(text), known)
    command = command_line.parse(text, aliases=_ALIASES, fold=True)
    config = _json(command.flags[FLAG]) if FLAG in command.flags else {}
    for flag, key in _SHORTHANDS.items():
        if flag in command.flags:
            if key in config:
                raise InputError(flag, command.flags[flag], f"conflicts with {key} in {FLAG}")
            config[key] = command.flags[flag] if key != "num_speculative_tokens" else command.whole(flag)
    words = command.words
    place = words.index("serve") + 1 if "serve" in words else len(words)
    target = words[place] if place < len(words) else command.flags.get("--model")
    tp = command.whole("--tensor-parallel-size") or 1
    parallel = command.whole("--data-parallel-size") or 1
    found = read_config(config, known, data_parallel=parallel) if config else Reading(engine="vllm")
    return _served(found, target, tp, command)


def _served(found: Reading, target: str | None, tp: int, command: command_line.Command) -> Reading:
    kv = command.flags.get("--kv-cache-dtype")
    draft_tp = found.options.get("draft_tensor_parallel_size")
    if draft_tp not in (None, 1, tp):
        raise InputError("draft_tensor_parallel_size", draft_tp, f"must be 1 or the target's {tp}")
    return replace(
        found,
        target=target,
        tp=tp,
        kv=None if kv == "auto" else kv,
        max_batch=command.whole("--max-num-seqs"),
    )


def _json(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(FLAG, text, f"must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(FLAG, text, "must be one JSON object")
    return {str(key).replace("-", "_"): value for key, value in content.items()}


def read_config(config: Mapping[str, object], version: Version | None, data_parallel: int = 1) -> Reading:
    """A speculative config that is already a dict, keys with underscores."""
    for key, value in config.items():
        check_key(key, value, version)
    word = config.get("method")
    notes: list[str] = []
    if isinstance(word, str):
        check_method(word, version)
        if word.endswith("_mtp"):
            notes.append(f"{word}: today's word is mtp")
            word = "mtp"
    else:
        word = None
        notes.append("no method named: vLLM infers it from the draft model")
    k = _length(config, word, notes)
    check_sampling(config, k, version)
    schedule = _schedule(config, k, version, notes)
    if schedule is not None and data_parallel > 1 and SCHEDULE in config:
        notes.append("the schedule is ignored: data_parallel_size is above 1")
        schedule = None
    parallel = config.get("parallel_drafting") is True
    model = config.get("model")
    return Reading(
        engine="vllm",
        word=word,
        method=None if word is None else method_of(word, "vllm", parallel),
        k=k,
        draft_model=model if isinstance(model, str) else None,
        schedule=schedule,
        options={key: value for key, value in config.items() if key not in _STRUCTURE},
        lossy=lossy_keys(config),
        notes=tuple(notes),
    )


def _length(config: Mapping[str, object], word: str | None, notes: list[str]) -> int | None:
    k = config.get("num_speculative_tokens")
    if isinstance(k, int):
        if k < 1:
            raise InputError(
                "num_speculative_tokens", k, "must be above 0; leave the whole config out instead"
            )
        return k
    if word == "mtp":
        notes.append("k is what the checkpoint's n_predict says")
    elif word == "suffix":
        notes.append("k is chosen round by round, at most suffix_decoding_max_tree_depth (24)")
    else:
        notes.append("k is what the draft checkpoint suggests, if it does")
    return None


def _schedule(
    config: Mapping[str, object], k: int | None, version: Version | None, notes: list[str]
) -> Schedule | None:
    """The table as levels: inclusive ranges from 1 on, gaps and what lies beyond carried forward."""
    rows, switch = config.get(SCHEDULE), config.get(SWITCH)
    if isinstance(switch, int):
        if switch < 2:
            raise InputError(SWITCH, switch, "must be at least 2")
        if not exists(version, SWITCH_WORKS):
            notes.append(f"{SWITCH} has no effect in this release: k does not change with the batch")
        elif k is not None:
            return Schedule.from_steps([(1, k), (switch + 1, 0)])
    if not isinstance(rows, list):
        return None
    steps: list[tuple[int, int]] = []
    last_end = 0
    for position, row in enumerate(rows, start=1):
        field = f"{SCHEDULE}, range {position}"
        if not isinstance(row, list) or len(row) != 3 or not all(type(entry) is int for entry in row):
            raise InputError(field, row, "must be [start, end, k], whole numbers")
        start, end, length = row
        if position == 1 and start != 1:
            raise InputError(field, row, "the first range must start at 1")
        if start <= last_end:
            raise InputError(field, row, f"overlaps the range before it, which ends at {last_end}")
        if end < start:
            raise InputError(field, row, "ends before it starts")
        if length < 0:
            raise InputError(field, row, "k must be at least 0")
        if k is not None and length > k:
            notes.append(f"{SCHEDULE}, range {position}: k {length} is cut to num_speculative_tokens {k}")
            length = k
        steps.append((start, length))
        last_end = end
    if not steps:
        raise InputError(SCHEDULE, rows, "needs at least one range")
    return Schedule.from_steps(steps, to=last_end)
