"""Kernels become machine code for a GPU that is not there: the interpreter takes more than the compiler does."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wavessm.ops import triton_batch_norm, triton_chain_gradients, triton_chains, triton_sums

DOUBLES = {"system", "chains", "over", "dq", "dp", "parts"}
NUMBERS = {"channels", "per_copy", "modes", "turning", "slots", "width", "programs"}
FLOATS = {"rate", "eps", "momentum"}


def compile(module, name, doubles=(), warps=1, **fixed):
    kernel = getattr(module, name)
    kinds = {}
    for argument in kernel.arg_names:
        pointer = "*fp64" if argument in doubles else "*bf16" if argument in ("x", "y", "dx", "dy") else "*fp32"
        number = argument in NUMBERS or (argument == "rows" and module in (triton_batch_norm, triton_sums))
        kinds[argument] = "i32" if number else "fp32" if argument in FLOATS else pointer
    if "mask" in kinds and "mask" not in fixed:
        kinds["mask"] = "*u8"
    fixed = {key: value for key, value in fixed.items() if key in kinds}
    source = ASTSource(kernel, {**kinds, **dict.fromkeys(fixed, "constexpr")}, fixed)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert made.asm["cubin"]
    print(name)


for rank, slots, directions in ((1, 32, 2), (2, 16, 1)):
    sizes = {"RANK": rank, "N": slots, "DIRECTIONS": directions, "M": 64, "BITS": 6, "W": 2 * slots, "ROWS": 16}
    for name in ("resolve", "chain", "decay", "chain_gradient", "resolve_gradient"):
        module = triton_chain_gradients if name.endswith("gradient") else triton_chains
        compile(module, f"{name}_kernel", DOUBLES, 4 if name == "decay" else 1, **sizes)
for mask in ({}, {"mask": None}):
    for name in ("moments", "merge", "apply", "gradient_sums", "apply_gradient"):
        compile(triton_batch_norm, f"{name}_kernel", (), 4, R=8, W=256, LOOPS=8, P=256, H=16, **mask)
compile(triton_sums, "sum_rows_kernel", (), 8, R=256, H=16)
"""


def test_kernels_compile_for_hopper():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 21
