"""The tables of the engine: one block beside its peers, one block at growing lengths, and on a GPU the scan alone.

    python benchmarks/engine.py --out results/engine [--s4 PATH]
    python benchmarks/engine.py --parts blocks --shapes listops text

blocks   a training step and a forward pass at the shapes of the paper's tasks: cuda.csv or cpu.csv
lengths  a training step of one causal block of 256 features from 1k samples to 1M (64k on a CPU): length.csv and .png
scan     see `scan.py`: scan.csv
cuts     see `scan.py`, only if named: cuts.csv
compiled a step of our diagonal block under `torch.compile`: compiled.csv. Last, since no graph can be captured after it

A block is the sequence layer with its direct path, GELU, and a gated projection. Peers: the official S4 and S4D blocks
from a checkout of state-spaces/s4 (with its CUDA extension if it was built there), PyTorch's fused attention in bf16,
LSTM and GRU at the same width, the `s5-pytorch` layer and Mamba-2's (`mamba_ssm`) where they are installed, and the
floor: reading and writing the sequence once. Ours in bf16 has signals in bfloat16 from input to output, under autocast;
"bf16 inside" rounds to it in the scan's products alone.
Before it is timed, the layer's output is compared with the float64 convolution by its own kernel; a wrong layer gets no
time. step_ms is a step as Python launches it; graphed_ms ours after `torch.cuda.make_graphed_callables` (the diagonal
block in fp32 and bf16); captured_ms ours as one CUDA graph (the official S4 block cannot be captured, and a failed
attempt breaks the process); busy_ms what the kernels of a step take by themselves. On a CPU all times are processor
time of one thread.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import scan
import wavessm as ws
from common import SHAPES, Row, Shape, arguments, find_device, kernel_ms, machine, median_ms, report
from peers import Attention, Block, FirstOutput, InBfloat16, official_s4
from wavessm.ops import activate, gate
from wavessm.training.record import write_csv

COLUMNS = ("step_ms", "graphed_ms", "captured_ms", "busy_ms", "forward_ms", "peak_gib")
NOT_MEASURED = dict.fromkeys(COLUMNS, float("nan"))
TOLERANCE = {"fp32": 2e-5, "tf32": 1e-2, "bf16": 3e-2}
COMPILED = ("ptbxl", "listops", "text", "image", "sc35")
OVER_LENGTHS = ("wavessm diagonal fp32", "wavessm diagonal tf32", "wavessm dplr fp32", "s4 dplr", "s4 diag")
Contenders = dict[str, Callable[[], nn.Module]]


class OurBlock(nn.Module):
    """A `ResidualBlock` without norm and residual path, on signals in float32 or, under autocast, bfloat16."""

    def __init__(self, layer: ws.WaveSSM, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer, self.project = layer, ws.ResidualBlock(layer).project
        self.dtype = dtype
        precision = "bf16" if dtype == torch.bfloat16 else "fp32"
        self.in_graphs = layer.structure == "diagonal" and layer.engine.precision == precision

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            z = activate(self.layer(x), engine=self.layer.engine)
            return gate(z, self.project, engine=self.layer.engine)


def our_block(shape: Shape, device: torch.device, family: str, arithmetic: str) -> nn.Module:
    """A block whose layer has been checked."""
    precision, *inside = arithmetic.split()
    layer = ws.WaveSSM(
        shape.d_model, shape.d_state, bidirectional=shape.bidirectional, family=family, precision=precision
    ).to(device)
    error = error_of(layer, shape)
    if not error < TOLERANCE[precision]:
        raise ValueError(f"off by {error:.1e} (precision {precision}), no time reported")
    whole = precision == "bf16" and not inside
    return OurBlock(layer, torch.bfloat16 if whole else torch.float32).to(device)


def error_of(layer: ws.WaveSSM, shape: Shape) -> float:
    """Relative error of the layer's output on one sequence, against a float64 convolution with its kernel."""
    x, size = torch.randn(1, shape.length, shape.d_model, device=layer.D.device), 2 * shape.length

    def convolved(u: Tensor, k: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(u, n=size) * torch.fft.rfft(k, n=size), n=size)[..., : shape.length]

    with torch.no_grad():
        K, u = layer.kernel(shape.length), x.double().transpose(1, 2)
        expected = convolved(u, K[0])
        if shape.bidirectional:
            expected = expected + convolved(u.flip(-1), K[1]).flip(-1)
        expected = expected.transpose(1, 2) + layer.D * x
        return float((layer(x) - expected).norm() / expected.norm())


