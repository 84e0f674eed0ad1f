"""The scan kernel alone on a GPU, against an FFT convolution and against reading and writing the signal once.

    python benchmarks/scan.py --out results/engine

Shapes are those of `engine.py` with d_state / 2 modes. Outputs and all gradients are compared with the float64 torch
scan first; a wrong kernel gets no time. "bf16" reads and writes bfloat16, and so does its floor.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import report
from engine import SHAPES, timed
from wavessm.lab.record import write_csv
from wavessm.ops import diagonal_scan, scan
from wavessm.ops.tables import kernel

TOLERANCE = {"fp32": 3e-6, "tf32": 4e-3, "bf16": 2e-2}


def problem(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Slow, barely damped modes, so that the state matters far beyond a chunk."""
    batch, channels, d_state, length = shape
    generator = torch.Generator("cuda").manual_seed(0)
    draw = {"generator": generator, "device": "cuda"}
    size = (channels, d_state // 2)
    log_lam = torch.stack([-(10 ** (-3.5 + 2.5 * torch.rand(size, **draw))), 3 * torch.rand(size, **draw)], dim=-1)
    w = torch.randn(*size, 2, **draw) / size[1] ** 0.5
    return [torch.randn(batch, channels, length, **draw).to(dtype), log_lam, w, torch.randn(batch, *size, 2, **draw)]


def worst_error(arguments: list[Tensor], precision: str) -> float:
    """Largest relative error of y, the last state and every gradient, on a part of the batch."""
    few = [arguments[0][:2], *arguments[1:3], arguments[3][:2]]

    def run(inputs: list[Tensor], op: Any) -> list[Tensor]:
        inputs = [a.detach().requires_grad_() for a in inputs]
        y, last = op(*inputs)
        return [y, last, *torch.autograd.grad(y.double().square().sum() + last.double().square().sum(), inputs)]

    ours = run(few, lambda *a: diagonal_scan(*a, backend="triton", precision=precision))
    exact = run([a.double() for a in few], scan.diagonal_scan)
    return max(
        float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(ours, exact, strict=True)
    )


def fft_convolution(u: Tensor, log_lam: Tensor, w: Tensor) -> Tensor:
    size = 2 * u.shape[-1]
    K = kernel(log_lam, w, u.shape[-1]).float()
    return torch.fft.irfft(torch.fft.rfft(u, n=size) * torch.fft.rfft(K, n=size), n=size)[..., : u.shape[-1]]


def measure(task: str, precision: str) -> dict[str, Any]:
    shape = SHAPES[task][:4]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    arguments = problem(shape, dtype)
    error = worst_error(arguments, precision)
    if not error < TOLERANCE[precision]:
        raise SystemExit(f"{task}, {precision}: off by {error:.1e}, no time reported.")
    u, log_lam, w, _ = [a.requires_grad_() for a in arguments]
    seed = torch.randn_like(u)

    def forward() -> None:
        with torch.no_grad():
            diagonal_scan(u, log_lam, w, backend="triton", precision=precision)

    def both(op: Any) -> None:
        torch.autograd.grad(op(), (u, log_lam, w), seed)

    out = torch.empty_like(u)
    row = {
        "task": task, **dict(zip(("batch", "channels", "d_state", "length"), shape, strict=True)),
        "precision": precision, "error": error,
        "floor_ms": timed(lambda: out.copy_(u.detach()), "cuda"),
        "forward_ms": timed(forward, "cuda"),
        "both_ms": timed(lambda: both(lambda: diagonal_scan(u, log_lam, w, None, "triton", precision)[0]), "cuda"),
    }  # fmt: skip
    if precision == "fp32":
        row["fft_both_ms"] = timed(lambda: both(lambda: fft_convolution(u, log_lam, w)), "cuda")
    return {**row, "fft_both_ms": row.get("fft_both_ms", float("nan")), "machine": torch.cuda.get_device_name()}


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
