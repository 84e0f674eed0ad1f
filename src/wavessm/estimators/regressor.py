"""`WaveSSMRegressor`: signals to numbers, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array
from torch import Tensor

from wavessm.data.datasets.arrays import read_levels
from wavessm.data.tables import Scale, check_finite
from wavessm.errors import OptionError, ShapeError
from wavessm.estimators.features import SignalEstimator, case_weights, seed_and_device, uses_features
from wavessm.estimators.signals import AXES, read_signals
from wavessm.features.ridge import with_quantiles
from wavessm.training.metrics import by_level, middle, pinball


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMRegressor(RegressorMixin, SignalEstimator):
    """A regressor of signals (cases, channels, time): state features in closed form, or a model trained by gradient.

    Args:
        method: "features", "gradient" or "auto", as in `WaveSSMClassifier`, which documents the other options too.
        features: Method "features": a `StateFeatures` with other sizes or pools; None: its defaults.
        missing: What NaN means, "gap", "hold" or "error", as in `WaveSSMClassifier`.
        bidirectional: Gradient training: also read backwards; False gives a model that can stream.
        quantiles: Levels that `predict` returns instead of the mean, such as (0.1, 0.5, 0.9), in rising order and never
            crossing. In closed form they are conformal: the prediction plus quantiles of the residuals that training
            cases had without themselves, so all intervals have one width; by gradient they are trained (pinball loss).

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

    quantiles: Sequence[float] | None = None

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
        levels = self.levels_ = read_levels(self.quantiles)
        if self.method_ == "features":
            self._fit_features(signals, targets, "regression", weights)
            if levels:
                kept = slice(None) if weights is None else weights > 0  # as the fit has them
                own = None if weights is None else weights[kept]
                self.fitted_.ridge = with_quantiles(self.fitted_.ridge, targets[kept], levels, own)
            return self

        def loss(output: Tensor, y: Tensor, w: Tensor) -> Tensor:
            each = pinball(by_level(output, levels), y, levels).mean(2) if levels else (output - y).square()
            return (w[:, None] * each).sum() / (w.sum().clamp_min(1e-6) * y.shape[1])

        outputs = targets.shape[1] * max(1, len(levels))
        return self._fit_gradient(signals, targets, weights, loss, seed_and_device(self)[0], outputs=outputs)

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
        if self.quantiles is not None:
            raise OptionError("quantiles need all cases at once; use fit.")
        first, self.method_, self.levels_ = not hasattr(self, "sums_"), "features", ()
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
            expected = f"expected ({cases},) or ({cases}, targets), inconsistent with the cases of X; {AXES}."
            raise ShapeError(f"y has shape {numbers.shape}, {expected}")
        check_finite(numbers, "case {} of y")
        if reset:
            self._single = numbers.ndim == 1
            self.target_scale_ = Scale.of(numbers.reshape(cases, -1))
        return torch.from_numpy(self.target_scale_.apply(numbers.reshape(cases, -1))).float()

    def predict(self, X: Any) -> np.ndarray:
        """Numbers (cases,) or (cases, targets), as y was, of X as in `fit`; with `quantiles` one more axis of them."""
        numbers = self._outputs(X)
        if self.levels_:
            quantiles = by_level(torch.from_numpy(numbers), self.levels_).swapaxes(1, 2).numpy()
            numbers = self.target_scale_.undo(quantiles).swapaxes(1, 2)
        else:
            numbers = self.target_scale_.undo(numbers)
        return numbers[:, 0] if self._single else numbers

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predictions, with `quantiles` of the one nearest to 0.5."""
        numbers = self.predict(X)
        numbers = numbers[..., middle(self.levels_)] if self.levels_ else numbers
        return float(r2_score(y, numbers, sample_weight=sample_weight))
