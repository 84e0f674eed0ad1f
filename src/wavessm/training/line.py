"""The line (`features/line.py`) of several series, and what is known of their steps beforehand.

Next: `forecaster.py`, which reads series, fits them and forecasts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from wavessm.data.series import Form, Split, TimeSeries, calendar, cycles_of, read_series, step_seconds
from wavessm.data.tables import Scale
from wavessm.errors import DataError, ShapeError
from wavessm.features.line import Cut, Features, Line, Moments, Part, default_members, fit_line, refit

# -- the line of several series ---------------------------------------------------------------------------------------


def parts_of(series: Sequence[TimeSeries], values: Sequence[np.ndarray], begin: Any, end: Any) -> list[Part]:
    """Rows [begin, end) of each series as windows to fit or to score."""
    rows = zip(*(np.broadcast_to(one, len(series)) for one in (begin, end)), strict=True)
    return [Part(v, one.gaps, int(a), int(b)) for one, v, (a, b) in zip(series, values, rows, strict=True)]


def _values(series: Sequence[TimeSeries], B: np.ndarray | None) -> list[np.ndarray]:
    """Scaled values, without what their marks add by B (k, columns)."""
    return [one.scaled() if B is None else one.scaled() - one.marks @ B for one in series]


def _first_origins(context: int, ends: Any) -> np.ndarray:
    """Rows before the first training window; a context that is longer starts with the first value repeated."""
    return np.maximum(1, np.minimum(context, np.asarray(ends) // 4))


def _cuts(
    series: Sequence[TimeSeries], values: Sequence[np.ndarray], split: Split, context: int, horizon: int
) -> tuple[list[Cut], list[Part]]:
    """The cuts that `fit_line` chooses by, and the windows of the training part. A cut needs windows on both sides."""
    first = _first_origins(context, split.train_end)
    whole = parts_of(series, values, first, split.train_end)
    ends = [split.train_end // 2, split.train_end * 3 // 4, split.train_end]
    cuts = [(parts_of(series, values, first, a), parts_of(series, values, a, b)) for a, b in itertools.pairwise(ends)]
    cuts.append((whole, parts_of(series, values, split.train_end, split.stop_end)))
    return [cut for cut in cuts if all(any(len(one.origins(horizon)) for one in part) for part in cut)], whole


def fit_series(
    series: Sequence[TimeSeries], split: Split, context: int, season: int, horizon: int, memory: bool
) -> tuple[Line, str]:
    """The line of the training rows, and how calendar and covariates are taken off first."""
    how, B = _choose_marks(series, split, min(context, 4 * season + 24), horizon)
    cuts, whole = _cuts(series, _values(series, B), split, context, horizon)
    return replace(fit_line(cuts, whole, default_members(context, season, memory), season, horizon), B=B), how


def refit_series(line: Line, series: Sequence[TimeSeries], context: int, season: int, ends: Any) -> Line:
    """The chosen line, fitted on all rows up to `ends`."""
    return refit(line, parts_of(series, _values(series, line.B), _first_origins(context, ends), ends), season)


def _choose_marks(
    series: Sequence[TimeSeries], split: Split, context: int, horizon: int
) -> tuple[str, np.ndarray | None]:
    """By levels, by differences or not at all: the least error of a plain ridge in the last cut; and B (k, columns)."""
    if any(one.marks is None for one in series):
        return "none", None
    found: list[tuple[float, str, Any]] = []
    for how, lag in (("none", None), ("levels", 0), ("differences", 1)):
        B = None if lag is None else _fit_marks(series, split.train_end, lag)
        cuts, _ = _cuts(series, _values(series, B), split, context, horizon)
        error = float(how != "levels")
        if cuts:
            line = fit_line(cuts[-1:], cuts[-1][0], [Features(context)], 1, horizon)
            error = float(Moments.of(cuts[-1][1], line.features, horizon).error(line.W).mean())
        found.append((error, how, B))
    return min(found, key=lambda one: one[0])[1:]


def _fit_marks(series: Sequence[TimeSeries], ends: np.ndarray, lag: int) -> np.ndarray:
    """Least squares of the training rows on their marks: of both as they are (lag 0), or of differences over `lag`
    rows, which a drifting level does not disturb. (k, columns)
    """
    each = ((one.marks, one.scaled(), int(end)) for one, end in zip(series, ends, strict=True))
    rows = [(marks[:end], values[:end]) for marks, values, end in each if marks is not None]
    if lag:
        m, y = (np.concatenate([pair[side][lag:] - pair[side][:-lag] for pair in rows]) for side in (0, 1))
    else:
        m, y = (np.concatenate([pair[side] - pair[side].mean(0) for pair in rows]) for side in (0, 1))
    return np.linalg.solve(m.T @ m / len(m) + 1e-4 * np.eye(m.shape[1]), m.T @ y / len(m))


# -- what is known beforehand -----------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """What is known of a step beforehand: its place in cycles of the calendar, and covariates."""

    cycles: tuple[str, ...]
    zone: Any  # time zone of fit, by whose clock the calendar is read
    scale: Scale | None  # of the covariates, None without them

    @classmethod
    def fit(cls, series: Sequence[TimeSeries], ends: Any, tables: Sequence[TimeSeries]) -> Marks:
        """Cycles that all training rows see, none without `ends`, and the scale of the tables of covariates."""
        cycles = [cycles_of(one.index, int(end)) for one, end in zip(series, ends, strict=False)]
        shared = tuple(name for name in (cycles[0] if cycles else ()) if all(name in some for some in cycles))
        scale = Scale.of(np.concatenate([table.values for table in tables])) if tables else None
        return cls(shared, getattr(series[0].index, "tz", None), scale)

    def of(self, index: Any, known: np.ndarray | None) -> np.ndarray | None:
        """Marks of rows with this index and these covariates, None where there are none. (rows, k)"""
        if self.cycles and not hasattr(index, "day_of_week"):
            raise DataError("the series of fit had dates and this one has none; give a DatetimeIndex.")
        parts = [calendar(index, self.cycles, self.zone)] if self.cycles else []
        if known is not None and self.scale is not None:
            parts.append(self.scale.apply(known))
        return np.concatenate(parts, axis=1) if parts else None


def read_covariates(
    given: Any, series: list[TimeSeries], form: Form, rows: Sequence[int], options: Any, width: int | None = None,
    names: list | None = None,
) -> list[TimeSeries]:  # fmt: skip
    """Covariates of each series, in the form the series came in: tables of these many rows and columns."""
    if form.kind == "dict" and isinstance(given, dict):
        given = {key: given[key] for key in form.keys if key in given}
    tables, got = read_series(given, "covariates", options, names)
    if got != form:
        raise ShapeError(f"covariates: {len(tables)} tables for {len(series)} series; give them in the same form.")
    width = tables[0].values.shape[1] if width is None else width
    for at, (table, one, wanted) in enumerate(zip(tables, series, rows, strict=True)):
        if table.values.shape != (wanted, width):
            raise ShapeError(
                f"covariates {at}: shape {table.values.shape}, expected {(wanted, width)} (time, columns)."
            )
        if step_seconds(table.index) is None or step_seconds(one.index) is None:
            continue
        beside = one.index.append(one.future(max(0, wanted - len(one.values))))[:wanted]
        if not (beside.equals(table.index) or one.future(wanted).equals(table.index)):
            raise DataError(
                f"covariates {at}: dates from {table.index[0]} to {table.index[-1]}, expected those of the series, "
                f"which ends at {one.index[-1]}, or of the steps after it."
            )
    return tables
