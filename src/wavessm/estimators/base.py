"""What both estimators share: options, defaults that follow from the size of the data, random numbers, training.

Options that stay None are chosen so that a fit takes minutes on a small CPU; `choices_` lists them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from wavessm.data.source import Batch, Source
from wavessm.data.tables import Scale as Scale
from wavessm.errors import OptionError, check_int, check_number, check_positive, unknown_name
from wavessm.features.model import one_thread
from wavessm.nn.backbones import SequenceNorm, TiedDropout
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import Plan, TrainConfig, pick_device
from wavessm.training.augment import mixed_loss
from wavessm.training.loop import Objective, Trainer
from wavessm.training.progress import Progress

STEPS = 1500  # optimiser steps a fit aims at

PREDICT_BATCH = 256
MODEL_OPTIONS = ("family", "d_model", "n_layers", "d_state", "dt_min", "dt_max", "dropout")
_global_generator = threading.Lock()


@dataclass(kw_only=True, eq=False, repr=False)
class WaveSSMEstimator(BaseEstimator):
    """Options of both estimators, documented in `WaveSSMClassifier`, and how they become a trained model."""

    family: str = "morlet"
    d_model: int | None = None
    n_layers: int | None = None
    d_state: int | None = None
    dropout: float = 0.0
    dt_min: float | None = None
    dt_max: float | None = None
    max_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 0.004
    weight_decay: float = 0.01
    validation_fraction: float = 0.15
    n_iter_no_change: int = 20
    warm_start: bool = False
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    @property
    def _continues(self) -> bool:
        """Whether fit continues the model of the last fit."""
        if not isinstance(self.warm_start, bool | np.bool_):
            raise OptionError(f"warm_start is {self.warm_start!r}, expected True or False.")
        return self.warm_start and hasattr(self, "model_")

    def _fit_model(
        self, source: Source, held: Source | None, loss: Callable[[Tensor, Tensor], Tensor], config: ModelConfig,
        training: TrainConfig, steps_per_epoch: int | None = None, baselines: dict[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Train a new model, or continue the last one, by loss(output, target); `held` is the source of validation."""
        device = pick_device(training)
        plan = training.plan(len(source))
        if steps_per_epoch is not None:
            steps = min(steps_per_epoch, plan.steps_per_epoch)
            plan = Plan(steps, steps * int(training.epochs), steps)
        if not self._continues:
            self.model_ = self._new_model(config, training.seed)
        self.choices_ = {name: getattr(config, name) for name in MODEL_OPTIONS}
        self.choices_ |= {"max_epochs": int(training.epochs), "batch_size": training.batch_size}
        self.choices_["early_stopping"] = held is not None
        if self.verbose:
            words = (f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.choices_.items())
            print(f"{type(self).__name__}: {', '.join(words)}")
        model, source = self.model_.to(device), source.to(device)
        validate = None if held is None else _validation(model, held.to(device), loss)

        def mixed(network: nn.Module, batch: Batch) -> Tensor:
            return mixed_loss(lambda output, y, _: loss(output, y), apply_model(network, batch), batch)

        objective = Objective(source, mixed, validate, baselines=baselines or {})
        with _apart(model, training.seed):
            progress = Progress(type(self).__name__, show=bool(self.verbose))
            self.history_ = Trainer(model, objective, training, plan).fit(progress)
        if held is None:
            batches = torch.arange(len(source)).split(training.batch_size)[: plan.steps_per_epoch]
            _refresh_batch_norm(model, [source.take(index) for index in batches])
        self.n_iter_ = len(self.history_.rows)

    def _new_model(self, config: ModelConfig, seed: int) -> SequenceModel:
        with borrowed_generator(seed):
            return SequenceModel(config)

    def _model_config(self, sizes: dict[str, Any], **decided: Any) -> ModelConfig:
        """The model: options as given, the rest as `sizes` says or, for a warm start, as the last fit chose."""
        before = self.model_.config if self._continues else None
        options = {name: getattr(self, name) for name in MODEL_OPTIONS}
        for name, value in sizes.items():
            if options.get(name) is None:
                options[name] = value if before is None else getattr(before, name)
        config = ModelConfig(**options, **decided)
        if before is not None:
            for field in dataclasses.fields(config):
                check_unchanged(field.name, getattr(config, field.name), getattr(before, field.name))
        return config

    def _train_config(self, cases: int, seed: int, steps_per_epoch: int | None = None) -> TrainConfig:
        """The training: options as given, the rest for `cases` training cases: about `STEPS` steps."""
        lr = check_positive(self.learning_rate, "learning_rate")
        check_number(self.validation_fraction, "validation_fraction", 1)
        batch = min(64, max(8, math.ceil(cases / 4))) if self.batch_size is None else self.batch_size
        steps = min(math.ceil(cases / check_int(batch, "batch_size", minimum=1)), steps_per_epoch or cases)
        epochs = min(200, max(10, round(STEPS / steps))) if self.max_epochs is None else self.max_epochs
        return TrainConfig(
            lr=lr, lr_ssm=min(lr, 1e-3), weight_decay=self.weight_decay, grad_clip=1.0, batch_size=batch,
            epochs=check_int(epochs, "max_epochs", minimum=1), max_loss_ratio=math.inf, device=self.device, seed=seed,
            patience=check_int(self.n_iter_no_change, "n_iter_no_change", minimum=1),
        )  # fmt: skip


