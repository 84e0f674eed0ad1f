"""Your own CSV file with a row for each time step, to forecast. `tables.py` reads it, `windows.py` cuts windows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wavessm.data.info import DataSet
from wavessm.data.tables import guess_dates, read_table
from wavessm.data.task import OwnOptions, Recipe, Task
from wavessm.data.windows import read_series, split_rows, warn_of_gaps, window_sets

log = logging.getLogger("wavessm.data")
CONTEXT = 96


@dataclass(frozen=True)
class CsvOptions(OwnOptions):
    """The first 70 % of the rows train, the next 10 % validate, the last 20 % test; see `window_sets`."""

    path: str = ""
    """CSV file with a row for each time step."""
    target: str | None = None
    """Column to forecast; None forecasts all."""
    horizon: int = 24
    """Steps to forecast."""
    context: int | None = None
    """Steps the model sees; None takes 96 (less of a short table), a linear forecast two horizons or 14 seasons."""
    date_column: str | None = None
    """Column with dates; None takes one named date, datetime, timestamp or time, or a first column of dates."""
    calendar: Literal["table", "numbers", "waves", "waves-year"] = "waves"
    """Calendar as embedded tables, as real numbers, as waves of day and week, or of day, week and year."""
    future_calendar: bool = True
    """Give the model the calendar of the horizon too; it is known."""

    def load(self, seed: int) -> DataSet:
        path = self.place()
        columns, dates = None if self.target is None else [self.target], self.date_column
        if dates is None:
            table = read_table(path)
            dates, dated = guess_dates(table)
            others = [name for name in table.columns if name != dates]
            if dates is not None and not dated and others:
                log.warning("%s: column %r holds numbers, not dates; it is left out", path, dates)
                columns, dates = columns or others, None
        series = read_series(path, columns, dates)
        warn_of_gaps(series)
        parts = split_rows(len(series.values))
        context = self.context or max(1, min(CONTEXT, (parts["train"][1] - self.horizon) // 2))
        return window_sets("csv", series, parts, context, self.horizon, self.calendar, self.future_calendar)

    def files(self) -> list[Path]:
        return [self.place()]


_BEST = Recipe(
    {"d_model": 64, "n_layers": 2, "dropout": 0.25, "instance_norm": "last"},
    {"lr": 5e-3, "batch_size": 50, "epochs": 10, "schedule": "constant", "warmup": 0, "patience": 10},
)
TASKS = (Task("csv", CsvOptions(), {"best": _BEST}, "path", closed_form="linear"),)
