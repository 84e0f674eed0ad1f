"""What a forecaster reads: arrays and pandas objects as numbers, the names of their columns and a regular index.

A series is (time,) or (time, columns), whose columns are forecast together; a Series or DataFrame has an index beside
it, of dates or numbers; a list or dict of series shares one model. Results come back in the same form.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wavessm.data.tables import import_pandas, same_step
from wavessm.errors import DataError, ShapeError, real_array
from wavessm.estimators.base import Scale, check_finite, column_order

pd = import_pandas()
DAY = 86400.0
SEASONS = ((60.0, 60), (3600.0, 24), (DAY, 7), (7 * DAY, 52), (28 * DAY, 12), (90 * DAY, 4))
"""Shortest step of a scale in seconds, and the steps in its season."""

CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.25 * DAY}
_DATED = pd.DatetimeIndex | pd.PeriodIndex | pd.TimedeltaIndex


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Numbers of one series, its index and names where it came with them, and how a forecaster reads it."""

    values: np.ndarray  # (time, columns) float64
    scale: Scale  # its own, unless a forecaster replaces it
    kind: str  # "array", "table", "series" or "frame"
    index: Any = None  # a pandas Index, or None for arrays
    columns: Any = None  # names of a DataFrame's columns, the name of a Series
    marks: np.ndarray | None = None  # (time + known steps, k): calendar and covariates

    def future(self, steps: int) -> Any:
        """The index of the next `steps` rows; None without an index."""
        return None if self.index is None else continue_index(self.index, steps)

    def wrap(self, values: np.ndarray) -> Any:  # (steps, columns)
        """Values of the rows after the last one, in the form of the series."""
        if self.kind in ("array", "table"):
            return values[:, 0] if self.kind == "array" else values
        if self.kind == "series":
            return pd.Series(values[:, 0], index=self.future(len(values)), name=self.columns)
        return pd.DataFrame(values, index=self.future(len(values)), columns=self.columns)


def read_series(given: Any, what: str, names: list | None = None) -> tuple[list[TimeSeries], Any]:
    """One series or several, and the form they came in: None for one, "list", or the keys of a dict.

    DataFrames must have the columns `names` in any order; None takes those of the first.
    """
    form: Any = None
    parts = {what: given}
    if isinstance(given, Mapping):
        form, parts = list(given), {f"{what} {key!r}": one for key, one in given.items()}
    elif isinstance(given, list | tuple) and given and not np.isscalar(given[0]):
        form, parts = "list", {f"{what} {at}": one for at, one in enumerate(given)}
    series = []
    for title, part in parts.items():
        one = _read_one(part, title)
        if one.kind == "frame":
            names = list(one.columns) if names is None else names
            if one.values.shape[1] > 1 or len(names) > 1:  # one column needs no name
                order = column_order(one.columns, names, title)
                values = one.values[:, order]
                one = replace(one, values=values, scale=Scale.of(values), columns=one.columns[order])
        series.append(one)
    if not series:
        raise ShapeError(f"{what}: empty, expected at least one series.")
    return series, form


def _read_one(given: Any, what: str) -> TimeSeries:
    values = real_array(given, f"{what} (time,) or (time, columns)")
    if values.ndim not in (1, 2) or 0 in values.shape:
        raise ShapeError(f"{what} has shape {values.shape}, expected (time,) or (time, columns).")
    check_finite(values, f"{what}: row {{}}")
    table = values.reshape(len(values), -1)
    scale = Scale.of(table)
    if not isinstance(given, pd.Series | pd.DataFrame):
        return TimeSeries(table, scale, "array" if values.ndim == 1 else "table")
    _check_index(given.index, what)
    if values.ndim == 1:
        return TimeSeries(table, scale, "series", given.index, given.name)
    return TimeSeries(table, scale, "frame", given.index, given.columns)


def column_names(series: Sequence[TimeSeries]) -> list | None:
    """Columns of the DataFrames among the series; None without one."""
    return next((list(one.columns) for one in series if one.kind == "frame"), None)


def same_form(results: list[Any], form: Any) -> Any:
    """Results of several series in the form that `read_series` found."""
    if form is None:
        return results[0]
    return results if form == "list" else dict(zip(form, results, strict=True))


# -- the index ------------------------------------------------------------------------------------------------------


def _check_index(index: Any, what: str) -> None:
    """Refuse an index that has no next entry: of text, not rising, or with gaps."""
    if not isinstance(index, _DATED) and index.dtype.kind not in "iuf":
        raise DataError(
            f"{what}: its index is not dates or numbers ({index[0]!r} …); use series.index = pd.to_datetime("
            "series.index), or drop it with .reset_index(drop=True)."
        )
    if not index.is_monotonic_increasing or not index.is_unique:
        raise DataError(f"{what}: its index does not rise; use .sort_index() and drop duplicates.")
    if len(index) > 2 and step_of(index) is None:
        raise DataError(
            f"{what}: its index has gaps or no regular step; use .asfreq() or .reindex() and fill the gaps."
        )


