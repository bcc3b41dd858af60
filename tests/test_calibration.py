"""Constants: recovered from times made with them, written and read back, found for the right device, and bad files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel import catalog
from specmodel.calibration import calibrate
from specmodel.deployment import deploy
from specmodel.errors import InputError
from specmodel.kernel_times.constants import (
    FORMS,
    GIVEN,
    Calibration,
    Constants,
    calibrated_devices,
    device_calibration,
    known_for,
)
from specmodel.kernel_times.files import read_calibration
from specmodel.kernel_times.formulas import (
    AllreduceConstants,
    AttentionConstants,
    GemmConstants,
    MoeConstants,
    WaitConstants,
    allreduce_seconds,
    attention_seconds,
    gemm_seconds,
    moe_seconds,
    wait_seconds,
)
from specmodel.kernel_times.table_times import power_law_distinct
from specmodel.validation import shipped_tables

TRUTH: dict[str, Constants] = {
    "gemm": GemmConstants(4e-6, 0.8, 0.7, 1e-9, 0.0, 2.0),
    "attention": AttentionConstants(10e-6, 0.85, 0.5, 20e-9, 1.5, 0.0),
    "moe": MoeConstants(22e-6, 0.8, 0.5, 60e-9),
    "allreduce": AllreduceConstants(4e-6, 0.3e-6, 200e9, 8e-6, 260e9),
}
HEADERS = {
    "gemm": "fw,dtype,n,k,m,us",
    "attention": "fw,kv,hq,hkv,b,kv_len,us",
    "moe": "fw,dtype,hidden,inter,topk,experts,tp,dist,m,us",
    "allreduce": "impl,ngpu,bytes,us",
}


def gemm_rows() -> list[tuple[str, float]]:
    device, truth = catalog.device("h100-sxm"), TRUTH["gemm"]
    assert isinstance(truth, GemmConstants)
    rows = []
    for n, k in ((1024, 4096), (4096, 1024), (4096, 4096), (4096, 14336), (28672, 4096), (6144, 4096)):
        for m in (1, 4, 16, 64, 128, 256, 512, 1024, 2048):
            seconds = gemm_seconds(
                float(m),
                float(n),
                float(k),
                weight_bytes=2.0 * n * k,
                flops_per_s=device.peak("bf16")[0],
                bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
                constants=truth,
            ).seconds
            rows.append((f"vllm,bfloat16,{n},{k},{m}", float(seconds)))
    return rows


def attention_rows() -> list[tuple[str, float]]:
    device, truth = catalog.device("h100-sxm"), TRUTH["attention"]
    assert isinstance(truth, AttentionConstants)
    rows = []
    for heads, kv_heads in ((8, 2), (32, 8), (64, 8)):
        for b in (1, 8, 64, 256):
            for length in (32, 256, 1024, 4096, 16384):
                seconds = attention_seconds(
                    float(b),
                    float(kv_heads),
                    cache_bytes=512.0 * b * length * kv_heads,
                    flops=4.0 * 128 * b * length * heads,
                    flops_per_s=device.peak("bf16")[0],
                    bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
                    constants=truth,
                    l2_bytes=device.l2_bytes,
                    sm_count=device.sm_count,
                    replayed=True,
                ).seconds
                rows.append((f"vllm,bf16,{heads},{kv_heads},{b},{length}", float(seconds)))
    return rows


def moe_rows() -> list[tuple[str, float]]:
    device, truth = catalog.device("h100-sxm"), TRUTH["moe"]
    assert isinstance(truth, MoeConstants)
    rows = []
    for hidden, inter, top_k, experts in ((2048, 768, 8, 128), (4096, 14336, 2, 8), (2880, 2880, 4, 32)):
        for m in (1, 4, 16, 64, 256, 1024, 4096):
            distinct, size = min(experts, m * top_k), 3.0 * hidden * inter
            seconds = moe_seconds(
                distinct * size * 2.0,
                2.0 * m * top_k * (2.0 * hidden + 3.0 * inter),
                2.0 * size * m * top_k,
                experts=float(experts),
                flops_per_s=device.peak("bf16")[0],
                bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
                constants=truth,
            ).seconds
            row = f"vllm,bfloat16,{hidden},{inter},{top_k},{experts},1,balanced,{m}"
            rows.append((row, float(seconds)))
    return rows


def allreduce_rows() -> list[tuple[str, float]]:
    truth = TRUTH["allreduce"]
    assert isinstance(truth, AllreduceConstants)
    return [
        (
            f"vllm_graph,{gpus},{2**power}",
            float(allreduce_seconds(2.0**power, float(gpus), constants=truth).seconds),
        )
        for gpus in (2, 4, 8)
        for power in range(9, 27)
    ]


ROWS: dict[str, Callable[[], list[tuple[str, float]]]] = {
    "gemm": gemm_rows,
    "attention": attention_rows,
    "moe": moe_rows,
    "allreduce": allreduce_rows,
}


def write_table(path: Path, kind: str, noise: float = 0.0, outliers: int = 0) -> Path:
    """A table whose times follow the formula with the constants of TRUTH, with noise and rows off by 3 times."""
    random = np.random.default_rng(7)
    lines = ["# gpu h100_sxm; frameworks vllm 9.9", HEADERS[kind]]
    for number, (row, seconds) in enumerate(ROWS[kind]()):
        factor = float(np.exp(noise * random.standard_normal())) * (3.0 if number < outliers else 1.0)
        lines.append(f"{row},{1e6 * seconds * factor:.6g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", sorted(TRUTH))
def test_a_fit_finds_the_constants_that_made_the_times(kind: str, tmp_path: Path) -> None:
    report = calibrate([write_table(tmp_path / "t.csv", kind)])
    own = next(fit for fit in report.calibration.fits if fit.framework.startswith("vllm"))
    assert own.kind == kind
    assert own.error is not None
    assert own.error < 0.02
    truth = TRUTH[kind]
    loose = {
        "flops_share",
        "quantise",
        "wave",
        "expert_s",
    }  # what these rows say little about; the prior pulls
    for name in set(own.standard_errors) - loose:
        assert getattr(own.constants, name) == pytest.approx(getattr(truth, name), rel=0.12), name
    assert own.source.endswith("vllm 9.9") or kind == "allreduce"


def test_outliers_and_noise_do_not_decide(tmp_path: Path) -> None:
    """2 of 54 rows three times too slow, all with 5 % noise: the constants stay within a few standard errors."""
    report = calibrate([write_table(tmp_path / "t.csv", "gemm", noise=0.05, outliers=2)])
    own = report.calibration.fits[0]
    assert isinstance(own.constants, GemmConstants)
    assert own.constants.bandwidth_share == pytest.approx(0.8, rel=0.06)
    assert own.constants.fixed_s == pytest.approx(4e-6, rel=0.15)
    assert own.error is not None
    assert 0.02 < own.error < 0.06
    assert own.left_out is not None
    assert own.low < 0.96 < own.middle < 1.04 < own.high


def test_constants_are_written_and_read_back(tmp_path: Path) -> None:
    calibration = calibrate([write_table(tmp_path / f"{kind}.csv", kind) for kind in TRUTH]).calibration
    path = tmp_path / "mine.toml"
    path.write_text(calibration.to_toml(), encoding="utf-8")
    again = read_calibration(path)
    assert [fit.key for fit in again.fits] == [fit.key for fit in calibration.fits]
    for ours, read in zip(calibration.fits, again.fits, strict=True):
        for name in FORMS[ours.kind].FITTED:
            assert getattr(read.constants, name) == pytest.approx(getattr(ours.constants, name), rel=1e-3)
        assert (read.rows, read.origin) == (ours.rows, "measured")


def test_a_persons_constants_come_before_the_shipped_ones(tmp_path: Path) -> None:
    device = catalog.device("h100-sxm")
    report = calibrate([write_table(tmp_path / "t.csv", "gemm")])
    found = report.calibration.find(device, "gemm", "bf16", "vllm")
    assert found is not None
    assert found.source.startswith("t.csv")
    other = report.calibration.find(device, "gemm", "bf16", "sglang")  # pooled, of the person's file
    assert other is not None
    assert (other.framework, other.source) == ("pooled", "t.csv")
    shipped = report.calibration.find(device, "attention", "bf16")
    assert shipped is not None
    assert shipped.source.startswith("attn_decode_h100_sxm.csv")
    anywhere = Calibration(tuple(replace(fit, device=GIVEN) for fit in report.calibration.fits))
    assert anywhere.find(catalog.device("l40s"), "gemm", "bf16") is not None


def test_shipped_constants_are_those_of_the_measured_tables(shared: Path) -> None:
    """A fit of the full tables gives the files in hardware/calibrations again."""
    for device, gpu in (("h100-sxm", "h100_sxm"), ("a100-sxm-80", "a100_sxm")):
        tables = [shared / "measured" / f"{kind}_{gpu}.csv" for kind in ("gemm", "attn_decode", "moe")]
        refitted = {fit.key: fit for fit in calibrate(tables).calibration.fits}
        for shipped in device_calibration(device).fits:
            if shipped.kind in ("allreduce", "wait"):
                continue
            for name in shipped.standard_errors:
                ours = getattr(refitted[shipped.key].constants, name)
                assert getattr(shipped.constants, name) == pytest.approx(ours, rel=2e-3), shipped.key


def test_the_shipped_part_of_the_tables_supports_the_constants() -> None:
    """Fitted to the part that ships, every framework's bandwidth share is that of the full tables within 10 %."""
    tables = [table for table in shipped_tables() if table.name.startswith(("gemm", "attn"))]
    refitted = {fit.key: fit for fit in calibrate(tables).calibration.fits}
    shares = [
        getattr(refitted[fit.key].constants, "bandwidth_share") / getattr(fit.constants, "bandwidth_share")  # noqa: B009
        for device in calibrated_devices()
        for fit in device_calibration(device).fits
        if fit.kind in ("gemm", "attention") and fit.framework != "pooled"
    ]
    assert len(shares) > 30
    assert max(shares) < 1.10
    assert min(shares) > 0.90


