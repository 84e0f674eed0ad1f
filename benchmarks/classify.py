"""Time-series classification on published splits, beside aeon's MiniRocket, MultiRocket-Hydra and QUANT in one run.

    python benchmarks/classify.py --data-root FOLDER --out results/estimators

FOLDER holds ucr/<problem>_TRAIN.tsv and _TEST.tsv (first column the class). One fit at a time, defaults everywhere, one
seed. Problems with missing samples are left out; of unequal lengths only ours are fitted. aeon is not a dependency of
wavessm: install it beside it, `pip install aeon`. Writes classify.csv: accuracy, log loss, seconds.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, log_loss


def read(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Cases, NaN at their end cut off, and classes."""
    table = np.loadtxt(path, delimiter="\t", ndmin=2)
    cases = [row[: len(row) - int(np.isnan(row[::-1]).cumprod().sum())] for row in table[:, 1:]]
    return cases, table[:, 0].astype(int)


def models(seed: int, threads: int) -> dict[str, Callable[[], Any]]:
    """Constructors by name."""
    from wavessm.estimators import WaveSSMClassifier

    made: dict[str, Callable[[], Any]] = {"wavessm": lambda: WaveSSMClassifier(random_state=seed)}
    if importlib.util.find_spec("aeon"):
        from aeon.classification.convolution_based import MiniRocketClassifier, MultiRocketHydraClassifier
        from aeon.classification.interval_based import QUANTClassifier

        made["MiniRocket"] = lambda: MiniRocketClassifier(random_state=seed, n_jobs=threads)
        made["MultiRocket-Hydra"] = lambda: MultiRocketHydraClassifier(random_state=seed, n_jobs=threads)
        made["QUANT"] = lambda: QUANTClassifier(random_state=seed)
    return made


def measure(model: Any, train: tuple, test: tuple) -> dict[str, Any]:
    """Fit and score."""
    start = time.perf_counter()
    model.fit(*train)
    fitted = time.perf_counter()
    found = model.predict(test[0])
    predicted = time.perf_counter()
    probability = model.predict_proba(test[0])
    return {
        "accuracy": accuracy_score(test[1], found),
        "log_loss": log_loss(test[1], np.clip(probability, 1e-6, 1), labels=np.unique(train[1])),
        "fit_seconds": fitted - start,
        "predict_seconds": predicted - fitted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", nargs="*", default=[])
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(given.threads)
    known = models(given.seed, given.threads)
    chosen = {name: make for name, make in known.items() if not given.models or name in given.models}
    warm = np.random.default_rng(0).standard_normal((2, 30, 60))
    for make in chosen.values():  # compilation of kernels is not counted
        measure(make(), (warm[0], np.arange(30) % 2), (warm[1], np.arange(30) % 2))
    rows = []
    names = given.problems or sorted(
        p.name[: -len("_TRAIN.tsv")] for p in (given.data_root / "ucr").glob("*_TRAIN.tsv")
    )
    for problem in names:
        train, test = (read(given.data_root / "ucr" / f"{problem}_{part}.tsv") for part in ("TRAIN", "TEST"))
        if any(np.isnan(case).any() for case in train[0] + test[0]):
            print(f"{problem}: missing samples, left out")
            continue
        equal = len({len(case) for case in train[0] + test[0]}) == 1
        if equal:
            train, test = ((np.stack(cases), y) for cases, y in (train, test))
        for name, make in chosen.items():
            if not equal and name != "wavessm":
                continue
            row = {"problem": problem, "model": name, "cases": len(train[1]), "seed": given.seed}
            rows.append(row | measure(make(), train, test))
            print(
                {key: round(value, 4) if isinstance(value, float) else value for key, value in rows[-1].items()},
                flush=True,
            )
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "classify.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
