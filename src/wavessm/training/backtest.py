"""Forecasts of a line and of a state space on what it leaves; quantiles from their errors; how they compare."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from wavessm.data.series import Split, TimeSeries, pd
from wavessm.errors import DataError, NotFiniteError
from wavessm.features.line import Line
from wavessm.nn.model import SequenceModel
from wavessm.training.line import place_in_season

RATE = 0.005  # of quantiles that follow the truth
CALM = 0.3  # variance, in that of a series, that a context without any is taken to have
MOST_ORIGINS = 500  # forecasts of a series that calibrate quantiles or validate an epoch


class Forecast(NamedTuple):
    """A line, and a model of what it leaves, if there is one."""

    line: Line
    model: SequenceModel | None = None
    context: int = 0  # of the model
    profile: np.ndarray | None = None  # (season + 1, columns): how wide errors are, of `season_widths`

    def __call__(self, one: TimeSeries, origins: np.ndarray, h: int) -> np.ndarray:
        """Forecasts of h steps after each origin, in the data's units. (n,) rows before it → (n, h, columns)"""
        values = one.scaled()
        if h <= self.line.horizon:
            ahead = self._block(values, origins, one.marks)[:, :h]
        else:  # what is forecast becomes part of the series
            ahead = np.stack([self._beyond(values[:origin], one.marks, h) for origin in origins])
        found = one.scale.undo(ahead)
        if not np.isfinite(found).all():
            raise NotFiniteError("series or covariates are too far from those of fit; give them in their units.")
        return found

    def widths(self, one: TimeSeries, origins: np.ndarray, h: int, recent: np.ndarray | None = None) -> np.ndarray:
        """How wide intervals are (n, 1 or h, columns): the root of `CALM` and the variance of the context in scaled
        values, before the first all have its value, times the profile. `recent` (time, columns) stand in for them."""
        values, ends = (one.scaled(), origins) if recent is None else (recent, np.array([len(recent)]))
        context = self.line.features.context
        padded = np.concatenate([0 * values[:1], np.repeat(values[:1], context, axis=0), values])
        sums = (np.cumsum(part, axis=0) for part in (padded, padded**2))
        mean, square = ((part[ends + context] - part[ends]) / context for part in sums)
        width = np.sqrt(CALM + np.maximum(square - mean**2, 0))[:, None]
        return width if self.profile is None else width * self.profile[_places(one, origins, h, len(self.profile) - 1)]

    def _beyond(self, values: np.ndarray, marks: np.ndarray | None, h: int) -> np.ndarray:
        begin = len(values)
        while len(values) < begin + h:
            values = np.concatenate([values, self._block(values, np.array([len(values)]), marks)[0]])
            marks = None if marks is None else np.concatenate([marks, np.repeat(marks[-1:], self.line.horizon, axis=0)])
        return values[begin : begin + h]

    @torch.no_grad()
    def _block(self, values: np.ndarray, origins: np.ndarray, marks: np.ndarray | None) -> np.ndarray:
        ahead = self.line.forecast(values, origins, marks)
        if self.model is None:
            return ahead
        rows = origins[:, None] - self.context + np.arange(self.context + self.line.horizon)
        x = values[np.maximum(rows[:, : self.context], 0)] - values[origins - 1][:, None]
        device = next(self.model.parameters()).device
        known = None
        if marks is not None:
            known = torch.from_numpy(marks[np.clip(rows, 0, len(marks) - 1)]).float().to(device)
        return ahead + self.model(torch.from_numpy(x).float().to(device), marks=known).double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts from many origins beside the truth. Means are over origins, steps and columns, in the data's units."""

    mae: float  #: Mean absolute error.
    rmse: float  #: Root of the mean squared error.
    mase: float  #: `mae` over that of repeating the last season (the last value without one), on the same origins.
    r2: float  #: Coefficient of determination.
    coverage: float  #: Part of the truth between the lowest and the highest quantile; NaN without them.
    mae_by_step: np.ndarray  #: Mean absolute error of each step ahead (h,).
    forecasts: np.ndarray  #: Forecasts (origins, h, columns).
    truth: np.ndarray  #: What they forecast (origins, h, columns); NaN, which counts in no score, where not observed.
    origins: np.ndarray  #: Number of the series and rows before the forecast (origins, 2).
    quantiles: dict[float, np.ndarray]  #: Quantiles of the truth (origins, h, columns) by their level, if any.
    series: dict[int, tuple[Any, TimeSeries]]  #: Key (its number without keys) and series, by its number.

    @property
    def frame(self) -> Any:
        """A DataFrame with a row for each series, origin, step (and column, where there are several)."""
        _, h, columns = self.forecasts.shape
        each: dict[Any, np.ndarray] = {"y": self.truth, "forecast": self.forecasts} | self.quantiles
        parts = []
        for at, (number, origin) in enumerate(self.origins):
            key, one = self.series[number]
            row: dict[Any, Any] = {"unique_id": key, "cutoff": one.index[origin - 1], "step": np.arange(1, h + 1)}
            row["ds"] = one.index[origin : origin + h]
            for column, name in enumerate(one.columns if one.kind == "frame" else range(columns)):
                row |= {"column": name} if columns > 1 else {}
                parts.append(pd.DataFrame(row | {key: values[at, :, column] for key, values in each.items()}))
        return pd.concat(parts, ignore_index=True)

    def weighted_quantile_loss(self) -> float:
        """2 Σ pinball loss / Σ |truth|, averaged over the levels of `quantiles`; NaN without them."""
        if not self.quantiles:
            return math.nan
        errors = {level: self.truth - values for level, values in self.quantiles.items()}
        losses = [np.nansum(np.maximum(level * error, (level - 1) * error)) for level, error in errors.items()]
        return float(2 * np.mean(losses) / np.nansum(np.abs(self.truth)))


