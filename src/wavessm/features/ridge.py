"""Ridge regression in closed form, its penalty and its blocks of features chosen by leave-one-out.

The head of state features. Leave-one-out is exact: with H the hat matrix, residual i without case i is
e_i / (1 − H_ii). `fit_ridge` takes all features at once; `RidgeSums` adds up blocks of cases, also those of several
machines; `calibrate` makes logits of the scores, by what each case got without itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import DataError

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-6, 7))
"""Tried penalties, as multiples of the mean of the kernel's diagonal."""
EXACT = 1500  # cases up to which all are left out once; of more, a sample of this size chooses blocks and penalty
UNKNOWN = 0.01  # penalty where no case can be left out, as such a multiple
GAIN = 0.01  # part of the leave-one-out error by which a change of the blocks must lower it
PRIOR = 1e-2  # penalty on the logarithm of a calibration's slopes and on its offsets: few cases keep the curves plain


class Ridge(nn.Module):
    """A fitted ridge. Features are standardised, chosen blocks weighted equally.

    It keeps the chosen penalty, a multiple of the identity beside the kernel, the names of the chosen blocks, the mean
    squared leave-one-out error, and `left_out`, (cases, outputs) predicted without each case of `sample`.
    """

    mean: Tensor  # (features,)
    scale: Tensor  # (features,) inf where a feature is not used
    coef: Tensor  # (features, outputs)
    intercept: Tensor  # (outputs,)

    def __init__(
        self, mean: Tensor, scale: Tensor, coef: Tensor, intercept: Tensor, penalty: float, chosen: tuple[str, ...],
        error: float, left_out: Tensor | None = None, sample: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("mean", mean), ("scale", scale), ("coef", coef), ("intercept", intercept)):
            self.register_buffer(name, value)
        self.penalty, self.chosen, self.error, self.left_out, self.sample = penalty, chosen, error, left_out, sample

    def forward(self, features: Tensor) -> Tensor:
        """Outputs (cases, outputs) of features (cases, features)."""
        return ((features - self.mean) / self.scale) @ self.coef + self.intercept


class Blocks(NamedTuple):
    """Columns of each block of features, the blocks to start from, and those that may be added or left out."""

    columns: dict[str, slice]
    start: tuple[str, ...]
    optional: tuple[str, ...] = ()


