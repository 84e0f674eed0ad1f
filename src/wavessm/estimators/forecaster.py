"""`WaveSSMForecaster`: series to their next steps, with quantiles, after scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from wavessm.data.baselines import naive_errors
from wavessm.data.series import TimeSeries
from wavessm.data.source import Batch, Windows
from wavessm.errors import DataError
from wavessm.estimators.base import WaveSSMEstimator, check_names, model_sizes, predict_all
from wavessm.features.line import Line, parts_of
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import metrics
from wavessm.training.backtest import MOST_ORIGINS, Forecast
from wavessm.training.forecaster import LineForecaster

STEPS_PER_EPOCH = 50
MOST_NUMBERS = 50_000_000  # targets that are held in memory; windows are thinned out beyond that


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMForecaster(WaveSSMEstimator, LineForecaster):
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
        missing: Missing rows, uneven times and NaN: "error"; "hold" repeats the value before as if it were observed;
            "gap" reads it in contexts, but fits and compares no forecast of what was not observed; "skip" leaves such
            rows out and takes the others as evenly spaced. Uneven times go onto a grid of about their median step.
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

    method: str = "auto"
    dropout: float = 0.1
    batch_size: int | None = 32
    validation_fraction: float = 0.2
    n_iter_no_change: int = 8
    max_epochs: int | None = 12

    def fit_line(self) -> WaveSSMForecaster:
        super().fit_line()
        if self.method == "gradient":
            self._fit_residuals()
        return self

    def _check_options(self) -> int:
        self._train_config(1, 0)  # wrong ones are refused even where nothing is trained
        check_names("method", (self.method,), ("auto", "linear", "gradient"))
        return super()._check_options()

    def _check_steps(self, h: int | None) -> int:
        check_is_fitted(self, "line_")
        return super()._check_steps(h)

    def _fit_residuals(self) -> None:
        """Train a state space on what the line leaves; keep it if it is better on unseen rows, beyond noise."""
        parts, split = self.series_, self.split_
        if (split.stop_end <= split.train_end).any():
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
        beside = {"line": float(stop.targets.square().nanmean()), "last value": naive_errors(stop, 1).mse}
        if self.season_ > 1:
            beside["last season"] = naive_errors(stop, self.season_).mse
        self._fit_model(source, stop, partial(metrics.loss, "forecast"), config, training, STEPS_PER_EPOCH, beside)
        model, rest = self.model_, check.targets
        found = predict_all(model, check.to(next(model.parameters()).device)).cpu()
        gain = (rest.square() - (rest - found).square()).nanmean((1, 2)).numpy()
        self.choices_ |= chosen | {"gain": float(gain.mean() / rest.square().nanmean())}
        if improves(gain, -(-int(self.horizon) // check.stride)):
            self.method_, self.line_ = "gradient", line
            self.held_ = self.forecast_ = Forecast(line, model, self.context_)

    def _new_model(self, config: ModelConfig, seed: int) -> SequenceModel:
        model = super()._new_model(config, seed)
        for weight in model.head.decoder.parameters():  # so that training starts at the line
            torch.nn.init.zeros_(weight)
        return model


class Residuals(Windows):
    """Windows whose contexts have their last value taken off, and whose targets are what a line leaves of the truth."""

    targets: Tensor  # (windows, horizon, columns)
    stride: int  # rows between windows

    @classmethod
    def of(cls, line: Line, series: Sequence[TimeSeries], context: int, begin: Any, end: np.ndarray, most: int) -> Self:
        """Up to `most` windows whose horizons lie in [begin, end) of their series and have no gap."""
        horizon, values = line.horizon, [one.scaled() for one in series]
        origins = [part.origins(horizon) for part in parts_of(series, values, np.maximum(context, begin), end)]
        most = min(most, MOST_NUMBERS // (horizon * values[0].shape[1]))
        stride = max(1, -(-sum(map(len, origins)) // most))
        origins = [one[::stride] for one in origins]
        rest = [
            one.scale.apply(one.truth)[o[:, None] + np.arange(horizon)] - line.forecast(v, o, one.marks)
            for v, o, one in zip(values, origins, series, strict=True)
        ]
        offsets = np.cumsum([0, *map(len, values)])
        starts = np.concatenate([o - context + offset for o, offset in zip(origins, offsets, strict=False)])
        each = [one.marks for one in series if one.marks is not None]
        marks = torch.from_numpy(np.concatenate(each)).float() if each else None
        table = torch.from_numpy(np.concatenate(values)).float()
        source = cls(table, marks, context, horizon, torch.from_numpy(starts), True)
        source.targets = torch.from_numpy(np.concatenate(rest)).float()
        source.stride = stride
        return source

    def take(self, index: Tensor) -> Batch:
        batch = super().take(index)
        return batch._replace(x=batch.x - batch.x[:, -1:], y=self.targets[index.to(self.device)])


def improves(gain: np.ndarray, block: int, draws: int = 2000) -> bool:
    """Whether a mean gain over consecutive windows is beyond their noise.

    Neighbouring windows share most of their values, so circular blocks of `block` windows are drawn: the mean must be
    positive in 97.5 % of the draws. Fewer than four blocks prove nothing.

    >>> random = np.random.default_rng(0)
    >>> improves(random.standard_normal(400), 20), improves(0.5 + random.standard_normal(400), 20)
    (False, True)
    """
    if (n := len(gain)) < 4 * block:
        return False
    sums = np.cumsum(np.concatenate([[0.0], gain, gain[:block]]))
    means = (sums[block : block + n] - sums[:n]) / block  # of the block that starts at each window
    starts = np.random.default_rng(0).integers(0, n, (draws, -(-n // block)))
    return bool(np.quantile(means[starts].mean(axis=1), 0.025) > 0)
