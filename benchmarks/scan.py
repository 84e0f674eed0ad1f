"""The scan alone on a GPU, one direction, against an FFT convolution and reading and writing the signal once.

    python benchmarks/engine.py --parts scan --out results/engine

Shapes are those of the blocks, with d_state / 2 complex modes. Outputs and all gradients are compared with the float64
torch scan first; a wrong kernel gets no time. Times include the tables and the launches of a call; `walk_ms` is the
forward walk's kernel alone. "bf16" reads and writes bfloat16, and so does its floor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from common import SHAPES, Row, kernel_ms, machine, median_ms, report
from wavessm.ops import Engine, Modes, run_layer
from wavessm.ops.convolution import convolve, kernel
from wavessm.ops.modes import sample
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
        y, last = run_layer(inputs[0], Modes(*inputs[1:-1]), inputs[-1], want_state=True, engine=engine)
        loss = y.double().square().sum() + last.double().square().sum()
        return [y, last, *torch.autograd.grad(loss, inputs)]

    few = [u[:2], *parameters, D]
    ours = run(few, Engine("triton", precision))
    exact = run([a.double() for a in few], Engine("torch"))
    return max(
        float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(ours, exact, strict=True)
    )


def measure(task: str, precision: str, device: torch.device) -> Row:
    """Times at one shape, once the results have been compared."""
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
            run_layer(u, modes, D, engine=engine)

    def both() -> None:
        torch.autograd.grad(run_layer(u, modes, D, engine=engine)[0], leaves, seed)

    def by_fft() -> None:
        torch.autograd.grad(convolve(u, kernel(sample(modes, 1.0), shape[-1])), leaves[:-1], seed)

    out = torch.empty_like(u)
    return {
        "task": task, **dict(zip(("batch", "channels", "d_state", "length"), shape, strict=True)),
        "precision": precision, "error": error,
        "floor_ms": median_ms(lambda: out.copy_(u.detach()), device),
        "walk_ms": kernel_ms(forward, 5, "walk_kernel"),
        "forward_ms": median_ms(forward, device),
        "both_ms": median_ms(both, device),
        "fft_both_ms": median_ms(by_fft, device) if precision == "fp32" else float("nan"),
        **machine(device),
    }  # fmt: skip


def table(options: Any, device: torch.device) -> None:
    """The table of all shapes and arithmetics."""
    if device.type != "cuda":
        raise SystemExit("scan: no GPU found; this part times the Triton kernels on one.")
    rows: list[Row] = []
    for task in options.shapes or [name for name in SHAPES if name != "cpu"]:
        rows += [measure(task, precision, device) for precision in ("fp32", "tf32", "bf16")]
        write_csv(options.out / "scan.csv", rows)
    report(rows, options.out / "scan.csv", "engine.py")
