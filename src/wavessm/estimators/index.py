"""Stage 9e, first part: an index of dates or numbers: what it must be, how it goes on, which seasons it has."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from wavessm.errors import DataError, MissingExtraError

DAY = 86400.0
SEASONS = ((60.0, 60), (3600.0, 24), (DAY, 7), (7 * DAY, 52), (28 * DAY, 12), (90 * DAY, 4))
"""Shortest step of a scale in seconds, and the steps in its season."""

ROUNDED = 0.5
"""Part of a step by which numbers of an index may be rounded; a gap is a whole step."""

UNEVEN = 1e-3
"""Part of a step by which steps may differ; months do by more."""

CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.25 * DAY}


def pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as reason:
        raise MissingExtraError("this needs pandas: pip install 'wavessm[estimators]'.") from reason
    return pd


def check_index(index: Any, what: str) -> None:
    """Raise what keeps an index from going on, in one line."""
    pd = pandas()
    if isinstance(index, pd.MultiIndex):
        raise DataError(
            f"{what}: its index has {index.nlevels} levels, expected one; give a list of series, one for each key."
        )
    dates = _is_dated(index)
    if not dates and (index.dtype.kind not in "iuf" or index.hasnans):
        kind = "text" if isinstance(index[0], str) else f"of {index.dtype}"
        raise DataError(
            f"{what}: its index is {kind} ({index[0]!r} …); make it dates, series.index = "
            "pd.to_datetime(series.index), or drop it with .reset_index(drop=True)."
        )
    which = "dates" if dates else "numbers of the index"
    if not index.is_monotonic_increasing or not index.is_unique:
        raise DataError(f"{what}: the {which} do not rise; use .sort_index() and drop what is there twice.")
    gaps = isinstance(index, pd.PeriodIndex) and not (np.diff(index.asi8) == index.freq.n).all()
    if gaps or (dates and len(index) > 2 and offset_of(index) is None):
        raise DataError(
            f"{what}: the dates have gaps or no regular step; use .asfreq() or .reindex() and fill the gaps."
        )
    if not dates and not _is_even(index):
        raise DataError(
            f"{what}: the numbers of the index have gaps or no even step; fill the gaps, or drop it with "
            ".reset_index(drop=True)."
        )


def _is_dated(index: Any) -> bool:
    pd = pandas()
    return isinstance(index, pd.DatetimeIndex | pd.PeriodIndex | pd.TimedeltaIndex)


def _is_even(index: Any) -> bool:
    """Whether numbers have one step, but for rounding."""
    numbers = index.to_numpy()
    steps = np.diff(numbers)
    if numbers.dtype.kind != "f" or not len(steps):
        return bool((steps == steps[:1]).all())
    step = np.median(steps)
    return bool((np.abs(steps - step) < ROUNDED * step).all())


def refuse_other_step(index: Any, like: Any, what: str) -> None:
    """One line where rows are not as far apart as those of an index that came before; where both are known."""
    here, there = _spacing(index), _spacing(like)
    if here is None or there is None or _is_dated(index) != _is_dated(like):
        return
    months = _is_dated(like) and there > 27 * DAY  # their lengths differ by a tenth
    if abs(here - there) <= there * (0.12 if months else UNEVEN):
        return
    if _is_dated(like) and offset_of(index) == offset_of(like):  # few business days, a weekend among them
        return
    words = [str(pandas().Timedelta(step, "s")) if _is_dated(like) else f"{step:g}" for step in (here, there)]
    raise DataError(
        f"{what} has a step of {words[0]}, expected {words[1]} as the first of fit; resample it or fit another model."
    )


def _spacing(index: Any) -> float | None:
    """Seconds between dates, the step of numbers; None where it is not known or merely counts rows."""
    if index is None or len(index) < 3:
        return None
    if _is_dated(index):
        seconds = step_seconds(index)
        return (index[1] - index[0]).total_seconds() if seconds is None else seconds
    step = float(index[-1] - index[0]) / (len(index) - 1)
    return None if step == 1 and index.dtype.kind != "f" else step


def offset_of(index: Any) -> Any:
    """The step of dates as a pandas offset; None if there is none."""
    pd = pandas()
    if getattr(index, "freq", None) is not None:
        return index.freq
    if not _is_dated(index):
        return None
    if len(index) > 2:
        with warnings.catch_warnings():  # pandas is about to change what infer_freq returns; to_offset takes both
            warnings.simplefilter("ignore")
            found = pd.tseries.frequencies.to_offset(pd.infer_freq(index))
        if found is not None:
            return found
    steps = index[1:] - index[:-1]
    return steps[0] if len(steps) and (steps == steps[0]).all() else None


def continue_index(index: Any, steps: int) -> Any:
    """The next `steps` entries of an index.

    >>> import pandas as pd
    >>> continue_index(pd.date_range("2024-01-31", periods=3, freq="ME"), 2).strftime("%m-%d").tolist()
    ['04-30', '05-31']
    >>> continue_index(pd.RangeIndex(0, 10, 5), 2).tolist(), continue_index(pd.Index([0.0, 0.5]), 2).tolist()
    ([10, 15], [1.0, 1.5])
    """
    pd = pandas()
    if isinstance(index, pd.DatetimeIndex):
        offset = offset_of(index)
        if offset is None:
            raise DataError(f"the series has {len(index)} dates, too few to know their step; set index.freq.")
        return pd.date_range(index[-1], periods=steps + 1, freq=offset, name=index.name)[1:]
    if isinstance(index, pd.PeriodIndex):
        return pd.period_range(index[-1] + 1, periods=steps, freq=index.freq, name=index.name)
    if isinstance(index, pd.TimedeltaIndex):
        return pd.timedelta_range(index[-1], periods=steps + 1, freq=offset_of(index), name=index.name)[1:]
    if index.dtype.kind == "f":
        step = (index[-1] - index[0]) / (len(index) - 1) if len(index) > 1 else 1.0
        return pd.Index(index[-1] + step * np.arange(1, steps + 1), name=index.name)
    step = int(index[-1] - index[-2]) if len(index) > 1 else 1
    return pd.RangeIndex(int(index[-1]) + step, int(index[-1]) + step * (steps + 1), step, name=index.name)


def step_seconds(index: Any) -> float | None:
    """The median step of dates in seconds; None for an index without dates."""
    if index is None or len(index) < 2:
        return None
    pd = pandas()
    index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    if not isinstance(index, pd.DatetimeIndex):
        return None
    index = index if index.tz is None else index.tz_convert(None)
    return float(np.median(np.diff(index.to_numpy()) / np.timedelta64(1, "ns"))) * 1e-9


def season_of(index: Any) -> int:
    """Steps in the season that the sampling suggests; 1 without dates.

    >>> import pandas as pd
    >>> [season_of(pd.date_range("2024", periods=9, freq=freq)) for freq in ("h", "D", "MS")]
    [24, 7, 12]
    """
    seconds = step_seconds(index)
    if seconds is None:
        return 1
    return next((season for shortest, season in reversed(SEASONS) if seconds >= 0.99 * shortest), 60)


def cycles_of(index: Any, steps: int) -> tuple[str, ...]:
    """Cycles of the calendar that the step can tell apart and the first `steps` go through twice; none without dates.

    A cycle seen less than twice would be a trend in disguise.

    >>> import pandas as pd
    >>> cycles_of(pd.date_range("2024", periods=500, freq="h"), 500)
    ('day', 'week')
    """
    seconds = step_seconds(index)
    if seconds is None:
        return ()
    return tuple(name for name, length in CYCLES.items() if 2 * length <= seconds * steps and seconds < length)


def calendar(index: Any, cycles: tuple[str, ...]) -> np.ndarray:
    """Sine and cosine of the place in each cycle. (time, 2 · cycles)"""
    pd = pandas()
    index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    day = (index.hour + index.minute / 60 + index.second / 3600) / 24
    place = {"day": day, "week": (index.day_of_week + day) / 7, "year": (index.day_of_year - 1 + day) / 366}
    angle = 2 * np.pi * np.stack([np.asarray(place[name], dtype=np.float64) for name in cycles], axis=1)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
