"""Whether models differ on one test set: differences of their mean scores over the same resamples of the cases.

    python -m wavessm_lab.report.paired results/ptbxl/predictions.npz --against legs --out results/ptbxl

The file holds `labels` (cases, classes) and for every run its outputs (cases, classes), under a name that ends in its
seed: legs-s0. `pack` makes it from run folders, each of which has the rows of its test cases in test.npy. A resample
draws cases, the same for all models, and for each model its number of seeds, with replacement. The interval
then leaves out what the choice of cases does to both models alike, and holds what the seed does to each. A class
that a resample has no case of counts for none of the models. `--cases 10` leaves out the classes with fewer test cases,
on which a mean over classes may depend.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from wavessm.errors import OptionError, unknown_name
from wavessm.training import auroc

RESAMPLES = 1000


def pack(folders: dict[str, Path], path: Path) -> None:
    """Outputs and labels of multi-label runs, by the name they are to have, as one small file."""
    tables = {name: np.split(np.load(folder / "test.npy"), 2, axis=1) for name, folder in folders.items()}
    labels = next(iter(tables.values()))[1]
    for name, (_, theirs) in tables.items():
        if not np.array_equal(theirs, labels):
            raise OptionError(
                f"paired: the test cases of {name} are not those of the others; compare runs of one task."
            )
    outputs = {name: scores.astype(np.float16) for name, (scores, _) in tables.items()}
    np.savez_compressed(path, labels=labels.astype(bool), **outputs)  # type: ignore[arg-type]


def seeds_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Runs by model.

    >>> seeds_of(["legs-s0", "legs-s1", "morlet-scaled-s0"])
    {'legs': ['legs-s0', 'legs-s1'], 'morlet-scaled': ['morlet-scaled-s0']}
    """
    models: dict[str, list[str]] = {}
    for name in names:
        models.setdefault(re.sub(r"-s\d+$", "", name), []).append(name)
    return models


def frequent(
    outputs: dict[str, np.ndarray], labels: np.ndarray, cases: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return outputs and labels of the classes with at least `cases` cases.

    >>> _, labels = frequent({"legs-s0": np.zeros((3, 2))}, np.array([[1, 0], [1, 1], [0, 0]], bool), 2)
    >>> labels.shape
    (3, 1)
    """
    kept = labels.sum(axis=0) >= cases
    if not kept.any():
        raise OptionError(f"no class has {cases} test cases; the largest has {labels.sum(axis=0).max(initial=0)}.")
    return {name: scores[:, kept] for name, scores in outputs.items()}, labels[:, kept]


def differences(
    outputs: dict[str, np.ndarray], labels: np.ndarray, against: str, resamples: int = RESAMPLES, seed: int = 0
) -> list[dict[str, str | float]]:
    """Macro AUROC of every model, mean and standard deviation over its seeds, the difference to that of `against`, and
    the difference's 5 % and 95 % quantiles."""
    models, runs = seeds_of(outputs), list(outputs)
    if against not in models:
        raise unknown_name("model", against, models)
    random = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {model: [] for model in models}
    for _ in range(resamples):
        sample = random.integers(len(labels), size=len(labels))
        scores = {run: float(np.nanmean(auroc(outputs[run][sample], labels[sample]))) for run in runs}
        for model, names in models.items():
            drawn[model].append(
                float(np.mean([scores[names[k]] for k in random.integers(len(names), size=len(names))]))
            )
    overall = {run: float(np.nanmean(auroc(outputs[run], labels))) for run in runs}
    whole = {model: np.array([overall[run] for run in names]) for model, names in models.items()}
    rows: list[dict[str, str | float]] = []
    for model, values in whole.items():
        gap = np.array(drawn[model]) - np.array(drawn[against])
        low, high = np.quantile(gap, (0.05, 0.95))
        rows.append(
            {
                "model": model,
                "seeds": len(values),
                "auroc": float(values.mean()),
                "deviation": float(values.std(ddof=1)) if len(values) > 1 else float("nan"),
                "difference": float(values.mean() - whole[against].mean()),
                "low": float(low),
                "high": float(high),
                "better_in": float((gap > 0).mean()),
            }
        )
    return rows


def main() -> None:
    """Compare all models with one, into paired.csv."""
    from wavessm.training.record import write_csv

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--against", required=True)
    parser.add_argument("--cases", type=int, default=1, help="leave out classes with fewer test cases")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        with np.load(options.predictions) as file:
            outputs = {name: file[name].astype(float) for name in file.files if name != "labels"}
            rows = differences(*frequent(outputs, file["labels"], options.cases), options.against)
    except (OSError, EOFError, ValueError, KeyError) as reason:
        print(f"paired: {options.predictions}: {reason}", file=sys.stderr)
        sys.exit(2)
    write_csv(options.out / "paired.csv", rows)
    for row in rows:
        print(f"{row['model']:24} {row['auroc']:.4f} {row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]")


if __name__ == "__main__":
    main()
