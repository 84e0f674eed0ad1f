"""Accuracy and forecasts as samples go missing, at random and in blocks: gaps of our own, or a fill before the model.

    OMP_NUM_THREADS=1 python benchmarks/missing.py --data-root FOLDER --out results/missing
    OMP_NUM_THREADS=1 python benchmarks/missing.py --data-root FOLDER --forecast
    OMP_NUM_THREADS=1 python benchmarks/missing.py --data-root FOLDER --gradient 60 --problems ECGFiveDays

FOLDER holds ucr/<problem>_TRAIN.tsv and _TEST.tsv (first column the class) and forecasting/ETTh1.csv. Samples are taken
away from training and test cases alike, with one seed. Methods:

    gap            missing="gap": NaN is not pooled; no forecast of it is fitted
    hold           missing="hold": the last value stands in for NaN
    interpolation  straight lines over the gaps first; before an origin only those that end there, then the last value
    zero           zeros in the gaps (of a series: the mean of what was observed)
    MiniRocket     straight lines over the gaps, then aeon's MiniRocketClassifier, which takes no NaN

aeon is not a dependency of wavessm: install it beside it. `--gradient` trains the classifiers for so many epochs
instead of fitting features in closed form. Writes missing.csv, gradient.csv or forecast.csv, a row as each fit ends,
and prints means.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common import Row, arguments
from wavessm.data.datasets.forecast import ForecastOptions
from wavessm.estimators import WaveSSMClassifier, WaveSSMForecaster
from wavessm.training.record import provenance, write_csv

PROBLEMS = ("Coffee", "FaceFour", "ArrowHead", "ECGFiveDays")
BLOCK = 0.1
"""Length of a block, as a share of a signal; of a series 48 hours."""


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Signals (cases, length) and classes."""
    table = np.loadtxt(path, delimiter="\t", ndmin=2)
    return table[:, 1:], table[:, 0].astype(int)


def take_away(X: np.ndarray, share: float, pattern: str, rng: np.random.Generator, block: int = 0) -> np.ndarray:
    """X with NaN in place of a share of the samples of each case, at random or in blocks."""
    X, length = X.copy(), X.shape[1]
    count, block = round(share * length), block or max(1, round(BLOCK * length))
    for case in X:
        if pattern == "random":
            case[rng.choice(length, count, replace=False)] = np.nan
        while (rest := count - int(np.isnan(case).sum())) > 0:
            start = rng.integers(0, length - min(block, rest) + 1)
            case[start : start + min(block, rest)] = np.nan
    return X


def interpolate(X: np.ndarray) -> np.ndarray:
    """X with straight lines over the gaps, the first and last value beyond the ends."""
    t = np.arange(X.shape[1])
    return np.stack([np.interp(t, t[~np.isnan(case)], case[~np.isnan(case)]) for case in X])


def centre(X: np.ndarray) -> np.ndarray:
    """X with the mean of each case in its gaps."""
    return np.where(np.isnan(X), np.nanmean(X, axis=1, keepdims=True), X)


def methods(seed: int, epochs: int | None) -> dict[str, tuple[Any, Any]]:
    """A fill and a classifier by name; with epochs, it is trained by gradient."""
    how = {"method": "features"} if epochs is None else {"method": "gradient", "max_epochs": epochs}

    def ours(**options: Any) -> WaveSSMClassifier:
        return WaveSSMClassifier(random_state=seed, device="cpu", **how, **options)

    made = {
        "gap": (np.copy, lambda: ours(missing="gap")),
        "hold": (np.copy, lambda: ours(missing="hold")),
        "interpolation": (interpolate, ours),
        "zero": (np.nan_to_num, ours),
    }
    if importlib.util.find_spec("aeon") and epochs is None:
        from aeon.classification.convolution_based import MiniRocketClassifier

        made["MiniRocket"] = (interpolate, lambda: MiniRocketClassifier(random_state=seed, n_jobs=1))
    return made


