"""Ridge regression in closed form, its penalty and its blocks of features chosen by leave-one-out.

The head of `StateBank` features. Leave-one-out is exact: with H the hat matrix, residual i without case i is
e_i / (1 − H_ii); one eigendecomposition serves all penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-6, 7))
"""Tried penalties, as multiples of the mean of the kernel's diagonal."""
EXACT = 3000
"""Cases up to which leave-one-out is exact; of more, a sample of this size chooses."""


@dataclass
class Ridge:
    """A fitted ridge. Features are standardised, chosen blocks weighted equally.

    Attributes:
        mean, scale: (features,), of the training features; unused features have scale inf.
        coef: (features, outputs); intercept: (outputs,).
        penalty: chosen multiple of the kernel's mean diagonal.
        chosen: names of the blocks.
        left_out: (cases, outputs), predictions of each case without it, of the cases `sample`.
        error: mean squared leave-one-out error.
    """

    mean: Tensor
    scale: Tensor
    coef: Tensor
    intercept: Tensor
    penalty: float
    chosen: tuple[str, ...]
    left_out: Tensor
    sample: Tensor
    error: float

    def predict(self, features: Tensor) -> Tensor:
        """Outputs (cases, outputs) of features (cases, features)."""
        return ((features - self.mean) / self.scale) @ self.coef + self.intercept


def fit_ridge(
    features: Tensor,
    targets: Tensor,
    blocks: dict[str, slice],
    choices: Sequence[tuple[str, ...]],
    weights: Tensor | None = None,
) -> Ridge:
    """Fit in closed form.

    Args:
        features: (cases, features) float32.
        targets: (cases, outputs).
        blocks: columns of each block of features.
        choices: sets of blocks to choose from by leave-one-out.
        weights: (cases,) positive weights of the cases, or None.
    """
    n = len(features)
    w = torch.ones(n, device=features.device) if weights is None else weights.to(features) / weights.mean()
    mean = (w[:, None] * features).sum(0) / n
    scale = ((w[:, None] * (features - mean) ** 2).sum(0) / n).sqrt()
    scale = torch.where(scale > 1e-6 * (1 + mean.abs()), scale, torch.inf)
    root = w.sqrt()[:, None]
    z = (features - mean) / scale * root  # centred under the weights
    level = (w[:, None] * targets).sum(0) / n
    y = ((targets - level) * root).double()
    sample = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:EXACT].sort().values.to(features.device)
    kernels = {name: _kernel(z[sample][:, columns]) for name, columns in blocks.items()}
    fits = [
        _leave_one_out(torch.stack([kernels[k] for k in names]).sum(0), y[sample], root[sample]) for names in choices
    ]
    best = min(range(len(fits)), key=lambda at: fits[at].error)
    fit, names = fits[best], choices[best]
    parts = {name: z[:, blocks[name]] / _width(z[:, blocks[name]]) ** 0.5 for name in names}
    solved = _solve(torch.cat(list(parts.values()), dim=1), y.float(), fit.penalty)
    coef = torch.zeros(features.shape[1], y.shape[1], device=features.device)
    for name, rows in zip(names, solved.split([part.shape[1] for part in parts.values()]), strict=True):
        coef[blocks[name]] = rows / _width(z[:, blocks[name]]) ** 0.5
    left_out = targets[sample] - fit.residual / root[sample]
    return Ridge(mean, scale, coef, level.float(), fit.penalty, tuple(names), left_out, sample, fit.error)


class _Fit(NamedTuple):
    """The best penalty for a kernel, its mean squared leave-one-out error, and the residuals without each case."""

    error: float
    penalty: float
    residual: Tensor


def _width(z: Tensor) -> float:
    """Number of features of a block that vary, by which its kernel is divided."""
    return max(1.0, float((z.abs().amax(0) > 0).sum()))


def _kernel(z: Tensor) -> Tensor:
    return (z @ z.T).double() / _width(z)


def _leave_one_out(K: Tensor, y: Tensor, root: Tensor) -> _Fit:
    """The penalty of least error, for a kernel (n, n), targets (n, outputs) and roots of the weights (n, 1)."""
    values, vectors = torch.linalg.eigh(K)
    values = values.clamp_min(0)
    unit = float(values.mean()) or 1.0
    projected = vectors.T @ y
    mean_part = (root**2 / root.square().sum())[:, 0]  # the unpenalised intercept's part of the hat matrix
    fits = []
    for penalty in (factor * unit for factor in PENALTIES):
        inverse = penalty / (values + penalty)
        rest = vectors**2 @ inverse - mean_part  # 1 − H_ii
        residual = (vectors * inverse) @ projected / rest.clamp_min(1e-12)[:, None]
        fits.append(_Fit(float(residual.square().mean()), penalty, residual))
    return min(fits, key=lambda fit: fit.error)


def _solve(z: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Ridge coefficients in the smaller of the two forms."""
    n, p = z.shape
    if n <= p:
        K = z @ z.T
        K.diagonal().add_(penalty)
        return z.T @ torch.cholesky_solve(y, torch.linalg.cholesky(K))
    G = z.T @ z
    G.diagonal().add_(penalty)
    return torch.cholesky_solve(z.T @ y, torch.linalg.cholesky(G))
