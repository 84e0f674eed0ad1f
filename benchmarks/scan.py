"""The scan alone on a GPU, one direction, against an FFT convolution and reading and writing the signal once.

    python benchmarks/engine.py --parts scan --out results/engine
    python benchmarks/engine.py --parts cuts --out results/engine --shapes listops text pathx

Shapes are those of the blocks, with d_state / 2 complex modes. Outputs and all gradients are compared with the float64
torch scan first; a wrong kernel gets no time. Times include the tables and the launches of a call; `walk_ms` is the
forward walk's kernel alone. "bf16" reads and writes bfloat16, and so does its floor. `cuts` times the kernels of a
bidirectional layer in fp32 by other settings too, the first row of each kernel by those of `ops/triton/plan.py`.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

import wavessm as ws
from common import SHAPES, Row, kernel_ms, machine, median_ms, report
from wavessm.ops import Engine, Modes, run_layer
from wavessm.ops.convolution import convolve, kernel
from wavessm.ops.modes import sample
from wavessm.ops.triton.plan import Settings, default_chunk, default_settings
from wavessm.ops.triton.scan import run_layer as run_kernels
from wavessm.training.record import write_csv

TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 2e-2}
WALKS = ((16, 4, 3), (32, 4, 2), (32, 8, 2), (64, 4, 1), (64, 8, 1))  # tile, warps, stages
SUMS = ((64, 64, 4, 1), (64, 32, 4, 1), (64, 64, 8, 1), (64, 32, 8, 2), (32, 32, 4, 2), (32, 32, 8, 2))
"""Part, block, warps and stages of the gradients' sums."""


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


def one_cut(task: str, family: str, cut: Settings) -> list[Tensor]:
    """y of a layer by these settings and the gradients of its input, of B and of C."""
    shape = SHAPES[task]
    torch.manual_seed(0)
    layer = ws.WaveSSM(shape.d_model, shape.d_state, family=family, bidirectional=shape.bidirectional).cuda()
    system, u = layer.system(), torch.randn(shape.batch, shape.d_model, shape.length, device="cuda", requires_grad=True)
    y, _ = run_kernels(u, system, layer.D, settings=cut)
    return [y.detach(), *torch.autograd.grad(y, [u, system.B, system.C], torch.randn_like(y))]


def compile_cut(*arguments: Any) -> str:
    """Leave the kernels of a cut in Triton's cache, in a process of its own; the reason if that fails."""
    try:
        one_cut(*arguments)
    except Exception as reason:
        return f"{type(reason).__name__}: {reason}".partition("\n")[0]
    return ""


def cuts_of(task: str, family: str) -> list[tuple[str, str, str, Settings]]:
    """The kernels with their settings, first those that `plan` takes."""
    shape, dense = SHAPES[task], family == "legs"
    width = shape.d_state if dense else shape.d_state // 2
    M = default_chunk(width, "fp32", dense, shape.length)
    taken = default_settings(shape.batch, shape.d_model, width, shape.length, "fp32", dense, M)
    walks = [taken._replace(tile=tile, warps=warps, stages=stages) for tile, warps, stages in WALKS]
    sums = [taken._replace(part=min(P, M), block=Q, warps_back=w, stages_back=s) for P, Q, w, s in SUMS]
    found = ("walk_kernel", [taken, *walks]), ("sum_kernel", [taken, *sums])
    return [(task, family, name, cut) for name, some in found for cut in dict.fromkeys(some)]


def cuts(options: Any, device: torch.device) -> None:
    """The table of cuts, which are compiled side by side before the first is timed."""
    if device.type != "cuda":
        raise SystemExit("cuts: no GPU found; this part times the Triton kernels on one.")
    cases = [(task, family) for task in options.shapes or ("listops", "text", "pathx") for family in ("morlet", "legs")]
    work = [each for case in cases for each in cuts_of(*case)]
    with ProcessPoolExecutor(8, get_context("spawn")) as pool:
        failed = list(pool.map(compile_cut, *zip(*[(task, family, cut) for task, family, _, cut in work], strict=True)))
    rows: list[Row] = []
    expected: dict[tuple[str, str], list[Tensor]] = {}
    for (task, family, name, cut), reason in zip(work, failed, strict=True):
        row: Row = {"task": task, "family": family, "kernel": name, **cut._asdict(), "reason": reason}
        if not reason:
            got = one_cut(task, family, cut)
            want = expected.setdefault((task, family), got)
            row["difference"] = max(float((a - b).norm() / b.norm()) for a, b in zip(got, want, strict=True))
            row["ms"] = kernel_ms(lambda task=task, family=family, cut=cut: one_cut(task, family, cut), 3, name)
        print(*row.values(), flush=True)
        rows.append({**row, **machine(device)})
        expected = {case: kept for case, kept in expected.items() if case == (task, family)}
    report(rows, options.out / "cuts.csv", "engine.py")
