"""A training step and a forward pass of one block, ours against its peers, at the seven shapes of the paper's tasks.

    python benchmarks/engine.py --out results/engine [--s4 PATH]

A block is the sequence layer with its direct path, GELU, and a gated projection. Peers: the official S4 and S4D blocks
from a checkout of state-spaces/s4 given by path (its CUDA extension is used if it was built there), PyTorch's attention
and LSTM at the same width, on a CPU the `s5-pytorch` layer where it is installed, and the floor: reading and writing
the sequence once. Before any time is taken, the layer's output is compared with the float64 convolution by its own
kernel; a wrong layer gets no time. One process, one run.

A step is timed as Python starts it (step_ms); on a GPU ours also as one CUDA graph (captured_ms). The official S4 block
refuses to be captured, and the attempt spoils the process, so it is not made; busy_ms, for all of them, is what the
kernels of a step take by themselves, the least that any way of starting them could reach.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import wavessm as ws
from common import report
from wavessm.training.record import write_csv

# task: batch, d_model, d_state, length, bidirectional
SHAPES = {
    "listops": (50, 256, 64, 2048, True),
    "text": (16, 256, 64, 4096, True),
    "image": (50, 512, 64, 1024, True),
    "sc35": (16, 128, 64, 16_000, True),
    "pathx": (32, 256, 128, 16_384, True),
    "ptbxl": (16, 256, 64, 1000, True),
    "64k": (1, 256, 64, 65_536, False),
    "cpu": (8, 64, 64, 4096, True),
}
NOTHING = dict.fromkeys(("step_ms", "captured_ms", "busy_ms", "forward_ms", "peak_gib"), float("nan"))
TOLERANCE = {"fp32": 2e-5, "tf32": 1e-2, "bf16": 3e-2}


class Block(nn.Module):
    """Layer, GELU, gated projection."""

    def __init__(self, layer: nn.Module, d_model: int) -> None:
        super().__init__()
        self.layer, self.project = layer, nn.Linear(d_model, 2 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.project(F.gelu(self.layer(x))), dim=-1)


class Mixed(nn.Module):
    """The same of our own block."""

    def __init__(self, layer: ws.WaveSSM) -> None:
        super().__init__()
        self.block = ws.ResidualBlock(layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.block.mix(x)[0]


class Attention(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, max(1, d_model // 64), batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class LSTM(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.LSTM(d_model, d_model, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class First(nn.Module):
    """S4's blocks return (output, state)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


def ours(shape: tuple, device: str, **options: Any) -> nn.Module:
    _, d_model, d_state, _, bidirectional = shape
    layer = ws.WaveSSM(d_model, d_state, bidirectional=bidirectional, **options).to(device)
    check(layer, shape, options.get("precision", "fp32"))
    return Mixed(layer).to(device)


def check(layer: ws.WaveSSM, shape: tuple, precision: str) -> None:
    """The layer's output on one sequence against a float64 convolution with its kernel."""
    _, d_model, _, length, bidirectional = shape
    x = torch.randn(1, length, d_model, device=layer.D.device)
    with torch.no_grad():
        K, u = layer.kernel(length), x.double().transpose(1, 2)
        size = 2 * length
        expected = torch.fft.irfft(torch.fft.rfft(u, n=size) * torch.fft.rfft(K[0], n=size), n=size)[..., :length]
        if bidirectional:
            back = torch.fft.rfft(u.flip(-1), n=size) * torch.fft.rfft(K[1], n=size)
            expected = expected + torch.fft.irfft(back, n=size)[..., :length].flip(-1)
        expected = expected.transpose(1, 2) + layer.D * x
        error = float((layer(x) - expected).norm() / expected.norm())
    if not error < TOLERANCE[precision]:
        raise ValueError(f"off by {error:.1e} (precision {precision}), no time reported")


