"""Stage 9g: `WaveSSMForecaster`: series to what comes next, with intervals, after scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from wavessm.checks import positive, whole
from wavessm.config import ModelConfig
from wavessm.errors import DataError, OptionError, ShapeError
from wavessm.estimators import defaults
from wavessm.estimators.fitting import Plan, pick_device, seeded, train
from wavessm.estimators.series import Track, cycles_of, read_series, rewrap, season_of, step_seconds
from wavessm.estimators.windows import Scale, Table, conformal, marks_of, read_covariates, table_of
from wavessm.models import SequenceModel

STEPS_PER_EPOCH = 50
MOST_ORIGINS = 500
"""Forecasts a series that calibrate an interval or judge an epoch."""


class Interval(NamedTuple):
    """Bounds of what comes next, in the form of the forecast itself."""

    lower: Any
    upper: Any


@dataclass(frozen=True, eq=False)
class Backtest:
    """How forecasts from many origins met what came. Means are over origins, steps and columns, in the data's units."""

    mae: float
    rmse: float
    mase: float  # mae over that of repeating the last season (the last value without one), on the same windows
    r2: float
    coverage: float  # part of the truth inside the intervals; NaN without them
    mae_by_step: np.ndarray  # (h,)
    forecasts: np.ndarray  # (origins, h, columns)
    truth: np.ndarray  # (origins, h, columns)
    origins: np.ndarray  # (origins, 2): number of the series, rows before the forecast


