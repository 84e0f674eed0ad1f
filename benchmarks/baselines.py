"""What is reached without a model: rows of the table of runs for forecasts, PTB-XL, the Long Range Arena and speech.

    python benchmarks/baselines.py --data-root FOLDER [--csv results/runs.csv]
    python benchmarks/baselines.py --data-root FOLDER --parts starts --variables multi --csv runs/starts.csv

Forecasts: last value, the last day and week again, a linear map fitted in closed form, and the linear map of context
and calendar that training under the `best` recipe starts from, which shows what the state space adds to it. PTB-XL:
logistic regression on mean, standard deviation, minimum, maximum and mean absolute step of each lead, without waveform.
Arena: the most frequent class, and logistic regression on symbol counts (images: on the pixels). Speech: the most
frequent word, and logistic regression on the power in 40 bands of the whole clip, which knows nothing of order.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from common import Row
from forecast import ridge_lines, score_line
from wavessm import SequenceModel
from wavessm.data import DataSet, Ragged, Source, baseline_scores, load
from wavessm.data.datasets.forecast import SETS, ForecastOptions
from wavessm.errors import DataError
from wavessm.training import evaluate_split, metrics, model_config, resolve, start_at_ridge
from wavessm.training.record import environment
from wavessm_lab.sweep import results
from wavessm_lab.tasks.forecast_settings import tuned

SMALL = {"d_model": 2, "n_layers": 1, "d_state": 2, "family": "s4d-lin"}  # blocks that add nothing to the linear path


def row(task: str, options: dict[str, Any], model: str, metric: str, value: float, seconds: float) -> dict[str, Any]:
    named = "".join(f" --{name} {options[name]}" for name in ("dataset", "horizon", "words") if name in options)
    what = f"{model}, {task}{named} {options.get('variables', '')}".strip()
    return results.described(task, options, "baseline", 0) | {
        "model": model,
        "split": "test",
        "metric": metric,
        "value": value,
        "train_seconds": seconds,
        "versions": results.versions(environment()),
        "command": f"python benchmarks/baselines.py --data-root FOLDER # {what}",
        "status": "ok",
    }


def pairs(variates: list[str]) -> Iterator[dict[str, Any]]:
    """Every forecast that is measured, of one column ("uni"), all ("multi") or both."""
    for variables in variates:
        for dataset, known in SETS.items():
            if (dataset, variables) != ("ECL", "multi"):  # one series of ECL is at hand
                for horizon in known.lengths:
                    yield {"dataset": dataset, "horizon": horizon, "variables": variables}


def forecasts(root: str, variables: list[str]) -> list[Row]:
    rows = []
    for options in pairs(variables):
        began = time.perf_counter()
        data = load("forecast", root, **options)
        scores: dict[str, tuple[float, float]] = dict(baseline_scores(data))
        ((_, line),) = ridge_lines(data, (data.info.length,), (1e-4, 1e-2, 0.1, 1.0))
        scores["linear"] = score_line(line, data.train.series.double().numpy(), data.test)
        seconds = time.perf_counter() - began
        for model, score in scores.items():
            pair = zip(("mse", "mae"), score, strict=True)
            rows += [row("forecast", options, model, metric, value, seconds) for metric, value in pair]
        print(*options.values(), {name: round(score[0], 4) for name, score in scores.items()}, flush=True)
    return rows


def starts(root: str, variables: list[str]) -> list[Row]:
    """The ridge regression that the `best` recipe starts from."""
    rows = []
    for options in pairs(variables):
        began = time.perf_counter()
        place, chosen, _ = tuned(ForecastOptions(root, **options), *resolve("forecast"))
        data = place.load(0)
        model = SequenceModel(model_config("forecast", dataclasses.replace(chosen, **SMALL), data.info, "fp32"))
        fit = start_at_ridge(model, data)
        seconds = time.perf_counter() - began
        scores, _ = evaluate_split(model, data.test, data.info, 512)
        rows += [row("forecast", options, "linear with calendar", m, scores[m], seconds) for m in ("mse", "mae")]
        print(*options.values(), scores, f"validation {fit.error:.4f}", flush=True)
    return rows


def features(x: torch.Tensor) -> np.ndarray:  # (cases, length, leads) → (cases, 5 leads)
    x = x.float()
    return torch.cat((x.mean(1), x.std(1), x.amin(1), x.amax(1), x.diff(dim=1).abs().mean(1)), dim=1).numpy()


def ecg(root: str, _: list[str]) -> list[Row]:
    rows = []
    for task in ("super-diag", "sub-diag", "diag", "form", "rhythm", "all"):
        data = load(f"ptbxl-{task}", root)
        began = time.perf_counter()
        model = make_pipeline(StandardScaler(), MultiOutputClassifier(LogisticRegression(max_iter=1000)))
        model.fit(features(data.train.x), data.train.y.numpy())
        seconds = time.perf_counter() - began
        likely = np.stack([p[:, 1] for p in model.predict_proba(features(data.test.x))], axis=1)
        table = np.concatenate([likely, data.test.y.double().numpy()], axis=1)
        rows.append(scored(f"ptbxl-{task}", "logistic regression on lead statistics", "multilabel", table, seconds))
    return rows


def scored(
    task: str, model: str, kind: str, table: np.ndarray, seconds: float, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A row with its interval from the rows of the test cases."""
    metric = metrics.SELECTION[kind].name
    value, (low, high) = metrics.summarise(kind, table)[metric], metrics.bootstrap(kind, table)[metric]
    print(f"{task}, {model}: {value:.4f} [{low:.4f}, {high:.4f}]", flush=True)
    return row(task, options or {}, model, metric, value, seconds) | {"ci_low": low, "ci_high": high}


