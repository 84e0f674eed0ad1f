"""PTB-XL in closed form: state features of all records once, then a ridge for all six label sets.

    python benchmarks/ptbxl_features.py DATA --work FOLDER --out results/ptbxl

DATA holds ptbxl/ as PhysioNet publishes it. Features of each bank, in half precision, their products and the outputs
are written to FOLDER, and read from there if they exist. There are more features than records, so the ridge is solved
in its dual form: a kernel matrix of 1.7 GB, however many features there are. "linear" is the ridge on the features
themselves; "gaussian" and "laplace" are ridges on exp(−d²) and exp(−d) of their distances, in units of the median. One
ridge has the labels of all sets, to which a record without a label of the set is a negative, and one the records of
`form` alone. Folds 1 to 8 are fitted; fold 9 chooses kernel, records and penalty for a label set; fold 10 is scored,
with a 90 % interval over resampled records, and again after a last fit to folds 1 to 9 (features.csv). With outputs of
trained models (predictions*.npz) beside it, hybrid.csv has what ranks of both together score, trained 0.7 and features
(folds 1 to 8) 0.3. Seconds are CPU seconds.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata
from torch import Tensor

from wavessm.data import load
from wavessm.data.datasets import ptbxl
from wavessm.features import FeatureConfig, SignalFeatures
from wavessm.training import auroc

PLAIN = {"n_features": 12_000, "pools": ("share", "wins", "margin"), "stretches": False, "values": False}
BANKS = [FeatureConfig(**PLAIN, n_mixtures=mixtures) for mixtures in (0, 0, 12)]
PENALTIES = {"linear": (1.5, 5.0, 15.0), "gaussian": (1.5, 5.0, 15.0), "laplace": (1.0, 4.0)}
"""Beside a kernel of mean diagonal 1."""
HEADS = {"linear": ("linear",), "any kernel": tuple(PENALTIES)}
Option = tuple[str, str, float]  # kernel, records, penalty
BLOCK = 2048
HYBRID = 0.3
FIELDS = ("labels", "head", "kernel", "records", "penalty", "val", "test", "low", "high", "test_refit")


def make_features(data: Path, work: Path, banks: int) -> list[Path]:
    """Files (records, features) of each bank, made where they are not there; training records come first."""
    paths = [work / f"bank{seed}.npy" for seed in range(banks)]
    if all(path.exists() for path in paths):
        return paths
    sets = [getattr(load("ptbxl-all", data), part) for part in ("train", "val", "test")]
    x = torch.cat([each.take(torch.arange(len(each))).x for each in sets])
    train = x[: len(sets[0])]
    for seed, path in enumerate(paths):
        maker, began = SignalFeatures(train[:3000], None, BANKS[seed], seed, "cpu"), time.process_time()
        maker.mean, maker.scale = train.mean((0, 1)), train.std((0, 1))
        made = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.float16, (len(x), maker.bank.n_features))
        for first in range(0, len(x), BLOCK):
            made[first : first + BLOCK] = maker(x[first : first + BLOCK]).numpy()
        path.with_suffix(".part").rename(path)
        print(f"{path.name}: {made.shape}, {time.process_time() - began:.0f} s", flush=True)
    return paths


def products(paths: list[Path], work: Path, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Products of features of all records with those of the first m, and with themselves; the first n standardise."""
    kept = work / f"products{len(paths)}.npy", work / f"squares{len(paths)}.npy"
    if not kept[0].exists():
        began, total, squares = time.process_time(), None, 0.0
        for file in (np.load(path, mmap_mode="r") for path in paths):
            for columns in np.array_split(np.arange(file.shape[1]), file.shape[1] // BLOCK):
                z = torch.from_numpy(np.asarray(file[:, columns[0] : columns[-1] + 1])).float()
                scale = z[:n].std(0)
                z = (z - z[:n].mean(0)) / torch.where(scale > 1e-6, scale, torch.inf)
                total = torch.zeros(len(z), m) if total is None else total
                total.addmm_(z, z[:m].T)
                squares = squares + z.square().sum(1)
        for path, made in zip(kept, (total, squares), strict=True):
            np.save(path, made.numpy())
        print(f"products: {time.process_time() - began:.0f} s", flush=True)
    return np.load(kept[0]), np.load(kept[1])


class Ridges:
    """Ridges on some of the first m records; the first n train where fold 9 chooses."""

    def __init__(self, paths: list[Path], work: Path, targets: np.ndarray, n: int) -> None:
        self.paths, self.work, self.targets, self.n = paths, work, targets, n
        self.kind, self.K = "", torch.empty(0)

    def kernel(self, kind: str) -> Tensor:
        """The kernel matrix (records, m), the last one asked for from memory."""
        if self.kind != kind:
            self.K = torch.empty(0)
            K, squares = map(torch.from_numpy, products(self.paths, self.work, self.n, len(self.targets)))
            if kind != "linear":
                K.mul_(-2).add_(squares[:, None]).add_(squares[None, : K.shape[1]]).clamp_min_(0)
                K.div_(K[:2000, : self.n].flatten()[::97].median())
                (K if kind == "gaussian" else K.sqrt_()).neg_().exp_()
            self.kind, self.K = kind, K
        return self.K

    def __call__(self, option: Option, rows: np.ndarray, first: int) -> np.ndarray:
        """Outputs (records, labels) of a ridge fitted to some rows, for records from `first` on; kept in `work`."""
        kind, name, penalty = option
        path = self.work / f"{kind}{len(self.paths)}, {name}, {penalty:g}{', refit' * (first > self.n)}.npy"
        if not path.exists():
            own, began, K = torch.from_numpy(rows), time.process_time(), self.kernel(kind)
            G, new = K[own][:, own], K[first:][:, own]
            mean = G.mean(0)
            new = new - new.mean(1, keepdim=True) - mean + mean.mean()  # as if features were centred on these records
            G -= mean + mean[:, None] - mean.mean()
            G.diagonal().add_(penalty * G.diagonal().mean())
            y = 2 * torch.from_numpy(self.targets[rows]) - 1
            solved = torch.cholesky_solve(y - y.mean(0), torch.linalg.cholesky(G))
            np.save(path, (new @ solved + y.mean(0)).numpy())
            print(f"{path.stem}: {time.process_time() - began:.0f} s", flush=True)
        return np.load(path)


def interval(scores: np.ndarray, y: np.ndarray, draws: int = 100) -> np.ndarray:
    """5 % and 95 % of the macro AUROC over resampled records, drawn again until each class has one."""
    random, found = np.random.default_rng(0), []
    while len(found) < draws:
        rows = random.integers(len(y), size=len(y))
        if y[rows].any(0).all():
            found.append(auroc(scores[rows], y[rows]).mean())
    return np.quantile(found, (0.05, 0.95))


def hybrid(labels: str, scores: np.ndarray, path: Path) -> list[dict]:
    """Rows of trained models, alone and with the features, by the mean of ranks."""
    table, rows = np.load(path), []
    truth, own = table["labels"], rankdata(scores, axis=0)
    for name in table.files:
        trained = table[name].astype(np.float32)
        if trained.shape == scores.shape and name != "labels":
            both = (1 - HYBRID) * rankdata(trained, axis=0) + HYBRID * own
            found = auroc(trained, truth).mean(), auroc(both, truth).mean()
            rows.append(dict(zip(("labels", "model", "trained", "hybrid"), (labels, name, *found), strict=True)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--banks", type=int, default=len(BANKS))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    folder = ptbxl.PtbxlOptions(root=str(given.data)).files()[0].parent
    table = ptbxl.read_database(folder)
    truth = {labels: ptbxl.read_labels(folder, table, labels)[0] for labels in ptbxl.LABELS}
    parts = [np.flatnonzero(table["strat_fold"].isin(list(folds))) for folds in ptbxl.FOLDS.values()]
    order, (n, v, _) = np.concatenate(parts), map(len, parts)
    y = np.concatenate(list(truth.values()), axis=1)[order].astype(np.float32)
    ridges = Ridges(make_features(given.data, given.work, given.banks), given.work, y[: n + v], n)
    rows = {"all records": np.arange(n + v), "records of form": np.flatnonzero(truth["form"][order][: n + v].any(1))}
    options = [(kind, name, each) for kind, values in PENALTIES.items() for name in rows for each in values]
    outputs = {option: ridges(option, rows[option[1]][rows[option[1]] < n], n) for option in options}
    found, together, end = [], [], 0
    for labels, each in truth.items():
        columns, end = slice(end, end + each.shape[1]), end + each.shape[1]
        val, test = np.split(each[order][n:], [v])
        kept = val.any(1), test.any(1)
        tried = {o: auroc(made[:v, columns][kept[0]], val[kept[0]]).mean() for o, made in outputs.items()}
        for head, kinds in HEADS.items():
            best = max((o for o in options if o[0] in kinds), key=lambda o: tried[o])
            scores = outputs[best][v:, columns][kept[1]]
            again = ridges(best, rows[best[1]], n + v)[:, columns][kept[1]] if head != "linear" else scores * np.nan
            truth_, score = test[kept[1]], auroc(scores, test[kept[1]]).mean()
            own = [labels, head, *best, tried[best], score, *interval(scores, truth_), auroc(again, truth_).mean()]
            found.append(dict(zip(FIELDS, own, strict=True)))
            print(*found[-1].values(), flush=True)
        path = given.out / ("predictions.npz" if labels == "super-diag" else f"predictions_{labels}.npz")
        together += hybrid(labels, scores, path) if path.exists() else []
    for name, rows_ in (("features.csv", found), ("hybrid.csv", together)):
        pd.DataFrame(rows_).round(4).to_csv(given.out / name, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
