"""Informer's forecasting sets: ETTh1, ETTh2, ETTm1, Weather (WTH) and ECL, with their parts and context lengths.

Multivariate means all columns in and out; univariate the target alone. ETT is cut by "months" of 30 days (12, 4, 4),
the others at 70 and 80 per cent of the rows. See `series` for scaling and marks, `baselines` for what to beat.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.series import Parts, Series, WindowOptions, read_series, window_sets
from wavessm.data.source import DataSet
from wavessm.errors import DataError, OptionError, unknown_name

Lengths = dict[int, tuple[int, int]]  # horizon -> context of the univariate and of the multivariate setting


@dataclasses.dataclass(frozen=True)
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


def load_forecast(
    root: str | Path,
    name: str = "ETTh1",
    horizon: int = 24,
    multivariate: bool = False,
    seq_len: int | None = None,
    timeenc: int = 0,
    eval_stamp: bool = False,
) -> DataSet:
    """Windows of a published series. root: the folder of the CSV files, or a data folder with `forecasting` in it.

    seq_len=None takes the context that Informer's scripts give for the horizon (ECL: 384). x is scaled; MSE and MAE are
    reported in that scale.
    """
    name = ALIASES.get(name.lower(), name)
    if name not in SETS:
        raise unknown_name("forecasting set", name, SETS)
    known = SETS[name]
    if seq_len is None:
        if horizon not in known.lengths:
            listed = ", ".join(map(str, known.lengths))
            raise OptionError(f"{name}: no context length is published for horizon {horizon} (only for {listed}); "
                              f"give seq_len.")  # fmt: skip
        seq_len = known.lengths[horizon][multivariate]
    options = WindowOptions(seq_len, horizon, timeenc, eval_stamp)
    path, target = find_series(root, name, multivariate)
    series = _read(path)
    if target not in series.columns:
        raise DataError(f"{path}: column {target!r}, the target of {name}, is missing.")
    if multivariate:
        series = series.only([column for column in series.columns if column != target] + [target])
    else:
        series = series.only([target])
    return window_sets(name, series, split_rows(known, series), options)


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
    def build() -> Prepared:
        series = read_series(path, None, "date")
        assert series.seconds is not None
        return Prepared({"values": series.values, "seconds": series.seconds}, {"columns": series.columns})

    key = {"file": fingerprint([path], path.parent), "layout": 1}
    prepared = cached(cache_folder(path.parent), path.stem, key, build)
    columns = tuple(prepared.notes["columns"])
    return Series(np.array(prepared.arrays["values"]), columns, np.array(prepared.arrays["seconds"]), str(path))
