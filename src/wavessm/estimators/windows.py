"""Which rows of a series train, choose or calibrate, and what is known of its steps beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wavessm.errors import DataError, OptionError, ShapeError, is_int
from wavessm.estimators.base import Scale, check_number
from wavessm.estimators.series import Form, Repair, TimeSeries, calendar, pd, read_series, step_seconds
from wavessm.features.line import Cut, Part


class Split(NamedTuple):
    """Rows of each series: training ends, choosing ends; the rest calibrates."""

    train_end: np.ndarray  # (series,)
    stop_end: np.ndarray  # (series,) equal to train_end where nothing is set aside to choose

    @property
    def stops(self) -> bool:
        """Whether some rows choose."""
        return bool((self.stop_end > self.train_end).all())


def split_series(series: Sequence[TimeSeries], horizon: int, fraction: Any, split: Any) -> Split:
    """Rows to train, to choose and to calibrate; see `WaveSSMForecaster`."""
    lengths = np.array([len(one.values) for one in series])
    if split is None:
        fraction = check_number(fraction, "validation_fraction", 1)
        held = np.maximum(np.round(fraction * lengths).astype(int), horizon if fraction else 0)
        half = held // 2 if fraction and (held >= 4 * horizon).all() else np.zeros_like(held)
        found = Split(lengths - held, lengths - held + half)
    else:
        found = Split(*_read_split(series, lengths, split))
    shortest = int(found.train_end.min())
    if shortest <= horizon:
        raise DataError(
            f"the shortest series has {int(lengths.min())} steps, {max(0, shortest)} to train on, expected more than "
            f"the horizon of {horizon}; lower it or validation_fraction, or leave short series out of fit."
        )
    return found


def _read_split(series: Sequence[TimeSeries], lengths: np.ndarray, split: Any) -> tuple[np.ndarray, np.ndarray]:
    expected = "expected two counts, two fractions, or the dates where validation and calibration begin"
    if not isinstance(split, list | tuple) or len(split) != 2:
        raise OptionError(f"split is {split!r}, {expected}.")
    if all(map(is_int, split)):
        ends = np.cumsum(np.broadcast_to(split, (len(lengths), 2)), axis=1)
    elif all(isinstance(one, float) for one in split):
        ends = np.round(np.cumsum(split) * lengths[:, None] + 1e-9).astype(int)
    else:
        if any(step_seconds(one.index) is None for one in series):
            raise DataError(f"split is {split!r}, but the series have no dates; give counts or fractions.")
        try:
            zone = getattr(series[0].index, "tz", None)
            dates = [pd.Timestamp(one) for one in split]
            dates = [one.tz_localize(zone) if one.tz is None and zone is not None else one for one in dates]
        except (TypeError, ValueError) as reason:
            raise OptionError(f"split is {split!r}, {expected} ({reason}).") from reason
        ends = np.array([one.index.searchsorted(dates) for one in series])
    if (ends < 1).any() or (ends[:, 1] < ends[:, 0]).any() or (ends > lengths[:, None]).any():
        raise OptionError(f"split is {split!r}, which ends at rows {ends[0].tolist()} of {lengths[0]}; {expected}.")
    return ends[:, 0], ends[:, 1]


def first_origin(context: int, end: int) -> int:
    """Rows before the first training window; a context that is longer starts with the first value repeated."""
    return max(1, min(context, end // 4))


def parts_of(series: Sequence[TimeSeries], values: Sequence[np.ndarray], begin: Any, end: Any) -> list[Part]:
    """Rows [begin, end) of each series as windows to fit or to score."""
    rows = zip(*(np.broadcast_to(one, len(series)) for one in (begin, end)), strict=True)
    return [Part(v, one.gaps, int(a), int(b)) for one, v, (a, b) in zip(series, values, rows, strict=True)]


def cuts_of(
    series: Sequence[TimeSeries], values: Sequence[np.ndarray], split: Split, context: int, horizon: int
) -> tuple[list[Cut], list[Part]]:
    """The cuts that `fit_line` chooses by, and the windows of the training part. A cut needs windows on both sides."""
    first = np.array([first_origin(context, int(end)) for end in split.train_end])
    whole = parts_of(series, values, first, split.train_end)
    ends = [split.train_end // 2, split.train_end * 3 // 4, split.train_end]
    cuts = [(parts_of(series, values, first, a), parts_of(series, values, a, b)) for a, b in itertools.pairwise(ends)]
    cuts.append((whole, parts_of(series, values, split.train_end, split.stop_end)))
    return [cut for cut in cuts if all(any(n for one in part for _, n in one.runs(horizon)) for part in cut)], whole


# -- what is known beforehand -----------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """What is known of a step beforehand: its place in cycles of the calendar, and covariates."""

    cycles: tuple[str, ...]
    zone: Any  # time zone of fit, by whose clock the calendar is read
    scale: Scale | None  # of the covariates, None without them

    def of(self, index: Any, known: np.ndarray | None) -> np.ndarray | None:
        """Marks of rows with this index and these covariates, None where there are none. (rows, k)"""
        if self.cycles and not hasattr(index, "day_of_week"):
            raise DataError("the series of fit had dates and this one has none; give a DatetimeIndex.")
        parts = [calendar(index, self.cycles, self.zone)] if self.cycles else []
        if known is not None and self.scale is not None:
            parts.append(self.scale.apply(known))
        return np.concatenate(parts, axis=1) if parts else None


def fit_marks(values: Sequence[np.ndarray], marks: Sequence[np.ndarray], ends: np.ndarray, lag: int) -> np.ndarray:
    """Least squares of the training rows on their marks: of both as they are (lag 0), or of differences over `lag`
    rows, which a drifting level does not disturb. (k, columns)
    """
    rows = [[one[: int(end)] for one in pair] for *pair, end in zip(marks, values, ends, strict=True)]
    if lag:
        m, y = (np.concatenate([pair[side][lag:] - pair[side][:-lag] for pair in rows]) for side in (0, 1))
    else:
        m, y = (np.concatenate([pair[side] - pair[side].mean(0) for pair in rows]) for side in (0, 1))
    return np.linalg.solve(m.T @ m / len(m) + 1e-4 * np.eye(m.shape[1]), m.T @ y / len(m))


def read_covariates(
    given: Any, series: list[TimeSeries], form: Form, rows: Sequence[int], width: int | None, names: list | None,
    repair: Repair,
) -> list[TimeSeries]:  # fmt: skip
    """Covariates of each series, in the form the series came in: tables of these many rows and columns."""
    if form.kind == "dict" and isinstance(given, dict):
        given = {key: given[key] for key in form.keys if key in given}
    tables, got = read_series(given, "covariates", names, repair)
    if got != form:
        raise ShapeError(f"covariates: {len(tables)} tables for {len(series)} series; give them in the same form.")
    width = tables[0].values.shape[1] if width is None else width
    for at, (table, one, wanted) in enumerate(zip(tables, series, rows, strict=True)):
        if table.values.shape != (wanted, width):
            raise ShapeError(
                f"covariates {at}: shape {table.values.shape}, expected {(wanted, width)} (time, columns)."
            )
        if step_seconds(table.index) is not None and step_seconds(one.index) is not None:
            _check_dates(table, one, f"covariates {at}")
    return tables


def _check_dates(table: TimeSeries, series: TimeSeries, what: str) -> None:
    """Refuse covariates whose dates are neither those of the series (and the steps after it) nor those ahead."""
    beside = series.index.append(series.future(max(0, len(table.values) - len(series.values))))[: len(table.values)]
    if not (beside.equals(table.index) or series.future(len(table.values)).equals(table.index)):
        raise DataError(
            f"{what}: dates from {table.index[0]} to {table.index[-1]}, expected those of the series, which ends at "
            f"{series.index[-1]}, or of the steps after it."
        )