def fit_ridge(
    features: Tensor, targets: Tensor, blocks: Blocks, weights: Tensor | None = None, scored: Tensor | None = None
) -> Ridge:
    """Fit features (cases, features) to targets (cases, outputs); leave-one-out chooses the blocks that are used.

    weights: (cases,) above 0; scored: (cases,) bool, cases whose errors count: the only case of a class says nothing.
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
    parts = [blocks.columns[name] for name in names]
    widths = [_width(z[:, part]) for part in parts]
    v = torch.cat([z[:, part] / width for part, width in zip(parts, widths, strict=True)], dim=1)
    coef, residual, penalty = _solve(v, y, penalty, sample, (root[sample] ** 2 / n)[:, 0])
    full = torch.zeros(features.shape[1], y.shape[1], device=features.device)
    for part, width in zip(parts, widths, strict=True):
        rows, coef = coef.float().tensor_split([part.stop - part.start])
        full[part] = rows / width
    left_out = (targets[sample] - residual / root[sample]).float()
    return Ridge(mean, scale, full, level, penalty, names, float(residual.square().mean()), left_out, sample)


def side_by_side(ridges: Sequence[Ridge]) -> Ridge:
    """The ridges of several outputs, each fitted with its own weights, as one."""
    mean, scale = ridges[0].mean, torch.stack([ridge.scale for ridge in ridges]).amin(0)
    coef = [ridge.coef * (scale / ridge.scale).nan_to_num(0.0)[:, None] for ridge in ridges]
    level = [ridge.intercept + ((mean - ridge.mean) / ridge.scale) @ ridge.coef for ridge in ridges]
    penalty, error = (sum(values) / len(ridges) for values in zip(*((r.penalty, r.error) for r in ridges), strict=True))
    chosen = tuple(dict.fromkeys(name for ridge in ridges for name in ridge.chosen))
    return Ridge(mean, scale, torch.cat(coef, dim=1), torch.cat(level), penalty, chosen, error)


def _usable(scale: Tensor, mean: Tensor) -> Tensor:
    """Deviations, inf for features that do not vary."""
    return torch.where(scale > 1e-6 * (1 + mean.abs()), scale, torch.inf)


def _width(z: Tensor) -> float:
    """Root of the number of features of a block that vary: divided by it, each block has a kernel of unit size."""
    return max(1.0, float((z.abs().amax(0) > 0).sum())) ** 0.5


def _choose(z: Tensor, y: Tensor, root: Tensor, blocks: Blocks, scored: Tensor) -> tuple[tuple[str, ...], float]:
    """Blocks and penalty by leave-one-out, for features (n, p), targets (n, outputs), roots of the weights (n, 1).

    A block is added or left out, the best change first, as long as the error of the cases `scored` falls by `GAIN`.
    Without such cases: the blocks that are not optional, and `UNKNOWN`.
    """
    known = {*blocks.start, *blocks.optional}
    each = {name: z[:, columns] for name, columns in blocks.columns.items() if name in known}
    kernels = {name: (part @ part.T).double() / _width(part) ** 2 for name, part in each.items()}
    mean_part = (root**2 / root.square().sum())[:, 0]  # the unpenalised intercept's part of the hat matrix

    def kernel(names: tuple[str, ...]) -> Tensor:
        return torch.stack([kernels[name] for name in names]).sum(0)

    chosen = blocks.start
    if not bool(scored.any()):
        chosen = tuple(name for name in chosen if name not in blocks.optional) or chosen
        return chosen, UNKNOWN * (float(kernel(chosen).diagonal().mean()) or 1.0)
    factor, penalty = _best_penalty(kernel(chosen), y, mean_part, scored)
    error = _error(kernel(chosen), y, factor, mean_part, scored) if blocks.optional else 0.0
    while True:
        left = [tuple(n for n in chosen if n != name) for name in blocks.optional if name in chosen]
        options = [one for one in left if one] + [(*chosen, name) for name in blocks.optional if name not in chosen]
        errors = [_error(kernel(option), y, factor, mean_part, scored) for option in options]
        if not options or min(errors) > (1 - GAIN) * error:
            break
        error, chosen = min(zip(errors, options, strict=True))
    return chosen, penalty if chosen == blocks.start else _best_penalty(kernel(chosen), y, mean_part, scored)[1]


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

    Features enter as z = (f − shift) / unit, with shift and unit (features,) from the first block, so that float32 sums
    stay exact enough. A random sample of the cases is kept for choosing blocks and penalty and for leave-one-out
    scores; the fit itself uses all cases. Memory: features² numbers, whatever the number of cases.
    """

    shift: Tensor
    unit: Tensor
    products: Tensor  # Σ w a aᵀ over all cases, with a = (z, targets, 1)
    kept: Tensor  # (cases, …): features, targets, weight and random rank of the sample
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0), repr=False)

    @classmethod
    def empty(cls, features: Tensor, outputs: int) -> RidgeSums:
        """Sums over no case yet, for features like these (cases, features)."""
        unit, size = features.std(0, correction=0), features.shape[1] + outputs + 1
        made = features.new_zeros(size, size), features.new_zeros(0, size + 1)
        return cls(features.mean(0), torch.where(unit > 0, unit, 1.0), *made)

    def cleared(self) -> RidgeSums:
        """Sums over no case that can be added to these; their sample is drawn from another seed."""
        seed = int(torch.randint(2**31, (), generator=self.generator))
        generator = torch.Generator().manual_seed(seed)
        return replace(self, products=torch.zeros_like(self.products), kept=self.kept[:0], generator=generator)

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add cases: features (cases, features), targets (cases, outputs), weights (cases,) or None."""
        one = features.new_ones(len(features), 1)
        w = one if weights is None else weights.to(features)[:, None]
        a = torch.cat([(features - self.shift) / self.unit, targets, one], dim=1)
        self.products.addmm_((a * w).T, a)
        rank = torch.rand(len(features), generator=self.generator).to(features)
        self._keep(torch.cat([features, targets, w, rank[:, None]], dim=1))

    def _keep(self, more: Tensor) -> None:
        """Of the sample and more cases, those of lowest rank."""
        joined = torch.cat([self.kept, more])
        self.kept = joined[joined[:, -1].argsort()[:EXACT]]

    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features, targets and weights of the sample."""
        p = len(self.shift)
        return self.kept[:, :p], self.kept[:, p:-2], self.kept[:, -2]

    def __add__(self, other: RidgeSums) -> RidgeSums:
        """The sums over the cases of both, which must have the same shift and unit."""
        if not (torch.equal(self.shift, other.shift) and torch.equal(self.unit, other.unit)):
            raise DataError("merge: these sums are of different features; start both from one fitted bank.")
        made = replace(self, products=self.products + other.products)
        made._keep(other.kept)
        return made

    def solve(self, blocks: Blocks, scored: Tensor | None = None) -> Ridge:
        """The ridge of all cases so far; `scored` as in `fit_ridge`, of the cases of `sample`."""
        features, targets, w = self.sample()
        p, W = len(self.shift), float(self.products[-1, -1])
        if W <= 0:
            raise DataError("no case was added yet; call partial_fit first.")
        chosen = fit_ridge(features, targets, blocks, w, scored)
        means = self.products[-1] / W
        centre, level = means[:p], means[p:-1]
        scale = _usable((self.products.diagonal()[:p] / W - centre**2).clamp_min(0).sqrt(), centre.abs())  # in units
        parts = [blocks.columns[name] for name in chosen.chosen]
        columns = torch.cat([torch.arange(part.start, part.stop, device=scale.device) for part in parts])
        counts = [max(1.0, float(scale[part].isfinite().sum())) ** 0.5 for part in parts]
        size = torch.cat([scale.new_full((part.stop - part.start,), n) for part, n in zip(parts, counts, strict=True)])
        per, near = scale[columns] * size, centre[columns]
        G = (self.products[columns][:, columns] - W * torch.outer(near, near)) / torch.outer(per, per)
        rhs = (self.products[columns][:, p:-1] - W * torch.outer(near, level)) / per[:, None]
        L = torch.linalg.cholesky(_ridged(G, chosen.penalty * float(w.mean())))
        solved = torch.cholesky_solve(rhs, L)
        v = ((features - self.shift) / self.unit - centre)[:, columns] / per
        rest = 1 - w * torch.linalg.solve_triangular(L, v.T, upper=False).square().sum(0) - w / W
        residual = (targets - level - v @ solved) / _positive(rest)
        coef = torch.zeros(p, targets.shape[1], device=scale.device)
        coef[columns] = solved / size[:, None]
        mean, error = self.shift + centre * self.unit, float(residual.square().mean())
        found = targets - residual, torch.arange(len(targets))
        return Ridge(mean, scale * self.unit, coef, level, chosen.penalty, chosen.chosen, error, *found)


