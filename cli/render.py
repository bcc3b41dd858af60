"""Tables and sentences for people. The only place that knows Rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

if TYPE_CHECKING:
    from specmodel.answers.batches import BreakevenResult
    from specmodel.answers.draft_length import OptimizeResult
    from specmodel.answers.pass_time import StepResult
    from specmodel.datasheets import Datasheet
    from specmodel.model_list import ModelRow

BEST, LOSS = "bold green", "red"
LEFT = (
    "",
    "bound",
    "notes",
    "source",
    "remark",
    "constants",
    "acceptance",
)  # columns of words; numbers go right
WIDE = 60  # columns of a terminal from which on the first of a table is never folded
ROWS_AROUND_BEST = 6  # how far past the flat band the table of depths goes on


def optimize(result: OptimizeResult) -> None:
    """Depths around the best, the answer, why, and what was assumed."""
    console = _Screen()
    top, band = result.best, result.flat_band
    console.print(Text("draft length", style="bold"))
    table = _table(("k", "tokens per round", "round cost", "speedup", ""))
    last = min(len(result.by_k) - 1, max(band.k_max, top.k) + ROWS_AROUND_BEST)
    for row in result.by_k[: last + 1]:
        style = BEST if row.k == top.k else LOSS if row.speedup < 1.0 else ""
        mark = "best" if row.k == top.k else "flat" if band.k_min <= row.k <= band.k_max else ""
        table.add_row(
            str(row.k),
            f"{row.tokens_per_round:.4f}",
            f"{row.round_cost:.3f}",
            f"{row.speedup:.3f}x",
            mark,
            style=style,
        )
    console.print(table)
    chosen = "best k" if result.inputs["k"] is None else "k"
    console.print(
        Text(
            f"{chosen} {top.k}: {top.tokens_per_round:.4f} tokens per round, {top.speedup:.3f}x"
            f"{_beside(result.low, result.high)}",
            style=BEST,
        )
    )
    console.print(Text(f"flat band within {band.within:.0%}: k {band.k_min}-{band.k_max}"))
    if result.pays_from_alpha is not None:
        console.print(Text(f"one draft token pays from alpha {result.pays_from_alpha:.3g}"))
    if result.ceiling is not None:
        console.print(Text(f"ceiling of tokens per round: {result.ceiling:.4g}"))
    _closing(console, result.why, result.assumptions, result.trust, result.warnings)


def breakeven(result: BreakevenResult) -> None:
    """Intervals, a few batches, the terms at the memory limit."""
    console = _Screen()
    console.print(
        Text(
            f"does speculation pay? {result.inputs['model']} on {result.inputs['device']}, context {result.context:,}",
            style="bold",
        )
    )
    table = _table(("batch", "k", "tokens per round", "round cost", "speedup", "80 % range", ""))
    for row in result.by_batch:
        pays = row.speedup > 1.0
        table.add_row(
            f"{row.batch:,}",
            str(row.k),
            f"{row.tokens_per_round:.3f}",
            f"{row.round_cost:.3f}",
            f"{row.speedup:.3f}x",
            _span(row.low, row.high),
            "pays" if pays else "loses",
            style="" if pays else LOSS,
        )
    console.print(table)
    for interval in result.intervals:
        verb = "pays" if interval.pays else "does not pay"
        console.print(
            Text(
                f"batch {interval.from_:,}-{interval.to:,}: {verb}", style="green" if interval.pays else LOSS
            )
        )
    if result.break_even_batch is None:
        late = "" if result.low is None else f"; from batch {result.low:.2f} at the slow end of the range"
        console.print(Text(f"no break-even batch within memory{late}"))
    else:
        console.print(
            Text(
                f"break-even batch {result.break_even_batch:.2f}{_beside(result.low, result.high)}, "
                f"first losing batch {result.first_losing_batch}, memory limit {result.memory_limit_batch:,}",
                style="bold",
            )
        )
    if len(result.k_by_batch) > 1:
        levels = ", ".join(f"{run.from_:,}-{run.to:,}: k {run.k}" for run in result.k_by_batch[:12])
        console.print(Text(f"best k by batch: {levels}"))
    _closing(console, result.why, result.assumptions, result.trust, result.warnings)


def step(result: StepResult) -> None:
    """The kernels of one pass and what binds each."""
    console = _Screen()
    inputs = result.inputs
    console.print(
        Text(
            f"{_pass_words(inputs)} of {inputs['model']} on {inputs['device']}: batch {inputs['batch']:,}, "
            f"context {inputs['context']:,}",
            style="bold",
        )
    )
    table = _table(("kernel", "launches", "us", "memory us", "compute us", "fixed us", "bound"))
    for row in result.kernels:
        table.add_row(
            row.name,
            str(row.count),
            *(
                f"{value * 1e6:,.1f}"
                for value in (row.seconds, row.memory_seconds, row.compute_seconds, row.fixed_seconds)
            ),
            row.bound,
        )
    console.print(table)
    console.print(
        Text(
            f"{result.seconds * 1e3:.3f} ms{_milliseconds(result.low, result.high)}, "
            f"{result.ratio_to_plain:.3f} plain steps of {result.plain_seconds * 1e3:.3f} ms",
            style="bold",
        )
    )
    if result.draft_cost is not None:
        console.print(Text(f"draft cost: one pass takes {result.draft_cost:.4f} of a plain step", style=BEST))
    if result.fixed_seconds > 0.0:
        console.print(Text(f"fixed times, whatever the size: {result.fixed_share:.1%} of it"))
    widest = (
        ""
        if result.largest_free_width is None
        else f"; widest pass that stays memory-bound: {result.largest_free_width}"
    )
    console.print(
        Text(
            f"arithmetic idle: {result.idle_share_of_peak:.2%} of peak; "
            f"ridge {result.ridge_flop_per_byte:.0f} FLOP/byte, this pass {result.flop_per_byte:.2f}{widest}"
        )
    )
    _closing(console, result.why, result.assumptions, result.trust, result.warnings)


def _pass_words(inputs: Mapping[str, object]) -> str:
    if inputs["draft"] is not None:
        return f"draft passes of a round of k {inputs['k']}, {inputs['draft']},"
    return f"{inputs['pass']} pass, width {inputs['width']},"


def _milliseconds(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low * 1e3:.3f} to {high * 1e3:.3f})"


def devices(listed: Iterable[Datasheet]) -> None:
    """Every device, its dense peaks and how many remarks it carries."""
    console = _Screen()
    console.print(Text("devices (dense peaks)", style="bold"))
    table = _table(("id", "memory GB", "TB/s", "bf16 TFLOP/s", "fp8", "fp4", "notes"))
    for sheet in listed:
        bf16 = sheet.value("peak_bf16") or sheet.value("peak_fp16")
        table.add_row(
            sheet.id,
            _scaled(sheet.value("memory"), 1e9, ".1f"),
            _scaled(sheet.value("bandwidth"), 1e12, ".3g"),
            _scaled(bf16, 1e12, ",.0f"),
            _scaled(sheet.value("peak_fp8"), 1e12, ",.0f"),
            _scaled(sheet.value("peak_fp4"), 1e12, ",.0f"),
            f"{len(sheet.warnings)} to mind" if sheet.warnings else "",
        )
    console.print(table)
    console.print(Text("one device with the source of every figure: specmodel devices ID", style="dim"))


def device(sheet: Datasheet) -> None:
    """One device with the source of each figure."""
    console = _Screen()
    console.print(Text(f"{sheet.id}: {sheet.name}", style="bold"))
    table = _table(("figure", "value", "kind", "source"))
    for name, figure in sheet.figures.items():
        table.add_row(name, f"{figure.value:.6g} {figure.unit}", figure.kind, figure.source)
    console.print(table)
    for remark in sheet.warnings:
        console.print(Text(f"note: {remark}", style="yellow"))


def models(rows: Sequence[ModelRow]) -> None:
    """Models, what follows from their shape, and how well that is checked. A bounded cache has windows or states only."""
    console = _Screen()
    console.print(Text("models", style="bold"))
    table = _table(("id", "params B", "active B", "GFLOP/tok", "KV KiB/tok", "GB", "notes"))
    for row in rows:
        table.add_row(
            row.id,
            _scaled(row.parameters, 1e9, ",.2f"),
            _scaled(row.active_parameters, 1e9, ",.2f"),
            _scaled(row.flops_per_token, 1e9, ",.1f"),
            "bounded" if row.kv_bytes_per_token == 0.0 else _scaled(row.kv_bytes_per_token, 1024, ",.1f"),
            _scaled(row.weight_bytes, 1e9, ",.1f"),
            row.confidence,
        )
    console.print(table)
    if len(rows) == 1:
        for note in (f"source: {rows[0].source}", *rows[0].notes):
            console.print(Text(note, style="dim"))


def listing(title: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[str], str]]) -> None:
    """A titled table; each row is its cells and a style, "" or one of BEST and LOSS."""
    console = _Screen()
    console.print(Text(title, style="bold"))
    table = _table(columns)
    for cells, style in rows:
        table.add_row(*cells, style=style)
    console.print(table)


def say(text: str, style: str = "") -> None:
    """One sentence."""
    _Screen().print(Text(text, style=style))


def closing(
    *, why: str = "", assumptions: Sequence[str] = (), trust: str = "", warnings: Sequence[str] = ()
) -> None:
    """What ends every answer: why, what was assumed, how far to trust it, what to mind."""
    _closing(_Screen(), why, assumptions, trust, warnings)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A sign of life on standard error through seconds of arithmetic that cannot say how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


@contextmanager
def reading_bar() -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error for a long read, shown once it has taken over a second."""
    started = monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("reading", total=None, visible=False)

        def report(done: int, whole: int | None) -> None:
            shown.update(task, completed=done, total=whole, visible=monotonic() - started > 1.0)

        yield report


