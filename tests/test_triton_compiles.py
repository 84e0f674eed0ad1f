"""Kernels become machine code without a GPU: the interpreter accepts more than the compiler does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

COMPILE = """
import importlib
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

KINDS = {
    "i32": "blocks channels columns length modes per_copy programs rows segments signals slots steps tiles n_complex "
           "width g_batch g_channel u_batch u_channel x_batch x_channel x_sample "
           "batch chunks held_batch held_channel passed_batch",
    "fp32": "rate eps momentum",
    "*fp64": "system sampled chains over parts",
    "*bf16": "x y dx dy u g states adjoints other others p dout around",
    "*u8": "mask",
    "*i32": "broken",
}
KIND = {argument: kind for kind, arguments in KINDS.items() for argument in arguments.split()}


def compile(name, warps=1, fixed=None, **others):
    module, _, name = name.partition(".")
    kernel = getattr(importlib.import_module(f"wavessm.ops.triton.{module}"), name + "_kernel")
    kinds = {argument: others.get(argument, KIND.get(argument, "*fp32")) for argument in kernel.arg_names}
    fixed = {key: value for key, value in fixed.items() if key in kinds}
    source = ASTSource(kernel, {**kinds, **dict.fromkeys(fixed, "constexpr")}, fixed)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert made.asm["cubin"]
    print(name + "_kernel")


def sizes(rank, slots, directions):
    return {"RANK": rank, "N": slots, "DIRECTIONS": directions, "M": 64, "BITS": 6, "W": 2 * slots, "ROWS": 16}


for low in (sizes(1, 32, 2), sizes(2, 16, 1)):
    compile("low_rank.resolve", 1, low)
    compile("low_rank.chain", 1, low)
    compile("low_rank.decay", 4, low)
    compile("low_rank.chain_gradient", 1, low, dq="*fp64", dp="*fp64")
    compile("low_rank.resolve_gradient", 1, low, rows="*fp32")
for rows in ({"R": 8, "FIRST": False}, {"R": 32, "FIRST": True, "mask": None}):
    for name in ("norm", "norm_gradient", "moments", "merge", "apply", "gradient_sums", "apply_gradient"):
        compile(f"norm.{name}", 4, {"W": 256, "LOOPS": 8, "P": 256, "H": 16} | rows, parts="*fp32")
compile("norm.sum_rows", 8, {"R": 256, "H": 16})

chunk = {"M": 32, "R": 16, "P": 32, "Q": 32, "EVEN": 8}
for dense, precision, reverse, left_out in (
    (False, "bf16", False, ("begin",)),
    (False, "tf32", True, ("K", "across")),
    (True, "bf16", True, ("across", "begin")),
    (True, "fp32", False, ("y", "states")),
):
    form = {**chunk, "N": 16, "DENSE": dense, "PRECISION": precision}
    compile("walk.walk", 4, {**form, "REVERSE": reverse, "ADD": reverse, **dict.fromkeys(left_out)})
    compile("walk.sum", 4, form | ({} if reverse else dict.fromkeys(("other", "others"))))
for reverse in (False, True):
    compile("walk.bridge", 1, {"N": 32, "REVERSE": reverse})
compile("tables.sample", 2, {"N": 32})
compile("tables.table", 4, {"M": 32, "N": 8, "BITS": 5})
for directions in (1, 2):
    compile("tables.table_gradient", 4, {"DIRECTIONS": directions, "M": 32, "N": 8, "BITS": 5}, rows="*fp32")
compile("gate.gate", 4, {"R": 16, "H": 32})
compile("gate.gate_gradient", 4, {"R": 16, "H": 32, "LOOPS": 4})
for left_out in ({}, {"broken": None}):
    compile("scan.rows", 4, {"BLOCK": 32} | left_out)
compile("scan.propagate_nan", 4, {"BLOCK": 32})
compile("gate.gelu", 4, {"BLOCK": 32})
single = {"u": "*fp32", "y": "*fp32", "dy": "*fp32", "dx": "*fp32", "x": "*fp32"}
timed = {"z": "*fp64", "passed": "*fp64", "held": "*fp64", "dz": "*fp64", **single}
compile("irregular.irregular", 1, {"BLOCK": 64, "N": 32}, **timed)
for left_out in ({}, {"dlast": None}):
    compile("irregular.irregular_gradient", 1, {"BLOCK": 64, "N": 32} | left_out, **timed)
"""


def test_every_kernel_compiles_for_hopper():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sources = Path(__file__).parent.parent / "src" / "wavessm" / "ops" / "triton"
    written = [name for file in sources.glob("*.py") for name in re.findall(r"def (\w+_kernel)\(", file.read_text())]
    assert set(done.stdout.split()) == set(written)
