"""What a forecaster reads: arrays, pandas objects, long tables and CSV files as numbers, with columns and an index.

A series is (time,) or (time, columns), whose columns are forecast together; a Series or DataFrame has an index beside
it, of dates or numbers; a list or dict of series, or a long table (unique_id, ds, y), shares one model. Results come
back in the same form. Command line and estimators both read their series here; next: `training/forecaster.py`.
"""

from __future__ import annotations

import datetime
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.data import tables
from wavessm.data.tables import Scale
from wavessm.data.windows import CYCLES, waves
from wavessm.errors import DataError, OptionError, ShapeError, check_number, is_int, real_array

log = logging.getLogger("wavessm.data")
pd = tables.import_pandas()
REPAIR = "fill or drop these rows, or choose --missing gap"
LONG = ("unique_id", "ds", "y")  # columns of a long table
HARMONICS = {"day": 4, "week": 3, "year": 2}
NO_SCALE = Scale(np.zeros(1), np.ones(1), np.zeros(1, dtype=bool))


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Numbers of one series, its index and names, and how a forecaster reads it."""

    values: np.ndarray  # (time, columns) float64, missing samples filled by the last before them
    kind: str  # "array", "table", "series" or "frame"
    index: Any  # a pandas Index; of arrays, their rows
    columns: Any = None  # names of a DataFrame's columns, the name of a Series
    gaps: np.ndarray | None = None  # (time, columns) values that no forecast is compared with; None without
    scale: Scale = NO_SCALE
    marks: np.ndarray | None = None  # (time + known steps, k): calendar and covariates

    @cached_property
    def step(self) -> float | None:
        """The median seconds between rows; None without dates."""
        seconds = _seconds(self.index)
        return None if seconds is None or len(seconds) < 2 else float(np.median(np.diff(seconds)))

    @cached_property
    def weekdays(self) -> bool:
        """Whether the last dates are one weekday after another."""
        return getattr(step_of(self.index[-64:]), "freqstr", "") == "B"

    @cached_property
    def clock(self) -> np.ndarray | None:
        """Dates in seconds since 1970 by the clock of the place (time,); None without dates."""
        return _seconds(self.index.tz_localize(None)) if isinstance(self.index, pd.DatetimeIndex) else None

    @property
    def offset(self) -> str:
        """Offset of that clock to UTC, as in "+05:00"; "" where the dates have none."""
        found = self.index[0].strftime("%z") if getattr(self.index, "tz", None) is not None else ""
        return f"{found[:3]}:{found[3:]}" if found else ""

    def future(self, steps: int) -> Any:
        """The index of the next `steps` rows: by months or weekdays if the last rows are, else by the median step."""
        index, step = self.index, step_of(self.index[-64:])
        if isinstance(index, pd.DatetimeIndex):
            if step is None and len(index) < 2:
                raise DataError(f"the series has {len(index)} dates, too few to know their step; set index.freq.")
            step = pd.Timedelta(seconds=self.step) if step is None else step
            return pd.date_range(index[-1], periods=steps + 1, freq=step, name=index.name)[1:]
        step = 1 if step is None else round(step) if index.dtype.kind in "iu" else step
        return pd.Index([index[-1] + k * step for k in range(1, steps + 1)], name=index.name)

    def past(self, steps: int) -> Any:
        """The index of the `steps` rows before the first."""
        if isinstance(self.index, pd.DatetimeIndex):
            back = step_of(self.index[:64]) or pd.Timedelta(seconds=self.step or 1.0)
            return pd.date_range(end=self.index[0], periods=steps + 1, freq=back)[:-1]
        step = step_of(self.index) or 1
        return pd.Index(self.index[0] + step * np.arange(-steps, 0))

    def with_step(self, other: TimeSeries) -> TimeSeries:
        """The same, one date alone with the step of another series."""
        if self.clock is None or len(self.index) > 1 or self.index.freq is not None:
            return self
        freq, name = step_of(other.index[-64:]), self.index.name
        return replace(self, index=pd.date_range(self.index[0], periods=1, freq=freq, name=name))

    def scaled(self) -> np.ndarray:
        """The values in units of their scale."""
        return self.scale.apply(self.values)

    @property
    def truth(self) -> np.ndarray:
        """The values, NaN where they were not observed."""
        return self.values if self.gaps is None else np.where(self.gaps, np.nan, self.values)

    def wrap(self, values: np.ndarray, levels: Sequence[float] | None = None) -> Any:
        """Values of the rows after the last one, (steps, columns) or with quantiles (steps, columns, levels), in the
        form of the series."""
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
        quantiles instead of y."""
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
                order = tables.column_order(one.columns, names, title)
                one = replace(one, values=one.values[:, order], columns=one.columns[order])
        series.append(one)
    if not series:
        raise ShapeError(f"{what}: empty, expected at least one series.")
    return series, form


