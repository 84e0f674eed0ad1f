"""Ridge regression in closed form, its penalty and the weights of its blocks of features chosen by leave-one-out.

The head of state features. Leave-one-out is exact: with H the hat matrix, residual i without case i is
e_i / (1 − H_ii). `fit_ridge` takes all features at once; `RidgeSums` adds up blocks of cases, also those of several
machines; `calibrate` makes logits of the scores, by what each case got without itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import DataError

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Penalties from the best of which the search starts, as multiples of the mean of the kernel's diagonal."""
PANEL = 2048  # columns of sums that are added at once, from the diagonal on: the rest is their mirror image
EXACT = 1500  # cases up to which all are left out once; of more, a sample of this size
WEIGHED = 500  # cases whose leave-one-out error chooses the weights of the blocks
STEPS = 10  # steps of that search
MINOR = -2.0  # logarithm of the weight from which a minor block starts; the others start from 0
SPREAD = 40.0  # how closely few cases keep the weights to where they start: this over the square of their number
REACH = 4.0  # of the logarithms of weights and penalty from where they start
FLOOR = 1e-4  # least penalty, as a multiple of the mean of the diagonal of the weighted kernel
FLAT = 0.1  # least deviation of a feature, as a multiple of the median of its block
UNKNOWN = 0.01  # penalty where no case can be left out, as such a multiple
PRIOR = 1e-2  # penalty on the logarithm of a calibration's slopes and on its offsets: few cases keep the curves plain


class Ridge(nn.Module):
    """A fitted ridge on standardised features.

    It keeps the penalty, a multiple of the identity beside the kernel, the weight of each block in the kernel, the mean
    squared leave-one-out error, and `left_out`, (cases, outputs) predicted without each case of `sample`.
    """

    mean: Tensor  # (features,)
    scale: Tensor  # (features,) inf where a feature is not used
    coef: Tensor  # (features, outputs)
    intercept: Tensor  # (outputs,)
    weights: dict[str, float]

    def __init__(
        self, mean: Tensor, scale: Tensor, coef: Tensor, intercept: Tensor, penalty: float, weights: dict[str, float],
        error: float, left_out: Tensor | None = None, sample: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("mean", mean), ("scale", scale), ("coef", coef), ("intercept", intercept)):
            self.register_buffer(name, value)
        self.penalty, self.weights, self.error, self.left_out, self.sample = penalty, weights, error, left_out, sample

    def forward(self, features: Tensor) -> Tensor:
        """Outputs (cases, outputs) of features (cases, features)."""
        return ((features - self.mean) / self.scale) @ self.coef + self.intercept


def fit_ridge(
    features: Tensor, targets: Tensor, blocks: Mapping[str, slice] | None = None, minor: Collection[str] = (),
    weights: Tensor | None = None, scored: Tensor | None = None,
) -> Ridge:  # fmt: skip
    """Fit features (cases, features) to targets (cases, outputs).

    Args:
        features: (cases, features).
        targets: (cases, outputs).
        blocks: columns of each block of features; None: one block.
        minor: blocks that need a reason to count: their weights start low.
        weights: (cases,) above 0.
        scored: (cases,) bool, cases whose errors count: the only case of a class says nothing.
    """
    n = len(features)
    w = torch.ones(n, device=features.device) if weights is None else weights.to(features) / weights.mean()
    mean = (w @ features) / n
    z = features - mean
    scale = _usable(((w @ z**2) / n).sqrt(), mean, blocks)
    blocks = blocks or {"all": slice(0, len(scale))}
    root = w.sqrt()[:, None]
    z *= root / scale  # centred under the weights
    level = (w @ targets.float()) / n
    y = (targets - level).double() * root
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(features.device)
    sample, few = drawn[:EXACT].sort().values, drawn[:WEIGHED].sort().values
    counts = torch.ones(n, dtype=torch.bool) if scored is None else scored
    logs = _choose(z[few], y[few], root[few], blocks, minor, counts.to(few.device)[few])
    chosen, factor = _factors(logs, blocks, scale)
    z *= factor
    coef, residual, penalty = _solve(z, y, float(logs[-1].exp()), sample, (root[sample] ** 2 / n)[:, 0])
    left_out = (targets[sample] - residual / root[sample]).float()
    error = float(residual.square().mean())
    return Ridge(mean, scale, coef.float() * factor[:, None], level, penalty, chosen, error, left_out, sample)


