"""Stage 8n: predictions for new files from a run folder, in the units of the data.

Classification and regression take recordings (.wav, .npy, .csv, WFDB); one sampled at another rate is heard at it.
Forecasting takes a CSV with the columns of training and says what follows its last row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavessm.data.dates import DATE_NAMES, go_on, guess_dates, same_clock, same_step
from wavessm.data.series import Series, make_marks, read_series
from wavessm.data.signals import Signal, read_npy, read_signal
from wavessm.data.source import DataInfo
from wavessm.data.tables import read_table
from wavessm.errors import DataError, OptionError
from wavessm.nn.model import SequenceModel
from wavessm.training.folder import Run

Row = dict[str, Any]
THRESHOLD = 0.5
_OWN = ("file", "case", "prediction", "samples", "rows", "step", "date")
"""Columns of a prediction that are not the data's."""


def predict_files(run: Run, paths: Sequence[Path]) -> list[Row]:
    """Rows of predictions, file after file."""
    if run.info.symbols:
        raise OptionError(f"predict: {run.task} reads tokens; predict takes recordings. Use `wavessm evaluate`.")
    model = run.load_model()
    rows: list[Row] = []
    for path in paths:
        if run.info.kind == "forecast":
            rows += forecast_file(run, model, path)
        else:
            for case, signal in enumerate(_signals(path)):
                rows.append({"file": str(path), "case": case, **judge(run.info, _hear(run.info, model, signal, path))})
    return rows


def judge(info: DataInfo, output: Tensor) -> Row:
    """What a model's output (d_output,) means: a class with probabilities, labels, or numbers in the data's units."""
    if info.kind == "regression":
        return {name: float(value) for name, value in zip(names_of(info), info.restore(output), strict=True)}
    if info.kind == "multilabel":
        chances = torch.sigmoid(output)
        said = ";".join(name for name, p in zip(info.classes, chances, strict=True) if p >= THRESHOLD)
    else:
        chances = torch.softmax(output, dim=0)
        said = info.classes[int(chances.argmax())]
    return {"prediction": said, **{name: float(p) for name, p in zip(names_of(info), chances, strict=True)}}


def names_of(info: DataInfo) -> list[str]:
    """What the columns of a prediction are called: as the classes or the data's columns, `class case` for a class case
    beside the column of that name."""
    kind = "class" if info.classes else "column"
    names = info.classes or info.columns or tuple(f"y{index}" for index in range(info.d_output))
    return [f"{kind} {name}" if name in _OWN else name for name in names]


def _signals(path: Path) -> list[Signal]:
    """The recordings of a file: several where an array has three axes."""
    if path.suffix.lower() == ".npy" and path.exists():
        values = read_npy(path)
        if not values.size:
            raise DataError(f"{path}: shape {values.shape}, which holds no samples.")
        if values.ndim == 3 and values.dtype.kind in "buif":
            return [Signal(case.astype(np.float32), None, ()) for case in values]
    record = path.with_name(path.name + ".hea")  # WFDB names records without a suffix
    return [read_signal(record if record.exists() else path)]


@torch.no_grad()
def _hear(info: DataInfo, model: SequenceModel, signal: Signal, path: Path) -> Tensor:
    values = check_values(info, _in_order(info, signal, path), str(path))
    rate = 1.0 if info.rate is None or signal.rate is None else info.rate / signal.rate
    if info.step_scale is not None and (rate != 1 or len(values) > info.length):
        raise DataError(f"{path}: this model scales every step by itself; expected at most {info.length} samples at "
                        "the rate of training.")  # fmt: skip
    return model(info.standardise(values)[None], rate=rate)[0]


def _in_order(info: DataInfo, signal: Signal, path: Path) -> np.ndarray:
    """Samples with the channels in the order of training, where both have names, in any case of letters."""
    here, wanted = ([name.upper() for name in names] for names in (signal.channels, info.channels))
    if not here or not wanted or here == wanted:
        return signal.values
    if sorted(here) != sorted(wanted):
        raise DataError(
            f"{path}: its channels are {', '.join(signal.channels)}, but the model was trained on "
            f"{', '.join(info.channels)}."
        )
    return signal.values[:, [here.index(name) for name in wanted]]


