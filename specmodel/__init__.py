"""specmodel: should this deployment speculate, with which draft, how deep, up to which batch, and for what gain?

The public names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specmodel.acceptance import Geometric, PerPosition, tokens_per_round
    from specmodel.algebra import derive
    from specmodel.answers.batches import breakeven
    from specmodel.answers.combination import compose
    from specmodel.answers.draft_length import optimize
    from specmodel.answers.draft_methods import drafts
    from specmodel.answers.footprint import memory
    from specmodel.answers.pass_time import step
    from specmodel.answers.schedule import policy
    from specmodel.answers.token_tree import tree
    from specmodel.calibration import calibrate
    from specmodel.catalog import device, devices, models
    from specmodel.deployment import Deployment, deploy
    from specmodel.errors import InputError
    from specmodel.evidence import alpha
    from specmodel.planner import plan
    from specmodel.sampling import exact
    from specmodel.validation import validate

_HOMES = {
    "Deployment": "deployment",
    "Geometric": "acceptance",
    "InputError": "errors",
    "PerPosition": "acceptance",
    "breakeven": "answers.batches",
    "deploy": "deployment",
    "device": "catalog",
    "devices": "catalog",
    "memory": "answers.footprint",
    "drafts": "answers.draft_methods",
    "tree": "answers.token_tree",
    "exact": "sampling",
    "derive": "algebra",
    "validate": "validation",
    "calibrate": "calibration",
    "models": "catalog",
    "alpha": "evidence",
    "compose": "answers.combination",
    "policy": "answers.schedule",
    "plan": "planner",
    "optimize": "answers.draft_length",
    "step": "answers.pass_time",
    "tokens_per_round": "acceptance",
}

__all__ = [
    "Deployment",
    "Geometric",
    "InputError",
    "PerPosition",
    "alpha",
    "breakeven",
    "calibrate",
    "compose",
    "deploy",
    "derive",
    "device",
    "devices",
    "drafts",
    "exact",
    "memory",
    "models",
    "optimize",
    "plan",
    "policy",
    "step",
    "tokens_per_round",
    "tree",
    "validate",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"specmodel.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'specmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
