"""A draft as a person names it -> a Drafter: `eagle3`, `mtp`, `lookup`, `llama-3.2-1b`, `sparse-self:512`, a path."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specmodel import catalog
from specmodel.drafters.base import Draft
from specmodel.drafters.combined import Hybrid, Pipelined
from specmodel.drafters.drafter import Drafter
from specmodel.drafters.heads import DraftHead
from specmodel.drafters.sources import DraftModel
from specmodel.drafting import METHODS, draft
from specmodel.errors import InputError, unknown_name
from specmodel.model import Model
from specmodel.readers import drafts as head_readers

if TYPE_CHECKING:
    from pathlib import Path

# What may follow the colon, and which field of the method it sets.
ARGUMENTS = {"sparse-self": "budget", "early-exit": "exit_layer"}
HEADS = {
    "eagle": "eagle",
    "eagle2": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "medusa-typical": "medusa",
}
ALIASES = {
    "ngram": "lookup",
    "prompt-lookup": "lookup",
    "dflash": "parallel",
    "p-eagle": "parallel",
    "pard": "parallel",
    "streamingllm": "sparse-self",
    "snapkv": "sparse-self",
    "magicdec": "sparse-self",
}
EXAMPLES = "a method such as eagle3, mtp, lookup or sparse-self:512, a model id, or a path"


def drafter(name: str | Path, target: Model, *, tp: int | None = None, model: str | None = None) -> Drafter:
    """What a person means by a draft.

    Parameters
    ----------
    name : str or Path
        A method (with `method:number` where it takes one), the id or path of a draft model, or the path of a head.
    target : Model
        The model it drafts for.
    tp : int, optional
        GPUs of the draft; as many as the target's by default.
    model : str, optional
        The draft model behind `draft-model`, `hybrid` and `pipelined`, by id or path.

    Raises
    ------
    InputError
        For a name that is neither, a head or module that this target lacks, or an argument out of range.
    """
    text = str(name).strip()
    word, _, argument = text.partition(":")
    word = ALIASES.get(word.casefold(), word.casefold())
    if word in METHODS:
        return _by_method(word, argument, text, target, tp, model)
    found = _file_or_model(text, target)
    if isinstance(found, DraftHead):
        method = draft({"eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa"}.get(found.kind, "parallel"))
        return Drafter(method, target, found, tp)
    return Drafter(_model_method(found), target, found, tp)


def _by_method(
    word: str, argument: str, text: str, target: Model, tp: int | None, model: str | None
) -> Drafter:
    method = draft(word)
    if argument:
        if word not in ARGUMENTS:
            raise InputError("draft", text, f"{word} takes no argument")
        try:
            method = replace(method, **{ARGUMENTS[word]: int(argument)})
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                "draft", text, f"after the colon comes a whole number ({ARGUMENTS[word]})"
            ) from None
    if word in HEADS:
        kind: Any = HEADS[word]
        return Drafter(method, target, head_readers.for_target(kind, target.architecture), tp)
    if word == "parallel":
        return Drafter(method, target, head_readers.for_target("dflash", target.architecture), tp)
    if word == "mtp":
        if target.architecture.mtp is None:
            raise InputError("draft", text, f"{target.name} has no MTP modules")
        return Drafter(method, target, target.architecture.mtp, tp)
    if word in ("draft-model", "hybrid", "pipelined"):
        if model is None:
            raise InputError("draft", text, "needs a draft model: name it by id or path")
        small = catalog.model(model)
        if not isinstance(small, Model):
            raise InputError("draft", model, "is given as totals: name an architecture")
        inner = _model_method(small)
        if isinstance(method, Hybrid):
            return Drafter(replace(method, miss=inner), target, small, tp)
        if isinstance(method, Pipelined):
            return Drafter(replace(method, draft=inner), target, small, tp)
        return Drafter(inner, target, small, tp)
    return Drafter(method, target, None, tp)


def _model_method(small: Model) -> Draft:
    return DraftModel(architecture=small.architecture)


def _file_or_model(text: str, target: Model) -> Model | DraftHead:
    """A head's config, or a model of its own."""
    from pathlib import Path

    path = Path(text)
    folder = path / "config.json" if path.is_dir() else path
    if folder.is_file() and folder.suffix == ".json":
        from specmodel.readers import json_file

        if head_readers.kind_of(json_file.read_object(folder, field="draft")) is not None:
            return head_readers.load(text, target.architecture)
    try:
        found = catalog.model(text)
    except InputError as error:
        if error.field != "model":
            raise
        if folder.exists() or "/" in text:
            raise InputError("draft", text, error.allowed) from None
        raise unknown_name("draft", text, (*METHODS, *ALIASES, *catalog.models())) from None
    if not isinstance(found, Model):
        raise InputError("draft", text, f"is given as totals; give {EXAMPLES}")
    return found
