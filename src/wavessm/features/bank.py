"""A bank of fixed wavelet state spaces with random readouts, and the features that are pooled from their outputs.

Read next: `model.py`, which standardises signals and puts a head on the features, and `ridge.py`, that head.

A *cell* is a frame, a time scale and a source: a channel, a mixture of channels and their differences, or a difference.
Its state h follows the frame's translated dynamics h⁺ = Ā h + B̄ u, exactly for samples held constant, and R random
readouts give y = C h. A readout does not respond to a constant and has unit response to white noise. Slow cells are
read at every `stride`-th sample. Time is cut into chunks; the state is carried from chunk to chunk by a small scan, and
all outputs of many chunks and cases are one matrix product.

Letters: P positions at which a chunk is read, M = P · stride samples of a chunk, K chunks, N states, R readouts.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.features.pools import POOLS, Values, pooled, read_pools, read_stretch
from wavessm.frames import make_frame
from wavessm.operators import make_operator

SHORTEST = 5.0  # samples in the shortest window
PER_WINDOW = 16  # smallest number of outputs of a cell in a window; slower cells have longer strides
MIN_DECAY = 1.0  # least decay of a mode over a window: operators have modes that would never forget
SIZES = (8, 8, 16, 32)  # atoms of the cells by default; of streams those of the first, for speed
BIAS_VALUES = 256  # outputs of a readout among which its bias is a quantile


@dataclass(eq=False)
class FeatureConfig:
    """Size and kind of a bank of state features; `StateFeatures` says what each option means."""

    n_features: int | None = None
    families: tuple[str, ...] = ("morlet", "db6", "mexhat", "dpss")
    d_state: int | tuple[int, ...] | None = None
    n_scales: int = 16
    readouts: int = 20
    pools: tuple[str, ...] | None = None
    stretches: bool = True
    values: bool = True
    difference: bool = True
    n_mixtures: int | None = None
    missing: str = "hold"


@dataclass(frozen=True)
class StateCell:
    """Family, atoms, window in samples, row of the sources and stride in samples of a group of readouts."""

    family: str
    n: int
    window: float
    source: int
    stride: int


def make_cells(
    families: tuple[str, ...], sizes: tuple[int, ...], windows: np.ndarray, sources: int, count: int,
    rng: np.random.Generator,
) -> list[StateCell]:  # fmt: skip
    """About `count` cells, families and numbers of atoms in random turns, sorted by stride and atoms: every source at
    every window; where that would be more than twice as many, sources take turns.
    """
    each, share = max(1, round(count / (len(windows) * sources))), max(1, round(2 * count / len(windows)))
    pairs = list(itertools.product(range(sources), windows))
    if share < sources:
        turns = itertools.cycle(rng.permutation(sources).tolist())
        pairs = [(next(turns), window) for window in windows for _ in range(share)]
    cells = []
    for source, window in pairs:
        family, n = (rng.permutation(len(choices)) for choices in (families, sizes))
        stride = 2 ** max(0, math.floor(math.log2(window / PER_WINDOW)))
        for k in range(each):
            drawn = families[family[k % len(family)]], sizes[n[k % len(n)]]
            cells.append(StateCell(*drawn, float(window), source, stride))
    return sorted(cells, key=lambda cell: (cell.stride, cell.n))


@cache
def _modes(family: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues (N,) and eigenvectors (N, N) of −A, damped to `MIN_DECAY`, and B in their coordinates (N,)."""
    operator = make_operator(make_frame(family, n=n).tighten(), "translated")
    lam, V = np.linalg.eig(-operator.A)
    return np.minimum(lam.real, -MIN_DECAY) + 1j * lam.imag, V, np.linalg.solve(V, operator.B.astype(complex))


