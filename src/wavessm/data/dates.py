"""Dates of a table or a stream: read as they stand or refused, and how they go on."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wavessm.data.tables import is_number
from wavessm.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

DATE_NAMES = ("date", "datetime", "timestamp", "time")
"""Names of a column with dates, in any case, where none is given."""
_DAY = 86400.0
_LIKE = "like 2024-05-01 13:00:00"
_UNEVEN = 0.12
"""Part of a step by which steps may differ: the lengths of months do by a tenth, and clocks are not exact."""
_EPOCH, _SECOND = datetime.datetime(1970, 1, 1), datetime.timedelta(seconds=1)
_YEAR_LAST = re.compile(r"^(\d\d?)([/.-])(\d\d?)\2(\d{4})(.*)$", re.ASCII)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NAMED = re.compile(rf"(\d\d?)[- ]({'|'.join(_MONTHS)})[a-z]*[- ](\d{{4}})(.*)", re.ASCII | re.IGNORECASE)
_DATE = re.compile(  # year, month, day, hour, minute, second, fraction, half of the day, offset
    r"(\d{4})[-/](\d\d?)(?:[-/](\d\d?))?"
    r"(?:[T ](\d\d?)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?(?: ?([AP])M)? ?(Z|UTC|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def guess_dates(table: pd.DataFrame) -> tuple[str | None, bool]:
    """The first column named as dates are, and whether it may hold some: one of numbers alone does not."""
    name = next((str(name) for name in table.columns if str(name).lower() in DATE_NAMES), None)
    return name, name is not None and (table.empty or table[name].dtype.kind not in "iuf" or table[name].isna().all())


def parse_dates(column: Any, path: Path) -> tuple[np.ndarray, str]:
    """Dates of a pandas column whose index are lines, as `Clock` reads them: (rows,) int64, and their offset to UTC.

    The year may come last where only one reading as day and month is possible.
    """
    clock = Clock(f"{path}: column {column.name!r}")
    texts = ["" if gap else str(value).strip() for value, gap in zip(column, column.isna(), strict=True)]
    dates = zip(_year_first(texts, clock.source), column.index, strict=True)
    return np.array([clock.read(text, line) for text, line in dates], np.int64), clock.offset or ""


def _year_first(texts: list[str], source: str) -> list[str]:
    """Dates like 31/12/2024 or 12/31/2024 with the year first; others as they are."""
    found = [match for text in texts if (match := _YEAR_LAST.fullmatch(text))]
    if not found:
        return texts
    left, right = (max(int(match[group]) for match in found) > 12 for group in (1, 3))
    if left == right:
        raise DataError(f"{source}: {found[0][0]!r} may be day or month first; expected the year first, {_LIKE}.")
    day, month = (1, 3) if left else (3, 1)
    return [_YEAR_LAST.sub(rf"\4-\{month}-\{day}\5", text) for text in texts]


class Clock:
    """Reads dates of one source, row after row: the year first, rising, all at one offset to UTC or none.

    They are taken by the clock of the place: the offset is kept, not applied.

    >>> clock = Clock("the table")
    >>> clock.read("1970-01-02 01:00+05:00", line=2), clock.offset
    (90000, '+05:00')
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.offset: str | None = None
        self._last = datetime.datetime.min

    def read(self, text: str, line: int) -> int:
        """Whole seconds since 1970; what is no date, or comes too early, raises `DataError`."""
        try:
            date, offset = _date(text)
        except ValueError:
            raise self._error(line, _why_not(text)) from None
        if self.offset not in (None, offset):
            raise self._error(line, f"{text!r} is at another offset to UTC than the rows before "
                                    f"({self.offset or 'none'}); write all dates by one clock.")  # fmt: skip
        if date <= self._last:
            raise self._error(line, f"dates do not rise, {text!r} comes after {self._last}; sort the rows.")
        if date - self._last < _SECOND and date.second == self._last.second:
            raise self._error(line, f"{text!r} is in the same second as the row before; leave the dates out where rows "
                                    "are so close.")  # fmt: skip
        self.offset, self._last = offset, date
        return (date - _EPOCH) // _SECOND

    def _error(self, line: int, words: str) -> DataError:
        return DataError(f"{self.source}, line {line}: {words}")


def _date(text: str) -> tuple[datetime.datetime, str]:
    """A date by its own clock, and the offset of that; `ValueError` where it is none.

    >>> [str(_date(text)[0]) for text in ("2020-01-02", "02-Jan-2020 3:15 PM")]
    ['2020-01-02 00:00:00', '2020-01-02 15:15:00']
    """
    if named := _NAMED.fullmatch(text):
        text = f"{named[3]}-{_MONTHS.index(named[2].lower()) + 1}-{named[1]}{named[4]}"
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, half, offset = match.groups()
    micro = int((fraction or "0")[:6].ljust(6, "0"))
    clock = datetime.time(_hour(int(hour or 0), half), int(minute or 0), int(second or 0), micro)
    return datetime.datetime.combine(datetime.date(int(year), int(month), int(day or 1)), clock), _offset(offset or "")


