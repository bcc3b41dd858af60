"""What is asked of a writer, what it returns, and what a reader finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from specmodel import checks
from specmodel.acceptance import MAX_K
from specmodel.errors import InputError
from specmodel.export.schedule import MAX_LEVELS, Schedule
from specmodel.export.words import (
    NEEDS_CHECKPOINT,
    NO_CHECKPOINT,
    engine_id,
    kv_word,
    method_id,
    require_word,
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A draft tree that the engine grows by itself: `depth` levels, the best `top_k` at each, `nodes` verified.

    `nodes` counts drafts: the root, which the target has already chosen, is not among them.
    """

    depth: int
    top_k: int
    nodes: int

    def __post_init__(self) -> None:
        checks.whole("tree depth", self.depth, low=1, high=MAX_K)
        checks.whole("tree top-k", self.top_k, low=1, high=MAX_K)
        grown = self.top_k + (self.depth - 1) * self.top_k**2
        checks.whole("tree nodes", self.nodes, low=self.depth, high=grown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A deployment to be written down.

    Attributes
    ----------
    engine : str
        vllm, sglang, tensorrt-llm or llama.cpp.
    target, draft_model : str
        Hub names or paths; a draft checkpoint only where the method has one.
    method : str
        Draft method by this project's names or the usual ones ("ngram", "prompt lookup").
    version : str or None
        Release (0.33.0, 1.3.0rc8) or llama.cpp build (b8955); None: the newest form read.
    k : int or None
        Draft tokens per round wherever no schedule applies; by default the schedule's largest, or the tree's depth.
    schedule : Schedule or None
        k by batch, at most four levels. Engines without such a table get k and a note.
    tree : Tree or None
        Instead of a chain.
    tp, data_parallel : int
        GPUs per replica, replicas of one server.
    kv : str or None
        KV format by this project's names.
    max_batch : int or None
        The largest batch the server should run.
    options : mapping
        Keys of the engine's own, by its names (dashes or underscores).
    lossy : bool
        Whether options may change what the target says (typical or relaxed acceptance, thresholds below 1).

    Raises
    ------
    InputError
        Naming the field that is not allowed.
    """

    engine: str
    target: str
    method: str
    k: int | None = None
    draft_model: str | None = None
    version: str | None = None
    schedule: Schedule | None = None
    tree: Tree | None = None
    tp: int = 1
    kv: str | None = None
    data_parallel: int = 1
    max_batch: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    lossy: bool = False

    def __post_init__(self) -> None:
        self._set("engine", engine_id(self.engine))
        self._set("method", method_id(self.method))
        require_word(self.method, self.engine)
        kv_word(self.kv, self.engine)
        check_name("model", self.target)
        if self.draft_model is not None:
            check_name("draft model", self.draft_model)
        if self.tree is not None:
            self._settle_tree(self.tree)
        if self.schedule is not None:
            self._settle_schedule(self.schedule)
        if self.k is None:
            raise InputError("k", None, "needs a draft length, a schedule or a tree")
        self._set("k", checks.whole("k", self.k, high=MAX_K))
        if self.speculates and self.draft_model is None and self.method in NEEDS_CHECKPOINT:
            raise InputError("draft model", None, f"{self.method} needs a draft checkpoint")
        if self.draft_model is not None and self.method in NO_CHECKPOINT:
            raise InputError("draft model", self.draft_model, f"{self.method} has no draft checkpoint")
        if self.max_batch is not None:
            checks.whole("max_batch", self.max_batch, low=1)
        checks.whole("tp", self.tp, low=1, high=4096)
        checks.whole("data_parallel", self.data_parallel, low=1, high=65536)
        names = {name.replace("-", "_").strip("_"): value for name, value in self.options.items()}
        for name in names:
            check_name("option", name)
        self._set("options", MappingProxyType(names))

    def _settle_tree(self, tree: Tree) -> None:
        if self.schedule is not None:
            raise InputError("schedule", self.schedule.describe(), "no engine changes a tree with the batch")
        if self.k not in (None, tree.depth):
            raise InputError("k", self.k, f"the tree has depth {tree.depth}")
        self._set("k", tree.depth)
        if tree.top_k == 1:  # a tree without branches is a chain
            self._set("tree", None)

    def _settle_schedule(self, schedule: Schedule) -> None:
        if len(schedule.levels) > MAX_LEVELS:
            raise InputError(
                "schedule",
                schedule.describe(),
                f"{len(schedule.levels)} levels; at most {MAX_LEVELS}: reduce_levels finds the best ones",
            )
        if self.k == 0 < schedule.max_k:
            raise InputError("k", 0, f"the schedule drafts up to {schedule.max_k}")
        if schedule.max_k == 0:
            self._set("k", 0)
            self._set("schedule", None)
        elif self.k is None or len(schedule.levels) == 1:
            self._set("k", schedule.max_k)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def length(self) -> int:
        """k, once settled."""
        return self.k or 0

    @property
    def speculates(self) -> bool:
        return self.length > 0

    @property
    def word(self) -> str:
        """The engine's word for the method."""
        return require_word(self.method, self.engine)

    @property
    def table(self) -> Schedule | None:
        """The schedule, if k changes with the batch."""
        return self.schedule if self.schedule is not None and len(self.schedule.levels) > 1 else None

    @property
    def planned_batch(self) -> int | None:
        """The largest batch that the deployment should reach, as far as anyone said."""
        if self.max_batch is not None or self.schedule is None:
            return self.max_batch
        return self.schedule.horizon


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A configuration in an engine's own syntax.

    Attributes
    ----------
    engine, version : str, str or None
        Which engine and release it is written for; None is the newest form read.
    command : str
        The whole shell command, quoted.
    config : str
        The speculative part: JSON, YAML or flags; empty when nothing is to be speculated.
    config_file : str or None
        The name under which `command` expects `config` as a file; None if the command holds it.
    notes : tuple of str
        What was left out, what the engine ignores, what to check.
    """

    engine: str
    version: str | None
    command: str
    config: str
    config_file: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a configuration says.

    Attributes
    ----------
    word, method : str or None
        The engine's word, and the project's name for it (None: only the engine knows it).
    k : int or None
        Draft tokens per round at most, or depth of a tree; 0 without speculation, None where the engine decides.
    lossy : tuple of str
        Settings under which the output no longer follows the target's law.
    """

    engine: str
    word: str | None = None
    method: str | None = None
    k: int | None = 0
    draft_model: str | None = None
    tree: Tree | None = None
    schedule: Schedule | None = None
    target: str | None = None
    tp: int = 1
    kv: str | None = None
    max_batch: int | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def differences(self, other: Reading) -> list[str]:
        """What two readings disagree on; the bound of a last level and the notes do not count."""
        found = [name for name in _COMPARED if getattr(self, name) != getattr(other, name)]
        mine = None if self.schedule is None else self.schedule.steps
        theirs = None if other.schedule is None else other.schedule.steps
        return found if mine == theirs else [*found, "schedule"]


_COMPARED = ("engine", "word", "k", "draft_model", "tree", "target", "tp", "kv", "max_batch", "options")


@dataclass(frozen=True, slots=True)
class Written:
    """A writer's work before it is read back: the configuration and what its reader must find in it."""

    config: EngineConfig
    meant: Reading


def meant(
    asked: Request,
    *,
    kv: str | None,
    schedule: Schedule | None = None,
    max_batch: int | None = None,
    extra: Mapping[str, object] | None = None,
) -> Reading:
    """What reading a configuration must give, if it carries `schedule` and, beside its options, the `extra` ones."""
    served = Reading(engine=asked.engine, target=asked.target, tp=asked.tp, kv=kv, max_batch=max_batch)
    if not asked.speculates:
        return served
    return replace(
        served,
        word=asked.word,
        k=schedule.max_k if schedule else asked.length,
        draft_model=asked.draft_model,
        tree=asked.tree,
        schedule=schedule,
        options={**(extra or {}), **asked.options},
    )


def check_name(field_name: str, text: str) -> None:
    """A name that can stand in a command line: printable, not empty, not taken for a flag."""
    if not text.strip() or text != text.strip() or text.startswith("-") or not text.isprintable():
        raise InputError(field_name, text, "must be printable text, not empty and not starting with '-'")


def is_number(value: object) -> bool:
    """A finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def refuse_lossy(found: tuple[str, ...], asked: Request) -> None:
    """Settings that change the output's law are written only when asked for by name."""
    if found and not asked.lossy:
        raise InputError("option", found[0], "changes what the model says; allow it with lossy=True")
