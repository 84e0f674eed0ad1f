"""`StateFeatures`: signals to a table of numbers for any model of scikit-learn; what estimators of signals share."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from wavessm.errors import DataError, OptionError, WaveSSMError, check_int
from wavessm.estimators.base import Scale, check_names, model_sizes, predict_all
from wavessm.estimators.finetune import FineTuning
from wavessm.estimators.signals import Signals, read_signals
from wavessm.features import POOLS, FeatureConfig, FeatureModel, FeatureSums, SignalFeatures
from wavessm.features.bank import SHORTEST
from wavessm.features.model import case_ends
from wavessm.frames import families as known_families
from wavessm.training import TrainConfig, pick_device
from wavessm.training.config import AUGMENTATIONS

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
METHODS = ("auto", "features", "gradient")
MISSING = ("gap", "hold", "error")
SHARED = ("method", "features", "missing", "class_weight", "quantiles", "device", "random_state", "verbose")
"""Options that both methods have; all others belong to gradient training."""


@dataclass(eq=False, repr=False)
class StateFeatures(TransformerMixin, BaseEstimator, FeatureConfig):
    """State features of signals: fixed wavelet state spaces with random readouts, pooled over time.

    Args:
        n_features: Numbers for a case, about; None: 12,500, and 25,000 for 1,000 to 5,000 cases.
        families: Frames of the state spaces, names of `ws.families()`.
        d_state: Atoms of a frame, or several numbers that take turns; many tell close frequencies apart. None: 8, 8, 16
            and 32, without stretches 8, which streams twice as fast.
        n_scales: Time scales, from windows of 5 samples to the length of a signal.
        readouts: Random readouts of a frame at a time scale; they compete for the pools "wins" and "margin".
        pools: What is kept of each readout: "share" of samples above a bias, share of samples at which it "wins" over
            the others of its group, its mean "margin" there, and "energy", the logarithm of its mean square. None: all,
            without stretches not energy, which makes the first answers of a stream too sure.
        stretches: Also pool shares over random dyadic stretches of a signal, halves to eighths.
        values: Also the shares of the samples themselves above quantiles of the training signals and, with stretches, a
            "profile": means of the samples, of their differences and of the sizes of these over up to 256 equal parts.
        difference: Also read the first difference of each channel.
        n_mixtures: Random mixtures of channels and of their differences, which show how channels follow each other;
            None: one for each channel, none of a single one.
        missing: What NaN in X means. "gap": a sample that was not observed; the state is carried over it exactly, as
            for an input that keeps its last value, and what falls into a gap of all channels is not pooled. "hold": the
            last value, pooled like an observed one. "error": refused. NaN at the end of a case is a shorter case;
            infinity is refused.
        device: "auto", "cpu" or "cuda".
        random_state: Seed of everything that is drawn.

    Attributes:
        n_channels_: Channels of X.
        features_: The fitted `wavessm.features.SignalFeatures`.

    >>> X = np.random.default_rng(0).standard_normal((20, 2, 60))  # (cases, channels, time)
    >>> StateFeatures(n_features=1000, random_state=0).fit_transform(X).shape[0]
    20
    """

    device: str = "auto"
    random_state: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "error"
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None, lengths: Any = None) -> StateFeatures:
        """Draw the state spaces for signals like these.

        Args:
            X: (cases, channels, time), (cases, time) or a list of arrays (channels, time) of any lengths.
            y: Not used.
            lengths: (cases,) true lengths of a padded array; None: all of it.

        Returns:
            The transformer itself.
        """
        config = self.config()
        signals = read_signals(self, X, True, lengths)
        self.features_ = SignalFeatures(signals.values.float(), signals.lengths, config, *seed_and_device(self))
        return self

    def config(self) -> FeatureConfig:
        """The options as the record that the bank is drawn from, checked."""
        values = {field.name: getattr(self, field.name) for field in fields(FeatureConfig)}
        if values["d_state"] is not None:
            sizes = values["d_state"] if isinstance(values["d_state"], list | tuple) else [values["d_state"]]
            values["d_state"] = tuple(check_int(size, "d_state", minimum=2) for size in sizes or [None])
        for name, least in (("n_features", 2), ("n_scales", 2), ("readouts", 2), ("n_mixtures", 0)):
            if values[name] is not None or name not in ("n_features", "n_mixtures"):
                check_int(values[name], name, minimum=least)
        for name in ("stretches", "values", "difference"):
            if values[name] not in (True, False):
                raise OptionError(f"{name} is {values[name]!r}, expected True or False.")
        for name, kind, known in (("families", "family", known_families()), ("pools", "pool", POOLS)):
            if values[name] is not None:
                values[name] = (values[name],) if isinstance(values[name], str) else tuple(values[name])
                check_names(kind, values[name] or ("",), known)
        check_names("missing", (self.missing,), MISSING)
        return FeatureConfig(**values)

    def transform(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Features (cases, features) float32 of X and lengths as in `fit`."""
        check_is_fitted(self, "features_")
        signals = read_signals(self, X, False, lengths)
        return self.features_(signals.values.float(), signals.lengths).cpu().numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Where each number comes from: family, window, channel, readout, pool and stretch."""
        check_is_fitted(self, "features_")
        return np.array(self.features_.bank.names(self.channel_names_ or ()), dtype=object)


def seed_and_device(estimator: Any) -> tuple[int, torch.device]:
    """A seed drawn from the estimator's random_state, and where it computes."""
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    return seed, pick_device(TrainConfig(device=estimator.device))


