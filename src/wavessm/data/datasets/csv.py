"""Your own CSV file with a row for each time step, to forecast. `series.py` reads it, `windows.py` cuts windows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from wavessm.data.info import DataSet
from wavessm.data.tables import is_number, read_table
from wavessm.data.task import OwnOptions, Recipe, Task
from wavessm.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("wavessm.data")
CONTEXT = 96


@dataclass(frozen=True)
class CsvOptions(OwnOptions):
    """A table with a column of dates, or a long table with the columns unique_id, ds and y, in time order."""

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
    split: tuple[str, str] = ("0.7", "0.1")
    """Training and validation rows as two fractions or two counts, or the dates where validation and test begin."""
    duplicates: Literal["error", "mean", "last"] = "error"
    """Repeated time stamps: refused, their mean, or the last of them."""
    missing: Literal["error", "hold", "gap", "skip"] = "error"
    """Missing rows, uneven times and empty fields: refused; the value before, as if it were observed; the value before
    in contexts, with no forecast of what was not observed fitted or scored; left out, the rest taken as even."""
    calendar: Literal["none", "table", "numbers", "waves", "waves-year"] = "waves"
    """Calendar as embedded tables, as real numbers, as waves of day and week, or of day, week and year; a linear
    forecast has waves of those that the training rows show twice, unless "none"."""
    future_calendar: bool = True
    """Give the model the calendar of the horizon too; it is known."""
    memory: bool = True
    """Let a linear forecast look further back than its context by running means of the season."""
    season: int | None = None
    """Steps in a season, for a linear forecast; None takes that of the dates."""
    quantiles: tuple[float, ...] | None = None
    """Levels of a linear forecast beside the forecast itself; None takes 0.1 and 0.9 where the rows are enough."""
    covariates: tuple[str, ...] | None = None
    """Columns known beforehand (prices, holidays), for a linear forecast: also of the steps to forecast, in rows at the
    end of a file whose other columns are empty."""
    static: str | None = None
    """CSV file of numbers and words by unique_id, for a linear forecast: how a series starts that fit has not seen."""
    refit: bool = True
    """After test scores and quantiles, fit the linear forecast once more on all rows."""

    earlier: ClassVar[dict[str, Any]] = {"missing": "skip"}

    def frame(self, path: Path | None = None, columns: list[str] | None = None, ahead: int = 0) -> tuple[Any, Any, Any]:
        """The table, or another file with its columns, by its dates, or as a long table; its covariates, those of
        `ahead` more rows too, and its static features, None where there are none."""
        from wavessm.data.series import read_csv, split_covariates

        path, known = path or self.place(), list(self.covariates or ())
        columns = columns or (None if self.target is None else [self.target])
        frame, left_out = read_csv(path, columns and columns + known, self.date_column, self.missing, known)
        if left_out:
            log.warning("%s: %s", path, left_out)
        return *split_covariates(frame, known, ahead), self.static and read_table(Path(self.static))

    def line_options(self, frame: pd.DataFrame) -> dict[str, Any]:
        """These options as those of a `LineForecaster`."""
        names = ("horizon", "context", "duplicates", "missing", "memory", "season", "quantiles", "refit")
        split = tuple(int(one) if one.isdigit() else float(one) if is_number(one) else one for one in self.split)
        return {name: getattr(self, name) for name in names} | {"split": split, "calendar": self.calendar != "none"}

    def load(self, seed: int) -> DataSet:
        from wavessm.data.series import read_series, split_series
        from wavessm.data.windows import window_sets

        frame, *_ = self.frame()
        series, form = read_series(frame, str(self.place()), self)
        if form.kind == "long" or self.covariates or self.static:
            raise OptionError(f"{self.path}: long tables and covariates are forecast in closed form; leave training "
                              "options out, or use WaveSSMForecaster(method='gradient').")  # fmt: skip
        split = split_series(series, self.horizon, 0.0, self.line_options(frame)["split"])
        train, val, rows = int(split.train_end[0]), int(split.stop_end[0]), len(series[0].values)
        parts = {"train": (0, train), "val": (train, val), "test": (val, rows)}
        context = self.context or max(1, min(CONTEXT, (train - self.horizon) // 2))
        return window_sets("csv", series[0], str(self.place()), parts, context, self)

    def files(self) -> list[Path]:
        return [self.place()]


_BEST = Recipe(
    {"d_model": 64, "n_layers": 2, "dropout": 0.25, "instance_norm": "last", "direct": True},
    {"lr": 5e-3, "batch_size": 50, "epochs": 10, "schedule": "constant", "warmup": 0, "patience": 10,
     "direct_start": "ridge"},
)  # fmt: skip
TASKS = (Task("csv", CsvOptions(), {"best": _BEST}, "path", closed_form="linear"),)
