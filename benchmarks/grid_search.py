"""How long a grid search over families takes on a small real set, on two cores.

python benchmarks/grid_search.py --data …/site-packages/aeon/datasets/data --out results/estimators
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.model_selection import GridSearchCV

from estimators import read_ts
from wavessm import PAPER_FAMILIES
from wavessm.estimators import WaveSSMClassifier
from wavessm.training.record import provenance, write_csv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/estimators"))
    parser.add_argument("--set", default="ItalyPowerDemand")
    parser.add_argument("--epochs", type=int, default=60)
    given = parser.parse_args()
    X, y = read_ts(given.data / given.set / f"{given.set}_TRAIN.ts")
    X_test, y_test = read_ts(given.data / given.set / f"{given.set}_TEST.ts")
    model = WaveSSMClassifier(max_epochs=given.epochs, random_state=0)
    began = time.perf_counter()
    search = GridSearchCV(model, {"family": list(PAPER_FAMILIES)}, cv=3, n_jobs=2).fit(np.stack(X), y)
    seconds = time.perf_counter() - began
    test = search.score(np.stack(X_test), y_test)
    found = search.cv_results_
    rows = [
        {
            "set": given.set,
            "family": family,
            "cv_accuracy": float(mean),
            "cv_std": float(std),
            "fit_seconds": float(fit),
        }
        for family, mean, std, fit in zip(
            found["param_family"],
            found["mean_test_score"],
            found["std_test_score"],
            found["mean_fit_time"],
            strict=True,
        )
    ]
    write_csv(given.out / "grid_search.csv", rows)
    best = search.best_params_["family"]
    work = f"{len(rows)} families, 3 folds and the last fit"
    line = f"{seconds:.0f} s in all for {work}; best {best}, test accuracy {test:.4f}"
    (given.out / "grid_search.md").write_text(f"{line}. {provenance('python benchmarks/grid_search.py')}.\n")
    print(line)


if __name__ == "__main__":
    main()
