"""`WaveSSMRegressor`: signals to numbers, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from wavessm.errors import OptionError, ShapeError
from wavessm.estimators.base import Scale, WaveSSMEstimator, check_finite, model_sizes
from wavessm.estimators.features import (
    FeatureMethods,
    StateFeatures,
    case_weights,
    choose_method,
    read_cases,
    uses_features,
)
from wavessm.estimators.signals import AXES, Signals, TrainedModel


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMRegressor(RegressorMixin, FeatureMethods, WaveSSMEstimator):
    """A regressor of signals (cases, channels, time): state features in closed form, or a model trained by gradient.

    Args:
        method: "features", "gradient" or "auto", as in `WaveSSMClassifier`, which documents the other options too.
        features: Method "features": a `StateFeatures` with other sizes or pools; None: its defaults.
        missing: Method "features": what NaN means, "gap", "hold" or "error", as in `StateFeatures`.
        bidirectional: Gradient training: also read backwards; False gives a model that can stream.

    Attributes:
        method_: What was used, "features" or "gradient".
        model_: Of gradient training: the trained `SequenceModel`; its outputs are standardised targets.
        target_scale_: Mean and standard deviation of the targets.

    >>> random = np.random.default_rng(0)
    >>> y = random.uniform(0.1, 0.5, 40)
    >>> X = np.sin(np.arange(60) * y[:, None]) + 0.1 * random.standard_normal((40, 60))
    >>> WaveSSMRegressor(random_state=0).fit(X[:30], y[:30]).score(X[30:], y[30:]) > 0.8
    True
    """

    method: str = "auto"
    features: StateFeatures | None = None
    missing: str = "hold"
    bidirectional: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "error" and uses_features(self)
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None) -> WaveSSMRegressor:
        """Fit signals and their numbers.

        Args:
            X: (cases, channels, time), (cases, time) or a list of arrays (channels, time) of any lengths.
            y: Numbers (cases,) or (cases, targets).
            sample_weight: Weights (cases,), not negative.
            lengths: (cases,) true lengths of a padded array; None: all of it.

        Returns:
            The estimator itself.
        """
        self.method_ = choose_method(self)
        signals = read_cases(self, X, lengths, reset=not self._continues)
        targets = self._read_targets(y, len(signals.values), reset=True)
        weights = case_weights(sample_weight, len(targets))
        self.length_ = signals.typical_length()
        if self.method_ == "features":
            self.fitted_ = self._fit_head(signals, targets, "regression", weights)
            return self
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.fitted_ = self._fit_gradient(signals.without_gaps(), targets, seed, weights)
        return self

    @available_if(uses_features)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> WaveSSMRegressor:
        """Fit in blocks of cases, as `WaveSSMClassifier.partial_fit`.

        Args:
            X: A block of cases, as in `fit`.
            y: Its numbers.
            sample_weight: Weights (cases,).

        Returns:
            The estimator itself.
        """
        first = getattr(getattr(self, "fitted_", None), "sums", None) is None
        signals = read_cases(self, X, None, reset=first)
        targets = self._read_targets(y, len(signals.values), reset=first)
        if first:
            self.method_, self.length_ = "features", signals.typical_length()
        self._add_cases(signals, targets, "regression", targets.shape[1], case_weights(sample_weight, len(targets)))
        return self

    def _read_targets(self, y: Any, cases: int, reset: bool) -> Tensor:
        """Standardised numbers (cases, targets); `reset` measures their scale."""
        if y is None:
            raise OptionError("fit requires y to be passed, but the target y is None.")
        numbers = check_array(
            y, ensure_2d=False, allow_nd=True, dtype=np.float64, ensure_all_finite=False, input_name="y"
        )
        if numbers.ndim > 2 or len(numbers) != cases:
            raise ShapeError(
                f"y has shape {numbers.shape}, expected ({cases},) or ({cases}, targets), inconsistent with the cases "
                f"of X; {AXES}."
            )
        check_finite(numbers, "case {} of y")
        if reset:
            self._single = numbers.ndim == 1
            self.target_scale_ = Scale.of(numbers.reshape(cases, -1))
        return torch.from_numpy(self.target_scale_.apply(numbers.reshape(cases, -1))).float()

    def _fit_gradient(self, signals: Signals, targets: Tensor, seed: int, weights: Tensor | None) -> TrainedModel:
        scale = Scale.of(signals.samples().numpy())
        config = self._model_config(
            model_sizes(len(targets), self.length_, self.length_), d_input=self.n_channels_,
            d_output=targets.shape[1], bidirectional=self.bidirectional, norm="batch", head="pool",
        )  # fmt: skip
        ones = torch.ones(len(targets)) if weights is None else weights

        def loss(output: Tensor, y: Tensor) -> Tensor:
            y, w = y[:, :-1], y[:, -1:]
            return (w * (output - y).square()).sum() / (w.sum().clamp_min(1e-6) * y.shape[1])

        source = signals.source(scale, torch.cat([targets, ones[:, None]], dim=1))  # each with its weight
        self._fit_model(source, None, loss, config, self._train_config(len(targets), seed))
        return TrainedModel(self.model_, scale)

    def predict(self, X: Any) -> np.ndarray:
        """Numbers (cases,) or (cases, targets), as y was, of X as in `fit`."""
        check_is_fitted(self, "fitted_")
        signals = read_cases(self, X, None, reset=False)
        signals = signals if self.method_ == "features" else signals.without_gaps()
        numbers = self.target_scale_.undo(self.fitted_.decision_function(signals))
        return numbers[:, 0] if self._single else numbers
