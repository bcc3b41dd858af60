"""What a measurement says at a glance, and the measured machine as a device for the calculator."""

from __future__ import annotations

import json
from collections.abc import Mapping

from specmodel.hardware.machine import Ceilings, Machine, Point

_USUAL = (64, 8192)  # batch and context of a busy server: where the share of bandwidth is quoted


def figures_of(machine: Machine, times: Mapping[Point, float], ceilings: Ceilings) -> dict[str, float]:
    """What the rows say at a glance.

    ``attention_of_copy`` and ``attention_of_read``: cache bytes per second of the plain pass at batch 64 and
    context 8192, or else over the largest cache, as a share of the copy and the read rate.
    ``attention_wide``: width 5 over width 1 there.
    ``layer_b{batch}_c{context}_w{width}``: a wide pass of a layer over a plain one.
    """
    figures: dict[str, float] = {}

    def cached(point: Point) -> float:
        batch, context, width = point.sizes
        return batch * point.shape.cache_elements(context + width) * machine.format_bytes(point.cache)

    first = machine.cache_formats[0]
    plain = [p for p in times if p.kind == "attention" and p.sizes[2] == 1 and p.cache == first]
    if plain and ceilings.read_bytes_per_s:
        largest = max(plain, key=lambda p: (p.sizes[:2] == _USUAL, cached(p), p.sizes))
        rate = cached(largest) / times[largest]
        figures["attention_of_read"] = rate / ceilings.read_bytes_per_s
        figures["attention_of_copy"] = rate / ceilings.copy_bytes_per_s
        wide = Point("attention", largest.shape, (*largest.sizes[:2], 5), cache=first)
        if wide in times:
            figures["attention_wide"] = times[wide] / times[largest]
    for point, seconds in sorted(times.items(), key=lambda item: item[0].sizes):
        batch, context, width = point.sizes
        alone = Point("layer", point.shape, (batch, context, 1), point.weights, point.cache)
        if point.kind == "layer" and width > 1 and alone in times:
            figures[f"layer_b{batch}_c{context}_w{width}"] = seconds / times[alone]
    return {name: round(value, 4) for name, value in figures.items()}


def device_toml(machine: Machine, ceilings: Ceilings, record: str) -> str:
    """This machine as a device file: its measured ceilings in place of a datasheet's peaks."""
    peaks = dict(ceilings.matmul_flops_per_s)
    # A CPU multiplies everything in float32; the calculator asks for the 16-bit rate.
    rates = {"peak_bf16": peaks.get("bf16", peaks.get("fp32", 0.0))}
    rates |= {f"peak_{name}": value for name, value in peaks.items() if name in ("fp16", "fp8", "int8")}
    note = "" if "bf16" in peaks else ', note = "float32 products of BLAS"'
    run = 'unit = "{}", kind = "measured", source = "run"'
    lines = [
        f"name = {json.dumps(machine.name)}",
        f'architecture = "{machine.backend}"',
        f"memory = {{ value = {machine.memory_bytes:.0f}, {run.format('B')} }}",
        f"bandwidth = {{ value = {ceilings.read_bytes_per_s:.4g}, {run.format('B/s')} }}",
        *(f"{key} = {{ value = {value:.4g}, {run.format('FLOP/s')}{note} }}" for key, value in rates.items()),
        "",
        "[sources.run]",
        f"title = {json.dumps(f'specmodel measure --backend {machine.backend}; {record}')}",
    ]
    return "\n".join(lines) + "\n"
