"""How far PTB-XL goes without looking at a waveform: logistic regression on five numbers a lead.

    python benchmarks/ptbxl_baseline.py --data-root FOLDER [--csv results/runs.csv]

Mean, spread, lowest and highest value and mean step of each of the 12 leads, scaled by the training split. The row goes
into the table of runs beside the models.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from wavessm.data.ptbxl import load_ptbxl
from wavessm.training import metrics, results
from wavessm.training.folder import environment


def features(x: torch.Tensor) -> torch.Tensor:  # (cases, length, leads) → (cases, 5 leads)
    x = x.float()
    parts = (x.mean(1), x.std(1), x.amin(1), x.amax(1), x.diff(dim=1).abs().mean(1))
    return torch.cat(parts, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="ptbxl-super-diag")
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--csv", type=Path, default=Path("results/runs.csv"))
    options = parser.parse_args()
    data = load_ptbxl(options.data_root, options.task.removeprefix("ptbxl-"))
    began = time.perf_counter()
    model = make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=1000)))
    model.fit(features(data.train.x).numpy(), data.train.y.numpy())
    seconds = time.perf_counter() - began
    rows = []
    for split, source in (("test", data.test), ("val", data.val)):
        logits = torch.from_numpy(np.stack([p[:, 1] for p in model.predict_proba(features(source.x).numpy())], axis=1))
        table = torch.cat([logits.double(), source.y.double()], dim=1).numpy()
        low, high = metrics.bootstrap("multilabel", table)["auroc"]
        value = metrics.summarise("multilabel", table)["auroc"]
        print(f"{options.task} {split}: {value:.4f} [{low:.4f}, {high:.4f}]")
        rows.append(
            results.described(options.task, {}, "baseline", 0)
            | {
                "model": "logistic regression on lead statistics",
                "split": split,
                "metric": "auroc",
                "value": f"{value:.6g}",
                "ci_low": f"{low:.6g}",
                "ci_high": f"{high:.6g}",
                "train_seconds": f"{seconds:.6g}",
                "versions": results.versions(environment()),
                "command": f"python benchmarks/ptbxl_baseline.py --task {options.task}",
                "status": "ok",
            }
        )
    results.append(options.csv, rows)


if __name__ == "__main__":
    main()
