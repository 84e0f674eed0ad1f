"""`WaveSSMForecaster`: series to their next steps, with quantiles, after scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch.nn import functional as F

from wavessm.errors import DataError, OptionError, check_int
from wavessm.estimators.backtest import (
    MOST_ORIGINS,
    Backtest,
    Forecast,
    Residuals,
    calibration_errors,
    compare,
    conformal,
    improves,
)
from wavessm.estimators.base import Scale, WaveSSMEstimator, check_names, check_number, model_sizes, predict_all
from wavessm.estimators.series import Form, TimeSeries, check_alike, column_names, read_series, split_long, step_seconds
from wavessm.estimators.windows import Marks, Split, fit_series, read_covariates, refit_series, split_series
from wavessm.features.line import Line, Part, context_for, season_steps
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel

STEPS_PER_EPOCH = 50
METHODS, DUPLICATES, MISSING = ("auto", "linear", "gradient"), ("error", "mean", "last"), ("error", "hold", "gap")


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMForecaster(WaveSSMEstimator):
    """A forecaster of one series or several, (time,) or (time, columns). Options that are None follow from the data.

    The line, a linear map of the context and of memories of the season, is fitted in closed form (`line.py`); a state
    space may be trained on what it leaves. Options that are not listed here are those of `WaveSSMClassifier` and apply
    to that training.

    Args:
        horizon: Steps that are fitted; `predict(h)` with more reads its own forecasts.
        context: Steps it looks back; None takes two horizons or 14 seasons, at most 720. Memories look back further.
        method: "linear" is the line alone. "gradient" trains a state space on what the line leaves, starting at the
            line exactly, and keeps it only if it is better on rows that neither training nor early stopping saw, by
            more than their noise. "auto" is "linear".
        quantiles: Levels that `predict` returns instead of the forecast, such as (0.1, 0.5, 0.9): split conformal, from
            the errors at the end of the series of fit. May be changed after fit (`set_params`).
        memory: Let the line look further back than the context by running means of the season.
        season: Steps in a season; None takes that of the dates, 1 without dates.
        calendar: Read the place in the day, week and year from a DatetimeIndex, those seen at least twice.
        duplicates: Repeated time stamps: "error", their "mean", or the "last" of them.
        missing: Missing rows and NaN: "error"; "hold" repeats the value before as if it were observed; "gap" reads it
            in contexts, but fits and compares no forecast of such rows.
        split: (train, validation) as two counts of rows, two fractions, or the dates where validation and calibration
            begin; what is left calibrates quantiles. None follows validation_fraction.
        validation_fraction: End of each series set aside. Its second half calibrates quantiles and its first half
            chooses, if it is at least four horizons long; else all of it calibrates.
        refit: After choosing and calibrating, fit the line once more on all rows.

    Attributes:
        method_: What forecasts: "linear", or "gradient" where a state space was trained and kept.
        line_: The `Line` that forecasts.
        model_: The `SequenceModel` on top of it, if method_ is "gradient".
        choices_: What was chosen for the options that were None.
        context_: Steps it looks back.
        season_: Steps in the season.
        n_columns_: Columns of a series.
        column_names_: Columns of DataFrames, None without them; later ones may have them in any order.
        covariate_names_: The same of covariates.

    >>> t = np.arange(300)
    >>> series = np.sin(2 * np.pi * t / 12) + 0.01 * t
    >>> model = WaveSSMForecaster(horizon=12).fit(series)
    >>> model.predict().shape, model.predict(30).shape, model.method_
    ((12,), (30,), 'linear')
    >>> model.set_params(quantiles=(0.1, 0.9)).predict().shape
    (12, 2)
    """

    horizon: int = field(default=1, kw_only=False)
    context: int | None = field(default=None, kw_only=False)
    method: str = "auto"
    quantiles: Sequence[float] | None = None
    memory: bool = True
    season: int | None = None
    calendar: bool = True
    duplicates: str = "error"
    missing: str = "error"
    split: Any = None
    refit: bool = True
    dropout: float = 0.1
    batch_size: int | None = 32
    validation_fraction: float = 0.2
    n_iter_no_change: int = 8
    max_epochs: int | None = 12

    series_: list[TimeSeries] = field(init=False)
    context_: int = field(init=False)

    def fit(self, series: Any, covariates: Any = None) -> WaveSSMForecaster:
        """Fit to one series or several.

        Args:
            series: (time,), (time, columns), a pandas object, a list or dict of them, or a long table with the columns
                unique_id, ds and y (other columns are covariates).
            covariates: Numbers known beforehand, (time, k) beside each series, in the same form.

        Returns:
            The estimator itself.
        """
        before = dict(vars(self))
        try:
            return self._fit(series, covariates)
        except BaseException:
            self.__dict__ = before  # a refused fit leaves the last one
            raise

    def _fit(self, series: Any, covariates: Any) -> WaveSSMForecaster:
        horizon = self._check_options()
        if covariates is None:
            series, covariates = split_long(series)
        parts, form = read_series(series, "series", self)
        check_alike(parts, self.series_[0] if self._continues else parts[0])
        split = split_series(parts, horizon, self.validation_fraction, self.split)
        season = season_steps(step_seconds(parts[0].index)) if self.season is None else self.season
        lengths = [len(one.values) for one in parts]
        tables = [] if covariates is None else read_covariates(covariates, parts, form, lengths, self)
        marks = Marks.fit(parts, split.train_end if self.calendar else [], tables)
        known: list[Any] = [table.values for table in tables] or [None] * len(parts)
        for at, (one, end, table) in enumerate(zip(parts, split.train_end, known, strict=True)):
            parts[at] = replace(one, scale=Scale.of(one.values[:end]), marks=marks.of(one.index, table))
        self.series_, self.form_, self.marks_, self.season_, self.split_ = parts, form, marks, season, split
        self.n_columns_ = parts[0].values.shape[1]
        self.column_names_, self.covariate_names_ = column_names(parts), column_names(tables)
        if self.context is not None or not self._continues:
            self.context_ = self.context or context_for(horizon, season, int(split.train_end.min()))
        self._fit_line(parts, split)
        if self.method == "gradient":
            self._fit_residuals(parts, split)
        self._errors: np.ndarray | None = None
        return self

    def _check_options(self) -> int:
        """The horizon; one line for what is wrong."""
        self._train_config(1, 0)  # wrong ones are refused even where nothing is trained
        for name, known in (("method", METHODS), ("duplicates", DUPLICATES), ("missing", MISSING)):
            check_names(name, (getattr(self, name),), known)
        for name in ("calendar", "memory", "refit"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is {getattr(self, name)!r}, expected True or False.")
        for name in ("context", "season"):
            if getattr(self, name) is not None:
                check_int(getattr(self, name), name, minimum=1)
        for level in () if self.quantiles is None else np.atleast_1d(self.quantiles).tolist():
            if not check_number(level, "quantiles", 1) > 0:
                raise OptionError(f"quantiles has {level!r}, expected numbers between 0 and 1.")
        return check_int(self.horizon, "horizon", minimum=1)

    def _fit_line(self, parts: list[TimeSeries], split: Split) -> None:
        """The line of the training rows, and the one that forecasts."""
        line, how = fit_series(parts, split, self.context_, self.season_, int(self.horizon), self.memory)
        self.choices_ = {"context": self.context_, "season": self.season_, "marks": how}
        self.choices_ |= {"members": [member.name for member, _ in line.members], "column_penalty": line.column_penalty}
        self.line_ = self._refit(line, parts, [len(one.values) for one in parts]) if self.refit else line
        self.method_, self.held_, self.forecast_ = "linear", Forecast(line), Forecast(self.line_)

    def _refit(self, line: Line, parts: list[TimeSeries], ends: Any) -> Line:
        return refit_series(line, parts, self.context_, self.season_, ends)

    def _fit_residuals(self, parts: list[TimeSeries], split: Split) -> None:
        """Train a state space on what the line leaves; keep it if it is better on unseen rows, beyond noise."""
        if not split.stops:
            raise DataError("method='gradient' needs rows to choose by: at least four horizons in validation_fraction.")
        line, middle = self.held_.line, (split.train_end + split.stop_end) // 2
        rows = len(parts[0].values) * len(parts)
        source = Residuals.of(line, parts, self.context_, 0, split.train_end, rows)
        stop = Residuals.of(line, parts, self.context_, split.train_end, middle, MOST_ORIGINS)
        check = Residuals.of(line, parts, self.context_, middle, split.stop_end, MOST_ORIGINS)
        if not (len(source) and len(stop) and len(check)):
            raise DataError(f"method='gradient': a part has no window of {self.context_} + {self.horizon} steps.")
        decided: dict[str, Any] = {"d_input": self.n_columns_, "d_output": self.n_columns_, "head": "forecast"}
        decided["horizon"] = int(self.horizon)
        if source.marks is not None:
            decided |= {"encoder": "calendar", "mark_width": source.marks.shape[1], "horizon_mask": True}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        sizes = model_sizes(0, self.context_, self.context_ + int(self.horizon))
        config, training = self._model_config(sizes, **decided), self._train_config(len(source), seed, STEPS_PER_EPOCH)
        chosen = self.choices_
        self._fit_model(source, stop, F.mse_loss, config, training, STEPS_PER_EPOCH)
        model, rest = self.model_, check.targets
        found = predict_all(model, check.to(next(model.parameters()).device)).cpu()
        gain = (rest.square() - (rest - found).square()).mean((1, 2)).numpy()
        self.choices_ |= chosen | {"gain": float(gain.mean() / rest.square().mean())}
        if improves(gain, -(-int(self.horizon) // check.stride)):
            self.method_, self.line_ = "gradient", line
            self.held_ = self.forecast_ = Forecast(line, model, self.context_)

    def _new_model(self, config: ModelConfig, seed: int) -> SequenceModel:
        model = super()._new_model(config, seed)
        for weight in model.head.decoder.parameters():  # so that training starts at the line
            torch.nn.init.zeros_(weight)
        return model

    # -- forecasts ----------------------------------------------------------------------------------------------------

    def predict(self, h: int | None = None, series: Any = None, covariates: Any = None) -> Any:
        """Forecast the series of fit or given ones.

        Args:
            h: Steps; None takes the horizon.
            series: What to forecast, as in `fit`, of any length; None takes the series of fit. It is scaled as the
                series of fit with its key (in a dict or long table) or its place (in a list of equal length, or alone),
                any other by its own mean and deviation.
            covariates: Where fit had them: rows of the next h steps (h, k); with `series`, of all its steps and the
                next, (time + h, k).

        Returns:
            The next h steps (h,) or (h, columns), in the form the series came in. With `quantiles` each has one more
            axis at its end, (h, levels) or (h, columns, levels): of a Series a DataFrame with a column for each level,
            of a DataFrame one whose columns are pairs (column, level); of a long table a column for each level.
        """
        h = self._check_steps(h)
        inputs, form = self._inputs(series, covariates, h)
        ahead = [self.forecast_(one, np.array([len(one.values)]), h)[0] for one in inputs]  # (h, columns) each
        if self.quantiles is None:
            return form.wrap([one.wrap(values) for one, values in zip(inputs, ahead, strict=True)])
        offsets = self._offsets(h)
        added = np.stack(list(offsets.values()), axis=-1)  # (h, columns, levels)
        each = zip(inputs, ahead, strict=True)
        return form.wrap([one.wrap(x[..., None] + added * one.scale.deviation[:, None], [*offsets]) for one, x in each])

    def backtest(
        self,
        series: Any = None,
        h: int | None = None,
        stride: int = 1,
        covariates: Any = None,
        refit: bool = False,
    ) -> Backtest:
        """Forecast from many origins and compare with the truth.

        Args:
            series: As in `predict`; None takes the calibrating end of the series of fit, which fitting never saw.
            h: Steps of each forecast; None takes the horizon.
            stride: Rows between origins.
            covariates: Where fit had them and a series is given: rows of all its steps (time, k).
            refit: Fit the line anew before each forecast, on all rows before its origin; a line only.
        """
        h, stride = self._check_steps(h), check_int(stride, "stride", minimum=1)
        own = series is None
        inputs, form = (self.series_, self.form_) if own else self._inputs(series, covariates, 0)
        if refit and self.method_ != "linear":
            raise OptionError("refit: a trained state space is not fitted again; use method='linear'.")
        offsets, parts = self._offsets(h), []
        for at, one in enumerate(inputs):
            begin = max(int(self.split_.stop_end[at]) if own else self.context_, self.season_, 1)
            origins = Part(one.values, one.gaps, begin, len(one.values)).origins(h)
            origins = origins[(origins - begin) % stride == 0]
            if not len(origins):
                continue
            forecast = self.held_ if own else self.forecast_
            if refit:
                lines = [self._refit(forecast.line, [one], [origin]) for origin in origins]
                ahead = [Forecast(line)(one, origins[[k]], h) for k, line in enumerate(lines)]
                parts.append((at, one, origins, np.concatenate(ahead)))
            else:
                parts.append((at, one, origins, forecast(one, origins, h)))
        if not parts:
            raise DataError(f"backtest: no series has {self.context_} steps of context and {h} to compare with.")
        return compare(parts, form.keys or range(len(inputs)), self.season_, offsets)

    def score(self, series: Any = None, covariates: Any = None) -> float:
        """R² of the forecasts over all origins of a series, as in `backtest`."""
        return self.backtest(series, covariates=covariates).r2

    def stream(self) -> ForecastStream:
        """The line as a stream that continues the (only) series of fit: each sample costs the same time and memory."""
        check_is_fitted(self, "line_")
        if self.method_ != "linear" or len(self.series_) > 1 or self.marks_.scale is not None:
            raise OptionError("stream: needs one series without covariates and method='linear'.")
        return ForecastStream(self)

    def _check_steps(self, h: int | None) -> int:
        check_is_fitted(self, "line_")
        return int(self.horizon) if h is None else check_int(h, "h", minimum=1)

    def _inputs(self, series: Any, covariates: Any, h: int) -> tuple[list[TimeSeries], Form]:
        """Series with the scales and marks to forecast h steps beyond their end, and the form they came in."""
        own = series is None
        parts, form = (list(self.series_), self.form_) if own else self._read(series)
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

    def _read(self, series: Any) -> tuple[list[TimeSeries], Form]:
        """Given series, scaled as the series of fit with their key or place, others by themselves."""
        parts, form = read_series(series, "series", self, self.column_names_)
        check_alike(parts, self.series_[0])
        keyed, places = dict(zip(self.form_.keys, self.series_, strict=False)), range(len(parts))
        if not form.keys and len(parts) == len(self.series_):
            keyed = dict(enumerate(self.series_))
        for at, (key, one) in enumerate(zip(form.keys or places, parts, strict=True)):
            parts[at] = replace(one, scale=keyed[key].scale if key in keyed else Scale.of(one.values))
        return parts, form

    def _offsets(self, h: int) -> dict[float, np.ndarray]:
        """Quantiles of the errors over the calibrating end of each series, (h, columns) in deviations, by level."""
        if self.quantiles is None:
            return {}
        if (self.split_.stop_end >= [len(one.values) for one in self.series_]).all():
            raise OptionError("quantiles need calibrating rows; use a validation_fraction above 0, or a shorter split.")
        if self._errors is None or self._errors.shape[1] < h:
            each = zip(self.series_, self.split_.stop_end, strict=True)
            known = [(one, int(end)) for one, end in each if end < len(one.values)]
            self._errors = np.concatenate([calibration_errors(self.held_, one, end, h) for one, end in known])
        levels = sorted(np.atleast_1d(self.quantiles).tolist())
        return {level: conformal(self._errors[:, :h], level) for level in levels}


class ForecastStream:
    """A fitted line that takes one sample after another in constant time; see `WaveSSMForecaster.stream`."""

    def __init__(self, model: WaveSSMForecaster) -> None:
        (self._one,), self._line, self._marks = model.series_, model.line_, model.marks_
        self.time, features = len(self._one.values), self._line.features
        self._known = self._extend()
        channels = features.channels(self._one.scaled() - self._known[: self.time])
        self._parts = [one[-width:] for one, width in zip(channels, features.widths, strict=True)]

    def _extend(self) -> np.ndarray:
        """What the calendar adds to all rows so far and a thousand beyond the next horizon. (rows, columns)"""
        rows = self.time + self._line.horizon + 1000
        if self._line.B is None:
            return np.zeros((rows, 1))
        marks = self._marks.of(self._one.index.append(self._one.future(rows - len(self._one.values))), None)
        return np.asarray(marks) @ self._line.B

    def step(self, sample: Any) -> np.ndarray:
        """Take the next sample, a number or (columns,), and forecast what follows it. (horizon, columns)"""
        scale, line = self._one.scale, self._line
        if self.time + 1 + line.horizon > len(self._known):
            self._known = self._extend()
        row = scale.apply(np.broadcast_to(np.asarray(sample, dtype=np.float64), scale.mean.shape))
        row = row - self._known[self.time]
        for k, memory in enumerate([None, *line.features.memories]):
            part, new = self._parts[k], row
            if memory is not None and self.time >= memory.period:
                new = part[0] + (row - part[0]) * max(1 / (self.time // memory.period + 1), 1 / memory.span)
            self._parts[k] = np.concatenate([part[1:], new[None]])
        self.time += 1
        ahead = line.apply(np.concatenate(self._parts) - row) + row
        return scale.undo(ahead + self._known[self.time : self.time + line.horizon])
