"""What a forecaster reads: arrays, pandas objects and long tables as numbers, the names of their columns, their index.

A series is (time,) or (time, columns), whose columns are forecast together; a Series or DataFrame has an index beside
it, of dates or numbers; a list or dict of series, or a long table (unique_id, ds, y), shares one model. Results come
back in the same form. Read next: `features/line.py`, the closed-form forecast.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from wavessm.data.tables import import_pandas, same_step
from wavessm.errors import DataError, ShapeError, real_array
from wavessm.estimators.base import Scale, check_finite, column_order

pd = import_pandas()
DAY = 86400.0
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.25 * DAY}
HARMONICS = {"day": 4, "week": 3, "year": 2}
NO_SCALE = Scale(np.zeros(1), np.ones(1), np.zeros(1, dtype=bool))


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Numbers of one series, its index and names, and how a forecaster reads it."""

    values: np.ndarray  # (time, columns) float64, missing samples filled by the last before them
    kind: str  # "array", "table", "series" or "frame"
    index: Any  # a pandas Index; of arrays, their rows
    columns: Any = None  # names of a DataFrame's columns, the name of a Series
    gaps: np.ndarray | None = None  # (time,) rows that no forecast is compared with; None without
    scale: Scale = NO_SCALE
    marks: np.ndarray | None = None  # (time + known steps, k): calendar and covariates

    def future(self, steps: int) -> Any:
        """The index of the next `steps` rows."""
        index, step = self.index, step_of(self.index)
        if isinstance(index, pd.DatetimeIndex):
            if step is None:
                raise DataError(f"the series has {len(index)} dates, too few to know their step; set index.freq.")
            return pd.date_range(index[-1], periods=steps + 1, freq=step, name=index.name)[1:]
        step = 1 if step is None else round(step) if index.dtype.kind in "iu" else step
        return pd.Index([index[-1] + k * step for k in range(1, steps + 1)], name=index.name)

    def scaled(self) -> np.ndarray:
        """The values in units of their scale."""
        return self.scale.apply(self.values)

    def wrap(self, values: np.ndarray, levels: Sequence[float] | None = None) -> Any:
        """Values of the rows after the last one, (steps, columns) or with quantiles (steps, columns, levels), in the
        form of the series.
        """
        if self.kind in ("array", "table"):
            return values[:, 0] if self.kind == "array" else values
        index, names = self.future(len(values)), self.columns
        if levels is not None:
            names = pd.Index(levels, name="quantile")
            names = names if self.kind == "series" else pd.MultiIndex.from_product([self.columns, names])
        elif self.kind == "series":
            return pd.Series(values[:, 0], index=index, name=names)
        return pd.DataFrame(values.reshape(len(values), -1), index=index, columns=names)


class Form(NamedTuple):
    """How series came: "one", "list", "dict" or "long", and their keys."""

    kind: str
    keys: tuple = ()

    def wrap(self, results: list[Any]) -> Any:
        """Results of the series in the same form; those of a long table have the columns unique_id, ds and y, or the
        quantiles instead of y.
        """
        if self.kind in ("one", "list"):
            return results[0] if self.kind == "one" else results
        if self.kind == "dict":
            return dict(zip(self.keys, results, strict=True))
        frames = [one.to_frame("y") if one.ndim == 1 else one for one in results]
        table = pd.concat(dict(zip(self.keys, frames, strict=True)), names=["unique_id", "ds"]).reset_index()
        return table.rename_axis(columns=None)


