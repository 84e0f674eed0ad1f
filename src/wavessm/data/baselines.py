"""Forecasts that need no training, for every table of forecasts: last value, seasonal naive and a linear map.

Each is a callable from contexts (batch, context, channels) to forecasts (batch, horizon, columns) in the scale of the
data. The linear map is fitted in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from wavessm.data.source import DataSet, Windows
from wavessm.errors import OptionError

PENALTIES = (1e-4, 1e-2, 0.1, 1.0)
Forecast = Callable[[Tensor], Tensor]


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


@dataclass(frozen=True)
class Linear:
    """One linear map for all columns, on the context minus its last value, which is added back."""

    weight: Tensor  # (context, horizon)
    columns: tuple[int, ...]
    penalty: float

    def __call__(self, x: Tensor) -> Tensor:
        x = x[..., list(self.columns)]
        last = x[:, -1:]
        return torch.einsum("bsc,sh->bhc", x - last, self.weight.to(x)) + last


def score(forecast: Forecast, source: Windows) -> ForecastErrors:
    """Return the errors over every window, without holding all forecasts at once."""
    squares = sizes = count = 0.0
    for index in torch.arange(len(source), device=source.device).split(512):
        batch = source.take(index)
        error = (forecast(batch.x) - batch.y).double()
        squares += float(error.square().sum())
        sizes += float(error.abs().sum())
        count += error.numel()
    return ForecastErrors(squares / count, sizes / count)


def fit_linear(train: Windows, val: Windows) -> Linear:
    """Fit ridge regression on the training windows; the penalty (times the identity, against the mean Gram matrix) is
    the one of `PENALTIES` with the smallest validation error.
    """
    S = train.context
    G = window_gram(train)  # over context and horizon
    last = G[S - 1]
    G = G - last[:, None] - last[None, :] + last[S - 1]  # of windows minus their last context value
    identity = torch.eye(S, dtype=G.dtype, device=G.device)
    candidates = [
        Linear(torch.linalg.solve(G[:S, :S] + penalty * identity, G[:S, S:]), train.columns, penalty)
        for penalty in PENALTIES
    ]
    return min(candidates, key=lambda candidate: score(candidate, val).mse)


def window_gram(source: Windows) -> Tensor:
    """Return the mean over windows and columns of w wᵀ, w the context + horizon values of a window; float64.

    Windows of stride 1 overlap, so G[i+1, j+1] = G[i, j] + x[n+i] x[n+j] - x[i] x[j] over n windows: one row is a
    correlation, the others follow from it. That is thousands of times less work than the sum over windows.
    """
    starts = source.starts
    n, size = len(starts), source.context + source.horizon
    rows = slice(int(starts[0]), int(starts[-1]) + size)
    x = source.series[rows][:, list(source.columns)].double().T  # (columns, n + size - 1)
    G = torch.empty(size, size, dtype=torch.float64, device=x.device)
    for j in range(size):
        G[0, j] = G[j, 0] = (x[:, :n] * x[:, j : j + n]).sum()
    new, old = x[:, n:], x[:, : size - 1]
    for i in range(size - 1):
        G[i + 1, 1:] = G[i, :-1] + (new[:, i, None] * new - old[:, i, None] * old).sum(0)
    return G / (n * len(source.columns))


def naive_scores(data: DataSet) -> dict[str, ForecastErrors]:
    """Return the test errors of last value, and seasonal day and week where the context holds them."""
    test = data.test
    if not isinstance(test, Windows):
        raise OptionError(f"naive_scores: {data.name} is a {data.info.kind} set, expected a forecast.")
    periods = {"last value": 1.0}
    if data.info.step is not None:
        periods |= {"seasonal day": 86_400 / data.info.step, "seasonal week": 604_800 / data.info.step}
    return {
        name: score(Seasonal(int(period), test.horizon, test.columns), test)
        for name, period in periods.items()
        if period == int(period) and (name == "last value" or 1 < period <= data.info.length)
    }


def baseline_scores(data: DataSet) -> dict[str, ForecastErrors]:
    """Return the test errors of `naive_scores`, and of a linear map."""
    found, (train, val, test) = naive_scores(data), (cast(Windows, part) for part in (data.train, data.val, data.test))
    return found | {"linear": score(fit_linear(train, val), test)}


def majority_accuracy(data: DataSet) -> float:
    """Return the share of test cases that have the most frequent class of the training part: y (cases,) long."""
    train, test = (vars(source)["y"] for source in (data.train, data.test))
    return float((test == train.bincount().argmax()).double().mean())
