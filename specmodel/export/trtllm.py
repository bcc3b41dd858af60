"""TensorRT-LLM's options file (YAML), written; read in `trtllm_reading`."""

from __future__ import annotations

import shlex
from dataclasses import replace

from specmodel.errors import InputError
from specmodel.export import yaml_subset
from specmodel.export.schedule import Schedule
from specmodel.export.settings import EngineConfig, Request, Tree, Written, meant, refuse_lossy
from specmodel.export.trtllm_keys import (
    DOCUMENTED_FROM,
    FILE,
    LOWER_FROM,
    NEWEST,
    OLD_BACKEND,
    OPEN_END,
    OWN,
    OWN_TREE,
    PARD_FROM,
    SECTION,
    TABLE,
    TODAY,
    TREES,
    UPPER_FROM,
    check_option,
    lossy_keys,
    upper_bounds,
    version_of,
)
from specmodel.export.versions import Version, release
from specmodel.export.words import kv_word


def write(asked: Request) -> Written:
    """The command and its options file, and what reading them must give."""
    version = version_of(asked.version)
    notes = _version_notes(version)
    kv = kv_word(asked.kv, "tensorrt-llm")
    section: dict[str, object] = {}
    schedule: Schedule | None = None
    if asked.speculates:
        section = _section(asked, version, notes)
        schedule = _add_schedule(section, asked, version, notes)
        _add_options(section, asked)
    content: dict[str, object] = {SECTION: section} if section else {}
    if kv is not None:
        content["kv_cache_config"] = {"dtype": kv}
    if asked.tp > 1:
        content["tensor_parallel_size"] = asked.tp
    if asked.max_batch is not None:
        content["max_batch_size"] = asked.max_batch
    if asked.data_parallel > 1:
        notes.append("one server is one replica: start data_parallel of them behind a router")
    config = yaml_subset.dump(content, _comments(schedule, version)) if content else ""
    command = ["trtllm-serve", asked.target]
    if config:
        command += ["--config" if upper_bounds(version) else "--extra_llm_api_options", FILE]
    wanted = meant(asked, kv=kv, schedule=schedule, max_batch=asked.max_batch)
    written = EngineConfig(
        "tensorrt-llm", asked.version, shlex.join(command), config, FILE if config else None, tuple(notes)
    )
    return Written(written, wanted)


def _version_notes(version: Version | None) -> list[str]:
    if version is None:
        return [f"no engine version given: written in the form read for {UPPER_FROM} to {NEWEST}"]
    if version > release(NEWEST):
        return [f"TensorRT-LLM {version} is newer than {NEWEST}, the newest form read"]
    return []


def _section(asked: Request, version: Version | None, notes: list[str]) -> dict[str, object]:
    """Everything of speculative_config but the schedule and the options."""
    word, k = asked.word, asked.length
    today = upper_bounds(version)
    if word == "PARD" and version is not None and version < PARD_FROM:
        raise InputError("draft", asked.method, f"TensorRT-LLM has PARD from {PARD_FROM}, not in {version}")
    if word in ("SA", "DFlash") and version is not None and version < DOCUMENTED_FROM:
        notes.append(
            f"{word} was read in {DOCUMENTED_FROM} to {NEWEST}; whether {version} has it was not checked"
        )
    if word == "SA":
        notes.append("SA is TensorRT-LLM's suffix automaton: the same idea as suffix decoding, other code")
    if word in OLD_BACKEND:
        notes.append(f"{word} runs on the TensorRT backend only, not on the PyTorch one")
    spelled = {now: old for old, now in TODAY.items()}
    section: dict[str, object] = {"decoding_type": word if today else spelled.get(word, word)}
    if asked.draft_model is not None:
        old = version is not None and version < LOWER_FROM
        section["speculative_model_dir" if old else "speculative_model"] = asked.draft_model
    if word == "Lookahead":
        section["max_ngram_size"] = k + 1  # an n-gram is one token and the k guesses after it
    elif word == "MTP" and not today:
        section["num_nextn_predict_layers"] = k
    else:
        section["max_draft_len"] = k
    if asked.tree is not None:
        _add_tree(section, asked.tree, word, today)
    return section