class CellGroup(nn.Module):
    """All cells of one stride, samples between two outputs, and size, as batched matrices with random readouts."""

    source: Tensor  # (cells,) rows of the sources
    weight: Tensor  # (cells, P·R, M + N), from a chunk and the state before it to the outputs
    into: Tensor  # (cells, N, M), from a chunk to the state after it
    decay: Tensor  # (cells, N, N), from the state before a chunk to that after it
    stride_decay: Tensor  # (cells, N, N), the same over one stride
    bias: Tensor  # (cells, R), outputs above it count for the pool "share"
    stretch: Tensor  # (2, cells, R), start and end of the part of a signal that a readout's pool "stretch" looks at

    def __init__(self, cells: list[StateCell], P: int, readouts: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.stride, n = cells[0].stride, cells[0].n
        stride = self.stride
        self.positions, self.chunk = P, (M := P * stride)
        after = stride * np.arange(1, P + 1)  # samples read at each position
        lam, V, b = (np.stack(part) for part in zip(*(_modes(cell.family, n) for cell in cells), strict=True))
        z, inverse = lam / np.array([cell.window for cell in cells])[:, None], np.linalg.inv(V)
        held = b * np.expm1(z) / lam  # response to one sample, held for its period
        powers = np.exp(z[..., None] * np.arange(M + 1))  # (cells, modes, M + 1)
        constant = (V @ (held / -np.expm1(z))[..., None])[..., 0].real  # state under a constant signal
        C = rng.standard_normal((len(cells), readouts, n))
        C -= (C @ constant[..., None]) * (constant / (constant**2).sum(1, keepdims=True))[:, None]
        c = C @ V
        noise = held[:, :, None] * held.conj()[:, None] / -np.expm1(z[:, :, None] + z.conj()[:, None])
        c /= np.sqrt(((c @ noise) * c.conj()).sum(2).real)[..., None]  # unit response to white noise
        kernel = ((c * held[:, None]) @ powers[..., :M]).real  # (cells, R, M) by age
        age = after[:, None] - 1 - np.arange(M)  # (P, M)
        newest = np.where(age >= 0, kernel[..., np.maximum(age, 0)], 0).transpose(0, 2, 1, 3)  # (cells, P, R, M)
        start = ((c[:, None] * powers[:, :, after].transpose(0, 2, 1)[:, :, None]) @ inverse[:, None]).real
        weight = np.concatenate([newest, start], axis=3).reshape(len(cells), P * readouts, M + n)
        into = (V @ (held[..., None] * powers[..., M - 1 :: -1])).real  # (cells, N, M)
        decay = ((V * powers[:, None, :, M]) @ inverse).real  # (cells, N, N)
        dyadic = np.array([(k / size, (k + 1) / size) for size in (2, 4, 8) for k in range(size)])
        stretch = dyadic[rng.integers(len(dyadic), size=(len(cells), readouts))].transpose(2, 0, 1)
        self.register_buffer("source", torch.tensor([cell.source for cell in cells]))
        made = {"weight": weight, "into": into, "decay": decay, "bias": np.zeros(C.shape[:2]), "stretch": stretch}
        for name, array in made.items():
            self.register_buffer(name, torch.from_numpy(array.astype(np.float32)))
        over_stride = ((V * powers[:, None, :, stride]) @ inverse).real
        self.register_buffer("stride_decay", torch.from_numpy(over_stride.astype(np.float32)), persistent=False)

    def by_position(self) -> CellGroup:
        """The same cells with chunks of one position: for streams, where the outputs of slow cells are few."""
        group, M, R = copy.copy(self), self.chunk, self.bias.shape[1]
        group.positions, group.chunk, first = 1, self.stride, self.weight[:, :R]
        weight = torch.cat([first[..., : self.stride], first[..., M:]], dim=-1)
        into = self.into[..., M - self.stride :].contiguous()
        group._buffers = {**self._buffers, "weight": weight, "into": into, "decay": self.stride_decay}
        return group

    def columns(self, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Each chunk of u (sources, length, cases) above the state before it, and the state after the last.

        Returns (cells, M + N, K, cases) and (cells, N, cases).
        """
        u = self.padded(u)
        sources, length, cases = u.shape
        M, (cells, N) = self.chunk, self.decay.shape[:2]
        K = length // M
        z = u.new_empty(cells, M + N, K, cases)
        z[:, :M] = u.view(sources, K, M, cases).transpose(1, 2)[self.source]
        entering = torch.bmm(self.into, z[:, :M].flatten(2)).view(cells, N, K, cases)
        states = [u.new_zeros(cells, N, cases) if state is None else state]
        for added in entering.unbind(2):
            states.append(torch.baddbmm(added, self.decay, states[-1]))
        torch.stack(states[:-1], dim=2, out=z[:, M:])
        return z, states[-1]

    def padded(self, u: Tensor) -> Tensor:
        """Samples (sources, length, cases) with zeros up to whole chunks, at least one."""
        missing = -u.shape[1] % self.chunk if u.shape[1] else self.chunk
        return F.pad(u, (0, 0, 0, missing)) if missing else u

    def seen(self, mask: Tensor, end: int | None = None) -> Tensor:
        """Positions that are pooled (K, P, cases): those in a case with an observed sample in their stride.

        mask: (length, cases) of 0 and 1; a case ends at `end`, or with its last observed sample.
        """
        mask = self.padded(mask[None])[0]
        time = torch.arange(1, len(mask) + 1, device=mask.device)[:, None]
        last = (mask * time).amax(0) if end is None else end
        seen = mask.unflatten(0, (-1, self.stride)).amax(1)
        return (seen * (time[self.stride - 1 :: self.stride] <= last)).unflatten(0, (-1, self.positions))


class StateBank(nn.Module):
    """Features of signals, from a bank that was drawn for a length: that of a typical signal and the longest window."""

    def __init__(self, config: FeatureConfig, channels: int, length: int, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.config, self.channels, self.length, self.seed = config, channels, length, seed
        mixtures = (channels if channels > 1 else 0) if config.n_mixtures is None else config.n_mixtures
        mixing = np.vstack([np.eye(channels), rng.standard_normal((mixtures, channels)) / math.sqrt(channels)])
        if config.difference:  # mixtures have both, so that the order of channels in time is seen
            added = rng.standard_normal((mixtures, channels)) / math.sqrt(channels)
            added = np.vstack([np.zeros((channels, channels)), added])
            mixing = np.block([[mixing, added], [np.zeros_like(mixing), mixing]])
        self.mixing: Tensor  # (sources, channels and then their differences)
        self.register_buffer("mixing", torch.from_numpy(mixing.astype(np.float32)))
        sources = len(mixing)
        # Of the first samples of a stream, energies are far from those of whole signals.
        self.pools = config.pools or (POOLS if config.stretches else POOLS[:-1])
        per_readout, n_features = len(self.pools) + config.stretches, config.n_features or 12_500
        windows = np.geomspace(SHORTEST, max(length, 2 * SHORTEST), config.n_scales)
        readouts = n_features // (per_readout * sources * len(windows))
        self.readouts = max(4, min(config.readouts, readouts))
        count = round(n_features / (per_readout * self.readouts))
        sizes = config.d_state or (SIZES if config.stretches else SIZES[0])
        sizes = (sizes,) if isinstance(sizes, int) else sizes
        self.cells = make_cells(config.families, sizes, windows, sources, count, rng)
        P = 8 if length >= 64 else 4  # short chunks leave short signals something to divide into stretches
        alike = itertools.groupby(self.cells, key=lambda cell: (cell.stride, cell.n))
        groups = [CellGroup(list(cells), P, self.readouts, rng) for _, cells in alike]
        self.groups = cast("list[CellGroup]", nn.ModuleList(groups))
        self.values = Values(channels, config.difference, config.stretches, n_features // 4, length)
        self.summed = {*self.pools, *(["share"] if config.stretches else [])}  # stretches are stretches of shares
        each = len(self.cells) * self.readouts
        widths = dict.fromkeys([*self.pools, *(["stretch"] if config.stretches else [])], each)
        if config.values:
            widths |= {"values": self.values.n_features, "profile": self.values.bins * self.values.curves}
        ends = list(itertools.accumulate(widths.values()))
        self.n_features = ends[-1]
        self.blocks = {  # columns of each kind
            name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True) if width
        }

    def sources(self, x: Tensor, first: Tensor | None = None, last: Tensor | None = None) -> Tensor:
        """Channels, mixtures and differences, as seen from the first sample. (sources, length, cases)

        x: (cases, length, channels); the first sample of the signal and the last before x are (cases, 1, channels).
        """
        first = x[:, :1] if first is None else first
        rows = self.values.samples(x - first, None if last is None else last - first)
        return torch.einsum("blc,sc->slb", rows, self.mixing)

    def set_biases(self, x: Tensor, mask: Tensor | None) -> None:
        """Biases of the pool "share": random quantiles of the outputs on x (cases, length, channels), as `features`."""
        generator = torch.Generator().manual_seed(self.seed)
        self.values.set_levels(x, mask)
        channels, sources = self.channels, len(self.mixing) // 2
        if self.config.difference:  # in mixtures, differences are as large as the channels
            size = self.values.samples(x)[..., channels:].square().mean((0, 1)).sqrt()
            self.mixing[channels:sources, channels:] /= torch.where(size > 0, size, torch.inf)
        u, seen = self.sources(x), x.new_ones(x.shape[1], 1) if mask is None else mask.T.float()
        for group in self.groups:
            z, _ = group.columns(u)
            count = group.seen(seen).sum(1).expand(-1, len(x)).flatten()  # of each chunk of each case
            full = torch.nonzero(count == count.max())[:, 0]
            drawn = torch.randint(len(full), (max(8, BIAS_VALUES // group.positions),), generator=generator)
            y = torch.bmm(group.weight, z.flatten(2)[:, :, full[drawn.to(z.device)]])
            y = y.unflatten(1, (group.positions, -1)).transpose(1, 2).flatten(2).sort(dim=2).values
            level = 0.1 + 0.8 * torch.rand(group.bias.shape, generator=generator).to(x.device)
            below = (level * (y.shape[2] - 1)).long()[..., None]
            group.bias = ((y.gather(2, below) + y.gather(2, below + 1)) / 2)[..., 0]  # between outputs: no ties

    @torch.no_grad()
    def features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features (cases, features) of signals (cases, length, channels), finite where samples are missing.

        mask: (cases, length) bool, samples that were observed; None: all. A case ends with its last.
        """
        u, seen = self.sources(x), x.new_ones(x.shape[1], 1) if mask is None else mask.T.float()
        made = x.new_empty(len(x), self.n_features)
        blocks, done = self.blocks, 0
        for group in self.groups:
            z, _ = group.columns(u)
            valid = group.seen(seen)
            count = valid.sum(1)  # (K, 1 or cases)
            for cells, sums in pooled(group, z, valid, self.summed):
                totals = {name: values.sum(2) for name, values in sums.items()}
                read = read_pools(totals, count.sum(0), self.pools)
                if self.config.stretches:
                    read["stretch"] = read_stretch(sums["share"], count, group.stretch[:, cells])
                width = group.bias[cells].numel()
                for name, values in read.items():
                    made[:, blocks[name].start + done :][:, :width] = values.flatten(0, 1).T
                done += width
        if self.config.values:
            made[:, blocks["values"]] = self.values.read(self.values.counts(x, mask, eighths=self.config.stretches))
        if "profile" in blocks:
            made[:, blocks["profile"]] = self.values.profile(x, mask)
        return made

    def origins(self, channels: Sequence[str] = ()) -> list[tuple[str, str, str, str, str, str]]:
        """Where each feature comes from: family, window, source, readout or level, pool and stretch of the signal."""
        named = [f"channel {name}" for name in channels or range(self.channels)]
        mixed = len(self.mixing) // (2 if self.config.difference else 1) - self.channels
        mixtures = [f"mixture {k}" for k in range(mixed)]
        sources, raw = named + mixtures, named
        if self.config.difference:
            sources, raw = ([*names, *(f"difference of {name}" for name in names)] for names in (sources, raw))
        cells = [(cell.family, f"{cell.window:.0f}", sources[cell.source]) for cell in self.cells]
        readouts = [(*cell, f"readout {k}") for cell in cells for k in range(self.readouts)]
        made = [(*readout, pool, "whole signal") for pool in self.pools for readout in readouts]
        if self.config.stretches:
            edges = torch.cat([group.stretch.flatten(1) for group in self.groups], dim=1).T.tolist()
            made += [(*readout, "share", f"{a:g} to {b:g}") for readout, (a, b) in zip(readouts, edges, strict=True)]
        for a, b in self.values.parts if self.config.values else ():
            stretch = "whole signal" if b - a == 8 else f"{a / 8:g} to {b / 8:g}"
            for source, levels in zip(raw, self.values.levels.tolist(), strict=True):
                made += [("samples", "1", source, f"above {level:.3g}", "values", stretch) for level in levels]
        curves = raw + [f"size of the {name}" for name in raw[self.channels :]]
        for part in range(self.values.bins if "profile" in self.blocks else 0):
            eighth, mean = part * 8 // self.values.bins, f"mean of part {part} of {self.values.bins}"
            stretch = f"{eighth / 8:g} to {(eighth + 1) / 8:g}"
            made += [("samples", "1", curve, mean, "profile", stretch) for curve in curves]
        return made

    def names(self, channels: Sequence[str] = ()) -> list[str]:
        """`origins` as text, such as "morlet, window 12, channel 0, readout 3, share, 0 to 0.5"."""
        return [f"{family}, window {', '.join(rest)}" for family, *rest in self.origins(channels)]
