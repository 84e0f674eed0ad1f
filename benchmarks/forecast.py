"""Long-horizon forecasts of all columns by today's protocol: the line and what it has to beat, in one run.

    python benchmarks/forecast.py --data-root FOLDER --out results/forecast

FOLDER holds forecasting/ETTh1.csv and others. Parts are the published ones (ETT 12, 4 and 4 months, others 70, 10 and
20 per cent), values are scaled by the training part, test windows are all of them at stride 1, errors are on scaled
values. Every map is fitted on the training part and chosen on the validation part; "line, refitted" is the same choice
fitted on both, which the protocol does not do. Rows: the last value; the last day and week again; ridge regression at
96 steps and at the context with the least validation error, one map for all columns; DLinear and NLinear of our own,
trained; our line at contexts of 96 steps and of its own choice. Writes modern.csv.

    python benchmarks/forecast.py --data-root FOLDER --study

Writes study.csv, validation errors of one ridge map of 336 steps relative to that of the raw values: the context as N
coefficients of a frame (the states of a sliding-window memory), with and without the last day of raw values; and the
forecast as N coefficients of a frame on the horizon. The test parts are not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from common import Row, arguments, report
from wavessm.data import baselines
from wavessm.data.datasets.forecast import ForecastOptions
from wavessm.data.source import DataSet, Windows
from wavessm.estimators import WaveSSMForecaster
from wavessm.features.line import PENALTIES, Features, Moments, Part, RidgePath
from wavessm.frames import make_frame

HORIZONS = (96, 192, 336, 720)
CONTEXTS = (96, 192, 336, 512, 720)
Predict = Callable[[Windows], np.ndarray]  # (windows, horizon, columns)


def load(root: str, name: str, horizon: int, context: int) -> DataSet:
    """The published parts with windows of one context."""
    return ForecastOptions(root, name, horizon, "uni" if name == "ECL" else "multi", context).load(0)


def errors(forecast: Callable[[torch.Tensor], torch.Tensor], source: Windows) -> tuple[float, float]:
    """MSE and MAE over all windows of a baseline."""
    return tuple(baselines.score(forecast, source))


# -- DLinear and NLinear ----------------------------------------------------------------------------------------------


class NLinear(nn.Module):
    """One linear layer on the context minus its last value."""

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.map = nn.Linear(context, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (batch, context, columns) → (batch, horizon, columns)
        last = x[:, -1:]
        return self.map((x - last).mT).mT + last


class DLinear(nn.Module):
    """One linear layer on the moving average over 25 steps, one on the rest."""

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.trend, self.rest = nn.Linear(context, horizon), nn.Linear(context, horizon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mT
        padded = torch.cat([x[..., :1].expand(-1, -1, 12), x, x[..., -1:].expand(-1, -1, 12)], dim=-1)
        trend = torch.nn.functional.avg_pool1d(padded, 25, 1)
        return (self.trend(trend) + self.rest(x - trend)).mT


def train_linear(model: nn.Module, data: DataSet, seed: int, epochs: int = 10) -> nn.Module:
    """Adam at 1e-3 (halved each epoch from the third on), batches of 32; the epoch with the least validation error."""
    torch.manual_seed(seed)
    train, val = data.train, data.val
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    best, kept, waited = float("inf"), None, 0
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * 0.5 ** max(0, epoch - 2)
        for index in torch.randperm(len(train)).split(32):
            batch = train.take(index)
            optimiser.zero_grad()
            nn.functional.mse_loss(model(batch.x), batch.y).backward()
            optimiser.step()
        with torch.no_grad():
            error = baselines.score(model, val).mse
        if error < best:
            best, kept, waited = error, {k: v.clone() for k, v in model.state_dict().items()}, 0
        elif (waited := waited + 1) == 3:
            break
    model.load_state_dict(kept)
    return model.requires_grad_(False)


# -- rows -------------------------------------------------------------------------------------------------------------


def line_rows(data: DataSet, options: dict[str, Any], base: Row, name: str) -> list[Row]:
    """Our line fitted on the training part and chosen on the validation part, scored on the test part."""
    train, val, test = data.train, data.val, data.test
    end = int(val.starts[-1]) + val.context + val.horizon
    first = int(train.starts[-1]) + train.context + train.horizon
    values = train.series.double().numpy()
    model = WaveSSMForecaster(train.horizon, refit=False, split=(first, end - first), **options)
    start = time.perf_counter()
    model.fit(values[:end])
    fitted = time.perf_counter()
    both = model._refit(model.line_, model.series_, [end])
    again = time.perf_counter()
    origins, scaled, rows = test.starts.numpy() + test.context, model.series_[0].scale.apply(values), []
    for title, line, fit_seconds in ((name, model.line_, fitted - start), (f"{name}, refitted", both, again - start)):
        began = time.perf_counter()
        squares = sizes = count = 0.0
        for some in np.array_split(origins, max(1, len(origins) // 500)):
            error = line.forecast(scaled, some) - scaled[some[:, None] + np.arange(train.horizon)]
            squares, sizes, count = squares + np.square(error).sum(), sizes + np.abs(error).sum(), count + error.size
        rows.append(base | {"model": title, "mse": squares / count, "mae": sizes / count, "fit_seconds": fit_seconds,
                            "predict_seconds": time.perf_counter() - began,
                            "chosen": f"{model.context_}, columns {line.column_penalty:g}"})  # fmt: skip
    return rows


def rows_of(root: str, name: str, horizon: int, models: list[str], seed: int) -> list[Row]:
    """All rows of a set and horizon."""
    base = {"dataset": name, "horizon": horizon}
    wide = load(root, name, horizon, max(CONTEXTS))
    day = round(86_400 / wide.info.step)
    rows: list[Row] = []

    def add(model: str, scores: tuple[float, float], seconds: float = 0.0, chosen: str = "") -> None:
        rows.append(base | {"model": model, "mse": scores[0], "mae": scores[1], "fit_seconds": seconds,
                            "predict_seconds": 0.0, "chosen": chosen})  # fmt: skip

    if "naive" in models:
        for title, period in {"last value": 1, "last day": day, "last week": 7 * day}.items():
            if period <= max(CONTEXTS):
                columns = wide.test.columns
                add(title, errors(baselines.Seasonal(period, horizon, columns), wide.test))
    if "ridge" in models:
        found = []
        start = time.perf_counter()
        for context in CONTEXTS:
            data = load(root, name, horizon, context)
            map_ = baselines.fit_linear(data.train, data.val)
            found.append((baselines.score(map_, data.val).mse, context, map_, data))
            if context == 96:
                add("ridge, context 96", errors(map_, data.test), time.perf_counter() - start, "96")
        _, context, map_, data = min(found, key=lambda one: one[0])
        add("ridge, searched", errors(map_, data.test), time.perf_counter() - start, str(context))
    for title, kind in {"NLinear": NLinear, "DLinear": DLinear}.items():
        for context in (96, 336) if title in models else ():
            data = load(root, name, horizon, context)
            start = time.perf_counter()
            model = train_linear(kind(context, horizon), data, seed)
            add(f"{title}, context {context}", errors(model, data.test), time.perf_counter() - start, str(context))
    if "line" in models:
        season = {"season": day, "calendar": False}
        rows += line_rows(wide, season | {"context": 96, "memory": False}, base, "line, context 96")
        rows += line_rows(wide, season, base, "line")
    for row in rows:
        scores = f"{row['mse']:.4f} {row['mae']:.4f} {row['fit_seconds']:.1f} s"
        print(row["dataset"], row["horizon"], row["model"], scores, row["chosen"], flush=True)
    return rows


def basis(family: str, n: int, length: int) -> np.ndarray:
    """Orthonormal columns that span n atoms of a frame on `length` samples. (length, n)"""
    op = {"legt": "legendre", "fout": "fourier"}
    frame = make_frame(op.get(family, family), n=n)
    at = (np.arange(length) + 0.5) / length
    atoms = np.stack([np.interp(at, frame.grid, atom) for atom in np.real(frame.atoms)], axis=1)
    return np.linalg.qr(atoms)[0]


def study_rows(root: str, name: str, horizon: int) -> list[Row]:
    """Frames on the context and on the horizon, against the raw values, on the validation part."""
    context, data = 336, load(root, name, horizon, 336)
    day = round(86_400 / data.info.step)
    values = data.train.series.double().numpy()
    first = int(data.train.starts[-1]) + context + horizon
    parts = (
        [Part(values, None, context, first)],
        [Part(values, None, first, int(data.val.starts[-1]) + context + horizon)],
    )
    fit, held = (Moments.of(part, Features(context, ()), horizon) for part in parts)

    def least(E: np.ndarray) -> tuple[float, np.ndarray]:
        """The smallest validation error of ridge maps of the features Eᵀ r, and its map of r."""
        seen, target = replace(fit, G=E.T @ fit.G @ E, R=E.T @ fit.R), replace(held, G=E.T @ held.G @ E, R=E.T @ held.R)
        path = RidgePath(seen, np.ones(E.shape[1]))
        found = [(float(target.error(path.map(p)).mean()), E @ path.map(p)) for p in PENALTIES]
        return min(found, key=lambda one: one[0])

    raw, W = least(np.eye(context))
    recent, rows = np.eye(context)[:, -day:], []
    for family in ("morlet", "db6", "legt", "fout"):
        for n in (16, 64, 128):
            states = basis(family, n, context)
            base = {"dataset": name, "horizon": horizon, "family": family, "n": n}
            rows.append(base | {"what": "context as states", "error": least(states)[0] / raw})
            both = np.concatenate([states, recent], axis=1)
            rows.append(base | {"what": "states and the last day", "error": least(both)[0] / raw})
            ahead = basis(family, n, horizon)
            rows.append(
                base | {"what": "horizon as coefficients", "error": float(held.error(W @ ahead @ ahead.T).mean()) / raw}
            )
    return rows


def main() -> None:
    parser = arguments(__doc__, "results/forecast")
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--datasets", nargs="*", default=["ETTh1", "ETTh2", "ETTm1"])
    parser.add_argument("--horizons", nargs="*", type=int, default=list(HORIZONS))
    parser.add_argument("--models", nargs="*", default=["naive", "ridge", "line"], help="also NLinear, DLinear")
    parser.add_argument("--name", default="modern")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--study", action="store_true")
    given = parser.parse_args()
    if given.study:
        rows = [
            row
            for name in given.datasets
            for horizon in (96, 336)
            for row in study_rows(given.data_root, name, horizon)
        ]
        return report(rows, given.out / "study.csv", "forecast.py --study")
    rows = [row for name in given.datasets for horizon in given.horizons
            for row in rows_of(given.data_root, name, horizon, given.models, given.seed)]  # fmt: skip
    report(rows, given.out / f"{given.name}.csv", "forecast.py")


if __name__ == "__main__":
    main()
