"""The linear forecast as the model of a run: its data, what a checkpoint holds of it, and the rows that it predicts.

Place in the pipeline: `closed_form.py` calls this for tables; everything is fitted and forecast by `forecaster.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavessm.data.series import Form, TimeSeries, pd
from wavessm.data.source import DataInfo, DataSet, Source
from wavessm.data.tables import Scale
from wavessm.errors import DataError, OptionError
from wavessm.features.line import Features, Line, Memory, parts_of
from wavessm.training.backtest import Forecast
from wavessm.training.forecaster import ForecastStream, LineForecaster
from wavessm.training.line import Marks, StaticPrior

LEVELS = (0.1, 0.9)  # quantiles where none are asked for


class LineModel(LineForecaster):
    """A `LineForecaster` that a checkpoint holds, as tensors and plain values, without the rows of its series."""

    @property
    def size(self) -> int:
        """Fitted numbers."""
        return self.line_.W.size

    def fit_line(self) -> LineModel:
        super().fit_line()
        given, self.quantiles = self.quantiles, self.quantiles or LEVELS
        try:
            self._offsets(int(self.horizon))  # the rows that calibrate are not in the checkpoint
        except DataError:
            if given:
                raise
            self.quantiles = None
        return self

    def describe(self) -> dict[str, Any]:
        """The options from which `restore` makes a forecaster, its numbers yet to be loaded."""
        return {name: pack(getattr(self, name)) for name in ("horizon", "duplicates", "missing", "quantiles")}

    @classmethod
    def restore(cls, described: Mapping[str, Any], info: DataInfo) -> LineModel:
        """A forecaster with the options of `describe`."""
        return cls(**described)

    def state_dict(self) -> dict[str, Any]:
        """All that was fitted as tensors and plain values."""
        index, state = self.series_[0].index, {name: pack(getattr(self, name)) for name in FITTED}
        dates = isinstance(index, pd.DatetimeIndex)
        scales = Scale(*(np.stack(each) for each in zip(*(one.scale for one in self.series_), strict=True)))
        return state | {
            "marks_": pack(self.marks_._replace(zone=None)), "held": pack(self.held_.line), "scales": pack(scales),
            "errors": pack(self._errors if self.quantiles else None), "profile": pack(self.held_.profile),
            "index": [f"{date}" if dates else float(date) for date in index[:3]],
            "freq": getattr(index, "freqstr", None) or (pd.infer_freq(index[-64:]) if dates else None),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave; raises `RuntimeError` where its shapes do not fit."""
        found = {name: unpack(value) for name, value in state.items()}
        vars(self).update({name: found[name] for name in FITTED})
        line, index, names = self.line_, pd.Index(found["index"]), list(self.column_names_ or ()) or None
        if {line.W.shape, found["held"].W.shape} != {(*line.W.shape[:-2], sum(line.features.widths), self.horizon)}:
            raise RuntimeError("maps of another shape than that of the features")
        index = pd.DatetimeIndex(index) if index.dtype.kind not in "iuf" else index
        if found["freq"]:
            index = pd.date_range(index[0], periods=3, freq=found["freq"])
        self.column_names_, self._errors = names, found["errors"]
        self.marks_ = found["marks_"]._replace(zone=getattr(index, "tz", None))
        held, forecast = (Forecast(one, profile=found.get("profile")) for one in (found["held"], line))
        self.method_, self.held_, self.forecast_ = "linear", held, forecast
        scales = [Scale(*each) for each in zip(*found["scales"], strict=True)]
        self.n_columns_, kind = len(scales[0].mean), "frame" if names else "series"
        rows = np.zeros((len(index), self.n_columns_))
        self.series_ = [TimeSeries(rows, kind, index, names, scale=scale) for scale in scales]

    def to(self, device: Any) -> LineModel:
        """Itself: a line is fitted and forecasts on the CPU."""
        return self

    def eval(self) -> LineModel:
        """Itself, as a module returns itself."""
        return self

    def row_stream(self) -> Callable[[np.ndarray, TimeSeries, bool], Any]:
        """A function of new rows (n, columns), of the latest ones, and of whether the first new one replaces the last:
        the latest, what follows them, and quantiles."""
        if len(self.series_) > 1 or self.marks_.scale is not None:
            raise OptionError("a stream has one series and no covariates, unlike this run. Use predict RUN FILE.")
        known = self.series_[0]
        streams: list[ForecastStream] = []

        def take(values: np.ndarray, latest: TimeSeries, again: bool) -> tuple[TimeSeries, np.ndarray, dict]:
            if again:
                streams[0].undo()
            if not streams:
                values = pd.DataFrame(values).ffill().bfill().to_numpy()
                index = latest.index
                if latest.clock is not None:  # the date of one row says nothing of their step
                    index = pd.date_range(end=index[-1], periods=len(values), freq=known.index.freq)
                    latest = dataclasses.replace(latest, index=index[-1:])
                streams.append(ForecastStream(self, dataclasses.replace(known, values=values, index=index)))
            else:
                for row in values:
                    streams[0].update(row)
            return latest, *streams[0].forecast()

        return take

    def __call__(self, x: Tensor, rate: float = 1.0) -> Tensor:
        """Forecasts (batch, horizon, columns) of a line that reads only scaled contexts x (batch, context, columns)."""
        last = x[:, -1:].double()
        return torch.from_numpy(self.line_.apply((x.double() - last).numpy())) + last