def read_csv(
    path: Path, columns: list[str] | None = None, date_column: str | None = None, missing: str = "error",
    known: Sequence[str] = (),
) -> tuple[Any, str]:  # fmt: skip
    """A CSV file as a DataFrame whose index are its dates, or as a long table; and in words what of it was left out.

    Args:
        path: The file; its dates must rise from row to row, those of a long table are sorted.
        columns: Columns to forecast; None takes all but the date.
        date_column: Column with dates; None takes one that is named as dates are, or a first column of dates.
        missing: As in `LineForecaster`; empty fields are refused if it is "error", unless there are covariates.
        known: Columns of a long table that are read too, its covariates.
    """
    table, notes, gaps = tables.read_table(path), [], missing != "error" or bool(known)
    first, count = table.columns[0], np.arange(len(table))
    if first.startswith("Unnamed: ") and first not in (columns or ()) and np.array_equal(table[first], count):
        table, notes = table.drop(columns=first), ["the first column has no name and counts the rows; it is left out"]
    tables.need_columns(table, [*([date_column] if date_column else []), *(columns or []), *known], path)
    if set(LONG) <= set(table.columns):
        values, ds = tables.numbers(table, ["y", *known], path, gaps, REPAIR), table["ds"]
        ds = ds if pd.api.types.is_numeric_dtype(ds) else clock_index(*tables.parse_dates(ds, str(path), rising=False))
        others = ", ".join(str(name) for name in table.columns if name not in (*LONG, *known))
        notes += [f"of a long table unique_id, ds and y are read; left out: {others}"] if others else []
        read = dict(zip(["y", *known], values.T, strict=True))
        return pd.DataFrame({"unique_id": table["unique_id"], "ds": ds, **read}), "; ".join(notes)
    dated, index = True, None
    if date_column is None:
        date_column, dated = tables.guess_dates(table)
        if date_column is not None and not dated and len(table.columns) > 1:
            index = pd.Index(table[date_column].to_numpy(), name=date_column)
            if not index.is_monotonic_increasing or index.hasnans:
                notes, index = [*notes, f"column {date_column!r} holds numbers that do not rise; it is left out"], None
    names = columns or [name for name in table.columns if name != date_column]
    if len(table) == 0 or not names:
        raise DataError(f"{path}: no rows below the header, or no column beside the date; expected some to forecast.")
    for name in names if columns is None else ():
        if (words := table[name].dropna()).size and pd.to_numeric(words, errors="coerce").isna().all():
            kind, option = ("dates", "--date-column") if tables.is_date(words.iloc[0]) else ("text", "--target")
            raise DataError(f"{path}: column {name!r} holds {kind} ({words.iloc[0]!r}); choose a column by {option}, "
                            f"or{tables.SEVERAL}.")  # fmt: skip
    if date_column is not None and dated:
        index = clock_index(*tables.parse_dates(table[date_column], str(path)))
    values = tables.numbers(table, names, path, gaps, REPAIR)
    return pd.DataFrame(values, columns=names, index=index), "; ".join(notes)


def clock_index(seconds: np.ndarray, offset: str = "") -> Any:
    """Dates of seconds since 1970 by the clock of a place, and of its offset to UTC if there is one."""
    index = pd.DatetimeIndex((1e6 * seconds).round().astype("datetime64[us]"))
    return index.tz_localize(datetime.datetime.strptime(offset, "%z").tzinfo) if offset else index


