"""Training by one and by two processes on the CPU, the same global batch, one thread each: time and processor time.

Correctness comes first: the loss curves must agree to 1e-5, or no time is reported. One and two processes take turns,
and the best of several turns counts, for other work on the machine slows two processes more than one. Processor time a
sample, over all processes, does not depend on other work: it is what sharing the batch costs. The load is noted.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from common import report
from wavessm.training.config import ModelOptions, Recipe
from wavessm.training.keeper import read_rows
from wavessm.training.launch import launch
from wavessm.training.module import TrainingModule
from wavessm.training.run import train

BATCH, WARM_UP = 32, 3


def timed(recipe: dict[str, Any], folder: Path) -> None:
    """In each process: train, and write down the time and processor time after every step."""
    marks: list[tuple[float, float]] = []
    advance = TrainingModule.advance

    def noting(self: Any, *arguments: Any) -> Any:
        loss = advance(self, *arguments)
        marks.append((time.perf_counter(), time.process_time()))
        return loss

    TrainingModule.advance = noting  # type: ignore[method-assign]
    options = {"length": 1024, "cases": 2, "epoch": 10**6}
    train("window-copy", options, Recipe.from_dict(recipe), folder / "run", show=False)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(marks))


def turn(devices: int, width: int, steps: int) -> tuple[float, float, float]:
    """Samples a second, processor seconds a sample over all processes, and the mean loss."""
    recipe = Recipe(
        ModelOptions(d_model=width, n_layers=2, d_state=32),
        batch_size=BATCH,
        steps=steps,
        device="cpu",
        devices=devices,
        save_seconds=1e9,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launch(timed, (recipe.to_dict(), folder), folder / "run", devices)
        marks = [json.loads(path.read_text())[WARM_UP:] for path in folder.glob("rank*.json")]
        loss = read_rows(folder / "run" / "metrics.csv", 10**9)[-1]["train_loss"]
    samples = (len(marks[0]) - 1) * BATCH
    seconds = max(rank[-1][0] - rank[0][0] for rank in marks)
    return samples / seconds, sum(rank[-1][1] - rank[0][1] for rank in marks) / samples, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/processes"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for width in given.widths:
        turns = [[turn(devices, width, given.steps) for devices in (1, 2)] for _ in range(given.repeats)]
        one, two = ([pair[at] for pair in turns] for at in (0, 1))
        gap = max(abs(a[2] - b[2]) / a[2] for a, b in zip(one, two, strict=True))
        if gap > 1e-5:
            raise SystemExit(f"width {width}: the losses differ by {gap:.1e}; nothing is reported.")
        row = {"d_model": width}
        for name, runs in (("one", one), ("two", two)):
            row |= {f"samples_s_{name}": max(r[0] for r in runs), f"cpu_ms_{name}": 1e3 * min(r[1] for r in runs)}
        ratio = row["samples_s_two"] / row["samples_s_one"]
        rows.append(row | {"ratio": ratio, "loss_gap": gap, "cores": os.cpu_count(), "load": os.getloadavg()[1]})
    report(rows, given.out / "throughput.csv", "processes.py")


if __name__ == "__main__":
    main()
