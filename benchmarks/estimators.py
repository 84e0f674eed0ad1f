"""Schedules of gradient training beside state features, by cross-validation inside published training splits.

    python benchmarks/estimators.py --data-root FOLDER --out results/estimators

FOLDER as for benchmarks/classify.py, whose parts of training splits are fitted and scored here; test splits are not
read. Writes schedules.csv, a row at a time. `--threads` compares one thread with two instead, alone and beside a
process that keeps one core busy, and writes threads.csv.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from pathlib import Path

import pandas as pd
import torch

from classify import Cases, find_problems, measure, parts_of_training, stacked
from wavessm.estimators import WaveSSMClassifier

PROBLEMS = ("OSULeaf", "JapaneseVowels", "CricketY", "DistalPhalanxOutlineAgeGroup")
FIELDS = ("accuracy", "log_loss", "fit_cpu_seconds")


def schedules(cases: int, seed: int) -> dict[str, WaveSSMClassifier]:
    """Classifiers by name, for a number of training cases."""
    batches = -(-cases // min(64, max(8, -(-cases // 4))))
    return {
        "features": WaveSSMClassifier(random_state=seed),
        "1500 steps": WaveSSMClassifier(method="gradient", random_state=seed),
        "375 steps": WaveSSMClassifier(max_epochs=max(10, round(375 / batches)), random_state=seed),
        "early stopping": WaveSSMClassifier(early_stopping=True, random_state=seed),
        "early stopping, no last fit": WaveSSMClassifier(early_stopping=True, warm_start=True, random_state=seed),
    }


def compare(problems: dict[str, Path], given: argparse.Namespace) -> None:
    """schedules.csv."""
    rows = []
    for problem, path in problems.items():
        for repeat, (some, rest) in enumerate(parts_of_training(path, given.repeats)):
            made = schedules(len(some[1]), repeat)
            for name, model in ((name, made[name]) for name in given.schedules or made):
                found = measure(model, some, rest)
                rows.append({"problem": problem, "schedule": name, "repeat": repeat, "cases": len(some[1]),
                             "epochs": getattr(model, "n_iter_", 0)}
                            | {key: round(found[key], 4) for key in FIELDS})  # fmt: skip
                print(*rows[-1].values(), flush=True)
                pd.DataFrame(rows).to_csv(given.out / "schedules.csv", index=False, lineterminator="\n")


def _busy() -> None:
    while True:
        pass


def compare_threads(cases: Cases, out: Path) -> None:
    """threads.csv: seconds of a fit with one thread and with two, alone and beside a busy process."""
    rows = []
    for beside in (False, True):
        other = multiprocessing.get_context("spawn").Process(target=_busy, daemon=True)
        if beside:
            other.start()
        for method, threads in ((m, t) for m in ("features", "gradient") for t in (1, 2, 1, 2)):
            torch.set_num_threads(threads)
            options = {"max_epochs": 20} if method == "gradient" else {}
            model, began = WaveSSMClassifier(method=method, random_state=0, **options), time.perf_counter()
            model.fit(stacked(cases[0]), cases[1])
            rows.append({"method": method, "threads": threads, "busy_process": beside,
                         "seconds": round(time.perf_counter() - began, 2)})  # fmt: skip
            print(*rows[-1].values(), flush=True)
        if beside:
            other.terminate()
    pd.DataFrame(rows).to_csv(out / "threads.csv", index=False, lineterminator="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--schedules", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    problems = find_problems(given.data_root, given.problems)
    if given.threads:
        some, _ = next(parts_of_training(problems["CricketY"], 1))
        compare_threads(some, given.out)
    else:
        torch.set_num_threads(1)
        compare(problems, given)


if __name__ == "__main__":
    main()
