"""What can be changed about a deployment, each as one lever: formats, cache, context, GPUs, speculation.

A lever turns one setting into another, so any set of them, in any order, gives one deployment that is timed like any
other. Speculation is the last: it keeps its draft's seconds while the target's step changes under it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from specmodel import checks
from specmodel.acceptance import MAX_K, expected_tokens_to
from specmodel.deployment import MAX_CONTEXT, Deployment
from specmodel.deployment import with_cache as with_cache
from specmodel.errors import InputError
from specmodel.formats import number_format
from specmodel.model import Model, Totals
from specmodel.passes import forward_pass
from specmodel.rounds import CHARGES, DEFAULT_MAX_K, round_cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specmodel.acceptance import Acceptance
    from specmodel.units import Numeric

Term = Literal["weights", "cache", "gpus", "speculation"]
TOTALS_BITS = 16.0  # the format that a model given as totals is taken to be in


@dataclass(frozen=True, slots=True)
class Setting:
    """A deployment and the cached tokens per sequence that it is asked about."""

    deployment: Deployment
    context: int

    def plain_seconds(self, batch: Numeric) -> Numeric:
        """A plain step, engine time included. [s]"""
        return self.deployment.plain_seconds(batch, self.context)

    def weight_bytes_read(self, batch: float) -> float:
        """Weights that a plain step reads on one GPU. [B]"""
        kernels = forward_pass(
            self.deployment.model, batch=batch, context=self.context, split=self.deployment.split
        )
        return float(sum(kernel.count * kernel.weight_bytes for kernel in kernels))

    @property
    def cache_bytes(self) -> float:
        """Cache and constant state of one sequence, as if on one GPU. [B]"""
        model = self.deployment.model
        if isinstance(model, Totals):
            return model.kv_bytes_per_token * self.context
        return float(model.kv_bytes(self.context)) + model.state_bytes()


@dataclass(frozen=True, slots=True)
class Lever:
    """One change to a setting, and the term of the step that it acts on."""

    name: str
    term: Term
    change: Callable[[Setting], Setting]


def weight_format(name: str) -> Lever:
    """Weights in another number format. Totals are taken to be 16-bit, and scaled."""
    stored = number_format(name, "weights")

    def change(setting: Setting) -> Setting:
        model = setting.deployment.model
        if isinstance(model, Totals):
            changed = replace(model, weight_bytes=model.weight_bytes * stored.bits / TOTALS_BITS)
            return _with_model(setting, changed)
        return _with_model(setting, model.with_precision(weights=stored.name))

    return Lever(f"{stored.name} weights", "weights", change)


def weight_bytes(size: float) -> Lever:
    """Weights of a given size, for a model given as totals; an architecture is counted from a format. [B]"""
    checks.real("weight bytes", size, low=0.0, above=True)

    def change(setting: Setting) -> Setting:
        model = setting.deployment.model
        if not isinstance(model, Totals):
            raise InputError("weight bytes", size, f"{model.name} has an architecture: give a weight format")
        return _with_model(setting, replace(model, weight_bytes=size))

    return Lever(f"{size / 1e9:.4g} GB of weights", "weights", change)


def kv_format(name: str) -> Lever:
    """The cache in another number format."""
    stored = number_format(name, "kv")

    def change(setting: Setting) -> Setting:
        model = setting.deployment.model
        if isinstance(model, Totals):
            smaller = model.kv_bytes_per_token * stored.bits / TOTALS_BITS
            return _with_model(setting, replace(model, kv_bytes_per_token=smaller))
        return _with_model(setting, model.with_precision(kv=stored.name))

    return Lever(f"{stored.name} KV", "cache", change)


def kv_compression(bytes_per_token: float) -> Lever:
    """A cache of so many bytes per token, all layers together. [B]"""
    checks.real("compressed kv bytes per token", bytes_per_token, low=1.0, high=1e9)

    def change(setting: Setting) -> Setting:
        return _with_model(setting, with_cache(setting.deployment.model, bytes_per_token))

    return Lever(f"{bytes_per_token / 1024:.4g} KiB of KV per token", "cache", change)


def longer_context(tokens: int) -> Lever:
    """Another context than the baseline's: a change of load, beside the changes of the deployment."""
    checks.whole("ctx", tokens, low=1, high=MAX_CONTEXT)
    return Lever(f"context {tokens:,}", "cache", lambda setting: replace(setting, context=tokens))


def tensor_parallel(tp: int) -> Lever:
    """The target over so many GPUs. A draft given by its cost stays where it was."""
    checks.whole("tp", tp, low=1, high=1024)

    def change(setting: Setting) -> Setting:
        split = replace(setting.deployment.split, tp=tp)
        return replace(setting, deployment=replace(setting.deployment, split=split))

    return Lever(f"tensor parallelism over {tp}", "gpus", change)


