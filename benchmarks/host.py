"""Host time of a block's training step: what Python, PyTorch's dispatcher and Triton's launches take on one CPU core.

    python benchmarks/host.py --out results/engine

Kernels of the triton backend are compiled and launched to a GPU that does nothing (`no_gpu.py`), and tensors are so
small that PyTorch's own operations are all overhead; the CUDA driver's share of a launch is not in it. host.csv has the
fastest of many steps in microseconds of processor time, and how many kernels they launch; launches.csv has each kernel:
a launch through Triton, which looks at all arguments, and one that is like an earlier one (`ops/triton/language.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

import wavessm as ws
from common import Row, arguments, report
from wavessm.ops.triton.language import kernel

Launch = tuple[kernel, tuple[int, ...], tuple, dict[str, Any]]  # and its grid, arguments and options


def fastest_us(work: Callable[[], Any], repeats: int) -> float:
    """Microseconds of processor time of the fastest call."""
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - start)
    return min(times) / 1e3


def measure(family: str, norm: str, bidirectional: bool, steps: int, seen: dict[str, Launch]) -> Row:
    """One row: launches, and times of forward, backward and both. `seen` gets a launch of each kernel."""
    block = ws.ResidualBlock(ws.WaveSSM(32, 16, family=family, bidirectional=bidirectional, backend="triton"), norm)
    x, seed = torch.randn(2, 64, 32, requires_grad=True), torch.randn(2, 64, 32)
    leaves, launches, launch = [x, *block.parameters()], [], kernel.launch

    def note(self: kernel, grid: tuple[int, ...], *inputs: Any, **options: Any) -> None:
        launches.append((self, grid, inputs, options))
        launch(self, grid, *inputs, **options)

    torch.autograd.grad(block(x), leaves, seed)
    with patch.object(kernel, "launch", note):
        torch.autograd.grad(block(x), leaves, seed)
    for made in launches:
        seen[made[0].function.__name__] = made
    times = []
    for _ in range(steps):
        start = time.process_time_ns()
        y = block(x)
        middle = time.process_time_ns()
        torch.autograd.grad(y, leaves, seed)
        times.append((middle - start, time.process_time_ns() - middle))
    forward, backward = (min(part) / 1e3 for part in zip(*times, strict=True))
    return {
        "block": f"{family}, {norm} norm, {1 + bidirectional} directions", "launches": len(launches),
        "forward_us": forward, "backward_us": backward, "both_us": forward + backward,
    }  # fmt: skip


def launch_cost(launch: Launch, repeats: int) -> Row:
    """One row: what a launch of a kernel costs without and with an earlier one like it."""
    itself, grid, inputs, options = launch
    through_triton = itself.function[grid]
    return {
        "kernel": itself.function.__name__, "arguments": len(itself.function.arg_names),
        "through_triton_us": fastest_us(lambda: through_triton(*inputs, **options), repeats),
        "like_an_earlier_one_us": fastest_us(lambda: itself[grid](*inputs, **options), repeats),
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, "results/engine")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    from no_gpu import pretend

    pretend(lambda launch: None)
    torch.set_num_threads(1)
    seen: dict[str, Launch] = {}
    kinds = [("morlet", "layer", False), ("morlet", "batch", True), ("legs", "batch", True)]
    report([measure(*kind, options.steps, seen) for kind in kinds], options.out / "host.csv", "host.py")
    report([launch_cost(launch, options.steps) for launch in seen.values()], options.out / "launches.csv", "host.py")


if __name__ == "__main__":
    main()
