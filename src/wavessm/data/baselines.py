"""Scores that need no training, beside which a run prints its own: last value, seasonal naive, most frequent class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from wavessm.data.source import DataSet
from wavessm.errors import OptionError
from wavessm.features.line import Part, context_for, default_members, fit_line, make_cuts, season_steps

BLOCK = 512  # windows that are scored at once


class ForecastErrors(NamedTuple):
    """Means over windows of the errors over all steps and columns that were observed."""

    mse: float
    mae: float


def forecast_errors(source: Any, forecast: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> ForecastErrors:
    """Return the errors over windows of a table of forecast(values (time, columns), origins (n,)) → (n, h, columns)."""
    steps, squares, sizes = np.arange(source.horizon), 0.0, 0.0
    for values, truth, origins in source.rows():
        for some in np.split(origins, range(BLOCK, len(origins), BLOCK)):
            error = forecast(values, some) - truth[some[:, None] + steps]
            squares += np.nanmean(np.square(error), axis=(1, 2)).sum()
            sizes += np.nanmean(np.abs(error), axis=(1, 2)).sum()
    return ForecastErrors(float(squares / len(source)), float(sizes / len(source)))


def naive_errors(source: Any, period: int) -> ForecastErrors:
    """Return the errors of repeating the last `period` rows, or with period 1 the last one, over windows of a table."""
    rows = np.arange(source.horizon) % period - period
    return forecast_errors(source, lambda values, origins: values[origins[:, None] + rows])


def line_errors(data: DataSet) -> ForecastErrors:
    """Return the validation errors of a line (`features/line.py`) without calendar, fitted on the training windows."""
    train, val = (next(cast(Any, part).rows()) for part in (data.train, data.val))
    values, horizon, season = train[0], data.info.horizon, season_steps(data.info.step)
    end, stop = (np.array([rows[2][-1] + horizon]) for rows in (train, val))
    whole = Part(values, np.isnan(train[1]) if np.isnan(train[1]).any() else None, 0, int(stop[0]))
    context = context_for(horizon, season, int(end[0]))
    cuts, parts = make_cuts([whole], [values], end, stop, context, horizon)
    return forecast_errors(data.val, fit_line(cuts, parts, default_members(context, season), season, horizon).forecast)


def baseline_scores(data: DataSet, split: str = "test") -> dict[str, ForecastErrors]:
    """Return the errors of last value, and seasonal day and week where the first window of a split has them before."""
    source, step = getattr(data, split), data.info.step
    if not hasattr(source, "rows"):
        raise OptionError(f"baseline_scores: {data.name} is a {data.info.kind} set, expected a forecast.")
    periods = {"last value": 1.0}
    if step is not None:
        periods |= {"seasonal day": 86_400 / step, "seasonal week": 604_800 / step}
    before = min(int(origins[0]) for _, _, origins in source.rows() if len(origins))
    return {
        name: naive_errors(source, int(period))
        for name, period in periods.items()
        if period == int(period) and (name == "last value" or 1 < period <= before)
    }


def majority_accuracy(data: DataSet) -> float:
    """Return the share of test cases, or steps, that have the most frequent class of the training part."""
    train, test = (vars(source)["y"].flatten() for source in (data.train, data.test))
    return float((test == train.bincount().argmax()).double().mean())
