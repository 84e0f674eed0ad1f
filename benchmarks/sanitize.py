"""A training step of a block of every kind, for NVIDIA's checkers to watch: all kernels of the triton backend run.

    compute-sanitizer --tool memcheck python benchmarks/sanitize.py       (also racecheck, initcheck, synccheck)

A kernel that reads or writes where it should not need not change a result, nor end a run; this does. Set
PYTORCH_NO_CUDA_MEMORY_CACHING=1 so that no pool hides what lies beyond a tensor. It needs a GPU.
"""

from __future__ import annotations

import argparse
from itertools import product

import torch

import wavessm as ws

# batch, d_model, d_state, length: full and half tiles, one signal in segments, wide states, odd sizes
SHAPES = ((64, 8, 64, 200), (1, 8, 64, 2048), (32, 8, 128, 100), (3, 5, 7, 333))


def step(family: str, precision: str, norm: str, bidirectional: bool, shape: tuple[int, int, int, int]) -> None:
    """Forward and backward of one block on padded signals."""
    batch, d_model, d_state, length = shape
    layer = ws.WaveSSM(d_model, d_state, family=family, precision=precision, bidirectional=bidirectional)
    block = ws.ResidualBlock(layer, norm=norm, dropout=0.1).cuda()
    x = torch.randn(batch, length, d_model, device="cuda", requires_grad=True)
    lengths = torch.randint(1, length + 1, (batch,))
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        block(x, lengths=lengths).float().square().mean().backward()


def irregular_step(bidirectional: bool) -> None:
    """Forward and backward of a layer at uneven times, with samples missing."""
    layer = ws.WaveSSM(5, 7, bidirectional=bidirectional).cuda()
    x = torch.randn(3, 333, 5, device="cuda")
    x[torch.rand_like(x) < 0.2] = torch.nan
    times = torch.rand(3, 333, device="cuda", dtype=torch.float64).add(0.1).cumsum(1)
    layer(x.requires_grad_(), times=times).square().mean().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["morlet", "legs", "legt"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("sanitize.py: no GPU; the kernels run on NVIDIA GPUs only.")
    for family, precision, shape in product(options.families, options.precisions, SHAPES):
        for norm, bidirectional in (("layer", True), ("batch", False)):
            step(family, precision, norm, bidirectional, shape)
            torch.cuda.synchronize()
            print(family, precision, norm, shape, "ran", flush=True)
    if "morlet" in options.families:
        for bidirectional in (False, True):
            irregular_step(bidirectional)
        torch.cuda.synchronize()
        print("irregular times ran", flush=True)


if __name__ == "__main__":
    main()
