"""Whether two models differ on one test set: differences of their scores over the same resamples of the cases.

    python -m wavessm.report.paired results/ptbxl/predictions.npz --against legs-s0 --out results/ptbxl

The file holds `labels` (cases, classes) and for every run its outputs (cases, classes); `pack` makes it from run
folders, each of which has the rows of its test cases in test.npy. A paired interval leaves out what the choice of
cases does to both models alike; what the seed does is not in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from wavessm.errors import OptionError
from wavessm.registry import unknown_name
from wavessm.training.metrics import auroc

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


def differences(
    outputs: dict[str, np.ndarray], labels: np.ndarray, against: str, resamples: int = RESAMPLES, seed: int = 0
) -> list[dict[str, str | float]]:
    """Macro AUROC of every run, its difference to that of `against`, and the difference's 5 % and 95 % quantiles."""
    if against not in outputs:
        raise unknown_name("run", against, outputs)
    random = np.random.default_rng(seed)
    drawn: list[list[float]] = []
    while len(drawn) < resamples:
        sample = random.integers(len(labels), size=len(labels))
        if labels[sample].any(axis=0).all():
            drawn.append([float(auroc(output[sample], labels[sample]).mean()) for output in outputs.values()])
    scores = np.array(drawn)
    base = list(outputs).index(against)
    rows: list[dict[str, str | float]] = []
    for k, (name, output) in enumerate(outputs.items()):
        gap = scores[:, k] - scores[:, base]
        whole = float(auroc(output, labels).mean())
        low, high = np.quantile(gap, (0.05, 0.95))
        rows.append(
            {
                "run": name,
                "auroc": whole,
                "difference": whole - float(auroc(outputs[against], labels).mean()),
                "low": float(low),
                "high": float(high),
                "better_in": float((gap > 0).mean()),
            }
        )
    return rows


def main() -> None:
    from wavessm.lab.record import write_csv

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--against", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        with np.load(options.predictions) as file:
            outputs = {name: file[name].astype(float) for name in file.files if name != "labels"}
            rows = differences(outputs, file["labels"], options.against)
    except (OSError, ValueError, KeyError) as reason:
        parser.error(f"{options.predictions}: {reason}")
    write_csv(options.out / "paired.csv", rows)
    for row in rows:
        print(f"{row['run']:24} {row['auroc']:.4f} {row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]")


if __name__ == "__main__":
    main()
