"""PTB-XL in closed form: state features of all records once, then a ridge for all six label sets.

    python benchmarks/ptbxl_features.py DATA --work FOLDER --out results/ptbxl/features.csv

DATA holds ptbxl/ as PhysioNet publishes it. Features are written to FOLDER, half precision, and read from there if they
exist. Folds 1 to 8 are fitted, by sums over blocks of records (a few GB of memory): one ridge for the labels of all
sets, to which a record without a label of the set is a negative, and one for the records of `form` alone. The features
are divided among two members, whose outputs are averaged: half the width, a quarter of the work. Fold 9 chooses which
ridge and which multiple of the leave-one-out penalty a label set takes; fold 10 is scored, with a 90 % interval over
resampled records. Seconds are CPU seconds of one thread. The outputs are kept in FOLDER.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from wavessm.data import load
from wavessm.data.datasets import ptbxl
from wavessm.features import FeatureConfig, RidgeSums, SignalFeatures
from wavessm.training import auroc

CONFIG = FeatureConfig(
    n_features=12_000, n_mixtures=0, pools=("share", "wins", "margin"), stretches=False, values=False
)
MULTIPLES = (1.0, 4.0, 16.0)
BLOCK = 2048


def make_features(data: Path, work: Path) -> dict[str, slice]:
    """Write features of the three parts to `work`, where they are not there; returns the columns of each pool."""
    sets = load("ptbxl-all", data)
    signals = {part: getattr(sets, part).take(torch.arange(len(getattr(sets, part)))).x for part in ptbxl.FOLDS}
    maker = SignalFeatures(signals["train"][:3000], None, CONFIG, 0, "cpu")
    maker.mean, maker.scale = signals["train"].mean((0, 1)), signals["train"].std((0, 1))
    began = time.process_time()
    for part, x in signals.items():
        if not (work / f"{part}.npy").exists():
            made = np.lib.format.open_memmap(work / f"{part}.part", "w+", np.float16, (len(x), maker.bank.n_features))
            for first in range(0, len(x), BLOCK):
                made[first : first + BLOCK] = maker(x[first : first + BLOCK]).numpy()
            (work / f"{part}.part").rename(work / f"{part}.npy")
            print(f"{part}: {made.shape} after {time.process_time() - began:.0f} s", flush=True)
    return maker.bank.blocks


def fit(
    work: Path, blocks: dict[str, slice], member: int, rows: np.ndarray, targets: np.ndarray
) -> dict[str, np.ndarray]:
    """Outputs (records, labels) of a member that was fitted to some training records, by part and multiple."""
    columns = np.concatenate([np.arange(part.start + member, part.stop, 2) for part in blocks.values()])
    ends = np.cumsum([len(range(part.start + member, part.stop, 2)) for part in blocks.values()]).tolist()
    own = {name: slice(first, end) for name, first, end in zip(blocks, [0, *ends], ends, strict=False)}
    files = {part: np.load(work / f"{part}.npy", mmap_mode="r") for part in ptbxl.FOLDS}

    def read(part: str, index: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(files[part][np.sort(index)][:, columns].astype(np.float32))

    order, sums = np.random.default_rng(0).permutation(rows), None
    for first in range(0, len(order), BLOCK):
        index = np.sort(order[first : first + BLOCK])
        features = read("train", index)
        sums = sums or RidgeSums.empty(features, targets.shape[1])
        sums.add(features, torch.from_numpy(2 * targets[index] - 1))
    found, penalty = {}, None
    for multiple in MULTIPLES:
        ridge = sums.solve(own, penalty=penalty and penalty * multiple)
        penalty = penalty or ridge.penalty
        for part in ("val", "test"):
            parts = np.array_split(np.arange(len(files[part])), 4)
            found[f"{part} {multiple:g}"] = torch.cat([ridge(read(part, index)) for index in parts]).numpy()
    return found


def interval(scores: np.ndarray, y: np.ndarray, draws: int = 100) -> np.ndarray:
    """5 % and 95 % of the macro AUROC over resampled records, drawn again until each class has one."""
    random, found = np.random.default_rng(0), []
    while len(found) < draws:
        rows = random.integers(len(y), size=len(y))
        if y[rows].any(0).all():
            found.append(auroc(scores[rows], y[rows]).mean())
    return np.quantile(found, (0.05, 0.95))


def score(labels: str, y: dict[str, np.ndarray], outputs: dict[str, dict[str, np.ndarray]]) -> list[object]:
    """The row of a label set: what fold 9 chose, and the scores."""
    kept = {part: each.any(1) for part, each in y.items()}
    options = {(name, multiple): auroc(found[f"val {multiple:g}"][kept["val"]], y["val"][kept["val"]]).mean()
               for name, found in outputs.items() for multiple in MULTIPLES}  # fmt: skip
    ridge, multiple = max(options, key=lambda option: options[option])
    scores, truth = outputs[ridge][f"test {multiple:g}"][kept["test"]], y["test"][kept["test"]]
    low, high = interval(scores, truth)
    return [labels, truth.shape[1], ridge, multiple, options[ridge, multiple], auroc(scores, truth).mean(), low, high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--members", type=int, default=2, choices=(1, 2))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    blocks = make_features(given.data, given.work)
    folder = ptbxl.PtbxlOptions(root=str(given.data)).files()[0].parent
    table = ptbxl.read_database(folder)
    truth = {labels: ptbxl.read_labels(folder, table, labels)[0] for labels in ptbxl.LABELS}
    parts = {part: table["strat_fold"].isin(list(folds)).to_numpy() for part, folds in ptbxl.FOLDS.items()}
    y = np.concatenate(list(truth.values()), axis=1)[parts["train"]].astype(np.float32)
    rows = {"all records": np.arange(len(y)), "records of form": np.flatnonzero(truth["form"][parts["train"]].any(1))}
    outputs: dict[str, dict[str, np.ndarray]] = {}
    for name, index in rows.items():
        for member in range(given.members):
            path, began = given.work / f"{name} {member}.npz", time.process_time()
            if not path.exists():
                np.savez(path, **fit(given.work, blocks, member, index, y))
                print(f"{name}, member {member}: {time.process_time() - began:.0f} s", flush=True)
            for key, value in np.load(path).items():
                outputs.setdefault(name, {}).setdefault(key, np.zeros_like(value))
                outputs[name][key] += value / given.members
    ends = np.cumsum([each.shape[1] for each in truth.values()])
    found = []
    for (labels, each), end in zip(truth.items(), ends, strict=True):
        own = {name: {key: value[:, end - each.shape[1] : end] for key, value in one.items()}
               for name, one in outputs.items()}  # fmt: skip
        found.append(score(labels, {part: each[chosen] for part, chosen in parts.items()}, own))
        print(*found[-1], flush=True)
    names = ["labels", "classes", "ridge", "multiple", "val", "test", "low", "high"]
    if given.out:
        pd.DataFrame(found, columns=names).round(4).to_csv(given.out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
