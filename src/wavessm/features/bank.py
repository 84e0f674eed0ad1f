"""A bank of fixed wavelet state spaces with random readouts, and the pools that turn their outputs into numbers.

Read next: `transformer.py`, the scikit-learn transformer around it, and `ridge.py`, the closed-form head.

A *cell* is a frame, a time scale and a source (a channel, a mixture of channels, or the difference of one). Its state h
follows the frame's translated dynamics h⁺ = Ā h + B̄ u, exactly for samples held constant, and R random readouts give
y = C h. A readout does not respond to a constant and has unit response to white noise. Slow cells are read at every
`stride`-th sample. The state is carried from chunk to chunk, so any split of a signal gives the same numbers.

Letters: M samples of a chunk, P = 16 positions at which a chunk is read, N states, R readouts of a cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from wavessm.frames import make_frame
from wavessm.operators import make_operator

POSITIONS = 16
SHORTEST = 5.0
"""Samples in the shortest window."""
PER_WINDOW = 16
"""Smallest number of outputs of a cell in a window; slower cells have longer strides."""
MIN_DECAY = 1.0
"""Least decay of a mode over a window: operators have modes that would never forget."""


@dataclass(frozen=True)
class StateCell:
    """Family, window in samples, row of the sources and stride in samples of a group of readouts."""

    family: str
    window: float
    source: int
    stride: int


def make_cells(
    families: tuple[str, ...], windows: np.ndarray, sources: int, count: int, rng: np.random.Generator
) -> list[StateCell]:
    """About `count` cells: every source at every window, families in random turns; sorted by stride."""
    each = max(1, round(count / (len(windows) * sources)))
    cells = []
    for source in range(sources):
        for window in windows:
            order = rng.permutation(len(families))
            stride = 2 ** max(0, math.floor(math.log2(window / PER_WINDOW)))
            cells += [StateCell(families[order[k % len(families)]], float(window), source, stride) for k in range(each)]
    return sorted(cells, key=lambda cell: cell.stride)


@cache
def _modes(family: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues (N,) and eigenvectors (N, N) of −A, damped to `MIN_DECAY`, and B in their coordinates (N,)."""
    operator = make_operator(make_frame(family, n=n).tighten(), "translated")
    lam, V = np.linalg.eig(-operator.A)
    return np.minimum(lam.real, -MIN_DECAY) + 1j * lam.imag, V, np.linalg.solve(V, operator.B.astype(complex))