# Median absolute error on shapes left out of the fit, per kind and format: measured when the constants were made.
LEFT_OUT = {("gemm", "bf16"): 0.09, ("gemm", ""): 0.10, ("attention", "bf16"): 0.10, ("allreduce", ""): 0.12}


@pytest.mark.parametrize(("kind", "number_format"), sorted(LEFT_OUT))
def test_left_out_shapes_are_predicted(kind: str, number_format: str) -> None:
    scores = [
        fit.left_out
        for device in calibrated_devices()
        for fit in device_calibration(device).fits
        if fit.kind == kind and fit.framework != "pooled" and fit.left_out is not None
        and (not number_format or fit.format == number_format) and not fit.framework.endswith("_eager")
    ]  # fmt: skip
    assert scores
    assert max(scores) <= LEFT_OUT[kind, number_format]


@pytest.mark.parametrize(
    ("device", "like"),
    [
        ("h200-sxm", "h100-sxm"),
        ("b300-sxm", "b200-sxm"),
        ("gb200", "b200-sxm"),
        ("a100-pcie-80", "a100-sxm-80"),
    ],
)
def test_a_sibling_borrows_its_familys_constants(device: str, like: str) -> None:
    machine, none = catalog.device(device), Calibration(())
    for kind in ("gemm", "attention", "moe", "allreduce"):
        number_format = "" if kind == "allreduce" else "bf16"
        own = none.find(catalog.device(like), kind, number_format, "vllm")
        borrowed = none.find(machine, kind, number_format, "vllm")
        assert own is not None
        assert borrowed is not None
        assert (own.origin, borrowed.origin) == ("measured", "default")
        assert borrowed.low < own.low
        assert borrowed.high > own.high
        assert like in borrowed.source


