"""The options that several commands share, each with its help line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
        raise typer.BadParameter(f"{text!r}: must be a number") from None


def whole(text: str) -> int:
    """A whole number; the library checks its range."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: must be a whole number") from None


def real(flag: str, help: str) -> Any:
    """An option that takes a number."""
    return typer.Option(flag, parser=number, metavar="NUMBER", help=help)


def integer(flag: str, help: str) -> Any:
    """An option that takes a whole number."""
    return typer.Option(flag, parser=whole, metavar="WHOLE", help=help)


Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Alpha = Annotated[
    float | None,
    real("--alpha", "Chance that a tested draft token is accepted, 0 to 1."),
]
AcceptanceList = Annotated[
    str | None,
    typer.Option(
        "--acceptance",
        help="Instead of alpha: a1,a2,... share of rounds accepting position 1, 2, ...; or a mean length, 2.4@3.",
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
    real("--draft-cost", "One draft pass over one plain target step, >= 0."),
]
Charge = Annotated[
    str, typer.Option("--charge", help="How draft time enters: none, scaled x(1+kc), added +kc plain steps.")
]
K = Annotated[str, typer.Option("--k", help="Draft tokens per round: a number, or best.")]
MaxK = Annotated[int, integer("--max-k", "The longest draft considered.")]
Model = Annotated[
    str, typer.Option("--model", help="Catalogue id, alias, hub id, config.json, checkpoint folder or .gguf.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Device id (see `specmodel devices`) or TOML file; h100-sxm by default."),
]
Bandwidth = Annotated[
    str | None,
    typer.Option("--bandwidth", help="Memory bandwidth, as 3.35 TB/s, instead of the device's."),
]
Flops = Annotated[
    str | None,
    typer.Option("--flops", help="Dense 16-bit peak, as 989 TFLOP/s, instead of the device's."),
]
DeviceMemory = Annotated[
    str | None, typer.Option("--memory", help="Memory of one device, as 80 GiB, instead of the device's.")
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", help="Weight format (bf16, fp8, int4-g128, nvfp4, ...) instead of the model's own."
    ),
]
Kv = Annotated[str | None, typer.Option("--kv", help="KV-cache format instead of the model's own.")]
Tp = Annotated[int, integer("--tp", "Tensor-parallel GPUs.")]
Batch = Annotated[int, integer("--batch", "Sequences in one step.")]
Ctx = Annotated[int, integer("--ctx", "Tokens already cached per sequence.")]
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
    real("--kv-reread", "Times the cache is read in a verification pass instead of the engine's own."),
]
Ep = Annotated[
    int,
    integer("--ep", "Expert-parallel GPUs among the tensor-parallel ones."),
]
MemoryFraction = Annotated[
    float | None,
    real("--memory-fraction", "Share of device memory that may be used."),
]
KvBytes = Annotated[
    float | None,
    real("--kv-bytes-per-token", "KV bytes per token instead of the counted ones."),
]
AttentionFlops = Annotated[
    bool, typer.Option("--attention-flops", help="Textbook only: count attention arithmetic too.")
]
FlopsFraction = Annotated[
    float | None,
    real("--flops-fraction", "Textbook only: share of peak taken as reachable."),
]


Draft = Annotated[
    str | None,
    typer.Option(
        "--draft", help="A method (eagle3, mtp, lookup, sparse-self:512, ...), a model id, or a path."
    ),
]
DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="The model behind draft-model, hybrid and pipelined.")
]
DraftTp = Annotated[int | None, integer("--draft-tp", "GPUs of the draft; all of the target's by default.")]
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


def acceptance_list(field: str, text: str, *, conditional: bool = False) -> list[float]:
    """Shares of rounds that accept position 1, 2, ...: as listed, or behind a mean acceptance length "LENGTH@K".

    What most sources print is the length alone; it stands for the geometric chain of K drafts that yields it.
    """
    if "@" not in text:
        found = numbers(field, text)
        if len(found) == 1 and found[0] > 1.0:
            raise InputError(
                field,
                text,
                "must be from 0 to 1; a mean acceptance length is given as LENGTH@K, K drafts per round",
            )
        return found
    from specmodel.evidence import alpha_from_tokens_per_round

    if conditional:
        raise InputError("conditional", True, f"says how to read a list, and --{field} gives a mean length")
    length, _, depth = text.partition("@")
    tokens, k = numbers(field, length), wholes(field, depth)
    if len(tokens) != 1 or len(k) != 1 or not 1 <= k[0] <= 64:
        raise InputError(field, text, "must be one length, an @, and 1 to 64 drafts per round")
    try:
        alpha = alpha_from_tokens_per_round(tokens[0], k[0])
    except InputError as error:
        raise InputError(field, text, f"the length {error.allowed}") from None
    return [alpha**position for position in range(1, k[0] + 1)]


def wholes(field: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a comma-separated list."""
    found = []
    for part in text.split(","):
        try:
            found.append(int(part))
        except ValueError:
            raise InputError(field, part.strip(), "must be whole numbers separated by commas") from None
    return tuple(found)


def law(
    alpha: Alpha = None,
    acceptance: AcceptanceList = None,
    acceptance_from: AcceptanceFrom = None,
    conditional: Conditional = False,
    extend: Extend = False,
) -> Acceptance | None:
    """A bundle: the acceptance that a person gave in one of its three forms; None where in none."""
    given = {"alpha": alpha, "acceptance": acceptance, "acceptance from": acceptance_from}
    forms = [form for form, value in given.items() if value is not None]
    if len(forms) > 1:
        raise InputError(forms[0], given[forms[0]], f"give it, or --{forms[1].replace(' ', '-')}, not both")
    if conditional and acceptance is None:
        raise InputError("conditional", True, "says how to read --acceptance, which is not given")
    if extend and acceptance is None and acceptance_from is None:
        raise InputError("extend", True, "goes on past --acceptance, which is not given")
    if acceptance_from is not None:
        return _measured(acceptance_from, extend)
    if not forms:
        return None
    listed = (
        None if acceptance is None else acceptance_list("acceptance", acceptance, conditional=conditional)
    )
    return rounds.acceptance_from(alpha, listed, conditional=conditional, extend=extend)


def _measured(file: str, extend: bool) -> Acceptance:
    """The acceptance that an engine's file shows."""
    from specmodel import evidence

    found = evidence.alpha(evidence.read(file), describe=False).acceptance()
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