def with_quantiles(ridge: Ridge, targets: Tensor, levels: Sequence[float], weights: Tensor | None = None) -> Ridge:
    """The ridge of numbers with an output for each quantile of each of them: outputs y0 at all levels, y1 at all …

    A quantile is the prediction plus that quantile of the residuals that each case had without itself (conformal: of
    n + 1 cases the new one may be anywhere). They never cross. Targets (cases, numbers) and weights (cases,) are those
    of the fit.
    """
    assert ridge.left_out is not None
    residual = targets.to(ridge.left_out)[ridge.sample] - ridge.left_out
    n = len(residual)
    w = residual.new_ones(n) if weights is None else weights.to(residual)[ridge.sample]
    value, order = residual.sort(0)
    share = w.double()[order].cumsum(0) / w.double().sum() * n / (n + 1)  # i / (n + 1) without weights
    offsets = []
    for level in levels:  # outwards to the next residual
        above = (share < level - 1e-9).sum(0) if level >= 0.5 else (share <= level + 1e-9).sum(0) - 1
        offsets.append(value.gather(0, above.clamp(0, n - 1)[None])[0])
    coef = ridge.coef.repeat_interleave(len(levels), 1)
    level_ = ridge.intercept.repeat_interleave(len(levels)) + torch.stack(offsets, dim=1).flatten()
    return Ridge(ridge.mean, ridge.scale, coef, level_, ridge.penalty, ridge.chosen, ridge.error)


def calibrate(ridge: Ridge, kind: str, targets: Tensor, weights: Tensor | None = None) -> Ridge:
    """The ridge, its outputs made logits by slopes and offsets of maximum likelihood on what each case got without it.

    "multiclass" has one slope for all classes, "multilabel" one for each label, "regression" none. The targets (cases,
    outputs) and weights (cases,) are those of the fit; the ridge is changed in place.
    """
    if kind == "regression" or ridge.left_out is None or ridge.sample is None:
        return ridge
    scores, sample = ridge.left_out.double(), ridge.sample
    ones = (targets[sample.to(targets.device)] > 0).to(scores)
    w = torch.ones(len(scores)) if weights is None else weights[sample.to(weights.device)]
    w, outputs = w.to(scores.device), scores.shape[1]
    slope = scores.new_ones(outputs if kind == "multilabel" else ()).requires_grad_()  # its logarithm, above 1
    offset = scores.new_zeros(outputs).requires_grad_()
    optimiser = torch.optim.LBFGS([slope, offset], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = scores * slope.exp() + offset
        if kind == "multiclass":
            each = F.cross_entropy(logits, ones.argmax(1), reduction="none")
        else:
            each = F.binary_cross_entropy_with_logits(logits, ones, reduction="none").mean(1)
        value = (w * each).sum() / w.sum()
        value = value + PRIOR * ((slope - 1.0).square().mean() + offset.square().mean())
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    slope, offset = slope.detach().exp().float(), offset.detach().float()
    ridge.coef, ridge.intercept = ridge.coef * slope, ridge.intercept * slope + offset
    return ridge
