"""Informer's forecasting sets: ETTh1, ETTh2, ETTm1, Weather (WTH) and ECL, with their parts and context lengths.

Multivariate means all columns in and out; univariate the target alone. ETT is cut by "months" of 30 days (12, 4, 4),
the others at 70 and 80 per cent of the rows. See `windows.py` for scaling and marks, `baselines.py` for what to beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wavessm.data.info import DataSet
from wavessm.data.published import Published
from wavessm.data.tables import need_columns
from wavessm.data.task import PublishedOptions, Recipe, Task, data_root
from wavessm.data.windows import Parts, window_sets
from wavessm.errors import DataError, OptionError, unknown_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ForecastSet:
    """A published series. month_rows: rows in 30 days where the parts are months, else 0."""

    file: str  # with all columns
    target: str
    lengths: dict[int, tuple[int, int]]  # horizon -> context of the univariate and of the multivariate setting
    published: str
    cases: tuple[int, int, int]  # windows of the target alone with the shortest horizon
    month_rows: int = 0
    sha256: str | None = None
    univariate_file: tuple[str, str] = ("", "")  # a file with one column only, and its name


_ETT = "https://github.com/zhouhaoyi/ETDataset"
_INFORMER = "https://github.com/zhouhaoyi/Informer2020 (its README links the archive)"

SETS = {
    "ETTh1": ForecastSet(
        "ETTh1.csv", "OT",
        {24: (720, 48), 48: (720, 96), 168: (720, 168), 336: (720, 168), 720: (720, 336)}, _ETT,
        (7_897, 2_857, 2_857), 30 * 24, "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    ),
    "ETTh2": ForecastSet(
        "ETTh2.csv", "OT",
        {24: (48, 48), 48: (96, 96), 168: (336, 336), 336: (336, 336), 720: (336, 720)}, _ETT,
        (8_569, 2_857, 2_857), 30 * 24, "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
    ),
    "ETTm1": ForecastSet(
        "ETTm1.csv", "OT",
        {24: (96, 672), 48: (96, 96), 96: (384, 384), 288: (384, 672), 672: (384, 672)}, _ETT,
        (34_441, 11_497, 11_497), 30 * 24 * 4, "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
    ),
    "WTH": ForecastSet(
        "WTH.csv", "WetBulbCelsius",
        {24: (720, 168), 48: (720, 96), 168: (168, 336), 336: (336, 720), 720: (720, 720)}, _INFORMER,
        (23_801, 3_485, 6_989),
    ),
    "ECL": ForecastSet(
        "ECL.csv", "MT_320", {horizon: (384, 384) for horizon in (48, 168, 336, 720, 960)}, _INFORMER,
        (17_981, 2_585, 5_213), univariate_file=("ECL_univariate.csv", "OT"),
    ),
}  # fmt: skip
ALIASES = {"weather": "WTH", **{name.lower(): name for name in SETS}}


@dataclass(frozen=True)
class ForecastOptions(PublishedOptions):
    """Windows of a published series, scaled by the training rows; MSE and MAE are reported in that scale."""

    dataset: str = "ETTh1"
    """ETTh1, ETTh2, ETTm1, WTH (weather) or ECL."""
    horizon: int = 24
    """Steps to forecast."""
    variables: Literal["uni", "multi"] = "uni"
    """The target alone, or all columns in and out."""
    context: int | None = None
    """Steps of context; None takes Informer's for the set and horizon."""
    calendar: Literal["table", "numbers", "waves", "waves-year"] = "table"
    """Calendar as embedded tables, as real numbers, as waves of day and week, or of day, week and year."""
    future_calendar: bool = False
    """Give the model the calendar of the horizon too; it is known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dataset", ALIASES.get(self.dataset.lower(), self.dataset))

    def files(self) -> list[Path]:
        return [find_series(data_root(self.root), self.dataset, multivariate=False)[0]]

    def frame(self, path: Path | None = None, columns: list[str] | None = None, ahead: int = 0) -> tuple[Any, Any, Any]:
        """The rows of all three parts by their dates, the target last, or of another file; nothing is beside them."""
        from wavessm.data.series import read_csv

        if path is not None:
            return read_csv(path, columns)[0], None, None
        path, target = find_series(data_root(self.root), self.dataset, self.variables == "multi")
        frame, _ = read_csv(path, [target] if self.variables == "uni" else None, "date")
        need_columns(frame, [target], path)
        columns = [*(name for name in frame.columns if name != target), target]
        return frame[columns][: self._parts(frame)["test"][1]], None, None

    def line_options(self, frame: pd.DataFrame) -> dict[str, Any]:
        """These options as those of a `LineForecaster`: nothing is fitted on validation or test rows."""
        (_, train), (_, val), _ = self._parts(frame).values()
        own = {"horizon": self.horizon, "context": self.context, "missing": self.missing, "refit": False}
        return own | {"split": (train, val - train)}

    def load(self, seed: int) -> DataSet:
        from wavessm.data.series import read_series

        if self.dataset not in SETS:
            raise unknown_name("forecasting set", self.dataset, SETS)
        known, multi = SETS[self.dataset], self.variables == "multi"
        if self.context is None and self.horizon not in known.lengths:
            what = f"no context length is published for horizon {self.horizon}"
            raise OptionError(f"{self.dataset}: {what} (only {', '.join(map(str, known.lengths))}); give context.")
        context, source = self.context or known.lengths[self.horizon][multi], str(self.files()[0])
        frame, *_ = self.frame()
        (series,), _ = read_series(frame, source, self)
        return window_sets(self.dataset, series, source, self._parts(frame), context, self)

    def _parts(self, frame: pd.DataFrame) -> Parts:
        """Rows of train, validation and test."""
        known, rows = SETS[self.dataset], len(frame)
        if not known.month_rows:
            train, test = int(0.7 * rows), int(0.2 * rows)
            return {"train": (0, train), "val": (train, rows - test), "test": (rows - test, rows)}
        train, val, test = (months * known.month_rows for months in (12, 16, 20))
        if rows < test:
            raise DataError(f"{self.files()[0]}: {rows:,} rows, expected at least {test:,} (20 months); the whole file "
                            f"is published at {known.published}.")  # fmt: skip
        return {"train": (0, train), "val": (train, val), "test": (val, test)}


def find_series(root: Path, name: str, multivariate: bool) -> tuple[Path, str]:
    """Return the file of a set and the name of its target column."""
    known = SETS[name]
    for file, target in ((known.file, known.target), known.univariate_file):
        for folder in (root, root / "forecasting", root / "ETT-small", root / "forecasting" / "ETT-small"):
            if file and (folder / file).is_file():
                if multivariate and file != known.file:
                    raise DataError(f"{name}: {folder / file} has one column only; the multivariate setting needs "
                                    f"{known.file}, published at {known.published}.")  # fmt: skip
                return folder / file, target
    raise DataError(f"{name}: no {known.file} in {root} or {root / 'forecasting'}; it is published at "
                    f"{known.published}.")  # fmt: skip


_PAPER = Recipe(
    {"d_model": 128, "n_layers": 2, "dropout": 0.25},
    {"lr": 0.01, "batch_size": 50, "epochs": 10, "schedule": "constant", "warmup": 0, "val_per_epoch": 5,
     "patience": 10, "precision": "tf32"},
)  # fmt: skip
_BEST = _PAPER.change(
    "the last value is taken off the context and put back; lr 2e-3 instead of 1e-2", {"instance_norm": "last"}, lr=2e-3
)
TASKS = (Task("forecast", ForecastOptions(), {"paper": _PAPER, "best": _BEST}, "root"),)


def _published(name: str, known: ForecastSet) -> Published:
    options = ForecastOptions(dataset=name, horizon=min(known.lengths))
    free = known.sha256 is not None
    return Published(
        "CC BY-ND 4.0" if free else "see the publisher", known.published, options, known.cases,
        url=f"https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/{name}.csv" if free else "",
        place=f"forecasting/{name}.csv", sha256=known.sha256,
        remark="" if free else "its publisher keeps it on a shared drive: download it by hand into forecasting/",
    )  # fmt: skip


PUBLISHED = {name: _published(name, known) for name, known in SETS.items()}
