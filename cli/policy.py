"""`specmodel policy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specmodel import checks, rounds
from specmodel.cli import options
from specmodel.cli.bundles import bundled
from specmodel.cli.setting import describe
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.acceptance import Acceptance
    from specmodel.deployment import Deployment


@bundled(setting=describe, acceptance=options.law)
def policy(
    setting: Deployment,
    acceptance: Acceptance | None,
    ctx: Annotated[str, typer.Option("--ctx", help="Contexts of the traffic, separated by commas.")] = "1024",
    draft_cost: options.DraftCost = 0.15,
    charge: options.Charge = "added",
    max_k: options.MaxK = rounds.DEFAULT_MAX_K,
    objective: Annotated[
        str, typer.Option("--objective", help="What the batch should serve: latency, throughput or cost.")
    ] = "throughput",
    tpot_limit_ms: Annotated[
        float | None,
        options.real("--tpot-limit-ms", "Most time per output token allowed."),
    ] = None,
    gpu_price_per_hour: Annotated[
        float | None,
        options.real("--gpu-price-per-hour", "Price of one GPU hour."),
    ] = None,
    cost_of_zero: Annotated[
        float,
        options.real("--cost-of-zero", "What k 0 costs, as a share of a step."),
    ] = 0.0,
    switch_ms: Annotated[
        float,
        options.real("--switch-ms", "What a change of depth costs."),
    ] = 0.0,
    dwell_s: Annotated[
        float | None,
        options.real("--dwell-s", "How long a batch stays: gives hysteresis."),
    ] = None,
    k: Annotated[
        int,
        options.integer("--k", "Depth of the tiers and of the sessions."),
    ] = 4,
    batch: Annotated[
        int | None,
        options.integer("--batch", "A batch to share fairly."),
    ] = None,
    sessions: Annotated[
        int | None,
        options.integer("--sessions", "Sessions of it that want to speculate."),
    ] = None,
    day: Annotated[
        str | None, typer.Option("--day", help="Batches through a day, separated by commas.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the draft length for every batch and context, what it loses, and how idle arithmetic is shared."""
    from specmodel.answers import schedule

    for name, given, above in (
        ("tpot limit ms", tpot_limit_ms, True),
        ("gpu price per hour", gpu_price_per_hour, False),
        ("cost of zero", cost_of_zero, False),
        ("switch ms", switch_ms, False),
        ("dwell s", dwell_s, True),
    ):
        if given is not None:
            checks.real(name, given, low=0.0, above=above)
    if switch_ms > 0.0 and dwell_s is None:
        raise InputError("switch ms", switch_ms, "is weighed against --dwell-s, which is not given")
    for field, value, other in (("batch", batch, sessions), ("sessions", sessions, batch)):
        if value is not None and other is None:
            needed = "--sessions" if field == "batch" else "--batch"
            raise InputError(field, value, f"is shared fairly with {needed}, which is not given")

    result = schedule.policy(
        setting,
        contexts=options.wholes("ctx", ctx),
        acceptance=acceptance,
        draft_cost=draft_cost,
        charge=charge,
        max_k=max_k,
        objective=objective,
        tpot_limit_ms=tpot_limit_ms,
        gpu_price_per_hour=gpu_price_per_hour,
        cost_of_zero=cost_of_zero,
        switch_seconds=switch_ms / 1e3,
        dwell_seconds=dwell_s,
        k=k,
        batch=batch,
        sessions=sessions,
        day=None if day is None else options.wholes("day", day),
    )
    if as_json:
        typer.echo(result.to_json())
        return
    from specmodel.cli import render

    render.listing(
        f"draft length by batch for {setting.name} on {setting.device.id}",
        ("batches", "k"),
        [
            ((f"{level.from_:,}-{level.to:,}", str(level.k)), render.LOSS if level.k == 0 else "")
            for level in result.levels
        ],
    )
    render.say(f"regret of this schedule: at most {result.regret:.1%}, {result.mean_regret:.1%} on average")
    render.listing(
        "fixed lengths beside it",
        ("k", "largest regret", "mean regret"),
        [
            ((str(one.k), f"{one.largest_regret:.1%}", f"{one.mean_regret:.1%}"), "")
            for one in result.fixed[:9]
        ],
    )
    if result.idle is not None:
        tiers = ", ".join(f"{run.from_:,}-{run.to:,} {run.tier}" for run in result.idle.tiers)
        render.say(
            f"idle budget at batch 1: {result.idle.budget_at_1:,.0f} positions; tiers at k {result.idle.k}: {tiers}"
        )
    if result.fairness is not None:
        shared = result.fairness
        render.listing(
            f"{shared.sessions} sessions of batch {shared.batch} want k {shared.k}; "
            f"{shared.headroom:,.0f} positions are idle",
            ("rule", "full", "dropped", "tokens per step", "batch speedup"),
            [
                (
                    (
                        rule.rule,
                        str(rule.full),
                        str(rule.dropped),
                        f"{rule.tokens_per_step:.2f}",
                        f"{rule.batch_speedup:.3f}x",
                    ),
                    render.LOSS if rule.batch_speedup < 1.0 else "",
                )
                for rule in shared.rules
            ],
        )
    if result.day is not None:
        render.say(
            f"the day: {result.day.adaptive_gain:.3f}x adapting, {result.day.fixed_gain:.3f}x at a fixed k {result.day.fixed_k}"
        )
    render.closing(
        why=result.why, assumptions=result.assumptions, trust=result.trust, warnings=result.warnings
    )
