"""`WaveSSMForecaster`: series to their next steps, with intervals, after scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn import functional as F

from wavessm.data.source import Windows
from wavessm.errors import DataError, OptionError, check_int
from wavessm.estimators.backtest import MOST_ORIGINS, Backtest, Interval, Scale, ScaledSeries, compare, conformal
from wavessm.estimators.base import WaveSSMEstimator, build_model, model_sizes, pick_device
from wavessm.estimators.fitting import train
from wavessm.estimators.series import (
    TimeSeries,
    check_alike,
    column_names,
    read_series,
    same_form,
    season_of,
)
from wavessm.estimators.windows import (
    Marks,
    Split,
    check_moves,
    nearer_norm,
    read_covariates,
    split_series,
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

    def fit(self, series: Any, covariates: Any = None) -> WaveSSMForecaster:
        """Train on one series or several.

        Args:
            series: (time,), (time, columns), a pandas object, or a list or dict of them.
            covariates: Numbers known beforehand, (time, k) beside each series, in the same form.

        Returns:
            The estimator itself.
        """
        again, horizon = self._continues, check_int(self.horizon, "horizon", least=1)
        parts, form = read_series(series, "series", self.column_names_ if again else None)
        check_alike(parts, parts[0])
        if not isinstance(self.calendar, bool):
            raise OptionError(f"calendar is {self.calendar!r}, expected True or False.")
        lengths, season = [one.length for one in parts], season_of(parts[0].index)
        context = self.context_ if again and self.context is None else self.context
        split = split_series(np.array(lengths), horizon, self.validation_fraction, context, season)
        check_moves(parts, split.train_end)
        names = self.covariate_names_ if again else None
        tables = [] if covariates is None else read_covariates(covariates, parts, form, lengths, None, names)
        known = [table.values for table in tables] or None
        marks = Marks.learn(parts, split.train_end, known, self.calendar)
        marks = marks._replace(cycles=self.marks_.cycles) if again else marks
        scales = [Scale.of(one.values[:end]) for one, end in zip(parts, split.train_end, strict=True)]
        self._train(_scaled(parts, scales, marks, known), split)
        self.series_, self.form_, self.scales_, self.known_ = parts, form, scales, known
        self.season_, self.stop_end_, self.n_columns_ = season, split.stop_end, parts[0].values.shape[1]
        self.context_: int = split.context
        self.marks_: Marks = marks
        self.column_names_: list | None = self.column_names_ if again else column_names(parts)
        self.covariate_names_: list | None = names if again else column_names(tables)
        return self

    def _train(self, inputs: list[ScaledSeries], split: Split) -> None:
        """Train on the windows of all series, laid one after another in one table."""
        horizon, lengths = int(self.horizon), [one.series.length for one in inputs]
        values = torch.from_numpy(np.concatenate([one.scale.apply(one.series.values) for one in inputs])).float()
        each = [one.marks for one in inputs if one.marks is not None]
        marks = torch.from_numpy(np.concatenate(each)).float() if each else None

        def windows(begin: Any, end: Any, most: int) -> Windows:
            first = window_starts(lengths, begin, end, split.context, horizon)
            first = first[:: max(1, len(first) // most)]
            return Windows(values, marks, split.context, horizon, tuple(range(values.shape[1])), first, eval_stamp=True)

        source, few = (windows(0, split.train_end, most) for most in (len(values), MOST_ORIGINS))
        config = self._model_config(self._sizes(few, len(source), split.context), **self._fixed(values, marks))
        plan = self._plan(len(source), STEPS_PER_EPOCH)
        device, seed = pick_device(self.device), int(check_random_state(self.random_state).randint(2**31 - 1))
        if not self._continues:
            self.model_ = build_model(config, seed)
        self._tell(config, context=split.context, max_epochs=plan.epochs, early_stopping=split.stops)
        held = windows(split.train_end, split.stop_end, MOST_ORIGINS) if split.stops else None
        held = None if held is None else held.to(device)
        self.history_ = train(self.model_.to(device), plan, source.to(device), F.l1_loss, held, seed)
        self.n_iter_ = self.history_.epochs

    def _sizes(self, some: Windows, count: int, context: int) -> dict[str, Any]:
        """What the data suggest for the model: sizes, steps and instance norm."""
        batch = some.take(torch.arange(len(some)))
        sizes = model_sizes(count // int(self.horizon), context, context + int(self.horizon))
        return sizes | {"instance_norm": nearer_norm(batch.x, batch.y)}

    def _fixed(self, values: Tensor, marks: Tensor | None) -> dict[str, Any]:
        """What the data decide about the model."""
        columns = {
            "d_input": values.shape[1],
            "d_output": values.shape[1],
            "head": "forecast",
            "horizon": int(self.horizon),
        }
        if marks is None:
            return columns
        return columns | {"encoder": "calendar", "mark_width": marks.shape[1], "horizon_mask": True}

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
        return same_form([one.series.wrap(self._ahead(one, h)) for one in inputs], form)

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
            each = [one.series.wrap(self._ahead(one, h) + sign * width * one.scale.deviation) for one in inputs]
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
        h, stride = self._check_steps(h), check_int(stride, "stride", least=1)
        own = series is None
        inputs = self._own() if own else self._inputs(series, covariates, 0)[0]
        width = None if level is None else self._width(h, level)
        parts = []
        for at, one in enumerate(inputs):
            begin = max(int(self.stop_end_[at]) if own else 0, self.context_, self.season_)
            parts.append((at, one, np.arange(begin, one.series.length - h + 1, stride)))
        parts = [part for part in parts if len(part[2])]
        if not parts:
            raise DataError(f"backtest: no series has {self.context_} steps of context and {h} to compare with.")
        return compare(self.model_, parts, self.context_, h, self.season_, width)

    def score(self, series: Any = None, covariates: Any = None) -> float:
        """R² of the forecasts over all origins of a series, as in `backtest`."""
        return self.backtest(series, covariates=covariates).r2

    def _check_steps(self, h: int | None) -> int:
        check_is_fitted(self, "model_")
        return int(self.horizon) if h is None else check_int(h, "h", least=1)

    def _ahead(self, one: ScaledSeries, h: int) -> np.ndarray:  # (h, columns)
        return one.forecast(self.model_, self.context_, np.array([one.series.length]), h)[0]

    def _own(self) -> list[ScaledSeries]:
        """The series of fit, to their end."""
        return _scaled(self.series_, self.scales_, self.marks_, self.known_)

    def _inputs(self, series: Any, covariates: Any, h: int) -> tuple[list[ScaledSeries], Any]:
        """What to forecast h steps beyond the end of, and the form it came in."""
        parts, form, scales = self.series_, self.form_, self.scales_
        if series is not None:
            parts, form = read_series(series, "series", self.column_names_)
            check_alike(parts, self.series_[0])
            scales = self._scales_for(parts, form)
        for at, one in enumerate(parts):
            if one.length < self.context_:
                raise DataError(f"series {at} has {one.length} steps, expected the context of {self.context_}.")
        return _scaled(parts, scales, self.marks_, self._known_for(parts, form, covariates, series is None, h), h), form

    def _known_for(
        self, parts: list[TimeSeries], form: Any, covariates: Any, own: bool, h: int
    ) -> list[np.ndarray] | None:
        """Covariates of all steps of the series and h more, where fit had covariates."""
        if covariates is not None and self.known_ is None:
            raise OptionError("covariates: fit had no covariates; leave them out or fit with them.")
        if self.known_ is None:
            return None
        if covariates is None:
            steps = f"the next {h} steps" if own else f"the series and of the next {h} steps"
            raise OptionError(f"covariates: fit had covariates; give those of {steps}.")
        rows = [h if own else one.length + h for one in parts]
        tables = read_covariates(covariates, parts, form, rows, self.known_[0].shape[1], self.covariate_names_)
        past = self.known_ if own else [table.values[:0] for table in tables]
        return [np.concatenate([before, table.values]) for before, table in zip(past, tables, strict=True)]

    def _scales_for(self, parts: list[TimeSeries], form: Any) -> list[Scale]:
        """Scales of fit, by key in a dict, else by place where there are as many series; their own for others."""
        own = [Scale.of(one.values) for one in parts]
        if isinstance(form, list):
            known = dict(zip(self.form_, self.scales_, strict=True)) if isinstance(self.form_, list) else {}
            return [known.get(key, scale) for key, scale in zip(form, own, strict=True)]
        return self.scales_ if len(parts) == len(self.series_) else own

    def _width(self, h: int, level: float) -> np.ndarray:
        """Half an interval in deviations, from errors over the calibrating end of each series. (h, columns)"""
        if not isinstance(level, int | float | np.number) or not 0 < level < 1:
            raise OptionError(f"level is {level!r}, expected a number between 0 and 1.")
        if not self.validation_fraction:
            raise OptionError("intervals need a validation stretch; fit with validation_fraction above 0.")
        ends = zip(self._own(), self.stop_end_, strict=True)
        return conformal(
            np.concatenate([one.errors(self.model_, self.context_, int(end), h) for one, end in ends]), level
        )


def _scaled(
    parts: list[TimeSeries], scales: list[Scale], marks: Marks, known: list[np.ndarray] | None, steps: int = 0
) -> list[ScaledSeries]:
    tables = [None] * len(parts) if known is None else known
    each = zip(parts, scales, tables, strict=True)
    return [ScaledSeries(one, scale, marks.of(one, table, steps)) for one, scale, table in each]
