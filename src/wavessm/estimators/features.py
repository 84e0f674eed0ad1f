"""`StateFeatures`: signals to a table of numbers for any classifier of scikit-learn, and the option `method`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from wavessm.errors import OptionError, check_int, unknown_name
from wavessm.estimators.signals import Signals, read_signals
from wavessm.features import FeatureConfig, FeatureModel, SignalFeatures
from wavessm.frames import families as known_families
from wavessm.training import TrainConfig, pick_device

METHODS = ("auto", "features", "gradient")
POOLS = ("share", "wins", "margin", "peak", "energy")
SHARED = ("method", "class_weight", "device", "random_state", "verbose")
"""Options that both methods have; all others belong to gradient training."""


class StateFeatures(TransformerMixin, BaseEstimator):
    """State features of signals: fixed wavelet state spaces with random readouts, pooled over time.

    Args:
        n_features: Numbers for a case, about.
        families: Frames of the state spaces, names of `ws.families()`.
        d_state: Atoms of a frame.
        n_scales: Time scales, from windows of 5 samples to the length of a signal.
        readouts: Random readouts of a frame at a time scale; they compete for the pools "wins" and "margin".
        pools: What is kept of each readout: "share" of samples above a bias, share of samples at which it "wins" over
            the others of its group, its mean "margin" there, "peak", "energy".
        stretches: Also pool shares over random dyadic stretches of a signal.
        difference: Also read the first difference of each channel.
        n_mixtures: Random mixtures of channels; None: one for each channel, none of a single one.
        device: "auto", "cpu" or "cuda".
        random_state: Seed of everything that is drawn.

    Attributes:
        n_channels_: Channels of X.
        features_: The fitted `wavessm.features.SignalFeatures`.

    >>> X = np.random.default_rng(0).standard_normal((20, 2, 60))  # (cases, channels, time)
    >>> StateFeatures(n_features=1000, random_state=0).fit_transform(X).shape[0]
    20
    """

    def __init__(
        self,
        n_features: int = 10_000,
        families: tuple[str, ...] = FeatureConfig.families,
        d_state: int = FeatureConfig.d_state,
        n_scales: int = FeatureConfig.n_scales,
        readouts: int = FeatureConfig.readouts,
        pools: tuple[str, ...] = FeatureConfig.pools,
        stretches: bool = True,
        difference: bool = True,
        n_mixtures: int | None = None,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_features = n_features
        self.families = families
        self.d_state = d_state
        self.n_scales = n_scales
        self.readouts = readouts
        self.pools = pools
        self.stretches = stretches
        self.difference = difference
        self.n_mixtures = n_mixtures
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> StateFeatures:
        """Draw the state spaces for signals like these.

        Args:
            X: (cases, channels, time), (cases, time) or a list of arrays (channels, time) of any lengths.
            y: Not used.

        Returns:
            The transformer itself.
        """
        config = self._config()
        signals = read_signals(self, X, reset=True)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        device = pick_device(TrainConfig(device=self.device))
        self.features_ = SignalFeatures(signals.values.float(), signals.lengths, config, seed, device)
        return self

    def _config(self) -> FeatureConfig:
        for name in ("n_features", "d_state", "n_scales", "readouts"):
            check_int(getattr(self, name), name, minimum=2)
        for name, given, known in (("family", self.families, known_families()), ("pool", self.pools, POOLS)):
            for value in (given,) if isinstance(given, str) else given:
                if value not in known:
                    raise unknown_name(name, value, known)
        names = [field.name for field in dataclasses.fields(FeatureConfig) if field.name != "leaves"]
        values = {name: getattr(self, name) for name in names}
        for name in ("families", "pools"):
            values[name] = (values[name],) if isinstance(values[name], str) else tuple(values[name])
        return FeatureConfig(**values)

    def transform(self, X: Any) -> np.ndarray:
        """Features (cases, features) float32 of X as in `fit`, of any length."""
        check_is_fitted(self, "features_")
        signals = read_signals(self, X, reset=False)
        return self.features_(signals.values.float(), signals.lengths).cpu().numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Where each number comes from: family, window, channel, readout, pool and stretch."""
        check_is_fitted(self, "features_")
        return np.array(self.features_.bank.names(self.channel_names_), dtype=object)


@dataclasses.dataclass
class FittedFeatures:
    """State features with a head in closed form, as an estimator keeps them."""

    model: FeatureModel

    def decision_function(self, signals: Signals) -> np.ndarray:
        """Logits (cases, classes or labels), or numbers (cases, targets), float64."""
        return self.model.logits(signals.values.float(), signals.lengths).double().cpu().numpy()


def choose_method(estimator: Any) -> str:
    """The method of an estimator: "auto" is gradient training where one of its options was given, else features."""
    if estimator.method not in METHODS:
        raise unknown_name("method", estimator.method, METHODS)
    fields = [field for field in dataclasses.fields(estimator) if field.name not in SHARED]
    given = [field.name for field in fields if getattr(estimator, field.name) != field.default]
    if estimator.method == "features" and given:
        raise OptionError(f"{given[0]} is an option of gradient training; use method='gradient', or leave it out.")
    return ("gradient" if given else "features") if estimator.method == "auto" else estimator.method
