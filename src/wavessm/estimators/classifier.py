"""`WaveSSMClassifier`: signals to classes, with scikit-learn's conventions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from torch import Tensor
from torch.nn import functional as F

from wavessm.data.cases import split_groups
from wavessm.errors import NotFiniteError, OptionError, ShapeError, check_number, check_positive
from wavessm.estimators.base import check_unchanged
from wavessm.estimators.features import SignalEstimator, case_weights, uses_features
from wavessm.estimators.signals import read_labels, read_signals
from wavessm.training.metrics import class_weights, weigh_cases


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMClassifier(ClassifierMixin, SignalEstimator):
    """A classifier of signals (cases, channels, time): state features in closed form, or a model trained by gradient.

    Options of gradient training that are None follow from the data, see `choices_`.

    Args:
        method: "features" fits state features with a ridge in closed form, in seconds; "gradient" trains a
            `SequenceModel`. "auto" is gradient where one of its options is given, else features. Measured: up to some
            thousand cases features are as accurate or better, in a thirtieth of the time; on 17,418 ECG records
            training was 0.01 to 0.02 of AUROC better, and ranks of both together better still (docs/classify.md).
        features: Method "features": a `StateFeatures` with other sizes or pools; None: its defaults. A model that is to
            stream needs StateFeatures(stretches=False).
        missing: What NaN means, "gap", "hold" or "error", as in `StateFeatures`, by gradient as in `ModelConfig`; one
            trained with "hold" on signals without NaN holds the last value too, but is not told where.
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
        amplitude: Augmentation: multiply each case by a factor between 1 / (1 + amplitude) and 1 + amplitude.
        jitter: Augmentation: add noise of this many standard deviations.
        time_warp: Augmentation: run each batch as if recorded faster or slower, by a factor of up to 1 + time_warp.
        channel_dropout: Augmentation: probability that a channel of a case is zero.
        mixup: Augmentation: mix pairs of cases and their targets, by shares from Beta(mixup, mixup).
        class_weight: None, "balanced" or {class: weight}; of several labels, the weight of their ones.
        early_stopping: End training when the loss of held-out cases (`validation_fraction`) no longer falls, then train
            all cases anew for the epochs that were best (not with `warm_start`). By default all cases are trained on,
            for the whole schedule.
        pretrained: Fine-tune this model by gradient: a model folder, a run folder, a name of `ws.pretrained()`, or a
            repository "owner/name" of a hub. It decides the architecture; see `ws.adapt`.
        sampling_rate: With `pretrained`: of X, in hertz; None: that of the model.
        channel_names: With `pretrained`: of X, to find the channels that the model knows; those of tables by default.
        train_blocks: With `pretrained`: train the last blocks and the head only; 0 the head alone, None everything.
        layer_decay: With `pretrained`: factor on the learning rate of each block, counted from the head.

    Attributes:
        method_: What was used, "features" or "gradient". Gradient training leaves `model_`, `mean_`, `scale_`,
            `choices_`, `history_` and `n_iter_`.
        fitted_: The model, of method "features" a `wavessm.features.FeatureModel` (after `partial_fit` made when it is
            first needed).
        classes_: Labels in the order of the columns of `predict_proba`.
        multilabel_: Whether y was a table of zeros and ones (cases, labels).
        model_: The trained `SequenceModel`, which reads (batch, length, channels).
        mean_: Mean of each channel (channels,), subtracted from X.
        scale_: Standard deviation of each channel (channels,).
        choices_: What was chosen for the options that were None.
        history_: Training loss of each epoch; with early stopping also validation loss, of the fit that was stopped.
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

    class_weight: dict | str | None = None
    early_stopping: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None, groups: Any = None) -> Self:
        """Fit labelled signals.

        Args:
            X: (cases, channels, time), (cases, time) or a list of arrays (channels, time) of any lengths.
            y: Labels (cases,), or zeros and ones (cases, labels).
            sample_weight: Weights (cases,), not negative.
            lengths: (cases,) true lengths of a padded array; None: all of it.
            groups: (cases,) person, machine or room of each case: early stopping sets whole groups aside.

        Returns:
            The estimator itself.
        """
        signals = self._start(X, lengths, reset=not self._continues)
        targets = self._read_labels(y, len(signals.values))
        weights, groups = case_weights(sample_weight, len(targets)), self._read_groups(groups, len(targets))
        if self.method_ == "features":
            return self._fit_features(signals, targets, self._kind, self._case_weights(targets, weights))
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        kept, held = self._split(targets, random, groups)
        on = self._class_weights(targets[kept])

        def loss(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
            each = torch.ones(logits.shape[1], device=y.device) if on is None else on.to(y)
            y = y.to(logits.dtype)
            if self.multilabel_:
                losses = F.binary_cross_entropy_with_logits(logits, y, pos_weight=each, reduction="none").mean(1)
                return (w * losses).sum() / w.sum().clamp_min(1e-6)
            losses = -(y * each * F.log_softmax(logits, dim=1)).sum(1)
            return (w * losses).sum() / (w * (y @ each)).sum().clamp_min(1e-6)

        labels = targets if self.multilabel_ else F.one_hot(targets, len(self.classes_))
        self._fit_gradient(signals, labels, weights, loss, seed, kept, held)
        if held is not None and not self.warm_start:
            stopped = self.history_
            self._fit_gradient(signals, labels, weights, loss, seed, epochs=int(np.argmin(stopped.validation)) + 1)
            self.history_, self.choices_["early_stopping"] = stopped, True
        return self

    @available_if(uses_features)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Fit in blocks of cases, for data larger than memory: method "features", one pass, exact sums.

        The first block draws the state spaces. `empty_copy` and `merge` divide the blocks among machines. Sums take
        n_features² numbers; StateFeatures(n_features=4000) needs 64 MB of them.

        Args:
            X: A block of cases, as in `fit`.
            y: Its labels.
            classes: All labels that will come; needed in the first call, unless y is zeros and ones (cases, labels).
            sample_weight: Weights (cases,).

        Returns:
            The estimator itself.
        """
        first = not hasattr(self, "sums_")
        if first and classes is None and np.ndim(y) == 1:
            raise OptionError("the first call of partial_fit needs classes: all labels that will come.")
        signals = read_signals(self, X, reset=first)
        targets = self._read_labels(y, len(signals.values), classes if first else self.classes_)
        weights = self._case_weights(targets, case_weights(sample_weight, len(targets)))
        if weights is not None and weights.dim() > 1:
            raise OptionError("class_weight with several labels needs all cases at once; use fit, or sample_weight.")
        return self._add_cases(signals, targets, self._kind, len(self.classes_), weights)

    @property
    def _kind(self) -> str:
        return "multilabel" if self.multilabel_ else "multiclass"

    def _read_labels(self, y: Any, cases: int, known: Any = None) -> Tensor:
        """Labels as numbers; a warm start needs those of the last fit."""
        targets, classes, multilabel = read_labels(y, cases, known)
        if self._continues:
            check_unchanged("the list of classes", classes.tolist(), self.classes_.tolist())
            check_unchanged("multilabel", multilabel, self.multilabel_)
        self.classes_: np.ndarray = classes
        self.multilabel_: bool = multilabel
        return targets

    def _case_weights(self, targets: Tensor, weights: Tensor | None) -> Tensor | None:
        """Sample weights times the weights of the classes (cases,), of labels (cases, labels)."""
        return weigh_cases(self._kind, targets, self._class_weights(targets), weights)

    def _read_groups(self, groups: Any, cases: int) -> np.ndarray | None:
        """Groups (cases,), refused where no validation part is set aside: they would have no effect."""
        if groups is None:
            return None
        if self.method_ == "features" or not self.early_stopping:
            raise OptionError("groups are for early_stopping=True of gradient training; else leave them out, and use "
                              "GroupKFold of scikit-learn around the estimator.")  # fmt: skip
        if (shape := np.shape(groups)) != (cases,):
            raise ShapeError(f"groups has shape {shape}, expected ({cases},), one per case of X.")
        return np.asarray(groups)

    def _split(
        self, targets: Tensor, random: np.random.RandomState, groups: np.ndarray | None
    ) -> tuple[Tensor, Tensor | None]:
        """Numbers of the cases to train on and of those set aside, no group in both."""
        cases, fraction = len(targets), check_number(self.validation_fraction, "validation_fraction", 1)
        if self.early_stopping not in (True, False):
            raise OptionError(f"early_stopping is {self.early_stopping!r}, expected True or False.")
        count = max(1, round(fraction * cases))
        if not self.early_stopping or not fraction or count >= cases:
            return torch.arange(cases), None
        if groups is not None:
            keys = targets.numpy() if targets.dim() == 1 else np.unique(targets.numpy(), axis=0, return_inverse=True)[1]
            rng = np.random.default_rng(random.randint(2**31 - 1))
            kept, held = split_groups(keys, groups, [fraction], rng, "fit")
            return torch.from_numpy(kept), torch.from_numpy(held)
        counts = np.bincount(targets.numpy()) if targets.dim() == 1 else np.zeros(1)
        stratify = targets.numpy() if counts.min() >= 2 and count >= len(counts) <= cases - count else None
        kept, held = train_test_split(np.arange(cases), test_size=count, random_state=random, stratify=stratify)
        return torch.from_numpy(kept), torch.from_numpy(held)

    def _class_weights(self, targets: Tensor) -> Tensor | None:
        """A weight for each class, or for the ones of each label."""
        if (given := self.class_weight) is None:
            return None
        if isinstance(given, dict):
            names = self.classes_.tolist()
            if unknown := sorted(set(given) - set(names), key=str):
                warnings.warn(f"class_weight names classes that y has not: {unknown}.", stacklevel=4)
            return torch.tensor([check_positive(given.get(name, 1), f"class_weight of {name!r}") for name in names])
        if given != "balanced":
            raise OptionError(f"class_weight is {given!r}, expected None, 'balanced' or {{class: weight}}.")
        return class_weights(self._kind, targets, len(self.classes_))

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits (cases, classes or labels) of X as in `fit`; of two classes (cases,), above zero for `classes_[1]`."""
        logits = self._outputs(X)
        if (lost := np.flatnonzero(~np.isfinite(logits).all(axis=1))).size:
            raise NotFiniteError(f"case {lost[0]} of X is too far from the cases of fit; give it in their units.")
        return logits[:, 1] - logits[:, 0] if not self.multilabel_ and logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (cases, classes) of X as in `fit`; those of labels do not sum to one."""
        logits = torch.from_numpy(self.decision_function(X))
        if logits.dim() == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], dim=1)
        return (torch.sigmoid(logits) if self.multilabel_ else torch.softmax(logits, dim=1)).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> np.ndarray:
        """Classes (cases,), or zeros and ones (cases, labels), of X as in `fit`."""
        logits = self.decision_function(X)
        if self.multilabel_:
            return (logits > 0).astype(np.int64)
        return self.classes_[(logits > 0).astype(np.int64) if logits.ndim == 1 else logits.argmax(axis=1)]
