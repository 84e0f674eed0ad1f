"""Host time of a block's training step: what Python, PyTorch's dispatcher and Triton's launches take on one CPU core.

    python benchmarks/host.py --out results/engine

Kernels of the triton backend are compiled and launched to a GPU that does nothing (`no_gpu.py`), and tensors are so
small that PyTorch's own operations are all overhead; the CUDA driver's share of a launch is not in it. `launches`
counts our kernels. The fastest of many steps is reported, in microseconds of processor time.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import wavessm as ws
from common import arguments, report

LAUNCHES: list[Any] = []


def measure(family: str, norm: str, bidirectional: bool, steps: int) -> dict[str, Any]:
    """One row: launches, and times of forward, backward and both."""
    block = ws.ResidualBlock(ws.WaveSSM(32, 16, family=family, bidirectional=bidirectional, backend="triton"), norm)
    x, seed = torch.randn(2, 64, 32, requires_grad=True), torch.randn(2, 64, 32)
    leaves = [x, *block.parameters()]
    torch.autograd.grad(block(x), leaves, seed)
    LAUNCHES.clear()
    torch.autograd.grad(block(x), leaves, seed)
    row = {"block": f"{family}, {norm} norm, {1 + bidirectional} directions", "launches": len(LAUNCHES)}
    times = []
    for _ in range(steps):
        start = time.process_time()
        y = block(x)
        middle = time.process_time()
        torch.autograd.grad(y, leaves, seed)
        times.append((middle - start, time.process_time() - middle))
    forward, backward = (1e6 * min(part) for part in zip(*times, strict=True))
    return {**row, "forward_us": forward, "backward_us": backward, "both_us": forward + backward}


def main() -> None:
    parser = arguments(__doc__, "results/engine")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    from no_gpu import pretend

    pretend(LAUNCHES.append)
    torch.set_num_threads(1)
    kinds = [("morlet", "layer", False), ("morlet", "batch", True), ("legs", "batch", True)]
    report([measure(*kind, options.steps) for kind in kinds], options.out / "host.csv", "host.py")


if __name__ == "__main__":
    main()
