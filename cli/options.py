"""The options that several commands share, each with its help line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel import rounds
from specmodel.acceptance import Geometric, PerPosition
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance


def number(text: str) -> float:
    """A real number; the library checks its range."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def whole(text: str) -> int:
    """A whole number; the library checks its range."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Alpha = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        parser=number,
        metavar="NUMBER",
        help="Chance that a tested draft token is accepted, 0 to 1.",
    ),
]
AcceptanceList = Annotated[
    str | None,
    typer.Option(
        "--acceptance", help="Instead of alpha: a1,a2,... share of rounds accepting position 1, 2, ..."
    ),
]
AcceptanceFrom = Annotated[
    str | None,
    typer.Option(
        "--acceptance-from",
        help="Instead of alpha: an engine's log, metrics or benchmark file; - reads a pipe.",
    ),
]
Conditional = Annotated[
    bool,
    typer.Option("--conditional", help="The list holds rates given that all earlier drafts were accepted."),
]
Extend = Annotated[
    bool, typer.Option("--extend", help="Go on past the list with its last conditional rate (an assumption).")
]
DraftCost = Annotated[
    float,
    typer.Option(
        "--draft-cost",
        parser=number,
        metavar="NUMBER",
        help="One draft pass over one plain target step, >= 0.",
    ),
]
Charge = Annotated[
    str, typer.Option("--charge", help="How draft time enters: none, scaled x(1+kc), added +kc plain steps.")
]
K = Annotated[str, typer.Option("--k", help="Draft tokens per round: a number, or best.")]
MaxK = Annotated[
    int, typer.Option("--max-k", parser=whole, metavar="WHOLE", help="The longest draft considered.")
]
Model = Annotated[
    str, typer.Option("--model", help="Catalogue id, alias, config.json, checkpoint folder, or lecture-7b.")
]
Device = Annotated[str, typer.Option("--device", help="Device id; see `specmodel devices`.")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", help="Weight format (bf16, fp8, int4-g128, nvfp4, ...) instead of the model's own."
    ),
]
Kv = Annotated[str | None, typer.Option("--kv", help="KV-cache format instead of the model's own.")]
Tp = Annotated[int, typer.Option("--tp", parser=whole, metavar="WHOLE", help="Tensor-parallel GPUs.")]
Batch = Annotated[int, typer.Option("--batch", parser=whole, metavar="WHOLE", help="Sequences in one step.")]
Ctx = Annotated[
    int, typer.Option("--ctx", parser=whole, metavar="WHOLE", help="Tokens already cached per sequence.")
]
FidelityName = Annotated[
    str | None,
    typer.Option("--fidelity", help="textbook, datasheet or calibrated (default: the best there is)."),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", help="Whose fixed times are charged per pass and per round; ideal charges none."
    ),
]
KvReread = Annotated[
    float | None,
    typer.Option(
        "--kv-reread",
        parser=number,
        metavar="NUMBER",
        help="Times the cache is read in a verification pass instead of the engine's own.",
    ),
]
Ep = Annotated[
    int,
    typer.Option(
        "--ep", parser=whole, metavar="WHOLE", help="Expert-parallel GPUs among the tensor-parallel ones."
    ),
]
MemoryFraction = Annotated[
    float | None,
    typer.Option(
        "--memory-fraction", parser=number, metavar="NUMBER", help="Share of device memory that may be used."
    ),
]
KvBytes = Annotated[
    float | None,
    typer.Option(
        "--kv-bytes-per-token",
        parser=number,
        metavar="NUMBER",
        help="KV bytes per token instead of the counted ones.",
    ),
]
AttentionFlops = Annotated[
    bool, typer.Option("--attention-flops", help="Textbook only: count attention arithmetic too.")
]
FlopsFraction = Annotated[
    float | None,
    typer.Option(
        "--flops-fraction",
        parser=number,
        metavar="NUMBER",
        help="Textbook only: share of peak taken as reachable.",
    ),
]


Draft = Annotated[
    str | None,
    typer.Option(
        "--draft", help="A method (eagle3, mtp, lookup, sparse-self:512, ...), a model id, or a path."
    ),
]
CalibrationFile = Annotated[
    str | None,
    typer.Option(
        "--calibration", help="Constants that `specmodel calibrate` wrote, preferred to the shipped."
    ),
]


def numbers(field: str, text: str) -> list[float]:
    """The numbers of a comma-separated list."""
    found = []
    for part in text.split(","):
        try:
            found.append(float(part))
        except ValueError:
            raise InputError(field, part.strip(), "must be numbers separated by commas") from None
    return found


def wholes(field: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a comma-separated list."""
    found = []
    for part in text.split(","):
        try:
            found.append(int(part))
        except ValueError:
            raise InputError(field, part.strip(), "must be whole numbers separated by commas") from None
    return tuple(found)


def rates(text: str | None) -> list[float] | None:
    """The acceptance list, where one was given."""
    return None if text is None else numbers("acceptance", text)


def law(
    alpha: float | None,
    acceptance: str | None,
    acceptance_from: str | None,
    *,
    conditional: bool = False,
    extend: bool = False,
) -> Acceptance | None:
    """The acceptance that a person gave in one of its three forms; None where in none."""
    if acceptance_from is None:
        if alpha is None and acceptance is None:
            return None
        return rounds.acceptance_from(alpha, rates(acceptance), conditional=conditional, extend=extend)
    for field, value in (("alpha", alpha), ("acceptance", acceptance)):
        if value is not None:
            raise InputError(field, value, "give it, or --acceptance-from, not both")
    from specmodel import evidence

    found = evidence.alpha(evidence.read(acceptance_from), describe=False).acceptance()
    if extend and not isinstance(found, Geometric):
        return PerPosition(found.rates, "geometric")
    return found


def depth(text: str) -> int | None:
    """A draft length, or None for `best`."""
    if text.strip().lower() == "best":
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError("k", text, "must be a whole number >= 0, or best") from None