def contenders(shape: tuple, device: str, s4: Path | None) -> dict[str, Callable[[], nn.Module]]:
    _, d_model, d_state, length, bidirectional = shape
    cuda = device == "cuda"
    named: dict[str, Callable[[], nn.Module]] = {
        f"wavessm diagonal {p}": (lambda p=p: ours(shape, device, family="morlet", precision=p))
        for p in (("fp32", "tf32", "bf16") if cuda else ("fp32",))
    }
    for p in ("fp32", "tf32") if cuda else ("fp32",):
        named[f"wavessm dplr {p}"] = lambda p=p: ours(shape, device, family="legs", precision=p)
    if s4 is not None:
        sys.path[:0] = [str(s4), str(s4 / "extensions" / "kernels")]
        from models.s4.s4 import S4Block, has_cuda_extension

        mark = " ext" if has_cuda_extension else ""
        for mode, init in (("dplr", "legs"), ("diag", "diag-lin")):
            named[f"s4 {mode}{mark}"] = lambda mode=mode, init=init: First(
                S4Block(d_model, bidirectional=bidirectional, transposed=False, mode=mode, init=init, d_state=d_state)
            ).to(device)
    if importlib.util.find_spec("s5") is not None and not cuda:
        from s5 import S5

        named["s5-pytorch"] = lambda: Block(S5(d_model, d_state, bidir=bidirectional), d_model)
    if length <= 16_384 and cuda:
        named["attention"] = lambda: Block(Attention(d_model), d_model).to(device)
    named["lstm"] = lambda: Block(LSTM(d_model), d_model).to(device)
    return named


def timed(work: Callable[[], Any], device: str, seconds: float = 0.5) -> float:
    """Milliseconds: the median over as many runs as fit, after warming up."""

    def once() -> float:
        if device == "cuda":
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            stop.record()
            torch.cuda.synchronize()
            return start.elapsed_time(stop)
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin) * 1e3

    for _ in range(3):
        first = once()
    return float(torch.tensor([once() for _ in range(max(5, min(50, int(seconds * 1e3 / first))))]).median())


def measure(make: Callable[[], nn.Module], shape: tuple, device: str) -> dict[str, float]:
    """Times of a training step and of a forward pass, and the step's peak memory."""
    batch, d_model, _, length, _ = shape
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    model = make()
    x = torch.randn(batch, length, d_model, device=device, requires_grad=True)
    seed = torch.randn_like(x)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        x.grad = None
        model(x).backward(seed)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    row = {**NOTHING, "step_ms": timed(step, device), "forward_ms": timed(forward, device)}
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        row["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        row["busy_ms"] = busy(step)
        if isinstance(model, Mixed):
            row["captured_ms"] = captured(step)
    return row


def busy(step: Callable[[], None], steps: int = 3) -> float:
    """Milliseconds that the kernels of a step take."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / steps / 1e3


def captured(step: Callable[[], None]) -> float:
    """Milliseconds of the step as one CUDA graph."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    return timed(graph.replay, "cuda")


def floor(shape: tuple, device: str) -> dict[str, float]:
    """Reading and writing the sequence once."""
    batch, d_model, _, length, _ = shape
    x = torch.randn(batch, length, d_model, device=device)
    out = torch.empty_like(x)
    return {**NOTHING, "forward_ms": timed(lambda: out.copy_(x), device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/engine"))
    parser.add_argument("--s4", type=Path, help="a checkout of state-spaces/s4")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TF32 in every linear layer, ours and theirs, as S4 is trained
    shapes = options.shapes or ([s for s in SHAPES if s != "cpu"] if device == "cuda" else ["cpu"])
    rows = []
    for task in shapes:
        shape = SHAPES[task]
        labels = dict(zip(("batch", "d_model", "d_state", "length"), shape[:4], strict=True))
        for name, make in contenders(shape, device, options.s4).items():
            try:
                row = measure(make, shape, device)
            except (RuntimeError, ValueError) as reason:
                row = dict(NOTHING)
                print(f"{task}, {name}: failed: {str(reason).splitlines()[0]}", flush=True)
            rows.append({"task": task, **labels, "block": name, **row, "machine": machine, "torch": torch.__version__})
            print(f"{task}: {name}", *(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
        rows.append(
            {
                "task": task,
                **labels,
                "block": "read+write",
                **floor(shape, device),
                "machine": machine,
                "torch": torch.__version__,
            }
        )
        write_csv(options.out / f"{device}.csv", rows)  # what is measured stays measured if a later shape fails
    report(rows, options.out / f"{device}.csv", "engine.py")


if __name__ == "__main__":
    main()
