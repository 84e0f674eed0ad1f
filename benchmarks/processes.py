"""Throughput of training by one and by two processes on the CPU, the same global batch, one thread each.

Correctness comes first: the loss curves must agree to 1e-5, or no time is reported. One and two processes take turns,
and the best of several turns counts: other work on the machine slows two processes more than one. The load is noted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from common import report
from wavessm.training.keeper import read_rows
from wavessm.training.recipes import ModelOptions, Recipe
from wavessm.training.run import train


def throughput(devices: int, width: int, steps: int, out: Path) -> tuple[float, list[float]]:
    """Samples a second from the first validation to the last, and the loss curve."""
    recipe = Recipe(
        ModelOptions(d_model=width, n_layers=2, d_state=32),
        batch_size=32,
        steps=steps,
        validations=4,
        eval_batch_size=32,
        device="cpu",
        devices=devices,
        save_seconds=1e9,
    )
    options = {"length": 1024, "cases": 2, "epoch": steps * 32}
    run = train("window-copy", options, recipe, out, show=False)
    rows = read_rows(run.folder / "metrics.csv", 10**9)
    seconds = rows[-1]["seconds"] - rows[0]["seconds"]
    return (rows[-1]["step"] - rows[0]["step"]) * 32 / seconds, [row["train_loss"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/processes"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for width in given.widths:
        one = two = 0.0
        for _ in range(given.repeats):
            with tempfile.TemporaryDirectory() as folder:
                speed, curve = throughput(1, width, given.steps, Path(folder) / "one")
                one = max(one, speed)
                speed, other = throughput(2, width, given.steps, Path(folder) / "two")
                two = max(two, speed)
        gap = max(abs(a - b) / a for a, b in zip(curve, other, strict=True))
        if gap > 1e-5:
            raise SystemExit(f"width {width}: the loss curves differ by {gap:.1e}; nothing is reported.")
        row = {"d_model": width, "samples_s_one": one, "samples_s_two": two, "ratio": two / one, "loss_gap": gap}
        rows.append(row | {"cores": os.cpu_count(), "load": os.getloadavg()[1]})
    report(rows, given.out / "throughput.csv", "processes.py")


if __name__ == "__main__":
    main()
