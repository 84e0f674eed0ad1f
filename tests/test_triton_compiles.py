"""Kernels become machine code and are launched without a GPU: the interpreter accepts more than the compiler does."""

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
    "*bf16": "x y dx dy u g states adjoints p dout around",
    "*u8": "mask",
    "*i32": "broken largest largest_u largest_g",
}
KIND = {argument: kind for kind, arguments in KINDS.items() for argument in arguments.split()}


def compile(name, warps=1, fixed=None, **others):
    module, _, name = name.partition(".")
    kernel = getattr(importlib.import_module(f"wavessm.ops.triton.{module}"), name + "_kernel").function
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
for dense, precision, reverse, direction, left_out in (
    (False, "bf16", False, 0, ("begin",)),
    (False, "tf32", True, 1, ()),
    (True, "bf16", True, 0, ("begin",)),
    (True, "fp32", False, 1, ("y", "states")),
):
    form = {**chunk, "N": 16, "DENSE": dense, "PRECISION": precision, "DIRECTIONS": 1 + reverse}
    left_out += () if precision == "fp32" else ("largest", "largest_u", "largest_g")
    compile("walk.walk", 4, {**form, "REVERSE": reverse, "DIRECTION": direction, **dict.fromkeys(left_out)})
    compile("walk.sum", 4, form | dict.fromkeys(name for name in left_out if name.startswith("largest_")))
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


LAUNCH = """
import torch
from no_gpu import pretend
launches = []
pretend(launches.append)
from triton.runtime.jit import JITFunction
from wavessm.ops.triton.scan import rows, rows_kernel
from wavessm.ops.triton.norm import norm_kernel

asked, run = [], JITFunction.run
JITFunction.run = lambda self, *arguments, **options: asked.append(self) or run(self, *arguments, **options)

def launch(x, broken=None):
    launches.clear(), asked.clear()
    out = rows(x, broken)
    (name, grid, arguments), = launches
    addresses = [a if a is None or isinstance(a, int) else a.data_ptr() for a in arguments[:3]]
    assert name == "rows_kernel"
    assert addresses == [x.data_ptr(), out.data_ptr(), broken if broken is None else broken.data_ptr()], addresses
    assert arguments[3:-1] == (x.shape[1], x.shape[2], *x.stride()), arguments
    assert arguments[-1] == 64 and grid == (-(-x.shape[2] // 64), -(-x.shape[1] // 64), x.shape[0]), arguments
    return len(asked)

x, y = torch.randn(3, 100, 16).mT, torch.randn(3, 100, 16).mT
assert [launch(x), launch(x), launch(y)] == [1, 0, 0], "a launch like the first needs no look at its arguments"
assert [launch(x, torch.zeros(3, 16, dtype=torch.int32)) for _ in range(2)] == [1, 0], "an argument more"
assert [launch(x.bfloat16()) for _ in range(2)] == [1, 0], "another type"
assert [launch(x[:2]) for _ in range(2)] == [1, 0], "another grid"
assert [launch(x[..., 1:]) for _ in range(2)] == [1, 0], "another length"
odd = torch.randn(3 * 100 * 16 + 1)[1:].view(3, 100, 16).mT
assert odd.data_ptr() % 16 and [launch(odd) for _ in range(2)] == [1, 1], "code for aligned pointers only"
assert launch(x) == 0
for length in range(101, 101 + 1100):  # each is remembered, but not for ever
    rows_kernel.compiled[length] = ()
launch(torch.randn(3, 50, 16).mT)
assert len(rows_kernel.compiled) == 1 and launch(x) == 1

weight, out, statistics = torch.ones(16), torch.empty(3, 100, 16), torch.empty(2, 300)
def norm(eps):
    launches.clear(), asked.clear()
    sizes = {"signals": 1, "rows": 300, "eps": eps, "width": 16, "W": 16, "R": 8, "FIRST": False}
    norm_kernel[(5,)](x.mT, weight, weight, out, statistics, **sizes)
    return launches[0][2][5:], len(asked)
first = norm(1e-5)
assert first == ((1e-5, 1, 300, 16, 8, 16, False), 1), first
assert norm(1e-5) == (first[0], 0) and norm(1e-3)[0][0] == 1e-3, "options in the order of the parameters"
"""

DEVICES = """
import contextlib
from concurrent.futures import ThreadPoolExecutor
import torch
import triton
from no_gpu import pretend
launches, loaded, now = [], [], [0]
pretend(launches.append)
from triton.runtime.driver import driver
from wavessm.ops.triton.scan import rows_kernel

gpu = driver.active
gpu.get_current_device = torch.cuda.current_device = lambda: now[0]
gpu.load_binary = lambda name, binary, shared, device: loaded.append(device) or (1, device, 32, 0, 1024)
gpu.launcher_cls = lambda source, metadata: lambda x, y, z, stream, function, *rest: launches.append((now[0], function))

@contextlib.contextmanager
def device(index):
    before, now[0] = now[0], index
    yield
    now[0] = before
torch.cuda.device = device

def launch(of_tensors, current, length=64):
    class OnGPU(torch.Tensor):
        def get_device(self):
            return of_tensors
    launches.clear()
    now[0] = current
    x, out = (torch.empty(1, 64, length).as_subclass(OnGPU) for _ in range(2))
    rows_kernel[(1, 1, 1)](x, out, None, 64, length, *x.stride(), BLOCK=64, num_warps=4)
    assert now[0] == current
    return launches[0]

for _ in range(2):  # the second time as it was remembered
    for of_tensors, current in ((1, 0), (0, 1), (0, 0), (1, 1)):
        got = launch(of_tensors, current)
        assert got == (of_tensors, of_tensors), f"launched on GPU {got[0]} what is loaded on {got[1]}, not {of_tensors}"
assert loaded == [1, 0]
if hasattr(triton, "AsyncCompileMode"):
    with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
        assert launch(0, 0, length=65) == (0, 0)
"""


@pytest.mark.parametrize("script", [LAUNCH, DEVICES], ids=["what it passes", "where it runs"])
def test_a_launch_like_an_earlier_one_does_the_same_without_triton_looking_at_it(script):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = str(Path(__file__).parent.parent / "benchmarks"), *filter(None, [environment.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