@pytest.mark.parametrize("device", ["l40s", "rtx-4090", "rtx-pro-6000-server", "mi300x", "l4", "t4"])
def test_other_families_have_defaults(device: str) -> None:
    machine, none = catalog.device(device), Calibration(())
    assert known_for(machine)
    for kind in ("gemm", "attention", "attention-mha", "moe", "allreduce", "small", "wait"):
        number_format = "" if kind in ("allreduce", "small", "wait") else "bf16"
        found = none.find(machine, kind, number_format, "vllm")
        assert found is not None, kind
        assert found.origin == "default" or found.kind == "wait"


@pytest.mark.parametrize(
    "number_format", ["int4-g128", "awq", "q4_k", "int8-wo", "fp8", "nvfp4", "mxfp4", "fp16", "nf4"]
)
@pytest.mark.parametrize("device", ["a100-sxm-80", "h100-sxm", "b200-sxm", "l40s", "mi300x"])
def test_every_format_has_kernels_to_stand_in(device: str, number_format: str) -> None:
    found = Calibration(()).find(catalog.device(device), "gemm", number_format)
    assert found is not None


def test_where_nothing_is_known_nothing_is_given() -> None:
    assert not known_for(catalog.device("tpu-v5e"))
    assert not known_for(catalog.device("gaudi3"))