@dataclass
class CellGroup:
    """All cells of one stride as batched matrices.

    Attributes:
        stride: samples between two outputs.
        source: (cells,) rows of the sources.
        weight: (cells, P·R, M + N), from a chunk and the state before it to the outputs.
        carry: (cells, N, M + N), from a chunk and the state before it to the state after it.
        bias: (cells, R), outputs above it count for the pool "share".
    """

    stride: int
    source: Tensor
    weight: Tensor
    carry: Tensor
    bias: Tensor

    def start(self, cases: int) -> Tensor:
        """The state before the first sample. (cells, N, cases)"""
        return self.carry.new_zeros(len(self.source), self.carry.shape[1], cases)

    def run(self, u: Tensor, state: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs (cells, positions, R, cases) and state chunk by chunk. u: (sources, length, cases)."""
        N = self.carry.shape[1]
        M = self.carry.shape[2] - N
        for first in range(0, u.shape[1] // self.stride * self.stride, M):
            part = u[self.source, first : first + M]
            positions = part.shape[1] // self.stride
            if part.shape[1] < M:
                part = torch.nn.functional.pad(part, (0, 0, 0, M - part.shape[1]))
            z = torch.cat([part, state], dim=1)  # (cells, M + N, cases)
            y = torch.bmm(self.weight, z).unflatten(1, (POSITIONS, -1))
            state = torch.bmm(self.carry, z)
            yield y[:, :positions], state

    def to(self, device: torch.device) -> CellGroup:
        """The same stage on another device."""
        parts = (self.source, self.weight, self.carry, self.bias)
        return CellGroup(self.stride, *(part.to(device) for part in parts))


def make_stage(cells: list[StateCell], n: int, readouts: int, rng: np.random.Generator) -> CellGroup:
    """The matrices of cells that share a stride, with random readouts."""
    stride, M = cells[0].stride, POSITIONS * cells[0].stride
    after = stride * np.arange(1, POSITIONS + 1)  # samples read at each position
    rows: dict[str, list[np.ndarray]] = {"c": [], "kernel": [], "start": [], "into": [], "decay": []}
    for cell in cells:
        lam, V, b = _modes(cell.family, n)
        z, inverse = lam / cell.window, np.linalg.inv(V)
        held = b * np.expm1(z) / lam  # response to one sample, held for its period
        powers = np.exp(np.outer(z, np.arange(M + 1)))  # (modes, M + 1)
        constant = (V @ (held / -np.expm1(z))).real  # state under a constant signal
        C = rng.standard_normal((readouts, n))
        C -= np.outer(C @ constant, constant) / (constant @ constant)
        c = C @ V
        noise = np.outer(held, held.conj()) / -np.expm1(z[:, None] + z.conj())  # covariance under white noise
        c /= np.sqrt(((c @ noise) * c.conj()).sum(1).real)[:, None]
        rows["kernel"].append(((c * held) @ powers[:, :M]).real)  # (R, M) by age
        rows["start"].append(((c[None] * powers[:, after].T[:, None]) @ inverse).real)  # (P, R, N)
        rows["into"].append((V @ (held[:, None] * powers[:, M - 1 :: -1])).real)  # (N, M)
        rows["decay"].append(((V * powers[:, M]) @ inverse).real)  # (N, N)
    kernel, start, into, decay = (_stack(rows[name]) for name in ("kernel", "start", "into", "decay"))
    age = torch.from_numpy(after[:, None] - 1 - np.arange(M))  # (P, M)
    newest = kernel[..., age.clamp(min=0)] * (age >= 0)  # (cells, R, P, M)
    weight = torch.cat([newest.transpose(1, 2), start], dim=3).flatten(1, 2)
    source = torch.tensor([cell.source for cell in cells])
    return CellGroup(stride, source, weight, torch.cat([into, decay], dim=2), torch.zeros(len(cells), readouts))


def _stack(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(arrays).astype(np.float32))


def make_stages(cells: list[StateCell], n: int, readouts: int, rng: np.random.Generator) -> list[CellGroup]:
    """A stage for each stride."""
    return [make_stage(list(group), n, readouts, rng) for _, group in groupby(cells, key=lambda cell: cell.stride)]


class Pools:
    """Running sums over the outputs of a stage, apart for each of `leaves` equal parts of a signal.

    Attributes:
        sums: (3, leaves, cells, R, cases): outputs above the bias ("share"), positions at which a readout is the
            largest of its cell ("wins"), and the sum of its positive outputs there ("margin").
        count: (leaves,), positions so far.
        energy: (cells, R, cases), sum of squares.
        peak: (cells, R, cases), largest output.
    """

    def __init__(self, stage: CellGroup, cases: int, positions: int = 1, leaves: int = 1) -> None:
        shape = (*stage.bias.shape, cases)
        self.bias, self.positions, self.leaves = stage.bias[:, None, :, None], max(1, positions), leaves
        self.sums = stage.bias.new_zeros(3, leaves, *shape)
        self.energy, self.peak = stage.bias.new_zeros(shape), stage.bias.new_full(shape, -math.inf)
        self.count = [0] * leaves

    def add(self, y: Tensor) -> None:
        """Outputs (cells, positions, R, cases) of the next positions."""
        top = y.amax(2, keepdim=True)
        self.peak = torch.maximum(self.peak, y.amax(1))
        work = torch.empty_like(y)
        self.energy += torch.mul(y, y, out=work).sum(1)
        for leaf, part in self._parts(y.shape[1]):
            values, out = y[:, part], work[:, part]
            self.sums[0, leaf] += torch.gt(values, self.bias, out=out).sum(1)
            won = torch.eq(values, top[:, part], out=out)
            self.sums[1, leaf] += won.sum(1)
            self.sums[2, leaf] += won.mul_(top[:, part].clamp_min(0)).sum(1)
            self.count[leaf] += values.shape[1]

    def _parts(self, count: int) -> list[tuple[int, slice]]:
        """Which of the next `count` positions belong to which leaf."""
        done = sum(self.count)
        edges = [-(-leaf * self.positions // self.leaves) - done for leaf in range(self.leaves)] + [count]
        parts = [(leaf, slice(max(0, edges[leaf]), min(count, edges[leaf + 1]))) for leaf in range(self.leaves)]
        return [(leaf, part) for leaf, part in parts if part.start < part.stop]

    def share(self, first: int, end: int) -> Tensor:
        """The pool "share" over the leaves first … end − 1, over the whole signal where they hold no output."""
        count = sum(self.count[first:end])
        return self.sums[0, first:end].sum(0) / count if count else self.sums[0].sum(0) / sum(self.count)


@dataclass(frozen=True)
class FeatureConfig:
    """Size and kind of a bank of state features."""

    n_features: int = 10_000
    """Numbers for a case, about."""
    families: tuple[str, ...] = ("morlet", "db6", "mexhat", "dpss")
    """Frames, in random turns."""
    d_state: int = 8
    """Atoms of a frame."""
    n_scales: int = 16
    """Windows, spaced logarithmically from 5 samples to the length of a signal."""
    readouts: int = 20
    """Readouts of a cell, which compete for the pools "wins" and "margin"."""
    pools: tuple[str, ...] = ("share", "wins", "margin")
    """Of share, wins, margin, peak, energy: what is kept of every output."""
    stretches: bool = True
    """Also pool shares over a random dyadic stretch of the signal, one for each readout."""
    difference: bool = True
    """Also read the first difference of each channel."""
    n_mixtures: int | None = None
    """Random mixtures of the channels beside them; None: one for each channel, none of a single one."""
    leaves: int = 8
    """Finest equal parts of a signal that stretches are made of."""


class StateBank:
    """Features of signals of one length or several, from a bank that was drawn for a length.

    Args:
        config: sizes and pools.
        channels: channels of a signal.
        length: samples of a typical signal; the longest window.
        seed: of readouts, mixtures and stretches.
    """

    def __init__(self, config: FeatureConfig, channels: int, length: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.config, self.channels, self.length, self.seed = config, channels, length, seed
        mixtures = (channels if channels > 1 else 0) if config.n_mixtures is None else config.n_mixtures
        mixing = rng.standard_normal((mixtures, channels)) / math.sqrt(channels)
        self.mixing = torch.from_numpy(np.concatenate([np.eye(channels), mixing]).astype(np.float32))
        sources = len(self.mixing) * (2 if config.difference else 1)
        per_readout = len(config.pools) + config.stretches
        windows = np.geomspace(SHORTEST, max(length, 2 * SHORTEST), config.n_scales)
        readouts = config.n_features // (per_readout * sources * len(windows))
        self.readouts = max(4, min(config.readouts, readouts))
        count = round(config.n_features / (per_readout * self.readouts))
        self.cells = make_cells(config.families, windows, sources, count, rng)
        self.stages = make_stages(self.cells, config.d_state, self.readouts, rng)
        leaves = config.leaves
        parts = [(size * k, size * (k + 1)) for size in _halves(leaves) for k in range(leaves // size)]
        self.parts = parts  # dyadic stretches, in leaves
        self.stretch = [torch.from_numpy(rng.integers(len(parts), size=stage.bias.shape)) for stage in self.stages]

    def to(self, device: torch.device) -> StateBank:
        """The bank itself, moved to a device."""
        self.stages = [stage.to(device) for stage in self.stages]
        self.stretch = [index.to(device) for index in self.stretch]
        self.mixing = self.mixing.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the bank lives."""
        return self.mixing.device

    def sources(self, x: Tensor) -> Tensor:
        """Channels, mixtures and differences. x: (cases, length, channels). Returns (sources, length, cases)."""
        u = torch.einsum("blc,sc->slb", x, self.mixing)
        u = u - u[:, :1]
        return torch.cat([u, u.diff(dim=1, prepend=u[:, :1])]) if self.config.difference else u

    def set_biases(self, x: Tensor) -> None:
        """Biases of the pool "share": random quantiles of the outputs on x (cases, length, channels)."""
        generator = torch.Generator().manual_seed(self.seed)
        u = self.sources(x.to(self.device))
        for stage in self.stages:
            y = torch.cat([y for y, _ in stage.run(u, stage.start(len(x)))], dim=1)
            flat = y.transpose(1, 2).flatten(2)  # (cells, R, positions · cases)
            flat = flat[..., :: max(1, flat.shape[2] // 4096)].sort(dim=2).values
            level = 0.1 + 0.8 * torch.rand(stage.bias.shape, generator=generator).to(self.device)
            below = (level * (flat.shape[2] - 1)).long()[..., None]
            above = (below + 1).clamp(max=flat.shape[2] - 1)
            stage.bias = ((flat.gather(2, below) + flat.gather(2, above)) / 2)[..., 0]  # between outputs: no ties

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Features of signals of one length. x: (cases, length, channels). Returns (cases, features) float32."""
        u = self.sources(x.to(self.device))
        blocks: dict[str, list[Tensor]] = {name: [] for name in self.blocks}
        for stage, stretch in zip(self.stages, self.stretch, strict=True):
            pools = Pools(stage, len(x), u.shape[1] // stage.stride, self.config.leaves)
            for y, _ in stage.run(u, stage.start(len(x))):
                pools.add(y)
            for name, values in self.read(pools, stretch).items():
                blocks[name].append(values.flatten(0, 1).T)
        return torch.cat([torch.cat(parts, dim=1) for parts in blocks.values()], dim=1)

    def read(self, pools: Pools, stretch: Tensor) -> dict[str, Tensor]:
        """Blocks of features (cells, R, cases) from the sums of a stage; zero before the first output."""
        total = sum(pools.count)
        if not total:
            return dict.fromkeys(self.blocks, torch.zeros_like(pools.energy))
        share, wins, margin = pools.sums.sum(1) / total
        energy = (pools.energy / total + 1e-12).log()
        made = {"share": share, "wins": wins.sqrt(), "margin": margin.sqrt(), "peak": pools.peak, "energy": energy}
        read = {name: made[name] for name in self.config.pools}
        if self.config.stretches:
            stacked = torch.stack([pools.share(first, end) for first, end in self.parts])
            index = stretch[None, :, :, None].expand(1, *stacked.shape[1:])
            read["stretch"] = stacked.gather(0, index)[0]
        return read

    @property
    def n_features(self) -> int:
        """Numbers of a case."""
        return sum(columns.stop - columns.start for columns in self.blocks.values())

    @property
    def blocks(self) -> dict[str, slice]:
        """Columns of each kind of feature."""
        count = sum(stage.bias.numel() for stage in self.stages)
        names = [*self.config.pools, *(["stretch"] if self.config.stretches else [])]
        return {name: slice(k * count, (k + 1) * count) for k, name in enumerate(names)}

    def names(self, channels: Sequence[str] | None = None) -> list[str]:
        """Where each feature comes from: family, window, source, pool, stretch.

        Args:
            channels: names of the channels; default their numbers.
        """
        named = [f"channel {name}" for name in channels or range(self.channels)]
        named += [f"mixture {k}" for k in range(len(self.mixing) - self.channels)]
        named += [f"difference of {name}" for name in named] if self.config.difference else []
        readouts = [
            f"{cell.family}, window {cell.window:.0f}, {named[cell.source]}, readout {k}"
            for cell in self.cells
            for k in range(self.readouts)
        ]
        made = [f"{readout}, {pool}" for pool in self.config.pools for readout in readouts]
        if self.config.stretches:
            leaves = self.config.leaves
            places = [self.parts[k] for index in self.stretch for k in index.flatten().tolist()]
            made += [
                f"{readout}, share in {first}/{leaves} to {end}/{leaves}"
                for readout, (first, end) in zip(readouts, places, strict=True)
            ]
        return made


def _halves(leaves: int) -> list[int]:
    """Sizes of dyadic stretches in leaves, without the whole.

    >>> _halves(8)
    [1, 2, 4]
    """
    return [2**k for k in range(leaves.bit_length() - 1)]
