"""Devices: figures against the reference table, names as people write them, custom machines, refusals."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel import catalog
from specmodel.datasheets import FIGURES, RATES, Device, quantity
from specmodel.errors import InputError

FAMILIES = sorted(
    (f for f in (files("specmodel") / "hardware" / "devices").iterdir() if f.name.endswith(".toml")),
    key=lambda f: f.name,
)
TABLES = {family.name: tomllib.loads(family.read_text(encoding="utf-8")) for family in FAMILIES}
LECTURE = {"lecture-h100", "lecture-a100"}
ROWS = [(file, identity) for file, table in TABLES.items() for identity in table if identity != "sources"]


@pytest.fixture(scope="module")
def facts(shared: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in json.loads((shared / "facts" / "gpus.json").read_text())["gpus"]}


def test_every_device_of_the_reference_table_is_there(facts: dict[str, dict[str, Any]]) -> None:
    assert set(catalog.devices()) == set(facts) | LECTURE | {"v100-sxm2-16"}


def test_figures_equal_the_reference_table(facts: dict[str, dict[str, Any]]) -> None:
    for identity, fact in facts.items():
        sheet = catalog.datasheet(identity)
        wanted = {
            "bandwidth": (fact["mem_bw_gb_s"], 1e9),
            "link": (fact["link_gb_s_per_direction"], 1e9),
            "pcie": (fact["pcie_gb_s_per_direction"], 1e9),
            "sm_count": (fact["sm_count"], 1),
            "l2": (fact["l2_mb"], 1e6),
            "tdp": (fact["tdp_w"], 1),
            **{f"peak_{rate}": (fact["dense_tflops"][rate], 1e12) for rate in RATES},
        }
        for figure, (number, scale) in wanted.items():
            value = sheet.value(figure)
            if number is None:
                assert value is None, (identity, figure)
            else:
                assert value == pytest.approx(number * scale, rel=1e-12), (identity, figure)
        nominal = fact["mem_gb"]
        largest = max(nominal) if isinstance(nominal, list) else nominal
        usable = fact.get("mem_usable_bytes") or (largest and largest * 2**30)
        assert sheet.value("memory") == usable, identity
        assert sheet.architecture == fact["arch"]
        assert sheet.vendor == fact["vendor"]


def test_measured_ceilings_are_kept_beside_the_nominal_figures(facts: dict[str, dict[str, Any]]) -> None:
    for identity, fact in facts.items():
        measured = {n: f for n, f in catalog.datasheet(identity).figures.items() if n.startswith("measured_")}
        ceilings = {key: value for key, value in fact.get("measured", {}).items() if key != "by"}
        wanted = sorted(
            value * (1e9 if key.startswith("m1_read") else 1e12)
            for key, values in ceilings.items()
            for value in (set(values) if isinstance(values, list) else [values])
        )
        assert sorted(f.value for f in measured.values()) == pytest.approx(wanted), identity
        assert all(figure.kind == "measured" for figure in measured.values())
    h100 = catalog.device("h100")
    assert h100.measured["gemm_bf16"] == 889e12
    assert h100.peak_flops_per_s["bf16"] == 989.4e12


def test_conflicts_and_unverified_figures_become_warnings(facts: dict[str, dict[str, Any]]) -> None:
    names = {"mem_bw_gb_s": "bandwidth", "link_gb_s_per_direction": "link", "l2_mb": "l2", "tdp_w": "tdp"}
    names |= {"mem_usable_bytes": "memory", "dense_tflops": "peak_"}
    names |= {f"dense_tflops.{rate}": f"peak_{rate}" for rate in RATES}
    for identity, fact in facts.items():
        warnings = catalog.datasheet(identity).warnings
        for doubtful in fact.get("unverified_fields", []):
            figure = names.get(doubtful, doubtful)
            assert any(line.startswith(figure) for line in warnings), (identity, doubtful)
        said = [line for line in warnings if "sources disagree" in line]
        assert bool(said) == bool(fact.get("conflicts")), identity
        numbers = set(re.findall(r"\d[\d.]*\d", " ".join(said)))
        for conflict in fact.get("conflicts", []):
            expected = set(re.findall(r"\d[\d.]*\d", conflict))
            assert not expected or expected & numbers, (identity, conflict)
    assert catalog.device("h100-sxm").warnings == ()


def test_the_driver_names_find_their_device(facts: dict[str, dict[str, Any]]) -> None:
    for identity, fact in facts.items():
        for name in fact["device_names"]:
            wanted = "v100-sxm2-16" if name.endswith("V100-SXM2-16GB") else identity
            assert catalog.datasheet(name).id == wanted


@pytest.mark.parametrize(
    ("typed", "identity"),
    [
        ("a100", "a100-sxm-80"),
        ("H100", "h100-sxm"),
        ("h200", "h200-sxm"),
        ("B200", "b200-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("a100_sxm", "a100-sxm-80"),
        ("rtx_pro_6000_server", "rtx-pro-6000-server"),
        ("RTX 4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("H100-80GB", "h100-sxm"),
        ("A100-80GB-PCIe", "a100-pcie-80"),
        ("A100-40GB", "a100-sxm-40"),
        ("lecture_H100", "lecture-h100"),
        ("M3-Ultra-512GB", "apple-m3-ultra"),
    ],
)
def test_names_as_people_write_them(typed: str, identity: str) -> None:
    assert catalog.device(typed).id == identity


def test_no_name_means_two_devices() -> None:
    seen: dict[str, str] = {}
    for file, identity in ROWS:
        for name in [identity, *TABLES[file][identity]["aliases"]]:
            assert seen.setdefault(catalog._fold(name), identity) == identity
    assert {name: identity for name, (identity, _) in catalog._index().items()} == seen


@pytest.mark.parametrize(("file", "identity"), ROWS)
def test_every_figure_names_unit_kind_and_an_existing_source(file: str, identity: str) -> None:
    table = TABLES[file][identity]
    units = {"bytes": "B", "bytes_per_s": "B/s", "flops_per_s": "FLOP/s", "count": "1", "watts": "W"}
    for name in table.keys() & FIGURES.keys():
        figure = table[name]
        assert figure["unit"] == units[FIGURES[name]]
        assert figure["kind"] in {"datasheet", "derived", "measured"}
        keys = figure["source"] if isinstance(figure["source"], list) else [figure["source"]]
        assert keys
        assert all(TABLES[file]["sources"][key]["title"] for key in keys)
    assert catalog.datasheet(identity).id == identity  # every key is known to the reader


@pytest.mark.parametrize("file", TABLES)
def test_every_source_is_used(file: str) -> None:
    text = json.dumps({key: value for key, value in TABLES[file].items() if key != "sources"})
    assert all(f'"{key}"' in text for key in TABLES[file]["sources"])


def test_the_machines_of_the_lectures(golden: dict[str, dict[str, Any]]) -> None:
    h100, a100 = catalog.device("lecture-h100"), catalog.device("lecture-a100")
    inputs = golden["roofline-h100-util-effective-pct"]["inputs"]
    effective = h100.peak_flops_per_s["bf16"] * h100.textbook_fraction
    assert effective == inputs["effective_tflops"] * 1e12
    assert h100.bandwidth_bytes_per_s == inputs["bw_tb_s"] * 1e12
    budget = golden["kv-budget-gb"]["inputs"]
    assert h100.memory_bytes == budget["hbm_gb"] * 1e9
    assert h100.usable_memory_fraction == budget["usable"]
    lesson = golden["roofline-a100-budget"]["inputs"]
    assert a100.peak_flops_per_s["bf16"] == lesson["peak_tflops"] * 1e12
    assert a100.bandwidth_bytes_per_s == lesson["bw_tb_s"] * 1e12
    assert (a100.textbook_fraction, a100.memory_bytes, a100.usable_memory_fraction) == (1.0, 80e9, 0.95)


@pytest.mark.parametrize(
    ("name", "rate", "peak", "noted"),
    [
        ("h100", "bf16", 989.4e12, False),
        ("h100", "fp8", 1978.9e12, False),
        ("h100", "fp4", 989.4e12, True),  # unpacked and multiplied in 16 bit
        ("b200", "fp4", 9000e12, False),
        ("a100", "fp8", 312e12, True),
        ("a100", "int8", 624e12, False),
        ("t4", "bf16", 65e12, True),
        ("v100", "fp8", 125e12, True),
        ("tpu-v5e", "fp16", 197e12, True),
    ],
)
def test_peak_falls_back_to_what_engines_run(name: str, rate: str, peak: float, noted: bool) -> None:
    value, note = catalog.device(name).peak(rate)
    assert value == peak
    assert (note is not None) == noted


def test_a_device_is_a_plain_value() -> None:
    device = catalog.device("h100")
    assert device == catalog.device("h100-sxm")
    assert hash(device) == hash(catalog.device("h100-sxm"))
    assert asdict(device)["peak_flops_per_s"]["bf16"] == 989.4e12
    assert set(device.sources) == set(catalog.datasheet("h100").figures)


# Custom machines


def test_options_replace_the_figures_of_a_base() -> None:
    changed = catalog.custom_device(base="h200", bandwidth="4 TB/s", flops="494.7 TFLOP/s")
    assert changed.bandwidth_bytes_per_s == 4e12
    assert changed.peak_flops_per_s["fp8"] == pytest.approx(1978.9e12 / 2)  # scales with the 16-bit peak
    assert changed.memory_bytes == catalog.device("h200").memory_bytes
    assert (changed.id, changed.architecture) == ("custom", "Hopper")
    assert catalog.custom_device(base=changed, memory="100 GiB").bandwidth_bytes_per_s == 4e12


def test_a_card_without_bf16_does_not_gain_it() -> None:
    changed = catalog.custom_device(base="t4", flops=100e12)
    assert changed.peak_flops_per_s == pytest.approx({"fp16": 100e12, "int8": 200e12})


def test_an_unknown_memory_size_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"apple-m4-max.*memory"):
        catalog.device("apple-m4-max")
    assert catalog.custom_device(base="apple-m4-max", memory="64 GiB").memory_bytes == 64 * 2**30
    with pytest.raises(InputError, match="bandwidth"):
        catalog.custom_device(base="apple-m5-max", memory="64 GiB")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": "h100", "flops": "1979 TFLOP/s"}, ["flops", "1979", "sparsity", "989.4"]),
        ({"name": "H200", "bandwidth": 4.8e12, "flops": 1.97e15, "memory": 141e9}, ["1970", "989.4"]),
        ({"bandwidth": "3.35 TB/s", "flops": "1979 TFLOPS", "memory": "80 GiB"}, ["h100-sxm", "989.4"]),
        ({"base": "rtx-4090", "flops": "330.3 TFLOP/s"}, ["FP16 accumulation", "165.2"]),
        ({"base": "h100", "flops": "fast"}, ["flops", "'fast'", "TFLOP/s"]),
        ({"base": "h100", "bandwidth": "3.35 Gb/s"}, ["bandwidth", "not a unit"]),  # bits
        ({"base": "h100", "bandwidth": "3.35 TFLOP/s"}, ["bandwidth", "not a unit"]),
        ({"base": "h100", "bandwidth": "3.35"}, ["bandwidth", "TB/s"]),  # the unit was forgotten
        ({"base": "h100", "memory": 80}, ["memory", "80", "GiB"]),
        ({"base": "h100", "memory": -1}, ["memory", "-1"]),
        ({"base": "h100", "memory": math.nan}, ["memory", "nan"]),
        ({"base": "h100", "memory": True}, ["memory", "True"]),
        ({"base": "h100", "memory": 10**400}, ["memory"]),
        ({"base": "h100", "name": "a\nb", "memory": 80e9}, ["name"]),
        ({"base": "h100-sx"}, ["device", "h100-sx", "h100-sxm"]),
        ({"base": 7}, ["base", "7"]),
        ({"bandwidth": 1e12, "flops": 1e14}, ["memory", "needed"]),
    ],
)
def test_refusals_name_field_value_and_way_out(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        catalog.custom_device(**options)
    line = str(caught.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_the_dense_peak_of_a_sibling_is_no_sparse_figure() -> None:
    # L40 and L40S share the bandwidth, and 362 is the dense peak of one and the sparse figure of the other.
    made = catalog.custom_device(bandwidth="864 GB/s", flops="362 TFLOP/s", memory="48 GB")
    assert made.peak_flops_per_s["bf16"] == 362e12


@pytest.mark.parametrize(
    "name", ["", "h100x", "nvidia", "A100-120GB", "x" * 5000, "a\nb", "apple-m3-ultra-0gb"]
)
def test_unknown_names_are_one_line(name: str) -> None:
    with pytest.raises(InputError) as caught:
        catalog.device(name)
    assert "\n" not in str(caught.value)
    if name == "h100x":
        assert "h100-sxm" in str(caught.value)


@given(
    bandwidth=st.floats() | st.integers() | st.text(max_size=12),
    flops=st.floats() | st.floats(1e9, 1e19),
    memory=st.floats(1e8, 1e15) | st.integers(-1, 10**12).map(lambda n: f"{n} GiB"),
    base=st.sampled_from([None, "h100", "t4", "apple-m1-max"]),
)
def test_a_custom_device_is_finite_or_refused(
    bandwidth: float | str, flops: float, memory: float | str, base: str | None
) -> None:
    try:
        device = catalog.custom_device(bandwidth=bandwidth, flops=flops, memory=memory, base=base)
    except InputError:
        return
    numbers = [device.memory_bytes, device.bandwidth_bytes_per_s, *device.peak_flops_per_s.values()]
    assert all(math.isfinite(number) and number > 0 for number in numbers)


@given(value=st.floats(1e-3, 1e3), prefix=st.sampled_from(["k", "M", "G", "T", "Gi", "Ti"]))
def test_units_are_powers_of_1000_or_1024(value: float, prefix: str) -> None:
    power = {"k": 1, "M": 2, "G": 3, "T": 4}[prefix[0]]
    exact = value * (1024**power if prefix.endswith("i") else 1000**power)
    if 1e8 <= exact <= 1e15:
        assert quantity("b", f"{value!r} {prefix}B/s", "bandwidth") == pytest.approx(exact, rel=1e-15)


# Machines from a file

CARD = """
name = "My card"
architecture = "Ada"
memory = "48 GiB"
bandwidth = { value = 960, unit = "GB/s", kind = "datasheet", source = "sheet" }
peak_bf16 = 182e12

