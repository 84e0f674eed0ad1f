"""Long-horizon forecasts of all columns by today's protocol: the line and what it has to beat, in one run.

    python benchmarks/forecast.py --data-root FOLDER --out results/forecast

FOLDER holds forecasting/ETTh1.csv and others. Parts are the published ones (ETT 12, 4 and 4 months, others 70, 10 and
20 per cent), values are scaled by the training part, test windows are all of them at stride 1, errors are on scaled
values. Every map is fitted on the training part and chosen on the validation part; "line, refitted" is the same choice
fitted on both, which the protocol does not do. Rows: the last value; the last day and week again; ridge regression at
96 steps and at the context with the least validation error, one map for all columns; DLinear and NLinear of our own,
trained; our line at contexts of 96 steps and of its own choice. Writes modern.csv.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from common import Row, arguments, report
from wavessm.data import baselines
from wavessm.data.datasets.forecast import ForecastOptions
from wavessm.data.source import DataSet, Windows
from wavessm.estimators import WaveSSMForecaster

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
    rows = []
    for refit in (False, True):
        model = WaveSSMForecaster(train.horizon, refit=refit, split=(first, end - first), **options)
        start = time.perf_counter()
        model.fit(values[:end])
        fitted = time.perf_counter()
        origins = test.starts.numpy() + test.context
        squares = sizes = count = 0.0
        scaled = model.series_[0].scale.apply(values)
        for some in np.array_split(origins, max(1, len(origins) // 500)):
            truth = scaled[some[:, None] + np.arange(train.horizon)]
            error = model.line_.forecast(scaled, some) - truth
            squares, sizes, count = squares + np.square(error).sum(), sizes + np.abs(error).sum(), count + error.size
        seconds = {"fit_seconds": fitted - start, "predict_seconds": time.perf_counter() - fitted}
        rows.append(base | {"model": name + ", refitted" * refit, "mse": squares / count, "mae": sizes / count}
                    | seconds | {"chosen": " ".join(model.choices_["members"])})  # fmt: skip
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


def main() -> None:
    parser = arguments(__doc__, "results/forecast")
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--datasets", nargs="*", default=["ETTh1", "ETTh2", "ETTm1"])
    parser.add_argument("--horizons", nargs="*", type=int, default=list(HORIZONS))
    parser.add_argument("--models", nargs="*", default=["naive", "ridge", "line"], help="also NLinear, DLinear")
    parser.add_argument("--name", default="modern")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = [row for name in given.datasets for horizon in given.horizons
            for row in rows_of(given.data_root, name, horizon, given.models, given.seed)]  # fmt: skip
    report(rows, given.out / f"{given.name}.csv", "forecast.py")


if __name__ == "__main__":
    main()
