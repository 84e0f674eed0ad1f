"""From rows in time to a forecasting set: calendar marks, scaling, chronological parts, windows.

Place in the pipeline: `series.py` reads; `datasets/forecast.py` and `datasets/csv.py` end in `window_sets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wavessm.data.info import DataInfo, DataSet
from wavessm.data.tables import Scale, import_pandas
from wavessm.errors import DataError

if TYPE_CHECKING:
    import torch

    from wavessm.data.series import TimeSeries

CYCLES = {"day": 86_400.0, "week": 604_800.0, "year": 365.2425 * 86_400}
"""Seconds of the cycles of the calendar."""
Parts = dict[str, tuple[int, int]]  # part -> first row, row after the last


def make_marks(seconds: np.ndarray, calendar: str, minutes: bool) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return calendar marks (rows, k) of seconds (rows,) since 1970, and the table sizes of those that are embedded.

    "table": month, day, weekday, hour and, with `minutes`, quarter of the hour, long; "numbers": minute where wanted,
    hour, weekday, day, day of year, each in [-0.5, 0.5]; "waves": sines and cosines of the day (four harmonics) and the
    week (three), 14 in all; "waves-year": with the first of the year, and that times the first two of the day, 24 in
    all: a mean for every hour and season is then linear in them.
    """
    import torch

    if calendar.startswith("waves"):
        counts = {"day": 4, "week": 3} | ({"year": 1} if calendar == "waves-year" else {})
        return torch.from_numpy(waves(seconds, counts).astype(np.float32)), ()
    now = import_pandas().DatetimeIndex(seconds.astype("datetime64[s]"))
    if calendar == "table":
        fields = [now.month, now.day, now.dayofweek, now.hour]
        sizes: tuple[int, ...] = (13, 32, 7, 24)
        if minutes:
            fields, sizes = [*fields, now.minute // 15], (*sizes, 4)
        return torch.from_numpy(np.stack(fields, axis=1).astype(np.int64)), sizes
    real = [now.hour / 23, now.dayofweek / 6, (now.day - 1) / 30, (now.dayofyear - 1) / 365]
    if minutes:
        real = [now.minute / 59, *real]
    return torch.from_numpy((np.stack(real, axis=1) - 0.5).astype(np.float32)), ()


def waves(seconds: np.ndarray, counts: dict[str, int]) -> np.ndarray:
    """Sines and cosines of the first harmonics of cycles (day, week, year) at seconds (rows,) since 1970, with products
    of the first of the year and the first two of the day: a day has another shape in each season. (rows, k)"""
    found = {}
    for name, count in counts.items():
        angle = 2 * np.pi * np.remainder(seconds / CYCLES[name], 1.0)
        found[name] = [wave(k * angle) for k in range(1, count + 1) for wave in (np.sin, np.cos)]
    mixed = [a * b for a in found.get("year", [])[:2] for b in found.get("day", [])[:4]]
    return np.stack([*(wave for each in found.values() for wave in each), *mixed], axis=1)


def window_sets(name: str, series: TimeSeries, source: str, parts: Parts, context: int, options: Any) -> DataSet:
    """Cut windows of stride 1 in each part; validation and test reach `context` rows back for their first context.

    Columns are scaled by mean and population standard deviation of the training rows, 1 where one is constant. Of the
    options `horizon`, `calendar` (see `make_marks`) and `future_calendar` count: whether a model is given the marks of
    the horizon too. `source` is for messages.
    """
    import torch

    from wavessm.data.source import Windows
    from wavessm.features.line import Part

    horizon, calendar = options.horizon, options.calendar
    train, names = series.values[slice(*parts["train"])], tuple(map(str, series.columns))
    moments = Scale.of(train)
    scaled = torch.from_numpy(moments.apply(series.values).astype(np.float32))
    marks: torch.Tensor | None = None
    sizes: tuple[int, ...] = ()
    if series.clock is not None and calendar != "none":
        marks, sizes = make_marks(series.clock, calendar, minutes=(series.step or 3600) < 3600)
    gaps = None if series.gaps is None else torch.from_numpy(series.gaps)
    sources = []
    for part, (begin, stop) in parts.items():
        first = begin if part == "train" else begin - context
        if stop - first < context + horizon or first < 0:
            raise DataError(f"{source}: the {part} part has {stop - begin} rows, too few for context {context} "
                            f"+ horizon {horizon}; give more rows, or a shorter context or horizon.")  # fmt: skip
        starts = torch.from_numpy(Part(series.values, series.gaps, first + context, stop).origins(horizon) - context)
        sources.append(Windows(scaled, marks, context, horizon, starts, options.future_calendar, gaps))
    scale = (tuple(moments.mean.tolist()), tuple(moments.deviation.tolist()))
    info = DataInfo(
        "forecast", len(names), len(names), context, horizon=horizon, columns=names,
        channels=names, scale=scale, target_scale=scale, mark_sizes=sizes,
        mark_width=0 if marks is None or calendar == "table" else marks.shape[1], step=series.step,
        offset=series.offset,
    )  # fmt: skip
    return DataSet(name, sources[0], sources[1], sources[2], info)