def _add_tree(section: dict[str, object], tree: Tree, word: str, today: bool) -> None:
    if word not in TREES or (word == "MTP" and not today):
        raise InputError("tree", tree, "TensorRT-LLM grows trees for Eagle3 and, today, one-layer MTP only")
    if tree.nodes > tree.top_k * tree.depth:
        raise InputError("tree nodes", tree.nodes, f"at most top-k x depth = {tree.top_k * tree.depth}")
    section |= {
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": tree.top_k,
        "max_total_draft_tokens": tree.nodes,
    }


def _add_schedule(
    section: dict[str, object], asked: Request, version: Version | None, notes: list[str]
) -> Schedule | None:
    """Write the table in the form of this release; return what the engine will really do."""
    schedule = asked.table
    if schedule is None:
        return None
    if "max_draft_len" not in section:
        notes.append(f"{asked.word} takes no {TABLE} in this release: k stays {asked.length}")
        return None
    if version is not None and version < LOWER_FROM:
        return _add_limit(section, schedule, asked, notes)
    if schedule.levels[0].k != schedule.max_k:
        raise InputError(
            "schedule",
            schedule.describe(),
            "TensorRT-LLM wants the largest k in the first level: reduce_levels(largest_first=True)",
        )
    section["max_draft_len"] = schedule.max_k
    if upper_bounds(version):
        carried = _upper_table(section, asked, schedule, notes)
        if version is not None and version < DOCUMENTED_FROM and asked.word != "Eagle3":
            notes.append(
                f"{TABLE} came to Eagle3 first ({UPPER_FROM}), to {asked.word} by pull request 12262: check that "
                f"{version} has it"
            )
    else:
        carried = schedule
        section[TABLE] = dict(schedule.steps)
        notes.append(f"{TABLE} is honoured by NGram and two-model drafters only in this release")
    if carried.min_k == 0 and upper_bounds(version):
        notes.append(
            "after k = 0 a one-engine drafter has lost its state and accepts little (pull request 16888): unless "
            "your release has that fix, keep at least 1 (reduce_levels(min_k=1))"
        )
    return carried


def _upper_table(
    section: dict[str, object], asked: Request, schedule: Schedule, notes: list[str]
) -> Schedule:
    """Keys as upper bounds. A last level that is off needs no key; one that is not needs an end."""
    last = schedule.levels[-1]
    end = last.to if last.to is not None else max(asked.max_batch or OPEN_END, last.from_)
    levels = [*schedule.levels[:-1], replace(last, to=end)]
    closed = Schedule(tuple(levels)).closed()
    if last.k > 0:
        notes.append(f"above batch {end} TensorRT-LLM stops speculating")
    section[TABLE] = {level.to: level.k for level in closed.levels[:-1]}  # above the largest key: off
    return closed


def _add_limit(
    section: dict[str, object], schedule: Schedule, asked: Request, notes: list[str]
) -> Schedule | None:
    """Releases without a table can still stop above one batch."""
    ends = schedule.closed()
    if len(ends.levels) == 2 and ends.levels[1].k == 0 and ends.levels[0].to is not None:
        section["max_draft_len"] = ends.levels[0].k
        section["max_concurrency"] = ends.levels[0].to
        return ends
    notes.append(
        f"{TABLE} exists from {LOWER_FROM}: k stays {asked.length}. For {schedule.describe()} run two deployments"
    )
    return None


def _add_options(section: dict[str, object], asked: Request) -> None:
    for name, value in asked.options.items():
        if name in section or name in (*OWN, *OWN_TREE):
            raise InputError("option", name, "is set by the request itself")
        check_option(name, value)
        section[name] = value
    refuse_lossy(lossy_keys(section), asked)


def _comments(schedule: Schedule | None, version: Version | None) -> list[str]:
    if schedule is None:
        return []
    if version is not None and version < LOWER_FROM:
        return [f"speculation: {schedule.describe()}"]
    bounds, releases = (
        ("UPPER", f"from {UPPER_FROM} on")
        if upper_bounds(version)
        else ("LOWER", f"from {LOWER_FROM}, before {UPPER_FROM}")
    )
    return [f"{TABLE} keys are {bounds} bounds of the batch ({releases}):", schedule.describe()]
