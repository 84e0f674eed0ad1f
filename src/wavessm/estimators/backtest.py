"""Forecasts from many origins, beyond the trained horizon too; intervals from their errors; how they compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from wavessm.errors import DataError, NotFiniteError
from wavessm.estimators.series import TimeSeries
from wavessm.nn.model import SequenceModel

MOST_ORIGINS = 500
"""Forecasts of a series that calibrate an interval or validate an epoch."""


class Interval(NamedTuple):
    """Bounds of a forecast, in the form of the forecast itself."""

    lower: Any
    upper: Any


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts from many origins beside the truth. Means are over origins, steps and columns, in the data's units."""

    mae: float
    """Mean absolute error."""
    rmse: float
    """Root of the mean squared error."""
    mase: float
    """`mae` over that of repeating the last season (the last value without one), on the same origins."""
    r2: float
    """Coefficient of determination."""
    coverage: float
    """Part of the truth inside the intervals; NaN without them."""
    mae_by_step: np.ndarray
    """Mean absolute error of each step ahead (h,)."""
    forecasts: np.ndarray
    """Forecasts (origins, h, columns)."""
    truth: np.ndarray
    """What they forecast (origins, h, columns)."""
    origins: np.ndarray
    """Number of the series and rows before the forecast (origins, 2)."""


@torch.no_grad()
def forecast(model: SequenceModel, one: TimeSeries, context: int, origins: np.ndarray, h: int) -> np.ndarray:
    """Forecasts of h steps after each origin, in the data's units. (n,) rows before it → (n, h, columns)"""
    device, horizon = next(model.parameters()).device, int(model.config.horizon or 1)
    blocks = -(-h // horizon)
    rows = origins[:, None] - context + np.arange(context + blocks * horizon)
    x = torch.from_numpy(one.scale.apply(one.values[rows[:, :context]])).float().to(device)
    marks = None
    if one.marks is not None:  # the model is causal: what stands after the last known mark reaches no step before
        marks = torch.from_numpy(one.marks[np.minimum(rows, len(one.marks) - 1)]).float().to(device)
    outputs = []
    for at in range(0, blocks * horizon, horizon):
        y = model(x, marks=None if marks is None else marks[:, at : at + context + horizon])
        outputs.append(y)
        x = torch.cat([x, y], dim=1)[:, -context:]
    values = one.scale.undo(torch.cat(outputs, dim=1)[:, :h].double().cpu().numpy())
    if not np.isfinite(values).all():
        raise NotFiniteError("the series or its covariates are too far from those of fit; give them in their units.")
    return values


def calibration_errors(model: SequenceModel, one: TimeSeries, context: int, begin: int, h: int) -> np.ndarray:
    """|error| / deviation of forecasts from row `begin` on; NaN past the end. (origins, h, columns)"""
    origins = np.arange(begin, len(one.values))
    origins = origins[:: max(1, len(origins) // MOST_ORIGINS)]
    rows = origins[:, None] + np.arange(h)
    truth = np.where(rows[..., None] < len(one.values), one.values[np.minimum(rows, len(one.values) - 1)], np.nan)
    return np.abs(forecast(model, one, context, origins, h) - truth) / one.scale.deviation


def compare(
    model: SequenceModel,
    each: list[tuple[int, TimeSeries, np.ndarray]],  # number, series, (n,) origins
    context: int,
    h: int,
    season: int,
    width: np.ndarray | None,  # (h, columns) half an interval in deviations
) -> Backtest:
    """Forecast from the origins of each series and compare with the truth."""
    steps, parts = np.arange(h), []
    for number, one, origins in each:
        ahead = forecast(model, one, context, origins, h)
        truth, naive = one.values[origins[:, None] + steps], one.values[origins[:, None] - season + steps % season]
        half = np.nan if width is None else width * one.scale.deviation
        inside = np.where(np.isnan(half), np.nan, np.abs(ahead - truth) <= half)
        parts.append((ahead, truth, naive, inside, np.stack([np.full_like(origins, number), origins], axis=1)))
    ahead, truth, naive, inside, where = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    error, tiny = ahead - truth, 1e-12
    mae = float(np.abs(error).mean())
    spread = float(np.square(truth - truth.mean(axis=(0, 1))).sum())
    return Backtest(
        mae=mae,
        rmse=float(np.sqrt(np.square(error).mean())),
        mase=mae / max(float(np.abs(naive - truth).mean()), tiny),
        r2=1 - float(np.square(error).sum()) / max(spread, tiny),
        coverage=float(inside.mean()),
        mae_by_step=np.abs(error).mean(axis=(0, 2)),
        forecasts=ahead,
        truth=truth,
        origins=where,
    )


def conformal(scores: np.ndarray, level: float) -> np.ndarray:
    """The quantile that covers a new score with probability ≥ level, column by column. (n, …) → (…)

    The ⌈(n + 1) level⌉-th smallest of n scores (split conformal prediction); NaN does not count.

    >>> conformal(np.arange(1.0, 20.0), 0.9).item()
    18.0
    """
    count = np.isfinite(scores).sum(axis=0)
    rank = np.maximum(1, np.ceil((count + 1) * level - 1e-9)).astype(int)
    if (rank > count).any():
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise DataError(
            f"intervals: {count.min()} forecasts of the validation stretch reach the last step, level {level} needs "
            f"{needed}; use a lower level, fewer steps, a longer series or a larger validation_fraction."
        )
    ordered = np.sort(scores, axis=0)  # NaN last
    return np.take_along_axis(ordered, rank[None] - 1, axis=0)[0]
