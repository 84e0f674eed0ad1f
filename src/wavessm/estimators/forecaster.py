"""`WaveSSMForecaster`: series to their next steps, with intervals, after scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch.nn import functional as F

from wavessm.data.source import Windows
from wavessm.errors import DataError, OptionError, check_int
from wavessm.estimators.backtest import (
    MOST_ORIGINS,
    Backtest,
    Interval,
    calibration_errors,
    compare,
    conformal,
    forecast,
)
from wavessm.estimators.base import Scale, WaveSSMEstimator, check_number, model_sizes
from wavessm.estimators.series import (
    TimeSeries,
    check_alike,
    column_names,
    cycles_of,
    read_series,
    same_form,
    season_of,
)
from wavessm.estimators.windows import (
    Marks,
    Split,
    nearer_norm,
    read_covariates,
    split_series,
    training_scale,
    window_starts,
)

STEPS_PER_EPOCH = 50


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMForecaster(WaveSSMEstimator):
    """A forecaster of one series or several, (time,) or (time, columns). Options that are None follow from the data.

    Options that are not listed here are those of `WaveSSMClassifier`.

    Args:
        horizon: Steps that are trained; `predict(h)` with more reads its own forecasts.
        context: Steps it looks back; None takes them from the horizon and the season of the dates.
        calendar: Read the place in the day, week and year from a DatetimeIndex, those seen at least twice.
        validation_fraction: End of each series set aside. Its second half calibrates intervals and its first half
            stops training early, if it is at least four horizons long; else all of it calibrates.

    Attributes:
        model_: The trained `SequenceModel`.
        choices_: What was chosen for the options that were None.
        history_: Training loss and validation loss of each epoch.
        n_iter_: Epochs trained.
        context_: Steps it looks back.
        season_: Steps in the season of the dates, 1 without dates.
        n_columns_: Columns of a series.
        column_names_: Columns of DataFrames, None without them; later ones may have them in any order.
        covariate_names_: The same of covariates.

    >>> t = np.arange(300)
    >>> series = np.sin(2 * np.pi * t / 12) + 0.01 * t
    >>> model = WaveSSMForecaster(horizon=12, max_epochs=5, random_state=0).fit(series)
    >>> model.predict().shape, model.predict(30).shape
    ((12,), (30,))
    >>> lower, upper = model.predict_interval(level=0.8)
    >>> bool((lower <= upper).all())
    True
    """

    horizon: int = field(default=1, kw_only=False)
    context: int | None = field(default=None, kw_only=False)
    dropout: float = 0.1
    batch_size: int | None = 32
    validation_fraction: float = 0.2
    n_iter_no_change: int = 8
    calendar: bool = True

    series_: list[TimeSeries] = field(init=False)
    marks_: Marks = field(init=False)
    context_: int = field(init=False)
    column_names_: list | None = field(init=False)
    covariate_names_: list | None = field(init=False)

    def fit(self, series: Any, covariates: Any = None) -> WaveSSMForecaster:
        """Train on one series or several.

        Args:
            series: (time,), (time, columns), a pandas object, or a list or dict of them.
            covariates: Numbers known beforehand, (time, k) beside each series, in the same form.

        Returns:
            The estimator itself.
        """
        again, horizon = self._continues, check_int(self.horizon, "horizon", minimum=1)
        if not isinstance(self.calendar, bool):
            raise OptionError(f"calendar is {self.calendar!r}, expected True or False.")
        parts, form = read_series(series, "series", self.column_names_ if again else None)
        check_alike(parts, self.series_[0] if again else parts[0])
        lengths, index = [len(one.values) for one in parts], parts[0].index
        context = self.context_ if again and self.context is None else self.context
        split = split_series(np.array(lengths), horizon, self.validation_fraction, context, season_of(index))
        names = self.covariate_names_ if again else None
        tables = [] if covariates is None else read_covariates(covariates, parts, form, lengths, None, names)
        cycles = [cycles_of(one.index, int(end)) for one, end in zip(parts, split.train_end, strict=True)]
        shared = tuple(name for name in cycles[0] if self.calendar and all(name in some for some in cycles))
        scale = Scale.of(np.concatenate([table.values for table in tables])) if tables else None
        marks = Marks(shared, getattr(index, "tz", None), scale)
        marks = self.marks_._replace(scale=scale) if again else marks
        known: list[Any] = [table.values for table in tables] or [None] * len(parts)
        for at, (one, end, table) in enumerate(zip(parts, split.train_end, known, strict=True)):
            parts[at] = replace(one, scale=training_scale(one, end, at), marks=marks.of(one.index, table))
        self._train(parts, split)
        self.series_, self.form_, self.marks_, self.season_ = parts, form, marks, season_of(index)
        self.context_, self.stop_end_, self.n_columns_ = split.context, split.stop_end, parts[0].values.shape[1]
        if not again:
            self.column_names_, self.covariate_names_ = column_names(parts), column_names(tables)
        return self

    def _train(self, parts: list[TimeSeries], split: Split) -> None:
        """Train on the windows of all series, laid one after another in one table."""
        horizon, lengths = int(self.horizon), [len(one.values) for one in parts]
        values = torch.from_numpy(np.concatenate([one.scale.apply(one.values) for one in parts])).float()
        each = [one.marks for one in parts if one.marks is not None]
        marks = torch.from_numpy(np.concatenate(each)).float() if each else None
        columns = values.shape[1]

        def windows(begin: Any, end: Any, most: int) -> Windows:
            first = window_starts(lengths, begin, end, split.context, horizon)
            first = first[:: max(1, len(first) // most)]
            return Windows(values, marks, split.context, horizon, tuple(range(columns)), first, future_calendar=True)

        source, few = (windows(0, split.train_end, most) for most in (len(values), MOST_ORIGINS))
        held = windows(split.train_end, split.stop_end, MOST_ORIGINS) if split.stops else None
        sizes = model_sizes(len(source) // horizon, split.context, split.context + horizon)
        sizes["instance_norm"] = nearer_norm(few.take(torch.arange(len(few))))
        decided: dict[str, Any] = {"d_input": columns, "d_output": columns, "head": "forecast", "horizon": horizon}
        if marks is not None:
            decided |= {"encoder": "calendar", "mark_width": marks.shape[1], "horizon_mask": True}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        config, training = self._model_config(sizes, **decided), self._train_config(len(source), seed, STEPS_PER_EPOCH)
        self._fit_model(source, held, F.l1_loss, config, training, STEPS_PER_EPOCH, context=split.context)

    def predict(self, h: int | None = None, series: Any = None, covariates: Any = None) -> Any:
        """Forecast the series of fit or given ones.

        Args:
            h: Steps; None takes the horizon.
            series: What to forecast, as in `fit`; None takes the series of fit. It is scaled as the series of fit with
                its key (in a dict) or its place (in a list of equal length, or alone), any other by its own mean and
                deviation.
            covariates: Where fit had them: rows of the next h steps (h, k); with `series`, of all its steps and the
                next, (time + h, k).

        Returns:
            The next h steps (h,) or (h, columns), in the form the series came in.
        """
        h = self._check_steps(h)
        inputs, form = self._inputs(series, covariates, h)
        return same_form([one.wrap(self._ahead(one, h)) for one in inputs], form)

    def predict_interval(
        self, h: int | None = None, level: float = 0.9, series: Any = None, covariates: Any = None
    ) -> Interval:
        """Bounds that hold each step with probability `level`: split conformal, from the end of the series of fit.

        The promise is exact when forecasts made later err as those of the validation stretch do, each step by itself.

        Args:
            h: Steps; None takes the horizon.
            level: Probability, between 0 and 1.
            series: As in `predict`.
            covariates: As in `predict`.

        Returns:
            Lower and upper bounds, each in the form of `predict`.
        """
        h = self._check_steps(h)
        inputs, form = self._inputs(series, covariates, h)
        width = self._width(h, level)
        sides = []
        for sign in (-1, 1):
            each = [one.wrap(self._ahead(one, h) + sign * width * one.scale.deviation) for one in inputs]
            sides.append(same_form(each, form))
        return Interval(*sides)

    def backtest(
        self,
        series: Any = None,
        h: int | None = None,
        stride: int = 1,
        level: float | None = None,
        covariates: Any = None,
    ) -> Backtest:
        """Forecast from many origins and compare with the truth; the model is not refitted.

        Args:
            series: As in `predict`; None takes the calibrating end of the series of fit, which training never saw.
            h: Steps of each forecast; None takes the horizon.
            stride: Rows between origins.
            level: Also count how much of the truth lies inside intervals of this level; give a new series for that.
            covariates: Where fit had them and a series is given: rows of all its steps (time, k).
        """
        h, stride = self._check_steps(h), check_int(stride, "stride", minimum=1)
        own = series is None
        inputs = self.series_ if own else self._inputs(series, covariates, 0)[0]
        width = None if level is None else self._width(h, level)
        parts = []
        for at, one in enumerate(inputs):
            begin = max(int(self.stop_end_[at]) if own else 0, self.context_, self.season_)
            parts.append((at, one, np.arange(begin, len(one.values) - h + 1, stride)))
        parts = [part for part in parts if len(part[2])]
        if not parts:
            raise DataError(f"backtest: no series has {self.context_} steps of context and {h} to compare with.")
        return compare(self.model_, parts, self.context_, h, self.season_, width)

    def score(self, series: Any = None, covariates: Any = None) -> float:
        """R² of the forecasts over all origins of a series, as in `backtest`."""
        return self.backtest(series, covariates=covariates).r2

    def _check_steps(self, h: int | None) -> int:
        check_is_fitted(self, "model_")
        return int(self.horizon) if h is None else check_int(h, "h", minimum=1)

    def _ahead(self, one: TimeSeries, h: int) -> np.ndarray:  # (h, columns)
        return forecast(self.model_, one, self.context_, np.array([len(one.values)]), h)[0]

    def _inputs(self, series: Any, covariates: Any, h: int) -> tuple[list[TimeSeries], Any]:
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
            known = [table.values for table in read_covariates(covariates, parts, form, rows, width, names)]
        for at, (one, table) in enumerate(zip(parts, known, strict=True)):
            if own:
                ahead = self.marks_.of(one.future(h), table)
                marks = None if one.marks is None or ahead is None else np.concatenate([one.marks, ahead])
            else:
                index = None if one.index is None else one.index.append(one.future(h))
                marks = self.marks_.of(index, table)
            parts[at] = replace(one, marks=marks)
        return parts, form

    def _read(self, series: Any) -> tuple[list[TimeSeries], Any]:
        """Given series, scaled as the series of fit with their key or place, others by themselves."""
        parts, form = read_series(series, "series", self.column_names_)
        check_alike(parts, self.series_[0])
        for at, one in enumerate(parts):
            if len(one.values) < self.context_:
                raise DataError(f"series {at} has {len(one.values)} steps, expected the context of {self.context_}.")
        if isinstance(form, list):
            fitted = dict(zip(self.form_, self.series_, strict=True)) if isinstance(self.form_, list) else {}
            like = [fitted.get(key, one) for key, one in zip(form, parts, strict=True)]
        else:
            like = self.series_ if len(parts) == len(self.series_) else parts
        return [replace(one, scale=other.scale) for one, other in zip(parts, like, strict=True)], form

    def _width(self, h: int, level: float) -> np.ndarray:
        """Half an interval in deviations, from errors over the calibrating end of each series. (h, columns)"""
        check_number(level, "level", 1)
        if not self.validation_fraction:
            raise OptionError("intervals need a validation stretch; fit with validation_fraction above 0.")
        each = zip(self.series_, self.stop_end_, strict=True)
        scores = [calibration_errors(self.model_, one, self.context_, int(end), h) for one, end in each]
        return conformal(np.concatenate(scores), level)