def side_by_side(ridges: Sequence[Ridge]) -> Ridge:
    """The ridges of several outputs, each fitted with its own weights, as one; it has the weights of the first."""
    mean, scale = ridges[0].mean, torch.stack([ridge.scale for ridge in ridges]).amin(0)
    coef = [ridge.coef * (scale / ridge.scale).nan_to_num(0.0)[:, None] for ridge in ridges]
    level = [ridge.intercept + ((mean - ridge.mean) / ridge.scale) @ ridge.coef for ridge in ridges]
    penalty, error = (sum(values) / len(ridges) for values in zip(*((r.penalty, r.error) for r in ridges), strict=True))
    return Ridge(mean, scale, torch.cat(coef, dim=1), torch.cat(level), penalty, ridges[0].weights, error)


def _usable(scale: Tensor, mean: Tensor, blocks: Mapping[str, slice] | None) -> Tensor:
    """Deviations by which features are divided, inf for those that do not vary.

    A feature that hardly varies in training would carry a new case away: in a block it counts as `FLAT` of the others.
    """
    scale = torch.where(scale > 1e-6 * (1 + mean.abs()), scale, torch.inf)
    for part in (blocks or {}).values():
        varies = scale[part].isfinite()
        if bool(varies.any()):
            scale[part] = scale[part].clamp_min(FLAT * float(scale[part][varies].median()))
    return scale


def _factors(logs: Tensor, blocks: Mapping[str, slice], scale: Tensor) -> tuple[dict[str, float], Tensor]:
    """Weight of each block, and what its standardised features are multiplied with (features,): with weight 1, a block
    has a kernel of unit size.
    """
    chosen = dict(zip(blocks, logs[:-1].exp().tolist(), strict=True))
    factor = torch.zeros_like(scale)
    for name, part in blocks.items():
        factor[part] = (chosen[name] / max(1, int(scale[part].isfinite().sum()))) ** 0.5
    return chosen, factor


