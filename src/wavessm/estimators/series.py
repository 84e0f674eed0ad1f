"""Stage 9e: what a forecaster may be given: arrays and pandas objects as numbers with an index that goes on.

(time,) or (time, columns)     an array; columns are forecast together
Series, DataFrame              the same with an index; a DatetimeIndex also gives marks of the calendar
a list or dict of these        several series, one model
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wavessm.errors import DataError, MissingExtraError, ShapeError

DAY = 86400.0
SEASONS = ((60.0, 60), (3600.0, 24), (DAY, 7), (7 * DAY, 52), (28 * DAY, 12), (90 * DAY, 4))
"""Shortest step of a scale in seconds, and the steps in its season."""

CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.25 * DAY}


@dataclass(frozen=True, eq=False)
class Track:
    """One series: numbers, its index and names where it came with them."""

    values: np.ndarray  # (time, columns) float64
    index: Any = None  # a pandas Index, or None for arrays
    columns: Any = None  # names of a DataFrame's columns, the name of a Series
    kind: str = "array"  # "array", "table", "series", "frame"

    @property
    def length(self) -> int:
        return len(self.values)

    def future(self, steps: int) -> Any:
        """The index of the `steps` after the last one."""
        if self.index is None:
            return None
        return continue_index(self.index, steps)

    def wrap(self, values: np.ndarray, index: Any) -> Any:  # (steps, columns)
        """Numbers in the form the series came in."""
        if self.kind == "array":
            return values[:, 0]
        if self.kind == "table":
            return values
        pd = pandas()
        if self.kind == "series":
            return pd.Series(values[:, 0], index=index, name=self.columns)
        return pd.DataFrame(values, index=index, columns=self.columns)


def pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as reason:
        raise MissingExtraError("this needs pandas: pip install 'wavessm[estimators]'.") from reason
    return pd


def read_series(series: Any, what: str) -> tuple[list[Track], Any]:
    """Tracks, and what they came in: None for one series, "list", or the keys of a dict."""
    if isinstance(series, Mapping):
        if not series:
            raise ShapeError(f"{what}: an empty dict, expected at least one series.")
        return [read_track(value, f"{what} {key!r}") for key, value in series.items()], list(series)
    if isinstance(series, list | tuple) and series and not np.isscalar(series[0]):
        return [read_track(value, f"{what} {at}") for at, value in enumerate(series)], "list"
    return [read_track(series, what)], None


def rewrap(results: list[Any], form: Any) -> Any:
    """Results of several series in the form they came in."""
    if form is None:
        return results[0]
    return results if form == "list" else dict(zip(form, results, strict=True))


def read_track(series: Any, what: str) -> Track:
    """One series, checked."""
    index = columns = None
    kind = ""
    if series is None or isinstance(series, str):
        raise ShapeError(f"{what}: got {series!r}, expected numbers; read a file first, as with pandas.read_csv.")
    if hasattr(series, "to_numpy") and hasattr(series, "index"):
        index, values = series.index, series.to_numpy()
        kind = "series" if series.ndim == 1 else "frame"
        columns = series.name if kind == "series" else series.columns
        dated = [name for name in columns if series[name].dtype.kind == "M"] if kind == "frame" else []
        if dated:
            raise DataError(
                f"{what}: column {dated[0]!r} holds dates; make it the index with .set_index({dated[0]!r})."
            )
    else:
        values = series.detach().cpu().numpy() if isinstance(series, torch.Tensor) else series
    try:
        array = np.asarray(values)
        array = array.astype(np.float64) if array.dtype.kind in "fiubO" else array
    except (TypeError, ValueError) as reason:
        raise DataError(f"{what}: not a table of numbers ({reason}); give (time,) or (time, columns).") from reason
    if array.dtype.kind != "f" or array.ndim not in (1, 2) or 0 in array.shape:
        raise ShapeError(f"{what}: {array.shape} of {array.dtype}, expected numbers (time,) or (time, columns).")
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DataError(f"{what}: NaN or infinity in row {row}; fill it first, as with .interpolate().")
    if index is not None:
        _check_index(index, what)
    return Track(array.reshape(len(array), -1), index, columns, kind or ("array" if array.ndim == 1 else "table"))


def _check_index(index: Any, what: str) -> None:
    pd = pandas()
    if len(index) and isinstance(index[0], str):
        raise DataError(
            f"{what}: its index is text ({index[0]!r} …); make it dates, series.index = pd.to_datetime(series.index), "
            "or drop it with .reset_index(drop=True)."
        )
    if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        if not index.is_monotonic_increasing or not index.is_unique:
            raise DataError(f"{what}: the dates do not rise; use .sort_index() and drop what is there twice.")
        if len(index) > 2 and offset_of(index) is None:
            raise DataError(f"{what}: the dates have gaps or no regular step; use .asfreq() and fill the gaps.")


def offset_of(index: Any) -> Any:
    """The step of a DatetimeIndex as a pandas offset; None if it has none."""
    pd = pandas()
    if index.freq is not None:
        return index.freq
    if len(index) > 2:
        with warnings.catch_warnings():  # pandas is about to change what infer_freq returns; to_offset takes both
            warnings.simplefilter("ignore")
            found = pd.tseries.frequencies.to_offset(pd.infer_freq(index))
        if found is not None:
            return found
    steps = index[1:] - index[:-1]
    return steps[0] if len(steps) and (steps == steps[0]).all() else None


def continue_index(index: Any, steps: int) -> Any:
    """The next `steps` entries of an index.

    >>> import pandas as pd
    >>> continue_index(pd.date_range("2024-01-31", periods=3, freq="ME"), 2).strftime("%m-%d").tolist()
    ['04-30', '05-31']
    >>> continue_index(pd.RangeIndex(0, 10, 5), 2).tolist()
    [10, 15]
    """
    pd = pandas()
    if isinstance(index, pd.DatetimeIndex):
        offset = offset_of(index)
        if offset is None:
            raise DataError(f"the series has {len(index)} dates, too few to know their step; set index.freq.")
        return pd.date_range(index[-1], periods=steps + 1, freq=offset, name=index.name)[1:]
    if isinstance(index, pd.PeriodIndex):
        return pd.period_range(index[-1] + 1, periods=steps, freq=index.freq, name=index.name)
    if pd.api.types.is_integer_dtype(index.dtype) and len(index):
        step = int(index[-1] - index[-2]) if len(index) > 1 else 1
        return pd.RangeIndex(int(index[-1]) + step, int(index[-1]) + step * (steps + 1), step, name=index.name)
    return pd.RangeIndex(len(index), len(index) + steps, name=index.name)


def step_seconds(index: Any) -> float | None:
    """The median step of dates in seconds; None for an index without dates."""
    if index is None or len(index) < 2:
        return None
    pd = pandas()
    index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    if not isinstance(index, pd.DatetimeIndex):
        return None
    index = index if index.tz is None else index.tz_convert(None)
    return float(np.median(np.diff(index.to_numpy()) / np.timedelta64(1, "ns"))) * 1e-9


def season_of(index: Any) -> int:
    """Steps in the season that the sampling suggests; 1 without dates.

    >>> import pandas as pd
    >>> [season_of(pd.date_range("2024", periods=9, freq=freq)) for freq in ("h", "D", "MS")]
    [24, 7, 12]
    """
    seconds = step_seconds(index)
    if seconds is None:
        return 1
    return next((season for shortest, season in reversed(SEASONS) if seconds >= 0.99 * shortest), 60)


def cycles_of(index: Any, steps: int) -> tuple[str, ...]:
    """Cycles of the calendar that the step can tell apart and the first `steps` go through twice; none without dates.

    A cycle seen less than twice would be a trend in disguise.

    >>> import pandas as pd
    >>> cycles_of(pd.date_range("2024", periods=500, freq="h"), 500)
    ('day', 'week')
    """
    seconds = step_seconds(index)
    if seconds is None:
        return ()
    return tuple(name for name, length in CYCLES.items() if 2 * length <= seconds * steps and seconds < length)


def calendar(index: Any, cycles: tuple[str, ...]) -> np.ndarray:
    """Sine and cosine of the place in each cycle. (time, 2 · cycles)"""
    pd = pandas()
    index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    day = (index.hour + index.minute / 60 + index.second / 3600) / 24
    place = {"day": day, "week": (index.day_of_week + day) / 7, "year": (index.day_of_year - 1 + day) / 366}
    angle = 2 * np.pi * np.stack([np.asarray(place[name], dtype=np.float64) for name in cycles], axis=1)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
