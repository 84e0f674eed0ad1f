"""Streaming on one CPU core: six blocks, d_model 128, d_state 64, audio at 16 kHz in chunks of 160 samples (10 ms).

    python benchmarks/stream.py --out results/engine

First each stream is compared with the model run offline. Then they take turns of 20 chunks, of which the first five are
not counted, so that whatever else the machine does disturbs them alike. cpu_ms is the median of processor time, mean_ms
and the quantiles are of elapsed time, times_real_time is of cpu_ms. Beside the blocks with their tables kept, plain and
compiled: an LSTM of the same depth and width, and state features with their ridge (one channel, 10,000 features).
table_mib is the memory of what a stream keeps beside its state.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import wavessm as ws
from common import arguments, report
from wavessm.features.bank import FeatureConfig
from wavessm.features.model import FeatureModel
from wavessm.nn.backbones import Stack

RATE, CHUNK, D_MODEL, LAYERS, TURN, WARM = 16_000, 160, 128, 6, 20, 5


class LSTM(nn.LSTM):
    """PyTorch's, called as our streams are."""

    def initial_state(self, batch: int) -> None:
        return None

    def stream(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self(x, state)


def contenders() -> dict[str, Any]:
    """The streams by name, after a comparison with the models they come from."""
    streams: dict[str, Any] = {}
    for family in ("morlet", "legs"):
        torch.manual_seed(0)
        stack = Stack(ws.ModelConfig(d_model=D_MODEL, n_layers=LAYERS, family=family)).eval()
        x = torch.randn(1, 20 * CHUNK, D_MODEL)
        for name, packet in (("plain", None), ("compiled", CHUNK)):
            streams[f"{family}, {name}"] = check(ws.sampled(stack, packet=packet), x, stack(x))
    streams["lstm"] = LSTM(D_MODEL, D_MODEL, LAYERS, batch_first=True).eval()
    x, y = torch.randn(40, RATE // 2, 1), torch.arange(40) % 2
    config = FeatureConfig(n_features=10_000, stretches=False)
    streams["state features"] = FeatureModel.fit(x, y, "multiclass", config=config)
    return streams


def check(stream: Any, x: Tensor, expected: Tensor) -> Any:
    """The stream, whose outputs differ from those expected by less than 1e-5 of the largest one."""
    state, pieces = stream.initial_state(1), []
    for chunk in x.split(CHUNK, dim=1):
        y, state = stream.stream(chunk, state)
        pieces.append(y)
    error = float((torch.cat(pieces, 1) - expected).abs().max() / expected.abs().max())
    if not error < 1e-5:
        raise SystemExit(f"stream.py: off by {error:.1e}, no time reported.")
    return stream


def latencies(streams: dict[str, Any], turns: int) -> dict[str, np.ndarray]:
    """Milliseconds of each chunk, elapsed and of the processor (chunks, 2)."""
    states = {name: stream.initial_state(1) for name, stream in streams.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in streams}
    for _ in range(turns):
        for name, stream in streams.items():
            for k in range(TURN):
                x = torch.randn(1, CHUNK, 1 if isinstance(stream, FeatureModel) else D_MODEL)
                begin = time.perf_counter(), time.process_time()
                _, states[name] = stream.stream(x, states[name])
                now = time.perf_counter() - begin[0], time.process_time() - begin[1]
                taken[name] += [now] if k >= WARM else []
    return {name: 1e3 * np.array(times) for name, times in taken.items()}


def table_mib(stream: nn.Module) -> float:
    """Memory of parameters, buffers and tables."""
    tensors = [*stream.parameters(), *stream.buffers()]
    for module in stream.modules():
        if isinstance(module, ws.SampledLayer):
            tensors += [table for tables in module._tables.values() for table in tables]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 2**20


def main() -> None:
    parser = arguments(__doc__, "results/engine")
    parser.add_argument("--turns", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    streams = contenders()
    taken, rows = latencies(streams, options.turns), []
    for name, times in taken.items():
        elapsed, cpu = times.T
        row = {"model": name, "chunks": len(times), "cpu_ms": float(np.median(cpu)), "mean_ms": elapsed.mean()}
        row |= {f"p{q}_ms": np.percentile(elapsed, q) for q in (50, 90, 99)} | {"max_ms": elapsed.max()}
        row |= {"times_real_time": 1e3 * CHUNK / RATE / row["cpu_ms"], "table_mib": table_mib(streams[name])}
        rows.append({**row, "torch": torch.__version__})
    report(rows, options.out / "stream.csv", "stream.py")
    histogram({name: times[:, 0] for name, times in taken.items()}, options.out / "stream.png")


def histogram(times: dict[str, np.ndarray], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    most = max(np.percentile(values, 99) for values in times.values())
    for name, values in times.items():
        axes.hist(values, bins=np.linspace(0, most, 80), histtype="step", label=name)
    axes.set_xlabel("latency of a chunk of 10 ms, ms")
    axes.set_ylabel("chunks")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
