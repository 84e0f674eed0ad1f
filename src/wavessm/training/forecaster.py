"""`LineForecaster`: series to their next steps in closed form, with quantiles, backtests and streams.

The command line fits it to tables; `WaveSSMForecaster` is the same with scikit-learn's conventions and a state space on
top. Rows go through `data/series.py`, the map is `line.py`'s, errors are compared in `backtest.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wavessm.data.series import Form, TimeSeries, check_alike, column_names, read_series, split_covariates, split_series
from wavessm.data.tables import Scale
from wavessm.errors import DataError, OptionError, check_int, check_number, unknown_name
from wavessm.features.line import Line, Part, context_for, season_steps
from wavessm.training.backtest import Backtest, Forecast, QuantileTracker, calibrate, compare, step_quantiles
from wavessm.training.line import Marks, StaticPrior, fit_series, read_covariates, read_static, refit_series

CHOICES = {"duplicates": ("error", "mean", "last"), "missing": ("error", "hold", "gap", "skip")}


def one_thread() -> Any:
    """Let NumPy use one thread inside the block: beside other jobs, several wait for each other a hundred times as long
    as these small products take."""
    there = importlib.util.find_spec("threadpoolctl")  # it comes with scikit-learn
    return importlib.import_module("threadpoolctl").threadpool_limits(1) if there else nullcontext()


@dataclass(kw_only=True, eq=False, repr=False)
class LineForecaster:
    """A linear forecaster of one series or several; options and attributes are those of `WaveSSMForecaster`.

    >>> t = np.arange(300)
    >>> model = LineForecaster(horizon=12).fit(np.sin(2 * np.pi * t / 12) + 0.01 * t)
    >>> model.predict().shape
    (12,)
    """

    horizon: int = field(default=1, kw_only=False)
    context: int | None = field(default=None, kw_only=False)
    quantiles: Sequence[float] | None = None
    memory: bool = True
    season: int | None = None
    calendar: bool = True
    duplicates: str = "error"
    missing: str = "error"
    split: Any = None
    validation_fraction: float = 0.2
    refit: bool = True

    series_: list[TimeSeries] = field(init=False)
    context_: int = field(init=False)
    _errors: np.ndarray | None = field(init=False)  # of the calibrating rows, as far as they were asked for

    def fit(self, series: Any, covariates: Any = None, static: Any = None) -> Any:
        """Fit to one series or several.

        Args:
            series: (time,), (time, columns), a pandas object, a list or dict of them, or a long table with the columns
                unique_id, ds and y (other columns are covariates).
            covariates: Numbers known beforehand, (time, k) beside each series, in the same form.
            static: Features of series that have keys, a DataFrame by unique_id of numbers and words: what they say of
                level, spread and season is where a series starts that fit has not seen.

        Returns:
            The forecaster itself.
        """
        before = dict(vars(self))
        try:
            self.prepare(series, covariates, static)
            self.fit_line()
            self._offsets(int(self.horizon))  # too few rows to calibrate are refused now
            return self
        except BaseException:
            self.__dict__ = before  # a refused fit leaves the last one
            raise

    def prepare(self, series: Any, covariates: Any = None, static: Any = None, source: str = "series") -> None:
        """Read the series of fit, and find their season, context, scales, and what is known of them beforehand."""
        horizon, first = self._check_options(), getattr(self, "series_", [None])[0]
        if covariates is None:
            series, covariates = split_covariates(series)
        parts, form = read_series(series, source, self)
        check_alike(parts, first if self._continues and first is not None else parts[0])
        split = split_series(parts, horizon, self.validation_fraction, self.split, form.keys)
        season = self.season or (5 if parts[0].weekdays else season_steps(parts[0].step))
        lengths = [len(one.values) for one in parts]
        tables = [] if covariates is None else read_covariates(covariates, parts, form, lengths, self)
        marks = Marks.fit(parts, split.train_end if self.calendar else [], tables)
        known: list[Any] = [table.values for table in tables] or [None] * len(parts)
        for at, (one, end, table) in enumerate(zip(parts, split.train_end, known, strict=True)):
            parts[at] = replace(one, scale=Scale.of(one.values[:end]), marks=marks.of(one.index, table))
        self.series_, self.form_, self.marks_, self.season_, self.split_ = parts, form, marks, season, split
        self.n_columns_ = parts[0].values.shape[1]
        self.column_names_, self.covariate_names_ = column_names(parts), column_names(tables)
        self.static_: StaticPrior | None = None
        if static is not None:
            table = read_static(static, form.keys or range(len(parts)))
            self.static_ = StaticPrior.fit(table, parts, split.train_end, season)
        if self.context is not None or not self._continues:
            self.context_ = self.context or context_for(horizon, season, int(split.train_end.min()))

    @property
    def _continues(self) -> bool:
        """Whether fit keeps the choices of the last one."""
        return False

    def _check_options(self) -> int:
        """The horizon; one line for what is wrong."""
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in ("calendar", "memory", "refit"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is {getattr(self, name)!r}, expected True or False.")
        for name in (name for name in ("context", "season") if getattr(self, name) is not None):
            check_int(getattr(self, name), name, minimum=1)
        for level in () if self.quantiles is None else np.atleast_1d(self.quantiles).tolist():
            if not check_number(level, "quantiles", 1) > 0:
                raise OptionError(f"quantiles has {level!r}, expected numbers between 0 and 1.")
        return check_int(self.horizon, "horizon", minimum=1)

    def fit_line(self) -> Any:
        """Fit the line of the training rows, and the one that forecasts."""
        parts, context, season = self.series_, self.context_, self.season_
        with one_thread():
            line, how = fit_series(parts, self.split_, context, season, int(self.horizon), self.memory)
            self.line_ = self._refit(line, parts, [len(one.values) for one in parts]) if self.refit else line
        self.choices_ = {"context": context, "season": season, "marks": how}
        self.choices_ |= {"members": [member for member, _ in line.members], "column_penalty": line.column_penalty}
        self.method_, self.held_, self.forecast_ = "linear", Forecast(line), Forecast(self.line_)
        self._errors = None
        return self

    def _refit(self, line: Line, parts: list[TimeSeries], ends: Any) -> Line:
        return refit_series(line, parts, self.context_, self.season_, ends)

    # -- forecasts ----------------------------------------------------------------------------------------------------

    def predict(self, h: int | None = None, series: Any = None, covariates: Any = None, static: Any = None) -> Any:
        """Forecast the series of fit or given ones.

        Args:
            h: Steps; None takes the horizon.
            series: What to forecast, as in `fit`, of any length; None takes the series of fit. It is scaled as the
                series of fit with its key (in a dict or long table) or its place (in a list of equal length, or alone),
                any other by its own mean and deviation, or as `static` predicts them.
            covariates: Where fit had them: rows of the next h steps (h, k); with `series`, of all its steps and the
                next, (time + h, k).
            static: Where fit had it: features of the series that fit has not seen.

        Returns:
            The next h steps (h,) or (h, columns), in the form the series came in. With `quantiles` each has one more
            axis at its end, (h, levels) or (h, columns, levels): of a Series a DataFrame with a column for each level,
            of a DataFrame one whose columns are pairs (column, level); of a long table a column for each level.
        """
        h = self._check_steps(h)
        inputs, form = self.inputs(series, covariates, h, static=static)
        results = []
        for one, ahead, quantiles in self.ahead(inputs, h):
            levels = list(quantiles) or None
            results.append(one.wrap(ahead if levels is None else np.stack(list(quantiles.values()), axis=-1), levels))
        return form.wrap(results)

    def ahead(self, inputs: Sequence[TimeSeries], h: int) -> Iterator[tuple[TimeSeries, np.ndarray, dict]]:
        """Each series with its next h steps (h, columns) and, by their level, their quantiles."""
        offsets = self._offsets(h)
        for one in inputs:
            origin = np.array([len(one.values)])
            ahead = self.forecast_(one, origin, h)[0]
            width = one.scale.deviation * self.forecast_.widths(one, origin, h)[0]
            yield one, ahead, {level: ahead + offset * width for level, offset in offsets.items()}

    def backtest(
        self, series: Any = None, h: int | None = None, stride: int = 1, covariates: Any = None, refit: bool = False,
        adaptive: bool = False, begin: int | None = None, static: Any = None,
    ) -> Backtest:  # fmt: skip
        """Forecast from many origins and compare with the truth.

        Args:
            series: As in `predict`; None takes the calibrating end of the series of fit, which fitting never saw.
            h: Steps of each forecast; None takes the horizon.
            stride: Rows between origins.
            covariates: Where fit had them and a series is given: rows of all its steps (time, k).
            refit: Fit the line anew before each forecast, on all rows before its origin; a line only.
            adaptive: Let quantiles follow the truth known before each origin, as they do in a stream.
            begin: Rows before the first origin of given series; None takes the context.
            static: As in `predict`; a series that fit has not seen is then forecast from its first row on.
        """
        h, stride = self._check_steps(h), check_int(stride, "stride", minimum=1)
        own = series is None
        inputs, form = (self.series_, self.form_) if own else self.inputs(series, covariates, 0, static=static)
        if refit and self.method_ != "linear":
            raise OptionError("refit: a trained state space is not fitted again; use method='linear'.")
        offsets, parts = self._offsets(h), []
        for at, one in enumerate(inputs):
            first = int(self.split_.stop_end[at]) if own else self.context_ if begin is None else begin
            first = max(first, self.season_, 1)
            origins = Part(one.values, one.gaps, first, len(one.values)).origins(h)
            origins = origins[(origins - first) % stride == 0]
            if not len(origins):
                continue
            forecast = self.held_ if own else self.forecast_
            if refit:
                lines = [self._refit(forecast.line, [one], [origin]) for origin in origins]
                ahead = np.concatenate([Forecast(line)(one, origins[[k]], h) for k, line in enumerate(lines)])
            else:
                ahead = forecast(one, origins, h)
            width = forecast.widths(one, origins, h)
            known = {level: offset * width for level, offset in offsets.items()}
            if adaptive and offsets:
                known = self._follow(one, origins, ahead, offsets, width)
            parts.append((at, one, origins, ahead, known))
        if not parts:
            raise DataError(f"backtest: no series has {self.context_} steps of context and {h} to compare with.")
        return compare(parts, form.keys or range(len(inputs)), self.season_)

    def _follow(self, one: TimeSeries, origins: np.ndarray, ahead: np.ndarray, offsets: dict, width: Any) -> dict:
        """Quantiles of errors (n, h, columns) by level that follow the truth before each origin."""
        assert self._errors is not None
        tracker, values = QuantileTracker(offsets, self._errors), one.scale.apply(one.truth)
        found: list[np.ndarray] = []
        for row in range(origins[0], origins[-1] + 1):
            if row > origins[0]:
                tracker.observe(row - 1, values[row - 1])
            if len(found) < len(origins) and row == origins[len(found)]:
                found.append(tracker.expect(row, one.scale.apply(ahead[len(found)]), width[len(found)]))
        return dict(zip(offsets, np.stack(found, axis=1), strict=True))

    def score(self, series: Any = None, covariates: Any = None) -> float:
        """R² of the forecasts over all origins of a series, as in `backtest`."""
        return self.backtest(series, covariates=covariates).r2

    def stream(self) -> ForecastStream:
        """The line as a stream that continues the (only) series of fit: each sample costs the same time and memory."""
        self._check_steps(None)
        if self.method_ != "linear" or len(self.series_) > 1 or self.marks_.scale is not None:
            raise OptionError("stream: needs one series without covariates and method='linear'.")
        return ForecastStream(self, self.series_[0])

    def _check_steps(self, h: int | None) -> int:
        return int(self.horizon) if h is None else check_int(h, "h", minimum=1)

    def inputs(
        self, series: Any, covariates: Any, h: int, source: str = "series", static: Any = None
    ) -> tuple[list[TimeSeries], Form]:
        """Series with the scales and marks to forecast h steps beyond their end, and the form they came in."""
        own = series is None
        parts, form = (list(self.series_), self.form_) if own else self._read(series, source, static)
        rows = [h if own else len(one.values) + h for one in parts]
        if (covariates is None) != (self.marks_.scale is None):
            wanted = f"give those of {'' if own else 'the series and of '}the next {h} steps"
            had = "no covariates; leave them out" if covariates is not None else f"covariates; {wanted}"
            raise OptionError(f"covariates: fit had {had}.")
        known: list[Any] = [None] * len(parts)
        if self.marks_.scale is not None:
            width, names = len(self.marks_.scale.mean), self.covariate_names_
            tables = read_covariates(covariates, parts, form, rows, self, width, names)
            known = [table.values for table in tables]
        for at, (one, table) in enumerate(zip(parts, known, strict=True)):
            index = one.future(h) if own else one.index.append(one.future(h))
            marks = self.marks_.of(index, table)
            parts[at] = replace(one, marks=np.concatenate([one.marks, marks]) if own and marks is not None else marks)
        return parts, form

    def _read(self, series: Any, source: str = "series", static: Any = None) -> tuple[list[TimeSeries], Form]:
        """Given series, scaled as the series of fit with their key or place, others by their features or themselves."""
        parts, form = read_series(series, source, self, self.column_names_)
        check_alike(parts, self.series_[0])
        keyed, places = dict(zip(self.form_.keys, self.series_, strict=False)), range(len(parts))
        if not form.keys and len(parts) == len(self.series_):
            keyed = dict(enumerate(self.series_))
        parts = [one.with_step(self.series_[0]) for one in parts]
        new = [] if static is None else [key for key in form.keys or places if key not in keyed]
        table = read_static(static, new) if new else None
        prior = getattr(self, "static_", None)
        if table is not None and prior is None:
            raise OptionError("static: fit had none; give it there too, for the series it learns from.")
        for at, (key, one) in enumerate(zip(form.keys or places, parts, strict=True)):
            if prior is not None and table is not None and key in new:
                parts[at] = prior.start(table.loc[key], one, self.line_.features.reach)
            else:
                parts[at] = replace(one, scale=keyed[key].scale if key in keyed else Scale.of(one.values))
        return parts, form

    def _offsets(self, h: int) -> dict[float, np.ndarray]:
        """Quantiles of the errors over the calibrating end of each series, (h, columns) in deviations, by level."""
        if self.quantiles is None:
            return {}
        if self._errors is None or self._errors.shape[1] < h:
            if (self.split_.stop_end >= [len(one.values) for one in self.series_]).all():
                raise OptionError("quantiles need calibrating rows; use validation_fraction > 0, or a shorter split.")
            profile, self._errors = calibrate(self.held_, self.series_, self.split_, h, self.season_)
            self.held_, self.forecast_ = (one._replace(profile=profile) for one in (self.held_, self.forecast_))
        return step_quantiles(self._errors[:, :h], sorted(np.atleast_1d(self.quantiles).tolist()))


class ForecastStream:
    """A fitted line that takes one sample after another in constant time; see `WaveSSMForecaster.stream`."""

    def __init__(self, model: LineForecaster, start: TimeSeries) -> None:
        self._one, self._line, self._marks, self._forecast = start, model.line_, model.marks_, model.forecast_
        self.time, features = len(start.values), self._line.features
        self._known = self._extend()
        channels = features.channels(start.scaled() - self._known[: self.time])
        self._parts = [one[-width:] for one, width in zip(channels, features.widths, strict=True)]
        self._before, self._tracker = self._parts, None
        if offsets := model._offsets(self._line.horizon):
            assert model._errors is not None
            self._tracker = QuantileTracker(offsets, model._errors)

    def _extend(self) -> np.ndarray:
        """What the calendar adds to all rows so far and a thousand beyond the next horizon. (rows, columns)"""
        rows = self.time + self._line.horizon + 1000
        if self._line.B is None:
            return np.zeros((rows, 1))
        marks = self._marks.of(self._one.index.append(self._one.future(rows - len(self._one.values))), None)
        return np.asarray(marks) @ self._line.B

    def step(self, sample: Any) -> np.ndarray:
        """Take the next sample, a number or (columns,), and forecast what follows it.

        Returns:
            Forecasts (horizon, columns), or with `quantiles` of the model (horizon, columns, levels): those follow the
            samples, so that their part below each comes to be its level.
        """
        self.update(sample)
        ahead, quantiles = self.forecast()
        return ahead if self._tracker is None else np.stack(list(quantiles.values()), axis=-1)

    def undo(self) -> None:
        """Forget the last sample, once; quantiles that it has moved stay."""
        self.time, self._parts = self.time - 1, self._before

    def update(self, sample: Any) -> None:
        """Take the next sample, a number or (columns,). NaN was not observed: the value before stands in for it."""
        scale, line = self._one.scale, self._line
        if self.time + 1 + line.horizon > len(self._known):
            self._known = self._extend()
        row = scale.apply(np.broadcast_to(np.asarray(sample, dtype=np.float64), scale.mean.shape))
        if self._tracker is not None:
            self._tracker.observe(self.time, row)
        row = np.where(np.isnan(row), self._parts[0][-1] + self._known[self.time - 1], row) - self._known[self.time]
        self._before, self._parts = self._parts, list(self._parts)
        for k, memory in enumerate([None, *line.features.memories]):
            part, new = self._parts[k], row
            if memory is not None and self.time >= memory.period:
                new = part[0] + (row - part[0]) * max(1 / (self.time // memory.period + 1), 1 / memory.span)
            self._parts[k] = np.concatenate([part[1:], new[None]])
        self.time += 1

    def forecast(self) -> tuple[np.ndarray, dict[float, np.ndarray]]:
        """The steps after the last sample (horizon, columns), and their quantiles by level."""
        last, scale = self._parts[0][-1], self._one.scale
        ahead = self._line.apply(np.concatenate(self._parts) - last) + last
        ahead = ahead + self._known[self.time : self.time + self._line.horizon]
        if self._tracker is None:
            return scale.undo(ahead), {}
        recent = self._parts[0] + self._known[np.maximum(np.arange(-len(self._parts[0]), 0) + self.time, 0)]
        width = self._forecast.widths(self._one, np.array([self.time]), self._line.horizon, recent)[0]
        found = scale.undo(ahead + self._tracker.expect(self.time, ahead, width))
        return scale.undo(ahead), dict(zip(self._tracker.levels[:, 0].tolist(), found, strict=True))
