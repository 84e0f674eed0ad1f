"""Tables and their dates: the one reader of CSV files for training, prediction and the estimators.

pandas parses: columns separated by commas, decimals with a point, dates in any usual form. What is wrong or ambiguous
is refused in one line that names column and line. `windows.py` cuts what is read here into forecasting sets.
"""

from __future__ import annotations

import csv
import datetime
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wavessm.errors import DataError, NotFiniteError, import_extra

if TYPE_CHECKING:
    import pandas as pd

LARGEST = float(np.finfo(np.float32).max)
"""What models can take: they compute in float32."""
DATE_NAMES = ("date", "datetime", "timestamp", "time")
"""Names of a column with dates, in any case, where none is given."""
SEVERAL = " name the columns unique_id, ds and y if there are several series"
_UNEVEN = 0.12
"""Part of a step by which steps may differ: the lengths of months do by a tenth, and clocks are not exact."""
_DATE_LIKE = re.compile(r"\d{1,4}[-/. ]\s?\w")  # a time of day alone is no date
_YEAR_LAST = re.compile(r"(\d\d?)[/.-](\d\d?)[/.-]\d{2,4}\b")


def import_pandas() -> Any:
    """Return pandas, or raise `MissingExtraError` where it is not installed."""
    return import_extra("pandas", "tables")


def read_table(path: Path, index: bool = False, bare: bool = False, text: bool = False) -> pd.DataFrame:
    """Read a CSV file; its index are the lines of the file, blank ones not counted.

    Args:
        path: the file.
        index: let the first column name the rows instead.
        bare: there is no line with names; columns are "0", "1", ….
        text: fields stay as they are written (04015, None), and only empty ones are missing.
    """
    pd, header = import_pandas(), first_line(path)
    if not bare and all(map(is_number, header)) and not counted(header):
        raise DataError(f"{path}: has no line with names, the first is {','.join(header)[:60]!r}; write a name for "
                        "each column above it, or a letter before each of these.")  # fmt: skip
    for name in header if not bare else ():
        if name and header.count(name) > 1:
            raise DataError(f"{path}: column {name!r} is there {header.count(name)} times; give each a name.")
    as_written: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_values": [""]} if text else {}
    if b"\0" in (content := path.read_bytes()):  # pandas would end the field there
        raise DataError(f"{path}: not a readable CSV table (it holds zero bytes).")
    fields = [line.count(b",") + 1 for line in content.splitlines() if line.strip()] if b'"' not in content else [1]
    if (fewest := min(fields)) < fields[0]:  # pandas would read NaN at the end of the line
        raise DataError(f"{path}: line {fields.index(fewest) + 1} has {fewest} fields, expected {fields[0]}; leave "
                        "nothing between two commas where a value is missing.")  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more fields than names
            table = pd.read_csv(
                path, header=None if bare else 0, index_col=0 if index else False, low_memory=False,
                encoding="utf-8-sig", **as_written,
            )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.ParserWarning, UnicodeDecodeError) as reason:
        raise DataError(f"{path}: not a readable CSV table ({' '.join(str(reason).split())}).") from reason
    table.columns = [str(name) for name in table.columns]
    if not index:
        table.index += 1 if bare else 2
    return table


def first_line(path: Path) -> list[str]:
    """Return the fields of the first line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = next(line for line in file.read(1 << 16).splitlines() if line.strip())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (UnicodeDecodeError, OSError, StopIteration) as reason:
        raise DataError(f"{path}: not a readable CSV table ({str(reason) or 'it is empty'}).") from reason
    if "," not in first and re.search(r"[;\t]", first):
        raise DataError(f"{path}: begins with {first[:60]!r}; separate columns by commas, decimals by a point.")
    return next(csv.reader([first]))


def is_number(text: str) -> bool:
    """Return whether a field holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_date(text: Any) -> bool:
    """Return whether a field looks like a date."""
    return isinstance(text, str) and bool(_DATE_LIKE.match(text)) and not is_number(text)


def counted(header: list[str]) -> bool:
    """Return whether several columns are named 0, 1, 2, …, as pandas names them where nobody did."""
    return len(header) > 1 and header == [str(column) for column in range(len(header))]


