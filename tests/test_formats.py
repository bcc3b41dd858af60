"""Stored bits of number formats, against the lecture's figures and the published block layouts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.formats import (
    GGUF_TYPES,
    custom_format,
    format_names,
    number_format,
    weight_bytes,
    weight_stream_tokens_per_second,
)

# Golden id -> the format that its bits and scale bits describe.
GOLDEN_SIZES = {
    "quant-w4-gb": "int4-g128",
    "quant-w4-plain-gb": "int4",  # the printed 3.47 GB needs scales: plain 4 bit is 3.37
    "quant-003-bf16-gb": "bf16",
    "quant-003-fp8-gb": "fp8",
    "quant-003-nvfp4-gb": "nvfp4",
    "quant-003-mxfp4-gb": "mxfp4",
    "quant-003-int4-ideal-gb": "int4",
}
GOLDEN_CEILINGS = {
    "quant-003-bf16-toks": "bf16",
    "quant-003-fp8-toks": "fp8",
    "quant-003-nvfp4-toks": "nvfp4",
    "quant-003-mxfp4-toks": "mxfp4",
    "quant-003-int4-ideal-toks": "int4",
}


@pytest.mark.parametrize(("golden_id", "name"), GOLDEN_SIZES.items())
def test_golden_weight_sizes(golden: dict[str, dict[str, Any]], golden_id: str, name: str) -> None:
    row = golden[golden_id]
    size = weight_bytes(row["inputs"]["params_b"] * 1e9, name)
    assert size / 1e9 == pytest.approx(row["expected"], rel=1e-9)


@pytest.mark.parametrize(("golden_id", "name"), GOLDEN_CEILINGS.items())
def test_golden_weight_stream_ceilings(golden: dict[str, dict[str, Any]], golden_id: str, name: str) -> None:
    row = golden[golden_id]
    size = weight_bytes(8e9, name)  # the lecture's 8B model
    assert size / 1e9 == pytest.approx(row["inputs"]["gb"], rel=1e-9)
    ceiling = weight_stream_tokens_per_second(size, bandwidth_bytes_per_s=row["inputs"]["bw_tb_s"] * 1e12)
    assert ceiling == pytest.approx(row["expected"], rel=1e-9)


# llama.cpp, ggml-common.h block structs: bits per weight as its documentation prints them.
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("q4_0", 4.5),
        ("q5_1", 6.0),
        ("q8_0", 8.5),
        ("q2_k", 2.625),
        ("q3_k", 3.4375),
        ("q4_k", 4.5),
        ("q5_k", 5.5),
        ("q6_k", 6.5625),
        ("iq2_xxs", 2.0625),
        ("iq3_s", 3.4375),
        ("iq4_xs", 4.25),
        ("iq1_m", 1.75),
        ("tq1_0", 1.6875),
    ],
)
def test_gguf_bits_per_weight(name: str, bits: float) -> None:
    assert number_format(name).bits == bits
    assert number_format(name).weight_only


def test_removed_gguf_ids_are_absent() -> None:
    assert not {4, 5, 31, 32, 33, 36, 37, 38} & set(GGUF_TYPES)
    assert GGUF_TYPES[39].bits == 4.25
    assert GGUF_TYPES[40].bits == 4.5


# bits + scale bits per group, by the layouts of AutoAWQ, GPTQ, bitsandbytes and DeepSeek's fp8 blocks.
@pytest.mark.parametrize(
    ("name", "bits"),
    [("awq", 4.15625), ("gptq", 4.15625), ("nf4", 4.5), ("nf4-double", 4.127), ("fp8-block", 8.002)],
)
def test_bits_with_scales(name: str, bits: float) -> None:
    assert number_format(name).bits == pytest.approx(bits, abs=5e-4)


def test_names_ignore_case_dash_and_underscore() -> None:
    assert number_format("NVFP4") is number_format("nvfp4")
    assert number_format("bfloat16") is number_format("bf16")
    assert number_format("fp8_block").name == "fp8-block"
    assert number_format("Q4_K_M").bits == 4.89


def test_an_unknown_format_names_its_neighbours() -> None:
    with pytest.raises(InputError, match="weights = 'nvpf4': did you mean 'nvfp4'"):
        number_format("nvpf4", "weights")


@pytest.mark.parametrize("name", format_names())
def test_every_format_is_usable(name: str) -> None:
    found = number_format(name)
    assert found.name == name
    assert 0.0 < found.bits <= 32.0
    assert found.bytes == found.bits / 8
    assert found.rate in ("bf16", "fp8", "int8", "fp4")
    assert found.rate == "bf16" or not found.weight_only
    assert found.source


@given(st.sampled_from(format_names()), st.floats(0.0, 1e15), st.floats(1.0, 1e3))
def test_weight_bytes_scale_with_the_count(name: str, parameters: float, factor: float) -> None:
    scaled = weight_bytes(parameters * factor, name)
    assert scaled == pytest.approx(weight_bytes(parameters, name) * factor, rel=1e-12)


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_bad_counts_are_refused(bad: float) -> None:
    with pytest.raises(InputError):
        weight_bytes(bad, "bf16")
    with pytest.raises(InputError):
        weight_stream_tokens_per_second(bad, bandwidth_bytes_per_s=1e12)
    with pytest.raises(InputError):
        weight_stream_tokens_per_second(1e9, bandwidth_bytes_per_s=bad)
    with pytest.raises(InputError):
        custom_format("x", bad, "bf16", True, "test")