def test_a_faster_memory_does_not_help_what_it_does_not_hold_up() -> None:
    """fp8 caches on Hopper are read at 2.1-2.9 TB/s whatever the memory; 16-bit ones go with the bandwidth."""
    none, h100, h200 = Calibration(()), catalog.device("h100-sxm"), catalog.device("h200-sxm")
    for framework in ("vllm", "sglang"):
        rates = {}
        for number_format in ("bf16", "fp8"):
            for device in (h100, h200):
                found = none.find(device, "attention", number_format, framework)
                assert found is not None
                assert isinstance(found.constants, AttentionConstants)
                share = found.constants.bandwidth_share
                rates[number_format, device.id] = share * device.bandwidth_bytes_per_s
        assert rates["bf16", "h200-sxm"] / rates["bf16", "h100-sxm"] == pytest.approx(4.8 / 3.35)
        assert rates["fp8", "h200-sxm"] == pytest.approx(rates["fp8", "h100-sxm"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be one or more tables"),
        ("fit = 3", "must be one or more tables"),
        ("[[fit]]\nkind = 'gemm'", "device"),
        ("[[fit]]\ndevice='x'\nkind='gem'\n", "did you mean 'gemm'"),
        (
            "[[fit]]\ndevice='x'\nkind='gemm'\nformat='bf16'\nconstants={fixed_s=1e-6}\n",
            "bandwidth_share is missing",
        ),
        ("[[fit]]\ndevice='x'\nkind='gemm'\nconstants={fixed_s='3 us'}\n", "must be a finite number"),
        (
            "[[fit]]\ndevice='x'\nkind='gemm'\nconstants={fixed_s=1e-6,bandwidth_share=0.0,flops_share=1.0}\n",
            "bandwidth_share = 0.0: must be a finite number above 0",
        ),
        (
            "[[fit]]\ndevice='x'\nkind='gemm'\nconstants={fixed_s=nan,bandwidth_share=1.0,flops_share=1.0}\n",
            "must be a finite number",
        ),
        ("[[fit]]\ndevice='x'\nkind='gemm'\ncolour='red'\n", "colour"),
        ("[[fit", "must be a TOML file"),
        ("\x00", "must be a TOML file"),
    ],
)
def test_bad_calibration_files_are_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"c\.toml") as caught:
        read_calibration(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_calibration_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_calibration(tmp_path / "none.toml")


sizes = st.integers(1, 1 << 16).map(float)


@given(m=sizes, n=sizes, k=sizes, more=st.floats(1.0, 64.0))
def test_more_work_never_takes_less_time(m: float, n: float, k: float, more: float) -> None:
    def seconds(m: float, n: float, k: float, speed: float = 1.0) -> float:
        terms = gemm_seconds(
            m,
            n,
            k,
            weight_bytes=2.0 * n * k,
            flops_per_s=1e15 * speed,
            bandwidth_bytes_per_s=3e12 * speed,
            constants=GemmConstants(3e-6, 0.8, 0.7, 1e-9, 5.0),
        )
        return float(terms.seconds)

    base = seconds(m, n, k)
    assert base >= 3e-6
    for other in (seconds(m * more, n, k), seconds(m, n * more, k), seconds(m, n, k * more)):
        assert other >= base * (1.0 - 1e-12)
    assert seconds(m, n, k, speed=more) <= base * (1.0 + 1e-12)


@given(m=st.floats(1.0, 300.0), tile=st.sampled_from([1.0, 8.0, 16.0]))
def test_rows_are_multiplied_in_whole_tiles(m: float, tile: float) -> None:
    """With time for nothing but arithmetic, a row more costs nothing until the next tile."""

    def seconds(rows: float, tile: float) -> float:
        constants = GemmConstants(0.0, 1.0, 1.0, overlap=1.0, tile=tile)
        terms = gemm_seconds(
            rows,
            64.0,
            64.0,
            weight_bytes=0.0,
            flops_per_s=1e9,
            bandwidth_bytes_per_s=1e30,
            constants=constants,
        )
        return float(terms.seconds)

    whole = m if tile == 1.0 else tile * math.ceil(m / tile)
    assert seconds(m, tile) == pytest.approx(2.0 * whole * 64 * 64 / 1e9)
    assert seconds(m, tile) == pytest.approx(seconds(whole, 1.0))


def test_few_rows_take_the_vector_kernel_where_the_machine_is_known() -> None:
    """llama.cpp: up to 8 rows on the ordinary units, traffic and arithmetic joined as root of squares."""
    constants = GemmConstants(
        1e-6, 0.5, 0.5, overlap=1.0, vector_rows=8.0, vector_flops_per_unit=1e11, vector_bandwidth_share=1.0
    )

    def seconds(m: Any, sm_count: float | None) -> Any:
        return gemm_seconds(
            m, 4096.0, 4096.0, weight_bytes=1e7, flops_per_s=1e14, bandwidth_bytes_per_s=1e12,
            constants=constants, sm_count=sm_count,
        ).seconds  # fmt: skip

    memory, compute = 1e-5 + 2 * 4 * 8192 / 1e12, 2 * 4 * 4096**2 / (100 * 1e11)
    assert seconds(4.0, 100.0) == pytest.approx(1e-6 + math.hypot(memory, compute))
    many = np.array([1.0, 8.0, 9.0, 64.0])
    both, without = np.asarray(seconds(many, 100.0)), np.asarray(seconds(many, None))
    assert both[2:] == pytest.approx(without[2:])
    assert np.all(both[:2] != without[:2])
    assert without[0] == pytest.approx(1e-6 + 2 * (1e-5 + 2 * 8192 / 1e12) + 2 * 4096**2 / 5e13)


@pytest.mark.parametrize(("device", "engine"), [("a100-sxm-80", "llama.cpp"), ("rtx-3090", "llama.cpp")])
def test_llama_cpp_runs_kernels_of_its_own(device: str, engine: str) -> None:
    """Also where kernels of other engines were measured; and nobody else runs llama.cpp's."""
    machine = catalog.device(device)
    own = Calibration(()).find(machine, "gemm", "q4_0", engine)
    others = Calibration(()).find(machine, "gemm", "q4_0", "vllm")
    assert own is not None
    assert others is not None
    assert own.framework == engine != others.framework
    assert isinstance(own.constants, GemmConstants)
    assert isinstance(others.constants, GemmConstants)
    assert own.constants.vector_rows == 8.0
    assert others.constants.vector_rows == 0.0


@given(
    size=st.floats(1.0, 1e9),
    gpus=st.integers(1, 64),
    relay=st.floats(0.0, 1e-4),
    exponent=st.sampled_from([1.0, 1.55]),
)
def test_an_allreduce_takes_time_only_between_gpus(
    size: float, gpus: int, relay: float, exponent: float
) -> None:
    constants = AllreduceConstants(4e-6, 1e-7, 2e11, relay, 3e11, exponent)
    one = float(allreduce_seconds(size, float(gpus), constants=constants).seconds)
    assert (one == 0.0) == (gpus == 1)
    assert float(allreduce_seconds(2.0 * size, float(gpus), constants=constants).seconds) >= one


def test_waiting_needs_company() -> None:
    fit = Calibration(()).find(catalog.device("h100-sxm"), "wait", "")
    assert fit is not None
    constants = fit.constants
    assert isinstance(constants, WaitConstants)
    waits = wait_seconds(np.array([1.0, 8.0, 64.0, 1e6]), 2, constants=constants)
    assert float(wait_seconds(64.0, 1, constants=constants)) == 0.0
    assert list(np.diff(waits) > 0.0) == [True, True, True]
    assert 5e-6 < float(np.asarray(waits)[-1]) < 30e-6


@given(tokens=st.integers(1, 4096), experts=st.sampled_from([8, 32, 128, 256]), exponent=st.floats(0.5, 2.5))
def test_a_power_law_hits_no_more_experts_than_there_are(tokens: int, experts: int, exponent: float) -> None:
    top_k = min(8, experts)
    hit = power_law_distinct(float(tokens), float(top_k), experts, exponent)
    assert 1 <= hit <= min(experts, tokens * top_k)


def test_a_table_half_as_fast_as_its_siblings_is_not_what_is_served() -> None:
    """gpt-oss-120b on one H100 by SGLang: served plain steps of 4.72 and 10.06 ms at batch 1 and 8, prefill included."""
    setting = deploy("gpt-oss-120b", "h100-sxm", engine="sglang", memory_fraction=0.95)
    for batch, served in ((1, 4.72e-3), (8, 10.06e-3)):
        assert float(setting.plain_seconds(batch, 800)) == pytest.approx(served, rel=0.1)
    # The table's own rows are still compared with the table's own constants, and constants of one's own are taken.
    own = Calibration(()).find(setting.device, "moe", "mxfp4", "sglang")
    assert own is not None
    assert own.framework == "sglang"
    given = deploy(
        "gpt-oss-120b", "h100-sxm", engine="sglang", memory_fraction=0.95, calibration=Calibration((own,))
    )
    assert float(given.plain_seconds(8, 800)) > 2e-2
