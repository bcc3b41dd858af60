"""`specmodel plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specmodel.cli import options
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.planner import DraftRequest, PlanRequest, PlanResult


def plan(
    file: Annotated[
        str | None, typer.Argument(help="A deployment file (TOML or JSON), or a saved plan to run again.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Catalogue id, alias or path of the target.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device id.")] = None,
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: Annotated[int | None, options.integer("--tp", "Tensor-parallel GPUs.")] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", help="A draft, repeatable; NAME=a1,a2,... carries its own acceptance."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", help="The model behind draft-model, hybrid and pipelined.")
    ] = None,
    draft_checkpoint: Annotated[
        str | None, typer.Option("--draft-checkpoint", help="The draft's name in the engine's configuration.")
    ] = None,
    alpha: options.Alpha = None,
    acceptance: options.AcceptanceList = None,
    acceptance_from: options.AcceptanceFrom = None,
    conditional: options.Conditional = False,
    extend: options.Extend = False,
    batch: Annotated[str | None, typer.Option("--batch", help="Batches, separated by commas.")] = None,
    ctx: Annotated[str | None, typer.Option("--ctx", help="Contexts, separated by commas.")] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="vllm, vllm-captured, sglang, tensorrt-llm, llama-cpp, ideal."),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="Release or build that the configuration is for.")
    ] = None,
    max_k: Annotated[
        int | None,
        options.integer("--max-k", "The longest draft considered."),
    ] = None,
    fidelity: options.FidelityName = None,
    memory_fraction: options.MemoryFraction = None,
    kv_reread: options.KvReread = None,
    calibration: options.CalibrationFile = None,
    isl: Annotated[
        int | None,
        options.integer("--isl", "Prompt tokens, for whole requests."),
    ] = None,
    osl: Annotated[
        int | None,
        options.integer("--osl", "Output tokens, with --isl."),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Allow options that change what the target says.")
    ] = False,
    save: Annotated[
        str | None, typer.Option("--save", help="Write the plan as JSON; `plan FILE` runs it again.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Decide: with which draft, how deep, up to which batch; with the engine's configuration."""
    from specmodel import planner

    base = planner.PlanRequest()
    if file is not None:
        from specmodel.planning.files import read_request

        base = read_request(file)
    given: dict[str, Any] = {
        "model": model,
        "device": device,
        "weights": weights,
        "kv": kv,
        "tp": tp,
        "engine": engine,
        "engine_version": engine_version,
        "max_k": max_k,
        "fidelity": fidelity,
        "memory_fraction": memory_fraction,
        "kv_reread": kv_reread,
        "calibration": calibration,
        "isl": isl,
        "osl": osl,
        "lossy": lossy or None,
        "batch": None if batch is None else options.wholes("batch", batch),
        "context": None if ctx is None else options.wholes("ctx", ctx),
    }
    request = replace(base, **{name: value for name, value in given.items() if value is not None})
    shared = {
        "alpha": alpha,
        "acceptance": None
        if acceptance is None
        else tuple(options.acceptance_list("acceptance", acceptance, conditional=conditional)),
        "acceptance_from": acceptance_from,
        "conditional": conditional or None,
        "extend": extend or None,
        "model": draft_model,
        "checkpoint": draft_checkpoint,
    }
    request = replace(request, drafts=_drafts(request, draft, shared))
    result = planner.plan(request)
    if save is not None:
        try:
            Path(save).write_text(result.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError("save", save, f"cannot be written: {error.strerror}") from None
    if as_json:
        typer.echo(result.to_json())
        return
    _show(result)


def _drafts(
    request: PlanRequest, named: list[str] | None, shared: dict[str, Any]
) -> tuple[DraftRequest, ...]:
    """The drafts asked for: those named, or the file's; what was given for all of them goes to each."""
    from specmodel.planner import DraftRequest

    drafts = request.drafts
    if named:
        split = [one.partition("=") for one in named]
        drafts = tuple(
            DraftRequest(name, tuple(options.acceptance_list("draft", rates)) if rates else None)
            for name, _, rates in split
        )
    common = {name: value for name, value in shared.items() if value is not None}
    laws = {"alpha", "acceptance", "acceptance_from"} & common.keys()
    if len(laws) > 1:
        first = sorted(laws)[0]
        raise InputError(first, common[first], f"give only one of {', '.join(sorted(laws))}")
    if laws and len(drafts) > 1:
        first = next(iter(laws))
        raise InputError(
            first, common[first], "several drafts are named: give each its own, as NAME=a1,a2,..."
        )
    return tuple(replace(one, **common) for one in drafts)


def _show(result: PlanResult) -> None:
    from specmodel.cli import render

    def text(value: float | None, layout: str) -> str:
        return "-" if value is None else f"{value:{layout}}"

    render.listing(
        f"plan for {result.inputs['model']} on {result.inputs['tp']} x {result.inputs['device']}, "
        f"engine {result.inputs['engine']}",
        ("ctx", "batch", "k", "speedup", "range", "ms/token", "tokens/s", "bound"),
        [
            (
                (
                    f"{cell.context:,}",
                    f"{cell.batch:,}",
                    "-" if cell.k is None else str(cell.k),
                    text(cell.speedup, ".2f") + ("x" if cell.speedup is not None else ""),
                    "-" if cell.low is None else f"{cell.low:.2f}-{cell.high:.2f}",
                    text(cell.tpot_ms, ".2f"),
                    text(cell.tokens_per_second, ",.0f"),
                    cell.bound or cell.reason,
                ),
                render.LOSS if cell.k == 0 or cell.k is None else "",
            )
            for cell in sorted(result.by_batch, key=lambda cell: (cell.context, cell.batch))
        ],
    )
    if len(result.drafts) > 1:
        render.listing(
            "drafts considered",
            ("draft", "best in cells", "mean regret", "best speedup", "law"),
            [
                (
                    (
                        one.draft,
                        str(one.best_in_cells),
                        f"{one.mean_regret:.1%}",
                        f"{one.best_speedup:.2f}x",
                        "kept" if one.exact else "LOSSY",
                    ),
                    "",
                )
                for one in result.drafts
            ],
        )
    ends = [cell.end_to_end_speedup for cell in result.by_batch if cell.end_to_end_speedup is not None]
    if ends:
        render.say(f"whole requests, prefill included: {min(ends):.2f}x to {max(ends):.2f}x")
    if result.engine_config is not None:
        config = result.engine_config
        version = config.version or "the newest form known"
        lost = (
            ""
            if result.schedule_regret is None
            else f"; its few levels lose {result.schedule_regret:.1%} on average"
        )
        render.say(f"configuration for {config.engine} ({version}){lost}:", "bold")
        typer.echo(config.command)
        if config.config_file is not None:
            render.say(f"{config.config_file}:", "bold")
            typer.echo(config.config)
    render.closing(
        why=result.why, assumptions=result.assumptions, trust=result.trust, warnings=result.warnings
    )