def _split_groups(given: Any, what: str) -> dict[Any, Any]:
    """The series of a long table by their unique_id."""
    if not pd.api.types.is_numeric_dtype(given["ds"]):
        try:
            given = given.assign(ds=pd.to_datetime(given["ds"]))
        except (TypeError, ValueError) as reason:
            raise DataError(f"{what}: column 'ds' has text that is no date ({str(reason).split(',')[0]}).") from reason
    given = given.sort_values(["unique_id", "ds"], kind="stable")
    groups = {key: part.set_index("ds").drop(columns="unique_id") for key, part in given.groupby("unique_id")}
    return {key: part["y"] if list(part.columns) == ["y"] else part for key, part in groups.items()}


def split_covariates(given: Any, known: Sequence[str] | None = None, ahead: int = 0) -> tuple[Any, Any]:
    """A table up to its last observed row, and its columns `known` up to `ahead` rows beyond; None without such.

    None takes all columns of a long table but unique_id, ds and y.
    """
    long = isinstance(given, pd.DataFrame) and set(LONG) <= set(given.columns)
    known = [name for name in given.columns if name not in LONG] if known is None and long else list(known or ())
    if not known:
        return given, None
    by = list(LONG[:2]) if long else []
    given = given.sort_values(by, kind="stable") if long else given
    keys = given["unique_id"].to_numpy() if long else np.zeros(len(given))
    seen = given.drop(columns=[*known, *by]).notna().any(axis=1)
    later = ~seen[::-1].groupby(keys[::-1]).cummax()[::-1]
    wanted = ~later | (later.groupby(keys).cumsum() <= ahead)
    return given[~later].drop(columns=known), given[wanted][[*by, *known]]


def _read_one(given: Any, what: str, options: Any) -> TimeSeries:
    indexed = isinstance(given, pd.Series | pd.DataFrame)
    if isinstance(given, pd.DataFrame):
        _check_numbers(given, what)
    given = _regular(given, what, options) if indexed else given
    values = real_array(given, f"{what} (time,) or (time, columns)")
    if values.ndim not in (1, 2) or 0 in values.shape:
        raise ShapeError(f"{what} has shape {values.shape}, expected (time,) or (time, columns).")
    table, gaps = values.reshape(len(values), -1), None
    if options.missing in ("hold", "gap") and np.isnan(table).any():
        gaps = np.isnan(table) if options.missing == "gap" else None
        table = pd.DataFrame(table).ffill().bfill().to_numpy()
    tables.check_finite(table, f"{what}: row {{}}")
    if not indexed:
        return TimeSeries(table, "array" if values.ndim == 1 else "table", pd.RangeIndex(len(table)), gaps=gaps)
    kind, columns = ("series", given.name) if values.ndim == 1 else ("frame", given.columns)
    return TimeSeries(table, kind, given.index, columns, gaps)


def _check_numbers(given: Any, what: str) -> None:
    """Refuse words and dates among the columns of a DataFrame."""
    first = {name: next(iter(column.dropna()), 0) for name, column in given.items() if column.dtype.kind not in "iufb"}
    dates = [name for name, one in first.items() if isinstance(one, datetime.date) or tables.is_date(one)]
    if words := [name for name, one in first.items() if isinstance(one, str) and name not in dates]:
        name, word = words[0], first[words[0]]
        raise DataError(f"{what}: column {name!r} holds text ({word!r}); leave it out, or{tables.SEVERAL}.")
    if dates:
        raise DataError(f"{what}: column {dates[0]!r} holds dates; use series.set_index({dates[0]!r}).")


def column_names(series: Sequence[TimeSeries]) -> list | None:
    """Columns of the DataFrames among the series; None without one."""
    return next((list(one.columns) for one in series if one.kind == "frame"), None)


# -- the index ------------------------------------------------------------------------------------------------------


