"""Which windows of a series train, stop training early or calibrate, and what is known of their steps beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch
from wavessm.errors import DataError, ShapeError, check_int
from wavessm.estimators.base import Scale, check_number
from wavessm.estimators.series import TimeSeries, calendar, read_series, step_seconds

SHORTEST_CONTEXT = 24


class Split(NamedTuple):
    """Where training and early stopping end in each series, and how far a forecast looks back."""

    train_end: np.ndarray  # (series,)
    stop_end: np.ndarray  # (series,) equal to train_end without early stopping
    context: int

    @property
    def stops(self) -> bool:
        """Whether some rows stop the training early."""
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
    context = check_int(context, "context", minimum=1)
    if shortest < context + horizon:
        raise DataError(
            f"the shortest series has {int(lengths.min())} steps, {max(0, shortest)} to train on, expected at least "
            f"context + horizon = {context} + {horizon}; lower one of them or validation_fraction."
        )
    return Split(train_end, train_end + half, context)


def training_scale(one: TimeSeries, end: int, at: int) -> Scale:
    """The scale of the first `end` rows; a constant column is refused."""
    scale = Scale.of(one.values[:end])
    for column in np.flatnonzero(scale.constant):
        raise DataError(
            f"series {at}: column {column} is constant ({scale.mean[column]:g}) over the {end} training steps; leave "
            "it out or repeat its value."
        )
    return scale


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


def nearer_norm(batch: Batch) -> str:
    """The instance norm whose value, the last or the mean of a context, is nearer to what follows."""
    last, mean = (batch.y - batch.x[:, -1:]).abs().mean(), (batch.y - batch.x.mean(1, keepdim=True)).abs().mean()
    return "last" if last < mean else "mean_std"


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


def read_covariates(
    given: Any, series: list[TimeSeries], form: Any, rows: Sequence[int], width: int | None, names: list | None
) -> list[TimeSeries]:
    """Covariates of each series, in the form the series came in: tables of these many rows and columns."""
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
    beside = series.index.append(series.future(max(0, len(table.values) - len(series.values))))[: len(table.values)]
    if not (beside.equals(table.index) or series.future(len(table.values)).equals(table.index)):
        raise DataError(
            f"{what}: dates from {table.index[0]} to {table.index[-1]}, expected those of the series, which ends at "
            f"{series.index[-1]}, or of the steps after it."
        )
