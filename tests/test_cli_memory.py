"""`specmodel memory` line by line, each byte counted by hand from the published shapes (facts/models.json)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli_runs import Run, answer

BATCH, CONTEXT = 64, 8192
GIB = 2**30


def ledger(run: Run, *arguments: str) -> tuple[dict[str, float], dict[str, Any]]:
    found = answer(run, "memory", "--ctx", str(CONTEXT), "--batch", str(BATCH), *arguments)
    return {line["line"]: line["bytes"] for line in found["per_gpu"]}, found


@pytest.mark.parametrize(("tp", "most"), [(2, 30), (4, 88)])
def test_llama_3_1_70b_in_fp8(run: Run, tp: int, most: int) -> None:
    """80 layers, hidden 8192, 64 query and 8 KV heads of 128, feed-forward 28672, vocabulary 128256."""
    held, found = ledger(
        run, "--model", "llama-3.1-70b", "--weights", "fp8", "--device", "h100", "--tp", str(tp)
    )
    attention = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192)
    assert held["weights attention"] == attention / tp
    assert held["weights dense"] == 80 * 3 * 8192 * 28672 / tp
    assert held["weights embedding"] == held["weights head"] == 128256 * 8192 * 2 / tp  # these stay 16-bit
    assert held["weights norms"] == (2 * 80 + 1) * 8192 * 2  # a copy on every GPU
    per_sequence = 2 * 80 * 1024 * 2 * CONTEXT / tp
    assert held["kv"] == BATCH * per_sequence
    assert held["logits"] == BATCH * 128256 * 4  # float32, gathered
    assert held["reserve outside the engine's share"] == pytest.approx(0.1 * 80 * GIB)
    weights = sum(size for line, size in held.items() if line.startswith("weights"))
    assert found["max_batch"] == int((0.9 * 80 * GIB - weights) / (per_sequence + 128256 * 4)) == most
    assert found["fits"] is (most >= BATCH)
    assert found["short_bytes"] == pytest.approx(max(0.0, sum(held.values()) - 80 * GIB))


def test_deepseek_v3_in_fp8_on_eight_h200(run: Run) -> None:
    """61 layers, the first 3 dense; 256 experts of 2048; latent 512 + 64, one copy on every GPU."""
    held, found = ledger(run, "--model", "deepseek-v3", "--device", "h200", "--tp", "8")
    scales = 1 + 4 / 128**2  # a float32 per block of 128 x 128
    assert held["weights experts"] == pytest.approx(58 * 256 * 3 * 7168 * 2048 / 8 * scales)
    assert held["weights shared experts"] == pytest.approx(58 * 3 * 7168 * 2048 / 8 * scales)
    assert held["weights dense"] == pytest.approx(3 * 3 * 7168 * 18432 / 8 * scales)
    down = 7168 * 1536 + 7168 * (512 + 64)  # replicated
    up = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168  # over the heads
    assert held["weights attention"] == pytest.approx(61 * (down + up / 8) * scales)
    assert held["kv"] == BATCH * CONTEXT * 61 * 576 * 2
    assert found["fits"] is True
    assert found["max_batch"] == 88
    assert found["limiting_rank"] == "0-7"


@pytest.mark.parametrize("extra", [(), ("--weights", "mxfp4")])
def test_gpt_oss_120b_in_mxfp4(run: Run, extra: tuple[str, ...]) -> None:
    """36 layers, every other with a window of 128; experts in 4.25 bits, the rest in 16: asked for or not."""
    held, found = ledger(run, "--model", "gpt-oss-120b", "--device", "h100", *extra)
    assert held["weights experts"] == 36 * 128 * 3 * 2880 * 2880 * 4.25 / 8
    attention = 2880 * (64 + 2 * 8) * 64 + 64 * 64 * 2880
    assert held["weights attention"] == 36 * attention * 2
    assert held["weights head"] == 201088 * 2880 * 2
    assert held["kv"] == BATCH * 18 * 2 * 8 * 64 * 2 * (CONTEXT + 128)
    assert found["fits"] is False
    assert 0 < found["max_batch"] < BATCH
    assert any("does not fit" in warning and "GB too little" in warning for warning in found["warnings"])


def test_gemma_3_27b_in_bf16(run: Run) -> None:
    """62 layers, 10 of them full and 52 with a window of 1024; 32 query and 16 KV heads of 128; tied."""
    held, found = ledger(run, "--model", "gemma-3-27b", "--device", "a100-80")
    assert held["weights attention"] == 62 * (5376 * (4096 + 2 * 2048) + 4096 * 5376) * 2
    assert held["weights dense"] == 62 * 3 * 5376 * 21504 * 2
    assert held["weights embedding"] == 262208 * 5376 * 2
    assert "weights head" not in held
    assert held["kv"] == BATCH * 2 * 16 * 128 * 2 * (10 * CONTEXT + 52 * 1024)
    assert found["fits"] is False


def test_qwen3_30b_a3b_with_an_eagle3_head(run: Run) -> None:
    """48 layers, 128 experts of 768, 32 query and 4 KV heads of 128, hidden 2048; the head by the family rule."""
    held, found = ledger(run, "--model", "qwen3-30b-a3b", "--device", "h100", "--draft", "eagle3", "--k", "4")
    assert held["weights experts"] == 48 * 128 * 3 * 2048 * 768 * 2
    assert held["weights router"] == 48 * 128 * 2048 * 2
    qkv, out, feed = 2 * 2048 * (32 + 2 * 4) * 128, 32 * 128 * 2048, 3 * 2048 * 4 * 2048
    head = 3 * 2048 * 2048 + qkv + out + feed + 32000 * 2048
    assert held["draft weights"] == pytest.approx(2 * head, rel=1e-3)  # norms come on top
    assert held["kv"] == BATCH * CONTEXT * 48 * 2 * 4 * 128 * 2
    assert held["draft kv"] == BATCH * CONTEXT * 2 * 4 * 128 * 2
    assert held["logits"] == BATCH * 5 * 151936 * 4
    assert any("family rule" in line for line in found["assumptions"])
    assert any("four times the hidden size" in line for line in found["assumptions"])


def test_memory_of_another_size_changes_the_batch_and_nothing_else(run: Run) -> None:
    held, found = ledger(run, "--model", "llama-3.1-8b", "--device", "h100", "--memory", "160 GiB")
    plain, before = ledger(run, "--model", "llama-3.1-8b", "--device", "h100")
    assert held["kv"] == plain["kv"]
    assert found["gpu_bytes"] == 2 * before["gpu_bytes"] == 160 * GIB
    assert found["max_batch"] == before["max_batch"] + int(0.9 * 80 * GIB / (CONTEXT * 131072 + 128256 * 4))


def test_the_table_names_both_gigabytes_and_what_is_short(run: Run) -> None:
    code, out, _ = run("memory", "--model", "llama-3.1-70b", "--device", "h100", "--ctx", "8192")
    assert code == 0
    shown = " ".join(out.split())
    assert "GB GiB" in shown
    assert "DOES NOT FIT" in shown
    assert "too little on GPU 0" in shown