def _regular(given: Any, what: str, options: Any) -> Any:
    """The same rows on an index that rises by one step; repeated stamps and missing steps are repaired or refused."""
    given = given.dropna() if options.missing == "skip" else given
    index = given.index
    if isinstance(index, pd.MultiIndex):
        raise DataError(f"{what}: its index has {index.nlevels} levels; use .reset_index(), and{tables.SEVERAL}.")
    if not isinstance(index, pd.DatetimeIndex) and index.dtype.kind not in "iuf":
        raise DataError(f"{what}: its index is not dates or numbers ({index[0]!r} …); use series.index = "
                        "pd.to_datetime(series.index), .to_timestamp() or .reset_index(drop=True).")  # fmt: skip
    if not index.is_monotonic_increasing:
        raise DataError(f"{what}: its index does not rise; use .sort_index().")
    if not index.is_unique:
        if options.duplicates == "error":
            twice = index[index.duplicated()]
            raise DataError(f"{what}: {len(twice)} time stamps are repeated, the first is {twice[0]}; choose "
                            f"duplicates='mean' or 'last' (--duplicates mean), or{tables.SEVERAL}.")  # fmt: skip
        given = getattr(given.groupby(level=0), options.duplicates)()
        index = given.index
    if len(index) < 3 or options.missing == "skip" or step_of(index) is not None:
        return given
    if options.missing == "error":
        raise DataError(f"{what}: its index has gaps or no regular step; choose missing='hold', 'gap' or 'skip' "
                        "(--missing gap), or use .asfreq().")  # fmt: skip
    return _on_grid(given, what, options)


def _on_grid(given: Any, what: str, options: Any) -> Any:
    """Rows at uneven times on a grid, NaN where nothing was observed: each goes to its nearest point, and what falls
    together is what `duplicates` says. The grid is that of the months or years that fit all, or of a step."""
    index = given.index
    for freq in ("MS", "ME", "QS", "QE", "YS", "YE") if isinstance(index, pd.DatetimeIndex) else ():
        whole = pd.date_range(index[0], index[-1], freq=freq)
        if index.isin(whole).all():
            return given.reindex(whole.rename(index.name))
    start, step = _grid(index)
    exact = np.asarray((index - start) / step, dtype=np.float64)
    places = np.round(exact).astype(int)
    together, moved = len(places) - len(np.unique(places)), np.abs(exact - places).max()
    if together and options.duplicates == "error":
        raise DataError(f"{what}: on a grid of {step}, the median step, {together} rows fall together with another; "
                        "choose duplicates='mean' or 'last' (--duplicates mean), or resample the rows.")  # fmt: skip
    if moved > 1e-6:
        beside = f"; {together} fell together with another (duplicates={options.duplicates!r})" if together else ""
        empty = 100 * (1 - len(np.unique(places)) / (places[-1] - places[0] + 1))
        log.warning("%s: times are uneven; the rows were moved by up to %.2g of a step, onto a grid of %s of which "
                    "%.0f %% is empty%s", what, moved, step, empty, beside)  # fmt: skip
    given = given.groupby(places).last() if options.duplicates == "last" else given.groupby(places).mean()
    given = given.reindex(range(places[0], places[-1] + 1))
    return given.set_axis(pd.Index([start + k * step for k in given.index], name=index.name))


