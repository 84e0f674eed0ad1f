"""Stage 9f: a forecaster's data as one long table, windows of it by their first row, and conformal quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import DataError, ShapeError
from wavessm.estimators.series import Track, calendar, read_track

FLOOR = 1e-6


class Scale(NamedTuple):
    """Mean and deviation of columns."""

    mean: np.ndarray  # (columns,)
    deviation: np.ndarray  # (columns,)

    @classmethod
    def of(cls, values: np.ndarray) -> Scale:  # (time, columns)
        deviation = values.std(axis=0)
        return cls(values.mean(axis=0), np.where(deviation > FLOOR, deviation, 1.0))

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


def table_of(tracks: Sequence[Track], scales: Sequence[Scale], marks: Sequence[np.ndarray] | None) -> Table:
    """The table of several series; marks have the rows of their series."""
    values = np.concatenate([scale.do(track.values) for track, scale in zip(tracks, scales, strict=True)])
    known = None if marks is None else torch.from_numpy(np.concatenate(list(marks)).astype(np.float32))
    return Table(torch.from_numpy(values.astype(np.float32)), known)


def marks_of(track: Track, known: np.ndarray | None, steps: int, cycles: tuple[str, ...]) -> np.ndarray | None:
    """Calendar and covariates of a series and of `steps` more. → (time + steps, k)"""
    parts = []
    if cycles:
        index = track.index.append(track.future(steps)) if steps else track.index
        parts.append(calendar(index, cycles))
    if known is not None:
        parts.append(known[: track.length + steps])
    return np.concatenate(parts, axis=1) if parts else None


def read_covariates(covariates: Any, tracks: list[Track], form: Any, rows: Sequence[int]) -> list[np.ndarray]:
    """One table (rows, k) for each series, in the form the series came in."""
    if form is None:
        given = [covariates]
    elif form == "list":
        given = list(covariates) if isinstance(covariates, list | tuple) else []
    else:
        given = [covariates[key] for key in form if key in covariates] if isinstance(covariates, dict) else []
    if len(given) != len(tracks):
        raise ShapeError(f"covariates: {len(given)} tables came for {len(tracks)} series; give them in the same form.")
    tables = [read_track(table, f"covariates {at}").values for at, table in enumerate(given)]
    for at, (table, wanted) in enumerate(zip(tables, rows, strict=True)):
        if len(table) != wanted or table.shape[1] != tables[0].shape[1]:
            raise ShapeError(
                f"covariates {at}: shape {table.shape}, expected {wanted} rows and {tables[0].shape[1]} columns."
            )
    return tables


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
        need = math.ceil(level / (1 - level))
        raise DataError(
            f"intervals: {fewest} forecasts of the validation stretch reach the last step, level {level} needs {need}; "
            "use a lower level, fewer steps, a longer series or a larger validation_fraction."
        )
    return np.take_along_axis(ordered, rank[None] - 1, axis=0)[0]
