"""Ridge regression in closed form, its penalty and its blocks of features chosen by leave-one-out.

The head of state features. Leave-one-out is exact: with H the hat matrix, residual i without case i is
e_i / (1 − H_ii). `fit_ridge` takes all features at once; `RidgeSums` adds up blocks of cases, also those of several
machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-6, 7))
"""Tried penalties, as multiples of the mean of the kernel's diagonal."""
EXACT = 1500
"""Cases up to which all are left out once; of more, a sample of this size chooses blocks and penalty."""
UNKNOWN = 0.01
"""Penalty where no case can be left out, as such a multiple."""
GAIN = 0.01
"""Part of the leave-one-out error by which a change of the blocks must lower it."""


@dataclass
class Ridge:
    """A fitted ridge. Features are standardised, chosen blocks weighted equally.

    Attributes:
        mean, scale: (features,), of the training features; unused features have scale inf.
        coef: (features, outputs); intercept: (outputs,).
        penalty: chosen multiple of the identity beside the kernel.
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

    def contributions(self, features: Tensor, output: int) -> Tensor:
        """What each feature adds to an output (cases, features); their sum and the intercept are the prediction."""
        return (features - self.mean) / self.scale * self.coef[:, output]


class Blocks(NamedTuple):
    """Columns of each block of features, the blocks to start from, and those that may be added or left out."""

    columns: dict[str, slice]
    start: tuple[str, ...]
    optional: tuple[str, ...] = ()


def fit_ridge(
    features: Tensor, targets: Tensor, blocks: Blocks, weights: Tensor | None = None, scored: Tensor | None = None
) -> Ridge:
    """Fit in closed form.

    Args:
        features: (cases, features) float32.
        targets: (cases, outputs).
        blocks: the blocks of features; which of them are used is chosen by leave-one-out.
        weights: (cases,) positive weights of the cases, or None.
        scored: (cases,) bool, cases whose leave-one-out errors count; None: all. The only case of a class says nothing.
    """
    n = len(features)
    w = torch.ones(n, device=features.device) if weights is None else weights.to(features) / weights.mean()
    mean = (w @ features) / n
    z = features - mean
    scale = _usable(((w @ z**2) / n).sqrt(), mean)
    root = w.sqrt()[:, None]
    z *= root / scale  # centred under the weights
    level = (w @ targets.float()) / n
    y = (targets - level).double() * root
    sample = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:EXACT].sort().values.to(features.device)
    scored = torch.ones(n, dtype=torch.bool) if scored is None else scored
    names, penalty = _choose(z[sample], y[sample], root[sample], blocks, scored.to(sample.device)[sample])
    v, widths = _weighted(z, names, blocks)
    coef, residual, penalty = _solve(v, y, penalty, sample, (root[sample] ** 2 / n)[:, 0])
    full = torch.zeros(features.shape[1], y.shape[1], device=features.device)
    for name, rows in zip(names, coef.float().split([_size(blocks.columns[name]) for name in names]), strict=True):
        full[blocks.columns[name]] = rows / widths[name]
    left_out = (targets[sample] - residual / root[sample]).float()
    error = float(residual.square().mean())
    return Ridge(mean, scale, full, level, penalty, names, left_out, sample, error)


def _usable(scale: Tensor, mean: Tensor) -> Tensor:
    """Deviations, inf for features that do not vary."""
    return torch.where(scale > 1e-6 * (1 + mean.abs()), scale, torch.inf)


def _size(columns: slice) -> int:
    return columns.stop - columns.start


def _width(z: Tensor) -> float:
    """Root of the number of features of a block that vary: divided by it, each block has a kernel of unit size."""
    return max(1.0, float((z.abs().amax(0) > 0).sum())) ** 0.5


def _weighted(z: Tensor, names: Sequence[str], blocks: Blocks) -> tuple[Tensor, dict[str, float]]:
    """The chosen blocks side by side, divided by their widths."""
    widths = {name: _width(z[:, blocks.columns[name]]) for name in names}
    return torch.cat([z[:, blocks.columns[name]] / widths[name] for name in names], dim=1), widths


def _choose(z: Tensor, y: Tensor, root: Tensor, blocks: Blocks, scored: Tensor) -> tuple[tuple[str, ...], float]:
    """Blocks and penalty by leave-one-out, for features (n, p), targets (n, outputs), roots of the weights (n, 1).

    A block is added or left out, the best change first, as long as the error of the cases `scored` falls by `GAIN`.
    Without such cases: the blocks that are not optional, and `UNKNOWN`.
    """
    known = {*blocks.start, *blocks.optional}
    kernels = {name: _kernel(z[:, columns]) for name, columns in blocks.columns.items() if name in known}
    mean_part = (root**2 / root.square().sum())[:, 0]  # the unpenalised intercept's part of the hat matrix

    def kernel(names: tuple[str, ...]) -> Tensor:
        return torch.stack([kernels[name] for name in names]).sum(0)

    def changed(names: tuple[str, ...], name: str) -> tuple[str, ...]:
        return tuple(n for n in names if n != name) if name in names else (*names, name)

    chosen = tuple(blocks.start)
    if not bool(scored.any()):
        chosen = tuple(name for name in chosen if name not in blocks.optional) or chosen
        return chosen, UNKNOWN * (float(kernel(chosen).diagonal().mean()) or 1.0)
    factor, penalty = _best_penalty(kernel(chosen), y, mean_part, scored)
    if not blocks.optional:
        return chosen, penalty
    error = _error(kernel(chosen), y, factor, mean_part, scored)
    while options := [option for name in blocks.optional if (option := changed(chosen, name))]:
        errors = [_error(kernel(option), y, factor, mean_part, scored) for option in options]
        if min(errors) > (1 - GAIN) * error:
            break
        error, chosen = min(zip(errors, options, strict=True))
    return chosen, penalty if chosen == blocks.start else _best_penalty(kernel(chosen), y, mean_part, scored)[1]


def _kernel(z: Tensor) -> Tensor:
    return (z @ z.T).double() / _width(z) ** 2


def _best_penalty(K: Tensor, y: Tensor, mean_part: Tensor, scored: Tensor) -> tuple[float, float]:
    """The penalty of least leave-one-out error: as a multiple of the kernel's mean diagonal, and itself."""
    values, vectors = torch.linalg.eigh(K)
    values = values.clamp_min(0)
    unit = float(values.mean()) or 1.0
    projected, squares = vectors.T @ y, vectors**2
    errors = []
    for factor in PENALTIES:
        inverse = factor * unit / (values + factor * unit)
        rest = squares @ inverse - mean_part  # 1 − H_ii
        residual = (vectors @ (inverse[:, None] * projected)) / _positive(rest)
        errors.append(float(residual[scored].square().mean()))
    factor = PENALTIES[errors.index(min(errors))]
    return factor, factor * unit


