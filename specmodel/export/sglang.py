"""SGLang's speculative flags, written and read; the adaptive file is in `sglang_adaptive`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from specmodel.errors import InputError
from specmodel.export import command_line, flag_options, sglang_adaptive
from specmodel.export.schedule import Schedule
from specmodel.export.settings import EngineConfig, Reading, Request, Tree, Written, meant, refuse_lossy
from specmodel.export.versions import Version, release
from specmodel.export.words import kv_word, method_of

NEWEST = "0.5.23"
ADAPTIVE_FILE = "adaptive.json"
DEFAULT_RUNNING = 48  # requests at once when speculating, unless --max-running-requests says otherwise

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
_STEPPED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")  # by steps, top-k and draft tokens, all three
_ADAPTIVE = ("EAGLE", "EAGLE3", "NEXTN")
_BLOCKS = ("DFLASH",)
_NGRAM_DEFAULT = 12  # draft tokens, root included

_ALGORITHM = "--speculative-algorithm"
_DRAFT = "--speculative-draft-model-path"
_STEPS = "--speculative-num-steps"
_TOP_K = "--speculative-eagle-topk"
_TOKENS = "--speculative-num-draft-tokens"
_BLOCK = "--speculative-dflash-block-size"
_SWITCH = "--speculative-adaptive"
_FILE = "--speculative-adaptive-config"
_RUNNING = "--max-running-requests"
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")

# Further flags a request may set, as option names, with the kind of their value.
_OPTIONS: Mapping[str, str] = {
    "speculative_draft_model_revision": "text",
    "speculative_draft_load_format": "text",
    "speculative_draft_model_quantization": "text",
    "speculative_token_map": "text",
    "speculative_attention_mode": "text",
    "speculative_draft_attention_backend": "text",
    "speculative_draft_kv_cache_dtype": "text",
    "speculative_draft_window_size": "whole",
    "speculative_draft_sink_size": "whole",
    "speculative_moe_runner_backend": "text",
    "speculative_accept_threshold_single": "number",
    "speculative_accept_threshold_acc": "number",
    "speculative_use_rejection_sampling": "switch",
    "speculative_use_block_verification": "switch",
    "enable_multi_layer_eagle": "switch",
    "speculative_ngram_min_bfs_breadth": "whole",
    "speculative_ngram_max_bfs_breadth": "whole",
    "speculative_ngram_match_type": "text",
    "speculative_ngram_max_trie_depth": "whole",
    "speculative_ngram_capacity": "whole",
    "speculative_ngram_external_corpus_path": "text",
}
_SWITCHES = (_SWITCH, *flag_options.switches(_OPTIONS))
_ALIASES = {
    "--speculative-draft-model": _DRAFT,
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--model": "--model-path",
}


def version_of(text: str | None) -> Version | None:
    """The release; None for the newest one read."""
    return None if text is None else release(text)


def write(asked: Request) -> Written:
    """The command, with the adaptive file where k changes with the batch, and what reading it must give."""
    notes = _version_notes(asked)
    kv = kv_word(asked.kv, "sglang")
    command = ["python", "-m", "sglang.launch_server", "--model-path", asked.target]
    flags: list[str] = []
    schedule = None
    adaptive = ""
    if asked.speculates:
        schedule = _schedule(asked, notes)
        flags = _flags(asked, schedule.max_k if schedule else asked.length)
        if schedule is not None:
            flags += [_SWITCH, _FILE, ADAPTIVE_FILE]
            adaptive = sglang_adaptive.dump(schedule)
        flags += flag_options.to_flags(asked.options, _OPTIONS)
        refuse_lossy(_lossy(asked.options), asked)
        _notes(asked, notes)
    speculative = shlex.join(flags)
    if asked.tp > 1:
        flags += ["--tp-size", str(asked.tp)]
    if asked.data_parallel > 1:
        flags += ["--dp-size", str(asked.data_parallel)]
    running = _running(asked, notes)
    if running is not None:
        flags += [_RUNNING, str(running)]
    if kv is not None:
        flags += ["--kv-cache-dtype", kv]
    wanted = meant(asked, kv=kv, schedule=schedule, max_batch=running)
    return Written(
        EngineConfig(
            "sglang",
            asked.version,
            shlex.join(command + flags),
            adaptive or speculative,
            ADAPTIVE_FILE if adaptive else None,
            tuple(notes),
        ),
        wanted,
    )


def _version_notes(asked: Request) -> list[str]:
    version = version_of(asked.version)
    if version is None:
        return [f"no engine version given: written for SGLang {NEWEST}, the newest form read"]
    if version != release(NEWEST):
        return [f"the flags were read in SGLang {NEWEST}; {version} was not checked"]
    return []


def _schedule(asked: Request, notes: list[str]) -> Schedule | None:
    if asked.table is None:
        return None
    if asked.word not in _ADAPTIVE:
        notes.append(
            f"SGLang changes k with the batch for EAGLE and EAGLE3 chains only: k stays {asked.length}. For "
            f"{asked.table.describe()} run two deployments"
        )
        return None
    notes.append("one candidate per bucket fixes k there; with more SGLang picks by acceptance")
    notes.append("adaptive steps do not work with data-parallel attention")
    return asked.table


def _flags(asked: Request, k: int) -> list[str]:
    flags = [_ALGORITHM, asked.word]
    if asked.draft_model is not None:
        flags += [_DRAFT, asked.draft_model]
    if asked.tree is not None:
        if asked.word not in _STEPPED:
            raise InputError(
                "tree", asked.tree, f"SGLang grows trees for {', '.join(_STEPPED)}, not {asked.word}"
            )
        flags += [_STEPS, str(asked.tree.depth), _TOP_K, str(asked.tree.top_k)]
        return [*flags, _TOKENS, str(asked.tree.nodes + 1)]
    if asked.word in _STEPPED:
        return [*flags, _STEPS, str(k), _TOP_K, "1", _TOKENS, str(k + 1)]
    return [*flags, _BLOCK if asked.word in _BLOCKS else _TOKENS, str(k + 1)]


def _notes(asked: Request, notes: list[str]) -> None:
    if asked.tree is not None:
        notes.append("a tree with pages above 1 needs flashinfer, fa3 or triton attention")
    if asked.word == "NGRAM":
        notes.append("NGRAM verifies a tree of matches: k counts its nodes")
    if asked.word == "NEXTN" and asked.draft_model is None:
        notes.append("the MTP module is taken from the target's own checkpoint")


def _running(asked: Request, notes: list[str]) -> int | None:
    """--max-running-requests: SGLang's default when speculating is lower than many plans."""
    planned = asked.planned_batch
    if asked.max_batch is not None or (
        asked.speculates and planned is not None and planned > DEFAULT_RUNNING
    ):
        return planned
    if asked.speculates:
        notes.append(
            f"max_running_requests defaults to {DEFAULT_RUNNING} when speculating; larger batches need {_RUNNING}"
        )
    return None


