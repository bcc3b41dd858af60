"""The draft of a published run as a Drafter: what a method's name and a draft's name say, in papers' own words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from specmodel.architecture import Architecture
from specmodel.drafters import heads as draft_heads
from specmodel.drafters.base import Draft
from specmodel.drafters.drafter import Drafter
from specmodel.drafters.heads import DraftHead
from specmodel.drafters.sources import DraftModel, EarlyExit, Lookahead, Lookup, Retrieval, SparseSelf, Suffix
from specmodel.drafters.trained import Eagle, Eagle2, Eagle3, Medusa, MtpModules, Parallel
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.passes import Split, draft_layout
from specmodel.published import names as published_names
from specmodel.readers import drafts as head_readers

DEFAULT_BUDGET = {"snapkv": 2049, "streamingllm": 512}
"""Cached tokens of a sparse draft where none is printed: the two that MagicDec prints (arXiv:2408.11049, Table 6)."""
DFLASH_LAYERS = 5
SPEC_BENCH_DRAFT = 68e6
# k, verified nodes (root counted) and branching of methods whose tables leave them out: the methods' own defaults.
DEFAULT_SHAPES: tuple[tuple[str, tuple[int, int | None, int]], ...] = (
    (r"eagle-?2|samd", (6, 60, 10)),
    (r"eagle-?3", (7, 60, 10)),
    (r"eagle", (5, 26, 4)),
    (r"medusa|hydra", (4, 64, 1)),
    (r"recycling", (6, 80, 1)),
    (r"rest\b|retrieval", (10, 64, 1)),
    (r"pld|lookup|n-?gram", (10, None, 1)),
    (r"lookahead|jacobi", (4, None, 1)),
    (r"sps|draft model", (5, None, 1)),
)


@dataclass(frozen=True, slots=True)
class NamedDraft:
    """A draft as a table gives it. `k` and `nodes` (root counted) may be missing."""

    method: str
    draft: str
    k: int | None
    nodes: int | None

    @property
    def words(self) -> str:
        return f"{self.method} {self.draft}".casefold()


def drafter(named: NamedDraft, target: Model, split: Split) -> tuple[Drafter, int, tuple[str, ...]]:
    """The drafter, its k, and what had to be assumed.

    Raises
    ------
    InputError
        For a method that is not modelled, an unknown draft model, or a k that neither the table nor the method gives.
    """
    said: list[str] = []
    k, nodes, branching = _shape(named, said)
    for pattern, build in _METHODS:
        if re.search(pattern, named.words):
            found = build(named, target, said)
            break
    else:
        found = _draft_model(named, target, said)
    tree = None if nodes is None else max(1, nodes - 1)
    if isinstance(found.method, Parallel):
        branching = 1  # all positions in one pass, whatever shape is verified
    shaped = replace(found, nodes=tree, branching=branching)
    return _laid_out(shaped, split, said), k, tuple(said)


def _shape(named: NamedDraft, said: list[str]) -> tuple[int, int | None, int]:
    """k, nodes and branching, filled up with the method's own defaults."""
    k, nodes = named.k, named.nodes
    default = next((shape for pattern, shape in DEFAULT_SHAPES if re.search(pattern, named.words)), None)
    branching = 1
    if k is None:
        if default is None:
            raise InputError("k", "", "not given, and the method has no usual one")
        k, usual, branching = default
        nodes = usual if nodes is None else nodes
        said.append(f"k not given: taken as {k}" + (f" with {nodes} nodes" if nodes else ""))
    stated = re.search(r"topk\s*=?\s*(\d+)", named.words) or re.search(
        r"(\d+)\s*[x×]\s*\d+", named.method.casefold()
    )
    if stated:
        branching = int(stated[1])
    elif nodes is not None and nodes - 1 > k and branching == 1:
        branching = max(1, round(nodes / k))
    return k, nodes, branching


def _laid_out(found: Drafter, split: Split, said: list[str]) -> Drafter:
    """The same with as many GPUs as its heads divide over."""
    for gpus in range(split.tp, 0, -1):
        tried = replace(found, tp=gpus)
        try:
            tried.launches(1, batch=1, context=1, split=draft_layout(split, gpus))
        except InputError:
            if gpus > 1:
                continue
            raise
        if gpus == split.tp:
            return found
        said.append(f"draft on {gpus} GPU{'s' * (gpus > 1)}: its heads do not divide by {split.tp}")
        return tried
    return found