def contenders(shape: Shape, device: torch.device, s4: Path | None) -> Contenders:
    """Blocks by name, made when they are called."""
    _, d_model, d_state, length, bidirectional = shape
    cuda = device.type == "cuda"
    named: Contenders = {}
    for structure, family in (("diagonal", "morlet"), ("dplr", "legs")):
        precisions = ("fp32", "tf32", "bf16 inside", "bf16") if structure == "diagonal" else ("fp32", "tf32")
        for precision in precisions[: None if cuda else 1]:
            named[f"wavessm {structure} {precision}"] = lambda f=family, p=precision: our_block(shape, device, f, p)
    if s4 is not None:
        official = official_s4(s4)
        mark = " ext" if official.has_cuda_extension else ""
        for mode, init in (("dplr", "legs"), ("diag", "diag-lin")):
            options = {"bidirectional": bidirectional, "transposed": False, "mode": mode, "init": init}
            named[f"s4 {mode}{mark}"] = lambda options=options: FirstOutput(
                official.S4Block(d_model, d_state=d_state, **options)
            )
    if importlib.util.find_spec("s5") is not None:
        from s5 import S5

        named["s5-pytorch"] = lambda: Block(S5(d_model, d_state, bidir=bidirectional), d_model)
    if importlib.util.find_spec("mamba_ssm") is not None and cuda:
        from mamba_ssm import Mamba2

        named["mamba-2 bf16"] = lambda: InBfloat16(Mamba2(d_model, d_state=d_state))  # causal, with its own projections
    if length <= 16_384:
        named["attention bf16"] = lambda: InBfloat16(Block(Attention(d_model), d_model))
    for name, kind in (("lstm", nn.LSTM), ("gru", nn.GRU)) if length <= 16_000 else ():
        named[name] = lambda kind=kind: Block(FirstOutput(kind(d_model, d_model, batch_first=True)), d_model)
    return named


def signals(model: nn.Module, shape: Shape, device: torch.device) -> Tensor:
    """Noise in the type that a block reads, with gradients."""
    dtype = getattr(model, "dtype", torch.float32)
    return torch.randn(shape.batch, shape.length, shape.d_model, device=device, dtype=dtype, requires_grad=True)


