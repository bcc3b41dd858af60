"""Sizes and times as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.units import GB, GIB, parse_bytes, parse_seconds, show_bytes, show_seconds


# One size written in several ways: 2^30 is a GiB and 10^9 a GB, by IEC 80000-13.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80 GB", 80e9),
        ("80gb", 80e9),
        ("128 KiB", 131072.0),
        ("1.5 TiB", 1.5 * 2**40),
        (7, 7.0),
        ("1e3", 1e3),
    ],
)
def test_bytes_are_parsed_with_their_unit(text: str | float, expected: float) -> None:
    assert parse_bytes(text) == expected


def test_a_bare_number_can_mean_another_unit() -> None:
    assert parse_bytes("24", bare_unit="GB") == 24 * GB


@pytest.mark.parametrize("text", ["", "GB", "-1 GB", "nan", "inf", "1e999", "3 parsec", "1 GB 2", True])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"memory = .*: a finite number"):
        parse_bytes(text, "memory")


def test_seconds() -> None:
    assert parse_seconds("15 ms") == pytest.approx(0.015)
    assert parse_seconds("200us") == pytest.approx(2e-4)
    with pytest.raises(InputError):
        parse_seconds("1 GB")


def test_printed_sizes_say_which_unit() -> None:
    # gemma-3-27b's cache at 131,072 tokens (case c13): 10.406 GiB and 11.17 GB are the same bytes.
    assert show_bytes(11173625856) == "11.17 GB"
    assert show_bytes(11173625856, binary=True) == "10.41 GiB"
    assert show_seconds(0.00417888) == "4.179 ms"


@given(st.floats(0.0, 1e18))
def test_a_printed_size_reads_back(size: float) -> None:
    assert parse_bytes(show_bytes(size)) == pytest.approx(size, rel=1e-3, abs=1e-3)
    assert parse_bytes(show_bytes(size, binary=True)) == pytest.approx(size, rel=1e-3, abs=1e-3)


def test_gigabytes_and_gibibytes_differ_by_seven_percent() -> None:
    ratio = GIB / GB
    assert ratio == pytest.approx(1.073741824, rel=1e-15)
