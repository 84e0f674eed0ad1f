"""Forecast a CSV with dates: the next two days with quantiles, and how good such forecasts were lately.

    python examples/forecast_csv.py [load.csv]

The CSV has a column `date` and a column of numbers; without one, a made-up hourly load is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from wavessm.estimators import WaveSSMForecaster


def write_example(path: Path, hours: int = 24 * 40) -> None:
    """An hourly load with a day, a week and some noise."""
    random = np.random.default_rng(0)
    index = pd.date_range("2024-01-01", periods=hours, freq="h", name="date")
    day = np.sin(2 * np.pi * (index.hour - 8) / 24)
    load = 100 + 20 * day - 15 * (index.day_of_week >= 5) + 2 * random.standard_normal(hours)
    pd.DataFrame({"load": load}, index=index).to_csv(path)


def main(path: Path) -> float:
    series = pd.read_csv(path, parse_dates=["date"], index_col="date").iloc[:, 0]
    model = WaveSSMForecaster(horizon=24, quantiles=(0.1, 0.5, 0.9)).fit(series)
    print(model.predict(48).round(1).iloc[::8])
    result = model.backtest(stride=6)
    print(f"mean absolute error {result.mae:.2f}; {result.mase:.2f} of that of repeating yesterday")
    return result.mae


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        write_example(Path("load.csv"))
        main(Path("load.csv"))
