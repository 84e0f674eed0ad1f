"""PTB-XL in closed form: state features of all records once, then a ridge for each label set.

    python benchmarks/ptbxl_features.py DATA --out results/ptbxl/features.csv

DATA holds ptbxl/ as PhysioNet publishes it. Folds 1 to 8 are fitted, penalty and blocks by leave-one-out among them;
folds 9 and 10 are scored: macro AUROC, with a 90 % interval over resampled records. Seconds are CPU seconds of one
thread (wall clock with --device cuda): reading and features once for all label sets, the ridge for each.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from wavessm.data import load
from wavessm.data.datasets import ptbxl
from wavessm.features import FeatureConfig, FeatureModel, SignalFeatures, fit_ridge
from wavessm.features.model import _blocks, _scored
from wavessm.training import auroc


def macro(scores: np.ndarray, y: np.ndarray) -> float:
    """Mean AUROC of the classes that have a positive and a negative record."""
    return float(np.nanmean(auroc(scores, y)))


def interval(scores: np.ndarray, y: np.ndarray, draws: int = 200) -> np.ndarray:
    """5 % and 95 % of the macro AUROC over resampled records."""
    random = np.random.default_rng(0)
    rows = (random.integers(len(y), size=len(y)) for _ in range(draws))
    return np.quantile([macro(scores[one], y[one]) for one in rows], (0.05, 0.95))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--n-features", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    began = clock()
    data = load("ptbxl-all", given.data)
    signals = {part: getattr(data, part).take(torch.arange(len(getattr(data, part)))).x for part in ptbxl.FOLDS}
    read = clock() - began
    began = clock()
    maker = SignalFeatures(signals["train"], None, FeatureConfig(n_features=given.n_features), given.seed, given.device)
    features = {part: maker(x) for part, x in signals.items()}
    made = clock() - began
    print(f"read {read:.0f} s, {features['train'].shape[1]} features {made:.0f} s", flush=True)
    folder = ptbxl.find_ptbxl(given.data)
    table, rows = ptbxl.read_database(folder), []
    for labels in ptbxl.LABELS:
        truth, _ = ptbxl.read_labels(folder, table, labels)
        y = {part: truth[table["strat_fold"].isin(list(folds))] for part, folds in ptbxl.FOLDS.items()}
        kept = {part: torch.from_numpy(each.any(1)) for part, each in y.items()}
        y = {part: torch.from_numpy(y[part]).float()[keep] for part, keep in kept.items()}
        began, targets = clock(), 2 * y["train"].to(maker.mean) - 1
        ridge = fit_ridge(
            features["train"][kept["train"]], targets, _blocks(maker), scored=_scored(targets, "multilabel")
        )
        model, spent = FeatureModel(maker, ridge), clock() - began
        scores = {part: model.ridge(features[part][kept[part]]).cpu().numpy() for part in ("val", "test")}
        found = [macro(scores[part], y[part].numpy()) for part in scores]
        low, high = interval(scores["test"], y["test"].numpy())
        rows.append(
            [labels, *found, low, high, targets.shape[1], features["train"].shape[1], given.seed, read, made, spent]
        )
        print(labels, *(f"{value:.4f}" for value in (*found, low, high)), f"ridge {spent:.0f} s", flush=True)
    names = "labels val test low high classes features seed read_seconds features_seconds ridge_seconds"
    if given.out:
        pd.DataFrame(rows, columns=names.split()).round(4).to_csv(given.out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
