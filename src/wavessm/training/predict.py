"""Predictions of a trained run for new files, in the units of the data, as rows of a table and as a figure.

Classifiers and regressors read recordings (.wav, .npy, .csv, WFDB) at any sampling rate; forecasters continue a CSV
with the columns of training after its last row. Next: `stream.py`, the same for data that are still coming.
"""

from __future__ import annotations

import csv
import dataclasses
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from wavessm.data.files import Signal, align, read_npy, read_signal, to_float32
from wavessm.data.source import DataInfo
from wavessm.data.tables import same_clock, same_step
from wavessm.data.task import OwnOptions
from wavessm.data.windows import make_marks
from wavessm.errors import DataError, OptionError, check_positive, real_array, shape_error
from wavessm.nn.pretrained import find_folder
from wavessm.training.finetune import channel_key
from wavessm.training.metrics import by_level
from wavessm.training.record import pyplot, save_figure
from wavessm.training.run import Run

if TYPE_CHECKING:
    from wavessm.data.series import TimeSeries

log = logging.getLogger("wavessm.training")
Row = dict[str, Any]
_RESERVED = ("file", "case", "prediction", "samples", "rows", "step", "date", "time")


def predict(
    source: str | Path, signals: Any, sampling_rate: float | None = None, channels: Sequence[str] = ()
) -> list[Row]:
    """Predict signals with a trained model, from raw numbers to classes with their probabilities.

    Args:
        source: A run folder, a model folder, a name of `ws.pretrained()`, or a repository "owner/name" of a hub.
        signals: An array (length, channels) or (cases, length, channels) in the units of the training data; or the name
            of a file (.npy, .csv, .wav, WFDB), or a list of names.
        sampling_rate: Of arrays and of files that do not say it, in hertz; None: that of the model.
        channels: Names of the channels of arrays; those that the model was trained on are found by name.

    Returns:
        One row per recording (per step of it, where classes are those of steps), with "prediction" and the probability
        of each class, or with the predicted numbers.
    """
    run = Run.read(find_folder(source))
    if isinstance(signals, str | Path):
        signals = [signals]
    if isinstance(signals, list | tuple) and all(isinstance(path, str | Path) for path in signals):
        return predict_files(run, [Path(path) for path in signals], sampling_rate)
    values = real_array(signals, "predict: signals")
    if values.ndim not in (2, 3) or not values.size or run.info.kind == "forecast":
        raise shape_error("predict: signals", values, "(length, channels) or (cases, length, channels) to classify")
    if channels and len(channels) != values.shape[-1]:
        raise OptionError(f"predict: channels are {', '.join(channels)}, but signals have {values.shape[-1]} of them.")
    cases = [Signal(case, None, tuple(channels)) for case in (values if values.ndim == 3 else values[None])]
    return _recordings(run, run.load_model(), cases, "signals", sampling_rate)


def predict_files(run: Run, paths: list[Path], sampling_rate: float | None = None, times: bool = False) -> list[Row]:
    """Predict recordings, or for a forecaster continue CSV tables, with the best model of a run.

    Args:
        run: The run.
        paths: Files.
        sampling_rate: Of files that do not say it, in hertz.
        times: Whether the first column of .npy and .csv files says when samples were taken.

    Returns:
        One row per recording, or one per step of each forecast or of labels for each step.
    """
    if run.info.symbols:
        raise OptionError(f"predict: {run.task} reads tokens; predict takes recordings. Use `wavessm evaluate`.")
    if not paths:
        raise OptionError("no files to predict; name some, or - for a stream.")
    check_timed(run, times)
    model, rows = run.load_model(), []
    for path in paths:
        place = header if (header := path.with_name(path.name + ".hea")).exists() else path  # of WFDB
        if not place.exists():
            raise DataError(f"{place}: no such file.")
        if run.info.kind == "forecast":
            found = _forecast_file(run, model, place)
        else:
            signals = [read_signal(place, timed=True)] if times else _read_signals(place)
            found = _recordings(run, model, signals, place, sampling_rate)
        rows += [{"file": str(path), **row} for row in found]
    return rows