def _with_model(setting: Setting, model: Model | Totals) -> Setting:
    return replace(setting, deployment=replace(setting.deployment, model=model))


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculation as a lever.

    Attributes
    ----------
    k : int or None
        None takes the best at each batch.
    draft_cost : float
        One draft pass over one plain step of the *baseline* model on its own GPUs, at the same batch and context.
    stated_cost : float or None
        The same over a plain step of the changed target. None recomputes it: the draft keeps its seconds.
    draft_seconds : callable or None
        Seconds of a draft pass at (batch, context), where they are known; then no cost is needed.
    """

    law: Acceptance
    k: int | None = None
    draft_cost: float = 0.15
    charge: str = "added"
    max_k: int = DEFAULT_MAX_K
    stated_cost: float | None = None
    draft_seconds: Callable[[Numeric, Numeric], Numeric] | None = None

    def __post_init__(self) -> None:
        checks.choice("charge", self.charge, CHARGES)
        checks.real("draft cost", self.draft_cost, low=0.0)
        checks.whole("max_k", self.max_k, high=MAX_K)
        if self.k is not None:
            checks.whole("k", self.k, high=MAX_K)
        if self.stated_cost is not None:
            checks.real("draft cost after", self.stated_cost, low=0.0)

    @property
    def depths(self) -> NDArray[np.int64]:
        """The depths to choose from: the one asked for, or 0 and all to the last allowed."""
        if self.k is not None:
            return np.array([self.k])
        last = self.max_k if self.law.max_k is None else min(self.max_k, self.law.max_k)
        return np.arange(last + 1)


def kept_draft_cost(draft_cost: Numeric, plain_before: Numeric, plain_after: Numeric) -> Numeric:
    """Draft cost after the target's plain step changed and the draft did not: its seconds stay, their unit moves.

    A draft of 0.05 of a step that reads 16 GB, once the target went to 4.5 GB:

    >>> f"{kept_draft_cost(0.05, 16.0, 4.5):.4f}"
    '0.1778'
    """
    checks.all_within("draft cost", draft_cost, low=0.0)
    checks.all_within("plain step before", plain_before, low=0.0, above=True)
    return draft_cost * plain_before / checks.all_within("plain step after", plain_after, low=0.0, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculating(Deployment):
    """A deployment whose draft did not change with it: its draft cost is its own at every batch and context."""

    before: Deployment
    speculation: Speculation

    @classmethod
    def on(cls, deployment: Deployment, before: Deployment, speculation: Speculation) -> Speculating:
        """`deployment` with the draft of `speculation`, whose cost is counted in plain steps of `before`."""
        values = {field.name: getattr(deployment, field.name) for field in fields(Deployment)}
        return cls(**values, before=before, speculation=speculation)

    def cost_of_draft(self, batch: Numeric, context: Numeric) -> Numeric:
        """One draft pass over one plain step of this deployment."""
        given = self.speculation
        if given.draft_seconds is not None:
            return given.draft_seconds(batch, context) / self.plain_seconds(batch, context)
        changed = (self.model, self.split) != (self.before.model, self.before.split)
        if given.stated_cost is not None and changed:
            return given.stated_cost
        if not changed:
            return given.draft_cost
        return kept_draft_cost(
            given.draft_cost, self.before.plain_seconds(batch, context), self.plain_seconds(batch, context)
        )

    def speedups(
        self,
        tokens: np.ndarray,
        *,
        k: Numeric,
        batch: Numeric,
        context: Numeric,
        draft_cost: float,
        charge: str,
    ) -> Numeric:
        """As for any deployment, at the draft cost of this one; the one handed in is not used."""
        depths = np.asarray(k)
        ratio = self.verify_seconds(batch, context, depths + 1) / self.plain_seconds(batch, context)
        cost = round_cost(
            depths, draft_cost=self.cost_of_draft(batch, context), verify_ratio=ratio, charge=charge
        )
        yielded: Numeric = tokens[depths]
        return yielded / cost

    def best(self, batch: Numeric, context: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Depth and speedup at each batch: of the k asked for, or of the best of all allowed, 0 among them."""
        depths, rows = self.speculation.depths, np.atleast_1d(np.asarray(batch, dtype=float))
        gains = np.asarray(
            self.speedups(
                np.array(expected_tokens_to(self.speculation.law, int(depths[-1]))),
                k=depths[:, None],
                batch=rows[None, :],
                context=context,
                draft_cost=self.speculation.draft_cost,
                charge=self.speculation.charge,
            )
        )
        chosen = gains.argmax(axis=0)
        return depths[chosen], gains[chosen, np.arange(rows.size)]
