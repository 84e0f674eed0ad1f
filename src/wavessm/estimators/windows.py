"""Stage 9f: a forecaster's data: what to train on, one long table, windows by their first row, conformal quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import DataError, OptionError, ShapeError, check_int
from wavessm.estimators.index import calendar, step_seconds
from wavessm.estimators.series import TimeSeries, read_tracks

CONSTANT = 1e-12
"""A column whose deviation is at most this part of its mean does not move."""

SHORTEST_CONTEXT = 24


class Split(NamedTuple):
    """Where training and early stopping end in each series, and how far a forecast looks back."""

    train_end: np.ndarray  # (series,)
    stop_end: np.ndarray  # (series,) equal to train_end where nothing stops the training early
    context: int

    @property
    def stops(self) -> bool:
        return bool((self.stop_end > self.train_end).all())


def split_series(lengths: np.ndarray, horizon: int, fraction: float, context: int | None, season: int) -> Split:
    """What to train on: all but the last `fraction` of each series; the context, if not given, from the rest."""
    if not isinstance(fraction, int | float | np.number) or not 0 <= fraction < 1:
        raise OptionError(f"validation_fraction is {fraction!r}, expected 0 ≤ fraction < 1.")
    stretch = np.round(fraction * lengths).astype(int)
    if fraction:
        stretch = np.maximum(stretch, horizon)
    train_end = lengths - stretch
    half = stretch // 2 if (stretch >= 4 * horizon).all() and fraction else np.zeros_like(stretch)
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


class Scale(NamedTuple):
    """Mean and deviation of columns."""

    mean: np.ndarray  # (columns,)
    deviation: np.ndarray  # (columns,)

    @classmethod
    def of(cls, values: np.ndarray) -> Scale:  # (time, columns)
        """Of these rows; columns that do not move keep their unit.

        >>> Scale.of(np.array([[2e-9, 5.0], [4e-9, 5.0]])).deviation.tolist()
        [1e-09, 1.0]
        """
        mean, deviation = values.mean(axis=0), values.std(axis=0)
        return cls(mean, np.where(deviation > CONSTANT * np.abs(mean), deviation, 1.0))

    def do(self, values: np.ndarray) -> np.ndarray:
        return (values - self.mean) / self.deviation

    def undo(self, values: np.ndarray) -> np.ndarray:
        return values * self.deviation + self.mean


class Table(NamedTuple):
    """Standardised series one after another, and what is known of each step beforehand."""

    values: Tensor  # (rows, columns)
    marks: Tensor | None  # (rows, k)

    def windows(self, first: Tensor, length: int) -> tuple[Tensor, Tensor | None]:
        """`length` rows from each first row on. (n,) → (n, length, columns), (n, length, k)"""
        rows = first[:, None] + torch.arange(length, device=first.device)
        return self.values[rows], None if self.marks is None else self.marks[rows]

    def to(self, device: torch.device) -> Table:
        return Table(self.values.to(device), None if self.marks is None else self.marks.to(device))


def refuse_constant(tracks: Sequence[TimeSeries], train_end: np.ndarray) -> None:
    """One line about the first column that never moves where it is trained on."""
    for at, (track, end) in enumerate(zip(tracks, train_end, strict=True)):
        values = track.values[:end]
        flat = np.flatnonzero(values.std(axis=0) <= CONSTANT * np.abs(values.mean(axis=0)))
        if flat.size:
            which = f"series {at}" if len(tracks) > 1 else "the series"
            raise DataError(
                f"{which}: column {flat[0]} is constant ({values[0, flat[0]]:g}) over the {end} training steps; there "
                "is nothing to scale or learn, leave it out or repeat its value."
            )


def starts(lengths: Sequence[int], begin: Any, end: Any, context: int, horizon: int) -> Tensor:
    """First rows in the table of all windows whose horizon lies in [begin, end) of its series.

    >>> starts([10, 8], 0, [7, 8], context=3, horizon=2).tolist()
    [0, 1, 2, 10, 11, 12, 13]
    """
    offset, rows = 0, []
    for length, low, high in zip(lengths, np.broadcast_to(begin, len(lengths)), end, strict=True):
        first = torch.arange(max(0, int(low) - context), int(high) - context - horizon + 1)
        rows.append(first + offset)
        offset += length
    return torch.cat(rows)


def nearer_norm(windows: Tensor, context: int) -> str:  # (n, context + horizon, columns)
    """Whether the last value or the mean of a context is nearer to what follows."""
    past, truth = windows[:, :context], windows[:, context:]
    last = (truth - past[:, -1:]).abs().mean()
    return "last" if last < (truth - past.mean(1, keepdim=True)).abs().mean() else "mean_std"


def table_of(tracks: Sequence[TimeSeries], scales: Sequence[Scale], marks: Sequence[np.ndarray] | None) -> Table:
    """The table of several series; marks have the rows of their series."""
    values = np.concatenate([scale.do(track.values) for track, scale in zip(tracks, scales, strict=True)])
    known = None if marks is None else torch.from_numpy(np.concatenate(list(marks)).astype(np.float32))
    return Table(torch.from_numpy(values.astype(np.float32)), known)


def marks_of(track: TimeSeries, known: np.ndarray | None, steps: int, cycles: tuple[str, ...]) -> np.ndarray | None:
    """Calendar and covariates of a series and of `steps` more. → (time + steps, k)"""
    parts = []
    if cycles:
        index = track.index.append(track.future(steps)) if steps else track.index
        parts.append(calendar(index, cycles))
    if known is not None:
        parts.append(known[: track.length + steps])
    return np.concatenate(parts, axis=1) if parts else None


def read_covariates(
    covariates: Any,
    tracks: list[TimeSeries],
    form: Any,
    rows: Sequence[int],
    width: int | None = None,
    names: list | None = None,
) -> list[TimeSeries]:
    """One table (rows, k) for each series, in the form the series came in; `width` and `names` are those of fit."""
    if form is None:
        given = [covariates]
    elif form == "list":
        given = list(covariates) if isinstance(covariates, list | tuple) else []
    else:
        given = [covariates[key] for key in form if key in covariates] if isinstance(covariates, dict) else []
    if len(given) != len(tracks):
        raise ShapeError(f"covariates: {len(given)} tables came for {len(tracks)} series; give them in the same form.")
    tables = read_tracks(((f"covariates {at}", table) for at, table in enumerate(given)), names)
    width = tables[0].values.shape[1] if width is None else width
    for at, (table, track, wanted) in enumerate(zip(tables, tracks, rows, strict=True)):
        if table.values.shape != (wanted, width):
            raise ShapeError(
                f"covariates {at}: shape {table.values.shape}, expected {wanted} rows and {width} columns."
            )
        _check_dates(table, track, f"covariates {at}")
    return tables


def _check_dates(table: TimeSeries, track: TimeSeries, what: str) -> None:
    """Dates of covariates must be those of the series and the steps after it."""
    if step_seconds(table.index) is None or step_seconds(track.index) is None:
        return
    last = (
        track.index
        if len(table.index) <= track.length
        else track.index.append(track.future(table.length - track.length))
    )
    ahead = track.future(table.length)
    for wanted in (last[: table.length], ahead):
        if len(wanted) == table.length and (wanted == table.index).all():
            return
    raise DataError(
        f"{what}: dates from {table.index[0]} to {table.index[-1]}, expected those of the series, which ends at "
        f"{track.index[-1]}, or of the steps after it."
    )


def conformal(scores: np.ndarray, level: float) -> np.ndarray:
    """The quantile that covers a new score with probability ≥ level, column by column, NaN left out. (n, ...) → (...)

    The ⌈(n + 1) level⌉-th smallest of n scores (split conformal prediction); fewer than that many are refused.

    >>> conformal(np.arange(1.0, 20.0), 0.9).item()
    18.0
    """
    ordered = np.sort(scores, axis=0)  # NaN last
    count = np.isfinite(scores).sum(axis=0)
    rank = np.ceil((count + 1) * level - 1e-9).astype(int)
    if (rank > count).any():
        fewest = int(count.min())
        need = math.ceil(level / (1 - level) - 1e-9)
        raise DataError(
            f"intervals: {fewest} forecasts of the validation stretch reach the last step, level {level} needs {need}; "
            "use a lower level, fewer steps, a longer series or a larger validation_fraction."
        )
    return np.take_along_axis(ordered, rank[None] - 1, axis=0)[0]