def _grid(index: Any) -> tuple[Any, Any]:
    """Start and step of a grid for uneven times: the step of most rows, else about the median one, of a usual length
    (of dates, or of seconds) if that is within a tenth.

    >>> _grid(pd.DatetimeIndex(["2024-01-01 00:00:01", "2024-01-01 00:01:02", "2024-01-01 00:01:59"]))
    (Timestamp('2024-01-01 00:00:00'), Timedelta('0 days 00:01:00'))
    """
    steps = index[1:] - index[:-1]
    counts = steps.value_counts()
    if 2 * counts.iloc[0] > len(steps):
        return index[0], counts.index[0]
    multiples = np.maximum(1, np.round(np.asarray(steps / steps.sort_values()[len(steps) // 2], dtype=np.float64)))
    step, dates = (index[-1] - index[0]) / multiples.sum(), isinstance(index, pd.DatetimeIndex)
    usual = [unit * k for unit in (0.001, 0.01, 0.1, 1.0, 60.0) for k in (1, 2, 5, 10, 15, 20, 30)]
    usual += [3600.0 * k for k in (1, 2, 3, 4, 6, 8, 12, 24, 7 * 24)]
    ratio, best = min((abs(one / (step.total_seconds() if dates else step) - 1), one) for one in usual)
    if ratio > 0.1:
        return index[0], step
    step = pd.Timedelta(seconds=best) if dates else best
    return index[0].round(step) if dates else step * round(index[0] / step), step


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


def check_alike(series: Sequence[TimeSeries], first: TimeSeries) -> None:
    """Refuse a series with other columns, another step, or dates with a time zone where the first has none."""
    step = first.step
    for at, one in enumerate(series):
        columns, wanted = one.values.shape[1], first.values.shape[1]
        if columns != wanted:
            raise ShapeError(f"series {at} has {columns} columns, expected {wanted}; a series is (time, columns).")
        if (seconds := _seconds(one.index)) is None or step is None:
            continue
        if (one.index.tz is None) != (first.index.tz is None):
            raise DataError(f"series {at} has time zone {one.index.tz}, that of fit {first.index.tz}; use tz_localize.")
        tables.same_step(seconds, step, f"series {at}")


# -- which rows do what -----------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Rows of each series: training ends, choosing ends; the rest calibrates."""

    train_end: np.ndarray  # (series,)
    stop_end: np.ndarray  # (series,) equal to train_end where nothing is set aside to choose


def split_series(series: Sequence[TimeSeries], horizon: int, fraction: Any, split: Any, keys: tuple = ()) -> Split:
    """Rows to train, to choose and to calibrate; see `LineForecaster`. Messages name a series by its key."""
    lengths = np.array([len(one.values) for one in series])
    if split is None:
        fraction = check_number(fraction, "validation_fraction", 1)
        held = np.maximum(np.round(fraction * lengths).astype(int), horizon if fraction else 0)
        half = held // 2 if fraction and (held >= 4 * horizon).all() else np.zeros_like(held)
        found = Split(lengths - held, lengths - held + half)
    else:
        found = Split(*_read_split(series, lengths, split).T)
    if found.train_end[at := int(found.train_end.argmin())] <= horizon:
        name = f"series {keys[at]!r}" if keys else f"series {at}" if len(series) > 1 else "the series"
        raise DataError(f"{name} has {lengths[at]} steps, {max(0, found.train_end[at])} to train on, expected more "
                        f"than the horizon of {horizon}; lower it, or validation_fraction, or drop it.")  # fmt: skip
    return found


def _read_split(series: Sequence[TimeSeries], lengths: np.ndarray, split: Any) -> np.ndarray:
    """Rows at which training and choosing end. (series, 2)"""
    expected = "expected two counts, two fractions, or the dates where validation and calibration begin"
    if not isinstance(split, list | tuple) or len(split) != 2:
        raise OptionError(f"split is {split!r}, {expected}.")
    if all(map(is_int, split)):
        ends = np.cumsum(np.broadcast_to(split, (len(lengths), 2)), axis=1)
    elif all(isinstance(one, float) for one in split):
        ends = np.round(np.cumsum(split) * lengths[:, None] + 1e-9).astype(int)
    else:
        if any(one.step is None for one in series):
            raise DataError(f"split is {split!r}, but the series have no dates; give counts or fractions.")
        try:
            dates = [pd.Timestamp(one) for one in split]
        except (TypeError, ValueError) as reason:
            raise OptionError(f"split is {split!r}, {expected} ({reason}).") from reason
        zone = series[0].index.tz
        dates = [one.tz_localize(zone) if one.tz is None and zone is not None else one for one in dates]
        ends = np.array([one.index.searchsorted(dates) for one in series])
    if (ends < 1).any() or (ends[:, 1] < ends[:, 0]).any() or (ends > lengths[:, None]).any():
        raise OptionError(f"split is {split!r}, which ends at rows {ends[0].tolist()} of {lengths[0]}; {expected}.")
    return ends


# -- the calendar -----------------------------------------------------------------------------------------------------


def cycles_of(step: float | None, steps: int) -> tuple[str, ...]:
    """Cycles of the calendar longer than a step (seconds) that `steps` rows see twice; one seen less is a trend.

    >>> cycles_of(3600.0, 500)
    ('day', 'week')
    """
    step = step or math.inf
    return tuple(name for name, length in CYCLES.items() if step < length <= step * steps / 2)


def calendar(index: Any, cycles: tuple[str, ...], zone: Any) -> np.ndarray:
    """Waves of the place in each cycle, by the clock of a time zone. (time, k)"""
    index = index if index.tz is None else index.tz_convert(zone)
    return waves(index.tz_localize(None).as_unit("us").asi8 / 1e6, {name: HARMONICS[name] for name in cycles})
