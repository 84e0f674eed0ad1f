"""From outputs to features: sums over the positions of a chunk, then over the chunks of a signal or of a stretch of it.

Read after `bank.py`, whose letters these are. Positions that were not observed, or lie beyond the end of a case, are
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.ops.modes import exact

if TYPE_CHECKING:
    from wavessm.features.bank import CellGroup

POOLS = ("share", "wins", "margin", "energy")
"""Share of outputs above a bias; share of positions at which a readout is the largest of its cell, and its mean
positive output there; logarithm of the mean square."""
BLOCK_BYTES = {"cpu": 2**20, "cuda": 2**28}
"""Size of the outputs that are held at once: on a CPU they stay in the cache of a core."""
COLUMNS = 96  # chunks times cases of one matrix product, at least
PARTS = [(8 // size * k, 8 // size * (k + 1)) for size in (1, 2, 4, 8) for k in range(size)]
"""The dyadic stretches of a signal, in eighths: the whole, halves, quarters and eighths."""
BINS = 256  # largest number of parts of a profile


def pooled(
    group: CellGroup, z: Tensor, valid: Tensor, names: Iterable[str]
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Sums (cells, R, K, cases) by pool over the positions of each chunk, for a slice of the cells at a time.

    z: (cells, M + N, K, cases), of `CellGroup.columns`; valid: (K, P, 1 or cases), 1 where one counts.
    """
    K, cases = z.shape[2:]
    P, R = group.positions, group.bias.shape[1]
    whole = (valid.flatten(1).amin(1) > 0).tolist()  # (K,), chunks without a gap
    at_once = min(K, max(1, COLUMNS // cases))
    several = max(1, BLOCK_BYTES.get(z.device.type, 2**24) // (4 * P * R * at_once * cases))
    edges = _edges(whole, at_once)
    for first in range(0, len(z), several):
        cells = slice(first, first + several)
        weight, bias = group.weight[cells], group.bias[cells, None, :, None]
        sums = {name: z.new_empty(len(weight), R, K, cases) for name in names}
        for start, end in pairwise(edges):
            y = torch.bmm(weight, z[cells, :, start:end].flatten(2)).unflatten(1, (P, R))
            counted = None
            if not whole[start]:
                counted = valid[start:end].transpose(0, 1).expand(-1, -1, cases).flatten(1)[:, None]  # (P, 1, …)
            for name, values in _chunk_sums(y, bias, counted, sums):
                sums[name][:, :, start:end] = values.unflatten(2, (end - start, cases))
        yield cells, sums


def _edges(whole: list[bool], at_once: int) -> list[int]:
    """Borders of runs of up to `at_once` chunks, apart for those with and without gaps.

    >>> _edges([True, True, True, True, True, False], 2)
    [0, 2, 4, 5, 6]
    """
    edges = [0]
    for k in range(1, len(whole)):
        if k - edges[-1] == at_once or whole[k] != whole[k - 1]:
            edges.append(k)
    return [*edges, len(whole)]


def _chunk_sums(y: Tensor, bias: Tensor, counted: Tensor | None, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Pools of outputs y (cells, P, R, columns) over their positions: (cells, R, columns) each."""
    work = torch.empty_like(y)

    def total(values: Tensor) -> Tensor:
        return (values if counted is None else values.mul_(counted)).sum(1)

    if "share" in names:
        yield "share", total(torch.gt(y, bias, out=work))
    if "wins" in names or "margin" in names:
        top = y.amax(2, keepdim=True)
        wins = total(torch.eq(y, top, out=work))
        if "wins" in names:
            yield "wins", wins
        if "margin" in names:
            yield "margin", work.mul_(top.clamp_min_(0)).sum(1)
    if "energy" in names:
        yield "energy", total(torch.mul(y, y, out=work))


def read_pools(totals: Mapping[str, Tensor], count: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """Features (cells, R, cases) from sums over a signal and the number of its positions (1 or cases,)."""
    n = count.clamp_min(1)
    made = {name: totals[name] / n for name in names}
    kinds = {"share": lambda mean: mean, "energy": lambda mean: (mean + 1e-6).log()}
    return {name: kinds.get(name, torch.sqrt)(mean) for name, mean in made.items()}


def read_stretch(share: Tensor, count: Tensor, stretch: Tensor) -> Tensor:
    """The pool "share" over a part of the chunks of a case, over all where that has no position. (cells, R, cases)

    share: (cells, R, K, cases), outputs above the bias; count: (K, 1 or cases); stretch: (2, cells, R).
    """
    k = torch.arange(len(count), device=share.device, dtype=share.dtype)[:, None]  # (K, 1)
    length = ((k + 1) * (count > 0)).amax(0)  # (1 or cases,), chunks up to the last position
    start = (stretch[0, ..., None, None] * length).floor()  # (cells, R, 1, 1 or cases)
    end = torch.maximum((stretch[1, ..., None, None] * length).ceil(), start + 1)
    inside = ((k >= start) & (k < end)).to(share.dtype)  # (cells, R, K, 1 or cases)
    n = (inside * count).sum(2)
    whole = share.sum(2) / count.sum(0).clamp_min(1)
    return torch.where(n > 0, (share * inside).sum(2) / n.clamp_min(1), whole)


class Values(nn.Module):
    """Shares of samples above quantiles of the training signals, for each channel and its difference; and a profile.

    What the readouts do not see: where the values of a signal lie. Counted in eighths of a signal, so that sums give
    the dyadic stretches. The profile has the means of a channel, its difference and the size of that over equal parts
    of a signal. Both have about `budget` features; the profile has no more parts than the `length` of a signal.
    """

    def __init__(self, channels: int, difference: bool, stretches: bool, budget: int, length: int) -> None:
        super().__init__()
        self.sources, self.curves = channels * (2 if difference else 1), channels * (3 if difference else 1)
        few = self.sources * len(PARTS) <= budget
        self.difference, self.parts = difference, PARTS if stretches and few else PARTS[:1]
        self.bins = max(1, min(BINS, length, budget // self.curves)) if stretches else 0
        count = max(2, min(16, budget // (self.sources * len(self.parts))))
        self.levels: Tensor
        self.register_buffer("levels", torch.zeros(self.sources, count))

    @property
    def n_features(self) -> int:
        """Numbers of a case."""
        return self.levels.numel() * len(self.parts)

    def samples(self, x: Tensor, last: Tensor | None = None) -> Tensor:
        """Channels and differences (cases, length, sources) of x (cases, length, channels) after the sample `last`."""
        return torch.cat([x, x.diff(dim=1, prepend=x[:, :1] if last is None else last)], 2) if self.difference else x

    def set_levels(self, x: Tensor, mask: Tensor | None) -> None:
        """Levels at evenly spaced quantiles of the observed samples of x (cases, length, channels)."""
        v = self.samples(x)
        v = v.flatten(0, 1) if mask is None else v[mask]
        at = (torch.arange(self.levels.shape[1], device=x.device) + 0.5) / self.levels.shape[1]
        v = v[:: max(1, len(v) // 20_000)].sort(dim=0).values
        self.levels.copy_(v[(at * len(v)).long()].T)

    def profile(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Means over `bins` equal parts of each case (cases, bins · curves); without an observed sample, of the case.

        x: (cases, length, channels); mask: (cases, length) bool.
        """
        device, v = x.device, exact(self.samples(x))
        v = torch.cat([v, v[..., x.shape[2] :].abs()], dim=2)
        seen = torch.ones_like(v[..., :1]) if mask is None else exact(mask[..., None])
        ends, part = self._ends(x, mask).to(v.device), torch.arange(self.bins, device=v.device)
        edges = part * ends // self.bins, ((part + 1) * ends + self.bins - 1) // self.bins  # (cases, bins) each
        sums = F.pad(torch.cat([v * seen, seen], dim=2).cumsum(1), (0, 0, 1, 0))
        first, end = (sums.gather(1, edge[..., None].expand(-1, -1, sums.shape[2])) for edge in edges)
        (total, n), (whole, count) = (own.tensor_split([self.curves], dim=2) for own in (end - first, sums[:, -1:]))
        return torch.where(n > 0, total / n.clamp_min(1), whole / count.clamp_min(1)).flatten(1).float().to(device)

    def _ends(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Length of each case (cases, 1), at least 1."""
        if mask is None:
            return torch.full((len(x), 1), x.shape[1], device=x.device)
        return ((torch.arange(x.shape[1], device=x.device) + 1) * mask).amax(1, keepdim=True).clamp_min(1)

    def counts(self, x: Tensor, mask: Tensor | None, last: Tensor | None = None, eighths: bool = True) -> Tensor:
        """Samples between levels, by eighth of the signal, or all in the first. (cases, 8, sources, levels + 1)

        x: (cases, length, channels); mask: (cases, length) bool; last: (cases, 1, channels), before x.
        """
        v = self.samples(x, last)
        cases, length, sources = v.shape
        bins = self.levels.shape[1] + 1
        found = torch.searchsorted(self.levels, v.permute(2, 0, 1).flatten(1).contiguous()).view(sources, cases, length)
        time = torch.arange(length, device=x.device)
        ends = self._ends(x, mask)
        leaf = (time * 8 // ends).clamp_max(7) if eighths else torch.zeros_like(ends).expand(-1, length)
        rows = torch.arange(cases, device=x.device)[:, None] * 8 + leaf  # (cases, length)
        index = (rows[None] * sources + torch.arange(sources, device=x.device)[:, None, None]) * bins + found
        if mask is not None:
            index = index[:, mask]
        total = torch.bincount(index.flatten(), minlength=cases * 8 * sources * bins)
        return total.view(cases, 8, sources, bins).float()

    def read(self, counts: Tensor) -> Tensor:
        """Features (cases, n_features) from counts."""
        totals = torch.stack([counts[:, first:end].sum(1) for first, end in self.parts], dim=1)
        n = totals.sum(3, keepdim=True)
        above = totals.flip(3).cumsum(3).flip(3)[..., 1:] / n.clamp_min(1)
        return torch.where(n > 0, above, above[:, :1]).flatten(1)
