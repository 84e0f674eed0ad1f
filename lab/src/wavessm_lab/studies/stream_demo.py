"""A memory at work: a real ECG streamed into 64 numbers, sample by sample, and read back.

    python -m wavessm_lab.studies.stream_demo --out runs/stream

A Morlet memory and a Legendre memory of the same size hear the same samples. Printed: how well each remembers, by
region. Drawn: both reconstructions, and for every number of the state the stretch of the past that it holds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from wavessm.memory import OnlineMemory
from wavessm.operators import make_operator
from wavessm.training.record import pyplot
from wavessm_lab.studies.signals import Signal, ecg

SIZE = 64
MEMORIES = {"Morlet": "morlet", "Legendre": "legs"}


def stream(signal: Signal, memory: OnlineMemory) -> tuple[torch.Tensor, float]:
    """Feed the samples one at a time; the reconstruction and the microseconds a sample took."""
    start = time.perf_counter()
    for sample in signal.values:
        memory.push([sample])
    elapsed = (time.perf_counter() - start) / len(signal.values) * 1e6
    return memory.reconstruct(memory.state, grid=len(signal.values)), elapsed


def region_errors(signal: Signal, reconstruction: np.ndarray) -> dict[str, float]:
    """Root mean square error by region, in units of the signal's standard deviation."""
    error = reconstruction - signal.values
    past, quarter = np.arange(len(error)), len(error) // 4
    regions = {
        "everywhere": past >= 0,
        "around the beats": signal.abrupt,
        "between the beats": ~signal.abrupt,
        "oldest quarter": past < quarter,
        "newest quarter": past >= len(error) - quarter,
    }
    return {name: float(np.sqrt(np.mean(error[where] ** 2))) for name, where in regions.items()}


def localisation(jacobian: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and spread, in samples, of the stretch of past that each coordinate hears. (N, T) → (N,), (N,)"""
    energy = jacobian**2 / np.sum(jacobian**2, axis=1, keepdims=True)
    t = np.arange(jacobian.shape[1])
    centre = energy @ t
    return centre, np.sqrt(np.sum(energy * (t - centre[:, None]) ** 2, axis=1))


def draw(signal: Signal, results: dict[str, tuple[OnlineMemory, np.ndarray]], path: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(2, len(results), figsize=(13, 7), sharex=True, height_ratios=[1, 1.4])
    for (name, (memory, reconstruction)), (top, bottom) in zip(results.items(), axes.T, strict=True):
        top.plot(signal.values, color="0.6", linewidth=0.8, label="ECG")
        top.plot(reconstruction, color="C3", linewidth=0.8, label=f"from {SIZE} numbers")
        top.set_title(f"{name}: reconstruction after {len(signal.values)} samples")
        top.legend(loc="upper right", fontsize=8)
        jacobian = memory.jacobian(len(signal.values)).numpy()
        order = np.argsort(localisation(jacobian)[0])
        share = np.abs(jacobian[order])
        bottom.imshow(share / share.max(axis=1, keepdims=True), aspect="auto", cmap="magma", interpolation="nearest")
        bottom.set_title("what each coordinate holds: |∂h/∂x|, row by row")
        bottom.set_xlabel("sample (right: now)")
        bottom.set_ylabel("coordinate, oldest first")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Stream a real ECG into 64 numbers and read it back.")
    parser.add_argument("--out", type=Path, default=Path("runs/stream"), help="folder for the figure")
    options = parser.parse_args(arguments)
    signal = ecg()
    results, errors, spreads = {}, {}, {}
    for name, family in MEMORIES.items():
        memory = OnlineMemory(make_operator(family, measure="scaled", n=SIZE))
        reconstruction, microseconds = stream(signal, memory)
        print(f"{name}: {len(signal.values)} samples into {SIZE} numbers, {microseconds:.0f} µs a sample")
        results[name] = memory, reconstruction.numpy()
        errors[name] = region_errors(signal, results[name][1])
        spreads[name] = localisation(memory.jacobian(len(signal.values)).numpy())[1]
    print(f"\nroot mean square error (signal = 1){'':>6}" + "".join(f"{name:>10}" for name in MEMORIES))
    for region in errors["Morlet"]:
        print(f"  {region:<39}" + "".join(f"{errors[name][region]:>10.3f}" for name in MEMORIES))
    print(f"  {'silent memory (predict the mean)':<39}" + "".join(f"{1:>10.3f}" for _ in MEMORIES))
    print(
        f"\nmedian stretch of past in one coordinate{'':>1}"
        + "".join(f"{np.median(spread):>10.0f}" for spread in spreads.values())
        + "  samples (standard deviation)"
    )
    draw(signal, results, options.out / "ecg_memory.png")
    print(f"\nfigure: {options.out / 'ecg_memory.png'}")


if __name__ == "__main__":
    main()
