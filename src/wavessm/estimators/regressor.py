"""`WaveSSMRegressor`: signals to numbers, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array
from torch import Tensor

from wavessm.errors import OptionError, ShapeError
from wavessm.estimators.base import Scale, check_finite
from wavessm.estimators.features import SignalEstimator, case_weights, seed_and_device, uses_features
from wavessm.estimators.signals import AXES, read_signals


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMRegressor(RegressorMixin, SignalEstimator):
    """A regressor of signals (cases, channels, time): state features in closed form, or a model trained by gradient.

    Args:
        method: "features", "gradient" or "auto", as in `WaveSSMClassifier`, which documents the other options too.
        features: Method "features": a `StateFeatures` with other sizes or pools; None: its defaults.
        missing: What NaN means, "gap", "hold" or "error", as in `WaveSSMClassifier`.
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
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
        signals = self._start(X, lengths, reset=not self._continues)
        targets = self._read_targets(y, len(signals.values), reset=True)
        weights = case_weights(sample_weight, len(targets))
        if self.method_ == "features":
            return self._fit_features(signals, targets, "regression", weights)

        def loss(output: Tensor, y: Tensor, w: Tensor) -> Tensor:
            return (w[:, None] * (output - y).square()).sum() / (w.sum().clamp_min(1e-6) * y.shape[1])

        return self._fit_gradient(signals, targets, weights, loss, seed_and_device(self)[0])

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
        first, self.method_ = not hasattr(self, "sums_"), "features"
        signals = read_signals(self, X, reset=first)
        targets = self._read_targets(y, len(signals.values), reset=first)
        weights = case_weights(sample_weight, len(targets))
        return self._add_cases(signals, targets, "regression", targets.shape[1], weights)

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

    def predict(self, X: Any) -> np.ndarray:
        """Numbers (cases,) or (cases, targets), as y was, of X as in `fit`."""
        numbers = self.target_scale_.undo(self._outputs(X))
        return numbers[:, 0] if self._single else numbers
