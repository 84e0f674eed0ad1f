"""A training step of one causal block against the length of its sequence, 1k to 1M samples, ours and S4's.

    python benchmarks/length.py --out results/engine [--s4 PATH]

Batch 1, d_model 256, d_state 64. CSV and a plot of time and peak memory; a block that runs out of memory has no row
from there on. On a machine without a GPU the lengths end at 64k.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from common import report
from engine import contenders, measure
from wavessm.training.record import write_csv

BLOCKS = ("wavessm diagonal fp32", "wavessm diagonal tf32", "wavessm dplr fp32", "s4 dplr", "s4 diag")


def rows_of(device: str, s4: Path | None) -> list[dict[str, Any]]:
    lengths = [4**k * 1024 for k in range(6 if device == "cuda" else 4)]
    rows: list[dict[str, Any]] = []
    failed: set[str] = set()
    machine = torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    for length in lengths:
        shape = (1, 256, 64, length, False)
        for name, make in contenders(shape, device, s4).items():
            if not name.startswith(BLOCKS) or name in failed:
                continue
            try:
                row = measure(make, shape, device)
            except (RuntimeError, ValueError) as reason:
                failed.add(name)
                print(f"{length}, {name}: failed: {str(reason).splitlines()[0]}", flush=True)
                continue
            rows.append({"length": length, "block": name, **row, "machine": machine, "torch": torch.__version__})
            print(f"{length}: {name} {row['step_ms']:.2f} ms, {row['peak_gib']:.2f} GiB", flush=True)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
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
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/engine"))
    parser.add_argument("--s4", type=Path, help="a checkout of state-spaces/s4")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = rows_of(device, options.s4)
    write_csv(options.out / "length.csv", rows)
    plot(rows, options.out / "length.png")
    report(rows, options.out / "length.csv", "length.py")


if __name__ == "__main__":
    main()
