"""What both estimators share: options, defaults that follow from the size of the data, random numbers, training.

Options that stay None are chosen so that a fit takes minutes on a small CPU; `choices_` lists them.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from wavessm.data.tables import LARGEST
from wavessm.errors import DataError, NotFiniteError, OptionError, check_int, check_positive
from wavessm.estimators.fitting import Plan
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel

FASTEST = 10.0
"""Samples that the fastest channels look back."""

STEPS = 1500
"""Optimiser steps a fit aims at."""

CONSTANT = 1e-12
"""A channel or column whose deviation is at most this part of its mean is constant."""

_MODEL_OPTIONS = ("family", "d_model", "n_layers", "d_state", "dt_min", "dt_max", "dropout")
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
        return self.warm_start and hasattr(self, "model_")

    def _model_config(self, sizes: dict[str, Any], **decided: Any) -> ModelConfig:
        """The model: options as given, the rest as `sizes` says or, for a warm start, as the last fit chose."""
        before = self.model_.config if self._continues else None
        options = {name: getattr(self, name) for name in _MODEL_OPTIONS}
        for name, value in sizes.items():
            if options.get(name) is None:
                options[name] = value if before is None else getattr(before, name)
        config = ModelConfig(**options, **decided)
        if before is not None:
            for field in dataclasses.fields(config):
                check_unchanged(field.name, getattr(config, field.name), getattr(before, field.name))
        return config

    def _plan(self, cases: int, steps_per_epoch: int | None = None) -> Plan:
        """The training: options as given, the rest for `cases` training cases."""
        batch = check_int(default_batch_size(cases) if self.batch_size is None else self.batch_size, "batch_size", 1)
        if steps_per_epoch is not None:
            cases = min(cases, steps_per_epoch * batch)
        epochs = default_epochs(cases, batch) if self.max_epochs is None else self.max_epochs
        return Plan(
            epochs=check_int(epochs, "max_epochs", least=1),
            batch_size=batch,
            learning_rate=check_positive(self.learning_rate, "learning_rate"),
            weight_decay=check_number(self.weight_decay, "weight_decay"),
            patience=check_int(self.n_iter_no_change, "n_iter_no_change", least=1),
            steps_per_epoch=steps_per_epoch,
            verbose=self.verbose,
            label=type(self).__name__,
        )

    def _tell(self, config: ModelConfig, **choices: Any) -> None:
        """Keep, and print if asked to, what the options and the data made of the model and its training."""
        self.choices_ = {name: getattr(config, name) for name in _MODEL_OPTIONS} | choices
        if self.verbose:
            words = (f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.choices_.items())
            print(f"{type(self).__name__}: {', '.join(words)}")


def step_range(length: int) -> tuple[float, float]:
    """Initial steps Δ of the slowest and fastest channels; a channel with step Δ looks back about 1/Δ samples.

    >>> step_range(100)
    (0.01, 0.1)
    """
    slowest = 1.0 / max(length, 2)
    return slowest, max(1 / FASTEST, 2 * slowest)


def model_sizes(cases: int, length: int, lookback: int) -> dict[str, Any]:
    """Sizes of a model for `cases` sequences of `length` samples whose slowest channels look back `lookback`.

    >>> model_sizes(60, 150, 100)
    {'d_model': 32, 'n_layers': 2, 'd_state': 32, 'dt_min': 0.01, 'dt_max': 0.1}
    """
    slow, fast = step_range(lookback)
    return {
        "d_model": 32 if cases < 1000 else 64,
        "n_layers": 2 if cases < 500 else 3 if cases < 5000 else 4,
        "d_state": 32 if length < 500 else 64,
        "dt_min": slow,
        "dt_max": fast,
    }


def default_batch_size(cases: int) -> int:
    """Four or more batches in an epoch, of 8 to 64 cases.

    >>> default_batch_size(36), default_batch_size(500)
    (9, 64)
    """
    return min(64, max(8, math.ceil(cases / 4)))


def default_epochs(cases: int, batch: int) -> int:
    """Epochs that make about `STEPS` steps, from 10 to 200.

    >>> default_epochs(36, 9), default_epochs(10_000, 64)
    (200, 10)
    """
    return min(200, max(10, round(STEPS / math.ceil(cases / batch))))


def build_model(config: ModelConfig, seed: int) -> SequenceModel:
    """A model whose initial weights follow from the seed, in any thread.

    Layers draw from torch's global generator: one thread at a time borrows it and puts it back as it was.
    """
    with _global_generator:
        state = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(seed)
            return SequenceModel(config)
        finally:
            torch.default_generator.set_state(state)


def pick_device(name: str) -> torch.device:
    """The device called auto, cpu, cuda, cuda:1 or mps."""
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as reason:
        raise OptionError(f"device is {name!r}, which is not there; expected 'auto', 'cpu' or 'cuda'.") from reason
    return device


def check_unchanged(what: str, now: Any, before: Any) -> None:
    """Refuse a warm start that needs another model than the one to continue."""
    if now != before:
        raise OptionError(
            f"warm_start: {what} is {now!r}, but the fitted model has {before!r}; use warm_start=False to start anew."
        )


def check_number(value: Any, name: str, below: float = math.inf) -> float:
    """The value as a float, 0 ≤ value < below, or `OptionError`."""
    if not isinstance(value, int | float | np.number) or not 0 <= value < below:
        raise OptionError(f"{name} is {value!r}, expected a number 0 ≤ {name} < {below:g}.")
    return float(value)


def check_numbers(array: np.ndarray, where: str) -> None:
    """Refuse NaN, infinity and what float32 does not hold; `where` names a row, as in "case {} of X"."""
    unfit = ~(np.abs(array) <= LARGEST)
    if unfit.any():
        at = tuple(np.argwhere(unfit)[0])
        where, value = where.format(at[0]), array[at]
        if not np.isfinite(value):
            raise NotFiniteError(f"{where} has NaN or infinity; fill or drop it first.")
        raise DataError(f"{where} has {value:g}, beyond float32 ({LARGEST:.2g} at most); use a larger unit.")


def column_order(names: Any, wanted: list, what: str) -> list[int]:
    """Where a table has the wanted columns, in any order.

    >>> column_order(["v", "u"], ["u", "v"], "X")
    [1, 0]
    """
    names = list(names)
    if len(names) != len(wanted) or set(names) != set(wanted):
        shown = [", ".join(map(repr, some[:8])) + (", …" if len(some) > 8 else "") for some in (names, wanted)]
        raise DataError(f"{what}: the columns are {shown[0]}, expected {shown[1]} in any order; rename or choose them.")
    return [names.index(name) for name in wanted]


def mean_and_deviation(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each column of rows (n, columns) float64; the deviation of a constant column is 0."""
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    return mean, np.where(deviation > CONSTANT * np.abs(mean), deviation, 0.0)


def as_array(values: Any) -> Any:
    """A tensor as a NumPy array; anything else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