def read(text: str, version: str | None = None, files: Mapping[str, str] | None = None) -> Reading:
    """The flags or a whole command; `files` holds what its file names stand for. Or the adaptive file alone.

    Raises
    ------
    InputError
        Naming the flag or key that is not allowed.
    """
    version_of(version)
    if text.lstrip().startswith("{"):
        schedule, options = sglang_adaptive.load(text)
        return Reading(engine="sglang", k=schedule.max_k, schedule=schedule, options=options)
    command = command_line.parse(text, switches=_SWITCHES, aliases=_ALIASES)
    kv = command.flags.get("--kv-cache-dtype")
    served = Reading(
        engine="sglang",
        target=command.flags.get("--model-path"),
        tp=command.whole("--tp-size") or 1,
        kv=None if kv == "auto" else kv,
        max_batch=command.whole(_RUNNING),
    )
    word = command.flags.get(_ALGORITHM)
    if word is None:
        return served
    notes: list[str] = []
    if word.upper() not in _ALGORITHMS:
        notes.append(f"{word} is not among SGLang's own algorithms; a registered one is taken as it is")
    else:
        word = word.upper()
    k, tree = _length(command, word, notes)
    options = flag_options.from_command(command, _OPTIONS)
    found = replace(
        served,
        word=word,
        method=method_of(word, "sglang"),
        k=k,
        draft_model=command.flags.get(_DRAFT),
        tree=tree,
        options=options,
        lossy=_lossy(options),
        notes=tuple(notes),
    )
    return _adapted(found, command, files or {}) if _SWITCH in command.flags else found


