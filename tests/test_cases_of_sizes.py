"""Checks of the public cases c01, c16, c17 and c19 that need a device, a round or a draft. The rest is in test_readers
and test_ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import specmodel
from specmodel import catalog, roofline
from specmodel.drafters.names import drafter
from specmodel.model import Model
from specmodel.speculation import Speculation

# Checks that do not hold, each with the reason; the tests below pin what the model says instead.
NOT_MET = {
    "C01-c": "round cost 1.9 predicted, 2.6 measured: 5 ms of the round are host time of that SGLang's draft passes, "
    "which the fitted engine times put at 1 ms",
}


def case(shared: Path, name: str) -> dict[str, object]:
    (file,) = (shared / "cases").glob(f"{name}_*.json")
    found: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def c01(shared: Path) -> dict[str, Speculation]:
    found = {}
    for engine in ("ideal", "sglang"):
        setting = specmodel.deploy(
            str(shared / "cases" / "configs" / "qwen3-30b-a3b.json"), "h100-sxm", tp=2, engine=engine
        )
        assert isinstance(setting.model, Model)
        found[engine] = Speculation(setting, drafter("eagle3", setting.model))
    return found


def round_cost(speculation: Speculation, batch: int) -> float:
    """Chain of 3 drafts, width 4; the case says short contexts."""
    taken = speculation.round_time(3, batch, 1024)
    return float(taken.seconds) / float(speculation.plain_seconds(batch, 1024))


def test_c01_plain_decoding_is_as_fast_as_measured(c01: dict[str, Speculation]) -> None:
    """222.5 tokens per second at batch 1, 566 at batch 4: what the ratios below are ratios to."""
    for batch, measured in ((1, 222.47), (4, 566.21)):
        predicted = batch / float(c01["sglang"].plain_seconds(batch, 1024))
        assert predicted == pytest.approx(measured, rel=0.10)


def test_c01_a_mixture_of_experts_pays_for_every_position(c01: dict[str, Speculation]) -> None:
    """C01-a, C01-b: 1.86 tokens per round lose at batch 1 (by less than measured) and 4. C01-c: see NOT_MET."""
    assert 1.86 / round_cost(c01["sglang"], 4) < 1.0
    assert 0.9 < 1.86 / round_cost(c01["sglang"], 1) < 1.0
    assert 1.6 < round_cost(c01["sglang"], 1) < 2.1
    for batch in (1, 4):  # far from the 1.1 of a dense model, engine or not
        assert round_cost(c01["ideal"], batch) > 1.45


def test_c01_breakeven_says_that_the_range_holds_the_loss(c01: dict[str, Speculation]) -> None:
    """C01-e: whoever asks about batch 1 is told that it may lose, and that experts are what is read."""
    setting = c01["sglang"].deployment
    survival = [0.5, 0.24, 0.12]  # sums to 0.86
    found = specmodel.breakeven(setting, context=1024, acceptance=survival, draft="eagle3", k=3)
    first = found.by_batch[0]
    assert first.tokens_per_round == pytest.approx(1.86)
    assert first.low is not None
    assert first.low < 0.95
    assert not next(one.pays for one in found.intervals if one.from_ <= 4 <= one.to)


def test_c16_ridge_of_an_l40s(shared: Path) -> None:
    """C16-a: fp8 weights, 733 TFLOP/s dense, 864 GB/s: 424 tokens. C16-c: 106 sequences at k 3."""
    expected = case(shared, "c16")["expected"]["derived"]  # type: ignore[index]
    device = catalog.device("l40s")
    fp8 = device.peak("fp8")[0]
    tokens = roofline.token_budget(fp8, device.bandwidth_bytes_per_s, bytes_per_parameter=1.0)
    assert tokens == pytest.approx(expected["ridge_tokens"]["dense"], rel=0.01)
    for k, batch in expected["ridge_batch_dense"].items():
        assert tokens / (int(k) + 1) == pytest.approx(batch, rel=0.02)
    assert fp8 / device.peak("bf16")[0] == pytest.approx(expected["fp8_to_bf16_ratio"]["right"], rel=0.01)


def test_c16_every_known_device_doubles_its_rate_at_8_bit() -> None:
    """C16-b, for what ships: 8 bits twice as fast as 16, or the figure carries a warning."""
    for identity in catalog.devices():
        sheet = catalog.datasheet(identity)
        wide = sheet.value("peak_bf16") or sheet.value("peak_fp16")
        for rate in ("peak_fp8", "peak_int8"):
            narrow = sheet.value(rate)
            if wide is not None and narrow is not None and not 1.8 < narrow / wide < 2.2:
                assert sheet.warnings, (identity, rate, narrow / wide)


def test_c16_a_mixed_sheet_is_called_out(tmp_path: Path) -> None:
    """C16-b, for a person's file: bf16 dense beside fp8 with sparsity."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "Mine"\nbandwidth = "700 GB/s"\nmemory = "48 GB"\npeak_bf16 = "300 TFLOP/s"\npeak_fp8 = "1214 TFLOP/s"\n'
    )
    warnings = catalog.device_from_file(file).warnings
    assert any("peak_fp8 is 4.0 times" in line and "sparsity" in line for line in warnings)
    file.write_text(file.read_text().replace("1214", "607"))
    assert not catalog.device_from_file(file).warnings


