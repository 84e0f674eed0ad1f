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

    python benchmarks/forecast.py --data-root FOLDER --informer uni multi

Writes informer.csv, the line on Informer's sets, parts and horizons. `--quantiles` writes quantiles.csv: coverage and
weighted quantile loss (on scaled values) of conformal quantiles. `--cold-start` writes cold_start.csv: synthetic series
that fit has not seen, with static features and without. `--models "S4-LegS on the line" "S4-LegS from scratch" NHITS`
are rows by gradient; NHITS needs neuralforecast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from common import Row, arguments, report
from wavessm.data import naive_errors
from wavessm.data.datasets.forecast import SETS, ForecastOptions, find_series
from wavessm.data.source import DataSet, Windows
from wavessm.estimators import WaveSSMForecaster
from wavessm.features.line import PENALTIES, Features, Line, Moments, Part, ridge_maps
from wavessm.frames import make_frame
from wavessm.training.backtest import Forecast
from wavessm.training.record import write_csv

HORIZONS = (96, 192, 336, 720)
CONTEXTS = (96, 192, 336, 512, 720)


def load(root: str, name: str, horizon: int, context: int) -> DataSet:
    """The published parts with windows of one context."""
    return ForecastOptions(root, name, horizon, "uni" if name == "ECL" else "multi", context).load(0)


@torch.no_grad()
def errors(forecast: Callable[[torch.Tensor], torch.Tensor], source: Windows) -> tuple[float, float]:
    """MSE and MAE over all windows of a model, without holding all forecasts at once."""
    squares = sizes = count = 0.0
    for index in torch.arange(len(source)).split(512):
        batch = source.take(index)
        error = (forecast(batch.x) - batch.y).double()
        squares, sizes = squares + float(error.square().sum()), sizes + float(error.abs().sum())
        count += error.numel()
    return squares / count, sizes / count


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
        error = errors(model, val)[0]
        if error < best:
            best, kept, waited = error, {k: v.clone() for k, v in model.state_dict().items()}, 0
        elif (waited := waited + 1) == 3:
            break
    model.load_state_dict(kept)
    return model.requires_grad_(False)


# -- rows -------------------------------------------------------------------------------------------------------------


