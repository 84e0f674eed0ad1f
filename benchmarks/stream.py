"""Streaming on one CPU core: six blocks, d_model 128, d_state 64, audio at 16 kHz in chunks of 160 samples (10 ms).

    python benchmarks/stream.py --out results/engine

First the stream is compared with the model run offline, then the latency of each chunk is taken: CSV of quantiles, and
a histogram. Peers in the same run: the same blocks without stored tables, and an LSTM of the same depth and width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import wavessm as ws
from common import arguments, report

RATE, CHUNK, D_MODEL, LAYERS = 16_000, 160, 128, 6
Stream = Callable[[Tensor, Any], tuple[Tensor, Any]]


def blocks(family: str) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(ws.ResidualBlock(ws.WaveSSM(D_MODEL, 64, family=family)) for _ in range(LAYERS)).eval()


def through(stack: nn.ModuleList) -> Stream:
    def run(x: Tensor, states: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        after = []
        for block, state in zip(stack, states or [None] * len(stack), strict=True):
            x, state = block(x, state=state, return_state=True)
            after.append(state)
        return x, after

    return run


def latencies(run: Stream, chunks: int) -> np.ndarray:
    """Milliseconds of each chunk, after a few to warm up."""
    state, times = None, []
    for k in range(chunks + 20):
        x = torch.randn(1, CHUNK, D_MODEL)
        begin = time.perf_counter()
        _, state = run(x, state)
        if k >= 20:
            times.append((time.perf_counter() - begin) * 1e3)
    return np.array(times)


def check(stack: nn.ModuleList, run: Stream) -> float:
    """Largest difference from the same blocks run offline, relative to the largest output."""
    x = torch.randn(1, 20 * CHUNK, D_MODEL)
    expected = x
    for block in stack:
        expected = block(expected)
    state, pieces = None, []
    for chunk in x.split(CHUNK, dim=1):
        y, state = run(chunk, state)
        pieces.append(y)
    error = float((torch.cat(pieces, 1) - expected).abs().max() / expected.abs().max())
    if not error < 1e-5:
        raise SystemExit(f"stream.py: off by {error:.1e}, no time reported.")
    return error


def main() -> None:
    parser = arguments(__doc__, "results/engine")
    parser.add_argument("--chunks", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows, taken = [], {}
    for family in ("morlet", "legs"):
        stack = blocks(family)
        kept = through(ws.sampled(stack))
        for name, run in ((f"{family}, tables kept", kept), (f"{family}, tables made anew", through(stack))):
            error = check(stack, run)
            chunks = options.chunks if run is kept else options.chunks // 20
            taken[name] = latencies(run, chunks), error
    lstm = nn.LSTM(D_MODEL, D_MODEL, LAYERS, batch_first=True).eval()
    taken["lstm"] = latencies(lambda x, state: lstm(x, state), options.chunks), float("nan")
    for name, (times, error) in taken.items():
        row = {"model": name, "chunks": len(times), "error": error, "mean_ms": times.mean()}
        row |= {f"p{q}_ms": np.percentile(times, q) for q in (50, 90, 99)} | {"max_ms": times.max()}
        rows.append({**row, "times_real_time": 1e3 * CHUNK / RATE / times.mean(), "torch": torch.__version__})
    report(rows, options.out / "stream.csv", "stream.py")
    histogram({name: times for name, (times, _) in taken.items() if "anew" not in name}, options.out / "stream.png")


def histogram(times: dict[str, np.ndarray], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    most = max(np.percentile(values, 99.5) for values in times.values())
    for name, values in times.items():
        axes.hist(values, bins=np.linspace(0, most, 80), alpha=0.6, label=name)
    axes.set_xlabel("latency of a chunk of 10 ms, ms")
    axes.set_ylabel("chunks")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