def check_values(info: DataInfo, values: np.ndarray, where: str) -> Tensor:
    """Samples (length, channels) as float32, of the right width and finite."""
    if values.shape[1] != info.d_input:
        raise DataError(f"{where}: {values.shape[1]} channels, but the model was trained on {info.d_input}.")
    with np.errstate(over="ignore"):
        kept = np.ascontiguousarray(values, dtype=np.float32)
    if (gaps := np.argwhere(~np.isfinite(kept))).size:
        at = int(gaps[0][0])
        what = "a number beyond float32" if np.isfinite(values[at]).all() else "NaN or infinity"
        raise DataError(f"{where}: {what} at sample {at}; fill the gap or cut it out.")
    return torch.from_numpy(kept)


# -- forecasting ----------------------------------------------------------------------------------------------


def forecast_file(run: Run, model: SequenceModel, path: Path) -> list[Row]:
    """What follows the last row of a CSV: one row for each step of the horizon."""
    info = run.info
    series = read_series(path, list(info.channels), date_column(run, path))
    if len(series.values) < info.length:
        raise DataError(
            f"{path}: {len(series.values)} rows, fewer than the context of {info.length} that the model needs."
        )
    if series.seconds is not None and info.step is not None:
        same_step(series.seconds, info.step, series.source)
    values = forecast(run, model, series)
    dates = future(series, info.horizon)
    head = {"file": str(path)}
    return [
        {**head, "step": step + 1, **({} if dates is None else {"date": f"{dates[step]}{series.offset}"}),
         **{name: float(v) for name, v in zip(names_of(info), values[step], strict=True)}}
        for step in range(info.horizon)
    ]  # fmt: skip


@torch.no_grad()
def forecast(run: Run, model: SequenceModel, series: Series) -> Tensor:
    """The rows after the last of a series, in its units. → (horizon, columns) float64"""
    info = run.info
    context = info.standardise(torch.from_numpy(series.values[-info.length :])).float()
    return info.restore(model(context[None], marks=_marks(run, series))[0])


def _marks(run: Run, series: Series) -> Tensor | None:
    """Calendar of context and horizon as in training. (1, length + horizon, k)"""
    info, options = run.info, run.options
    count = len(info.mark_sizes) or info.mark_width
    if not count:
        return None
    same_clock(series.offset, info.offset, series.source)
    dates = future(series, info.horizon)
    if dates is None or series.seconds is None:
        raise DataError(f"{series.source}: no dates, but the model was trained with a calendar.")
    seconds = np.concatenate([series.seconds[-info.length :], dates.astype(np.int64)])
    timeenc = getattr(options, "timeenc", 0 if info.mark_sizes else 1)
    marks = make_marks(seconds, timeenc, minutes=count == 5)[0]
    if not getattr(options, "eval_stamp", False):
        marks[info.length :] = 0
    return marks[None]


def future(series: Series, horizon: int) -> np.ndarray | None:
    """Dates of the next steps, or None without dates. (horizon,) datetime64[s]"""
    if series.seconds is None or series.step is None:
        return None
    return go_on(series.seconds, series.step, horizon)


def date_column(run: Run, path: Path) -> str | None:
    """The column with dates: as given in training, or by its name; None if there is none and the model reads no
    calendar."""
    named = getattr(run.options, "date_column", None)
    if named:
        return named
    calendar = bool(run.info.mark_sizes or run.info.mark_width)
    found, dated = guess_dates(read_table(path))
    if not dated and not calendar:
        return None
    if found is None:
        raise DataError(
            f"{path}: no column of dates ({', '.join(DATE_NAMES)}), but the model was trained with a calendar."
        )
    return found


def require_files(paths: Sequence[Path]) -> None:
    """Refuse an empty list and name the first file that is not there."""
    if not paths:
        raise OptionError("no files to predict; name some, or stream with - or --follow FILE.")
    for path in paths:
        if not path.exists() and not path.with_name(path.name + ".hea").exists():
            raise DataError(f"{path}: no such file.")