def read_series(given: Any, what: str, options: Any, names: list | None = None) -> tuple[list[TimeSeries], Form]:
    """One series or several, repaired as the options `duplicates` and `missing` say, and the form they came in.

    DataFrames must have the columns `names` in any order; None takes those of the first.
    """
    form, parts = Form("one"), {what: given}
    if isinstance(given, pd.DataFrame) and {"unique_id", "ds"} <= set(given.columns):
        given, form = _split_groups(given, what), Form("long")
    if isinstance(given, Mapping):
        form = Form("long" if form.kind == "long" else "dict", tuple(given))
        parts = {f"{what} {key!r}": one for key, one in given.items()}
    elif isinstance(given, list | tuple) and given and not np.isscalar(given[0]):
        form, parts = Form("list"), {f"{what} {at}": one for at, one in enumerate(given)}
    series = []
    for title, part in parts.items():
        one = _read_one(part, title, options)
        if one.kind == "frame":
            names = list(one.columns) if names is None else names
            if one.values.shape[1] > 1 or len(names) > 1:  # one column needs no name
                order = column_order(one.columns, names, title)
                one = replace(one, values=one.values[:, order], columns=one.columns[order])
        series.append(one)
    if not series:
        raise ShapeError(f"{what}: empty, expected at least one series.")
    return series, form


def _split_groups(given: Any, what: str) -> dict[Any, Any]:
    """The series of a long table by their unique_id."""
    if not pd.api.types.is_numeric_dtype(given["ds"]):
        try:
            given = given.assign(ds=pd.to_datetime(given["ds"]))
        except (TypeError, ValueError) as reason:
            raise DataError(f"{what}: column 'ds' has text that is no date ({str(reason).split(',')[0]}).") from reason
    groups = {key: part.set_index("ds").drop(columns="unique_id") for key, part in given.groupby("unique_id")}
    return {key: part["y"] if list(part.columns) == ["y"] else part for key, part in groups.items()}


def split_long(given: Any) -> tuple[Any, Any]:
    """A long table (unique_id, ds, y, …) as series and covariates, its other columns; None where there are none."""
    if not (isinstance(given, pd.DataFrame) and {"unique_id", "ds", "y"} < set(given.columns)):
        return given, None
    return given[["unique_id", "ds", "y"]], given.drop(columns="y")


def _read_one(given: Any, what: str, options: Any) -> TimeSeries:
    indexed = isinstance(given, pd.Series | pd.DataFrame)
    given = _regular(given, what, options) if indexed else given
    values = real_array(given, f"{what} (time,) or (time, columns)")
    if values.ndim not in (1, 2) or 0 in values.shape:
        raise ShapeError(f"{what} has shape {values.shape}, expected (time,) or (time, columns).")
    table, gaps = values.reshape(len(values), -1), None
    if options.missing != "error" and np.isnan(table).any():
        gaps = np.isnan(table).any(axis=1) if options.missing == "gap" else None
        table = pd.DataFrame(table).ffill().bfill().to_numpy()
    check_finite(table, f"{what}: row {{}}")
    if not indexed:
        return TimeSeries(table, "array" if values.ndim == 1 else "table", pd.RangeIndex(len(table)), gaps=gaps)
    kind, columns = ("series", given.name) if values.ndim == 1 else ("frame", given.columns)
    return TimeSeries(table, kind, given.index, columns, gaps)


def column_names(series: Sequence[TimeSeries]) -> list | None:
    """Columns of the DataFrames among the series; None without one."""
    return next((list(one.columns) for one in series if one.kind == "frame"), None)


# -- the index ------------------------------------------------------------------------------------------------------


