"""TensorRT-LLM's options file (YAML), read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specmodel.errors import InputError, unknown_name
from specmodel.export import command_line, yaml_subset
from specmodel.export.schedule import Schedule
from specmodel.export.settings import Reading, Tree
from specmodel.export.trtllm_keys import (
    ALIASES,
    LOWER_FROM,
    OWN,
    OWN_TREE,
    SECTION,
    TABLE,
    TODAY,
    TYPES,
    UPPER_FROM,
    check_option,
    lossy_keys,
    upper_bounds,
    version_of,
)
from specmodel.export.versions import Version
from specmodel.export.words import method_of


def read(text: str, version: str | None = None, files: Mapping[str, str] | None = None) -> Reading:
    """The options file, or a ``trtllm-serve`` command with `files` for the file it names.

    Raises
    ------
    InputError
        Naming the line or key that is not allowed.
    """
    known = version_of(version)
    if not text.lstrip().startswith(("trtllm-", "trtllm_")):
        return _read_content(yaml_subset.load(text, "options file"), known)
    command = command_line.parse(text, aliases={"--extra_llm_api_options": "--config"})
    name = command.flags.get("--config")
    if name is None:
        content: dict[object, object] = {}
    elif name not in (files or {}):
        raise InputError("--config", name, "the contents of this file were not given")
    else:
        content = yaml_subset.load((files or {})[name], name)
    found = _read_content(content, known)
    return replace(
        found,
        target=command.words[-1] if len(command.words) > 1 else None,
        tp=command.whole("--tp_size") or found.tp,
        max_batch=command.whole("--max_batch_size") or found.max_batch,
    )


def _read_content(content: Mapping[object, object], version: Version | None) -> Reading:
    kv = content.get("kv_cache_config")
    dtype = kv.get("dtype") if isinstance(kv, Mapping) else None
    section = content.get(SECTION)
    served = Reading(
        engine="tensorrt-llm",
        tp=_whole(content, "tensor_parallel_size", 1) or 1,
        kv=None if dtype in (None, "auto") else str(dtype),
        max_batch=_whole(content, "max_batch_size", 1),
    )
    if section is None:
        return served
    if not isinstance(section, Mapping):
        raise InputError(SECTION, section, "must be a mapping")
    return _read_section(
        {ALIASES.get(str(key), str(key)): value for key, value in section.items()}, served, version
    )


def _read_section(section: Mapping[str, object], served: Reading, version: Version | None) -> Reading:
    word = section.get("decoding_type")
    if word not in TYPES:
        raise unknown_name("decoding_type", str(word), TYPES)
    word = TODAY.get(str(word), str(word))
    notes: list[str] = []
    options = {}
    for key, value in section.items():
        if key in (*OWN, *OWN_TREE, "num_nextn_predict_layers", "max_ngram_size"):
            continue
        check_option(key, value)
        options[key] = value
    k = _whole(section, "max_draft_len", 1)
    if k is None:
        k = _whole(section, "num_nextn_predict_layers", 1)
    if k is None and word == "Lookahead":
        size = _whole(section, "max_ngram_size", 2)
        k = None if size is None else size - 1
    if k is None:
        notes.append("k is left to the engine or the checkpoint")
    model = section.get("speculative_model")
    return replace(
        served,
        word=word,
        method=method_of(word, "tensorrt-llm"),
        k=k,
        draft_model=None if model is None else str(model),
        tree=_read_tree(section, k),
        schedule=_read_schedule(section, k, version, notes),
        options=options,
        lossy=lossy_keys(section),
        notes=tuple(notes),
    )


def _read_tree(section: Mapping[str, object], k: int | None) -> Tree | None:
    top_k, total = _whole(section, "dynamic_tree_max_topK", 1), _whole(section, "max_total_draft_tokens", 1)
    if top_k is None:
        if section.get("use_dynamic_tree") is True:
            raise InputError("dynamic_tree_max_topK", None, "use_dynamic_tree needs it")
        if total not in (None, k):
            raise InputError("max_total_draft_tokens", total, f"must be max_draft_len {k} without a tree")
        return None
    if k is None:
        raise InputError("max_draft_len", None, "a tree needs it")
    nodes = top_k * k if total is None else total
    if not k <= nodes <= top_k * k:
        raise InputError("max_total_draft_tokens", nodes, f"must be from {k} to top-k x depth = {top_k * k}")
    return Tree(k, top_k, nodes)


def _read_schedule(
    section: Mapping[str, object], k: int | None, version: Version | None, notes: list[str]
) -> Schedule | None:
    table, limit = section.get(TABLE), _whole(section, "max_concurrency", 1)
    if table is None:
        return None if limit is None or k is None else Schedule.from_steps([(1, k), (limit + 1, 0)])
    if limit is not None:
        raise InputError("max_concurrency", limit, f"not together with {TABLE}")
    if version is not None and version < LOWER_FROM:
        raise InputError(TABLE, table, f"exists from {LOWER_FROM}, not in {version}")
    if not isinstance(table, Mapping) or not table:
        raise InputError(TABLE, table, "must be a mapping of batch to draft length")
    rows = sorted((_entry(batch, 1), _entry(length, 0)) for batch, length in table.items())
    largest = rows[0][1]
    if k is not None and largest != k:
        raise InputError(TABLE, table, f"the value of the smallest key must be max_draft_len {k}")
    if max(length for _, length in rows) > largest:
        raise InputError(TABLE, table, f"no value may be above that of the smallest key, {largest}")
    if not upper_bounds(version):
        if rows[0][0] != 1:
            raise InputError(TABLE, table, "keys are lower bounds in this release: 1 must be among them")
        return Schedule.from_steps(rows)
    if version is None and rows[0][0] == 1 and rows[-1][1] == 0:
        notes.append(
            f"this looks like the form before {UPPER_FROM} (keys are lower bounds): read with a version"
        )
    starts = [1, *(batch + 1 for batch, _ in rows)]
    return Schedule.from_steps(zip(starts, [*(length for _, length in rows), 0], strict=True))


def _entry(value: object, low: int) -> int:
    if type(value) is not int or value < low:
        raise InputError(TABLE, value, f"must be a whole number, at least {low}")
    return value


def _whole(content: Mapping[str, object] | Mapping[object, object], key: str, low: int) -> int | None:
    value = content.get(key)
    if value is None:
        return None
    if type(value) is not int or value < low:
        raise InputError(key, value, f"must be a whole number, at least {low}")
    return value