class WaveSSMForecaster(BaseEstimator):
    """A forecaster of one series or many; None everywhere lets the data decide (see `choices_` after fit).

    horizon              steps that are trained; `predict(h)` goes beyond by reading its own forecasts
    context              steps it looks back; None takes them from the horizon and the season of the dates
    family, d_model, n_layers, d_state, dropout, dt_min, dt_max, max_epochs, batch_size, learning_rate, weight_decay,
    n_iter_no_change, warm_start, device, random_state, verbose  as in `WaveSSMClassifier`
    calendar             read the place in the day, week and year from a DatetimeIndex, those seen at least twice
    validation_fraction  end of each series set aside: its second half calibrates intervals and its first half stops
                         training early, if it is at least four horizons long; else all of it calibrates

    After fit: `model_`, `choices_`, `history_`, `n_iter_`, `context_`, `n_columns_`.

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
        before = (self.n_columns_, self.n_marks_, self.context_) if hasattr(self, "model_") else None
        horizon = whole(self.horizon, "horizon", least=1)
        self.tracks_, self.form_ = read_series(series, "series")
        self.n_columns_ = self.tracks_[0].values.shape[1]
        self._check_columns(self.tracks_)
        self.season_ = season_of(self.tracks_[0].index)
        self._split(horizon)
        self.calendar_ = self._cycles() if self.calendar else ()
        self.scales_ = [Scale.of(track.values[:end]) for track, end in zip(self.tracks_, self.train_end_, strict=True)]
        self._read_known(covariates)
        table = self._table(self.tracks_, self.scales_, self.known_)
        device = pick_device(self.device)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        first = self._starts(0, self.train_end_)
        with seeded(seed, device):
            if before is None or not self.warm_start or before != (self.n_columns_, self.n_marks_, self.context_):
                self.model_ = SequenceModel(self._config(table, first))
            self._train(table, first, device)
        return self

    def _check_columns(self, tracks: list[Track]) -> None:
        for at, track in enumerate(tracks):
            if track.values.shape[1] != self.n_columns_:
                raise ShapeError(
                    f"series {at} has {track.values.shape[1]} columns, expected {self.n_columns_}; all need the same."
                )

    def _split(self, horizon: int) -> None:
        """Where training, early stopping and calibration end in each series; and the context."""
        if not 0 <= self.validation_fraction < 1:
            raise OptionError(f"validation_fraction is {self.validation_fraction}, expected 0 ≤ fraction < 1.")
        lengths = np.array([track.length for track in self.tracks_])
        stretch = np.round(self.validation_fraction * lengths).astype(int)
        if self.validation_fraction:
            stretch = np.maximum(stretch, horizon)
        self.train_end_ = lengths - stretch
        half = stretch // 2 if (stretch >= 4 * horizon).all() and self.validation_fraction else np.zeros_like(stretch)
        self.stop_end_ = self.train_end_ + half  # equal to train_end_ where nothing stops the training early
        shortest = int(self.train_end_.min())
        if self.context is None:
            wanted = max(2 * horizon, 3 * self.season_ if self.season_ > 1 else 0, 24)
            self.context_ = max(1, min(wanted, (shortest - horizon) // 2))
        else:
            self.context_ = whole(self.context, "context", least=1)
        if shortest < self.context_ + horizon or self.context_ < 1:
            raise DataError(
                f"the shortest series has {int(lengths.min())} steps, {shortest} to train on, expected at least "
                f"context + horizon = {self.context_} + {horizon}; lower one of them or validation_fraction."
            )

    def _cycles(self) -> tuple[str, ...]:
        """Cycles of the calendar that the training part of every series goes through twice."""
        each = [cycles_of(track.index, int(end)) for track, end in zip(self.tracks_, self.train_end_, strict=True)]
        return tuple(name for name in each[0] if all(name in cycles for cycles in each))

    def _read_known(self, covariates: Any) -> None:
        self.known_: list[np.ndarray] | None = None
        self.known_scale_: Scale | None = None
        if covariates is not None:
            tables = read_covariates(covariates, self.tracks_, self.form_, [track.length for track in self.tracks_])
            self.known_scale_ = Scale.of(np.concatenate(tables))
            self.known_ = tables

    def _table(self, tracks: list[Track], scales: list[Scale], known: list[np.ndarray] | None) -> Table:
        marks = [self._marks(track, None if known is None else known[at], 0) for at, track in enumerate(tracks)]
        self.n_marks_ = 0 if marks[0] is None else marks[0].shape[1]
        return table_of(tracks, scales, None if marks[0] is None else [mark for mark in marks if mark is not None])

    def _marks(self, track: Track, known: np.ndarray | None, steps: int) -> np.ndarray | None:
        scaled = None if known is None or self.known_scale_ is None else self.known_scale_.do(known)
        return marks_of(track, scaled, steps, self.calendar_)

    def _starts(self, begin: Any, end: Any) -> Tensor:
        """First rows in the table of all windows whose horizon lies in [begin, end) of its series."""
        offset, starts = 0, []
        begins = np.broadcast_to(begin, len(self.tracks_))
        for track, low, high in zip(self.tracks_, begins, end, strict=True):
            first = torch.arange(max(0, int(low) - self.context_), int(high) - self.context_ - int(self.horizon) + 1)
            starts.append(first + offset)
            offset += track.length
        return torch.cat(starts)

    def _config(self, table: Table, first: Tensor) -> ModelConfig:
        size = defaults.model_size(len(first) // int(self.horizon), self.context_)
        slow, fast = defaults.step_range(self.context_ + int(self.horizon))
        self.choices_: dict[str, Any] = {
            "family": self.family,
            "d_model": size.d_model if self.d_model is None else self.d_model,
            "n_layers": size.n_layers if self.n_layers is None else self.n_layers,
            "d_state": size.d_state if self.d_state is None else self.d_state,
            "dt_min": slow if self.dt_min is None else self.dt_min,
            "dt_max": fast if self.dt_max is None else self.dt_max,
            "instance_norm": self._pick_norm(table, first),
        }
        marks: dict[str, Any] = (
            {"encoder": "calendar", "mark_width": self.n_marks_, "horizon_mask": True} if self.n_marks_ else {}
        )
        return ModelConfig(
            d_input=self.n_columns_, d_output=self.n_columns_, dropout=self.dropout, head="forecast",
            horizon=int(self.horizon), **marks, **self.choices_,
        )  # fmt: skip

    def _pick_norm(self, table: Table, first: Tensor) -> str:
        """Whether the last value or the mean of a context is nearer to what follows."""
        some = first[:: max(1, len(first) // MOST_ORIGINS)]
        windows, _ = table.windows(some, self.context_ + int(self.horizon))
        past, truth = windows[:, : self.context_], windows[:, self.context_ :]
        last = (truth - past[:, -1:]).abs().mean()
        return "last" if last < (truth - past.mean(1, keepdim=True)).abs().mean() else "mean_std"

    def _train(self, table: Table, first: Tensor, device: torch.device) -> None:
        model = self.model_.to(device)
        batch = whole(self.batch_size, "batch_size", least=1)
        cases = min(len(first), STEPS_PER_EPOCH * batch)
        epochs = defaults.epochs(cases, batch) if self.max_epochs is None else self.max_epochs
        stops = bool((self.stop_end_ > self.train_end_).all())
        plan = Plan(
            epochs=whole(epochs, "max_epochs", least=1),
            batch_size=batch,
            learning_rate=positive(self.learning_rate, "learning_rate"),
            weight_decay=self.weight_decay,
            patience=whole(self.n_iter_no_change, "n_iter_no_change", least=1),
            steps_per_epoch=STEPS_PER_EPOCH,
            verbose=self.verbose,
            label=type(self).__name__,
        )
        self.choices_ |= {
            "context": self.context_,
            "calendar": self.calendar_,
            "max_epochs": plan.epochs,
            "early_stopping": stops,
        }
        if self.verbose:
            print(f"{plan.label}: {defaults.describe(self.choices_)}")
        table = Table(table.values.to(device), None if table.marks is None else table.marks.to(device))

        def loss(index: Tensor, starts: Tensor = first) -> Tensor:
            windows, marks = table.windows(starts[index].to(device), self.context_ + int(self.horizon))
            return (model(windows[:, : self.context_], marks=marks) - windows[:, self.context_ :]).abs().mean()

        held = self._starts(self.train_end_, self.stop_end_) if stops else first[:0]
        held = held[:: max(1, len(held) // MOST_ORIGINS)]
        validate = (lambda: float(loss(torch.arange(len(held)), held))) if len(held) else None
        self.history_ = train(model, plan, len(first), loss, validate)
        self.n_iter_ = self.history_.epochs

    # -- predict ------------------------------------------------------------------------------------------------

    def predict(self, h: int | None = None, series: Any = None, covariates: Any = None) -> Any:
        """The next h steps (the horizon's, if None) of the series of fit or of a given one, in the form it came in.

        covariates  where fit had them: rows of the next h steps, (h, k); with `series`, of all its steps and the next
        """
        h = self._steps(h)
        tracks, form, scales, known = self._given(series, covariates, h)
        results = []
        for at, (track, scale) in enumerate(zip(tracks, scales, strict=True)):
            marks = self._marks(track, None if known is None else known[at], h)
            values = self._roll(track, scale, marks, np.array([track.length]), h)[0]
            results.append(track.wrap(values, track.future(h)))
        return rewrap(results, form)

    def predict_interval(
        self, h: int | None = None, level: float = 0.9, series: Any = None, covariates: Any = None
    ) -> Interval:
        """Bounds that hold each step with probability `level`: split conformal, from the end of the series of fit.

        The promise is exact when forecasts made later err as those of the validation stretch do, each step by itself.
        """
        h = self._steps(h)
        if not 0 < level < 1:
            raise OptionError(f"level is {level}, expected a number between 0 and 1.")
        tracks, form, scales, known = self._given(series, covariates, h)
        width = conformal(self._scores(h), level)  # (h, columns)
        low, high = [], []
        for at, (track, scale) in enumerate(zip(tracks, scales, strict=True)):
            marks = self._marks(track, None if known is None else known[at], h)
            values = self._roll(track, scale, marks, np.array([track.length]), h)[0]
            low.append(track.wrap(values - width * scale.deviation, track.future(h)))
            high.append(track.wrap(values + width * scale.deviation, track.future(h)))
        return Interval(rewrap(low, form), rewrap(high, form))

    def _steps(self, h: int | None) -> int:
        check_is_fitted(self, "model_")
        return int(self.horizon) if h is None else whole(h, "h", least=1)

    def _given(
        self, series: Any, covariates: Any, h: int
    ) -> tuple[list[Track], Any, list[Scale], list[np.ndarray] | None]:
        """Series, their form, scales and covariates up to h steps beyond the end."""
        if series is None:
            tracks, form, scales = self.tracks_, self.form_, self.scales_
        else:
            tracks, form = read_series(series, "series")
            self._check_columns(tracks)
            scales = self.scales_ if len(tracks) == len(self.tracks_) else [Scale.of(track.values) for track in tracks]
            if self.calendar_ and any(step_seconds(track.index) is None for track in tracks):
                raise DataError("the series of fit had dates and this one has none; give a DatetimeIndex.")
        for at, track in enumerate(tracks):
            if track.length < self.context_:
                raise DataError(f"series {at} has {track.length} steps, expected the context of {self.context_}.")
        if (covariates is None) != (self.known_ is None) and not (covariates is None and h == 0):
            came, had = ("no", "had") if covariates is None else ("some", "had no")
            raise OptionError(f"{came} covariates came, but fit {had} covariates; give those of the next {h} steps.")
        if covariates is None:
            return tracks, form, scales, self.known_ if series is None else None
        rows = [h if series is None else track.length + h for track in tracks]
        tables = read_covariates(covariates, tracks, form, rows)
        if series is None:
            assert self.known_ is not None
            tables = [np.concatenate(pair) for pair in zip(self.known_, tables, strict=True)]
        return tracks, form, scales, tables

    @torch.no_grad()
    def _roll(
        self,
        track: Track,
        scale: Scale,
        marks: np.ndarray | None,  # (time + steps known, k)
        origins: np.ndarray,  # (n,) rows before the forecast
        h: int,
    ) -> np.ndarray:
        """Forecasts of h steps after each origin, in the data's units. (n, h, columns)"""
        model, context, horizon = self.model_, self.context_, int(self.horizon)
        device = next(model.parameters()).device
        blocks = -(-h // horizon)
        rows = origins[:, None] - context + np.arange(context + blocks * horizon)
        x = torch.from_numpy(scale.do(track.values[rows[:, :context]]).astype(np.float32)).to(device)
        known = None
        if marks is not None:  # the model is causal: what stands after the last known mark reaches no step before it
            known = torch.from_numpy(marks[np.minimum(rows, len(marks) - 1)].astype(np.float32)).to(device)
        said = []
        for at in range(0, blocks * horizon, horizon):
            y = model(x, marks=None if known is None else known[:, at : at + context + horizon])
            said.append(y)
            x = torch.cat([x, y], dim=1)[:, -context:]
        return scale.undo(torch.cat(said, dim=1)[:, :h].double().cpu().numpy())

    def _scores(self, h: int) -> np.ndarray:
        """|error| / deviation over the calibrating end of each series; NaN past its end. (origins, h, columns)"""
        if not self.validation_fraction:
            raise OptionError("intervals need a validation stretch; fit with validation_fraction above 0.")
        scores = []
        for at, (track, scale) in enumerate(zip(self.tracks_, self.scales_, strict=True)):
            origins = np.arange(self.stop_end_[at], track.length)
            origins = origins[:: max(1, len(origins) // MOST_ORIGINS)]
            marks = self._marks(track, None if self.known_ is None else self.known_[at], 0)
            rows = origins[:, None] + np.arange(h)
            truth = np.where(rows[..., None] < track.length, track.values[np.minimum(rows, track.length - 1)], np.nan)
            scores.append(np.abs(self._roll(track, scale, marks, origins, h) - truth) / scale.deviation)
        return np.concatenate(scores)

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

        series  None takes the calibrating end of the series of fit, which training never saw
        level   also counts how much of the truth lies inside intervals of this level; give a new series for that
        """
        h, own = self._steps(h), series is None
        if own and covariates is not None:
            raise OptionError("backtest of the series of fit knows its covariates; leave them out.")
        tracks, _, scales, known = (
            (self.tracks_, None, self.scales_, self.known_) if own else self._given(series, covariates, 0)
        )
        width = None if level is None else conformal(self._scores(h), level)
        said, came, naive, inside, where = [], [], [], [], []
        for at, (track, scale) in enumerate(zip(tracks, scales, strict=True)):
            begin = max(int(self.stop_end_[at]) if own else 0, self.context_, self.season_)
            origins = np.arange(begin, track.length - h + 1, whole(stride, "stride", least=1))
            if not len(origins):
                continue
            marks = self._marks(track, None if known is None else known[at], 0)
            said.append(self._roll(track, scale, marks, origins, h))
            steps = np.arange(h)
            came.append(track.values[origins[:, None] + steps])
            naive.append(track.values[origins[:, None] - self.season_ + steps % self.season_])
            if width is not None:
                inside.append(np.abs(said[-1] - came[-1]) <= width * scale.deviation)
            where.append(np.stack([np.full_like(origins, at), origins], axis=1))
        if not said:
            raise DataError(f"backtest: no series has {self.context_} steps of context and {h} to compare with.")
        return _judged(said, came, naive, where, inside)

    def score(self, series: Any = None, covariates: Any = None) -> float:
        """R² of the forecasts over all origins of a series."""
        return self.backtest(series, covariates=covariates).r2


def _judged(*parts: list[np.ndarray]) -> Backtest:
    """From forecasts, truth, the naive forecast, origins and what was inside the intervals, series by series."""
    said, came, naive, where = (np.concatenate(part) for part in parts[:4])
    error = said - came
    mae = float(np.abs(error).mean())
    spread = float(np.square(came - came.mean(axis=(0, 1))).sum())
    return Backtest(
        mae=mae,
        rmse=float(np.sqrt(np.square(error).mean())),
        mase=mae / max(float(np.abs(naive - came).mean()), 1e-12),
        r2=1 - float(np.square(error).sum()) / max(spread, 1e-12),
        coverage=float(np.concatenate(parts[4]).mean()) if parts[4] else float("nan"),
        mae_by_step=np.abs(error).mean(axis=(0, 2)),
        forecasts=said,
        truth=came,
        origins=where,
    )
