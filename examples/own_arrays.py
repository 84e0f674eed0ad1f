"""Makes a folder of arrays as `wavessm train arrays` reads it: replace them by your own signals.

    python examples/own_arrays.py my_signals

Two channels of noise with a short tone in them; the class says how high the tone is. Beside the cases to train on are
some new ones, and one recording as lines of text, to play with streaming.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

NAMES = np.array(["low", "middle", "high"])


def signals(random: np.random.Generator, cases: int, length: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """(cases, length, 2) and the names of the classes (cases,)"""
    label = random.integers(3, size=cases)
    t = np.arange(length)
    start = random.integers(length // 2, size=(cases, 1))
    burst = np.exp(-(((t - start - length / 4) / (length / 8)) ** 2))
    tone = np.sin(2 * np.pi * t * (0.04 * 2.0 ** label[:, None]) + random.uniform(0, 2 * np.pi, (cases, 1)))
    clean = np.stack([burst * tone, burst], axis=2)
    return (clean + 0.2 * random.standard_normal(clean.shape)).astype(np.float32), NAMES[label]


def main(folder: Path) -> None:
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    X, y = signals(random, 400)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    new, _ = signals(random, 5)
    np.save(folder / "new.npy", new)
    np.savetxt(folder / "live.csv", new[0], fmt="%.4f", delimiter=",")
    print(f"{folder}: X.npy {X.shape}, y.npy {y.shape}, new.npy {new.shape}, live.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "my_signals"))
