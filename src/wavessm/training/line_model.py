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
from wavessm.features.line import Features, Line, Memory
from wavessm.training.backtest import Forecast
from wavessm.training.forecaster import ForecastStream, LineForecaster
from wavessm.training.line import Marks, parts_of

LEVELS = (0.1, 0.9)  # quantiles where none are asked for


class LineModel(LineForecaster):
    """A `LineForecaster` that a checkpoint holds, as tensors and plain values, without the rows of its series."""

    _marks_width = 0  # rows of B

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

    @property
    def size(self) -> int:
        """Fitted numbers."""
        return self.line_.W.size

    def describe(self) -> dict[str, Any]:
        """Plain values from which `restore` makes a forecaster of the same shape."""
        first, line = self.series_[0], self.line_
        dates = isinstance(first.index, pd.DatetimeIndex)
        return {
            "horizon": int(self.horizon),
            "context": self.context_,
            "season": self.season_,
            "repairs": [self.duplicates, self.missing],
            "quantiles": None if self.quantiles is None else [float(level) for level in self.quantiles],
            "features": [line.features.context, [[one.period, float(one.span)] for one in line.features.memories]],
            "maps": list(line.W.shape),
            "marks": [list(self.marks_.cycles), 0 if line.B is None else len(line.B)],
            "form": [self.form_.kind, [str(key) for key in self.form_.keys]],
            "columns": [str(name) for name in self.column_names_ or ()],
            "index": [f"{date}" if dates else float(date) for date in first.index[:3]],
            "freq": getattr(first.index, "freqstr", None) or (pd.infer_freq(first.index[-64:]) if dates else None),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The maps of the line and of the one that was scored, scales of all series, and errors that give quantiles."""
        scales = {name: np.stack([getattr(one.scale, name) for one in self.series_]) for name in ("mean", "deviation")}
        state = {"W": self.line_.W, "held": self.held_.line.W, **scales}
        for name, value in (("B", self.line_.B), ("errors", self._errors if self.quantiles else None)):
            state |= {} if value is None else {name: value}
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()}

    @classmethod
    def restore(cls, described: Mapping[str, Any], info: DataInfo) -> LineModel:
        """A forecaster of the shape of `describe`, its numbers yet to be loaded."""
        duplicates, missing = described["repairs"]
        model = cls(described["horizon"], described["context"], duplicates=duplicates, missing=missing)
        model.quantiles, model.context_ = described["quantiles"], described["context"]
        model.season_ = described["season"]
        context, memories = described["features"]
        features = Features(context, tuple(Memory(period, span) for period, span in memories))
        if tuple(described["maps"][-2:]) != (sum(features.widths), info.horizon):
            raise ValueError("maps of another shape than that of the features")
        kind, keys = described["form"]
        cycles, model._marks_width = described["marks"]
        model.form_, model.column_names_ = Form(kind, tuple(keys)), list(described["columns"]) or None
        index = pd.Index(described["index"])
        index = pd.DatetimeIndex(index) if index.dtype.kind not in "iuf" else index
        if described["freq"]:
            index = pd.date_range(index[0], periods=3, freq=described["freq"])
        model.marks_ = Marks(tuple(cycles), getattr(index, "tz", None), None)
        width, names = info.d_output, model.column_names_
        stub = TimeSeries(np.zeros((len(index), width)), "frame" if names else "series", index, names)
        model.series_, model.n_columns_ = [stub] * max(1, len(keys)), width
        model.line_ = Line(features, np.zeros(described["maps"]), ())
        return model

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the numbers of `state_dict`; raises `RuntimeError` where their shapes are others."""
        values = {name: value.numpy() for name, value in state.items()}
        scales = (len(self.series_), self.n_columns_)
        wanted = {"W": self.line_.W.shape, "held": self.line_.W.shape, "mean": scales, "deviation": scales}
        wanted |= {"B": (self._marks_width, self.n_columns_)} if self._marks_width else {}
        for name, shape in wanted.items():
            if values[name].shape != shape:
                raise RuntimeError(f"{name} has shape {values[name].shape}, expected {shape}")
        each = zip(self.series_, values["mean"], values["deviation"], strict=True)
        self.series_ = [dataclasses.replace(one, scale=Scale(m, d, d == 0)) for one, m, d in each]
        held = dataclasses.replace(self.line_, W=values["held"], B=values.get("B"))
        self.line_ = dataclasses.replace(held, W=values["W"])
        self.method_, self.held_, self.forecast_, self._errors = (
            "linear", Forecast(held), Forecast(self.line_), values.get("errors"),
        )  # fmt: skip

    def to(self, device: Any) -> LineModel:
        """Itself: a line is fitted and forecasts on the CPU."""
        return self

    def eval(self) -> LineModel:
        """Itself, as a module returns itself."""
        return self

    def row_stream(self) -> Callable[[np.ndarray, TimeSeries], Any]:
        """A function of new rows (n, columns) and of the latest ones: those, what follows them, and quantiles."""
        if len(self.series_) > 1:
            raise OptionError("this run forecasts several series; a stream has one. Use predict RUN FILE.")
        known = self.series_[0]
        streams: list[ForecastStream] = []

        def take(values: np.ndarray, latest: TimeSeries) -> tuple[TimeSeries, np.ndarray, dict[float, np.ndarray]]:
            if not streams:
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

    def check_plain(self) -> None:
        """Refuse to export a line that reads more than its context."""
        if self.line_.features.memories or self.line_.B is not None:
            raise OptionError("export: this forecast reads memories or a calendar; fit it with --no-memory and "
                              "--calendar none.")  # fmt: skip

    def __call__(self, x: Tensor, rate: float = 1.0) -> Tensor:
        """Forecasts (batch, horizon, columns) after scaled contexts x (batch, context, columns); see `check_plain`."""
        last = x[:, -1:].double()
        return torch.from_numpy(self.line_.apply((x.double() - last).numpy())) + last


@dataclasses.dataclass(eq=False)
class SeriesWindows(Source):
    """The windows of a part of all series, with everything before them, of which a linear forecast reads memories."""

    model: LineModel
    begin: np.ndarray  # (series,) first row of a horizon
    end: np.ndarray  # (series,) row after the last

    def __len__(self) -> int:
        return sum(len(origins) for _, _, origins in self.rows())

    @property
    def horizon(self) -> int:
        """Steps of a forecast."""
        return int(self.model.horizon)

    def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray | None, np.ndarray]]:
        """Scaled values (time, columns), marks and origins of each series."""
        series = self.model.series_
        values = [one.scaled() for one in series]
        for part, one in zip(parts_of(series, values, np.maximum(self.begin, 1), self.end), series, strict=True):
            yield part.values, one.marks, part.origins(self.horizon)

    def forecasts(self, model: LineModel, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Forecasts of the line that was fitted on training rows, and the truth, (windows, horizon, columns) each."""
        line = model.held_.line
        for values, marks, origins in self.rows():
            for some in np.split(origins, range(size, len(origins), size)):
                truth = values[some[:, None] + np.arange(line.horizon)]
                yield torch.from_numpy(line.forecast(values, some, marks)), torch.from_numpy(truth)


def series_set(options: Any) -> DataSet:
    """The series of a table, split and scaled as `LineForecaster` does."""
    frame = options.frame()
    model = LineModel(**options.line_options(frame))
    model.prepare(frame, source=str(options.files()[0]))
    first, split = model.series_[0], model.split_
    names = tuple(map(str, model.column_names_ or ("y",)))
    scale = tuple(first.scale.mean.tolist()), tuple(first.scale.deviation.tolist())
    info = DataInfo(
        "forecast", len(names), len(names), model.context_, horizon=int(model.horizon), columns=names, channels=names,
        scale=scale, target_scale=scale, mark_width=0 if first.marks is None else first.marks.shape[1],
        step=first.step, offset=first.offset,
    )  # fmt: skip
    ends = [np.zeros_like(split.train_end), *split, np.array([len(one.values) for one in model.series_])]
    train, val, test = (SeriesWindows(model, a, b) for a, b in itertools.pairwise(ends))
    for name, part in (("validation", val), ("test", test)):
        if not len(part):
            raise DataError(f"{options.files()[0]}: the {name} part has no window of {model.horizon} steps; give more "
                            "rows, a shorter horizon or another --split.")  # fmt: skip
    return DataSet("series", train, val, test, info)