def _error(K: Tensor, y: Tensor, factor: float, mean_part: Tensor, scored: Tensor) -> float:
    """Mean squared leave-one-out error for one penalty."""
    penalty = factor * (float(K.diagonal().mean()) or 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(_ridged(K.clone(), penalty)))
    rest = penalty * inverse.diagonal() - mean_part
    return float((penalty * (inverse @ y) / _positive(rest))[scored].square().mean())


def _ridged(K: Tensor, penalty: float) -> Tensor:
    K.diagonal().add_(penalty)
    return K


def _positive(rest: Tensor) -> Tensor:
    return rest.clamp_min(1e-6)[:, None]


def _solve(v: Tensor, y: Tensor, penalty: float, sample: Tensor, mean_part: Tensor) -> tuple[Tensor, Tensor, float]:
    """Coefficients, leave-one-out residuals of the sample, penalty.

    In the smaller of the two forms; where the sample is not everything, the penalty follows the error of the whole fit
    up or down.
    """
    n, p = v.shape
    if n <= p:
        G = v @ v.T
        G = G.double() if n <= EXACT else G
        rhs = y.to(G)
    else:
        G, rhs = v.T @ v, v.T @ y.to(v)

    def at(penalty: float) -> tuple[float, float, Tensor, Tensor]:
        L = torch.linalg.cholesky(_ridged(G.clone(), penalty))
        solved = torch.cholesky_solve(rhs, L)
        if n <= p:
            unit = torch.zeros(n, len(sample), dtype=L.dtype, device=L.device)
            unit[sample, torch.arange(len(sample), device=L.device)] = 1
            rest = penalty * torch.linalg.solve_triangular(L, unit, upper=False).square().sum(0)
            residual = penalty * solved[sample]
        else:
            rest = 1 - torch.linalg.solve_triangular(L, v[sample].T, upper=False).square().sum(0)
            residual = y[sample] - v[sample] @ solved
        residual = (residual / _positive(rest - mean_part)).double()
        return float(residual.square().mean()), penalty, solved, residual

    best = at(penalty)
    for step in (10**0.5, 10**-0.5) if len(sample) < n else ():
        first = best[1]
        while (other := at(best[1] * step))[0] < best[0]:
            best = other
        if best[1] != first:
            break
    _, penalty, solved, residual = best
    return v.T @ solved.float() if n <= p else solved, residual, penalty