def score_line(line: Line, values: np.ndarray, test: Windows, marks: np.ndarray | None = None) -> tuple[float, float]:
    """MSE and MAE of a line over all test windows. values: (rows, columns) scaled"""
    squares = sizes = count = 0.0
    origins = test.starts.numpy() + test.context
    for some in np.array_split(origins, max(1, len(origins) // 500)):
        error = line.forecast(values, some, marks) - values[some[:, None] + np.arange(test.horizon)]
        squares, sizes, count = squares + np.square(error).sum(), sizes + np.abs(error).sum(), count + error.size
    return float(squares / count), float(sizes / count)


def ends_of(data: DataSet) -> tuple[int, int]:
    """Rows where the training part and the validation part end."""
    train, val = data.train, data.val
    return tuple(int(part.starts[-1]) + part.context + part.horizon for part in (train, val))


def ridge_lines(
    data: DataSet, contexts: tuple[int, ...], penalties: tuple[float, ...] = PENALTIES
) -> list[tuple[float, Line]]:
    """Plain ridge regression, one map for all columns, at each context: least validation error, and the map."""
    values, horizon = data.train.series.double().numpy(), data.train.horizon
    first, end = ends_of(data)
    found = []
    for context in contexts:
        features = Features(context, ())
        spans = ((context, first), (first, end))
        fit, held = (Moments.of([Part(values, None, *span)], features, horizon) for span in spans)
        maps = ridge_maps(fit, np.ones(context), penalties)
        errors = [float(held.error(W).mean()) for W in maps]
        found.append((min(errors), Line(features, maps[int(np.argmin(errors))], ())))
    return found


def line_rows(data: DataSet, options: dict[str, Any], base: Row, name: str) -> list[Row]:
    """Our line fitted on the training part and chosen on the validation part, scored on the test part."""
    first, end = ends_of(data)
    values = data.train.series.double().numpy()
    model = WaveSSMForecaster(data.train.horizon, refit=False, split=(first, end - first), **options)
    start = time.process_time()
    model.fit(values[:end])
    fitted = time.process_time()
    both = model._refit(model.line_, model.series_, [end])
    again = time.process_time()
    scaled, rows = model.series_[0].scale.apply(values), []
    for title, line, seconds in (
        (name, model.line_, fitted - start),
        (f"{name}, refitted", both, again - start),
    ):
        began = time.process_time()
        mse, mae = score_line(line, scaled, data.test)
        rows.append(base | {"model": title, "mse": mse, "mae": mae, "fit_cpu_seconds": seconds,
                            "predict_cpu_seconds": time.process_time() - began,
                            "chosen": f"{model.context_}, columns {line.column_penalty:g}"})  # fmt: skip
    return rows


def state_space_row(data: DataSet, family: str, line: bool, seed: int) -> Row:
    """A state space of 336 steps of context on top of the line, or of the last value ("from scratch"), as trained.

    Two layers of 32 channels, up to 600 steps of 32 windows, early stopping on half of the validation part; "chosen"
    says whether `WaveSSMForecaster` would keep it, by the other half.
    """
    first, end = ends_of(data)
    values, season = data.train.series.double().numpy(), round(86_400 / data.info.step)
    options = {"split": (first, end - first), "refit": False, "calendar": False, "season": season}
    model = WaveSSMForecaster(data.train.horizon, 336, family=family, random_state=seed, **options)
    start = time.process_time()
    model.fit(values[:end])
    if not line:
        zero = replace(model.line_, features=Features(336), W=np.zeros((336, data.train.horizon)))
        model.line_, model.held_, model.forecast_ = zero, Forecast(zero), Forecast(zero)
    model._fit_residuals()
    fitted, one = time.process_time(), replace(model.series_[0], values=values)
    forecast, origins = Forecast(model.held_.line, model.model_, 336), data.test.starts.numpy() + data.test.context
    squares = sizes = count = 0.0
    for some in np.array_split(origins, max(1, len(origins) // 250)):
        error = one.scale.apply(forecast(one, some, data.test.horizon))
        error = error - one.scale.apply(values)[some[:, None] + np.arange(data.test.horizon)]
        squares, sizes, count = squares + np.square(error).sum(), sizes + np.abs(error).sum(), count + error.size
    return {"mse": squares / count, "mae": sizes / count, "fit_cpu_seconds": fitted - start,
            "predict_cpu_seconds": time.process_time() - fitted, "seed": seed,
            "chosen": f"336, {model.method_}, gain {model.choices_['gain']:.3f}"}  # fmt: skip


def nhits_row(data: DataSet, seed: int, context: int = 336, steps: int = 1000) -> Row:
    """NHITS of neuralforecast, its defaults, one model for all columns: the same parts, scaling and test windows."""
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NHITS

    first, end = ends_of(data)
    horizon, rows = data.test.horizon, int(data.test.starts[-1]) + data.test.context + data.test.horizon
    values = data.train.series.double().numpy()[:rows]
    dates = pd.date_range("2016-07-01", periods=rows, freq=pd.Timedelta(seconds=data.info.step))
    table = pd.concat(
        pd.DataFrame({"unique_id": str(k), "ds": dates, "y": values[:, k]}) for k in range(values.shape[1])
    )
    options = {"max_steps": steps, "val_check_steps": 100, "early_stop_patience_steps": 3, "random_seed": seed}
    quiet = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    freq = f"{round(data.info.step / 60)}min"
    nf = NeuralForecast([NHITS(h=horizon, input_size=context, **options, **quiet)], freq=freq)
    start = time.process_time()
    found = nf.cross_validation(table, val_size=end - first, test_size=rows - end, n_windows=None, step_size=1)
    seconds = time.process_time() - start
    nf.predict()
    error = (found["NHITS"] - found["y"]).to_numpy(np.float64)
    assert len(found) == len(data.test) * horizon * values.shape[1], "every test window, stride 1"
    mse, mae = float(np.square(error).mean()), float(np.abs(error).mean())
    return {"model": f"NHITS, context {context}", "mse": mse, "mae": mae,
            "fit_cpu_seconds": seconds, "predict_cpu_seconds": time.process_time() - start - seconds, "seed": seed,
            "chosen": "fit with all test windows; predict: one origin"}  # fmt: skip


def rows_of(root: str, name: str, horizon: int, models: list[str], seed: int) -> list[Row]:
    """All rows of a set and horizon."""
    base = {"dataset": name, "horizon": horizon}
    wide = load(root, name, horizon, max(CONTEXTS))
    day = round(86_400 / wide.info.step)
    rows: list[Row] = []

    def add(model: str, scores: tuple[float, float], seconds: float = 0.0, chosen: str = "") -> None:
        rows.append(base | {"model": model, "mse": scores[0], "mae": scores[1], "fit_cpu_seconds": seconds,
                            "predict_cpu_seconds": 0.0, "chosen": chosen})  # fmt: skip

    if "naive" in models:
        for title, period in {"last value": 1, "last day": day, "last week": 7 * day}.items():
            if period <= max(CONTEXTS):
                add(title, naive_errors(wide.test, period))
    if "ridge" in models:
        values, start = wide.train.series.double().numpy(), time.process_time()
        found = ridge_lines(wide, CONTEXTS)
        seconds = time.process_time() - start
        add("ridge, context 96", score_line(found[0][1], values, wide.test), seconds / len(CONTEXTS), "96")
        best = min(found, key=lambda one: one[0])[1]
        add("ridge, searched", score_line(best, values, wide.test), seconds, str(best.features.context))
    for family, title in {"legs": "S4-LegS", "morlet": "Morlet"}.items():
        for start in ("from scratch", "on the line"):
            if f"{title} {start}" in models:
                rows.append(
                    base | state_space_row(wide, family, start == "on the line", seed) | {"model": f"{title} {start}"}
                )
    if "NHITS" in models:
        rows.append(base | nhits_row(wide, seed))
    for title, kind in {"NLinear": NLinear, "DLinear": DLinear}.items():
        for context in (336,) if title in models else ():
            data = load(root, name, horizon, context)
            start = time.process_time()
            model = train_linear(kind(context, horizon), data, seed)
            add(f"{title}, context {context}", errors(model, data.test), time.process_time() - start, str(context))
    if "line" in models:
        season = {"season": day, "calendar": False}
        rows += line_rows(wide, season | {"context": 96, "memory": False}, base, "line, context 96")
        rows += line_rows(wide, season, base, "line")
    for row in rows:
        row.setdefault("seed", seed if "Linear" in row["model"] else "")
        scores = f"{row['mse']:.4f} {row['mae']:.4f} {row['fit_cpu_seconds']:.1f} s"
        print(row["dataset"], row["horizon"], row["model"], scores, row["chosen"], flush=True)
    return rows


def informer_rows(root: str, name: str, variables: str) -> list[Row]:
    """The line with its defaults on Informer's parts and horizons, calendar included; the context is its own choice."""
    path, target = find_series(Path(root), name, variables == "multi")
    table = pd.read_csv(path)
    dates = pd.DatetimeIndex(pd.to_datetime(table.pop("date")))
    frame = table.set_index(dates)
    frame = frame if variables == "multi" else frame[[target]]
    rows = []
    for horizon in SETS[name].lengths:
        data = ForecastOptions(root, name, horizon, variables).load(0)
        first, end = ends_of(data)
        model = WaveSSMForecaster(horizon, refit=False, split=(first, end - first))
        start = time.process_time()
        model.fit(frame[:end])
        seconds = time.process_time() - start
        scaled, marks = model.series_[0].scale.apply(frame.to_numpy()), model.marks_.of(frame.index, None)
        mse, mae = score_line(model.line_, scaled, data.test, marks)
        rows.append({"dataset": name, "variables": variables, "horizon": horizon, "mse": mse, "mae": mae,
                     "fit_cpu_seconds": seconds, "marks": model.choices_["marks"]})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def quantile_rows(root: str, name: str, horizon: int) -> list[Row]:
    """Conformal quantiles 0.1 … 0.9 on all test windows, as they are and following the truth (`adaptive`): half of the
    validation part calibrates them."""
    data, levels = load(root, name, horizon, max(CONTEXTS)), tuple(np.arange(1, 10) / 10)
    first, end = ends_of(data)
    values, season = data.train.series.double().numpy(), round(86_400 / data.info.step)
    values = values[: int(data.test.starts[-1]) + data.test.context + horizon]
    options = {"split": (first, (end - first) // 2), "season": season, "calendar": False, "refit": False}
    model, rows = WaveSSMForecaster(horizon, quantiles=levels, **options).fit(values[:end]), []
    for adaptive in (False, True):
        result = model.backtest(values, adaptive=adaptive, begin=end)
        below = " ".join(f"{(result.truth <= result.quantiles[level]).mean():.2f}" for level in levels)
        rows.append({"dataset": name, "horizon": horizon, "adaptive": adaptive, "coverage_80": result.coverage,
                     "quantile_loss": result.weighted_quantile_loss(), "share_below": below,
                     "calibrating_rows": end - first - options["split"][1]})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def shops(count: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Hourly series of 10 to 30 days, levels e¹ to e⁶ by size, the shape of the day by kind; and their features."""
    random, series, static = np.random.default_rng(seed), [], []
    for k in range(count):
        size, kind, rows = (
            random.uniform(1, 6),
            ("office", "bar", "shop")[random.integers(3)],
            random.integers(240, 720),
        )
        index = pd.date_range("2024-01-01", periods=rows, freq="h")
        day = 2 * np.pi * (index.hour + {"office": 0, "bar": 12, "shop": 5}[kind]) / 24
        y = np.exp(size + 0.3 * random.standard_normal()) * (3 + np.sin(day) + 0.3 * random.standard_normal(rows))
        series.append(pd.DataFrame({"unique_id": f"{seed}-{k}", "ds": index, "y": y}))
        static.append({"unique_id": f"{seed}-{k}", "size": size, "kind": kind})
    return pd.concat(series, ignore_index=True), pd.DataFrame(static)


def cold_rows(horizon: int = 24) -> list[Row]:
    """Unseen synthetic series after few rows: mean absolute error of the next day over the level of the series."""
    table, static = shops(300, 10)
    start = time.process_time()
    model = WaveSSMForecaster(horizon).fit(table, static=static)
    seconds, rows = time.process_time() - start, []
    new, features = shops(100, 11)
    groups = [one.to_numpy() for _, one in new.groupby("unique_id")["y"]]
    for known in (1, 6, 24, 72, 168):
        few = new.groupby("unique_id").head(known)
        truth = np.stack([one[known : known + horizon] for one in groups])
        last = np.stack([np.resize(one[max(0, known - 24) : known], horizon) for one in groups])
        found = {"static": model.predict(series=few, static=features), "without": model.predict(series=few)}
        ahead = {name: one["y"].to_numpy().reshape(truth.shape) for name, one in found.items()} | {"last day": last}
        for name, values in ahead.items():
            error = np.abs(values - truth).mean(1) / truth.mean(1)
            rows.append({"rows_known": known, "forecast": name, "error": error.mean(), "deviation": error.std(),
                         "series": len(truth), "fit_cpu_seconds": seconds})  # fmt: skip
            print(rows[-1], flush=True)
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
        maps = ridge_maps(seen, np.ones(E.shape[1]), PENALTIES)
        found = [(float(target.error(W).mean()), E @ W) for W in maps]
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
    parser.add_argument(
        "--models",
        nargs="*",
        default=["naive", "ridge", "line"],
        help='also NLinear, DLinear, NHITS, and S4-LegS or Morlet with " on the line" or " from scratch"',
    )
    parser.add_argument("--name", default="modern")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--study", action="store_true")
    parser.add_argument("--quantiles", action="store_true")
    parser.add_argument("--cold-start", action="store_true")
    parser.add_argument("--informer", nargs="*", choices=["uni", "multi"])
    given = parser.parse_args()
    if given.study:
        rows = [
            row
            for name in given.datasets
            for horizon in (96, 336)
            for row in study_rows(given.data_root, name, horizon)
        ]
        return report(rows, given.out / "study.csv", "forecast.py --study")
    if given.quantiles:
        pairs = [(name, horizon) for name in given.datasets for horizon in given.horizons]
        rows = [row for pair in pairs for row in quantile_rows(given.data_root, *pair)]
        return report(rows, given.out / "quantiles.csv", "forecast.py --quantiles")
    if given.cold_start:
        return report(cold_rows(), given.out / "cold_start.csv", "forecast.py --cold-start")
    if given.informer:
        sets = [(name, kind) for kind in given.informer for name in SETS if (name, kind) != ("ECL", "multi")]
        rows = [row for pair in sets for row in informer_rows(given.data_root, *pair)]
        return report(rows, given.out / "informer.csv", "forecast.py --informer")
    rows = []
    for name in given.datasets:
        for horizon in given.horizons:
            for model in given.models:
                rows += rows_of(given.data_root, name, horizon, [model], given.seed)
                write_csv(given.out / f"{given.name}.csv", rows)  # so that a run that is cut short leaves something
    report(rows, given.out / f"{given.name}.csv", "forecast.py")


if __name__ == "__main__":
    main()