def _length(command: command_line.Command, word: str, notes: list[str]) -> tuple[int | None, Tree | None]:
    """k and the tree, from steps, top-k and draft tokens (root included)."""
    steps, top_k, tokens = command.whole(_STEPS), command.whole(_TOP_K), command.whole(_TOKENS)
    block = command.whole(_BLOCK)
    if tokens is not None and tokens < 2:
        raise InputError(_TOKENS, tokens, "counts the root: at least 2")
    if word not in _STEPPED:
        if block is not None and tokens not in (None, block):
            raise InputError(_BLOCK, block, f"must equal {_TOKENS} {tokens}")
        width = block or tokens or (_NGRAM_DEFAULT if word == "NGRAM" else None)
        if width is None:
            notes.append("k is the draft checkpoint's block size less the root")
        return (None if width is None else width - 1), None
    given = [
        flag for flag, value in ((_STEPS, steps), (_TOP_K, top_k), (_TOKENS, tokens)) if value is not None
    ]
    if not given:
        notes.append("no depth given: 5 steps, top-k 4, 8 draft tokens for Llama and Grok, else 3, 1, 4")
        return None, None
    if steps is None or top_k is None or tokens is None:
        raise InputError(
            given[0], command.flags[given[0]], "steps, top-k and draft tokens go together or not at all"
        )
    if steps < 1 or top_k < 1:
        raise InputError(_STEPS if steps < 1 else _TOP_K, 0, "must be at least 1")
    if top_k == 1:
        if tokens != steps + 1:
            notes.append(f"with top-k 1 SGLang verifies {steps + 1} tokens, not {tokens}")
        return steps, None
    return steps, Tree(steps, top_k, tokens - 1)


def _lossy(options: Mapping[str, object]) -> tuple[str, ...]:
    """Acceptance thresholds below 1: a token passes that the target would not have chosen so often."""
    given = {name: options.get(name) for name in _THRESHOLDS}
    return tuple(name for name, value in given.items() if isinstance(value, (int, float)) and value < 1.0)


def _adapted(found: Reading, command: command_line.Command, files: Mapping[str, str]) -> Reading:
    """The same with k by batch, where SGLang allows it."""
    if found.word not in _ADAPTIVE or found.tree is not None:
        raise InputError(_SWITCH, found.word, "works for EAGLE and EAGLE3 with top-k 1")
    name = command.flags.get(_FILE)
    if name is None:
        schedule, options = sglang_adaptive.load(sglang_adaptive.BUILT_IN)
        notes = (*found.notes, "no adaptive file named: SGLang's built-in table")
    elif name not in files:
        raise InputError(_FILE, name, "the contents of this file were not given")
    else:
        schedule, options = sglang_adaptive.load(files[name])
        notes = found.notes
    steps = found.k
    candidates = sglang_adaptive.all_candidates(schedule, options)
    if steps is not None and steps not in candidates:
        raise InputError(_STEPS, steps, f"must be one of the adaptive candidates {sorted(candidates)}")
    return replace(
        found, k=schedule.max_k, schedule=schedule, options={**found.options, **options}, notes=notes
    )