def _sparse_self(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    return Drafter(SparseSelf(budget=_budget(named, said) or DEFAULT_BUDGET["streamingllm"]), target)


def _budget(named: NamedDraft, said: list[str]) -> int | None:
    """Cached tokens that the draft keeps; None where it keeps all."""
    printed = re.search(r"budget\s*(?:of|=)?\s*(\d+)", named.words)
    if printed:
        return int(printed[1])
    for word, tokens in DEFAULT_BUDGET.items():
        if word in named.words:
            said.append(f"KV budget of the draft not given: taken as {tokens}")
            return tokens
    return None


def _eagle(kind: str, method: Callable[[], Draft]) -> Callable[[NamedDraft, Model, list[str]], Drafter]:
    def build(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
        head = head_readers.for_target(kind, target.architecture)
        said += [note for note in head.notes if note.startswith("family rule")]
        return Drafter(method(), target, head)

    return build


def _parallel_model(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    found = _draft_model(named, target, said)
    return replace(found, method=Parallel())


def _dflash(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    try:
        head: DraftHead = head_readers.for_target("dflash", target.architecture)
    except InputError:
        said.append(f"no block drafter of {target.name} is known: {DFLASH_LAYERS} layers of its shape")
        layer = draft_heads.eagle3_for(target.architecture).layers[0][1]
        head = draft_heads.dflash(
            f"block drafter for {target.name}",
            layer,
            target.architecture.hidden,
            target.architecture.vocabulary,
            layers=DFLASH_LAYERS,
            captured_layers=DFLASH_LAYERS,
        )
    return Drafter(Parallel(), target, head)


def _medusa(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    if "hydra" in named.words:
        said.append("Hydra heads counted as Medusa heads")
    shape = target.architecture
    head = draft_heads.medusa(f"medusa for {target.name}", shape.hidden, shape.vocabulary, heads=4)
    return Drafter(Medusa(), target, head)


def _mtp(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    if target.architecture.mtp is None:
        raise InputError("draft", named.draft, f"no MTP module of {target.name} is known")
    return Drafter(MtpModules(), target, target.architecture.mtp)


def _mlp_speculator(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    return Drafter(Medusa(), target, head_readers.for_target("mlp_speculator", target.architecture))


def _early_exit(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    stated = re.search(r"(?:exit|layer)s?\s*[=:]?\s*(\d+)|(\d+)\s*layers", named.words)
    if stated is None:
        raise InputError("method", named.method, "the layer it leaves the target at is not given")
    layer = int(stated[1] or stated[2])
    return Drafter(EarlyExit(exit_layer=layer, layers=target.architecture.layer_count), target)


def _without_model(method: Callable[[], Draft]) -> Callable[[NamedDraft, Model, list[str]], Drafter]:
    return lambda named, target, said: Drafter(method(), target)


def _draft_model(named: NamedDraft, target: Model, said: list[str]) -> Drafter:
    try:
        small, read = published_names.model(named.draft)
        said += read
    except InputError:
        small = _by_size(named, target.architecture)
        said.append(f"draft {named.draft!r}: taken as {small.name}")
    budget = _budget(named, said) if "full" not in named.words else None
    return Drafter(DraftModel(architecture=small.architecture), target, small, kv_budget=budget)


def _by_size(named: NamedDraft, target: Architecture) -> Model:
    """A model about as large as the draft's name states."""
    size = published_names.size_in_name(named.draft)
    if size is None and re.search(r"\bsps\b", named.words):
        size = SPEC_BENCH_DRAFT
    if size is None:
        raise InputError("draft", named.draft, "no catalogue entry of these shapes is known")
    near = published_names.near_in_size(size, target.vocabulary)
    if near is None:
        raise InputError("draft", named.draft, f"no model of about {size / 1e9:g} B is known")
    return near


# The first pattern that occurs in method and draft decides; what fits none is a draft model.
_METHODS: tuple[tuple[str, Callable[[NamedDraft, Model, list[str]], Drafter]], ...] = (
    (r"\bself\b.*(sparse|snapkv|streamingllm|budget)|magicdec", _sparse_self),
    (r"\bpard\b", _parallel_model),
    (r"p-?eagle|parallel eagle", _eagle("eagle3", Parallel)),
    (r"dflash|dfly|dspark|block[- ]diffusion|parallel draft", _dflash),
    (r"eagle-?\s?3|eagle3", _eagle("eagle3", Eagle3)),
    (r"eagle-?\s?2|samd", _eagle("eagle", Eagle2)),
    (r"eagle|\bhass\b", _eagle("eagle", Eagle)),
    (r"medusa|hydra", _medusa),
    (r"\bmtp\b|nextn|multi-token", _mtp),
    (r"mlp[- ]?speculator", _mlp_speculator),
    (r"suffix", _without_model(Suffix)),
    (r"\brest\b|retrieval|recycling", _without_model(Retrieval)),
    (r"lookahead|jacobi", _without_model(Lookahead)),
    (r"n-?gram|prompt lookup|\bpld\b|lookup", _without_model(Lookup)),
    (r"early[- ]exit|layerskip|kangaroo|\bswift\b|layer[- ]skip", _early_exit),
)
