"""From rows in time to a forecasting set: calendar marks, scaling, chronological parts, windows.

Place in the pipeline: `tables.py` reads; `datasets/forecast.py` and `datasets/csv.py` end in `window_sets`.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wavessm.data.info import DataInfo, DataSet
from wavessm.data.tables import import_pandas, need_columns, numbers, parse_dates, read_table
from wavessm.errors import DataError

if TYPE_CHECKING:
    import torch

log = logging.getLogger("wavessm.data")
Parts = dict[str, tuple[int, int]]  # part -> first row, row after the last


@dataclasses.dataclass(frozen=True)
class Series:
    """Rows in time."""

    values: np.ndarray  # (rows, columns) float64
    columns: tuple[str, ...]
    seconds: np.ndarray | None  # (rows,) int64 since 1970 by the clock of the place; None without dates
    source: str  # for messages
    offset: str = ""  # of that clock to UTC, where the file has it

    @property
    def step(self) -> float | None:
        """Seconds between rows (the median, where they differ)."""
        return None if self.seconds is None or len(self.seconds) < 2 else float(np.median(np.diff(self.seconds)))


def read_series(path: Path, columns: list[str] | None, date_column: str | None) -> Series:
    """Read rows of a CSV file; columns=None takes all but the date. Dates must rise from row to row."""
    table = read_table(path)
    need_columns(table, [*([date_column] if date_column else []), *(columns or [])], path)
    names = columns or [name for name in table.columns if name != date_column]
    if len(table) == 0 or not names:
        raise DataError(f"{path}: no rows below the header, or no column beside the date; expected some to forecast.")
    seconds, offset = (None, "") if date_column is None else parse_dates(table[date_column], str(path))
    return Series(numbers(table, names, path), tuple(names), seconds, str(path), offset)


def warn_of_gaps(series: Series) -> None:
    """Log a warning where rows are not evenly spaced in time."""
    if series.seconds is not None and np.unique(np.diff(series.seconds)).size > 1:
        log.warning("%s: rows are not evenly spaced in time; they are taken as if they were", series.source)


def make_marks(seconds: np.ndarray, calendar: str, minutes: bool) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return calendar marks (rows, k) of seconds (rows,) since 1970, and the table sizes of those that are embedded.

    "table": month, day, weekday, hour and, with `minutes`, quarter of the hour, long; "numbers": minute where wanted,
    hour, weekday, day, day of year, each in [-0.5, 0.5]; "waves": sines and cosines of the day (four harmonics) and the
    week (three), 14 in all; "waves-year": with the first of the year, and that times the first two of the day, 24 in
    all: a mean for every hour and season is then linear in them.
    """
    import torch

    if calendar.startswith("waves"):
        return torch.from_numpy(_waves(seconds, year=calendar == "waves-year")), ()
    now = import_pandas().DatetimeIndex(seconds.astype("datetime64[s]"))
    if calendar == "table":
        fields = [now.month, now.day, now.dayofweek, now.hour]
        sizes: tuple[int, ...] = (13, 32, 7, 24)
        if minutes:
            fields, sizes = [*fields, now.minute // 15], (*sizes, 4)
        return torch.from_numpy(np.stack(fields, axis=1).astype(np.int64)), sizes
    real = [now.hour / 23, now.dayofweek / 6, (now.day - 1) / 30, (now.dayofyear - 1) / 365]
    if minutes:
        real = [now.minute / 59, *real]
    return torch.from_numpy((np.stack(real, axis=1) - 0.5).astype(np.float32)), ()


def _waves(seconds: np.ndarray, year: bool) -> np.ndarray:
    def harmonics(period: float, count: int) -> list[np.ndarray]:
        angle = 2 * np.pi * np.remainder(seconds / period, 1.0)
        return [wave(k * angle) for k in range(1, count + 1) for wave in (np.sin, np.cos)]

    day, week = harmonics(86_400, 4), harmonics(604_800, 3)
    season = harmonics(365.2425 * 86_400, 1) if year else []
    return np.stack([*day, *week, *season, *(a * b for a in season for b in day[:4])], axis=1).astype(np.float32)


def split_rows(rows: int) -> Parts:
    """Return the rows of each part: the first 70 %, the next 10 % and the last 20 %."""
    train, test = int(0.7 * rows), int(0.2 * rows)
    return {"train": (0, train), "val": (train, rows - test), "test": (rows - test, rows)}


def window_sets(
    name: str, series: Series, parts: Parts, context: int, horizon: int, calendar: str, future_calendar: bool
) -> DataSet:
    """Cut windows of stride 1 in each part; validation and test reach `context` rows back for their first context.

    Columns are scaled by mean and population standard deviation of the training rows. With `future_calendar` a model is
    given the marks (see `make_marks`) of the horizon too.
    """
    import torch

    from wavessm.data.source import Windows

    train = series.values[slice(*parts["train"])]
    mean, std = train.mean(axis=0), train.std(axis=0)
    for k in np.flatnonzero(std <= 1e-12 * np.abs(mean)):
        raise DataError(f"{series.source}: column {series.columns[k]!r} is constant ({train[0, k]:g}) over the "
                        f"{len(train)} training rows; there is nothing to scale or learn, leave it out.")  # fmt: skip
    scaled = torch.from_numpy(((series.values - mean) / std).astype(np.float32))
    marks: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()
    if series.seconds is not None:
        marks, sizes = make_marks(series.seconds, calendar, minutes=(series.step or 3600) < 3600)
    columns = tuple(range(len(series.columns)))
    sources = []
    for part, (begin, stop) in parts.items():
        first = begin if part == "train" else begin - context
        if stop - first < context + horizon or first < 0:
            raise DataError(f"{series.source}: the {part} part has {stop - begin} rows, too few for context {context} "
                            f"+ horizon {horizon}; give more rows, or a shorter context or horizon.")  # fmt: skip
        starts = torch.arange(first, stop - context - horizon + 1)
        sources.append(Windows(scaled, marks, context, horizon, columns, starts, future_calendar))
    scale = (tuple(mean.tolist()), tuple(std.tolist()))
    info = DataInfo(
        "forecast", len(columns), len(columns), context, horizon=horizon, columns=series.columns,
        channels=series.columns, scale=scale, target_scale=scale, mark_sizes=sizes,
        mark_width=0 if marks is None or calendar == "table" else marks.shape[1], step=series.step,
        offset=series.offset,
    )  # fmt: skip
    return DataSet(name, sources[0], sources[1], sources[2], info)