def check_timed(run: Run, times: bool) -> None:
    """Refuse times that the model cannot read; tell what becomes of a run that was trained with them without any."""
    diagonal = run.method == "gradient" and run.model.reads_gaps and run.info.front_end == "none"
    if run.info.kind == "forecast":
        diagonal = run.options.missing in ("hold", "gap") and (run.info.step is not None or run.method == "linear")
    if times and not diagonal:
        raise OptionError("predict: --times needs a model of gradient training with diagonal layers that reads "
                          "samples, or a forecaster of a table with times, trained with --missing gap.")  # fmt: skip
    if run.info.timed and not times and run.info.kind != "forecast":
        log.warning("trained with times: without --times, samples are taken as %g apart", run.info.step)


def decode(info: DataInfo, output: Tensor, thresholds: Sequence[float] | None = None) -> Row:
    """Turn one output of a model, shape (d_output,), into a class or labels with probabilities, or into numbers in the
    units of the data. A label is predicted from its threshold on, 0.5 where none are given."""
    if info.kind == "regression":
        output = by_level(output[None], info.quantiles).flatten() if info.quantiles else output
        return dict(zip(output_names(info), info.restore(output).tolist(), strict=True))
    if info.kind == "multilabel":
        probabilities = torch.sigmoid(output).tolist()
        found = zip(info.classes, probabilities, thresholds or [0.5] * len(probabilities), strict=True)
        prediction = ";".join(name for name, p, threshold in found if p >= threshold)
    else:
        probabilities = torch.softmax(output, dim=0).tolist()
        prediction = info.classes[int(output.argmax())]
    return {"prediction": prediction, **dict(zip(output_names(info), probabilities, strict=True))}


def decode_all(info: DataInfo, output: Tensor, thresholds: Sequence[float] | None = None, first: int = 0) -> list[Row]:
    """Rows of one recording: that of `decode`, or one for each step of (length, d_output), counted from `first`."""
    if info.kind != "steps":
        return [decode(info, output, thresholds)]
    return [{"step": first + at, **decode(info, each)} for at, each in enumerate(output)]


