"""Initialise the direct path of a forecasting model with the ridge regression of its training windows.

The path is linear, so its least squares are solved in closed form. With z the values that it reads of a column and its
marks, in places of their own for every column, y the values that follow, all after instance normalisation, and means
over windows and columns:

    (⟨z zᵀ⟩ + P) [W; U] = ⟨z yᵀ⟩        P = p for values, q / columns for marks

The penalties p and q are those with the smallest validation error; a large q leaves the calendar out. The decoder after
the blocks then starts at zero, so the blocks learn the residual of the ridge.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wavessm.data.source import DataSet, Source
from wavessm.nn.model import SequenceModel
from wavessm.ops.modes import exact
from wavessm.training.batches import EvalBatches

PENALTIES = (1e-4, 1e-2, 0.1, 1.0, 10.0, 100.0)
MARK_PENALTIES = (1e-3, 0.1, 10.0)
WINDOWS = 512


class Fit(NamedTuple):
    """A linear map with its penalties and its mean squared validation error."""

    W: Tensor  # (context, horizon)
    U: Tensor | None  # (marks, horizon, d_output)
    penalties: tuple[float, float]
    error: float


@torch.no_grad()
def start_at_ridge(model: SequenceModel, data: DataSet) -> Fit:
    """Set the direct path of a forecasting model to the ridge regression of the training windows, its decoder to zero.

    Returns the map, whose penalties the validation windows chose.
    """
    path: Any = model.direct
    for weight in model.head.decoder.parameters():
        nn.init.zeros_(weight)
    (G, R), found = _moments(model, data.train), []
    values, columns = path.context, path.d_output
    for p, q in itertools.product(PENALTIES, MARK_PENALTIES if len(G) > values else (0.0,)):
        penalty = torch.full((len(G),), q / columns).to(G)
        penalty[:values] = p
        both = torch.linalg.solve(G + penalty.diag(), R)
        U = both[values:].unflatten(0, (columns, -1)).permute(1, 2, 0) if len(G) > values else None
        path.set(both[:values], U)
        found.append(Fit(both[:values], U, (p, q), _error(model, data.val)))
    best = min(found, key=lambda fit: fit.error)
    path.set(best.W, best.U)
    return best


def _moments(model: SequenceModel, source: Source) -> tuple[Tensor, Tensor]:
    """⟨z zᵀ⟩ and ⟨z yᵀ⟩ in float64, the latter of what was observed."""
    path: Any = model.direct
    sums: list[Any] = [0.0] * 3
    for batch in EvalBatches(source, WINDOWS):
        x, centre, scale = model.scale(batch.x)
        recent, now = path.read(x, batch.marks, None)
        y = batch.y if centre is None else batch.y - centre[..., -path.d_output :]
        y = exact((y if scale is None else y / scale[..., -path.d_output :]).mT.flatten(0, 1))
        z = recent.mT
        if now is not None:
            own = torch.einsum("bk,cd->bcdk", now, torch.eye(path.d_output).to(now))
            z = torch.cat([z, own.flatten(2)], dim=2)
        z = exact(z.flatten(0, 1))
        new = [z.mT @ z / (len(source) * path.d_output), z.mT @ y.nan_to_num(), (~y.isnan()).sum(0)]
        sums = [a + b for a, b in zip(sums, new, strict=True)]
    return sums[0], sums[1] / sums[2]


def _error(model: SequenceModel, source: Source) -> float:
    """Mean squared error of the direct path over a split."""
    path: Any = model.direct
    total: Any = 0.0  # one transfer at the end, so that a GPU never waits
    for batch in EvalBatches(source, WINDOWS):
        x, centre, scale = model.scale(batch.x)
        error = model.scale.undo(path(x, batch.marks), centre, scale) - batch.y
        total = total + exact(error.square()).flatten(1).nanmean(1).sum()
    return float(total / len(source))
