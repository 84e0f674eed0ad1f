"""Informer's forecasting sets: ETTh1, ETTh2, ETTm1, Weather (WTH) and ECL, with their parts and context lengths.

Multivariate means all columns in and out; univariate the target alone. ETT is cut by "months" of 30 days (12, 4, 4),
the others at 70 and 80 per cent of the rows. See `windows.py` for scaling and marks, `baselines.py` for what to beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wavessm.data.published import Finding, Published, digest, expect
from wavessm.data.task import DataOptions, Recipe, Task, data_root
from wavessm.errors import DataError, OptionError, unknown_name

if TYPE_CHECKING:
    from wavessm.data.source import DataSet
    from wavessm.data.windows import Parts, Series

Lengths = dict[int, tuple[int, int]]  # horizon -> context of the univariate and of the multivariate setting


@dataclass(frozen=True)
class ForecastSet:
    """A published series. month_rows: rows in 30 days where the parts are months, else 0."""

    files: tuple[str, ...]  # names it is published under; the first with all columns
    target: str
    columns: int
    lengths: Lengths
    published: str
    month_rows: int = 0
    univariate_file: tuple[str, str] | None = None  # a file with one column only, and its name


_ETT = "https://github.com/zhouhaoyi/ETDataset"
_INFORMER = "https://github.com/zhouhaoyi/Informer2020 (its README links the archive)"

SETS = {
    "ETTh1": ForecastSet(
        ("ETTh1.csv",), "OT", 7,
        {24: (720, 48), 48: (720, 96), 168: (720, 168), 336: (720, 168), 720: (720, 336)}, _ETT, 30 * 24,
    ),
    "ETTh2": ForecastSet(
        ("ETTh2.csv",), "OT", 7,
        {24: (48, 48), 48: (96, 96), 168: (336, 336), 336: (336, 336), 720: (336, 720)}, _ETT, 30 * 24,
    ),
    "ETTm1": ForecastSet(
        ("ETTm1.csv",), "OT", 7,
        {24: (96, 672), 48: (96, 96), 96: (384, 384), 288: (384, 672), 672: (384, 672)}, _ETT, 30 * 24 * 4,
    ),
    "WTH": ForecastSet(
        ("WTH.csv",), "WetBulbCelsius", 12,
        {24: (720, 168), 48: (720, 96), 168: (168, 336), 336: (336, 720), 720: (720, 720)}, _INFORMER,
    ),
    "ECL": ForecastSet(
        ("ECL.csv",), "MT_320", 321, {horizon: (384, 384) for horizon in (48, 168, 336, 720, 960)}, _INFORMER,
        univariate_file=("ECL_univariate.csv", "OT"),
    ),
}  # fmt: skip
ALIASES = {"weather": "WTH", **{name.lower(): name for name in SETS}}


@dataclass(frozen=True)
class ForecastOptions(DataOptions):
    """Options of the data."""

    root: str = ""
    """Folder of the CSV files, or one that holds forecasting/; default $WAVESSM_DATA."""
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
        object.__setattr__(self, "dataset", ALIASES.get(self.dataset.lower(), self.dataset))

    def load(self, seed: int) -> DataSet:
        if self.dataset not in SETS:
            raise unknown_name("forecasting set", self.dataset, SETS)
        return load_forecast(
            data_root(self.root),
            self.dataset,
            horizon=self.horizon,
            multivariate=self.variables == "multi",
            context=self.context,
            calendar=self.calendar,
            future_calendar=self.future_calendar,
        )


_PAPER = Recipe(
    {"d_model": 128, "n_layers": 2, "dropout": 0.25},
    {"lr": 0.01, "batch_size": 50, "epochs": 10, "schedule": "constant", "warmup": 0, "val_per_epoch": 5,
     "patience": 10, "precision": "tf32"},
)  # fmt: skip
_BEST = _PAPER.change(
    "the last value is taken off the context and put back; lr 2e-3 instead of 1e-2", {"instance_norm": "last"}, lr=2e-3
)
TASKS = (Task("forecast", ForecastOptions(), {"paper": _PAPER, "best": _BEST}, "root"),)


def load_forecast(
    root: str | Path,
    name: str = "ETTh1",
    horizon: int = 24,
    multivariate: bool = False,
    context: int | None = None,
    calendar: str = "table",
    future_calendar: bool = False,
) -> DataSet:
    """Windows of a published series. root: the folder of the CSV files, or a data folder with `forecasting` in it.

    context=None takes the context that Informer's scripts give for the horizon (ECL: 384). x is scaled; MSE and MAE are
    reported in that scale.
    """
    from wavessm.data.windows import window_sets

    name = ALIASES.get(name.lower(), name)
    if name not in SETS:
        raise unknown_name("forecasting set", name, SETS)
    known = SETS[name]
    if context is None:
        if horizon not in known.lengths:
            listed = ", ".join(map(str, known.lengths))
            raise OptionError(f"{name}: no context length is published for horizon {horizon} (only for {listed}); "
                              f"give context.")  # fmt: skip
        context = known.lengths[horizon][multivariate]
    path, target = find_series(root, name, multivariate)
    series = _read(path)
    if target not in series.columns:
        raise DataError(f"{path}: column {target!r}, the target of {name}, is missing.")
    if multivariate:
        series = series.only([column for column in series.columns if column != target] + [target])
    else:
        series = series.only([target])
    return window_sets(name, series, split_rows(known, series), context, horizon, calendar, future_calendar)


def find_series(root: str | Path, name: str, multivariate: bool) -> tuple[Path, str]:
    """The file of a set and the name of its target column."""
    root, known = Path(root), SETS[name]
    folders = (root, root / "forecasting", root / "ETT-small", root / "forecasting" / "ETT-small")
    for folder in folders:
        for file in known.files:
            if (folder / file).is_file():
                return folder / file, known.target
    for folder in folders:
        if known.univariate_file and (folder / known.univariate_file[0]).is_file():
            if multivariate:
                raise DataError(
                    f"{name}: {folder / known.univariate_file[0]} has one column only; the multivariate setting needs "
                    f"{known.files[0]}, published at {known.published}."
                )
            return folder / known.univariate_file[0], known.univariate_file[1]
    raise DataError(
        f"{name}: no {known.files[0]} in {root} or {root / 'forecasting'}; it is published at {known.published}."
    )


def split_rows(known: ForecastSet, series: Series) -> Parts:
    """Rows of train, validation and test."""
    rows = len(series.values)
    if known.month_rows:
        train, val, test = 12 * known.month_rows, 4 * known.month_rows, 4 * known.month_rows
        if rows < train + val + test:
            raise DataError(f"{series.source}: {rows:,} rows, expected at least {train + val + test:,} (20 months); "
                            f"the whole file is published at {known.published}.")  # fmt: skip
    else:
        train, test = int(0.7 * rows), int(0.2 * rows)
        val = rows - train - test
    return {"train": (0, train), "val": (train, train + val), "test": (train + val, train + val + test)}


def _read(path: Path) -> Series:
    import numpy as np

    from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
    from wavessm.data.windows import Series, read_series

    def build() -> Prepared:
        series = read_series(path, None, "date")
        assert series.seconds is not None
        return Prepared({"values": series.values, "seconds": series.seconds}, {"columns": series.columns})

    key = {"file": fingerprint([path], path.parent), "layout": 1}
    prepared = cached(cache_folder(path.parent), path.stem, key, build)
    columns = tuple(prepared.notes["columns"])
    return Series(np.array(prepared.arrays["values"]), columns, np.array(prepared.arrays["seconds"]), str(path))


# -- wavessm data list, check, fetch -----------------------------------------------------------------------------------

_ROWS = {"ETTh1": 17_420, "ETTh2": 17_420, "ETTm1": 69_680, "WTH": 35_064, "ECL": 26_304}
_MD5 = {  # as other libraries pin them
    "ETTh1.csv": "8381763947c85f4be6ac456c508460d6",
    "ETTh2.csv": "51a229a3fc13579dd939364fefe9c7ab",
    "ETTm1.csv": "82d6bd89109c63d075d99c1077b33f38",
}
_SHA256 = {
    "ETTh1": "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    "ETTh2": "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
    "ETTm1": "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
}
_ETT_FILES = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"


def _check(root: Path, name: str) -> list[Finding]:
    from wavessm.data.tables import read_table

    known = SETS[name]
    path, target = find_series(root, name, multivariate=False)
    data = load_forecast(root, name, horizon=min(known.lengths))
    findings = [
        Finding("ok", f"{path}: readable, dates rise, no NaN in column {target}"),
        expect("rows", len(data.train.series), _ROWS[name]),  # type: ignore[attr-defined]
        expect("seconds between rows", data.info.step, 900.0 if name == "ETTm1" else 3600.0),
    ]
    if path.name in known.files:
        findings.append(expect("columns beside the date", len(read_table(path).columns) - 1, known.columns))
    else:
        findings.append(Finding("note", f"{path.name} has the target only; {known.files[0]} is needed for all columns"))
    if path.name in _MD5:
        findings.append(expect("MD5", digest(path, "md5"), _MD5[path.name]))
    return findings


def _published(name: str) -> Published:
    licence, sha256 = "see the publisher", _SHA256.get(name)
    url, remark = "", "its publisher keeps it on a shared drive: download it by hand into forecasting/"
    if sha256:
        licence, url, remark = "CC BY-ND 4.0", f"{_ETT_FILES}/{name}.csv", ""
    return Published(
        licence,
        SETS[name].published,
        lambda root: [find_series(root, name, multivariate=False)[0]],
        lambda root: _check(root, name),
        url,
        f"forecasting/{name}.csv",
        sha256=sha256,
        remark=remark,
    )


PUBLISHED = {name: _published(name) for name in SETS}
