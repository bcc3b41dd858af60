"""`specmodel alpha`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specmodel import checks
from specmodel.cli import options
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.evidence import BestDepth, Estimate, SampleSize


def alpha(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Engine logs, metrics, benchmark or answer files, tables of rounds; - reads a pipe."
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Split by a label such as workload or source.")
    ] = None,
    k: Annotated[
        int | None,
        options.integer("--k", "Drafts per round, where the file does not say."),
    ] = None,
    convention: Annotated[
        str | None, typer.Option("--convention", help="survival or conditional, where the file does not say.")
    ] = None,
    draft_cost: Annotated[
        float | None, options.real("--draft-cost", "One draft pass over one plain step; 0.15 by default.")
    ] = None,
    level: Annotated[
        float,
        options.real("--level", "Coverage of the intervals."),
    ] = 0.95,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Go on although more than 1 % of the records are unreadable.")
    ] = False,
    separate: Annotated[
        bool,
        typer.Option(
            "--separate", help="Metrics files of different servers: add them, do not difference them."
        ),
    ] = False,
    backend: Annotated[
        str | None, typer.Option("--backend", help="duckdb or spark: aggregate tables larger than memory.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="No file: how much to measure for --half-width at --k and --alpha.")
    ] = False,
    half_width: Annotated[
        float | None, options.real("--half-width", "With --plan: wanted half-width of alpha; 0.02.")
    ] = None,
    expected: Annotated[
        float | None, options.real("--alpha", "With --plan: the alpha expected; 0.8.")
    ] = None,
    icc: Annotated[
        float | None, options.real("--icc", "With --plan: correlation of tests within a request; 0.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print acceptance with intervals from what an engine wrote, or how much to measure (--plan)."""
    from specmodel import evidence

    files_only: dict[str, object] = {
        "files": files or None,
        "by": by,
        "convention": convention,
        "backend": backend,
        "draft cost": draft_cost,
        "lenient": lenient or None,
        "separate": separate or None,
    }
    plan_only: dict[str, object] = {"half width": half_width, "alpha": expected, "icc": icc}
    for field, value in (files_only if plan else plan_only).items():
        if value is not None:
            raise InputError(field, value, f"changes nothing {'with' if plan else 'without'} --plan")
    if plan:
        if half_width is not None:  # below a millionth no measurement of this world would do
            checks.real("half width", half_width, low=1e-6, high=0.5)
        size = evidence.sample_size(
            0.02 if half_width is None else half_width,
            4 if k is None else k,
            0.8 if expected is None else expected,
            0.0 if icc is None else icc,
            level=level,
        )
        _show_plan(size, as_json)
        return
    cost = 0.15 if draft_cost is None else draft_cost
    if not files:
        raise InputError("files", None, "give at least one file, - for a pipe, or --plan")
    with _progress() as report:
        found = evidence.read(
            files,
            k=k,
            convention=convention,
            lenient=lenient,
            separate=separate,
            backend=backend,
            progress=report,
        )
    parts = {"": found} if by is None else found.by(by)
    estimates = {label: evidence.alpha(part, level=level) for label, part in parts.items()}
    best = {label: _best(one, cost) for label, one in estimates.items()}
    if as_json:
        typer.echo(json.dumps(_content(estimates, best, by), indent=2, allow_nan=False))
        return
    for label, one in estimates.items():
        _show(one, best[label], label if by is None else f"{by} {label or '(none)'}", cost)


def _best(estimate: Estimate, draft_cost: float) -> BestDepth | None:
    from specmodel import evidence
    from specmodel.rounds import round_cost

    if estimate.alpha.value is None or not estimate.by_position:
        return None
    return evidence.best_depth(estimate, lambda k: float(round_cost(k, draft_cost=draft_cost)))


def _content(
    estimates: dict[str, Estimate], best: dict[str, BestDepth | None], by: str | None
) -> dict[str, Any]:
    from specmodel.result import SCHEMA, plain

    def one(label: str) -> dict[str, Any]:
        depth = best[label]
        return {**estimates[label].to_dict(), "best_k": None if depth is None else depth.to_dict()}

    if by is None:
        shown: Any = plain(one(""))
        return {"schema": SCHEMA, **shown}
    groups = [{"label": label, **one(label)} for label in estimates]
    return {"schema": SCHEMA, "by": by, "groups": plain(groups)}


def _show(estimate: Estimate, best: BestDepth | None, label: str, draft_cost: float) -> None:
    from specmodel.cli import render

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    rounds = "an unstated number of" if estimate.rounds is None else f"{estimate.rounds:,.0f}"
    render.listing(
        f"{label or 'acceptance'}: {rounds} rounds, {estimate.level:.0%} intervals",
        ("position", "survival", "low", "high", "conditional", "low", "high"),
        [
            (
                (
                    str(position),
                    share(survival),
                    *(share(end) for end in estimate.survival_interval[position - 1]),
                    share(estimate.conditional[position - 1]),
                    *(share(end) for end in estimate.conditional_interval[position - 1]),
                ),
                "",
            )
            for position, survival in enumerate(estimate.survival, start=1)
        ],
    )
    found = estimate.alpha
    if found.value is None:
        render.say("alpha: not determined by this file", render.LOSS)
    else:
        render.say(
            f"alpha {found.value:.4f} ({share(found.low)} to {share(found.high)}), over tested tokens",
            render.BEST,
        )
    tokens = estimate.tokens_per_round.to_dict()
    known = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}" for name, value in tokens.items() if value is not None
    )
    render.say(f"tokens per round: {known}")
    if estimate.lesson.value is not None:
        render.say(
            f"accepted / drafted {estimate.lesson.value:.4f} is not alpha: {estimate.lesson_why}", "dim"
        )
    if best is not None:
        span = "" if best.k_low is None else f" ({best.k_low} to {best.k_high} within the interval)"
        lost = "" if best.regret is None else f"; being wrong costs {best.regret:.1%} on average"
        render.say(f"best k at draft cost {draft_cost:g}: {best.k}{span}, {best.speedup:.3f}x{lost}")
    render.closing(
        assumptions=(f"convention: {estimate.convention}", f"intervals: {estimate.interval}"),
        warnings=(*estimate.warnings, *estimate.dropped),
    )


def _show_plan(size: SampleSize, as_json: bool) -> None:
    from specmodel.result import SCHEMA, plain

    if as_json:
        shown: Any = plain(size.to_dict())
        typer.echo(json.dumps({"schema": SCHEMA, **shown}, indent=2, allow_nan=False))
        return
    from specmodel.cli import render

    render.listing(
        f"to know alpha {size.alpha:g} to within {size.half_width:g} at k {size.k}",
        ("measure", "number"),
        [
            (("tested tokens, if independent", f"{size.independent_tests:,}"), ""),
            (("design effect of clustering", f"{size.design_effect:.2f}"), ""),
            (("tested tokens", f"{size.tested_tokens:,}"), render.BEST),
            (("rounds", f"{size.rounds:,}"), render.BEST),
            (("requests", f"{size.requests:,}"), render.BEST),
            (("drafted tokens", f"{size.drafted_tokens:,}"), ""),
            (
                (
                    "tested of drafted, per round",
                    f"{size.tested_per_round:.2f} of {size.drafted_per_round:g}",
                ),
                "",
            ),
            (
                ("requests if drafted counted as tested (too few)", f"{size.requests_if_drafted:,}"),
                render.LOSS,
            ),
        ],
    )
    render.closing(warnings=size.warnings)


def _progress() -> Any:
    """A progress bar on standard error once reading takes over a second."""
    from specmodel.cli import render

    return render.reading_bar()
