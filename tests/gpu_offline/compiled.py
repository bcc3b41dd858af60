"""The Triton kernels compiled to machine code for GPUs that are not here: registers, shared memory, spills.

Run as ``python -m pytest -s tests/gpu_offline/compiled.py`` without TRITON_INTERPRET; needs the extra
``gpu``. The assembler (ptxas) comes with Triton.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from specmodel.hardware.kernels import cuda

if os.environ.get("TRITON_INTERPRET"):
    pytest.exit("unset TRITON_INTERPRET: interpreted kernels are not compiled", returncode=2)

# CUDA C++ programming guide, table of technical specifications: shared memory per thread block.
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
CASES = [
    (arch, kv, width)
    for arch in (80, 90, 100)
    for kv in ("bf16", "fp8e4nv")
    for width in (1, 5, 9, 17)
    if not (arch == 80 and kv == "fp8e4nv")  # fp8 conversion needs 8.9
]


def compile_split(arch: int, kv: str, width: int, group: int = 4, head_dim: int = 128) -> Any:
    """The split kernel of a layer like Llama-3.1-8B's, at the launch that `attention` uses by default."""
    launch = cuda.launch_of(cuda.rows_of(width, group))
    constants = {
        "KV_HEADS": 8,
        "GROUP": group,
        "D": head_dim,
        "ROWS": cuda.rows_of(width, group),
        "BLOCK": launch.block,
    }
    signature = {
        "Q": "*bf16",
        "K": f"*{kv}",
        "V": f"*{kv}",
        "Lengths": "*i32",
        "Seen": "*i64",
        "Total": "*fp32",
        "LogMass": "*fp32",
        "width": "i32",
        "capacity": "i32",
        "scale": "fp32",
        "v_scale": "fp32",
    } | dict.fromkeys(constants, "constexpr")
    # Pointers and the cache's capacity are multiples of 16 in use; Triton specialises on that at launch.
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 2, 3, 4, 5, 6, 8)}
    source = ASTSource(cuda._attend_split, signature, constants, aligned)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def assembler_report(ptx: str, arch: int, folder: Path) -> tuple[int, int]:
    """Registers per thread and bytes spilled, as ptxas reports them."""
    target = re.findall(r"\.target (sm_\w+)", ptx)[0]
    (folder / "kernel.ptx").write_text(ptx)
    command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", "kernel.ptx", "-o", "kernel.cubin"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    registers = max(int(used) for used in re.findall(r"Used (\d+) registers", said))
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    return registers, spilled


@pytest.mark.parametrize(("arch", "kv", "width"), CASES)
def test_the_split_kernel_compiles_without_spilling(arch: int, kv: str, width: int, tmp_path: Path) -> None:
    compiled = compile_split(arch, kv, width)
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    registers, spilled = assembler_report(compiled.asm["ptx"], arch, tmp_path)
    shared = compiled.metadata.shared
    used = f"{registers:3} registers, {shared // 1024:3} KiB shared, {spilled} B spilled"
    print(f"\nsm_{arch} {kv:8} width {width:2}: {used}")
    assert spilled == 0
    assert shared <= SHARED_LIMIT[arch]
    # Keys and values are fetched while earlier ones are multiplied: asynchronous copies, several in flight.
    assert "cp.async" in compiled.asm["ptx"]
    # Scores and sums run on tensor cores.
    assert re.search(r"mma\.sync|wgmma|tcgen05", compiled.asm["ptx"])


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_the_combining_kernel_compiles_without_spilling(arch: int, tmp_path: Path) -> None:
    constants = {"KV_HEADS": 8, "GROUP": 4, "D": 128, "SPLITS": 64}
    signature = {"Total": "*fp32", "LogMass": "*fp32", "Out": "*bf16", "width": "i32", "splits": "i32"}
    source = ASTSource(cuda._combine_splits, signature | dict.fromkeys(constants, "constexpr"), constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})
    registers, spilled = assembler_report(compiled.asm["ptx"], arch, tmp_path)
    print(f"\nsm_{arch} combine: {registers} registers, {spilled} B spilled")
    assert spilled == 0
