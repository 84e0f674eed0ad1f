"""Throughput of 1, 2, 4 and 8 small models training side by side on one GPU, each in a process of its own.

    python benchmarks/side_by_side.py --out results/side_by_side

Two models on generated data: `ecg`, four blocks of 64 for 12 leads of 1000 samples (the default for own signals, with
5 labels), and `forecast`, the paper's two blocks of 128 for 7 columns, context 336 and horizon 168. On a GPU every step
is one CUDA graph. All processes of a count begin at the same moment and train for a fixed time; they are kept for the
next count. device_gib is what is taken on the device then, contexts and other users included; reserved_gib_each is
PyTorch's part of it.

Correctness first: every process starts from the same seed and must have the losses of the first one, or nothing is
reported. A step waits for the GPU every 20 steps, as training does when it looks at the loss.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from common import report
from wavessm.data import Arrays, DataInfo, DataSet, Windows
from wavessm.data.parallel import end_with_parent
from wavessm.nn.model import SequenceModel
from wavessm.tasks import model_config
from wavessm.training.config import ModelOptions, Recipe
from wavessm.training.launch import prepare_server
from wavessm.training.stepper import stepper

WARM_UP, LOOK = 8, 20
GAP = 1e-2  # relative, of the first losses: sums on a GPU have no fixed order
MODELS = {
    "ecg": Recipe(ModelOptions(d_model=64, n_layers=4, d_state=64, dropout=0.1, bidirectional=True, norm="batch"),
                  batch_size=32, precision="tf32"),
    "forecast": Recipe(ModelOptions(d_model=128, n_layers=2, d_state=64, dropout=0.25), batch_size=50,
                       precision="tf32", schedule="constant"),
}  # fmt: skip


def generated(name: str, tiny: bool) -> DataSet:
    """Noise in the shape of an ECG with five labels, or random walks to go on with."""
    length, horizon = (40, 8) if tiny else ((1000, 0) if name == "ecg" else (336, 168))
    generator = torch.Generator().manual_seed(0)
    source: Any
    if name == "ecg":
        x, y = torch.randn(512, length, 12, generator=generator), torch.rand(512, 5, generator=generator).round()
        source, info = Arrays(x, y), DataInfo("multilabel", 12, 5, length, classes=tuple("abcde"))
    else:
        walk = torch.randn(4096, 7, generator=generator).cumsum(0) / 30
        starts = torch.arange(4096 - length - horizon)
        source = Windows(walk, None, length, horizon, range(7), starts)  # type: ignore[arg-type]
        info = DataInfo("forecast", 7, 7, length, horizon=horizon, columns=tuple("abcdefg"))
    return DataSet(name, source, source, source, info)


def step_of(name: str, device: torch.device, tiny: bool) -> tuple[Callable[[], torch.Tensor], int]:
    """One training step of a model, and the cases in it."""
    recipe, data = MODELS[name], generated(name, tiny)
    small: dict[str, Any] = {"d_model": 4, "n_layers": 1, "d_state": 8} if tiny else {}
    model = ModelOptions(**{**vars(recipe.model), **small})
    recipe = Recipe(**{**vars(recipe), "model": model, "batch_size": 4 if tiny else recipe.batch_size,
                       "steps": 10**6, "device": device.type, "cuda_graphs": device.type == "cuda"})  # fmt: skip
    torch.manual_seed(0)
    config = model_config("arrays", model, data.info, recipe.precision)
    return stepper(SequenceModel(config).to(device), data.to(device), recipe.check()), recipe.batch_size


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> tuple[float, float]:
    """GiB that this process has reserved, and that are taken on the device."""
    if device.type != "cuda":
        return 0.0, 0.0
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.memory_reserved() / 2**30, (total - free) / 2**30


def work(pipe: Connection, name: str, kind: str, tiny: bool) -> None:
    """A process: build the model, say the first losses and the device, then train for a while whenever asked."""
    end_with_parent()
    torch.set_num_threads(1)
    device = torch.device(kind)
    step, batch = step_of(name, device, tiny)
    first = torch.stack([step().clone() for _ in range(WARM_UP)]).tolist()
    pipe.send((first, torch.cuda.get_device_name() if kind == "cuda" else "cpu"))
    while (order := pipe.recv()) is not None:
        begin, seconds = order
        time.sleep(max(0.0, begin - time.monotonic()))
        steps, began = 0, time.monotonic()
        while time.monotonic() < begin + seconds:
            for _ in range(LOOK if kind == "cuda" else 1):
                loss = step()
                steps += 1
            wait_for(device)
        pipe.send((steps * batch / (time.monotonic() - began), float(loss), *memory(device)))


class Crew:
    """Processes that train one model each, started as they are needed."""

    def __init__(self, name: str, kind: str, tiny: bool) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.arguments = (name, kind, tiny)
        self.pipes: list[Any] = []
        self.first: list[float] = []
        self.machine = ""

    def grow(self, count: int) -> None:
        """Start processes until there are `count`, and compare their losses with those of the first."""
        new = []
        for _ in range(count - len(self.pipes)):
            ours, theirs = self.context.Pipe()
            self.context.Process(target=work, args=(theirs, *self.arguments), daemon=True).start()
            theirs.close()
            new.append(ours)
        for pipe in new:
            losses, self.machine = self._hear(pipe)
            self.first = self.first or losses
            gap = max(abs(a - b) / abs(b) for a, b in zip(losses, self.first, strict=True))
            if not gap < GAP:
                raise SystemExit(f"losses of two processes differ by {gap:.1e}; nothing is reported.")
        self.pipes += new

    def train(self, seconds: float) -> list[tuple[float, float, float, float]]:
        """All for `seconds` from the same moment: cases a second, last loss, GiB reserved and taken on the device."""
        begin = time.monotonic() + 0.2
        for pipe in self.pipes:
            pipe.send((begin, seconds))
        return [self._hear(pipe) for pipe in self.pipes]

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)

    def _hear(self, pipe: Any) -> Any:
        try:
            return pipe.recv()
        except EOFError:
            raise SystemExit(f"{self.arguments[0]}: a process died (out of memory?); nothing is reported.") from None


def measure(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every count."""
    crew = Crew(name, "cuda" if torch.cuda.is_available() else "cpu", given.tiny)
    rows: list[dict[str, Any]] = []
    for count in sorted(set(given.counts)):
        crew.grow(count)
        speeds, losses, reserved, taken = zip(*crew.train(given.seconds), strict=True)
        if not all(map(math.isfinite, losses)):
            raise SystemExit(f"{name}: a loss is not finite; nothing is reported.")
        alone = rows[0]["cases_s_each"] if rows else sum(speeds) / count
        rows.append({
            "model": name, "processes": count, "cases_s_each": sum(speeds) / count, "cases_s_slowest": min(speeds),
            "cases_s_total": sum(speeds), "times_one": sum(speeds) / alone, "reserved_gib_each": max(reserved),
            "device_gib": max(taken), "seconds": given.seconds, "cores": os.cpu_count(), "machine": crew.machine,
        })  # fmt: skip
    crew.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/side_by_side"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=3.0, help="of training for every model and count")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script on a CPU")
    given = parser.parse_args()
    prepare_server()
    rows = [row for name in given.models for row in measure(name, given)]
    report(rows, given.out / "throughput.csv", "side_by_side.py")


if __name__ == "__main__":
    main()