FITTED = ("context_", "season_", "column_names_", "covariate_names_", "form_", "static_", "line_")
PARTS = {kind.__name__: kind for kind in (Features, Form, Line, Marks, Memory, Scale, StaticPrior)}


def pack(value: Any) -> Any:
    """A value of sequences, `PARTS` and arrays as one of lists, dicts and tensors."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.ascontiguousarray(value)) if value.ndim else value.item()
    if (kind := type(value).__name__) in PARTS:
        fields = getattr(value, "_fields", None) or [one.name for one in dataclasses.fields(value)]
        return {"part": kind} | {name: pack(getattr(value, name)) for name in fields}
    return [pack(one) for one in value] if isinstance(value, list | tuple) else value


def unpack(plain: Any) -> Any:
    """What `pack` was given, sequences as tuples."""
    if isinstance(plain, dict):
        return PARTS[plain["part"]](**{name: unpack(value) for name, value in plain.items() if name != "part"})
    if isinstance(plain, list):
        return tuple(unpack(one) for one in plain)
    return plain.numpy() if isinstance(plain, Tensor) else plain


@dataclasses.dataclass(eq=False)
class SeriesWindows(Source):
    """The windows of a part of all series, with everything before them, of which a linear forecast reads memories."""

    model: LineModel
    horizon: int
    begin: np.ndarray  # (series,) first row of a horizon
    end: np.ndarray  # (series,) row after the last

    def __len__(self) -> int:
        return sum(len(origins) for _, _, origins in self.rows())

    def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Scaled values (time, columns), the same with NaN where not observed, and origins of each series."""
        series = self.model.series_
        values = [one.scaled() for one in series]
        for part, one in zip(parts_of(series, values, np.maximum(self.begin, 1), self.end), series, strict=True):
            yield part.values, one.scale.apply(one.truth), part.origins(self.horizon)

    def forecasts(self, model: LineModel, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Forecasts of the line that was fitted on training rows, and the truth, (windows, horizon, columns) each."""
        line = model.held_.line
        for (values, truth, origins), one in zip(self.rows(), self.model.series_, strict=True):
            for some in np.split(origins, range(size, len(origins), size)):
                ahead = truth[some[:, None] + np.arange(line.horizon)]
                yield torch.from_numpy(line.forecast(values, some, one.marks)), torch.from_numpy(ahead)


def series_set(options: Any) -> DataSet:
    """The series of a table, split and scaled as `LineForecaster` does."""
    frame, covariates, static = options.frame()
    model = LineModel(**options.line_options(frame))
    model.prepare(frame, covariates, static, str(options.files()[0]))
    first, split = model.series_[0], model.split_
    names = tuple(map(str, model.column_names_ or ("y",)))
    scale = tuple(first.scale.mean.tolist()), tuple(first.scale.deviation.tolist())
    info = DataInfo(
        "forecast", len(names), len(names), model.context_, horizon=int(model.horizon), columns=names, channels=names,
        scale=scale, target_scale=scale, mark_width=0 if first.marks is None else first.marks.shape[1],
        step=first.step, offset=first.offset,
    )  # fmt: skip
    ends = [np.zeros_like(split.train_end), *split, np.array([len(one.values) for one in model.series_])]
    train, val, test = (SeriesWindows(model, info.horizon, a, b) for a, b in itertools.pairwise(ends))
    for name, part in (("validation", val), ("test", test)):
        if not len(part):
            raise DataError(f"{options.files()[0]}: the {name} part has no window of {model.horizon} steps; give more "
                            "rows, a shorter horizon or another --split.")  # fmt: skip
    return DataSet("series", train, val, test, info)
