"""`WaveSSMClassifier`: signals to classes, with scikit-learn's conventions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn import functional as F

from wavessm.errors import NotFiniteError, OptionError, check_positive
from wavessm.estimators.base import Scale, WaveSSMEstimator, check_number, model_sizes
from wavessm.estimators.features import FittedFeatures, choose_method
from wavessm.estimators.signals import Signals, TrainedModel, read_signals, read_targets
from wavessm.features import FeatureModel
from wavessm.training import TrainConfig, pick_device

EARLY_STOPPING_FROM = 200
"""Cases from which early_stopping="auto" sets some aside."""


class FittedClassifier(Protocol):
    """What a method of fitting leaves behind."""

    def decision_function(self, signals: Signals) -> np.ndarray:
        """Scores (cases, classes or labels) float64, as logits."""


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMClassifier(ClassifierMixin, WaveSSMEstimator):
    """A classifier of signals (cases, channels, time): state features in closed form, or a model trained by gradient.

    Options of gradient training that are None follow from the data, see `choices_`.

    Args:
        method: "features" fits in seconds, without training; "gradient" trains a `SequenceModel`, which can stream and
            be exported; "auto" is gradient where one of its options is given, else features
            (results/estimators/classify.md).
        family: Frame of the state: a name of `ws.families()`, or legs, legt, fout, s4d-legs, s4d-lin, s4d-inv.
        d_model: Width of the model.
        n_layers: Depth of the model.
        d_state: Size of the state of a channel.
        dropout: Probability of the dropout whose mask is constant over time.
        dt_min: Smallest initial step; a channel with step Δ looks back about 1/Δ samples.
        dt_max: Largest initial step.
        max_epochs: Passes over the training cases.
        batch_size: Cases in a step.
        learning_rate: Highest learning rate of AdamW, after a warm-up and before half a cosine.
        weight_decay: Weight decay of AdamW.
        validation_fraction: Part of the cases that early stopping sets aside.
        n_iter_no_change: Epochs without a better validation loss before early stopping ends the fit.
        warm_start: Continue from the weights of the last fit, on the same channels and classes.
        device: "auto", "cpu", "cuda" or "cuda:1".
        random_state: Seed of weights, order and dropout; a fit with a seed is reproducible, in threads too.
        verbose: 1 prints the choices and the progress.
        bidirectional: Also read backwards: better for complete recordings; False gives a model that can stream.
        class_weight: None, "balanced" or {class: weight}.
        early_stopping: True, False or "auto": from 200 cases on.

    Attributes:
        method_: What was used, "features" or "gradient". Gradient training leaves `model_`, `mean_`, `scale_`,
            `choices_`, `history_` and `n_iter_`.
        classes_: Labels in the order of the columns of `predict_proba`.
        multilabel_: Whether y was a table of zeros and ones (cases, labels).
        model_: The trained `SequenceModel`, which reads (batch, length, channels).
        mean_: Mean of each channel (channels,), subtracted from X.
        scale_: Standard deviation of each channel (channels,).
        choices_: What was chosen for the options that were None.
        history_: Training loss and validation loss of each epoch.
        n_iter_: Epochs trained.
        n_channels_: Channels of X.
        channel_names_: Columns of pandas tables, None without them.
        length_: Samples of a signal, the median where they differ.

    >>> random = np.random.default_rng(0)
    >>> y = np.repeat(["low", "high"], 20)
    >>> t = np.arange(50)
    >>> X = np.sin(t * np.where(y == "low", 0.2, 0.6)[:, None]) + 0.1 * random.standard_normal((40, 50))
    >>> model = WaveSSMClassifier(max_epochs=10, random_state=0).fit(X, y)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.score(X, y) > 0.9
    (['high', 'low'], (40, 2), True)
    """

    method: str = "auto"
    bidirectional: bool = True
    class_weight: dict | str | None = None
    early_stopping: bool | str = "auto"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        return tags

    def fit(self, X: Any, y: Any) -> WaveSSMClassifier:
        """Train on labelled signals.

        Args:
            X: (cases, channels, time), (cases, time) or a list of arrays (channels, time) of any lengths.
            y: Labels (cases,), or zeros and ones (cases, labels).

        Returns:
            The estimator itself.
        """
        reset = not self._continues
        signals = read_signals(self, X, reset)
        targets = read_targets(self, y, len(signals.values), reset)
        self.method_ = choose_method(self)
        fit = self._fit_features if self.method_ == "features" else self._fit_gradient
        self.fitted_: FittedClassifier = fit(signals, targets)
        return self

    def _fit_features(self, signals: Signals, targets: Tensor) -> FittedFeatures:
        """State features with a ridge, in closed form."""
        for name in ("model_", "history_", "choices_", "n_iter_"):  # of an earlier fit by gradient
            self.__dict__.pop(name, None)
        weight = self._weights(targets)
        if weight is not None and self.multilabel_:
            raise OptionError("class_weight with several labels needs method='gradient'.")
        self._measure(signals)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.length_ = int(signals.values.shape[1] if signals.lengths is None else signals.lengths.double().median())
        model = FeatureModel.fit(
            signals.values.float(), targets, "multilabel" if self.multilabel_ else "multiclass", signals.lengths,
            None if weight is None else weight[targets], seed=seed, device=pick_device(TrainConfig(device=self.device)),
        )  # fmt: skip
        return FittedFeatures(model)

    def _fit_gradient(self, signals: Signals, targets: Tensor) -> TrainedModel:
        """Train a model; `model_`, `mean_`, `scale_`, `choices_` and `history_` tell about it."""
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        kept, held = self._split(targets, random)
        self.length_ = int(signals.values.shape[1] if signals.lengths is None else signals.lengths.double().median())
        config = self._model_config(
            model_sizes(len(kept), self.length_, self.length_), d_input=self.n_channels_, d_output=len(self.classes_),
            bidirectional=self.bidirectional, norm="batch", head="pool",
        )  # fmt: skip
        weight = self._weights(targets[kept])
        before = self.fitted_ if self._continues else None
        scale = before.scale if isinstance(before, TrainedModel) else self._measure(signals.take(kept))
        self.mean_, self.scale_ = scale.mean, scale.deviation

        def loss(logits: Tensor, y: Tensor) -> Tensor:
            on = None if weight is None else weight.to(y.device)
            if self.multilabel_:
                return F.binary_cross_entropy_with_logits(logits, y, pos_weight=on)
            return F.cross_entropy(logits, y, on)

        source = signals.take(kept).source(scale, targets[kept])
        validation = None if held is None else signals.take(held).source(scale, targets[held])
        self._fit_model(source, validation, loss, config, self._train_config(len(kept), seed))
        return TrainedModel(self.model_, scale)

    def _split(self, targets: Tensor, random: np.random.RandomState) -> tuple[Tensor, Tensor | None]:
        """Numbers of the cases to train on and of those set aside."""
        cases, fraction = len(targets), check_number(self.validation_fraction, "validation_fraction", 1)
        if self.early_stopping not in (True, False, "auto"):
            raise OptionError(f"early_stopping is {self.early_stopping!r}, expected True, False or 'auto'.")
        wanted = cases >= EARLY_STOPPING_FROM if self.early_stopping == "auto" else self.early_stopping
        count = max(1, round(fraction * cases))
        if not wanted or not fraction or count >= cases:
            return torch.arange(cases), None
        counts = np.bincount(targets.numpy()) if targets.dim() == 1 else np.zeros(1)
        stratify = targets.numpy() if counts.min() >= 2 and count >= len(counts) <= cases - count else None
        kept, held = train_test_split(np.arange(cases), test_size=count, random_state=random, stratify=stratify)
        return torch.from_numpy(kept), torch.from_numpy(held)

    def _measure(self, signals: Signals) -> Scale:
        """The scale of each channel over all samples, without padding; constant channels are told."""
        scale = Scale.of(signals.samples().numpy())
        for at in np.flatnonzero(scale.constant):
            name = at if self.channel_names_ is None else repr(self.channel_names_[at])
            warnings.warn(f"channel {name} is constant ({scale.mean[at]:g}) in all training cases.", stacklevel=4)
        return scale

    def _weights(self, targets: Tensor) -> Tensor | None:
        """A weight for each class, or for the ones of each label."""
        given = self.class_weight
        if given is None:
            return None
        if isinstance(given, dict):
            names = self.classes_.tolist()
            if unknown := sorted(set(given) - set(names), key=str):
                warnings.warn(f"class_weight names classes that y has not: {unknown}.", stacklevel=4)
            return torch.tensor([check_positive(given.get(name, 1), f"class_weight of {name!r}") for name in names])
        if given != "balanced":
            raise OptionError(f"class_weight is {given!r}, expected None, 'balanced' or {{class: weight}}.")
        if self.multilabel_:
            ones = targets.sum(0)
            return (len(targets) - ones).clamp(min=1) / ones.clamp(min=1)
        counts = torch.bincount(targets, minlength=len(self.classes_))
        balanced = len(targets) / ((counts > 0).sum() * counts.clamp(min=1))
        return torch.where(counts > 0, balanced, 1.0).float()

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits of cases.

        Args:
            X: As in `fit`, of any length.

        Returns:
            (cases, classes or labels), or (cases,) of two classes, above zero where `classes_[1]` is predicted.
        """
        check_is_fitted(self, "fitted_")
        logits = self.fitted_.decision_function(read_signals(self, X, reset=False))
        if (lost := np.flatnonzero(~np.isfinite(logits).all(axis=1))).size:
            raise NotFiniteError(f"case {lost[0]} of X is too far from the cases of fit; give it in their units.")
        return logits[:, 1] - logits[:, 0] if not self.multilabel_ and logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (cases, classes) of X as in `fit`; those of labels do not sum to one."""
        logits = torch.from_numpy(self.decision_function(X))
        if self.multilabel_:
            return torch.sigmoid(logits).numpy()
        if logits.dim() == 1:
            p = torch.sigmoid(logits)
            return torch.stack([1 - p, p], dim=1).numpy()
        return torch.softmax(logits, dim=1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> np.ndarray:
        """Classes (cases,), or zeros and ones (cases, labels), of X as in `fit`."""
        logits = self.decision_function(X)
        if self.multilabel_:
            return (logits > 0).astype(np.int64)
        return self.classes_[(logits > 0).astype(np.int64) if logits.ndim == 1 else logits.argmax(axis=1)]