[sources.sheet]
title = "the vendor's page"
"""


def written(folder: Path, text: str | bytes) -> Device:
    path = folder / "card.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return catalog.device(str(path))


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    card = written(tmp_path, CARD)
    assert (card.id, card.name, card.architecture) == ("my-card", "My card", "Ada")
    assert card.memory_bytes == 48 * 2**30
    assert card.bandwidth_bytes_per_s == 960e9
    assert card.sources["bandwidth"] == "the vendor's page"
    assert card.peak("fp8")[0] == 182e12


def test_a_file_may_start_from_a_known_part(tmp_path: Path) -> None:
    card = written(tmp_path, 'base = "h100"\nbandwidth = "3 TB/s"\nusable_memory_fraction = 0.8\n')
    assert card.bandwidth_bytes_per_s == 3e12
    assert card.usable_memory_fraction == 0.8
    assert card.peak_flops_per_s == catalog.device("h100").peak_flops_per_s
    assert card.sources["bandwidth"] == "given in card.toml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CARD.replace("memory", "memroy"), ["memroy", "memory"]),
        (CARD.replace('"sheet"', '"shet"'), ["bandwidth source", "shet"]),
        (CARD.replace("182e12", "nan"), ["card.toml: peak_bf16", "nan"]),
        (CARD.replace("182e12", "[1]"), ["card.toml: peak_bf16"]),
        (CARD.replace('"48 GiB"', '"48"'), ["card.toml: memory", "GiB"]),
        (CARD.replace("value = 960, ", ""), ["bandwidth", "must have a value"]),
        (CARD.replace("datasheet", "guess"), ["kind", "guess"]),
        (CARD.replace('unit = "GB/s"', 'unit = "GiB"'), ["bandwidth", "GiB"]),
        (CARD.replace('"My card"', '"a\\nb"'), ["card.toml: name"]),
        (CARD.replace('architecture = "Ada"', "textbook_fraction = 2"), ["textbook_fraction", "2"]),
        ("sources = 3\n", ["sources"]),
        ('base = "h100"\npeak_fp8 = "3958 TFLOP/s"\n', ["peak_fp8", "sparsity", "1978.9"]),
        ('base = "h100"\nlink = "900 GB/s"\n', ["link", "both directions", "450"]),
        ("base = 3\n", ["base"]),
        ("", ["16-bit peak"]),
        ("a = [" * 3000, ["TOML"]),
        ("a = " + "9" * 6000, ["TOML"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b" " * 1_000_001, ["1 MB"]),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str | bytes, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        written(tmp_path, text)
    line = str(caught.value)
    assert "\n" not in line
    assert all(word in line for word in words), line


@pytest.mark.parametrize("path", ["absent.toml", "nul\0.toml"])
def test_an_unreadable_file_is_one_line(path: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        catalog.device_from_file(path)


def test_looking_up_a_device_imports_nothing_heavy() -> None:
    code = (
        "import sys; from specmodel import catalog; catalog.device('h100'); "
        "print([m for m in ('numpy', 'pydantic', 'specmodel.hardware') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.strip() == "[]"
    assert catalog._entry("h100-sxm", "hopper.toml").keys() == {"h100-sxm", "sources"}
