"""`WaveSSMRegressor`: signals to numbers, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor
from torch.nn import functional as F

from wavessm.errors import OptionError, ShapeError
from wavessm.estimators.base import Scale, WaveSSMEstimator, check_finite, model_sizes
from wavessm.estimators.features import FittedFeatures, choose_method
from wavessm.estimators.signals import AXES, Signals, TrainedModel, read_signals
from wavessm.features import FeatureModel
from wavessm.training import TrainConfig, pick_device


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMRegressor(RegressorMixin, WaveSSMEstimator):
    """A regressor of signals (cases, channels, time): state features in closed form, or a model trained by gradient.

    Args:
        method: "features", "gradient" or "auto", as in `WaveSSMClassifier`, which documents the other options too.
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
    bidirectional: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> WaveSSMRegressor:
        """Fit signals and their numbers.

        Args:
            X: (cases, channels, time), (cases, time) or a list of arrays (channels, time) of any lengths.
            y: Numbers (cases,) or (cases, targets).

        Returns:
            The estimator itself.
        """
        signals = read_signals(self, X, reset=not self._continues)
        if y is None:
            raise OptionError("fit requires y to be passed, but the target y is None.")
        numbers = check_array(
            y, ensure_2d=False, allow_nd=True, dtype=np.float64, ensure_all_finite=False, input_name="y"
        )
        if numbers.ndim > 2 or len(numbers) != len(signals.values):
            raise ShapeError(
                f"y has shape {numbers.shape}, expected ({len(signals.values)},) or ({len(signals.values)}, targets), "
                f"inconsistent with the cases of X; {AXES}."
            )
        check_finite(numbers, "case {} of y")
        self._single = numbers.ndim == 1
        numbers = numbers.reshape(len(numbers), -1)
        self.target_scale_ = Scale.of(numbers)
        targets = torch.from_numpy(self.target_scale_.apply(numbers)).float()
        self.method_ = choose_method(self)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.length_ = int(signals.values.shape[1] if signals.lengths is None else signals.lengths.double().median())
        fit = self._fit_features if self.method_ == "features" else self._fit_gradient
        self.fitted_ = fit(signals, targets, seed)
        return self

    def _fit_features(self, signals: Signals, targets: Tensor, seed: int) -> FittedFeatures:
        device = pick_device(TrainConfig(device=self.device))
        values = signals.values.float()
        return FittedFeatures(
            FeatureModel.fit(values, targets, "regression", signals.lengths, seed=seed, device=device)
        )

    def _fit_gradient(self, signals: Signals, targets: Tensor, seed: int) -> TrainedModel:
        scale = Scale.of(signals.samples().numpy())
        config = self._model_config(
            model_sizes(len(targets), self.length_, self.length_), d_input=self.n_channels_,
            d_output=targets.shape[1], bidirectional=self.bidirectional, norm="batch", head="pool",
        )  # fmt: skip
        source = signals.source(scale, targets)
        self._fit_model(source, None, F.mse_loss, config, self._train_config(len(targets), seed))
        return TrainedModel(self.model_, scale)

    def predict(self, X: Any) -> np.ndarray:
        """Numbers (cases,) or (cases, targets), as y was, of X as in `fit`."""
        check_is_fitted(self, "fitted_")
        numbers = self.target_scale_.undo(self.fitted_.decision_function(read_signals(self, X, reset=False)))
        return numbers[:, 0] if self._single else numbers
