"""The scan alone on a GPU, one direction, against an FFT convolution and reading and writing the signal once.

    python benchmarks/scan.py --out results/engine

Shapes are those of `engine.py` with d_state / 2 complex modes. Outputs and all gradients are compared with the float64
torch scan first; a wrong kernel gets no time. Times include the tables and the launches of a call; `walk_ms` is the
forward walk's kernel alone. "bf16" reads and writes bfloat16, and so does its floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import report
from engine import SHAPES, timed
from wavessm.ops import Engine, run_modes
from wavessm.ops.convolution import convolve
from wavessm.ops.modes import Modes, sample
from wavessm.ops.tables import diagonal_kernel
from wavessm.training.record import write_csv

TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 2e-2}


def problem(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, list[Tensor], Tensor]:
    """u, the modes' parameters and D: modes of all speeds, so that the state matters far beyond a chunk."""
    batch, channels, d_state, length = shape
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device="cuda")

    slots = d_state // 2
    steps = torch.rand(channels, generator=generator, device="cuda") * 4.6 - 6.9
    frequency = torch.pi * torch.arange(slots, device="cuda", dtype=torch.float32)[None]
    parameters = [steps, 0.5 * draw(1, slots) - 0.7, frequency, draw(1, slots, 2), draw(1, channels, slots, 2)]
    return draw(batch, channels, length).to(dtype), parameters, draw(channels)


def worst_error(u: Tensor, parameters: list[Tensor], D: Tensor, precision: str) -> float:
    """Largest relative error of y, the last state and every gradient, on a part of the batch."""

    def run(inputs: list[Tensor], engine: Engine) -> list[Tensor]:
        inputs = [a.detach().requires_grad_() for a in inputs]
        y, last = run_modes(inputs[0], Modes(*inputs[1:-1]), inputs[-1], want_state=True, engine=engine)
        loss = y.double().square().sum() + last.double().square().sum()
        return [y, last, *torch.autograd.grad(loss, inputs)]

    few = [u[:2], *parameters, D]
    ours = run(few, Engine("triton", precision))
    exact = run([a.double() for a in few], Engine("torch"))
    return max(
        float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(ours, exact, strict=True)
    )


def walk_alone(forward: Callable[[], None]) -> float:
    """Milliseconds of the walk's kernel in a forward pass."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            forward()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages() if event.key == "walk_kernel") / 5e3


def measure(task: str, precision: str) -> dict[str, Any]:
    shape = SHAPES[task][:4]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    u, parameters, D = problem(shape, dtype)
    error = worst_error(u, parameters, D, precision)
    if not error < TOLERANCE[precision]:
        raise SystemExit(f"{task}, {precision}: off by {error:.1e}, no time reported.")
    leaves = [a.requires_grad_() for a in (u, *parameters, D)]
    seed, modes, engine = torch.randn_like(u), Modes(*parameters), Engine("triton", precision)

    def forward() -> None:
        with torch.no_grad():
            run_modes(u, modes, D, engine=engine)

    def both() -> None:
        torch.autograd.grad(run_modes(u, modes, D, engine=engine)[0], leaves, seed)

    def by_fft() -> None:
        torch.autograd.grad(convolve(u, diagonal_kernel(sample(modes, 1.0), shape[-1])), leaves[:-1], seed)

    out = torch.empty_like(u)
    return {
        "task": task, **dict(zip(("batch", "channels", "d_state", "length"), shape, strict=True)),
        "precision": precision, "error": error,
        "floor_ms": timed(lambda: out.copy_(u.detach()), "cuda"),
        "walk_ms": walk_alone(forward),
        "forward_ms": timed(forward, "cuda"),
        "both_ms": timed(both, "cuda"),
        "fft_both_ms": timed(by_fft, "cuda") if precision == "fp32" else float("nan"),
        "machine": torch.cuda.get_device_name(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/engine"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("scan.py: no GPU found; this benchmark times the Triton kernel on one.")
    rows = []
    for task in SHAPES:
        if task != "cpu":
            rows += [measure(task, precision) for precision in ("fp32", "tf32", "bf16")]
            write_csv(options.out / "scan.csv", rows)
            print(f"{task}: done", flush=True)
    report(rows, options.out / "scan.csv", "scan.py")


if __name__ == "__main__":
    main()
