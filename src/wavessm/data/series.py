"""From a table of rows to windows: dates, calendar marks, scaling and chronological parts.

Place in the pipeline: `forecast` (published series) and `own` (a CSV file) both end in `window_sets`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from wavessm.data.dates import parse_dates
from wavessm.data.source import DataInfo, DataSet, Windows
from wavessm.data.tables import need_columns, numbers, read_table
from wavessm.errors import DataError, OptionError, check_int

Parts = dict[str, tuple[int, int]]  # part -> first row, row after the last
FARTHEST = 1e18  # standard deviations; the square of more is not finite in float32


@dataclasses.dataclass(frozen=True)
class Series:
    """Rows in time. values: (rows, columns) float64; seconds: (rows,) int64 since 1970, or None without dates."""

    values: np.ndarray
    columns: tuple[str, ...]
    seconds: np.ndarray | None  # by the clock of the place
    source: str  # for messages
    offset: str = ""  # of that clock to UTC, where the file says it

    @property
    def step(self) -> float | None:
        """Seconds between rows (the median, where they differ)."""
        return None if self.seconds is None or len(self.seconds) < 2 else float(np.median(np.diff(self.seconds)))

    def only(self, columns: list[str]) -> Series:
        """The same rows with these columns."""
        chosen = [self.columns.index(name) for name in columns]
        return dataclasses.replace(self, values=self.values[:, chosen], columns=tuple(columns))


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """How windows are cut. timeenc 0: whole marks to be embedded; 1: real marks in [-0.5, 0.5]; 2, 3: waves.

    With `eval_stamp` the marks of the horizon are given too (the calendar of the future is known).
    """

    seq_len: int
    horizon: int
    timeenc: int = 0
    eval_stamp: bool = False

    def __post_init__(self) -> None:
        check_int(self.seq_len, "seq_len", 1)
        check_int(self.horizon, "horizon", 1)
        if self.timeenc not in (0, 1, 2, 3):
            raise OptionError(
                f"timeenc is {self.timeenc!r}, expected 0 (marks to embed), 1 (real marks), 2 (waves of day and week) "
                "or 3 (of the year too)."
            )


def read_series(path: Path, columns: list[str] | None, date_column: str | None) -> Series:
    """Rows of a CSV file; columns=None takes all but the date. Dates must rise from row to row."""
    table = read_table(path)
    need_columns(table, [*([date_column] if date_column else []), *(columns or [])], path)
    if len(table) == 0:
        raise DataError(f"{path}: no rows below the header.")
    names = columns or [str(name) for name in table.columns if name != date_column]
    if not names:
        raise DataError(f"{path}: no column beside the date; expected at least one to forecast.")
    seconds, offset = (None, "") if date_column is None else parse_dates(table[date_column], path)
    return Series(numbers(table, names, path), tuple(names), seconds, str(path), offset)


def calendar(seconds: np.ndarray) -> dict[str, np.ndarray]:
    """Month 1-12, day 1-31, weekday 0-6 (Monday 0), hour, minute, day of year 1-366; each (rows,) int64.

    >>> now = calendar(np.array(["2016-07-01T13:45"], "datetime64[s]").astype(np.int64))
    >>> {name: int(value[0]) for name, value in now.items()}
    {'month': 7, 'day': 1, 'weekday': 4, 'hour': 13, 'minute': 45, 'yearday': 183}
    """
    moments = seconds.astype("datetime64[s]")
    days, months, years = (moments.astype(f"datetime64[{unit}]") for unit in "DMY")
    return {
        "month": months.astype(np.int64) % 12 + 1,
        "day": (days - months.astype("datetime64[D]")).astype(np.int64) + 1,
        "weekday": (days.astype(np.int64) + 3) % 7,  # 1970 began on a Thursday
        "hour": seconds // 3600 % 24,
        "minute": seconds // 60 % 60,
        "yearday": (days - years.astype("datetime64[D]")).astype(np.int64) + 1,
    }


def make_marks(seconds: np.ndarray, timeenc: int, minutes: bool) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Marks (rows, k) and the table sizes of those to embed: month, day, weekday, hour and, with `minutes`, minute//15
    (timeenc 0, long); or minute where wanted, hour, weekday, day, day of year, each in [-0.5, 0.5] (timeenc 1, float);
    or waves (timeenc 2 and 3, float), see `waves`.
    """
    if timeenc >= 2:
        return torch.from_numpy(waves(seconds, year=timeenc == 3)), ()
    now = calendar(seconds)
    if timeenc == 0:
        fields = [now["month"], now["day"], now["weekday"], now["hour"]]
        sizes: tuple[int, ...] = (13, 32, 7, 24)
        if minutes:
            fields, sizes = [*fields, now["minute"] // 15], (*sizes, 4)
        return torch.from_numpy(np.stack(fields, axis=1)), sizes
    real = [now["hour"] / 23, now["weekday"] / 6, (now["day"] - 1) / 30, (now["yearday"] - 1) / 365]
    if minutes:
        real = [now["minute"] / 59, *real]
    return torch.from_numpy((np.stack(real, axis=1) - 0.5).astype(np.float32)), ()


def waves(seconds: np.ndarray, year: bool) -> np.ndarray:
    """Sines and cosines of the day (four harmonics) and the week (three), (rows, 14) float32; with the year, its first
    and that times the first two of the day, (rows, 24): a mean for every hour and season is then linear in them.
    """

    def turns(period: float, harmonics: int) -> list[np.ndarray]:
        angle = 2 * np.pi * np.remainder(seconds / period, 1.0)
        return [wave(k * angle) for k in range(1, harmonics + 1) for wave in (np.sin, np.cos)]

    day, week = turns(86_400, 4), turns(604_800, 3)
    season = turns(365.2425 * 86_400, 1) if year else []
    return np.stack([*day, *week, *season, *(a * b for a in season for b in day[:4])], axis=1).astype(np.float32)


def window_sets(name: str, series: Series, parts: Parts, options: WindowOptions) -> DataSet:
    """Windows of stride 1 in each part; validation and test reach `seq_len` rows back for their first context.

    Columns are scaled by mean and population standard deviation of the training rows.
    """
    seq_len, horizon = options.seq_len, options.horizon
    for part, (begin, stop) in parts.items():
        early = begin if part == "train" else begin - seq_len
        if stop - early < seq_len + horizon or early < 0:
            raise DataError(
                f"{series.source}: the {part} part has {stop - begin} rows, too few for context {seq_len} + horizon "
                f"{horizon}; give more rows, or a shorter context or horizon."
            )
    mean, std = _scale(series, parts["train"])
    away = (series.values - mean) / std
    if (far := np.argwhere(np.abs(away) > FARTHEST)).size:
        row, k = far[0]
        raise DataError(
            f"{series.source}: {series.values[row, k]:g} in column {series.columns[k]!r}, row {row + 1}, is more than "
            f"{FARTHEST:g} standard deviations from the training rows; mend or drop it."
        )
    scaled = torch.from_numpy(away.astype(np.float32))
    marks: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()
    if series.seconds is not None:
        marks, sizes = make_marks(series.seconds, options.timeenc, minutes=(series.step or 3600) < 3600)
    columns = tuple(range(len(series.columns)))
    sources = {}
    for part, (begin, stop) in parts.items():
        begin = begin if part == "train" else begin - seq_len
        starts = torch.arange(begin, stop - seq_len - horizon + 1)
        sources[part] = Windows(scaled, marks, seq_len, horizon, columns, starts, options.eval_stamp)
    scale = (tuple(mean.tolist()), tuple(std.tolist()))
    info = DataInfo(
        "forecast",
        d_input=len(columns),
        d_output=len(columns),
        length=seq_len,
        horizon=horizon,
        columns=series.columns,
        channels=series.columns,
        scale=scale,
        target_scale=scale,
        mark_sizes=sizes,
        mark_width=0 if marks is None or options.timeenc == 0 else marks.shape[1],
        step=series.step,
        offset=series.offset,
    )
    return DataSet(name, sources["train"], sources["val"], sources["test"], info)


def _scale(series: Series, rows: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (columns,) of the rows; constant columns are refused."""
    first, end = rows
    mean, std = series.values[first:end].mean(axis=0), series.values[first:end].std(axis=0)
    if (flat := np.flatnonzero(std <= 1e-12 * np.abs(mean))).size:
        column, value = series.columns[flat[0]], series.values[first, flat[0]]
        raise DataError(f"{series.source}: column {column!r} is constant ({value:g}) over the {end - first} training "
                        f"rows; there is nothing to scale or learn, leave it out.")  # fmt: skip
    return mean, std
