"""Forecasts that need no training, for every table of forecasts: last value, seasonal naive and a linear map.

Each is a callable from contexts (batch, context, channels) to forecasts (batch, horizon, columns) in the scale of the
data; `predict` and `score` run it over every window of a `Windows` source. The linear map is fitted in closed form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from wavessm.data.source import Batch, DataSet, Windows
from wavessm.errors import OptionError

PENALTIES = (1e-4, 1e-2, 0.1, 1.0)
Forecaster = Callable[[Tensor], Tensor]


class Score(NamedTuple):
    """Errors over all windows, steps and columns."""

    mse: float
    mae: float


@dataclasses.dataclass(frozen=True)
class LastValue:
    """Repeat the last value of the context."""

    horizon: int
    columns: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return x[:, -1:, list(self.columns)].expand(-1, self.horizon, -1)


@dataclasses.dataclass(frozen=True)
class Seasonal:
    """Repeat the last `period` rows of the context.

    >>> Seasonal(2, 5, (0,))(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist()
    [2.0, 3.0, 2.0, 3.0, 2.0]
    """

    period: int
    horizon: int
    columns: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.period:
            raise OptionError(f"Seasonal: a context of {x.shape[1]} rows is shorter than the period {self.period}.")
        steps = torch.arange(self.horizon, device=x.device) % self.period
        return x[:, x.shape[1] - self.period + steps][..., list(self.columns)]


@dataclasses.dataclass(frozen=True)
class Linear:
    """One linear map for all columns, on the context minus its last value, which is added back."""

    weight: Tensor  # (context, horizon)
    columns: tuple[int, ...]
    penalty: float

    def __call__(self, x: Tensor) -> Tensor:
        x = x[..., list(self.columns)]
        last = x[:, -1:]
        return torch.einsum("bsc,sh->bhc", x - last, self.weight.to(x)) + last


def batches(source: Windows, size: int = 512) -> Iterator[Batch]:
    """Every window once, in order."""
    for index in torch.arange(len(source), device=source.device).split(size):
        yield source.take(index)


def predict(forecaster: Forecaster, source: Windows) -> Tensor:
    """Forecasts of every window, (windows, horizon, columns)."""
    return torch.cat([forecaster(batch.x) for batch in batches(source)])


def score(forecaster: Forecaster, source: Windows) -> Score:
    """Errors over every window, without holding all forecasts at once."""
    squares = sizes = count = 0.0
    for batch in batches(source):
        error = (forecaster(batch.x) - batch.y).double()
        squares += float(error.square().sum())
        sizes += float(error.abs().sum())
        count += error.numel()
    return Score(squares / count, sizes / count)


def fit_linear(train: Windows, val: Windows) -> Linear:
    """Ridge regression on the training windows; the penalty (times the identity, against the mean Gram matrix) is the
    one of `PENALTIES` with the least validation error.
    """
    S = train.context
    G = window_gram(train)  # over context and horizon
    last = G[S - 1]
    G = G - last[:, None] - last[None, :] + last[S - 1]  # of windows minus their last context value
    identity = torch.eye(S, dtype=G.dtype, device=G.device)
    found: tuple[float, Linear] | None = None
    for penalty in PENALTIES:
        weight = torch.linalg.solve(G[:S, :S] + penalty * identity, G[:S, S:])
        candidate = Linear(weight, train.columns, penalty)
        error = score(candidate, val).mse
        if found is None or error < found[0]:
            found = error, candidate
    assert found is not None
    return found[1]


def window_gram(source: Windows) -> Tensor:
    """Mean over windows and columns of w wᵀ, w the context + horizon values of a window; float64.

    Windows of stride 1 overlap, so G[i+1, j+1] = G[i, j] + x[n+i] x[n+j] - x[i] x[j] over n windows: one row is a
    correlation, the others follow from it. That is thousands of times less work than the sum over windows.
    """
    starts = source.starts
    if len(starts) == 0 or int(starts[-1] - starts[0]) != len(starts) - 1:
        raise OptionError("window_gram: expected windows of stride 1, in order.")
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


def seasons(data: DataSet) -> dict[str, int]:
    """Periods in rows of the day and the week, where rows have a step that divides them and the context holds them."""
    step = data.info.step
    periods = {} if step is None else {"day": 86_400 / step, "week": 604_800 / step}
    return {
        name: int(period)
        for name, period in periods.items()
        if period == int(period) and 1 < period <= data.info.length
    }


def baseline_scores(data: DataSet) -> dict[str, Score]:
    """Test errors of every baseline: last value, seasonal day and week where they fit, linear."""
    train, val, test = data.train, data.val, data.test
    if not (isinstance(train, Windows) and isinstance(val, Windows) and isinstance(test, Windows)):
        raise OptionError(f"baseline_scores: {data.name} is a {data.info.kind} set, expected a forecast.")
    columns, horizon = test.columns, test.horizon
    forecasters: dict[str, Forecaster] = {"last value": LastValue(horizon, columns)}
    for name, period in seasons(data).items():
        forecasters[f"seasonal {name}"] = Seasonal(period, horizon, columns)
    forecasters["linear"] = fit_linear(train, val)
    return {name: score(forecaster, test) for name, forecaster in forecasters.items()}