def _choose(
    z: Tensor, y: Tensor, root: Tensor, blocks: Mapping[str, slice], minor: Collection[str], scored: Tensor
) -> Tensor:
    """Logarithms of the weights of the blocks and of the penalty (blocks + 1,), by leave-one-out.

    For standardised features (n, p), targets (n, outputs) and roots of weights (n, 1). The logarithm of the error of
    the cases `scored` is minimised over all of them at once, with a pull towards the start that is the stronger the
    fewer cases there are. Without such cases: the start, and `UNKNOWN`.
    """
    kernels = torch.stack([(z[:, part] @ z[:, part].T).double() for part in blocks.values()])
    sizes = torch.tensor([max(1, int(z[:, part].any(0).sum())) for part in blocks.values()]).to(kernels)
    kernels /= sizes[:, None, None]
    mean_part = (root**2 / root.square().sum())[:, 0]  # the unpenalised intercept's part of the hat matrix
    kernels = _centred(kernels, mean_part) if len(y) < WEIGHED else kernels  # some of many cases have another mean
    start = kernels.new_tensor([MINOR if name in minor else 0.0 for name in blocks] + [0.0])
    size = float(torch.tensordot(start[:-1].exp(), kernels, 1).diagonal().mean()) or 1.0
    if not bool(scored.any()):
        start[-1] = UNKNOWN * size
        return torch.cat([start[:-1], start[-1:].log()])

    def ridged(logs: Tensor) -> tuple[Tensor, Tensor]:  # the kernel and its penalty
        K = torch.tensordot(logs[:-1].exp(), kernels, 1)
        return K, torch.maximum(logs[-1].exp(), FLOOR * K.diagonal().mean())

    def error(logs: Tensor) -> Tensor:
        K, penalty = ridged(logs)
        inverse = torch.linalg.inv(K + penalty * torch.eye(len(K)).to(K))
        rest = penalty * inverse.diagonal() - mean_part  # 1 − H_ii
        return (penalty * (inverse @ y) / rest.clamp_min(1e-6)[:, None])[scored].square().mean().clamp_min(1e-12).log()

    tried = [torch.cat([start[:-1], (start.new_tensor([factor]) * size).log()]) for factor in PENALTIES]
    start = min(tried, key=lambda logs: float(error(logs)))
    lowest, highest = start - REACH, start + REACH  # beyond, the kernel is singular and errors are rounding
    logs = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([logs], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = error(logs.clamp(lowest, highest)) + SPREAD / len(y) ** 2 * (logs - start).square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    logs = logs.detach().clamp(lowest, highest)
    return torch.cat([logs[:-1], ridged(logs)[1].log()[None]])


def _centred(K: Tensor, mean_part: Tensor) -> Tensor:
    """Kernels (…, n, n) without the direction of the intercept, where rounding would pass for 1 − H_ii."""
    u = mean_part.to(K).sqrt()[:, None]
    K = K - u @ (u.T @ K)
    return K - (K @ u) @ u.T


Fit = tuple[float, float, Tensor, Tensor]  # mean squared leave-one-out error, penalty, solution and residuals


def _descend(at: Callable[[float], Fit], penalty: float, lowest: float) -> Fit:
    """The fit to whose penalty the leave-one-out error falls from here, in steps up or down to the lowest."""
    best = at(max(penalty, lowest))
    for step in (10**0.5, 10**-0.5):
        first = best[1]
        while (other := at(max(best[1] * step, lowest)))[0] < best[0]:
            best = other
        if best[1] != first:
            break
    return best


def _lowest(G: Tensor, n: float) -> float:
    """Least penalty beside the products G of the features, or the kernel, of n cases: below, errors are rounding."""
    return float(G.trace()) / n * max(FLOOR, 4 * torch.finfo(G.dtype).eps * n)


def _solve(v: Tensor, y: Tensor, penalty: float, sample: Tensor, mean_part: Tensor) -> tuple[Tensor, Tensor, float]:
    """Coefficients, leave-one-out residuals of the sample, penalty; in the smaller of the two forms."""
    n, p = v.shape
    if n <= p:
        G = _centred((v @ v.T).double(), mean_part) if n <= EXACT else v @ v.T
        at = _fits(G, y.to(G), None, sample, mean_part)
    else:
        G = v.T @ v
        at = _fits(G, v.T @ y.to(v), v[sample], y[sample], mean_part)
    lowest = _lowest(G, n)
    _, penalty, solved, residual = _descend(at, penalty, lowest) if n > WEIGHED else at(penalty)
    return v.T @ solved.float() if n <= p else solved, residual, penalty


def _fits(G: Tensor, rhs: Tensor, v: Tensor | None, sample: Tensor, mean_part: Tensor) -> Callable[[float], Fit]:
    """Solutions of (G + penalty) x = rhs, with the leave-one-out residuals of a sample of the cases, by penalty.

    G is the Gram matrix of the features, v (cases, features) and `sample` (cases, outputs) features and targets of the
    sample; with v None, G is the kernel matrix of all cases, and `sample` has the numbers of those in the sample.
    """
    diagonal = G.diagonal().clone()

    def at(penalty: float) -> Fit:
        G.diagonal().copy_(diagonal + penalty)
        L, failed = torch.linalg.cholesky_ex(G)
        if failed:
            return math.inf, penalty, rhs, rhs
        solved = torch.cholesky_solve(rhs, L)
        if v is None:
            unit = torch.zeros(len(G), len(sample), dtype=L.dtype, device=L.device)
            unit[sample, torch.arange(len(sample), device=L.device)] = 1
            rest = penalty * torch.linalg.solve_triangular(L, unit, upper=False).square().sum(0)
            residual = penalty * solved[sample]
        else:
            rest = 1 - torch.linalg.solve_triangular(L, v.T, upper=False).square().sum(0)
            residual = sample - v @ solved
        residual = (residual / (rest - mean_part).clamp_min(1e-6)[:, None]).double()
        return float(residual.square().mean()), penalty, solved, residual

    return at


@dataclass
class RidgeSums:
    """Sums over cases from which a ridge follows: blocks of cases, one after the other or on several machines.

    Features enter as z = (f − shift) / unit, with shift and unit (features,) from the first block, so that float32 sums
    stay exact enough. A random sample of the cases is kept for choosing weights and penalty and for leave-one-out
    scores; the fit itself uses all cases. Memory: features² numbers, whatever the number of cases.
    """

    shift: Tensor
    unit: Tensor
    products: Tensor  # upper triangle, at least, of Σ w a aᵀ over all cases, with a = (z, targets, 1)
    kept: Tensor  # (cases, …): features, targets, weight and random rank of the sample
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # (cases,) of the sample among all
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
        empty = {"products": torch.zeros_like(self.products), "kept": self.kept[:0], "rows": self.rows[:0]}
        return replace(self, **empty, generator=generator)

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None, rows: Tensor | None = None) -> None:
        """Add cases: features (cases, features), targets (cases, outputs), weights (cases,) or None.

        rows: (cases,) long, where they are among all cases.
        """
        one = features.new_ones(len(features), 1)
        w = one if weights is None else weights.to(features)[:, None]
        a = torch.cat([(features - self.shift) / self.unit, targets, one], dim=1)
        for first, part in zip(range(0, a.shape[1], PANEL), a.split(PANEL, dim=1), strict=True):
            self.products[first : first + PANEL, first:].addmm_((part * w).T, a[:, first:])
        rank = torch.rand(len(features), generator=self.generator).to(features)
        rows = torch.arange(len(a)) if rows is None else rows
        self._keep(torch.cat([features, targets, w, rank[:, None]], dim=1), rows)

    def _keep(self, more: Tensor, rows: Tensor) -> None:
        """Of the sample and more cases, those of lowest rank."""
        joined = torch.cat([self.kept, more])
        lowest = joined[:, -1].argsort()[:EXACT]
        self.kept, self.rows = joined[lowest], torch.cat([self.rows, rows])[lowest.cpu()]

    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features, targets and weights of the sample."""
        p = len(self.shift)
        return self.kept[:, :p], self.kept[:, p:-2], self.kept[:, -2]

    def __add__(self, other: RidgeSums) -> RidgeSums:
        """The sums over the cases of both, which must have the same shift and unit."""
        if not (torch.equal(self.shift, other.shift) and torch.equal(self.unit, other.unit)):
            raise DataError("merge: these sums are of different features; start both from one fitted bank.")
        made = replace(self, products=self.products + other.products)
        made._keep(other.kept, other.rows)
        return made

    def solve(self, blocks: Mapping[str, slice], minor: Collection[str] = (), scored: Tensor | None = None) -> Ridge:
        """The ridge of all cases so far; arguments as of `fit_ridge`, `scored` of the cases of `sample`."""
        features, targets, w = self.sample()
        p, W = len(self.shift), float(self.products[-1, -1])
        if W <= 0:
            raise DataError("no case was added yet; call partial_fit first.")
        first = fit_ridge(features, targets, blocks, minor, w, scored)
        means = self.products[:, -1] / W
        centre, level = means[:p], means[p:-1]
        mean, scale = self.shift + centre * self.unit, (self.products.diagonal()[:p] / W - centre**2).clamp_min(0)
        scale = _usable(scale.sqrt() * self.unit, mean, blocks) / self.unit
        logs = torch.tensor([*first.weights.values(), 1.0]).log()
        per = _factors(logs, blocks, scale)[1] / scale
        G = self.products[:p, :p].addr(centre, centre, alpha=-W).mul_(per).mul_(per[:, None]).triu_()
        G += G.triu(1).T
        rhs = (self.products[:p, p:-1] - W * torch.outer(centre, level)) * per[:, None]
        root = w.sqrt()[:, None]
        v = ((features - self.shift) / self.unit - centre) * per * root
        unit, search = float(w.mean()), bool(w.sum() < W)
        start, lowest = first.penalty * unit, _lowest(G, float(W) / unit)
        at = _fits(G, rhs, v, (targets - level) * root, w / W)
        error, penalty, solved, residual = _descend(at, start, lowest) if search else at(start)
        coef = solved * (per * scale).nan_to_num(0.0)[:, None]
        found = targets - (residual / root.clamp_min(1e-6)).float(), torch.arange(len(targets))
        return Ridge(mean, scale * self.unit, coef, level, penalty, dict(first.weights), error, *found)


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
    return Ridge(ridge.mean, ridge.scale, coef, level_, ridge.penalty, ridge.weights, ridge.error)


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
    if kind == "multiclass":  # the only case of a class got a score without anything to learn from
        w = w * (ones * (ones.sum(0) > 1)).sum(1).to(w)
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
        value = (w * each).sum() / w.sum().clamp(min=1e-12)  # zero where every class has one case: the prior decides
        value = value + PRIOR * ((slope - 1.0).square().mean() + offset.square().mean())
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    slope, offset = slope.detach().exp().float(), offset.detach().float()
    ridge.coef, ridge.intercept = ridge.coef * slope, ridge.intercept * slope + offset
    return ridge
