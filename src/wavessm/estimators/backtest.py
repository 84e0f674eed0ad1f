"""Stage 9g: forecasts from many origins, rolled on beyond the trained horizon, and judged by what came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from wavessm.errors import NotFiniteError
from wavessm.estimators.series import TimeSeries
from wavessm.estimators.windows import Scale
from wavessm.nn.model import SequenceModel

MOST_ORIGINS = 500
"""Forecasts a series that calibrate an interval or judge an epoch."""

LEAST = 1e-12


class Interval(NamedTuple):
    """Bounds of what comes next, in the form of the forecast itself."""

    lower: Any
    upper: Any


@dataclass(frozen=True, eq=False)
class Backtest:
    """How forecasts from many origins met what came. Means are over origins, steps and columns, in the data's units."""

    mae: float
    rmse: float
    mase: float  # mae over that of repeating the last season (the last value without one), on the same windows
    r2: float
    coverage: float  # part of the truth inside the intervals; NaN without them
    mae_by_step: np.ndarray  # (h,)
    forecasts: np.ndarray  # (origins, h, columns)
    truth: np.ndarray  # (origins, h, columns)
    origins: np.ndarray  # (origins, 2): number of the series, rows before the forecast


class Case(NamedTuple):
    """One series to forecast."""

    track: TimeSeries
    scale: Scale
    marks: np.ndarray | None  # (time + steps known, k)


@torch.no_grad()
def roll(
    model: SequenceModel,
    case: Case,
    context: int,
    origins: np.ndarray,  # (n,) rows before the forecast
    h: int,
) -> np.ndarray:
    """Forecasts of h steps after each origin, in the data's units. (n, h, columns)"""
    device, horizon = next(model.parameters()).device, int(model.config.horizon or 1)
    blocks = -(-h // horizon)
    rows = origins[:, None] - context + np.arange(context + blocks * horizon)
    x = torch.from_numpy(case.scale.do(case.track.values[rows[:, :context]])).float().to(device)
    known = None
    if case.marks is not None:  # the model is causal: what stands after the last known mark reaches no step before it
        known = torch.from_numpy(case.marks[np.minimum(rows, len(case.marks) - 1)]).float().to(device)
    said = []
    for at in range(0, blocks * horizon, horizon):
        y = model(x, marks=None if known is None else known[:, at : at + context + horizon])
        said.append(y)
        x = torch.cat([x, y], dim=1)[:, -context:]
    forecasts = case.scale.undo(torch.cat(said, dim=1)[:, :h].double().cpu().numpy())
    if not np.isfinite(forecasts).all():
        raise NotFiniteError("forecast: the series or its covariates are too far from those of fit; give their units.")
    return forecasts


def errors(model: SequenceModel, case: Case, context: int, begin: int, h: int) -> np.ndarray:
    """|error| / deviation of forecasts from row `begin` on; NaN past the end of the series. (origins, h, columns)"""
    values = case.track.values
    origins = np.arange(begin, len(values))
    origins = origins[:: max(1, len(origins) // MOST_ORIGINS)]
    rows = origins[:, None] + np.arange(h)
    truth = np.where(rows[..., None] < len(values), values[np.minimum(rows, len(values) - 1)], np.nan)
    return np.abs(roll(model, case, context, origins, h) - truth) / case.scale.deviation


class Compared(NamedTuple):
    """Forecasts of one series beside what came."""

    said: np.ndarray  # (origins, h, columns)
    came: np.ndarray  # (origins, h, columns)
    naive: np.ndarray  # (origins, h, columns): the last season again
    inside: np.ndarray | None  # (origins, h, columns) whether the truth lies in the interval
    origins: np.ndarray  # (origins, 2)


def compare(
    model: SequenceModel,
    case: Case,
    context: int,
    origins: np.ndarray,  # (n, 2) number of the series, rows before the forecast
    h: int,
    season: int,
    width: np.ndarray | None,  # (h, columns) half an interval in deviations
) -> Compared:
    """Forecast from these origins of a series and look up what came."""
    values, begin, steps = case.track.values, origins[:, 1], np.arange(h)
    said = roll(model, case, context, begin, h)
    came = values[begin[:, None] + steps]
    naive = values[begin[:, None] - season + steps % season]
    inside = None if width is None else np.abs(said - came) <= width * case.scale.deviation
    return Compared(said, came, naive, inside, origins)


def judged(parts: list[Compared]) -> Backtest:
    """All series together."""
    said, came, naive, where = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("said", "came", "naive", "origins")
    )
    inside = [part.inside for part in parts if part.inside is not None]
    error = said - came
    mae = float(np.abs(error).mean())
    spread = float(np.square(came - came.mean(axis=(0, 1))).sum())
    return Backtest(
        mae=mae,
        rmse=float(np.sqrt(np.square(error).mean())),
        mase=mae / max(float(np.abs(naive - came).mean()), LEAST),
        r2=1 - float(np.square(error).sum()) / max(spread, LEAST),
        coverage=float(np.concatenate(inside).mean()) if inside else float("nan"),
        mae_by_step=np.abs(error).mean(axis=(0, 2)),
        forecasts=said,
        truth=came,
        origins=where,
    )
