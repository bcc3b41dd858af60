"""The Triton kernel under its interpreter against a float64 reference, and what measures it: no GPU needed.

Run as ``TRITON_INTERPRET=1 python -m pytest tests/gpu_offline/interpreted.py``; needs the extra ``gpu``. A
plain pytest does not collect this file. What needs a GPU to be measured (graphs, events, ceilings, clocks) is
replaced; shapes, buffers, formats and files are not.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from specmodel.errors import InputError
from specmodel.hardware.kernels import LayerShape, cuda, tree
from specmodel.hardware.machine import Ceilings, Grid, Point
from specmodel.hardware.measure import machine_of, measure
from specmodel.hardware.on_cuda import CudaMachine

if not os.environ.get("TRITON_INTERPRET"):
    pytest.exit("set TRITON_INTERPRET=1: there is no GPU in these checks", returncode=2)

# A 16-bit product is exact in float32; what is lost: the 16-bit softmax weights and the 16-bit result.
# bf16 keeps 8 bits (2**-9 relative each), fp16 11; outputs are weighted means of values of about 1.
TOLERANCE = {torch.bfloat16: 2**-6, torch.float16: 2**-9}


@pytest.fixture(autouse=True)
def products_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter keeps bf16 as its 16 bits and multiplies those as integers: widen them first."""
    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    monkeypatch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda self, a, b, *rest: multiply(self, widened(a), widened(b), *rest),
    )


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention as it is defined, in float64: loop over sequences, queries and heads."""
    batch, width, heads, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for b in range(batch):
        length = int(lengths[b])
        for i in range(width):
            tokens = list(range(length - width))
            tokens += [length - width + j for j in range(width) if int(seen[b, i]) >> j & 1]
            for h in range(heads):
                keys, values = k[b, h // group, tokens].double(), v[b, h // group, tokens].double()
                weights = torch.softmax(keys @ q[b, i, h].double() * scale, 0)
                out[b, i, h] = weights @ values
    return out


def draw(seed: int) -> tuple[Any, ...]:
    """One random problem: shapes, ragged lengths and a mask, all from the seed."""
    pick = random.Random(seed)
    width, group = pick.randint(1, 9), pick.randint(1, 8)
    kv_heads, batch, head_dim = pick.choice((1, 2)), pick.randint(1, 3), pick.choice((16, 64, 128))
    capacity = pick.randint(width, 260)
    lengths = torch.tensor([pick.randint(width, capacity) for _ in range(batch)], dtype=torch.int32)
    parents = [[-1] + [pick.randrange(i) for i in range(1, width)] for _ in range(batch)]
    chains = pick.random() < 0.3
    seen = None if chains else torch.tensor([tree(p) for p in parents], dtype=torch.int64)
    q_type = pick.choice((torch.bfloat16, torch.bfloat16, torch.float16))
    fp8 = seed % 3 == 2
    torch.manual_seed(seed)
    q = torch.randn(batch, width, kv_heads * group, head_dim).to(q_type)
    k, v = (torch.randn(batch, kv_heads, capacity, head_dim) for _ in range(2))
    k, v = (t.to(torch.float8_e4m3fn if fp8 else q_type) for t in (k, v))
    # What lies beyond a sequence's end must not matter, not even NaN left there by someone else.
    if not fp8:
        for b, length in enumerate(lengths):
            k[b, :, int(length) :] = float("nan")
            v[b, :, int(length) :] = float("nan")
    return q, k, v, lengths, seen, pick.choice((None, 1, 2, 5)), pick.choice((16, 32, 64))


@pytest.mark.parametrize("seed", range(36))
def test_the_kernel_equals_attention_in_float64(seed: int) -> None:
    q, k, v, lengths, seen, splits, block = draw(seed)
    k_scale, v_scale = (0.5, 2.0) if k.dtype == torch.float8_e4m3fn else (1.0, 1.0)
    got = cuda.attention(
        q, k, v, lengths, seen, splits=splits, launch=cuda.Launch(block), k_scale=k_scale, v_scale=v_scale
    )
    if seen is None:
        width = q.shape[1]
        seen = torch.tensor([[(1 << (i + 1)) - 1 for i in range(width)]] * q.shape[0])
    expected = reference(q, k, v, lengths, seen, q.shape[3] ** -0.5 * k_scale) * v_scale
    tolerance = TOLERANCE[q.dtype] * v_scale
    assert got.dtype == q.dtype
    assert torch.isfinite(got).all()
    assert float((got.double() - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


def test_the_number_of_splits_fills_the_gpu_without_waste() -> None:
    assert cuda.splits_of(programs=1024, blocks=128, slots=264) == 1  # 3.9 rounds
    assert cuda.splits_of(programs=8, blocks=128, slots=264) == 30  # 240 of 264 busy, near the best 33
    assert cuda.splits_of(programs=8, blocks=2, slots=264) == 2  # no more splits than blocks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "must fit q"),
        ({"head_dim": 48}, "must be 16, 32, 64, 128 or 256"),
        ({"q_type": torch.float32}, "must be bfloat16 or float16"),
        ({"k_type": torch.float16}, "must be torch.bfloat16 or torch.float8_e4m3fn"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    size: dict[str, Any] = {
        "heads": 4,
        "head_dim": 64,
        "q_type": torch.bfloat16,
        "k_type": torch.bfloat16,
    } | change
    q = torch.zeros(1, 1, size["heads"], size["head_dim"], dtype=size["q_type"])
    k = torch.zeros(1, 2, 8, size["head_dim"], dtype=size["k_type"])
    with pytest.raises(InputError, match=message):
        cuda.attention(q, k, k, torch.tensor([8], dtype=torch.int32))


TINY = LayerShape("tiny", 64, 4, 2, 16, 96)


class StandIn(CudaMachine):
    """A CUDA machine without CUDA."""

    trial = (1, 40)

    def __init__(self) -> None:
        self.place = torch.device("cpu")
        self.name, self.device = "NVIDIA Stand-In", "nvidia-stand-in"
        self.memory_bytes, self.l2_bytes, self.capability = 1e9, 1e6, (9, 0)
        self._prepare(4e6)

    def _replayed(self, run: Callable[[int], object], moved_bytes: float) -> Callable[[], float]:
        def sample() -> float:
            start = time.perf_counter()
            run(3)
            return time.perf_counter() - start

        assert moved_bytes > 0
        return sample

    def ceilings(self) -> Ceilings:
        return Ceilings(3e12, 2.8e12, {"bf16": 700e12, "fp8": 1300e12})

    def identity(self) -> Mapping[str, Any]:
        return {"gpu": self.name}

    def state(self) -> Mapping[str, Any]:
        return {}


def test_every_kind_and_format_runs_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specmodel.hardware.measure.LAYERS", {"tiny": TINY})
    machine = StandIn()
    grid = Grid(("tiny",), (1, 2), (40,), (1, 3), (40,), (1, 3), 64, 1e6, visits=1, visit_s=0.0)
    done = measure("cuda", tmp_path / "gpu.csv", machine=machine, grid=grid)
    assert done.complete
    text = (tmp_path / "gpu-attention.csv").read_text()
    assert "# gpu nvidia-stand-in" in text
    assert {line.split(",")[1] for line in text.splitlines() if line.startswith("specmodel,")} == {
        "bf16",
        "fp8",
    }
    assert "bfloat16" in (tmp_path / "gpu-gemm.csv").read_text()
    assert 'peak_fp8 = { value = 1.3e+15, unit = "FLOP/s"' in (tmp_path / "gpu.toml").read_text()


def test_the_kernel_is_checked_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = StandIn()
    machine.check()
    right = cuda.attention
    monkeypatch.setattr(cuda, "attention", lambda *args, **rest: right(*args, **rest) * 1.1)
    with pytest.raises(InputError, match="the kernel is wrong by"):
        machine.check()


def test_a_verified_layer_gives_what_decoding_token_by_token_gives() -> None:
    torch.manual_seed(0)
    weights = {name: (torch.randn(size) * 0.1).bfloat16() for name, size in TINY.matrices.items()}
    width, lengths = 4, torch.tensor([30, 17], dtype=torch.int32)
    k, v = torch.randn(2, 2, 2, 40, 16).bfloat16()
    k_wide, v_wide = k.clone(), v.clone()
    x = torch.randn(2, width, 64).bfloat16()
    seen = torch.tensor([tree((-1, 0, 1, 2))] * 2)
    wide = cuda.layer_pass(TINY, weights, k_wide, v_wide, x, lengths, seen)
    for i in range(width):
        at = lengths - width + i + 1
        narrow = cuda.layer_pass(
            TINY, weights, k, v, x[:, i : i + 1].contiguous(), at, torch.ones(2, 1).long()
        )
        torch.testing.assert_close(wide[:, i : i + 1], narrow, rtol=0.03, atol=0.06)
    torch.testing.assert_close(k_wide, k, rtol=0.02, atol=0.02)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"no usable NVIDIA GPU|built without CUDA") as caught:
        machine_of("cuda")
    assert "\n" not in str(caught.value)


def test_windows_never_leave_the_pool() -> None:
    machine = StandIn()
    for turn in range(50):
        for name in ("bf16", "int8", "fp8"):
            assert machine.window(turn, (3, 999), name).shape == (3, 999)
    assert Point("attention", TINY, (2, 40, 3), cache="fp8").fields("x") == (
        "x",
        "fp8",
        "4",
        "2",
        "16",
        "2",
        "43",
        "3",
    )
