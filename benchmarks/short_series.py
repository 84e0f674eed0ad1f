"""Forecasts of short series, monthly ones mostly: the line beside exponential smoothing and Theta, in one run.

    pip install statsmodels && pip install --no-deps pmdarima sktime
    python benchmarks/short_series.py --out results/forecast

Fifteen series that ship with those packages, 89 to 4,032 rows, and their last six origins, a third of a horizon
apart; all before an origin is fitted, with defaults. ETS is statsmodels' exponential smoothing with the trend and
season of the lowest AICc, additive or multiplicative, on the last 1,500 rows; Theta is its model with defaults. Writes
short.csv: mean absolute error over the origins, the same relative to that of the last season again, and CPU seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from common import arguments
from wavessm.estimators import WaveSSMForecaster

HORIZONS = {1: 6, 4: 8, 12: 18, 48: 48}
FREQUENCIES = {1: "YS", 4: "QS", 12: "MS", 48: "30min"}
PMDARIMA = {"airpassengers": 12, "ausbeer": 4, "austres": 4, "heartrate": 1, "lynx": 1, "taylor": 48, "wineind": 12,
            "woolyrnq": 4}  # fmt: skip
STATSMODELS = {"elec_equip": 12, "elnino": 12, "nile": 1, "sunspots": 1}
SKTIME = {"PBS_dataset": 12, "ShampooSales": 12, "seatbelts": 12, "solar": 48}
"""Seasons of the series of each package."""


def folder(package: str) -> Path:
    """Where a package keeps its data sets."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise SystemExit(f"{package} is not installed; see the top of this file.")
    return Path(str(spec.origin)).parent / "datasets"


def literal_array(source: Path) -> np.ndarray:
    """The one array of numbers in a module, without importing it."""
    calls = (node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call))
    found = next(call for call in calls if getattr(call.func, "attr", "") == "array")
    return np.array(
        [np.nan if isinstance(each, ast.Attribute) else ast.literal_eval(each) for each in found.args[0].elts]
    )


def read_all() -> dict[str, tuple[np.ndarray, int]]:
    """Values and season of each series."""
    made = {name: (literal_array(folder("pmdarima") / f"{name}.py"), season) for name, season in PMDARIMA.items()}
    for name, season in STATSMODELS.items():
        table = pd.read_csv(folder("statsmodels") / name / f"{name}.csv").to_numpy()
        made[name] = (
            table[:, 1:].ravel() if name == "elnino" else table[:, 1],
            season,
        )  # El Niño has a row for each year
    for name, season in SKTIME.items():
        made[name] = pd.read_csv(folder("sktime") / "data" / name / f"{name}.csv").to_numpy()[:, 1], season
    made = {name: (values.astype(float), season) for name, (values, season) in made.items()}
    return {name: (values[~np.isnan(values)], season) for name, (values, season) in made.items()}


def line(values: np.ndarray, season: int, horizon: int) -> np.ndarray:
    index = pd.date_range("2000-01-01", periods=len(values), freq=FREQUENCIES[season])
    return WaveSSMForecaster(horizon=horizon).fit(pd.Series(values, index=index)).predict().to_numpy()


def smoothing(values: np.ndarray, season: int, horizon: int) -> np.ndarray:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    values, fits = values[-1500:], []
    trends = [(None, False)] if season == 48 else [("add", False), ("add", True), (None, False)]
    kinds = [None, "add", *(["mul"] if values.min() > 0 else [])] if season > 1 else [None]
    for (trend, damped), kind in itertools.product(trends, kinds):
        model = ExponentialSmoothing(values, trend, damped, kind, seasonal_periods=season if kind else None)
        fits.append(model.fit())
    return min(fits, key=lambda fit: fit.aicc).forecast(horizon)


def theta(values: np.ndarray, season: int, horizon: int) -> np.ndarray:
    from statsmodels.tsa.forecasting.theta import ThetaModel

    values = values[-1500:]
    series = pd.Series(values, index=pd.period_range("2000-01", periods=len(values), freq="M"))
    return ThetaModel(series, period=season, deseasonalize=season > 1).fit().forecast(horizon).to_numpy()


MODELS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "last value": lambda values, _, horizon: np.repeat(values[-1], horizon),
    "last season": lambda values, season, horizon: np.resize(values[-season:], horizon),
    "line": line, "ETS": smoothing, "Theta": theta,
}  # fmt: skip


def main() -> None:
    given = arguments(__doc__, "results/forecast").parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name, (values, season) in read_all().items():
        horizon = HORIZONS[season]
        ends = [len(values) - horizon - k * max(1, horizon // 3) for k in range(6)]
        ends = [end for end in ends if end >= max(2 * season, 2 * horizon + 2)]
        for model, forecast in MODELS.items() if ends else ():
            start = time.process_time()
            errors = [
                np.abs(forecast(values[:end], season, horizon) - values[end : end + horizon]).mean() for end in ends
            ]
            each = {"series": name, "rows": len(values), "season": season, "horizon": horizon, "origins": len(ends)}
            seconds = (time.process_time() - start) / len(ends)
            rows.append({**each, "model": model, "mae": np.mean(errors), "cpu_seconds": seconds})
    table = pd.DataFrame(rows)
    naive = table[table.model == "last season"].set_index("series").mae
    table["relative"] = table.mae / table.series.map(naive)
    given.out.mkdir(parents=True, exist_ok=True)
    table.round(4).to_csv(given.out / "short.csv", index=False, lineterminator="\n")
    wide = table.pivot(index="series", columns="model", values="relative")
    print(wide.round(3).to_string(), np.exp(np.log(wide).mean()).round(3).to_string(), sep="\n\n")


if __name__ == "__main__":
    main()