def _hour(hour: int, half: str | None) -> int:
    """
    >>> _hour(13, None), _hour(12, "a"), _hour(12, "P"), _hour(1, "P")
    (13, 0, 12, 13)
    """
    if half is None:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError(hour)
    return hour % 12 + 12 * (half in "pP")


def _offset(text: str) -> str:
    """
    >>> [_offset(text) for text in ("", "Z", "-05", "+0530")]
    ['', '+00:00', '-05:00', '+05:30']
    """
    if text.upper() in ("Z", "UTC"):
        return "+00:00"
    return f"{text[:3]}:{text[3:].lstrip(':') or '00'}" if text else ""


def same_clock(offset: str, trained: str, where: str) -> None:
    """Refuse dates by another clock than that of training; where both say theirs."""
    if offset and trained and offset != trained:
        raise DataError(f"{where}: its dates are at {offset} to UTC, but the model was trained at {trained}; write "
                        "them by that clock.")  # fmt: skip


def same_step(seconds: np.ndarray, trained: float, where: str) -> None:
    """Refuse dates (rows,) that are not as far apart as those of training; months may differ, and weekdays.

    >>> same_step(np.array([0, 3600, 7200]), 3600.0, "the table")
    """
    step = float(np.median(np.diff(seconds))) if len(seconds) > 1 else trained
    if abs(step - trained) <= _UNEVEN * trained:
        return
    if trained == _DAY and _next_weekdays(seconds.astype("datetime64[s]"), np.arange(1)) is not None:
        return  # few weekdays, a weekend among them
    here, there = (datetime.timedelta(seconds=one) for one in (step, trained))
    raise DataError(f"{where}: its rows are {here} apart, but the model was trained on rows {there} apart; resample "
                    "them or train another model.")  # fmt: skip


def _why_not(text: str) -> str:
    if not text:
        return "no date; fill it or drop the row."
    return f"{text!r} is {'a number, ' if is_number(text) else ''}not a date; expected one {_LIKE}."


def go_on(seconds: np.ndarray, step: float, horizon: int) -> np.ndarray:
    """The next dates of some that are `step` seconds apart, by months or weekdays where these are. datetime64[s]"""
    steps, dates = np.arange(1, horizon + 1), seconds.astype("datetime64[s]")
    by_calendar = _next_months(dates, steps) if step > 27 * _DAY else _next_weekdays(dates, steps)
    if by_calendar is not None:
        return by_calendar
    return (seconds[-1] + np.rint(step * steps).astype(np.int64)).astype("datetime64[s]")


def _next_months(dates: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Dates that go on by months, on the same day of them or on their last; None for others.

    >>> ends = np.array(["2023-10-31", "2023-11-30", "2023-12-31"], "datetime64[s]")
    >>> _next_months(ends, np.arange(1, 3)).astype("datetime64[D]").astype(str).tolist()
    ['2024-01-31', '2024-02-29']
    """
    months = dates.astype("datetime64[M]")
    apart, within = np.diff(months.astype(np.int64)), (dates - months.astype("datetime64[s]")).max()
    if apart[0] <= 0 or (apart != apart[0]).any() or (_so_late_in(months, within) != dates).any():
        return None
    return _so_late_in(months[-1] + apart[0] * steps, within)


def _so_late_in(months: np.ndarray, within: np.timedelta64) -> np.ndarray:
    """The moment so long after each month began, or that time of its last day where it is shorter. datetime64[s]"""
    day = np.timedelta64(1, "D")
    last = (months + 1).astype("datetime64[s]") - day + within % day
    return np.minimum(months.astype("datetime64[s]") + within, last)


def _next_weekdays(dates: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Dates that go on from Monday to Friday, some holidays left out; None for others, and where no weekend was left
    out.

    >>> days = np.array(["2024-12-23", "2024-12-24", "2024-12-27", "2024-12-30", "2024-12-31"], "datetime64[s]")
    >>> _next_weekdays(days, np.arange(3, 5)).astype("datetime64[D]").astype(str).tolist()
    ['2025-01-03', '2025-01-06']
    """
    days = dates.astype("datetime64[D]")
    within = dates - days
    if len(days) < 2 or not np.is_busday(days).all() or not (within == within[0]).all():
        return None
    working = np.busday_count(days[:-1], days[1:])
    if np.median(working) != 1 or (np.diff(days).astype(int) == working).all():
        return None
    return np.busday_offset(days[-1], steps).astype("datetime64[s]") + within[-1]
