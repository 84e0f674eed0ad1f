"""Whether and how a default fit should stop early: cross-validation inside the training files; test files are not read.

    python benchmarks/early_stopping.py --data …/site-packages/aeon/datasets/data --out results/estimators

always     no case set aside, all epochs
patience   15 % set aside, ends after 20 epochs without a better loss there, best weights kept
best       15 % set aside, all epochs, best weights kept
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedKFold

from estimators import read_ts
from wavessm.estimators import WaveSSMClassifier
from wavessm.training.record import provenance, write_csv

SETTINGS: dict[str, dict[str, object]] = {
    "always": {"early_stopping": False},
    "patience": {"early_stopping": True},
    "best": {"early_stopping": True, "n_iter_no_change": 10_000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/estimators"))
    parser.add_argument("--sets", nargs="+", default=["OSULeaf", "JapaneseVowels"])
    parser.add_argument("--folds", type=int, default=3)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in given.sets:
        X, y = read_ts(given.data / name / f"{name}_TRAIN.ts")
        for fold, (kept, held) in enumerate(StratifiedKFold(given.folds, shuffle=True, random_state=0).split(y, y)):
            for setting, options in SETTINGS.items():
                began = time.monotonic()
                model = WaveSSMClassifier(random_state=fold, **options).fit([X[at] for at in kept], y[kept])
                score = float(np.mean(model.predict([X[at] for at in held]) == y[held]))
                seconds = time.monotonic() - began
                rows.append({
                    "set": name, "setting": setting, "fold": fold, "accuracy": score, "train_cases": len(kept),
                    "epochs": model.n_iter_, "best_epoch": model.history_.best_epoch, "seconds": seconds,
                })  # fmt: skip
                print(rows[-1], flush=True)
                write_csv(given.out / "early_stopping.csv", rows)
    made = provenance("python benchmarks/early_stopping.py")
    (given.out / "early_stopping.md").write_text(f"early_stopping.csv: {made}.\n")


if __name__ == "__main__":
    main()