def choose_method(estimator: Any) -> str:
    """The method of an estimator: "auto" is gradient training where one of its options was given, else features."""
    check_names("method", (estimator.method,), METHODS)
    check_names("missing", (estimator.missing,), MISSING)
    own = [field for field in fields(estimator) if field.name not in SHARED]
    given = [field.name for field in own if getattr(estimator, field.name) != field.default]
    if estimator.method == "features" and given:
        raise OptionError(f"{given[0]} is an option of gradient training; use method='gradient', or leave it out.")
    return ("gradient" if given else "features") if estimator.method == "auto" else estimator.method


def uses_features(estimator: Any) -> bool:
    """Whether the method of an estimator is "features", as `partial_fit` needs."""
    try:
        return choose_method(estimator) == "features"
    except WaveSSMError:
        return False


@dataclass(kw_only=True, eq=False, repr=False)
class SignalEstimator(FineTuning):
    """What classifier and regressor share: signals to outputs, by state features in closed form or by gradient."""

    method: str = "auto"
    features: StateFeatures | None = None
    missing: str = "hold"
    bidirectional: bool = True
    amplitude: float = 0.0
    jitter: float = 0.0
    time_warp: float = 0.0
    channel_dropout: float = 0.0
    mixup: float = 0.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def _start(self, X: Any, lengths: Any, reset: bool) -> Signals:
        """The signals of a fit, whose method and typical length are known afterwards."""
        self.method_ = choose_method(self)
        signals = read_signals(self, X, reset, lengths)
        self.length_ = signals.typical_length()
        return signals

    def _measure(self, signals: Signals) -> Scale:
        """The scale of each channel over all observed samples, without padding; constant channels are told."""
        ends = case_ends(signals.values, signals.lengths)  # refuses a case without an observed sample
        if (shortest := int(ends.min())) < SHORTEST <= signals.typical_length():
            warnings.warn(f"case {int(ends.argmin())} of X has {shortest} samples, fewer than the shortest window of "
                          f"state features, {SHORTEST:g}; it says little.", stacklevel=4)  # fmt: skip
        samples, names = signals.samples().numpy(), self.channel_names_ or range(self.n_channels_)
        for at in np.flatnonzero(np.isnan(samples).all(axis=0)):
            raise DataError(f"channel {names[at]!r} is NaN in all training cases; leave it out.")
        scale = Scale.of(samples)
        for at in np.flatnonzero(scale.constant):
            told = f"channel {names[at]!r} is constant ({scale.mean[at]:g}) in all training cases."
            warnings.warn(told, stacklevel=4)
        return scale

    def _feature_config(self) -> FeatureConfig:
        if self.features is not None and not isinstance(self.features, StateFeatures):
            raise OptionError(f"features is {self.features!r}, expected a StateFeatures or None.")
        config = (self.features or StateFeatures()).config()
        return replace(config, missing=self.missing) if self.missing != "error" else config

    def _fit_features(self, signals: Signals, targets: Tensor, kind: str, weights: Tensor | None) -> Any:
        """State features with a ridge, in closed form."""
        for name in ("model_", "history_", "choices_", "n_iter_", "sums_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        self._measure(signals)
        x, config = signals.values.float(), self._feature_config()
        self.fitted_: Any = FeatureModel.fit(x, targets, kind, signals.lengths, weights, config, *seed_and_device(self))
        return self

    def _fit_gradient(
        self, signals: Signals, targets: Tensor, weights: Tensor | None, loss: Loss, seed: int,
        kept: Tensor | None = None, held: Tensor | None = None, outputs: int | None = None, epochs: int | None = None,
    ) -> Any:  # fmt: skip
        """Train a model by loss(output, targets, weights) on the cases `kept`; those `held` stop it early."""
        self.__dict__.pop("sums_", None)
        kept = torch.arange(len(targets)) if kept is None else kept
        config = self._model_config(
            model_sizes(len(kept), self.length_, self.length_), d_input=self.n_channels_,
            d_output=outputs or targets.shape[1],
            bidirectional=self.bidirectional, norm="batch", head="pool", missing=self._reads_missing(signals),
        )  # fmt: skip
        if not self._continues:
            self._scale = self._measure(signals.take(kept))
        self.mean_, self.scale_ = self._scale.mean, self._scale.deviation
        ones = torch.ones(len(targets)) if weights is None else weights
        targets = torch.cat([targets, ones[:, None]], dim=1)  # each with its weight
        fill = config.missing == "error"
        source = signals.take(kept).source(self._scale, targets[kept], fill)
        validation = None if held is None else signals.take(held).source(self._scale, targets[held], fill)
        training = replace(self._train_config(len(kept), seed), **{name: getattr(self, name) for name in AUGMENTATIONS})
        training = replace(training, epochs=epochs or training.epochs)
        self._fit_model(source, validation, lambda output, y: loss(output, y[:, :-1], y[:, -1]), config, training)
        self.fitted_ = self.model_
        return self

    def _reads_missing(self, signals: Signals) -> str:
        """`missing` of the model; one that was fitted without NaN and holds values needs no columns for it."""
        if self._continues:
            return self.model_.config.missing
        return self.missing if self.missing == "gap" or bool(signals.values.isnan().any()) else "error"

    def _add_cases(self, signals: Signals, targets: Tensor, kind: str, outputs: int, weights: Tensor | None) -> Any:
        """Add cases to the sums of `partial_fit`; the first ones draw the bank."""
        x = signals.values.float()
        if not hasattr(self, "sums_"):
            bank = SignalFeatures(x, signals.lengths, self._feature_config(), *seed_and_device(self))
            self.sums_ = FeatureSums(bank, kind, outputs)
            self.method_, self.length_ = "features", signals.typical_length()
        self.sums_.add(x, targets, signals.lengths, weights)
        self.fitted_ = None
        return self

    def _check_sums(self) -> None:
        if not hasattr(self, "sums_"):
            raise OptionError(f"{type(self).__name__} has no sums yet; call partial_fit first.")

    def empty_copy(self) -> Any:
        """A copy that has seen no case, for `partial_fit` on another machine; `merge` adds what it learns."""
        self._check_sums()
        made = copy.copy(self)
        made.sums_, made.fitted_ = self.sums_.empty(), None
        return made

    def merge(self, other: Any) -> Any:
        """Add the cases that a copy of this estimator has seen; returns the estimator itself."""
        self._check_sums()
        other._check_sums()
        self.sums_, self.fitted_ = self.sums_ + other.sums_, None
        return self

    def _outputs(self, X: Any) -> np.ndarray:
        """Logits or standardised numbers (cases, outputs) float64 of X as in `fit`."""
        check_is_fitted(self, "fitted_")
        signals = read_signals(self, X, reset=False)
        if self.method_ == "features":
            self.fitted_ = self.sums_.solve() if self.fitted_ is None else self.fitted_
            return self.fitted_(signals.values.float(), signals.lengths).double().cpu().numpy()
        case_ends(signals.values, signals.lengths)
        source = signals.source(self._scale, torch.zeros(len(signals.values)), self.model_.config.missing == "error")
        return predict_all(self.model_, source.to(next(self.model_.parameters()).device)).double().cpu().numpy()


def case_weights(sample_weight: Any, cases: int) -> Tensor | None:
    """Weights (cases,) as a tensor, not negative."""
    if sample_weight is None:
        return None
    rows = np.empty((cases, 1))
    found = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    return torch.from_numpy(found).float()