@contextmanager
def measuring_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error through the points of a measurement."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("measuring", total=None)

        def report(done: int, whole: int, point: str) -> None:
            shown.update(task, completed=done, total=whole, description=point[:40])

        yield report


def branches(label: str, children: Mapping[int, Sequence[tuple[int, str]]], at: int = -1) -> None:
    """A drawn tree: for every node (-1 is the root) its children as (node, label)."""
    drawn = Tree(label)

    def grow(branch: Tree, node: int) -> None:
        for child, text in children.get(node, ()):
            grow(branch.add(text), child)

    grow(drawn, at)
    _Screen().print(drawn)


def _span(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"


def _beside(low: float | None, high: float | None) -> str:
    """The 10-90 % range in brackets, where there is one."""
    if low is None and high is None:
        return ""
    ends = ["no end in memory" if end is None else f"{end:.2f}" for end in (low, high)]
    return f" ({ends[0]} to {ends[1]})"


def _scaled(value: float | None, unit: float, layout: str) -> str:
    return "-" if value is None else f"{value / unit:{layout}}"


class _Screen(Console):
    """Standard output; a reader that left is for `main` to deal with."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _table(columns: Sequence[str]) -> Table:
    """A table without frames: what is too wide for the terminal is folded, never cut."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    whole_names = _Screen().width >= WIDE
    for index, column in enumerate(columns):
        table.add_column(
            column,
            justify="left" if index == 0 or column in LEFT else "right",
            overflow="fold",
            no_wrap=whole_names and index == 0,
        )
    return table


def _closing(
    console: Console, why: str, assumptions: Sequence[str], trust: str, warnings: Sequence[str]
) -> None:
    if why:
        console.print(Text(f"why: {why}"))
    if assumptions:
        console.print(Text("assumed: " + "; ".join(assumptions), style="dim"))
    if trust:
        console.print(Text(f"trust: {trust}", style="dim"))
    for warning in warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
