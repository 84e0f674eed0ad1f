"""Your own CSV file with a row for each time step, to forecast. `tables.py` reads it, `windows.py` cuts windows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wavessm.data.task import DataOptions, Recipe, Task, data_path
from wavessm.errors import DataError

if TYPE_CHECKING:
    from wavessm.data.source import DataSet

log = logging.getLogger("wavessm.data")


@dataclass(frozen=True)
class CsvOptions(DataOptions):
    """Options of the data."""

    path: str = ""
    """CSV file with a row for each time step."""
    target: str | None = None
    """Column to forecast; None forecasts all."""
    horizon: int = 24
    """Steps to forecast."""
    context: int = 96
    """Steps the model sees."""
    date_column: str | None = None
    """Column with dates, for the calendar; None takes one named date, datetime, timestamp or time."""
    calendar: Literal["table", "numbers", "waves", "waves-year"] = "waves"
    """Calendar as embedded tables, as real numbers, as waves of day and week, or of day, week and year."""
    future_calendar: bool = True
    """Give the model the calendar of the horizon too; it is known."""

    def load(self, seed: int) -> DataSet:
        return load_csv(
            data_path(self.path, "path"),
            target=self.target,
            horizon=self.horizon,
            context=self.context,
            date_column=self.date_column,
            calendar=self.calendar,
            future_calendar=self.future_calendar,
        )

    def checksum(self) -> str:
        from wavessm.data.cases import checksum

        return checksum(Path(self.path).parent, [Path(self.path)])


_BEST = Recipe(
    {"d_model": 64, "n_layers": 2, "dropout": 0.25, "instance_norm": "last"},
    {"lr": 5e-3, "batch_size": 50, "epochs": 10, "schedule": "constant", "warmup": 0, "patience": 10},
)
TASKS = (Task("csv", CsvOptions(), {"best": _BEST}, "path"),)


def load_csv(
    path: str | Path,
    target: str | None = None,
    horizon: int = 24,
    context: int = 96,
    date_column: str | None = None,
    calendar: str = "table",
    future_calendar: bool = False,
) -> DataSet:
    """Load a table of rows in time. The first 70 % of the rows train, the next 10 % validate, the last 20 % test.

    Args:
        path: the CSV file.
        target: column to forecast; None forecasts all.
        horizon: steps to forecast.
        context: steps the model sees.
        date_column: None takes a column named date, datetime, timestamp or time (in any case) where there is one; if
            it holds numbers alone, it is left out. Without dates there is no calendar.
        calendar: "table", "numbers", "waves" (of day and week) or "waves-year".
        future_calendar: give the model the calendar of the horizon too.
    """
    import numpy as np

    from wavessm.data.tables import guess_dates, read_table
    from wavessm.data.windows import read_series, window_sets

    path = Path(path)
    columns = None if target is None else [target]
    if date_column is None:
        table = read_table(path)
        date_column, dated = guess_dates(table)
        others = [str(name) for name in table.columns if name != date_column]
        if date_column is not None and not dated and others:
            log.warning(
                "%s: column %r holds numbers, not dates; it is left out and rows have no dates", path, date_column
            )
            columns, date_column = columns or others, None
    series = read_series(path, columns, date_column)
    if series.seconds is not None and np.unique(np.diff(series.seconds)).size > 1:
        log.warning("%s: rows are not evenly spaced in time; they are taken as if they were", path)
    rows = len(series.values)
    if rows < context + horizon:
        raise DataError(f"{path}: {rows} rows, fewer than context {context} + horizon {horizon}; give more rows, or a "
                        f"shorter context or horizon.")  # fmt: skip
    train, test = int(0.7 * rows), int(0.2 * rows)
    parts = {"train": (0, train), "val": (train, rows - test), "test": (rows - test, rows)}
    return window_sets("csv", series, parts, context, horizon, calendar, future_calendar)