def model_sizes(cases: int, length: int, lookback: int) -> dict[str, Any]:
    """Sizes of a model for `cases` sequences of `length` samples.

    A channel with step Δ looks back about 1/Δ samples: the slowest ones `lookback`, the fastest ten.

    >>> model_sizes(60, 150, 100)
    {'d_model': 32, 'n_layers': 2, 'd_state': 32, 'dt_min': 0.01, 'dt_max': 0.1}
    """
    slowest = 1.0 / max(lookback, 2)
    return {
        "d_model": 32 if cases < 1000 else 64,
        "n_layers": 2 if cases < 500 else 3 if cases < 5000 else 4,
        "d_state": 32 if length < 500 else 64,
        "dt_min": slowest,
        "dt_max": max(0.1, 2 * slowest),
    }


@contextlib.contextmanager
def borrowed_generator(seed: int) -> Iterator[None]:
    """Seed torch's global generator inside the block, for one thread at a time; afterwards it is as before."""
    with _global_generator, torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield


def apply_model(model: nn.Module, batch: Batch) -> Tensor:
    """The output for a batch, padded no further than its longest case."""
    x, lengths = batch.x, batch.lengths
    return model(x if lengths is None else x[:, : int(lengths.max())], **batch.inputs())


@torch.no_grad()
def predict_all(model: nn.Module, source: Source) -> Tensor:
    """Outputs of all cases of a source, in their order."""
    parts = torch.arange(len(source)).split(PREDICT_BATCH)
    return torch.cat([apply_model(model, source.take(part)) for part in parts])


def _validation(model: nn.Module, held: Source, loss: Callable) -> Callable[[], dict[str, float]]:
    targets = held.take(torch.arange(len(held))).y
    return lambda: {"loss": float(loss(predict_all(model, held), targets))}


@contextlib.contextmanager
def _apart(model: nn.Module, seed: int) -> Iterator[None]:
    """Dropout masks from a generator of their own, so that fits in threads do not disturb each other; one thread."""
    device = next(model.parameters()).device
    layers = [module for module in model.modules() if isinstance(module, TiedDropout)]
    generator = torch.Generator(device).manual_seed(seed)
    for layer in layers:
        layer.generator = generator
    try:
        with one_thread(device):
            yield
    finally:
        for layer in layers:
            layer.generator = None


@torch.no_grad()
def _refresh_batch_norm(model: nn.Module, batches: list[Batch]) -> None:
    """Recompute statistics of batch norms as the plain mean over batches: after a short training theirs lag behind."""
    norms = [module for module in model.modules() if isinstance(module, SequenceNorm) and module.kind == "batch"]
    norms = [norm for norm in norms if next(norm.parameters()).requires_grad]  # not those of frozen blocks
    inner = [cast(nn.BatchNorm1d, norm.train().norm) for norm in norms]
    momentum = [norm.momentum for norm in inner]
    for number, batch in enumerate(batches if norms else (), start=1):
        for norm in inner:
            norm.momentum = 1 / number
        apply_model(model, batch)
    for norm, value in zip(inner, momentum, strict=True):
        norm.momentum = value
    model.eval()


def check_unchanged(what: str, now: Any, before: Any) -> None:
    """Refuse a warm start that needs another model than the one to continue."""
    if now != before:
        raise OptionError(f"warm_start: {what} is {now!r}, but the fitted model has {before!r}; use warm_start=False.")


def check_names(kind: str, given: Iterable, known: Iterable[str]) -> None:
    """Refuse a name that is not known."""
    for value in given:
        if value not in known:
            raise unknown_name(kind, value, known)
