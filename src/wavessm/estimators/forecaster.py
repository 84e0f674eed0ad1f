"""Stage 9h: `WaveSSMForecaster`: series to what comes next, with intervals, after scikit-learn's conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from wavessm.errors import DataError, OptionError, check_int
from wavessm.estimators import defaults
from wavessm.estimators.backtest import MOST_ORIGINS, Backtest, Case, Interval, compare, errors, judged, roll
from wavessm.estimators.fitting import make_plan, pick_device, seeded, train
from wavessm.estimators.index import cycles_of, season_of, step_seconds
from wavessm.estimators.series import TimeSeries, names_of, read_series, refuse_others, rewrap
from wavessm.estimators.windows import (
    Scale,
    Split,
    Table,
    conformal,
    marks_of,
    nearer_norm,
    read_covariates,
    refuse_constant,
    split_series,
    starts,
    table_of,
)
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel

STEPS_PER_EPOCH = 50


class WaveSSMForecaster(BaseEstimator):
    """A forecaster of one series or many; None everywhere lets the data decide (see `choices_` after fit).

    horizon              steps that are trained; `predict(h)` goes beyond by reading its own forecasts
    context              steps it looks back; None takes them from the horizon and the season of the dates
    family, d_model, n_layers, d_state, dropout, dt_min, dt_max, max_epochs, batch_size, learning_rate, weight_decay,
    n_iter_no_change, warm_start, device, random_state, verbose  as in `WaveSSMClassifier`
    calendar             read the place in the day, week and year from a DatetimeIndex, those seen at least twice
    validation_fraction  end of each series set aside: its second half calibrates intervals and its first half stops
                         training early, if it is at least four horizons long; else all of it calibrates

    After fit: `model_`, `choices_`, `history_`, `n_iter_`, `context_`, `n_columns_`; `column_names_` and
    `covariate_names_`, of DataFrames, None without them: later tables may have these columns in any order.

    >>> t = np.arange(300)
    >>> series = np.sin(2 * np.pi * t / 12) + 0.01 * t
    >>> model = WaveSSMForecaster(horizon=12, max_epochs=5, random_state=0).fit(series)
    >>> model.predict().shape, model.predict(30).shape
    ((12,), (30,))
    >>> lower, upper = model.predict_interval(level=0.8)
    >>> bool((lower <= upper).all())
    True
    """

    model_: SequenceModel
    n_columns_: int
    column_names_: list | None
    covariate_names_: list | None
    known_: list[np.ndarray] | None
    known_scale_: Scale | None
    calendar_: tuple[str, ...]
    n_marks_: int
    context_: int
    train_end_: np.ndarray
    stop_end_: np.ndarray

    def __init__(
        self,
        horizon: int = 1,
        context: int | None = None,
        family: str = "morlet",
        d_model: int | None = None,
        n_layers: int | None = None,
        d_state: int | None = None,
        dropout: float = 0.1,
        dt_min: float | None = None,
        dt_max: float | None = None,
        calendar: bool = True,
        max_epochs: int | None = None,
        batch_size: int = 32,
        learning_rate: float = 0.004,
        weight_decay: float = 0.01,
        validation_fraction: float = 0.2,
        n_iter_no_change: int = 8,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.horizon = horizon
        self.context = context
        self.family = family
        self.d_model = d_model
        self.n_layers = n_layers
        self.d_state = d_state
        self.dropout = dropout
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.calendar = calendar
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # -- fit ----------------------------------------------------------------------------------------------------

    def fit(self, series: Any, covariates: Any = None) -> WaveSSMForecaster:
        """Train on a series (time,), (time, columns), a pandas object, or a list or dict of them.

        covariates  numbers known beforehand, (time, k) beside each series, in the same form
        """
        anew = not (self.warm_start and hasattr(self, "model_"))
        if not anew:
            defaults.refuse_changes(self, self.model_.config)
        horizon = check_int(self.horizon, "horizon", least=1)
        tracks, form = read_series(series, "series", None if anew else self.column_names_)
        refuse_others(tracks, tracks[0])
        lengths, season = [track.length for track in tracks], season_of(tracks[0].index)
        context = self.context if anew or self.context is not None else self.context_
        split = split_series(np.array(lengths), horizon, self.validation_fraction, context, season)
        refuse_constant(tracks, split.train_end)
        names = None if anew else self.covariate_names_
        known = None if covariates is None else read_covariates(covariates, tracks, form, lengths, names=names)
        if not anew:
            self._check_same(tracks, known, split)
        self.tracks_, self.form_, self.season_ = tracks, form, season
        self.train_end_, self.stop_end_, self.context_ = split
        self._learn_columns(known, anew)
        table = self._table(self.tracks_, self.scales_, self.known_)
        device = pick_device(self.device)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        first = self._starts(0, self.train_end_)
        with seeded(seed, device):
            if anew:
                self.model_ = SequenceModel(self._config(table, first))
            self._train(table, first, split, device)
        return self

    def _check_same(self, tracks: list[TimeSeries], known: list[TimeSeries] | None, split: Split) -> None:
        """One line about a warm start whose data needs another model."""
        was = 0 if self.known_ is None else self.known_[0].shape[1]
        defaults.refuse_change("the number of columns", tracks[0].values.shape[1], self.n_columns_)
        defaults.refuse_change("the number of covariates", 0 if known is None else known[0].values.shape[1], was)
        defaults.refuse_change("the context", split.context, self.context_)
        self._check_dates(tracks)

    def _learn_columns(self, known: list[TimeSeries] | None, anew: bool) -> None:
        """What is kept of the series and covariates; names and calendar are those of the model's first fit."""
        trained = list(zip(self.tracks_, self.train_end_, strict=True))
        self.n_columns_ = self.tracks_[0].values.shape[1]
        self.scales_ = [Scale.of(track.values[:end]) for track, end in trained]
        if anew:
            self.column_names_, self.covariate_names_ = names_of(self.tracks_), names_of(known or [])
            each = [cycles_of(track.index, int(end)) for track, end in trained]
            self.calendar_ = tuple(name for name in each[0] if self.calendar and all(name in some for some in each))
        self.known_ = None if known is None else [table.values for table in known]
        self.known_scale_ = None if self.known_ is None else Scale.of(np.concatenate(self.known_))

    def _check_dates(self, tracks: list[TimeSeries]) -> None:
        if self.calendar_ and any(step_seconds(track.index) is None for track in tracks):
            raise DataError("the series of fit had dates and this one has none; give a DatetimeIndex.")

    def _table(self, tracks: list[TimeSeries], scales: list[Scale], known: list[np.ndarray] | None) -> Table:
        marks = [self._marks(track, None if known is None else known[at], 0) for at, track in enumerate(tracks)]
        self.n_marks_ = 0 if marks[0] is None else marks[0].shape[1]
        return table_of(tracks, scales, None if marks[0] is None else [mark for mark in marks if mark is not None])

    def _marks(self, track: TimeSeries, known: np.ndarray | None, steps: int) -> np.ndarray | None:
        scaled = None if known is None or self.known_scale_ is None else self.known_scale_.do(known)
        return marks_of(track, scaled, steps, self.calendar_)

    def _starts(self, begin: Any, end: Any) -> Tensor:
        lengths = [track.length for track in self.tracks_]
        return starts(lengths, begin, end, self.context_, int(self.horizon))

    def _config(self, table: Table, first: Tensor) -> ModelConfig:
        length = self.context_ + int(self.horizon)
        some, _ = table.windows(first[:: max(1, len(first) // MOST_ORIGINS)], length)
        sizes = defaults.model_choices(self, len(first) // int(self.horizon), self.context_, length)
        self.choices_: dict[str, Any] = sizes | {"instance_norm": nearer_norm(some, self.context_)}
        marks: dict[str, Any] = (
            {"encoder": "calendar", "mark_width": self.n_marks_, "horizon_mask": True} if self.n_marks_ else {}
        )
        return ModelConfig(
            d_input=self.n_columns_, d_output=self.n_columns_, dropout=self.dropout, head="forecast",
            horizon=int(self.horizon), **marks, **self.choices_,
        )  # fmt: skip

    def _train(self, table: Table, first: Tensor, split: Split, device: torch.device) -> None:
        model, table = self.model_.to(device), table.to(device)
        batch = check_int(self.batch_size, "batch_size", least=1)
        plan = make_plan(self, min(len(first), STEPS_PER_EPOCH * batch), batch, STEPS_PER_EPOCH)
        self.choices_ |= {
            "context": self.context_,
            "calendar": self.calendar_,
            "max_epochs": plan.epochs,
            "early_stopping": split.stops,
        }
        if self.verbose:
            print(f"{plan.label}: {defaults.describe(self.choices_)}")

        def loss(index: Tensor, starts: Tensor = first) -> Tensor:
            windows, marks = table.windows(starts[index].to(device), self.context_ + int(self.horizon))
            return (model(windows[:, : self.context_], marks=marks) - windows[:, self.context_ :]).abs().mean()

        held = self._starts(split.train_end, split.stop_end) if split.stops else first[:0]
        held = held[:: max(1, len(held) // MOST_ORIGINS)]
        validate = (lambda: float(loss(torch.arange(len(held)), held))) if len(held) else None
        self.history_ = train(model, plan, len(first), loss, validate)
        self.n_iter_ = self.history_.epochs

    # -- predict ------------------------------------------------------------------------------------------------

    def predict(self, h: int | None = None, series: Any = None, covariates: Any = None) -> Any:
        """The next h steps (the horizon's, if None) of the series of fit or of a given one, in the form it came in.

        series      scaled as the series of fit with its key (in a dict) or its place (in a list of as many, or alone);
                    any other by its own mean and deviation
        covariates  where fit had them: rows of the next h steps, (h, k); with `series`, of all its steps and the next
        """
        h = self._steps(h)
        cases, form = self._cases(series, covariates, h)
        return rewrap([case.track.wrap(self._ahead(case, h), case.track.future(h)) for case in cases], form)

    def predict_interval(
        self, h: int | None = None, level: float = 0.9, series: Any = None, covariates: Any = None
    ) -> Interval:
        """Bounds that hold each step with probability `level`: split conformal, from the end of the series of fit.

        The promise is exact when forecasts made later err as those of the validation stretch do, each step by itself.
        """
        h = self._steps(h)
        cases, form = self._cases(series, covariates, h)
        width = self._width(h, level)
        low, high = [], []
        for case in cases:
            values, half, index = self._ahead(case, h), width * case.scale.deviation, case.track.future(h)
            low.append(case.track.wrap(values - half, index))
            high.append(case.track.wrap(values + half, index))
        return Interval(rewrap(low, form), rewrap(high, form))

    def _ahead(self, case: Case, h: int) -> np.ndarray:  # (h, columns)
        return roll(self.model_, case, self.context_, np.array([case.track.length]), h)[0]

    def _cases(self, series: Any, covariates: Any, h: int) -> tuple[list[Case], Any]:
        """What to forecast h steps beyond the end of, and the form it came in."""
        tracks, form, scales, known = self._given(series, covariates, h)
        marks = [self._marks(track, None if known is None else known[at], h) for at, track in enumerate(tracks)]
        return [Case(*parts) for parts in zip(tracks, scales, marks, strict=True)], form

    def _steps(self, h: int | None) -> int:
        check_is_fitted(self, "model_")
        return int(self.horizon) if h is None else check_int(h, "h", least=1)

    def _given(
        self, series: Any, covariates: Any, h: int
    ) -> tuple[list[TimeSeries], Any, list[Scale], list[np.ndarray] | None]:
        """Series, their form, scales and covariates up to h steps beyond the end."""
        if series is None:
            tracks, form, scales = self.tracks_, self.form_, self.scales_
        else:
            tracks, form = read_series(series, "series", self.column_names_)
            refuse_others(tracks, self.tracks_[0])
            scales = self._scales_of(tracks, form)
            self._check_dates(tracks)
        for at, track in enumerate(tracks):
            if track.length < self.context_:
                raise DataError(f"series {at} has {track.length} steps, expected the context of {self.context_}.")
        if covariates is None and self.known_ is not None:
            of = f"the next {h} steps" if series is None else f"the series and of the next {h} steps"
            raise OptionError(f"no covariates came, but fit had covariates; give those of {of}.")
        if covariates is None:
            return tracks, form, scales, None
        if self.known_ is None:
            raise OptionError("some covariates came, but fit had no covariates; leave them out or fit with them.")
        rows = [h if series is None else track.length + h for track in tracks]
        tables = read_covariates(covariates, tracks, form, rows, self.known_[0].shape[1], self.covariate_names_)
        known = [table.values for table in tables]
        if series is None:
            known = [np.concatenate(pair) for pair in zip(self.known_, known, strict=True)]
        return tracks, form, scales, known

    def _scales_of(self, tracks: list[TimeSeries], form: Any) -> list[Scale]:
        """Those of fit, by their keys in a dict, else by their places where there are as many; others' own."""
        own = [Scale.of(track.values) for track in tracks]
        if isinstance(form, list):
            known = dict(zip(self.form_, self.scales_, strict=True)) if isinstance(self.form_, list) else {}
            return [known.get(key, scale) for key, scale in zip(form, own, strict=True)]
        return self.scales_ if len(tracks) == len(self.tracks_) else own

    def _own(self) -> list[Case]:
        """The series of fit, as far as they go."""
        known = [None] * len(self.tracks_) if self.known_ is None else self.known_
        marks = [self._marks(track, table, 0) for track, table in zip(self.tracks_, known, strict=True)]
        return [Case(*parts) for parts in zip(self.tracks_, self.scales_, marks, strict=True)]

    def _width(self, h: int, level: float) -> np.ndarray:
        """Half an interval in deviations, from errors over the calibrating end of each series. (h, columns)"""
        if not isinstance(level, int | float | np.number) or not 0 < level < 1:
            raise OptionError(f"level is {level!r}, expected a number between 0 and 1.")
        if not self.validation_fraction:
            raise OptionError("intervals need a validation stretch; fit with validation_fraction above 0.")
        begins = [int(end) for end in self.stop_end_]
        scores = [errors(self.model_, case, self.context_, at, h) for case, at in zip(self._own(), begins, strict=True)]
        return conformal(np.concatenate(scores), level)

    # -- judge --------------------------------------------------------------------------------------------------

    def backtest(
        self,
        series: Any = None,
        h: int | None = None,
        stride: int = 1,
        level: float | None = None,
        covariates: Any = None,
    ) -> Backtest:
        """Forecast from every `stride`-th origin of a series and compare with what came; the model is not refitted.

        series  None takes the calibrating end of the series of fit, which training never saw; scaled as in `predict`
        level   also counts how much of the truth lies inside intervals of this level; give a new series for that
        """
        h, own = self._steps(h), series is None
        if own and covariates is not None:
            raise OptionError("backtest of the series of fit knows its covariates; leave them out.")
        cases = self._own() if own else self._cases(series, covariates, 0)[0]
        width = None if level is None else self._width(h, level)
        parts = []
        for at, case in enumerate(cases):
            begin = max(int(self.stop_end_[at]) if own else 0, self.context_, self.season_)
            rows = np.arange(begin, case.track.length - h + 1, check_int(stride, "stride", least=1))
            if len(rows):
                origins = np.stack([np.full_like(rows, at), rows], axis=1)
                parts.append(compare(self.model_, case, self.context_, origins, h, self.season_, width))
        if not parts:
            raise DataError(f"backtest: no series has {self.context_} steps of context and {h} to compare with.")
        return judged(parts)

    def score(self, series: Any = None, covariates: Any = None) -> float:
        """R² of the forecasts over all origins of a series."""
        return self.backtest(series, covariates=covariates).r2
