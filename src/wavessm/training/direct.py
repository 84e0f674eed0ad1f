"""Initialise the direct path of a forecasting model with the ridge regression of its training windows.

The path is linear, so its least squares are solved in closed form. With r the values it reads of a column, m the marks,
y the values that follow, all after instance normalisation, and means over windows (and columns, c of them):

    G = ⟨r rᵀ⟩   R = ⟨r yᵀ⟩   M = ⟨m mᵀ⟩   X_c = ⟨m r_cᵀ⟩   Y_c = ⟨m y_cᵀ⟩          K = (M + q)⁻¹
    (G + p − ⟨X_cᵀ K X_c⟩) W = R − ⟨X_cᵀ K Y_c⟩        U_c = K (Y_c − X_c W)

The penalties p and q are those with the smallest validation error; a large q leaves the calendar out. The decoder after
the blocks then starts at zero, so the blocks learn the residual of the ridge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

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


def start_at_ridge(model: SequenceModel, data: DataSet) -> Fit:
    """Set the direct path of a forecasting model to the ridge regression of the training windows, its decoder to zero.

    Returns the map, whose penalties the validation windows chose.
    """
    assert model.direct is not None
    for weight in model.head.decoder.parameters():
        nn.init.zeros_(weight)
    moments = _moments(model, data.train)
    marked = len(moments[2]) > 0
    pairs = list(itertools.product(PENALTIES, MARK_PENALTIES if marked else (0.0,)))
    maps = [_solve(moments, p, q) for p, q in pairs]
    errors = _errors(model, data.val, maps)
    best = errors.index(min(errors))
    W, U = maps[best]
    model.direct.set(W, U if marked else None)
    return Fit(W, U if marked else None, pairs[best], errors[best])


def _solve(moments: list[Tensor], p: float, q: float) -> tuple[Tensor, Tensor]:
    """W (context, horizon) and U (k, horizon, columns)."""
    G, R, M, X, Y = moments
    K = torch.linalg.inv(M + q * torch.eye(len(M)).to(M))
    KX, KY = K @ X, K @ Y
    G = G + p * torch.eye(len(G)).to(G) - (X.mT @ KX).mean(0)
    W = torch.linalg.solve(G, R - (X.mT @ KY).mean(0))
    return W, (KY - KX @ W).permute(1, 2, 0)


def _read(model: SequenceModel, source: Source) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | float]]:
    """Batches as the direct path reads them: r (batch, columns, context), m (batch, k), y (batch, columns, horizon)
    normalised like r, and the scale of the normalisation (batch, columns, 1)."""
    path = model.direct
    assert path is not None
    for batch in EvalBatches(source, WINDOWS):
        x, centre, scale = model.scale(batch.x)
        recent, now = path.read(x, batch.marks, None)
        y, d = batch.y, path.d_output
        if centre is not None:
            y = y - centre[..., -d:]
        if scale is not None:
            y = y / scale[..., -d:]
        m = recent.new_zeros(len(recent), 0) if now is None else now
        yield recent.mT, m, y.mT, 1.0 if scale is None else scale[..., -d:].mT


def _moments(model: SequenceModel, source: Source) -> list[Tensor]:
    """Means over windows, as above, in float64: G (context, context), R (context, horizon), M (k, k),
    X (columns, k, context), Y (columns, k, horizon)."""
    sums: list[Tensor] = []
    for r, m, y, _ in _read(model, source):
        r, m, y = exact(r), exact(m), exact(y)
        flat = r.flatten(0, 1)  # every column is one more window
        new = [flat.mT @ flat / r.shape[1], flat.mT @ y.flatten(0, 1) / r.shape[1], m.mT @ m,
               torch.einsum("bk,bcs->cks", m, r), torch.einsum("bk,bch->ckh", m, y)]  # fmt: skip
        sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
    return [total / len(source) for total in sums]


def _errors(model: SequenceModel, source: Source, maps: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Mean squared errors of several maps over a split."""
    device = next(model.parameters()).device
    single = [(W.float().to(device), U.float().to(device)) for W, U in maps]
    sums = maps[0][0].new_zeros(len(maps))  # one transfer at the end, so that a GPU never waits
    count = 0
    for r, m, y, scale in _read(model, source):
        for number, (W, U) in enumerate(single):
            error = (r @ W + torch.einsum("bk,khc->bch", m, U) - y) * scale
            sums[number] += exact(error.square()).sum()
        count += y.numel()
    return (sums / count).tolist()