def step_of(index: Any) -> Any:
    """The step of an index: a pandas offset for dates, else a number; None if it has none or several."""
    if len(index) < 2 or getattr(index, "freq", None) is not None:
        gaps = isinstance(index, pd.PeriodIndex) and (np.diff(index.asi8) != index.freq.n).any()
        return None if gaps else getattr(index, "freq", None)
    if len(index) > 2 and isinstance(index, _DATED):
        with warnings.catch_warnings():  # pandas is about to change what infer_freq returns; to_offset takes both
            warnings.simplefilter("ignore")
            if (found := pd.tseries.frequencies.to_offset(pd.infer_freq(index))) is not None:
                return found
    steps = index[1:] - index[:-1]
    if isinstance(index, _DATED):
        return steps[0] if (steps == steps[0]).all() else None
    rounded = np.abs(steps - np.median(steps)) < 0.5 * np.median(steps)  # a gap is a complete step
    return (index[-1] - index[0]) / len(steps) if rounded.all() else None


def continue_index(index: Any, steps: int) -> Any:
    """The next entries of an index.

    >>> continue_index(pd.date_range("2024-01-31", periods=3, freq="ME"), 2).strftime("%m-%d").tolist()
    ['04-30', '05-31']
    >>> continue_index(pd.RangeIndex(0, 10, 5), 2).tolist(), continue_index(pd.Index([0.0, 0.5]), 2).tolist()
    ([10, 15], [1.0, 1.5])
    """
    step = step_of(index)
    if isinstance(index, pd.DatetimeIndex):
        if step is None:
            raise DataError(f"the series has {len(index)} dates, too few to know their step; set index.freq.")
        return pd.date_range(index[-1], periods=steps + 1, freq=step, name=index.name)[1:]
    whole = index.dtype.kind in "iu"
    step = 1 if step is None else round(step) if whole else step
    return pd.Index([index[-1] + k * step for k in range(1, steps + 1)], name=index.name)


def _seconds(index: Any) -> np.ndarray | None:
    """Dates as seconds since 1970 (rows,) float64; None for an index without dates."""
    index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    return index.as_unit("us").asi8 / 1e6 if isinstance(index, pd.DatetimeIndex) else None


def step_seconds(index: Any) -> float | None:
    """The median step of dates in seconds; None for an index without dates."""
    seconds = _seconds(index)
    return None if seconds is None or len(seconds) < 2 else float(np.median(np.diff(seconds)))


def check_alike(series: Sequence[TimeSeries], first: TimeSeries) -> None:
    """Refuse a series with other columns, another step, or dates with a time zone where the first has none."""
    for at, one in enumerate(series):
        columns, wanted = one.values.shape[1], first.values.shape[1]
        if columns != wanted:
            raise ShapeError(f"series {at} has {columns} columns, expected {wanted}; a series is (time, columns).")
        seconds, step = _seconds(one.index), step_seconds(first.index)
        if seconds is None or step is None:
            continue
        zones = [getattr(index, "tz", None) for index in (one.index, first.index)]
        if (zones[0] is None) != (zones[1] is None):
            raise DataError(f"series {at} has the time zone {zones[0]}, the first of fit {zones[1]}; use tz_localize.")
        same_step(seconds, step, f"series {at}")


# -- seasons and the calendar ---------------------------------------------------------------------------------------


def season_of(index: Any) -> int:
    """Steps in the season that the step of dates suggests; 1 without dates.

    >>> [season_of(pd.date_range("2024", periods=9, freq=freq)) for freq in ("h", "D", "MS")]
    [24, 7, 12]
    """
    seconds = step_seconds(index)
    if seconds is None:
        return 1
    return next((season for shortest, season in reversed(SEASONS) if seconds >= 0.99 * shortest), 60)


def cycles_of(index: Any, steps: int) -> tuple[str, ...]:
    """Cycles of the calendar longer than a step that the first `steps` rows see twice; one seen less is a trend.

    >>> cycles_of(pd.date_range("2024", periods=500, freq="h"), 500)
    ('day', 'week')
    """
    seconds = step_seconds(index)
    if seconds is None:
        return ()
    return tuple(name for name, length in CYCLES.items() if 2 * length <= seconds * steps and seconds < length)


def calendar(index: Any, cycles: tuple[str, ...], zone: Any) -> np.ndarray:
    """Sine and cosine of the place in each cycle, by the clock of a time zone. (time, 2 · cycles)"""
    index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    index = index if index.tz is None else index.tz_convert(zone)
    day = (index.hour + index.minute / 60 + index.second / 3600) / 24
    place = {"day": day, "week": (index.day_of_week + day) / 7, "year": (index.day_of_year - 1 + day) / 366}
    angle = 2 * np.pi * np.stack([np.asarray(place[name], dtype=np.float64) for name in cycles], axis=1)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
