"""Stage 9e: what a forecaster may be given: arrays and pandas objects as numbers with an index that goes on.

(time,) or (time, columns)     an array; columns are forecast together
Series, DataFrame              the same with an index; a DatetimeIndex also gives marks of the calendar
a list or dict of these        several series, one model
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from wavessm.data.tables import LARGEST
from wavessm.errors import DataError, ShapeError
from wavessm.estimators.index import check_index, continue_index, pandas, refuse_other_step
from wavessm.estimators.tables import first_unfit, places


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """One series: numbers, its index and names where it came with them."""

    values: np.ndarray  # (time, columns) float64
    index: Any = None  # a pandas Index, or None for arrays
    columns: Any = None  # names of a DataFrame's columns, the name of a Series
    kind: str = "array"  # "array", "table", "series", "frame"

    @property
    def length(self) -> int:
        return len(self.values)

    def in_order(self, names: Sequence, what: str) -> TimeSeries:
        """The track with its columns in the order of these names."""
        if len(names) == 1 == self.values.shape[1]:  # one column needs no name
            return self
        order = places(self.columns, names, what)
        if order == sorted(order):
            return self
        return replace(self, values=self.values[:, order], columns=self.columns[order])

    def future(self, steps: int) -> Any:
        """The index of the `steps` after the last one."""
        if self.index is None:
            return None
        return continue_index(self.index, steps)

    def wrap(self, values: np.ndarray, index: Any) -> Any:  # (steps, columns)
        """Numbers in the form the series came in."""
        if self.kind == "array":
            return values[:, 0]
        if self.kind == "table":
            return values
        pd = pandas()
        if self.kind == "series":
            return pd.Series(values[:, 0], index=index, name=self.columns)
        return pd.DataFrame(values, index=index, columns=self.columns)


def read_series(series: Any, what: str, names: Sequence | None = None) -> tuple[list[TimeSeries], Any]:
    """Tracks, and what they came in: None for one series, "list", or the keys of a dict."""
    if isinstance(series, Mapping):
        if not series:
            raise ShapeError(f"{what}: an empty dict, expected at least one series.")
        return read_tracks(((f"{what} {key!r}", value) for key, value in series.items()), names), list(series)
    if isinstance(series, list | tuple) and series and not np.isscalar(series[0]):
        return read_tracks(((f"{what} {at}", value) for at, value in enumerate(series)), names), "list"
    return read_tracks([(what, series)], names), None


def read_tracks(parts: Iterable[tuple[str, Any]], names: Sequence | None) -> list[TimeSeries]:
    """Tracks of what has these titles; tables with their columns in the order of the names, or of the first table."""
    tracks = []
    for what, part in parts:
        track = read_track(part, what)
        if track.kind == "frame":
            names = list(track.columns) if names is None else names
            track = track.in_order(names, what)
        tracks.append(track)
    return tracks


def names_of(tracks: Sequence[TimeSeries]) -> list | None:
    """Names of the columns, in the order that all tables have; None without tables."""
    return next((list(track.columns) for track in tracks if track.kind == "frame"), None)


def refuse_others(tracks: Sequence[TimeSeries], like: TimeSeries) -> None:
    """One line about the first series with other columns or another step than one that came before."""
    width = like.values.shape[1]
    for at, track in enumerate(tracks):
        if track.values.shape[1] != width:
            raise ShapeError(f"series {at} has {track.values.shape[1]} columns, expected {width}; all need the same.")
        refuse_other_step(track.index, like.index, f"series {at}")


def rewrap(results: list[Any], form: Any) -> Any:
    """Results of several series in the form they came in."""
    if form is None:
        return results[0]
    return results if form == "list" else dict(zip(form, results, strict=True))


def read_track(series: Any, what: str) -> TimeSeries:
    """One series, checked."""
    index = columns = None
    kind = ""
    if series is None or isinstance(series, str):
        raise ShapeError(f"{what}: got {series!r}, expected numbers; read a file first, as with pandas.read_csv.")
    if hasattr(series, "to_numpy") and hasattr(series, "index"):
        index, values = series.index, series.to_numpy()
        kind = "series" if series.ndim == 1 else "frame"
        columns = series.name if kind == "series" else series.columns
        kinds = [dtype.kind for dtype in series.dtypes] if kind == "frame" else []
        dated = [columns[at] for at, letter in enumerate(kinds) if letter == "M"]
        if dated:
            raise DataError(
                f"{what}: column {dated[0]!r} holds dates; make it the index with .set_index({dated[0]!r})."
            )
    else:
        values = series.detach().cpu().numpy() if isinstance(series, torch.Tensor) else series
    try:
        array = np.asarray(values)
        array = array.astype(np.float64) if array.dtype.kind in "fiubO" else array
    except (TypeError, ValueError, OverflowError) as reason:
        raise DataError(f"{what}: not a table of numbers ({reason}); give (time,) or (time, columns).") from reason
    if array.dtype.kind != "f" or array.ndim not in (1, 2) or 0 in array.shape:
        raise ShapeError(f"{what}: {array.shape} of {array.dtype}, expected numbers (time,) or (time, columns).")
    if found := first_unfit(array):
        row, value = found
        if not np.isfinite(value):
            raise DataError(f"{what}: NaN or infinity in row {row}; fill it first, as with .interpolate().")
        raise DataError(f"{what}: {value:g} in row {row}, beyond float32 ({LARGEST:.2g} at most); use a larger unit.")
    if index is not None:
        check_index(index, what)
    return TimeSeries(array.reshape(len(array), -1), index, columns, kind or ("array" if array.ndim == 1 else "table"))