@dataclass
class RidgeSums:
    """Sums over cases from which a ridge follows: blocks of cases, one after the other or on several machines.

    Features enter as (f − shift) / unit, with shift and unit from the first block, so that float32 sums stay exact
    enough. A random sample of the cases is kept for choosing blocks and penalty and for leave-one-out scores; the fit
    itself uses all cases. Memory: features² numbers, whatever the number of cases.

    Attributes:
        shift, unit: (features,).
        weight: sum of the weights.
        f, y: (features,) and (outputs,), sums. ff, fy: (features, features) and (features, outputs), products.
        kept: features, targets, weights and random ranks of the sample.
    """

    shift: Tensor
    unit: Tensor
    weight: float
    f: Tensor
    y: Tensor
    ff: Tensor
    fy: Tensor
    kept: tuple[Tensor, Tensor, Tensor, Tensor]
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0), repr=False)

    @classmethod
    def empty(cls, features: Tensor, outputs: int) -> RidgeSums:
        """Sums over no case yet, for features like these (cases, features)."""
        p, new = features.shape[1], features.new_zeros
        unit = features.std(0, correction=0)
        unit = torch.where(unit > 0, unit, 1.0)
        kept = (new(0, p), new(0, outputs), new(0), new(0))
        return cls(features.mean(0), unit, 0.0, new(p), new(outputs), new(p, p), new(p, outputs), kept)

    def cleared(self) -> RidgeSums:
        """Sums over no case that can be added to these; their sample is drawn from another seed."""
        kept = (self.kept[0][:0], self.kept[1][:0], self.kept[2][:0], self.kept[3][:0])
        zeros = {name: torch.zeros_like(getattr(self, name)) for name in ("f", "y", "ff", "fy")}
        seed = int(torch.randint(2**31, (), generator=self.generator))
        return replace(self, weight=0.0, kept=kept, generator=torch.Generator().manual_seed(seed), **zeros)

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add cases: features (cases, features), targets (cases, outputs), weights (cases,) or None."""
        w = torch.ones(len(features), device=features.device) if weights is None else weights.to(features)
        z = (features - self.shift) / self.unit
        weighted = z * w[:, None]
        self.weight += float(w.sum())
        self.f += weighted.sum(0)
        self.y += w @ targets
        self.ff.addmm_(weighted.T, z)
        self.fy.addmm_(weighted.T, targets)
        rank = torch.rand(len(features), generator=self.generator).to(features)
        self._keep((features, targets, w, rank))

    def _keep(self, more: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        """Of the sample and more cases, those of lowest rank."""
        joined = [torch.cat(pair) for pair in zip(self.kept, more, strict=True)]
        low = joined[3].argsort()[:EXACT]
        self.kept = (joined[0][low], joined[1][low], joined[2][low], joined[3][low])

    def __add__(self, other: RidgeSums) -> RidgeSums:
        """The sums over the cases of both, which must have the same shift and unit."""
        if not (torch.equal(self.shift, other.shift) and torch.equal(self.unit, other.unit)):
            raise ValueError("these sums are of different features; start both from one fitted bank.")
        made = replace(
            self, weight=self.weight + other.weight, f=self.f + other.f, y=self.y + other.y, ff=self.ff + other.ff,
            fy=self.fy + other.fy,
        )  # fmt: skip
        made._keep(other.kept)
        return made

    def solve(self, blocks: Blocks, scored: Tensor | None = None) -> Ridge:
        """The ridge of all cases so far; `scored` as in `fit_ridge`, of the cases `kept`."""
        if self.weight <= 0:
            raise ValueError("no case was added yet.")
        features, targets, w, _ = self.kept
        chosen = fit_ridge(features, targets, blocks, w, scored)
        W = self.weight
        centre, level = self.f / W, self.y / W
        cover = (self.ff.diagonal() / W - centre**2).clamp_min(0).sqrt()
        scale = _usable(cover, centre.abs())  # in units
        columns = torch.cat([torch.arange(s.start, s.stop) for s in (blocks.columns[name] for name in chosen.chosen)])
        columns = columns.to(self.f.device)
        size = torch.cat([
            scale.new_full((_size(part),), max(1.0, float(torch.isfinite(scale[part]).sum())) ** 0.5)
            for part in (blocks.columns[name] for name in chosen.chosen)
        ])  # fmt: skip
        per = scale[columns] * size
        G = (self.ff[columns][:, columns] - W * torch.outer(centre[columns], centre[columns])) / torch.outer(per, per)
        rhs = (self.fy[columns] - W * torch.outer(centre[columns], level)) / per[:, None]
        w_mean = W / max(1, round(W)) if len(w) == 0 else float(w.mean())
        L = torch.linalg.cholesky(_ridged(G, chosen.penalty * w_mean))
        solved = torch.cholesky_solve(rhs, L)
        v = ((features - self.shift) / self.unit - centre)[:, columns] / per
        rest = 1 - w * torch.linalg.solve_triangular(L, v.T, upper=False).square().sum(0) - w / W
        residual = (targets - level - v @ solved) / _positive(rest)
        coef = torch.zeros(len(self.f), self.fy.shape[1], device=self.f.device)
        coef[columns] = solved / size[:, None]
        return Ridge(
            self.shift + centre * self.unit, scale * self.unit, coef, level, chosen.penalty, chosen.chosen,
            targets - residual, torch.arange(len(targets)), float(residual.square().mean()),
        )  # fmt: skip