def test_c17_a_9b_draft_never_pays_for_17b_active(shared: Path) -> None:
    """C17-c: not even with every draft accepted. C17-d: at alpha 0.6-0.8 it loses a tenth or more (measured: a third)."""
    setting = specmodel.deploy(
        str(shared / "cases" / "configs" / "qwen3.5-397b-a17b.json"),
        "apple-m3-ultra-512gb",
        fidelity="datasheet",
        memory_fraction=1.0,
    )
    step = float(setting.plain_seconds(1, 512))
    draft_step = 9e9 * 2.0 / setting.device.bandwidth_bytes_per_s  # its weights, at the target's 16 bit
    cost = draft_step / step
    # The target reads 16.3e9 weights per token (C17-a): 0.55 of its step, less what else a step does.
    assert cost == pytest.approx(9e9 / 16331161600, rel=0.05)
    for alpha, most in ((1.0, 1.01), (0.6, 0.9), (0.8, 0.9)):
        found = specmodel.optimize(
            draft_cost=cost, alpha=alpha, k=3, max_k=3, deployment=setting, batch=1, context=512
        )
        assert found.best.speedup < most
    best = specmodel.optimize(draft_cost=cost, alpha=0.8, deployment=setting, batch=1, context=512).best
    assert best.k == 0


def test_c19_bytes_of_cards(shared: Path) -> None:
    """C19-c: what the driver reports, in MiB; a card sold as 80 GB has more than 80e9 bytes."""
    reported = case(shared, "c19")["inputs"]["cards_reported_MiB"]  # type: ignore[index]
    ids = {
        "H100-80GB": "h100-sxm",
        "A100-80GB": "a100-sxm-80",
        "A100-40GB": "a100-sxm-40",
        "L40S": "l40s",
    }
    for card, identity in ids.items():
        assert catalog.device(identity).memory_bytes == pytest.approx(reported[card] * 2**20, rel=0.005)


def test_c13_and_c19_every_printed_size_says_which_gigabyte() -> None:
    """C13-f, C19-d: GB and GiB stand beside each other, and sums are of bytes."""
    found = specmodel.memory(specmodel.deploy("gemma-3-27b", "a100"), context=131072)
    kv = next(line.bytes for line in found.per_gpu if line.line == "kv")
    assert round(kv / 2**30, 3) == 10.406
    assert round(kv / 1e9, 2) == 11.17
    held = sum(line.bytes for line in found.per_gpu)
    assert held - found.short_bytes <= found.gpu_bytes