def training_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward and backward."""
    seed = torch.randn_like(x)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        x.grad = None
        model(x).backward(seed)

    return step


def measure(make: Callable[[], nn.Module], shape: Shape, device: torch.device) -> Row:
    """Times of a training step and of a forward pass, and the step's peak memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    model = make().to(device)
    x = signals(model, shape, device)
    step = training_step(model, x)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    row = {**NOT_MEASURED, "step_ms": median_ms(step, device), "forward_ms": median_ms(forward, device)}
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        row["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        row["busy_ms"] = kernel_ms(step, 3)
        if isinstance(model, OurBlock):
            row["captured_ms"] = captured_ms(step, device)
            if model.in_graphs:
                graphed = torch.cuda.make_graphed_callables(model, (x.detach().requires_grad_(),))
                row["graphed_ms"] = median_ms(training_step(graphed, x), device)
    return row


def captured_ms(step: Callable[[], None], device: torch.device) -> float:
    """Milliseconds of the step as one CUDA graph."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    return median_ms(graph.replay, device)


def measured(named: Contenders, shape: Shape, device: torch.device, where: str) -> Iterator[tuple[str, Row | None]]:
    """A row for each contender; None for one that fails, with the reason printed."""
    for name, make in named.items():
        try:
            row = measure(make, shape, device)
            print(f"{where}: {name}", *(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
            yield name, row
        except (RuntimeError, ValueError) as reason:
            print(f"{where}: {name} failed: {str(reason).splitlines()[0]}", flush=True)
            yield name, None


def floor(shape: Shape, device: torch.device) -> Row:
    """Reading and writing the sequence once."""
    x = torch.randn(shape.batch, shape.length, shape.d_model, device=device)
    out = torch.empty_like(x)
    return {**NOT_MEASURED, "forward_ms": median_ms(lambda: out.copy_(x), device)}


def blocks(options: Any, device: torch.device) -> None:
    """The table of all contenders at all shapes."""
    rows: list[Row] = []
    path = options.out / f"{device.type}.csv"
    for task in options.shapes or ([s for s in SHAPES if s != "cpu"] if device.type == "cuda" else ["cpu"]):
        shape = SHAPES[task]
        labels = {"task": task, **dict(list(shape._asdict().items())[:4])}
        named = contenders(shape, device, options.s4)
        named = {name: make for name, make in named.items() if not options.blocks or name in options.blocks}
        found = dict(measured(named, shape, device, task))
        for name, row in {**found, "read+write": floor(shape, device)}.items():
            rows.append({**labels, "block": name, **(row or NOT_MEASURED), **machine(device)})
        write_csv(path, rows)  # what is measured stays measured if a later shape fails
    report(rows, path, "engine.py")


def lengths(options: Any, device: torch.device) -> None:
    """The table over lengths; a block that runs out of memory has no row from there on."""
    rows: list[Row] = []
    failed: set[str] = set()
    for length in [4**k * 1024 for k in range(6 if device.type == "cuda" else 4)]:
        shape = Shape(1, 256, 64, length, bidirectional=False)
        named = contenders(shape, device, options.s4).items()
        chosen = {name: make for name, make in named if name.startswith(OVER_LENGTHS) and name not in failed}
        for name, row in measured(chosen, shape, device, str(length)):
            if row is None:
                failed.add(name)
            else:
                rows.append({"length": length, "block": name, **row, **machine(device)})
    plot_lengths(rows, options.out / "length.png")
    report(rows, options.out / "length.csv", "engine.py")


def plot_lengths(rows: list[Row], path: Path) -> None:
    """Time and peak memory against length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, column, label in zip(
        figure.subplots(1, 2), ("step_ms", "peak_gib"), ("training step, ms", "peak memory, GiB"), strict=True
    ):
        for block in dict.fromkeys(row["block"] for row in rows):
            points = [(row["length"], row[column]) for row in rows if row["block"] == block]
            axes.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=block)
        axes.set_xlabel("length, samples")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def compiled(options: Any, device: torch.device) -> None:
    """The table of training steps by PyTorch's compiler, beside those that Python starts in the same process."""
    rows: list[Row] = []
    for task in options.shapes or COMPILED:
        for arithmetic in ("fp32", "bf16"):
            model = our_block(SHAPES[task], device, "morlet", arithmetic)
            x = signals(model, SHAPES[task], device)
            row: Row = {"task": task, "block": f"wavessm diagonal {arithmetic}"}
            row["step_ms"] = median_ms(training_step(model, x), device)
            for column, mode in (("default_ms", "default"), ("reduced_ms", "reduce-overhead")):
                torch._dynamo.reset()
                row[column] = median_ms(training_step(torch.compile(model, mode=mode), x), device)
            rows.append({**row, **machine(device)})
        write_csv(options.out / "compiled.csv", rows)
    report(rows, options.out / "compiled.csv", "engine.py")


PARTS = {"blocks": blocks, "lengths": lengths, "scan": scan.table, "cuts": scan.cuts, "compiled": compiled}


def main() -> None:
    parser = arguments(__doc__, "results/engine")
    parser.add_argument("--s4", type=Path, help="a checkout of state-spaces/s4")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), help="of the blocks and the scan")
    parser.add_argument("--blocks", nargs="+", help="names of the blocks to time; default all")
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), help="default: all but cuts on a GPU, blocks on a CPU"
    )
    options = parser.parse_args()
    device = find_device()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # TF32 in every linear layer, ours and theirs, as S4 is trained
    for part in options.parts or (["blocks", "lengths", "scan", "compiled"] if device.type == "cuda" else ["blocks"]):
        PARTS[part](options, device)


if __name__ == "__main__":
    main()