def output_names(info: DataInfo) -> list[str]:
    """Column names of the outputs: classes or target columns, prefixed where a column of ours has that name."""
    kind = "class" if info.classes else "column"
    names = info.classes or info.columns or tuple(f"y{index}" for index in range(info.d_output))
    if info.quantiles:
        names = tuple(f"y{i} q{q:g}" for i in range(info.d_output // len(info.quantiles)) for q in info.quantiles)
    return [f"{kind} {name}" if name in _RESERVED else name for name in names]


@torch.no_grad()
def _recordings(run: Run, model: Any, signals: list[Signal], where: Any, sampling_rate: float | None) -> list[Row]:
    info, rows, thresholds = run.info, [], run.thresholds()
    sampling_rate = None if sampling_rate is None else check_positive(sampling_rate, "sampling_rate")
    for case, signal in enumerate(signals):
        signal = signal if signal.sampling_rate else signal._replace(sampling_rate=sampling_rate)
        if isinstance(run.options, OwnOptions):
            signal = run.options.shorten(signal, info.sampling_rate)
        if info.some_channels and info.channels and signal.channels:
            signal = _fill_channels(signal, info, where)
        aligned = align(signal, info.channels, info.units, where)
        alone = info.some_channels and not info.channels  # a model of any one channel: the mean over those there are
        cases = aligned.T[..., None] if alone else aligned[None]
        values = torch.stack([check_values(run, each, str(where)) for each in cases])
        own, trained = signal.sampling_rate, info.sampling_rate
        rate = trained / own if own and trained and info.front_end == "none" else 1.0
        timed = {} if signal.times is None else {"times": info.in_steps(signal.times, signal.times[0])}
        output = model(info.standardise(values, sampling_rate=own), rate=1.0 if timed else rate, **timed).mean(0)
        rows += [{"case": case, **row} for row in decode_all(info, output, thresholds)]
    return rows


def _fill_channels(signal: Signal, info: DataInfo, path: Path | str) -> Signal:
    """A recording with all channels of a model that was trained with some left out: those it lacks are zero."""
    own = [channel_key(name) for name in signal.channels]
    known = {at: own.index(key) for at, key in enumerate(map(channel_key, info.channels)) if key in own}
    if not known:
        there, wanted = ", ".join(signal.channels), ", ".join(info.channels)
        raise DataError(f"{path}: has channels {there}, none of which the model was trained on ({wanted}).")
    if len(known) < len(info.channels):
        log.info("%s: channels %s of the model's %d", path, ", ".join(info.channels[at] for at in known), info.d_input)
    values, units = np.zeros((len(signal.values), info.d_input), np.float32), list(info.units)
    values[:, list(known)] = signal.values[:, list(known.values())]
    for at, row in known.items() if signal.units else ():
        units[at] = signal.units[row]
    return signal._replace(values=values, channels=info.channels, units=tuple(units))


def _read_signals(path: Path) -> list[Signal]:
    """The recordings of a file: several where an array has three axes."""
    if path.suffix.lower() == ".npy" and (values := read_npy(path)).ndim == 3 and values.dtype.kind in "buif":
        if not values.size:
            raise DataError(f"{path}: shape {values.shape}, which holds no samples.")
        return [Signal(case, None) for case in to_float32(values, path)]
    return [read_signal(path)]


def check_values(run: Run, values: np.ndarray, source: str) -> Tensor:
    """Return samples (length, channels) as float32, checked; NaN is a missing sample, where the model reads those."""
    info, missing = run.info, run.options.missing if run.info.kind == "forecast" else run.model.missing
    gaps = run.method == "features" or missing in ("hold", "gap")
    if not len(values):
        raise DataError(f"{source}: no samples.")
    if values.shape[1] != info.d_input:
        hint = " Swap its axes: expected (length, channels)." if len(values) == info.d_input else ""
        raise DataError(f"{source}: {values.shape[1]} channels, but the model was trained on {info.d_input}.{hint}")
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if (odd := np.argwhere(np.isinf(single) if gaps else ~np.isfinite(single))).size:
        what = "infinity" if gaps else "NaN or infinity"
        raise DataError(f"{source}: {what} in float32 at sample {odd[0][0]}; fill the gap or cut it out.")
    return torch.from_numpy(single)


def _forecast_file(run: Run, model: Any, path: Path) -> list[Row]:
    info, options = run.info, cast(Any, run.options)
    if run.method == "linear":
        rows = []
        series, known, static = options.frame(path, list(info.channels), info.horizon)
        inputs, form = model.inputs(series, known, info.horizon, str(path), static)
        for at, found in enumerate(model.ahead(inputs, info.horizon)):
            series = {"unique_id": form.keys[at]} if form.keys else {}
            rows += [series | row for row in step_rows(info, *found)]
        return rows
    one = _read_series(run, path)
    if len(one.values) < info.length:
        raise DataError(f"{path}: {len(one.values)} rows, fewer than the context of {info.length} that it needs.")
    check_dates(info, one, str(path))
    return forecast_rows(run, model, one, str(path))


def _read_series(run: Run, path: Path) -> TimeSeries:
    from wavessm.data.series import read_series

    frame, *_ = cast(Any, run.options).frame(path, list(run.info.channels))
    return read_series(frame, str(path), run.options)[0][0]


def check_dates(info: DataInfo, series: TimeSeries, source: str) -> None:
    """Refuse rows at another step than those of training; log a warning of a gap in the context."""
    if series.clock is not None and info.step is not None:
        same_step(series.clock, info.step, source)
        if np.unique(np.diff(series.clock[-info.length :])).size > 1:
            log.warning("%s: rows are not evenly spaced in time; they are taken as if they were", source)


@torch.no_grad()
def forecast_rows(run: Run, model: Any, series: TimeSeries, source: str) -> list[Row]:
    """Forecast the steps after the last row of a series, one row per step, in the units of the data."""
    info = run.info
    context = info.standardise(torch.tensor(series.values[-info.length :])).float()
    values = info.restore(model(context[None], marks=_marks(run, series, source))[0])  # (horizon, columns)
    return step_rows(info, series, values.numpy(), {})


def step_rows(info: DataInfo, series: TimeSeries, ahead: np.ndarray, quantiles: dict[float, np.ndarray]) -> list[Row]:
    """Rows of the steps after a series: dates if it has some, forecasts (horizon, columns), quantiles by level."""
    names, count = output_names(info), len(ahead)
    dates: list[Row] = [{}] * count
    if series.clock is not None:
        dates = [{"date": at.isoformat()} for at in series.future(count)]
    elif series.index.name is not None:  # times that are numbers
        dates = [{"time": float(at)} for at in series.future(count)]
    rows = [{"step": at + 1, **date} for at, date in enumerate(dates)]
    for level, values in [(None, ahead), *quantiles.items()]:
        labels = names if level is None else [f"{name} {level:g}" for name in names]
        for row, found in zip(rows, values.tolist(), strict=True):
            row |= dict(zip(labels, found, strict=True))
    return rows


def _marks(run: Run, series: TimeSeries, source: str) -> Tensor | None:
    """Calendar marks of context and horizon as in training. (1, length + horizon, k)"""
    info, options = run.info, run.options
    if not (count := len(info.mark_sizes) or info.mark_width):
        return None
    same_clock(series.offset, info.offset, source)
    if series.clock is None:
        raise DataError(f"{source}: no dates, but the model was trained with a calendar.")
    ahead = dataclasses.replace(series, index=series.future(info.horizon)).clock
    seconds = np.concatenate([series.clock[-info.length :], ahead])
    calendar = getattr(options, "calendar", "table" if info.mark_sizes else "numbers")
    marks = make_marks(seconds, calendar, minutes=count == 5)[0]
    if not getattr(options, "future_calendar", False):
        marks[info.length :] = 0
    return marks[None]


def read_context(run: Run, path: Path) -> np.ndarray:
    """The last rows (rows, columns) of a table, of a long one those of its first series, for a figure."""
    return _read_series(run, path).values[-min(run.info.length, 4 * run.info.horizon) :]


def write_rows(
    info: DataInfo, groups: Iterable[list[Row]], out: str = "-", collect: bool = False
) -> tuple[int, list[Row]]:
    """Write rows as CSV to a file or to standard output ("-"), each group as soon as it is there, until Ctrl-C.

    Returns the number of rows, and with `collect` the rows themselves; a stream may be endless.
    """
    count, rows, digits = 0, [], _digits(info)
    # Ctrl-C is the way to end a stream
    with (
        nullcontext(sys.stdout) if out == "-" else Path(out).open("w", newline="") as file,
        suppress(KeyboardInterrupt),
    ):
        for group in groups:
            writer = csv.DictWriter(file, fieldnames=list(group[0]), lineterminator="\n")
            if not count:
                writer.writeheader()
            texts = ({k: f"{v:.{digits}g}" if isinstance(v, float) else v for k, v in row.items()} for row in group)
            writer.writerows(texts)
            file.flush()
            count += len(group)
            rows += group if collect else []
    return count, rows


def _digits(info: DataInfo) -> int:
    """Six digits of the spread of the data, on top of those of their level.

    >>> _digits(DataInfo("forecast", 1, 1, 24, target_scale=((1e9,), (2.0,))))
    14
    """
    levels = (abs(mean) / std for mean, std in zip(*info.target_scale, strict=True)) if info.target_scale else ()
    return 6 + max(0, int(math.log10(max(levels, default=1.0) or 1.0)))


def draw_predictions(info: DataInfo, rows: list[Row], path: Path, context: np.ndarray | None = None) -> None:
    """Draw a forecast after its context (from `read_context`), or the outputs along a stream or over all cases."""
    figure, axes = pyplot().subplots(figsize=(9, 4))
    if info.kind == "forecast":
        first = "unique_id" in rows[0]  # of several series: the first; of a stream: the latest forecast
        rows = rows[: info.horizon] if first else rows[-info.horizon :]
    along = next((name for name in ("step", "samples") if name in rows[0]), "")
    places = [row[along] for row in rows] if along else range(len(rows))
    for index, name in enumerate(output_names(info)[:8]):
        axes.plot(places, [row[name] for row in rows], "-" if along else ".", color=f"C{index}", label=name)
        if levels := [key for key in rows[0] if key.startswith(f"{name} ") and info.kind == "forecast"]:
            low, high = ([row[key] for row in rows] for key in (levels[0], levels[-1]))
            axes.fill_between(places, low, high, color=f"C{index}", alpha=0.2, lw=0)
        if context is not None:
            axes.plot(np.arange(1 - len(context), 1), context[:, index], color=f"C{index}", alpha=0.5)
    axes.set(xlabel=along or "case", ylabel="probability" if info.classes else info.kind)
    axes.legend(fontsize=8)
    save_figure(figure, path)
