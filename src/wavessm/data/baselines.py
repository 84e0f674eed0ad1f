"""Scores that need no training, beside which every run prints its own: last value, seasonal naive, most frequent class.

A forecast maps contexts (batch, context, channels) to (batch, horizon, columns) in the scale of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wavessm.data.source import DataSet, Windows
from wavessm.errors import OptionError


class ForecastErrors(NamedTuple):
    """Errors over all windows, steps and columns."""

    mse: float
    mae: float


@dataclass(frozen=True)
class Seasonal:
    """Repeat the last `period` rows of the context; with period 1, the last value.

    >>> Seasonal(2, 5, (0,))(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist()
    [2.0, 3.0, 2.0, 3.0, 2.0]
    """

    period: int
    horizon: int
    columns: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        steps = torch.arange(self.horizon, device=x.device) % self.period
        return x[:, x.shape[1] - self.period + steps][..., list(self.columns)]


def score(forecast: Callable[[Tensor], Tensor], source: Windows) -> ForecastErrors:
    """Return the errors over every window, without holding all forecasts at once."""
    squares = sizes = count = 0.0
    for index in torch.arange(len(source), device=source.device).split(512):
        batch = source.take(index)
        error = (forecast(batch.x) - batch.y).double()
        squares += float(error.square().sum())
        sizes += float(error.abs().sum())
        count += error.numel()
    return ForecastErrors(squares / count, sizes / count)


def baseline_scores(data: DataSet) -> dict[str, ForecastErrors]:
    """Return the test errors of last value, and seasonal day and week where the context holds them."""
    test = data.test
    if not isinstance(test, Windows):
        raise OptionError(f"baseline_scores: {data.name} is a {data.info.kind} set, expected a forecast.")
    periods = {"last value": 1.0}
    if data.info.step is not None:
        periods |= {"seasonal day": 86_400 / data.info.step, "seasonal week": 604_800 / data.info.step}
    return {
        name: score(Seasonal(int(period), test.horizon, test.columns), test)
        for name, period in periods.items()
        if period == int(period) and (name == "last value" or 1 < period <= data.info.length)
    }


def majority_accuracy(data: DataSet) -> float:
    """Return the share of test cases, or steps, that have the most frequent class of the training part."""
    train, test = (vars(source)["y"].flatten() for source in (data.train, data.test))
    return float((test == train.bincount().argmax()).double().mean())