def calibration_errors(forecast: Forecast, one: TimeSeries, origins: np.ndarray, h: int) -> np.ndarray:
    """Errors of forecasts after each origin, over deviation and width; NaN past the end. (origins, h, columns)"""
    rows = origins[:, None] + np.arange(h)
    truth = np.concatenate([one.truth, np.full((h, one.values.shape[1]), np.nan)])[rows]
    return (truth - forecast(one, origins, h)) / (one.scale.deviation * forecast.widths(one, origins, h))


def calibrate(forecast: Forecast, series: Sequence[TimeSeries], split: Split, h: int, season: int) -> tuple[Any, ...]:
    """The profile of `season_widths`, and with it the errors (n, h, columns) in the calibrating rows of all series."""
    forecast = forecast._replace(
        profile=season_widths(forecast._replace(profile=None), series, split.train_end, season)
    )
    each = [(one, np.arange(end, len(one.values))) for one, end in zip(series, split.stop_end, strict=True)]
    each = [(one, rows[:: max(1, len(rows) // MOST_ORIGINS)]) for one, rows in each if len(rows)]
    return forecast.profile, np.concatenate([calibration_errors(forecast, one, rows, h) for one, rows in each])


def season_widths(forecast: Forecast, series: Sequence[TimeSeries], ends: Any, season: int) -> np.ndarray:
    """How wide errors are at each place in the season beside all, (season + 1, columns); the last row is 1. Logarithms
    of mean squares in the training rows, shrunk by twice the part of their variance that chance explains."""
    parts, h = [], forecast.line.horizon
    for one, end in zip(series, ends, strict=True):
        first, n = max(1, min(end // 4, end - h)), min(end // h, MOST_ORIGINS)
        origins = np.random.default_rng(0).integers(first, end - h + 1, n)  # steps and places must not go together
        error = calibration_errors(forecast, one, origins, h)
        parts.append((np.nan_to_num(error) ** 2, np.isfinite(error), _places(one, origins, h, season)))
    square, seen, place = (np.concatenate(each) for each in zip(*parts, strict=True))
    square /= (square.sum(0) / seen.sum(0).clip(1)).clip(1e-12)
    each = ((square[place == k].sum(0), seen[place == k].sum(0)) for k in range(season))
    size = np.log([(total + 0.1) / (count + 0.1) for total, count in each])
    chance = 2 * season * (square**2 - 1).sum((0, 1), where=seen) / seen.sum((0, 1)).clip(1) ** 2
    part = np.clip(1 - chance / size.var(0).clip(1e-9), 0, 1)
    return np.concatenate([np.exp(part * (size - size.mean(0)) / 2), np.ones_like(size[:1])])


def _places(one: TimeSeries, origins: np.ndarray, h: int, season: int) -> np.ndarray:
    """Places in the season of the steps after each origin (n, h); `season` itself where steps are not equally long."""
    if one.step is None or one.step > 1e6 or one.weekdays:
        return np.full((len(origins), h), season)
    return (place_in_season(one, 0, 1, season) + origins[:, None] + np.arange(h)) % season


class QuantileTracker:
    """Quantiles of forecast errors that follow the truth as it arrives (adaptive conformal prediction).

    Each is moved up by its level when the truth lies above it and down by the rest when it lies below, times `RATE` and
    the spread of the errors: over time the part of the truth below it is its level, whatever the errors do. Far steps
    learn of their errors late, so faster rates overshoot. Quantiles that would cross are sorted. It starts with
    quantiles (h, columns) by level, rising, of scaled errors (n, h, columns).
    """

    def __init__(self, start: dict[float, np.ndarray], errors: np.ndarray) -> None:
        self.levels = np.array(list(start))[:, None]
        self.now = np.stack(list(start.values()))  # (levels, h, columns)
        self.unit = RATE * np.nanstd(errors[:, : self.now.shape[1]], axis=0)  # (h, columns)
        self.pending: deque[tuple[int, np.ndarray, np.ndarray]] = deque()

    def expect(self, origin: int, ahead: np.ndarray, width: np.ndarray) -> np.ndarray:
        """Take a scaled forecast (h, columns) of the rows from `origin` on and its width (1, columns); returns the
        quantiles of its errors."""
        used = np.sort(self.now, axis=0) * width
        self.pending.append((origin, ahead, ahead + used))
        return used

    def observe(self, row: int, truth: np.ndarray) -> None:
        """Take the scaled values (columns,) of a row, the one after the last."""
        while self.pending and row - self.pending[0][0] >= self.now.shape[1]:
            self.pending.popleft()
        for origin, _, quantiles in self.pending:
            step = row - origin
            self.now[:, step] += self.unit[step] * (self.levels - (truth <= quantiles[:, step])) * np.isfinite(truth)


def compare(
    each: list[tuple[int, TimeSeries, np.ndarray, np.ndarray, dict[float, np.ndarray]]],
    keys: Sequence[Any],
    season: int,
) -> Backtest:
    """Compare forecasts with the truth. Of `each` series: its number in `keys`, the series, origins (n,), forecasts
    (n, h, columns), and by level the quantiles of their errors (n, h, columns) in deviations."""
    parts = []
    for number, one, origins, ahead, offsets in each:
        steps = np.arange(ahead.shape[1])
        truth, naive = one.truth[origins[:, None] + steps], one.values[origins[:, None] - season + steps % season]
        levels = [ahead + offset * one.scale.deviation for offset in offsets.values()]
        parts.append((np.stack([np.full_like(origins, number), origins], axis=1), ahead, truth, naive, *levels))
    where, ahead, truth, naive, *levels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    error, tiny = ahead - truth, 1e-12
    mae, spread = float(np.nanmean(np.abs(error))), float(np.nansum(np.square(truth - np.nanmean(truth, axis=(0, 1)))))
    seen = np.isfinite(truth)
    return Backtest(
        mae=mae,
        rmse=float(np.sqrt(np.nanmean(np.square(error)))),
        mase=mae / max(float(np.nanmean(np.abs(naive - truth))), tiny),
        r2=1 - float(np.nansum(np.square(error))) / max(spread, tiny),
        coverage=float(((levels[0] <= truth) & (truth <= levels[-1]))[seen].mean()) if levels else math.nan,
        mae_by_step=np.nanmean(np.abs(error), axis=(0, 2)),
        forecasts=ahead,
        truth=truth,
        origins=where,
        quantiles=dict(zip(each[0][4], levels, strict=True)),
        series={number: (keys[number], one) for number, one, *_ in each},
    )


def conformal(errors: np.ndarray, level: float) -> np.ndarray:
    """The quantile of errors below which a new one lies with probability `level`, column by column. (n, …) → (…)

    Above the median the ⌈(n + 1) level⌉-th smallest of n errors, below it the ⌊(n + 1) level⌋-th (split conformal
    prediction, on both sides at least what is promised); ranks rise with the level, so quantiles never cross. NaN does
    not count.

    >>> conformal(np.arange(1.0, 20.0), 0.9).item(), conformal(np.arange(1.0, 20.0), 0.1).item()
    (18.0, 2.0)
    """
    count = np.isfinite(errors).sum(axis=0)
    rank = (count + 1) * level
    rank = (np.ceil(rank - 1e-9) if level >= 0.5 else np.floor(rank + 1e-9)).astype(int)
    if (rank > count).any() or (rank < 1).any():
        few = f"{count.min()} errors of the calibrating rows serve the last step, the quantile {level:g} needs"
        advice = "use milder quantiles, fewer steps, a longer series or a larger validation_fraction"
        raise DataError(f"quantiles: {few} {errors_needed(level)}; {advice}.")
    ordered = np.sort(errors, axis=0)  # NaN last
    return np.take_along_axis(ordered, rank[None] - 1, axis=0)[0]


def errors_needed(level: float) -> int:
    """The least number of errors that have this quantile."""
    return math.ceil(1 / min(level, 1 - level) - 1e-9) - 1


def step_quantiles(errors: np.ndarray, levels: Sequence[float]) -> dict[float, np.ndarray]:
    """Conformal quantiles (h, columns) of errors (n, h, columns) by level, never crossing. A step that too few errors
    reach has those of all steps, times the ratio of their root mean squares, which never falls from step to step."""
    count = np.isfinite(errors).sum(axis=0).min(axis=-1)  # (h,)
    few = (count < max(map(errors_needed, levels))) & (count.min() > 0)
    found = {level: np.empty(errors.shape[1:]) for level in levels}
    for level, quantiles in found.items():
        quantiles[~few] = conformal(errors[:, ~few], level)
        if few.any():
            size = np.maximum.accumulate(np.sqrt(np.nanmean(np.square(errors), axis=0)))
            pooled = (errors / size.clip(1e-12)).reshape(-1, errors.shape[2])
            quantiles[few] = conformal(pooled, level) * size[few]
    return found