def _regular(given: Any, what: str, options: Any) -> Any:
    """The same rows on an index that rises by one step; repeated stamps and missing steps are repaired or refused."""
    index = given.index
    if not isinstance(index, pd.DatetimeIndex) and index.dtype.kind not in "iuf":
        raise DataError(f"{what}: its index is not dates or numbers ({index[0]!r} …); use series.index = "
                        "pd.to_datetime(series.index), .to_timestamp() or .reset_index(drop=True).")  # fmt: skip
    if not index.is_monotonic_increasing:
        raise DataError(f"{what}: its index does not rise; use .sort_index().")
    if not index.is_unique:
        if options.duplicates == "error":
            twice = index[index.duplicated()]
            raise DataError(f"{what}: {len(twice)} time stamps are repeated, the first is {twice[0]}; choose "
                            "duplicates='mean' or 'last'.")  # fmt: skip
        given = getattr(given.groupby(level=0), options.duplicates)()
        index = given.index
    if len(index) < 3 or step_of(index) is not None:
        return given
    if options.missing == "error":
        raise DataError(
            f"{what}: its index has gaps or no regular step; choose missing='hold' or 'gap', or use .asfreq()."
        )
    step = (index[1:] - index[:-1]).value_counts().index[0]  # the most frequent one
    whole = pd.Index([index[0] + k * step for k in range(round((index[-1] - index[0]) / step) + 1)])
    if not index.isin(whole).all():
        off = index[~index.isin(whole)][0]
        raise DataError(f"{what}: {off} is not on the grid of {step} that starts at {index[0]}; resample the rows.")
    return given.reindex(whole.rename(index.name))


def step_of(index: Any) -> Any:
    """The step of an index: a pandas offset for dates, else a number; None if it has none or several."""
    if isinstance(index, pd.DatetimeIndex):
        if len(index) < 3 or index.freq is not None:
            return index[1] - index[0] if len(index) == 2 and index.freq is None else index.freq
        with warnings.catch_warnings():  # pandas is about to change what infer_freq returns; to_offset takes both
            warnings.simplefilter("ignore")
            return pd.tseries.frequencies.to_offset(pd.infer_freq(index))
    if len(index) < 2:
        return None
    steps = index[1:] - index[:-1]
    rounded = np.abs(steps - np.median(steps)) < 0.5 * np.median(steps)  # a gap is a complete step
    return (index[-1] - index[0]) / len(steps) if rounded.all() else None


def _seconds(index: Any) -> np.ndarray | None:
    """Dates as seconds since 1970 (rows,) float64; None for an index without dates."""
    return index.as_unit("us").asi8 / 1e6 if isinstance(index, pd.DatetimeIndex) else None


def step_seconds(index: Any) -> float | None:
    """The median step of dates in seconds; None for an index without dates."""
    seconds = _seconds(index)
    return None if seconds is None or len(seconds) < 2 else float(np.median(np.diff(seconds)))


def check_alike(series: Sequence[TimeSeries], first: TimeSeries) -> None:
    """Refuse a series with other columns, another step, or dates with a time zone where the first has none."""
    step = step_seconds(first.index)
    for at, one in enumerate(series):
        columns, wanted = one.values.shape[1], first.values.shape[1]
        if columns != wanted:
            raise ShapeError(f"series {at} has {columns} columns, expected {wanted}; a series is (time, columns).")
        seconds = _seconds(one.index)
        if seconds is None or step is None:
            continue
        if (one.index.tz is None) != (first.index.tz is None):
            raise DataError(f"series {at} has the time zone {one.index.tz}, the first of fit {first.index.tz}; use "
                            "tz_localize.")  # fmt: skip
        same_step(seconds, step, f"series {at}")


# -- the calendar -----------------------------------------------------------------------------------------------------


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
    """Sines and cosines of the place in each cycle, by the clock of a time zone; where there are a day and a year, also
    products of their first waves, so that a day may have another shape in each season. (time, k)
    """
    index = index if index.tz is None else index.tz_convert(zone)
    day = (index.hour + index.minute / 60 + index.second / 3600) / 24
    place = {"day": day, "week": (index.day_of_week + day) / 7, "year": (index.day_of_year - 1 + day) / 366}
    waves = {}
    for name in cycles:
        angles = [2 * np.pi * k * np.asarray(place[name], dtype=np.float64) for k in range(1, HARMONICS[name] + 1)]
        waves[name] = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    mixed = [a * b for a in waves["year"][:2] for b in waves["day"][:4]] if {"day", "year"} <= set(cycles) else []
    return np.stack([*(wave for name in cycles for wave in waves[name]), *mixed], axis=1)
