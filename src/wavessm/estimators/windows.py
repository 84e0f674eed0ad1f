"""Which windows of a series train, stop training early or calibrate, and what is known of their steps beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import DataError, ShapeError, check_int
from wavessm.estimators.backtest import Scale
from wavessm.estimators.base import check_number, mean_and_deviation
from wavessm.estimators.series import TimeSeries, calendar, cycles_of, read_series, step_seconds

SHORTEST_CONTEXT = 24


class Split(NamedTuple):
    """Where training and early stopping end in each series, and how far a forecast looks back."""

    train_end: np.ndarray  # (series,)
    stop_end: np.ndarray  # (series,) equal to train_end without early stopping
    context: int

    @property
    def stops(self) -> bool:
        return bool((self.stop_end > self.train_end).all())


def split_series(lengths: np.ndarray, horizon: int, fraction: Any, context: int | None, season: int) -> Split:
    """Train on all but the last `fraction` of each series; the context, if None, follows from the rest."""
    fraction = check_number(fraction, "validation_fraction", 1)
    held = np.maximum(np.round(fraction * lengths).astype(int), horizon if fraction else 0)
    train_end = lengths - held
    half = held // 2 if fraction and (held >= 4 * horizon).all() else np.zeros_like(held)
    shortest = int(train_end.min())
    if context is None:
        wanted = max(2 * horizon, 3 * season if season > 1 else 0, SHORTEST_CONTEXT)
        context = max(1, min(wanted, (shortest - horizon) // 2))
    context = check_int(context, "context", least=1)
    if shortest < context + horizon:
        raise DataError(
            f"the shortest series has {int(lengths.min())} steps, {max(0, shortest)} to train on, expected at least "
            f"context + horizon = {context} + {horizon}; lower one of them or validation_fraction."
        )
    return Split(train_end, train_end + half, context)


def check_moves(series: Sequence[TimeSeries], train_end: np.ndarray) -> None:
    """Refuse a column that is constant where it trains."""
    for at, (one, end) in enumerate(zip(series, train_end, strict=True)):
        flat = np.flatnonzero(mean_and_deviation(one.values[:end])[1] == 0)
        if flat.size:
            raise DataError(
                f"series {at}: column {flat[0]} is constant ({one.values[0, flat[0]]:g}) over the {end} training "
                "steps; leave it out or repeat its value."
            )


def window_starts(lengths: Sequence[int], begin: Any, end: Any, context: int, horizon: int) -> Tensor:
    """First rows, in a table of all series, of the windows whose horizon lies in [begin, end) of its series.

    >>> window_starts([10, 8], 0, [7, 8], context=3, horizon=2).tolist()
    [0, 1, 2, 10, 11, 12, 13]
    """
    offset, rows = 0, []
    for length, low, high in zip(lengths, np.broadcast_to(begin, len(lengths)), end, strict=True):
        first = torch.arange(max(0, int(low) - context), int(high) - context - horizon + 1)
        rows.append(first + offset)
        offset += length
    return torch.cat(rows)


def nearer_norm(past: Tensor, truth: Tensor) -> str:  # (n, context, columns), (n, horizon, columns)
    """The instance norm whose value, the last or the mean of the context, is nearer to what follows."""
    last = (truth - past[:, -1:]).abs().mean()
    return "last" if last < (truth - past.mean(1, keepdim=True)).abs().mean() else "mean_std"


class Marks(NamedTuple):
    """What is known of a step beforehand: its place in cycles of the calendar, and covariates."""

    cycles: tuple[str, ...]
    zone: Any  # time zone of fit, by whose clock the calendar is read
    scale: Scale | None  # of the covariates, None without them

    @classmethod
    def learn(
        cls, series: list[TimeSeries], train_end: np.ndarray, known: list[np.ndarray] | None, dates: bool
    ) -> Marks:
        """The cycles that all series see twice where they train, and the scale of the covariates."""
        each = [cycles_of(one.index, int(end)) for one, end in zip(series, train_end, strict=True)]
        cycles = tuple(name for name in each[0] if dates and all(name in some for some in each))
        scale = None if known is None else Scale.of(np.concatenate(known))
        return cls(cycles, getattr(series[0].index, "tz", None), scale)

    def of(self, series: TimeSeries, known: np.ndarray | None, steps: int = 0) -> np.ndarray | None:
        """Marks of a series and `steps` more, None where there are none. (time + steps, k)"""
        parts = []
        if self.cycles:
            if step_seconds(series.index) is None:
                raise DataError("the series of fit had dates and this one has none; give a DatetimeIndex.")
            index = series.index.append(series.future(steps)) if steps else series.index
            parts.append(calendar(index, self.cycles, self.zone))
        if known is not None and self.scale is not None:
            parts.append(self.scale.apply(known[: series.length + steps]))
        return np.concatenate(parts, axis=1) if parts else None


def read_covariates(
    given: Any, series: list[TimeSeries], form: Any, rows: Sequence[int], width: int | None, names: list | None
) -> list[TimeSeries]:
    """Covariates of each series, in the form the series came in.

    Args:
        given: Tables (rows, k), one for each series.
        series: What they belong to.
        form: The form of the series, from `read_series`.
        rows: How many rows each table must have.
        width: How many columns each must have; None takes those of the first.
        names: Columns that DataFrames must have, in any order.
    """
    if isinstance(form, list) and isinstance(given, dict):
        given = {key: given[key] for key in form if key in given}
    tables, got = read_series(given, "covariates", names)
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
    beside = series.index.append(series.future(max(0, table.length - series.length)))[: table.length]
    if not any(
        len(dates) == table.length and (dates == table.index).all() for dates in (beside, series.future(table.length))
    ):
        raise DataError(
            f"{what}: dates from {table.index[0]} to {table.index[-1]}, expected those of the series, which ends at "
            f"{series.index[-1]}, or of the steps after it."
        )
