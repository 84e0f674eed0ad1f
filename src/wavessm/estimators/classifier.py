"""Stage 9d: `WaveSSMClassifier`: signals to classes, with scikit-learn's conventions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn import functional as F

from wavessm.errors import DataError, NotFiniteError, OptionError, check_int, check_positive
from wavessm.estimators import defaults
from wavessm.estimators.arrays import Cases, read_cases, read_targets
from wavessm.estimators.fitting import make_plan, pick_device, seeded, train
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel

EARLY_STOPPING_FROM = 200
"""Cases from which early_stopping='auto' sets some aside."""

PREDICT_BATCH = 256

EXCEPTIONS = {
    "check_methods_subset_invariance": "float32 sums depend on the size of the batch in the seventh digit; the check "
    "asks for 1e-7",
}
"""scikit-learn's checks that do not hold, and why; docs/estimators.md has the same list."""
CONSTANT = 1e-12
"""A channel whose deviation is at most this part of its mean does not move."""


class WaveSSMClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of signals; None everywhere lets the data decide (see `choices_` after fit).

    family               frame of the state: a name of `ws.families()`, or legs, legt, fout, s4d-legs, s4d-lin, s4d-inv
    d_model, n_layers, d_state  width, depth and size of the state
    bidirectional        also read backwards: better for whole recordings; False gives a model that can stream
    dropout              probability of the tied dropout
    dt_min, dt_max       range of the initial steps
    max_epochs, batch_size, learning_rate, weight_decay  of AdamW with a warm-up and half a cosine
    class_weight         None, "balanced" or {class: weight}
    early_stopping       True, False or "auto": from 200 cases on
    validation_fraction  part of the cases that early stopping sets aside
    n_iter_no_change     epochs without a better validation loss before fit ends
    warm_start           fit goes on from the weights of the last fit, on the same channels and classes
    device, random_state, verbose  as everywhere

    After fit: `classes_`, `model_` (a `SequenceModel`), `choices_`, `history_`, `n_iter_`, `n_channels_`,
    `n_features_in_`, `channel_names_`: columns of pandas tables, None without them, `length_`: samples of a signal, the
    median where they differ, and `multilabel_`: whether y was a table of indicators (cases, labels).

    >>> random = np.random.default_rng(0)
    >>> y = np.repeat(["low", "high"], 20)
    >>> t = np.arange(50)
    >>> X = np.sin(t * np.where(y == "low", 0.2, 0.6)[:, None]) + 0.1 * random.standard_normal((40, 50))
    >>> model = WaveSSMClassifier(max_epochs=10, random_state=0).fit(X, y)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.score(X, y) > 0.9
    (['high', 'low'], (40, 2), True)
    """

    model_: SequenceModel

    def __init__(
        self,
        family: str = "morlet",
        d_model: int | None = None,
        n_layers: int | None = None,
        d_state: int | None = None,
        bidirectional: bool = True,
        dropout: float = 0.0,
        dt_min: float | None = None,
        dt_max: float | None = None,
        max_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 0.004,
        weight_decay: float = 0.01,
        class_weight: dict | str | None = None,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 20,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.family = family
        self.d_model = d_model
        self.n_layers = n_layers
        self.d_state = d_state
        self.bidirectional = bidirectional
        self.dropout = dropout
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        return tags

    # -- fit ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> WaveSSMClassifier:
        """Train on X (cases, channels, time), (cases, time) or a list of arrays, and y (cases,) or (cases, labels)."""
        anew = not (self.warm_start and hasattr(self, "model_"))
        if not anew:
            defaults.refuse_changes(self, self.model_.config)
        cases = read_cases(self, X, reset=anew)
        targets = read_targets(self, y, len(cases.values), reset=anew)
        device = pick_device(self.device)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        train_on, held = self._split(targets, random)
        mean, scale = self._measure(cases, train_on)
        if anew:
            self.mean_, self.scale_ = mean, scale
        cases = self._standardise(cases).to(device)
        with seeded(seed, device):
            if anew:
                self.model_ = SequenceModel(self._config(cases, len(train_on)))
            self._train(cases, targets.to(device), train_on, held, device)
        return self

    def _split(self, targets: Tensor, random: np.random.RandomState) -> tuple[Tensor, Tensor | None]:
        """Numbers of the cases to train on and of those set aside."""
        cases = len(targets)
        everything = torch.arange(cases)
        if self.early_stopping not in (True, False, "auto"):
            raise OptionError(f"early_stopping is {self.early_stopping!r}, expected True, False or 'auto'.")
        if not self.early_stopping or (self.early_stopping == "auto" and cases < EARLY_STOPPING_FROM):
            return everything, None
        fraction = self.validation_fraction
        if not isinstance(fraction, int | float | np.number) or not 0 < fraction < 1:
            raise OptionError(f"validation_fraction is {fraction!r}, expected a number between 0 and 1.")
        counts = np.bincount(targets.numpy()) if targets.dim() == 1 else np.zeros(1)
        count = max(1, round(fraction * cases))
        stratify = targets.numpy() if counts.min() >= 2 and count >= len(counts) <= cases - count else None
        try:
            kept, held = train_test_split(everything.numpy(), test_size=count, random_state=random, stratify=stratify)
        except ValueError as reason:
            raise OptionError(f"early_stopping cannot set aside {count} of {cases} cases; use False.") from reason
        return torch.from_numpy(kept), torch.from_numpy(held)

    def _measure(self, cases: Cases, index: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each channel over what is trained on, without padding; 1 for one that stands still."""
        values, lengths = cases.take(index)
        if lengths is not None:
            values = values[torch.arange(values.shape[1]) < lengths[:, None]]
        flat = values.reshape(-1, values.shape[-1])
        mean, deviation = flat.mean(0).numpy(), flat.std(0, correction=0).numpy()
        still = deviation <= CONSTANT * np.abs(mean)
        if still.all():
            raise DataError(f"{type(self).__name__}: X is constant in all training cases; there is nothing to learn.")
        if still.any():
            at = int(np.flatnonzero(still)[0])
            name = at if self.channel_names_ is None else repr(self.channel_names_[at])
            warnings.warn(
                f"channel {name} is constant ({mean[at]:g}) in all training cases and tells nothing.", stacklevel=3
            )
        return mean, np.where(still, 1.0, deviation)

    def _standardise(self, cases: Cases) -> Cases:
        values = (cases.values - torch.from_numpy(self.mean_)) / torch.from_numpy(self.scale_)
        return Cases(values.float(), cases.lengths)

    def _config(self, cases: Cases, count: int) -> ModelConfig:
        length = cases.values.shape[1] if cases.lengths is None else int(cases.lengths.double().median())
        self.length_ = int(length)
        self.choices_: dict[str, Any] = defaults.model_choices(self, count, self.length_, self.length_)
        outputs = len(self.classes_)
        return ModelConfig(
            d_input=self.n_channels_, d_output=outputs, bidirectional=self.bidirectional, dropout=self.dropout,
            norm="batch", head="pool", **self.choices_,
        )  # fmt: skip

    def _train(
        self, cases: Cases, targets: Tensor, train_on: Tensor, held: Tensor | None, device: torch.device
    ) -> None:
        model = self.model_.to(device)
        batch = defaults.batch_size(len(train_on)) if self.batch_size is None else self.batch_size
        batch = check_int(batch, "batch_size", least=1)
        plan = make_plan(self, len(train_on), batch)
        self.choices_ |= {"max_epochs": plan.epochs, "batch_size": batch, "early_stopping": held is not None}
        if self.verbose:
            print(f"{plan.label}: {defaults.describe(self.choices_)}")
        weight = self._weights(targets[train_on])

        def loss(index: Tensor) -> Tensor:
            chosen = train_on[index]
            x, lengths = cases.take(chosen.to(device))
            return _loss(model(x, lengths), targets[chosen.to(device)], weight)

        def validate() -> float:
            assert held is not None
            return float(_loss(self._logits(cases.take(held.to(device))), targets[held.to(device)], weight))

        self.history_ = train(model, plan, len(train_on), loss, None if held is None else validate)
        self.n_iter_ = self.history_.epochs

    def _weights(self, targets: Tensor) -> Tensor | None:
        """A weight for each class, or for the ones of each label."""
        given = self.class_weight
        if given is None:
            return None
        if not isinstance(given, dict) and not (isinstance(given, str) and given == "balanced"):
            raise OptionError(f"class_weight is {given!r}, expected None, 'balanced' or {{class: weight}}.")
        if isinstance(given, dict):
            names = self.classes_.tolist()
            unknown = sorted(set(given) - set(names), key=str)
            if unknown:
                warnings.warn(f"class_weight names classes that y has not: {unknown}.", stacklevel=4)
            weights = [check_positive(given.get(name, 1), f"class_weight of {name!r}") for name in names]
            return torch.tensor(weights, device=targets.device)
        if self.multilabel_:
            ones = targets.sum(0)
            return (len(targets) - ones).clamp(min=1) / ones.clamp(min=1)
        counts = torch.bincount(targets, minlength=len(self.classes_))
        balanced = len(targets) / ((counts > 0).sum() * counts.clamp(min=1))
        return torch.where(counts > 0, balanced, 1.0).float()

    # -- predict ------------------------------------------------------------------------------------------------

    def _logits(self, cases: Cases) -> Tensor:
        rows = torch.arange(len(cases.values), device=cases.values.device).split(PREDICT_BATCH)
        return torch.cat([self.model_(*cases.take(index)) for index in rows])

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits (cases, classes); (cases,) where there are two classes: above zero says `classes_[1]`."""
        check_is_fitted(self, "model_")
        device = next(self.model_.parameters()).device
        with torch.no_grad():
            cases = self._standardise(read_cases(self, X, reset=False)).to(device)
            logits = self._logits(cases).double().cpu().numpy()
        if (lost := np.flatnonzero(~np.isfinite(logits).all(axis=1))).size:
            raise NotFiniteError(
                f"{type(self).__name__}: case {lost[0]} of X is too far from the cases of fit; give it in their units."
            )
        if not self.multilabel_ and logits.shape[1] == 2:
            return logits[:, 1] - logits[:, 0]
        return logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (cases, classes); of labels, each by itself."""
        logits = self.decision_function(X)
        if logits.ndim == 1 or self.multilabel_:
            p = torch.sigmoid(torch.from_numpy(logits)).numpy()
            return np.stack([1 - p, p], axis=1) if logits.ndim == 1 else p
        return torch.softmax(torch.from_numpy(logits), dim=1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> np.ndarray:
        """Classes (cases,), or indicators (cases, labels)."""
        logits = self.decision_function(X)
        if self.multilabel_:
            return (logits > 0).astype(np.int64)
        return self.classes_[(logits > 0).astype(np.int64) if logits.ndim == 1 else logits.argmax(axis=1)]


def _loss(logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
    if targets.dim() == 2:
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight)
    return F.cross_entropy(logits, targets, weight)