def class_rows(root: Path, problems: list[str], conditions: list, seed: int, epochs: int | None) -> Iterator[Row]:
    """Accuracies of all methods."""
    for problem in problems:
        parts = [read(root / "ucr" / f"{problem}_{part}.tsv") for part in ("TRAIN", "TEST")]
        for pattern, share in conditions:
            rng = np.random.default_rng(seed)
            (X, y), (X_test, y_test) = ((take_away(X, share, pattern, rng), y) for X, y in parts)
            for name, (fill, make) in methods(seed, epochs).items():
                score = float(np.mean(make().fit(fill(X), y).predict(fill(X_test)) == y_test))
                yield {"problem": problem, "pattern": pattern, "share": share, "method": name, "accuracy": score,
                       "train_cases": len(y), "test_cases": len(y_test), "length": X.shape[1],
                       "seed": seed}  # fmt: skip


def forecast_rows(
    root: Path, sets: list[str], conditions: list, horizon: int, seed: int, origins: int
) -> Iterator[Row]:
    """Mean squared errors, scaled by the training part, of all columns: `origins` test windows, against all values."""
    for name in sets:
        options = ForecastOptions(str(root), name, horizon, "multi", 336)
        frame, *_ = options.frame()
        train, val = options.line_options(frame)["split"]
        whole = ((frame - frame[:train].mean()) / frame[:train].std()).to_numpy()
        at = np.linspace(train + val, len(whole) - horizon, origins).astype(int)
        for pattern, share in conditions:
            known = take_away(whole.T, share, pattern, np.random.default_rng(seed), block=48).T
            for method, fill in {"gap": None, "hold": None, "interpolation": interpolate, "zero": centre}.items():

                def history(end: int, frame: Any = frame, known: Any = known, fill: Any = fill) -> pd.DataFrame:
                    values = known[:end] if fill is None else fill(known[:end].T).T
                    return pd.DataFrame(values, frame.index[:end], frame.columns)

                model = WaveSSMForecaster(
                    horizon, split=(train, val), missing=method if fill is None else "error", refit=False
                ).fit(history(train + val))
                error = np.stack([model.predict(series=history(k)).to_numpy() - whole[k : k + horizon] for k in at])
                yield {"problem": name, "pattern": pattern, "share": share, "method": method, "horizon": horizon,
                       "mse": float(np.square(error).mean()), "mae": float(np.abs(error).mean()), "windows": origins,
                       "seed": seed}  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, "results/missing")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--problems", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shares", nargs="*", type=float, default=[0.1, 0.3, 0.5])
    parser.add_argument("--gradient", type=int, metavar="EPOCHS")
    parser.add_argument("--forecast", action="store_true")
    parser.add_argument("--horizon", type=int, default=96)
    parser.add_argument("--origins", type=int, default=200)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    conditions = [("none", 0.0), *((pattern, share) for pattern in ("random", "blocks") for share in given.shares)]
    name, score = "gradient" if given.gradient else "missing", "accuracy"
    if given.forecast:
        name, score, sets = "forecast", "mse", given.problems or ["ETTh1", "ETTh2"]
        found = forecast_rows(given.data_root, sets, conditions, given.horizon, given.seed, given.origins)
    else:
        found = class_rows(given.data_root, given.problems or list(PROBLEMS), conditions, given.seed, given.gradient)
    rows: list[Row] = []
    for row in found:
        rows.append(row)
        print({key: row[key] for key in ("problem", "pattern", "share", "method", score)}, flush=True)
        write_csv(given.out / f"{name}.csv", rows)
    print(table(rows, score), f"Made by {provenance('python benchmarks/missing.py')}.", sep="\n\n")


def table(rows: list[Row], score: str) -> str:
    """Means over the problems in Markdown, a row for each pattern and share."""
    means = pd.DataFrame(rows).pivot_table(index=["pattern", "share"], columns="method", values=score, sort=False)
    lines = [["taken away", *means.columns], ["---"] * (1 + len(means.columns))]
    for (pattern, share), values in means.iterrows():
        where = "at random" if pattern == "random" else "in blocks"
        what = "nothing" if pattern == "none" else f"{100 * share:.0f} %, {where}"
        lines.append([what, *(f"{value:.3f}" for value in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
