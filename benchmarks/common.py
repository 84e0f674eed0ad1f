"""What the benchmarks share: options, timers, the shapes of the paper's tasks, a CSV and its provenance."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wavessm.training.record import provenance, write_csv

Row = dict[str, Any]


class Shape(NamedTuple):
    """A batch of sequences and the layer that reads them."""

    batch: int
    d_model: int
    d_state: int
    length: int
    bidirectional: bool = True


SHAPES = {
    "listops": Shape(50, 256, 64, 2048),
    "text": Shape(16, 256, 64, 4096),
    "image": Shape(50, 512, 64, 1024),
    "sc35": Shape(16, 128, 64, 16_000),
    "pathx": Shape(32, 256, 128, 16_384),
    "ptbxl": Shape(16, 256, 64, 1000),
    "64k": Shape(1, 256, 64, 65_536, bidirectional=False),
    "cpu": Shape(8, 64, 64, 4096),
}


def arguments(doc: str | None, out: str) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring, with `--out` for the folder of the results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder of the results, {out} by default")
    return parser


def find_device() -> torch.device:
    """The GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine(device: torch.device) -> dict[str, str]:
    """The columns of a row that say where it was measured."""
    cpu = f"cpu, {torch.get_num_threads()} threads"
    return {"machine": torch.cuda.get_device_name() if device.type == "cuda" else cpu, "torch": torch.__version__}


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def best_of(work: Callable[[], Any], repeats: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest run: what the machine can do when nothing else disturbs it."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def median_ms(work: Callable[[], Any], device: torch.device, seconds: float = 0.5, repeats: int = 0) -> float:
    """Median of the milliseconds of `repeats` runs, or of those that fit into `seconds`, after three to warm up.

    On a CPU they are processor time, which other work on the machine changes little.
    """

    def once() -> float:
        if device.type == "cuda":
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            stop.record()
            torch.cuda.synchronize()
            return start.elapsed_time(stop)
        return 1e3 * best_of(work, 1, time.process_time)

    for _ in range(3):
        first = once()
    repeats = repeats or max(5, min(50, int(seconds * 1e3 / first)))
    return float(torch.tensor([once() for _ in range(repeats)]).median())


def mean_ms(step: Callable[[], Any], device: torch.device, steps: int) -> float:
    """Milliseconds of a step when steps follow each other without waiting, as in training."""

    def run(count: int) -> None:
        for _ in range(count):
            step()
        synchronize(device)

    run(6)
    return 1e3 * best_of(lambda: run(steps), 1) / steps


def kernel_ms(work: Callable[[], Any], repeats: int, name: str = "") -> float:
    """Milliseconds that all GPU kernels of a call take, or those of one name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    events = [event for event in seen.key_averages() if name in ("", event.key)]
    return sum(event.self_device_time_total for event in events) / repeats / 1e3


def report(rows: Sequence[Row], path: Path, script: str) -> None:
    """Print the rows, write them as CSV, and write the command, versions and machine beside it."""
    for row in rows:
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    write_csv(path, rows)
    path.with_suffix(".md").write_text(f"Made by {provenance(f'python benchmarks/{script}')}.\n")
    print(f"written: {path}")