def classified(
    task: str, data: DataSet, look: Callable[[Source], np.ndarray], what: str, options: dict[str, Any] | None = None
) -> list[Row]:
    """The most frequent class, and a logistic regression on what `look` sees of every case: (cases, k)"""
    began = time.perf_counter()
    right = data.test.y.numpy()
    common = np.full_like(right, np.bincount(data.train.y.numpy()).argmax())
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    model.fit(look(data.train), data.train.y.numpy())
    given = {"most frequent class": common, f"logistic regression on {what}": model.predict(look(data.test))}
    seconds = time.perf_counter() - began
    return [
        scored(task, name, "multiclass", np.stack([answers, right], axis=1), seconds, options)
        for name, answers in given.items()
    ]


def counts(source: Ragged, symbols: int) -> np.ndarray:
    """How often each symbol comes in a case. (cases, symbols)"""
    case = torch.repeat_interleave(torch.arange(len(source)), source.lengths)
    first = torch.repeat_interleave(source.starts - (source.lengths.cumsum(0) - source.lengths), source.lengths)
    symbol = source.flat[torch.arange(len(case)) + first].long()
    found = torch.bincount(case * symbols + symbol, minlength=len(source) * symbols).view(len(source), symbols)
    return (found / source.lengths[:, None]).numpy()


def pixels(source: Source) -> np.ndarray:
    return source.take(torch.arange(len(source))).x.flatten(1).numpy()


def bands(source: Source, n: int = 40) -> np.ndarray:
    """Logarithm of the power in n bands, the upper ones wider, over the whole clip. (cases, n)"""
    seen = []
    for cases in torch.arange(len(source)).split(512):
        power = torch.fft.rfft(source.take(cases).x[..., 0]).abs().square()
        edges = torch.logspace(1.5, np.log10(power.shape[1]), n + 1).long().tolist()
        seen.append(torch.stack([power[:, a:b].mean(1) for a, b in itertools.pairwise(edges)], dim=1).add(1e-6).log())
    return torch.cat(seen).numpy()


def arena(root: str, _: list[str]) -> list[Row]:
    rows = []
    for task in ("text", "listops", "image"):
        try:
            data = load(task, root)
        except DataError as missing:
            print(missing)
            continue
        symbols = len(data.info.symbols)
        look, what = (partial(counts, symbols=symbols), "symbol counts") if symbols else (pixels, "pixels")
        rows += classified(task, data, look, what)
    return rows


def speech(root: str, _: list[str]) -> list[Row]:
    return classified("speech", load("speech", root, words=30), bands, "the power in 40 bands", {"words": 30})


PARTS: dict[str, Callable[[str, list[str]], list[Row]]] = {
    "ecg": ecg,
    "forecasts": forecasts,
    "starts": starts,
    "arena": arena,
    "speech": speech,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--csv", type=Path, default=Path("results/runs.csv"), help="the rows are added to this table")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--variables", nargs="+", choices=("uni", "multi"), default=["uni", "multi"])
    options = parser.parse_args()
    for name in options.parts:
        try:
            results.append(options.csv, PARTS[name](options.data_root, options.variables))
        except DataError as missing:
            print(missing)


if __name__ == "__main__":
    main()