def need_columns(table: pd.DataFrame, columns: Iterable[str], path: Path) -> None:
    """Raise `DataError` naming the first missing column and those that are there."""
    there = [str(name) for name in table.columns]
    for name in columns:
        if name not in there:
            listed = ", ".join(there[:12]) + (", …" if len(there) > 12 else "")
            raise DataError(f"{path}: column {name!r} is missing; the file has {listed}.")


def numbers(
    table: pd.DataFrame, columns: list[str], path: Path, gaps: bool = False, hint: str = "fill or drop these rows"
) -> np.ndarray:
    """Return the columns as float64 (rows, columns); no text, nothing beyond float32 and, unless `gaps`, no NaN."""
    pd = import_pandas()
    result = np.empty((len(table), len(columns)), np.float64)
    for i, name in enumerate(columns):
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
        empty = table[name].isna().to_numpy() if gaps else np.zeros(len(values), dtype=bool)
        if (unfit := np.flatnonzero(~(empty | (np.abs(values) <= LARGEST)))).size:
            raw, value = table[name].iloc[unfit[0]], values[unfit[0]]
            what = repr(raw) if isinstance(raw, str) else "NaN" if np.isnan(value) else f"{value:g}"
            raise DataError(f"{path}: {what} in column {name!r}, line {table.index[unfit[0]]} ({unfit.size} in all); "
                            f"expected numbers up to {LARGEST:.2g}, {hint}.")  # fmt: skip
        result[:, i] = values
    return result


# -- dates ------------------------------------------------------------------------------------------------------------


def guess_dates(table: pd.DataFrame) -> tuple[str | None, bool]:
    """Return the column that is named as dates are, or a first column of dates; and whether it may hold some: one of
    numbers alone does not."""
    for name in table.columns:
        if name.lower() in (*DATE_NAMES, "epoch", "unix", "ts") and unix_seconds(table[name]) is not None:
            return name, True
    numeric = table.dtypes.map(lambda dtype: dtype.kind in "iuf")
    name = next((name for name in table.columns if name.lower() in DATE_NAMES), None)
    if name is None and len(table) and _DATE_LIKE.match(str(table.iloc[0, 0])) and not numeric.iloc[0]:
        name = table.columns[0]
    return name, name is not None and (table.empty or not numeric[name] or bool(table[name].isna().all()))


def unix_seconds(column: pd.Series) -> np.ndarray | None:
    """Seconds since 1970 of numbers that may be Unix seconds or milliseconds of the years 1980 to 2032. (rows,)"""
    values = import_pandas().to_numeric(column, errors="coerce").to_numpy(np.float64)
    units = (unit for unit in (1.0, 1e3) if len(values) and ((values >= 3.2e8 * unit) & (values < 2e9 * unit)).all())
    return next((values / unit for unit in units), None)


def parse_dates(column: pd.Series, source: str, rising: bool = True) -> tuple[np.ndarray, str]:
    """Read dates of one clock, `rising` from row to row: a column of text whose index are lines, for messages.

    Returns:
        Seconds (rows,) since 1970 by the clock of the place, and the offset of that clock to UTC ("+05:00", or ""
        where the dates have none). Day or month may come first where only one reading is possible. Numbers are Unix
        seconds or milliseconds, by the clock of UTC.
    """
    pd = import_pandas()
    where = f"{source}: column {column.name!r}" if column.name else source
    if (unix := unix_seconds(column)) is not None:
        column = pd.Series((1e6 * unix).round().astype("datetime64[us]").astype(str), column.index)
    texts = column.astype(str).str.strip().where(column.notna(), "")
    found = [match for text in texts if (match := _YEAR_LAST.match(text))]
    day_first, month_first = (any(int(match[group]) > 12 for match in found) for group in (1, 2))
    if found and day_first == month_first:
        raise DataError(f"{where}: {found[0].string!r} may be day or month first; expected the year first, like "
                        "2024-05-01 13:00:00.")  # fmt: skip
    usual = texts.where(texts.map(is_date))
    try:
        with warnings.catch_warnings():  # pandas tells which format it did not find
            warnings.simplefilter("ignore")
            dates = pd.to_datetime(usual, dayfirst=day_first, errors="coerce")
            if dates.isna().any():
                dates = pd.to_datetime(usual, dayfirst=day_first, errors="coerce", format="mixed")
    except ValueError as reason:
        raise DataError(f"{where}: dates are at several offsets to UTC; write all by one clock.") from reason
    for line in dates.index[dates.isna()]:
        what = f"{texts[line]!r} is {'a number, ' * is_number(texts[line])}not a date; expected one like " \
               "2024-05-01 13:00:00." if texts[line] else "no date; fill it or drop the row."  # fmt: skip
        raise DataError(f"{where}, line {line}: {what}")
    seconds = dates.dt.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
    if rising and (late := np.flatnonzero(np.diff(seconds) < 0)).size:
        line, before = dates.index[late[0] + 1], texts.iloc[late[0]]
        raise DataError(f"{where}, line {line}: dates do not rise, {texts[line]!r} comes after {before!r}; sort the "
                        f"rows, leave the dates out, or{SEVERAL}.")  # fmt: skip
    offset = dates.iloc[0].strftime("%z") if len(dates) else ""
    return seconds, f"{offset[:3]}:{offset[3:]}" if offset else ""


