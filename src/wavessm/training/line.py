"""The line (`features/line.py`) of several series, what is known of their steps beforehand, and of new series.

Next: `forecaster.py`, which reads series, fits them and forecasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from wavessm.data.series import Form, Split, TimeSeries, calendar, cycles_of, pd, read_series
from wavessm.data.tables import Scale
from wavessm.errors import DataError, ShapeError
from wavessm.features.line import Features, Line, Moments, default_members, fit_line, make_cuts, refit, whole_parts
from wavessm.features.ridge import fit_ridge

# -- the line of several series ---------------------------------------------------------------------------------------


def _values(series: Sequence[TimeSeries], B: np.ndarray | None) -> list[np.ndarray]:
    """Scaled values, without what their marks add by B (k, columns)."""
    return [one.scaled() if B is None else one.scaled() - one.marks @ B for one in series]


def fit_series(
    series: Sequence[TimeSeries], split: Split, context: int, season: int, horizon: int, memory: bool
) -> tuple[Line, str]:
    """The line of the training rows, and how calendar and covariates are taken off first."""
    how, B = _choose_marks(series, split, min(context, 4 * season + 24), horizon)
    cuts, whole = make_cuts(series, _values(series, B), *split, context, horizon)
    return replace(fit_line(cuts, whole, default_members(context, season, memory), season, horizon), B=B), how


def refit_series(line: Line, series: Sequence[TimeSeries], context: int, season: int, ends: Any) -> Line:
    """The chosen line, fitted on all rows up to `ends`."""
    return refit(line, whole_parts(series, _values(series, line.B), context, ends), season)


def _choose_marks(series: Sequence[TimeSeries], split: Split, context: int, horizon: int) -> tuple[str, Any]:
    """By levels, by differences or not at all: the least error of a plain ridge in the last cut; and B (k, columns)."""
    if any(one.marks is None for one in series):
        return "none", None
    found: list[tuple[float, str, Any]] = []
    for how in ("none", "levels", "differences"):
        B = None if how == "none" else _fit_marks(series, split.train_end, how == "differences")
        cuts, _ = make_cuts(series, _values(series, B), *split, context, horizon)
        error = float(how != "levels")
        if cuts:
            line = fit_line(cuts[-1:], cuts[-1][0], [Features(context)], 1, horizon)
            error = float(Moments.of(cuts[-1][1], line.features, horizon).error(line.W).mean())
        found.append((error, how, B))
    return min(found, key=lambda one: one[0])[1:]


def _fit_marks(series: Sequence[TimeSeries], ends: np.ndarray, differences: bool) -> np.ndarray:
    """Least squares of the training rows on their marks: of both as they are, or of their differences, which a drifting
    level does not disturb. (k, columns)"""
    each = [(cast(Any, one.marks)[:end], one.scaled()[:end]) for one, end in zip(series, ends, strict=True)]
    m, y = (
        np.concatenate([np.diff(rows, axis=0) if differences else rows - rows.mean(0) for rows in side])
        for side in zip(*each, strict=True)
    )
    return np.linalg.solve(m.T @ m / len(m) + 1e-4 * np.eye(m.shape[1]), m.T @ y / len(m))


# -- what is known beforehand -----------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """What is known of a step beforehand: its place in cycles of the calendar, and covariates."""

    cycles: tuple[str, ...]
    zone: Any  # time zone of fit, by whose clock the calendar is read
    scale: Scale | None  # of the covariates, None without them

    @classmethod
    def fit(cls, series: Sequence[TimeSeries], ends: Any, tables: Sequence[TimeSeries]) -> Marks:
        """Cycles that all training rows see, none without `ends`, and the scale of the tables of covariates."""
        cycles = [cycles_of(one.step, int(end)) for one, end in zip(series, ends, strict=False)]
        shared = tuple(name for name in (cycles[0] if cycles else ()) if all(name in some for some in cycles))
        scale = Scale.of(np.concatenate([table.values for table in tables])) if tables else None
        return cls(shared, getattr(series[0].index, "tz", None), scale)

    def of(self, index: Any, known: np.ndarray | None) -> np.ndarray | None:
        """Marks of rows with this index and these covariates, None where there are none. (rows, k)"""
        if self.cycles and not hasattr(index, "day_of_week"):
            raise DataError("the series of fit had dates and this one has none; give a DatetimeIndex.")
        parts = [calendar(index, self.cycles, self.zone)] if self.cycles else []
        if known is not None and self.scale is not None:
            parts.append(self.scale.apply(known))
        return np.concatenate(parts, axis=1) if parts else None


def read_covariates(
    given: Any, series: list[TimeSeries], form: Form, rows: Sequence[int], options: Any, width: int | None = None,
    names: list | None = None,
) -> list[TimeSeries]:  # fmt: skip
    """Covariates of each series, in the form the series came in: tables of these many rows and columns."""
    if form.kind == "dict" and isinstance(given, dict):
        given = {key: given[key] for key in form.keys if key in given}
    tables, got = read_series(given, "covariates", options, names)
    if got != form:
        raise ShapeError(f"covariates: {len(tables)} tables for {len(series)} series; give them in the same form.")
    width = tables[0].values.shape[1] if width is None else width
    for at, (table, one, wanted) in enumerate(zip(tables, series, rows, strict=True)):
        if table.values.shape != (wanted, width):
            raise ShapeError(f"covariates {at}: shape {table.values.shape}, expected {(wanted, width)} (time, "
                             "columns), of all steps of the series and of those to forecast.")  # fmt: skip
        if table.step is None or one.step is None:
            continue
        beside = one.index.append(one.future(max(0, wanted - len(one.values))))[:wanted]
        if not (beside.equals(table.index) or one.future(wanted).equals(table.index)):
            raise DataError(f"covariates {at}: dates from {table.index[0]} to {table.index[-1]}, expected those of the "
                            f"series, which ends at {one.index[-1]}, or of the steps after it.")  # fmt: skip
    return tables


# -- series that fit has not seen -------------------------------------------------------------------------------------


def read_static(table: Any, keys: Sequence[Any]) -> Any:
    """The rows of these series: a DataFrame of numbers and words whose index, or column unique_id, are their keys."""
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"static is a {type(table).__name__}, expected a DataFrame by unique_id.")
    table = table.set_index("unique_id") if "unique_id" in table.columns else table
    if missing := [key for key in keys if key not in table.index]:
        raise DataError(f"static has no row for the series {missing[0]!r}; give one for each.")
    table = table.loc[list(keys)]
    if len(table) != len(keys) or table.isna().any(axis=None):
        raise DataError("static has several rows for a series, or empty fields; give one row for each, filled.")
    return pd.get_dummies(table, dtype=float)


def place_in_season(one: TimeSeries, first: int, rows: int, season: int) -> np.ndarray:
    """Place in the season, by dates if there are any, of `rows` rows from row `first` on, which may be negative."""
    start = 0 if one.clock is None or not one.step else round(one.clock[0] / one.step)
    return (start + first + np.arange(rows)) % season


class StaticPrior(NamedTuple):
    """What static features of a series (a table by unique_id) say of its level, spread and season.

    Ridge regression over the series of fit, from their features to the logarithm of the deviation, the mean in
    deviations, and the mean of each place in the season. A series that fit has not seen starts with the history that
    these predict. Its deviation and its mean move to its own as rows come, each by the error of the prediction (of
    series left out) against that of what its rows say.
    """

    columns: Sequence[str]  # names of the features, words as one for each value
    W: np.ndarray  # (features, targets): log deviation, mean, and the season, of each column
    b: np.ndarray  # (targets,)
    spread: np.ndarray  # (2, columns) mean squared error of log deviation and mean, of series left out
    noise: np.ndarray  # (columns,) mean square of what the season leaves of the scaled rows
    season: int

    @classmethod
    def fit(cls, table: Any, series: Sequence[TimeSeries], ends: np.ndarray, season: int) -> StaticPrior:
        """From features (series, k) and the training rows of the series; leave-one-out chooses the penalty."""
        targets, noise = [], []
        for one, end in zip(series, ends, strict=True):
            scaled, place = one.scaled()[:end], place_in_season(one, 0, end, season)
            each = (scaled[place == k] for k in range(season))
            profile = np.stack([rows.mean(0) if len(rows) else 0 * scaled[0] for rows in each])
            noise.append(np.square(scaled - profile[place]).mean(0))
            mean = one.scale.mean / one.scale.deviation
            targets.append(np.concatenate([np.log(one.scale.deviation), mean, profile.ravel()]))
        Y = np.array(targets)
        unit = Y.std(0).clip(1e-9)
        ridge = fit_ridge(torch.tensor(table.to_numpy()).float(), torch.tensor((Y - Y.mean(0)) / unit).float())
        W = (ridge.coef / ridge.scale[:, None]).numpy() * unit
        b = ridge.intercept.numpy() * unit + Y.mean(0) - ridge.mean.numpy() @ W
        left_out, cases = cast(Any, ridge.left_out).numpy() * unit + Y.mean(0), cast(Any, ridge.sample).numpy()
        spread = np.square(Y[cases] - left_out).mean(0)[: 2 * series[0].values.shape[1]].reshape(2, -1).clip(1e-6)
        return cls(list(table.columns), W, b, spread, np.mean(noise, axis=0).clip(1e-6), season)

    def start(self, features: Any, one: TimeSeries, rows: int) -> TimeSeries:
        """A series after `rows` rows of a history as its features predict it, with its scale."""
        found = features.reindex(self.columns, fill_value=0.0).to_numpy(dtype=float) @ self.W + self.b
        width, n = one.values.shape[1], len(one.values)
        deviation, ratio, profile = np.exp(found[:width]), found[width : 2 * width], found[2 * width :]
        profile = profile.reshape(self.season, width)
        season = profile[place_in_season(one, 0, n, self.season)]
        shape = ratio + season  # the rows over their deviation
        size = np.square(shape).sum(0).clip(1e-9)
        own = ((one.values * shape).sum(0) / size / deviation).clip(1e-3)
        deviation = deviation * own ** (self.spread[0] / (self.spread[0] + self.noise / size))
        rows_worth = self.noise / self.spread[1]
        mean = (n * (one.values - deviation * season).mean(0) + rows_worth * ratio * deviation) / (n + rows_worth)
        history = mean + deviation * profile[place_in_season(one, -rows, rows, self.season)]
        values, gaps = np.concatenate([history, one.values]), np.ones((len(history) + n, width), dtype=bool)
        gaps[rows:] = False if one.gaps is None else one.gaps
        index, scale = one.past(rows).append(one.index), Scale(mean, deviation, deviation == 0)
        return replace(one, values=values, index=index, gaps=gaps, scale=scale)
