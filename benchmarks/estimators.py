"""The default classifier, untuned, on labelled sets that ship inside time-series packages, split as published.

    pip install aeon                      # in an environment of its own; only its data files are read
    python benchmarks/estimators.py --data …/site-packages/aeon/datasets/data --out results/estimators

Each set is a folder NAME with NAME_TRAIN.ts and NAME_TEST.ts. A row for each set and seed is appended when it is
finished; rows that the CSV already has are not run again.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
import torch

import wavessm
from common import arguments
from wavessm.estimators import WaveSSMClassifier
from wavessm.training.record import processor, revision

SETS = ("BasicMotions", "ItalyPowerDemand", "ArrowHead", "GunPoint", "JapaneseVowels", "OSULeaf", "ACSF1")
FIELDS = ("set", "seed", "accuracy", "train_cases", "test_cases", "channels", "length", "classes", "parameters",
          "fit_seconds", "predict_seconds", "epochs", "choices", "wavessm", "torch", "revision", "machine")  # fmt: skip


def read_ts(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Signals (channels, time) and labels of a .ts file."""
    signals, labels = [], []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith(("#", "@")):
            continue
        *channels, label = line.strip().split(":")
        signals.append(np.array([np.fromstring(channel, sep=",") for channel in channels]))
        labels.append(label)
    return signals, np.array(labels)


def arrays(signals: list[np.ndarray]) -> np.ndarray | list[np.ndarray]:
    """One array (cases, channels, time) where all have one length."""
    return np.stack(signals) if len({signal.shape for signal in signals}) == 1 else signals


def measure(data: Path, name: str, seed: int) -> dict[str, object]:
    """Fit on the training file, score on the test file."""
    X, y = read_ts(data / name / f"{name}_TRAIN.ts")
    X_test, y_test = read_ts(data / name / f"{name}_TEST.ts")
    began = time.perf_counter()
    model = WaveSSMClassifier(random_state=seed).fit(arrays(X), y)
    fitted = time.perf_counter()
    accuracy = model.score(arrays(X_test), y_test)
    done = time.perf_counter()
    lengths = sorted({signal.shape[1] for signal in X})
    return {
        "set": name, "seed": seed, "accuracy": f"{accuracy:.4f}", "train_cases": len(X), "test_cases": len(X_test),
        "channels": len(X[0]), "length": "-".join(map(str, {lengths[0]: 0, lengths[-1]: 0})), "classes": len(set(y)),
        "parameters": sum(p.numel() for p in model.model_.parameters()), "fit_seconds": f"{fitted - began:.1f}",
        "predict_seconds": f"{done - fitted:.2f}", "epochs": model.n_iter_,
        "choices": " ".join(f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}"
                            for key, value in model.choices_.items()),
        "wavessm": wavessm.__version__, "torch": torch.__version__, "revision": revision(),
        "machine": f"{processor()}, {torch.get_num_threads()} thread(s)",
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, "results/estimators")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "classifier.csv"
    have = {(row["set"], int(row["seed"])) for row in csv.DictReader(path.open())} if path.exists() else set()
    for seed in given.seeds:
        for name in given.sets:
            if (name, seed) in have:
                continue
            row = measure(given.data, name, seed)
            new = not path.exists()
            with path.open("a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                if new:
                    writer.writeheader()
                writer.writerow(row)
            print(f"{name} seed {seed}: {row['accuracy']} in {row['fit_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