def same_clock(offset: str, trained: str, where: str) -> None:
    """Refuse dates by another clock than that of training; where both have an offset."""
    if offset and trained and offset != trained:
        raise DataError(f"{where}: its dates are at {offset} to UTC, but the model was trained at {trained}; write "
                        "them by that clock.")  # fmt: skip


def same_step(seconds: np.ndarray, trained: float, where: str) -> None:
    """Refuse dates (rows,) that are not as far apart as those of training; months may differ, and weekends be left out.

    >>> same_step(np.array([0, 3600, 7200]), 3600.0, "the table")
    """
    steps = np.diff(seconds) if len(seconds) > 1 else np.array([trained])
    if min(abs(np.median(steps) - trained), abs(steps.min() - trained)) > _UNEVEN * trained:
        here, there = (datetime.timedelta(seconds=float(one)) for one in (np.median(steps), trained))
        raise DataError(f"{where}: its rows are {here} apart, but the model was trained on rows {there} apart; "
                        "resample them or train another model.")  # fmt: skip


# -- numbers of a table ------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """Mean and standard deviation of columns."""

    mean: np.ndarray  # (columns,)
    deviation: np.ndarray  # (columns,), 1 where a column is constant
    constant: np.ndarray  # (columns,) bool

    @classmethod
    def of(cls, rows: np.ndarray) -> Scale:  # (n, columns) float64
        """The scale of these rows.

        >>> Scale.of(np.array([[2e-9, 5.0], [4e-9, 5.0]])).deviation.tolist()
        [1e-09, 1.0]
        """
        mean, deviation = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        constant = deviation <= 1e-12 * np.abs(mean)
        return cls(mean, np.where(constant, 1.0, deviation), constant)

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Values (…, columns) with mean 0 and deviation 1 over the rows of the scale."""
        return (values - self.mean) / self.deviation

    def undo(self, values: np.ndarray) -> np.ndarray:
        """Scaled values (…, columns) in the units of the data."""
        return values * self.deviation + self.mean


def check_finite(array: np.ndarray, where: str, gaps: bool = False) -> None:
    """Refuse NaN, infinity and what float32 does not hold; `where` names a row, as in "case {} of X".

    With `gaps`, NaN is a missing sample and passes.
    """
    unfit = ~(np.abs(array) <= LARGEST)
    unfit &= ~(gaps & np.isnan(array))
    if unfit.any():
        at = tuple(np.argwhere(unfit)[0])
        where, value = where.format(at[0]), array[at]
        if not np.isfinite(value):
            raise NotFiniteError(f"{where} has NaN or infinity; fill or drop it first.")
        raise DataError(f"{where} has {value:g}, beyond float32 ({LARGEST:.2g} at most); use a larger unit.")


def column_order(names: Any, wanted: list, what: str) -> list[int]:
    """Where a table has the wanted columns, in any order.

    >>> column_order(["v", "u"], ["u", "v"], "X")
    [1, 0]
    """
    names = list(names)
    if len(names) != len(wanted) or set(names) != set(wanted):
        shown = [", ".join(map(repr, some[:8])) + (", …" if len(some) > 8 else "") for some in (names, wanted)]
        raise DataError(f"{what}: the columns are {shown[0]}, expected {shown[1]} in any order; rename or choose them.")
    return [names.index(name) for name in wanted]
