"""What is reached without a model: rows of the table of runs for every forecast, and for PTB-XL.

    python benchmarks/baselines.py --data-root FOLDER [--csv results/runs.csv]

Forecasts: last value, the last day and week again, and a linear map fitted in closed form; for one variable also the
linear map of context and calendar that training under the `best` recipe starts from, which shows what the state space
adds to it. PTB-XL: logistic regression on mean, spread, lowest and highest value and mean step of each lead, which
looks at no waveform.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from wavessm.data.baselines import baseline_scores
from wavessm.data.forecast import load_forecast
from wavessm.data.ptbxl import load_ptbxl
from wavessm.errors import DataError
from wavessm.models import SequenceModel
from wavessm.tasks import data_options, model_config
from wavessm.training import metrics, results
from wavessm.training.direct import start_at_ridge
from wavessm.training.evaluate import evaluate_split
from wavessm.training.folder import environment
from wavessm.training.forecast_settings import settled
from wavessm.training.recipes import recipe as recipe_of

SMALL = {"d_model": 2, "n_layers": 1, "d_state": 2, "family": "s4d-lin"}  # its blocks say nothing
HORIZONS = {
    "ETTh1": (24, 48, 168, 336, 720),
    "ETTh2": (24, 48, 168, 336, 720),
    "ETTm1": (24, 48, 96, 288, 672),
    "WTH": (24, 48, 168, 336, 720),
    "ECL": (48, 168, 336, 720, 960),
}


def row(task: str, options: dict[str, Any], model: str, metric: str, value: float, seconds: float) -> dict[str, Any]:
    named = f" --dataset {options['dataset']} --horizon {options['horizon']}" if options else ""
    return results.described(task, options, "baseline", 0) | {
        "model": model,
        "split": "test",
        "metric": metric,
        "value": value,
        "train_seconds": seconds,
        "versions": results.versions(environment()),
        "command": f"python benchmarks/baselines.py: {model}, {task}{named} {options.get('variables', '')}".strip(),
        "status": "ok",
    }


def forecasts(root: str) -> list[dict[str, Any]]:
    rows = []
    for dataset, horizons in HORIZONS.items():
        for variables in ("uni", "multi") if dataset != "ECL" else ("uni",):  # one series of ECL is at hand
            for horizon in horizons:
                options = {"dataset": dataset, "horizon": horizon, "variables": variables}
                began = time.perf_counter()
                scores = baseline_scores(load_forecast(root, dataset, horizon, variables == "multi"))
                seconds = time.perf_counter() - began
                for model, score in scores.items():
                    rows += [row("forecast", options, model, m, getattr(score, m), seconds) for m in ("mse", "mae")]
                print(dataset, variables, horizon, {name: round(score.mse, 4) for name, score in scores.items()})
    return rows


def starts(root: str) -> list[dict[str, Any]]:
    """What the `best` recipe begins with: its ridge regression, and nothing behind the blocks."""
    rows = []
    for dataset, horizons in HORIZONS.items():
        for horizon in horizons:
            options = {"dataset": dataset, "horizon": horizon, "variables": "uni"}
            place = data_options("forecast", {**options, "root": root})
            chosen, recipe = settled(place, recipe_of("forecast"))
            data = chosen.load(0)
            recipe = replace(recipe, model=replace(recipe.model, **SMALL))
            began = time.perf_counter()
            model = SequenceModel(model_config("forecast", recipe.model, data.info, "fp32"))
            start_at_ridge(model, data)
            seconds = time.perf_counter() - began
            scores, _ = evaluate_split(model, data.test, data.info, 512)
            rows += [row("forecast", options, "linear with calendar", m, scores[m], seconds) for m in ("mse", "mae")]
            print(dataset, horizon, scores, flush=True)
    return rows


def features(x: torch.Tensor) -> np.ndarray:  # (cases, length, leads) → (cases, 5 leads)
    x = x.float()
    return torch.cat((x.mean(1), x.std(1), x.amin(1), x.amax(1), x.diff(dim=1).abs().mean(1)), dim=1).numpy()


def ecg(root: str) -> list[dict[str, Any]]:
    rows = []
    for task in ("super-diag", "sub-diag", "diag", "form", "rhythm"):
        data = load_ptbxl(root, task)
        began = time.perf_counter()
        model = make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=1000)))
        model.fit(features(data.train.x), data.train.y.numpy())
        seconds = time.perf_counter() - began
        likely = np.stack([p[:, 1] for p in model.predict_proba(features(data.test.x))], axis=1)
        table = np.concatenate([likely, data.test.y.double().numpy()], axis=1)
        low, high = metrics.bootstrap("multilabel", table)["auroc"]
        value = metrics.summarise("multilabel", table)["auroc"]
        print(f"ptbxl-{task}: {value:.4f} [{low:.4f}, {high:.4f}]")
        made = row(f"ptbxl-{task}", {}, "logistic regression on lead statistics", "auroc", value, seconds)
        rows.append(made | {"ci_low": low, "ci_high": high})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--csv", type=Path, default=Path("results/runs.csv"))
    options = parser.parse_args()
    for make in (ecg, forecasts, starts):
        try:
            results.append(options.csv, make(options.data_root))
        except DataError as missing:
            print(missing)


if __name__ == "__main__":
    main()
