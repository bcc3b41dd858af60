"""Calibrated passes against composed measurements: verification bands, MagicDec's pass times, a mixture of experts."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specmodel import catalog
from specmodel.errors import InputError
from specmodel.kernel_times.calibrated import Calibrated
from specmodel.model import Model
from specmodel.passes import Split, forward_pass
from specmodel.roofline import Datasheet, Textbook

MAGICDEC_DEVICES = {"A100": "a100-sxm-80", "H100": "h100-sxm"}
# Verification pass / plain step of Llama-3.1-8B at context 1024, by tokens in the pass; measured kernels composed.
BANDS = {
    "h100-sxm": {
        64: (0.96, 1.10),
        128: (0.96, 1.10),
        256: (1.07, 1.22),
        512: (1.15, 1.70),
        1024: (1.65, 2.6),
    },
    "a100-sxm-80": {64: (0.96, 1.10), 128: (0.96, 1.17), 256: (1.24, 1.6), 512: (1.8, 2.4), 1024: (3.0, 3.4)},
}


@cache
def model_of(name: str) -> Model:
    found = catalog.model(name.lower())
    assert isinstance(found, Model)
    return found


@cache
def timing_of(device: str, framework: str | None = None) -> Calibrated:
    return Calibrated(catalog.device(device), framework=framework)


def seconds(
    timing: Calibrated, model: Model, batch: float, context: float, width: float = 1.0, tp: int = 1
) -> float:
    kernels = forward_pass(model, batch=batch, context=context, width=width, split=Split(tp=tp))
    return float(timing.time(kernels).seconds)


@pytest.mark.parametrize("device", sorted(BANDS))
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("framework", [None, "vllm", "sglang", "trtllm"])
def test_verification_costs_what_composed_kernels_say(device: str, width: int, framework: str | None) -> None:
    """Within 12 % of the measured bands, batch up to 128."""
    timing, model = timing_of(device, framework), model_of("llama-3.1-8b")
    for tokens, (low, high) in BANDS[device].items():
        batch = tokens // width
        if batch <= 128:
            ratio = seconds(timing, model, batch, 1024, width) / seconds(timing, model, batch, 1024)
            assert low / 1.12 <= ratio <= high * 1.12, (tokens, ratio)


def magicdec_rows(shared: Path) -> list[tuple[str, float, float, float, float]]:
    """GPU, then measured and predicted milliseconds of a plain step and of a verification pass."""
    found = []
    with (shared / "published" / "speedups.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            times = dict(re.findall(r"(T_AR|T_V)=([\d.]+)", row["note"]))
            if (
                not row["id"].startswith("magicdec")
                or "T_AR" not in times
                or row["gpu"] not in MAGICDEC_DEVICES
            ):
                continue
            timing, model = timing_of(MAGICDEC_DEVICES[row["gpu"]]), model_of(row["target_model"])
            size, tp = (float(row["batch"]), float(row["context"])), int(row["num_gpus"])
            plain = 1e3 * seconds(timing, model, *size, tp=tp)
            verify = 1e3 * seconds(timing, model, *size, width=float(row["k"]) + 1.0, tp=tp)
            found.append((row["gpu"], float(times["T_AR"]), plain, float(times["T_V"]), verify))
    return found


def test_magicdecs_pass_times_are_predicted(shared: Path) -> None:
    """arXiv 2408.11049, Tables 1-7: contexts 1k-100k, 4-8 GPUs. What is left on A100 is engine time at short steps."""
    rows = magicdec_rows(shared)
    for gpu, most in (("H100", 0.06), ("A100", 0.12)):
        mine = [row for row in rows if row[0] == gpu]
        assert len(mine) > 30
        measured = np.array([time for row in mine for time in (row[1], row[3])])
        predicted = np.array([time for row in mine for time in (row[2], row[4])])
        assert float(np.median(np.abs(predicted / measured - 1.0))) <= most
        ratio = [(row[4] / row[2]) / (row[3] / row[1]) - 1.0 for row in mine]
        assert float(np.median(np.abs(ratio))) <= 0.05


def test_a_mixture_of_experts_dips() -> None:
    """Qwen3-30B-A3B on an H100: width 4 reads more experts at small batches, all are read at 64, arithmetic beyond."""
    timing, model = timing_of("h100-sxm"), model_of("qwen3-30b-a3b")

    def ratio(batch: int) -> float:
        return seconds(timing, model, batch, 1024, 4) / seconds(timing, model, batch, 1024)

    assert all(ratio(batch) > 1.5 for batch in (1, 2, 4, 8))
    assert ratio(64) < 1.15
    assert ratio(64) < ratio(128) < ratio(256) < ratio(512)


def test_distinct_experts_of_case_c01() -> None:
    """Independent uniform routing, 8 of 128: the counts that the case derives."""
    model = model_of("qwen3-30b-a3b")
    feed = next(
        layer.feed_forward for _, layer in model.architecture.layers if layer.feed_forward is not None
    )
    for tokens, expected in ((1, 8.0), (4, 29.12), (8, 51.62), (16, 82.42), (60, 125.34)):
        assert float(feed.expected_distinct(tokens)) == pytest.approx(expected, abs=0.005)  # type: ignore[union-attr]


def test_the_cache_is_read_once_unless_the_engine_says_otherwise() -> None:
    timing, model = timing_of("h100-sxm"), model_of("llama-3.1-8b")

    def verify(reread: float) -> float:
        kernels = forward_pass(model, batch=24, context=16384, width=4, split=Split(kv_reread=reread))
        return float(timing.time(kernels).seconds)

    plain = seconds(timing, model, 24, 16384)
    assert verify(1.0) / plain < 1.1
    assert verify(4.0) / plain > 2.5


def test_arrays_give_what_scalars_give() -> None:
    timing, model = timing_of("h100-sxm"), model_of("deepseek-v3")
    batch, context, width = (
        np.array([1.0, 64.0])[:, None, None],
        np.array([512.0, 8e4])[:, None],
        np.array([1.0, 4.0]),
    )
    kernels = forward_pass(model, batch=batch, context=context, width=width, split=Split(tp=8))
    whole = timing.time(kernels)
    assert np.shape(whole.seconds) == (2, 2, 2)
    for at in np.ndindex(2, 2, 2):
        one = seconds(
            timing, model, float(batch[at[0], 0, 0]), float(context[at[1], 0]), float(width[at[2]]), tp=8
        )
        assert np.asarray(whole.seconds)[at] == pytest.approx(one, rel=1e-12)


def test_a_pass_is_the_sum_of_its_kernels_and_their_waiting() -> None:
    model = model_of("llama-3.1-70b")
    kernels = forward_pass(model, batch=16, context=4096, split=Split(tp=8))
    device = catalog.device("h100-sxm")
    timed = Calibrated(device).time(kernels)
    assert float(timed.seconds) == pytest.approx(sum(float(part.seconds) for part in timed.kernels))
    waits = [part for part in timed.kernels if part.name.startswith("wait")]
    assert [part.count for part in waits] == [160]  # two all-reduces in each of 80 layers
    without = Calibrated(device, wait=False).time(kernels)
    assert float(timed.seconds) - float(without.seconds) == pytest.approx(
        sum(float(part.seconds) for part in waits)
    )
    for part in timed.kernels:
        assert float(part.seconds) >= float(part.fixed_seconds) - 1e-15
    one_gpu = Calibrated(device).time(forward_pass(model, batch=16, context=4096))
    assert not any(part.name.startswith("wait") for part in one_gpu.kernels)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gemma-3-27b", "gpt-oss-120b"]
)
@pytest.mark.parametrize("device", ["h100-sxm", "b200-sxm", "l40s", "mi300x"])
def test_paper_is_faster_than_kernels(name: str, device: str) -> None:
    """Textbook <= datasheet <= calibrated for the same list of kernels, at any batch."""
    machine, model = catalog.device(device), model_of(name)
    for batch in (1, 16, 256):
        kernels = forward_pass(model, batch=batch, context=4096, width=4)
        textbook = float(Textbook(machine).time(kernels).seconds)
        datasheet = float(Datasheet(machine).time(kernels).seconds)
        calibrated = float(timing_of(device).time(kernels).seconds)
        assert textbook <= datasheet * (1.0 + 1e-12) <= calibrated


def test_the_band_of_a_pass_is_narrower_than_that_of_its_kernels() -> None:
    timing, model = timing_of("h100-sxm", "vllm"), model_of("llama-3.1-8b")
    kernels = forward_pass(model, batch=16, context=2048)
    band = timing.band(kernels)
    assert band.origin == "measured"
    assert 0.90 < band.low < 0.99 < band.high < 1.12
    borrowed = timing_of("h200-sxm", "vllm").band(kernels)
    assert borrowed.origin == "default"
    assert borrowed.high - borrowed.low > band.high - band.low
    assert timing_of("mi300x").band(kernels).high > borrowed.high


def test_activations_are_quantised_on_the_way() -> None:
    """Qwen3-32B in fp8: about 5 us a GEMM, not the 12 us of TensorRT-LLM's table with its own quantising kernels."""
    model = catalog.model("qwen3-32b", weights="fp8")
    assert isinstance(model, Model)
    timed = timing_of("h100-sxm", "trtllm").time(forward_pass(model, batch=8, context=1024))
    fixed = {
        part.name: float(part.fixed_seconds) / part.count for part in timed.kernels if part.kind == "gemm"
    }
    assert all(2e-6 < seconds_ < 5.5e-6 for seconds_ in fixed.values())


def test_what_has_no_constants_is_refused() -> None:
    with pytest.raises(InputError, match="no constants stand in for gemm kernels on tpu-v5e"):
        Calibrated(catalog.device("tpu-v5e"))
    lecture = catalog.model("lecture-7b")
    with pytest.raises(InputError, match="only textbook applies"):
        timing_of("h100-sxm").time(forward_pass(lecture, batch=1, context=1))
