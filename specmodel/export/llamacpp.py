"""llama.cpp's flags, written and read. It has no schedule; k is a maximum.

Build b8955 (pull request 22397, April 2026) renamed the flags; the old names stop the program since. Builds before
it know only the old ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from specmodel.errors import InputError, unknown_name
from specmodel.export import command_line, flag_options
from specmodel.export.settings import EngineConfig, Reading, Request, Written, meant, refuse_lossy
from specmodel.export.versions import build
from specmodel.export.words import kv_word, method_of

RENAMED = 8955
_TYPES = (
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
_REMOVED: Mapping[str, str] = {
    "--draft": "--spec-draft-n-max",
    "--draft-n": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-n-min": "--spec-draft-n-min",
    "--spec-ngram-size-n": "--spec-ngram-simple-size-n and its kin",
    "--spec-ngram-size-m": "--spec-ngram-simple-size-m and its kin",
    "--spec-ngram-min-hits": "--spec-ngram-simple-min-hits and its kin",
}
# `--spec-type` and `--spec-ngram-size-n` are older than the renaming.
_NEW_PREFIXES = (
    "--spec-draft-",
    "--spec-ngram-simple-",
    "--spec-ngram-map-",
    "--spec-ngram-mod-",
    "--spec-synth-",
)
_OLD_NAMES = {
    "--draft": "--draft-max",
    "--draft-n": "--draft-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-n-min": "--spec-draft-n-min",
}
_ALIASES = {
    "--model": "-m",
    "--hf-repo": "-hf",
    "-hfr": "-hf",
    "--model-draft": "-md",
    "--spec-draft-model": "-md",
    "--hf-repo-draft": "-hfd",
    "-hfrd": "-hfd",
    "--spec-draft-hf": "-hfd",
    "--draft-p-min": "--spec-draft-p-min",
    "--draft-p-split": "--spec-draft-p-split",
    "--parallel": "-np",
    "--cache-type-k": "-ctk",
    "--cache-type-v": "-ctv",
}
# Draft length of each n-gram drafter: its flag and default. `ngram-cache` has none of its own.
_NGRAM_LENGTH = {
    "ngram-simple": ("--spec-ngram-simple-size-m", 48),
    "ngram-map-k": ("--spec-ngram-map-k-size-m", 48),
    "ngram-map-k4v": ("--spec-ngram-map-k4v-size-m", 48),
    "ngram-mod": ("--spec-ngram-mod-n-max", 64),
}
_DRAFT_LENGTH = ("--spec-draft-n-max", 3)

_OPTIONS: Mapping[str, str] = {
    "spec_draft_n_min": "whole",
    "spec_draft_p_min": "number",
    "spec_draft_p_split": "number",
    "spec_ngram_simple_size_n": "whole",
    "spec_ngram_simple_min_hits": "whole",
    "spec_ngram_mod_n_match": "whole",
    "spec_ngram_mod_n_min": "whole",
    "spec_synth_rates": "text",
    "spec_synth_len": "number",
    "ngld": "text",
    "devd": "text",
    "ctkd": "text",
    "ctvd": "text",
}
_LOSSY = ("spec_synth_rates", "spec_synth_len")  # accepted by dice, not by the target: for experiments


def version_of(text: str | None) -> int | None:
    """The build; None for the newest one read."""
    return None if text is None else build(text)


def write(asked: Request) -> Written:
    """The command, and what reading it must give."""
    number = version_of(asked.version)
    renamed = number is None or number >= RENAMED
    notes = [] if number is not None else ["no build given: written with the flag names used since b8955"]
    kv = kv_word(asked.kv, "llama.cpp")
    target = ["-m" if asked.target.endswith(".gguf") else "-hf", asked.target]
    flags: list[str] = []
    if asked.speculates:
        flags = _new_flags(asked) if renamed else _old_flags(asked, notes)
        flags += _options(asked, renamed)
        _notes(asked, number, notes)
    speculative = shlex.join(flags)
    if asked.max_batch is not None:
        flags += ["-np", str(asked.max_batch)]
    if kv is not None:
        flags += ["-ctk", kv, "-ctv", kv]
    if asked.tp > 1:
        notes.append(f"llama.cpp spreads layers over the {asked.tp} GPUs it sees: no flag stands for tp here")
    if asked.data_parallel > 1:
        notes.append("one server is one replica: start data_parallel of them behind a router")
    extra = {} if renamed else {"spec_draft_n_min": 0, "spec_draft_p_min": 0}
    wanted = replace(meant(asked, kv=kv, max_batch=asked.max_batch, extra=extra), tp=1)
    command = shlex.join(["llama-server", *target, *flags])
    return Written(EngineConfig("llama.cpp", asked.version, command, speculative, None, tuple(notes)), wanted)


def _draft(asked: Request) -> list[str]:
    if asked.draft_model is None:
        return []
    return ["-md" if asked.draft_model.endswith(".gguf") else "-hfd", asked.draft_model]


def _new_flags(asked: Request) -> list[str]:
    flag = _NGRAM_LENGTH.get(asked.word, _DRAFT_LENGTH)[0]
    return [*_draft(asked), "--spec-type", asked.word, flag, str(asked.length)]


def _old_flags(asked: Request, notes: list[str]) -> list[str]:
    """The names of the builds before the renaming, which only draft models are written in."""
    if asked.word != "draft-simple":
        raise InputError("draft", asked.method, f"is written for llama.cpp builds from b{RENAMED} on only")
    notes.append("old builds stop drafting early by default (--draft-p-min): set to 0 here, so that k is k")
    return [*_draft(asked), "--draft-max", str(asked.length), "--draft-min", "0", "--draft-p-min", "0"]


def _options(asked: Request, renamed: bool) -> list[str]:
    for name in asked.options:
        if not renamed and name.startswith("spec_"):
            raise InputError("option", name, f"its flag exists from b{RENAMED} on")
    flags = flag_options.to_flags(asked.options, _OPTIONS)
    refuse_lossy(tuple(name for name in _LOSSY if name in asked.options), asked)
    return flags


def _notes(asked: Request, number: int | None, notes: list[str]) -> None:
    if asked.tree is not None:
        raise InputError(
            "tree", asked.tree, "llama.cpp drafts chains here; SGLang and TensorRT-LLM grow trees"
        )
    if asked.table is not None:
        notes.append(
            f"llama.cpp cannot change k with the batch: k stays {asked.length}. For {asked.table.describe()} "
            "run two servers"
        )
    if number is not None and asked.word not in ("draft-simple", "ngram-simple"):
        notes.append(
            f"{asked.word} came some time after b{RENAMED}: check --spec-type in `llama-server --help`"
        )


def read(text: str, version: str | None = None, files: Mapping[str, str] | None = None) -> Reading:
    """The flags, or a whole command.

    Raises
    ------
    InputError
        For a flag that this build removed or does not know yet, naming the one to use.
    """
    number = version_of(version)
    renamed = number is None or number >= RENAMED
    command = command_line.parse(text)
    for flag in command.flags:
        if renamed and flag in _REMOVED:
            raise InputError(flag, command.flags[flag], f"was removed in b{RENAMED}; use {_REMOVED[flag]}")
        if not renamed and flag.startswith(_NEW_PREFIXES):
            raise InputError(flag, command.flags[flag], f"is not known before b{RENAMED}")
    command = command_line.parse(text, aliases={**_ALIASES, **({} if renamed else _OLD_NAMES)})
    kv, values = command.flags.get("-ctk"), command.flags.get("-ctv")
    notes = [] if kv == values else [f"keys are cached as {kv or 'f16'}, values as {values or 'f16'}"]
    served = Reading(
        engine="llama.cpp",
        target=command.flags.get("-m") or command.flags.get("-hf"),
        kv=kv,
        max_batch=command.whole("-np"),
        notes=tuple(notes),
    )
    word = _type(command, notes)
    if word is None:
        return served
    if renamed:
        flag, default = _NGRAM_LENGTH.get(word, _DRAFT_LENGTH)
    else:
        flag, default = "--draft-max", 16
    k = command.whole(flag)
    if k is None:
        notes.append(f"k is this build's default for {flag}, {default} where it was read")
    elif k == 0:
        return served
    options = flag_options.from_command(command, _OPTIONS)
    return replace(
        served,
        word=word,
        method=method_of(word, "llama.cpp"),
        k=k if k is not None else (default if renamed else None),
        draft_model=command.flags.get("-md") or command.flags.get("-hfd"),
        options=options,
        lossy=tuple(name for name in _LOSSY if name in options),
        notes=tuple(notes),
    )


def _type(command: command_line.Command, notes: list[str]) -> str | None:
    """The drafter: the first of --spec-type that is one; a draft file alone means a draft model."""
    given = command.flags.get("--spec-type")
    if given is None:
        return "draft-simple" if {"-md", "-hfd"} & set(command.flags) else None
    words = given.split(",")
    for word in words:
        if word not in _TYPES:
            raise unknown_name("--spec-type", word, _TYPES)
    drafters = [word for word in words if word != "none"]
    if len(drafters) > 1:
        notes.append(f"{' and '.join(drafters[1:])} draft as well: k is the first one's")
    return drafters[0] if drafters else None
