"""`FeatureModel`: state features with a ridge on top, fitted in closed form, for whole signals and for streams.

NaN is a sample that was not observed. The last value is held in the dynamics, which is exact for a signal that is
constant between samples; with missing="gap" positions without an observed sample are not pooled, with "hold" they are.
A case ends with its last observed sample.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import DataError, NotFiniteError, OptionError, check_int, real_array, shape_error
from wavessm.features.bank import CellGroup, FeatureConfig, StateBank
from wavessm.features.pools import pooled, read_pools
from wavessm.features.ridge import EXACT, Ridge, RidgeSums, calibrate, fit_ridge, side_by_side
from wavessm.nn.encoders import hold as fill
from wavessm.ops.modes import float64_device

BIAS_CASES = 32  # training cases on whose outputs the biases are quantiles
N_FEATURES = ((1_000, 12_500), (5_000, 25_000), (math.inf, 12_500))  # by default, below a number of training cases
AT_ONCE = 2**27  # features of all training cases that are held in memory; more are added up in blocks
BLOCK = 2048  # cases of such a block
MINOR = ("values", "profile", "energy")  # blocks that are worth much on some signals only
CASE_BYTES = {"cpu": 2**25, "cuda": 2**30}  # size of the chunks and states of a group of cells that are held at once
SLOW = 8  # stride from which streams read a group position by position


@contextlib.contextmanager
def one_thread(device: torch.device | str, small: bool = True) -> Iterator[None]:
    """One CPU thread for small operations: beside other processes, threads wait for each other ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if small and torch.device(device).type == "cpu" else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class SignalFeatures(nn.Module):
    """Signals of any lengths to state features: standardises each channel, then runs a bank drawn for these signals.

    x: (cases, length, channels) training signals, padded beyond `lengths` (cases,) or None; NaN was not observed.
    """

    mean: Tensor  # (channels,)
    scale: Tensor  # (channels,)

    def __init__(
        self, x: Tensor, lengths: Tensor | None, config: FeatureConfig, seed: int, device: torch.device | str
    ) -> None:
        super().__init__()
        ends = case_ends(x, lengths)
        mean, scale = _channel_scale(x, ends)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        if config.n_features is None:
            config = replace(config, n_features=next(count for most, count in N_FEATURES if len(x) < most))
        self.bank = StateBank(config, x.shape[2], int(ends.double().median()), seed)
        self.to(device)
        drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:BIAS_CASES]
        self.bank.set_biases(*self.prepared(x[drawn], ends[drawn]))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features (cases, features) of signals (cases, length, channels) on the CPU, on the bank's device."""
        bank, ends, device = self.bank, case_ends(x, lengths), self.mean.device
        order = ends.argsort(descending=True, stable=True)
        made = torch.empty(len(x), bank.n_features, device=device)
        largest = max(len(group.source) * (1 + group.decay.shape[1] / group.chunk) for group in bank.groups)
        budget = CASE_BYTES.get(device.type, 2**25) / (4 * largest)
        at_most = 64 if device.type == "cpu" else 4096
        with one_thread(device, len(x) <= EXACT):
            while len(order):
                rows = order[: max(8, min(at_most, int(budget / int(ends[order[0]]))))]
                made[rows.to(device)] = bank.features(*self.prepared(x[rows], ends[rows]))
                order = order[len(rows) :]
        return made

    def prepared(self, x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        """Signals standardised, missing samples filled, on the bank's device; and the samples to pool, None for all.

        (cases, length, channels), lengths (cases,) → (cases, longest, channels), (cases, longest) bool.
        """
        longest = int(ends.max())
        x = (x[:, :longest].to(self.mean) - self.mean) / self.scale
        inside = (torch.arange(longest) < ends[:, None]).to(x.device)
        inside_or_all = inside if int(ends.min()) < longest else None
        seen = ~x.isnan() & inside[..., None]
        if bool(seen.all()):
            return x, inside_or_all
        return hold(x, seen), seen.any(2) if self.bank.config.missing == "gap" else inside_or_all


def case_ends(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Length of each case (cases,): up to its last observed sample."""
    length = x.shape[1]
    ends = torch.full((len(x),), length) if lengths is None else lengths.long()
    if bool(x.isnan().any()):
        time = torch.arange(1, length + 1)
        ends = (time * (~x.isnan()).any(2) * (time <= ends[:, None])).amax(1)
        if int(ends.min()) == 0:
            raise DataError(f"case {int(ends.argmin())} of X has no observed sample; drop it.")
    return ends


def hold(x: Tensor, seen: Tensor) -> Tensor:
    """Signals (cases, length, channels) with the last observed value in place of those that are not `seen`.

    Before the first observed value comes that value, and zero in a channel without any.
    """
    first = x.gather(1, seen.int().argmax(1, keepdim=True)).nan_to_num(0.0)
    return fill(x.masked_fill(~seen, torch.nan), first[:, 0])[0]


class FeatureModel(nn.Module):
    """Signals to logits or numbers, fitted in closed form; called and streamed as a `SequenceModel`."""

    def __init__(self, features: SignalFeatures, ridge: Ridge) -> None:
        super().__init__()
        self.features, self.ridge = features, ridge.to(features.mean.device)

    @classmethod
    def fit(
        cls, x: Tensor, y: Tensor, kind: str, lengths: Tensor | None = None, weights: Tensor | None = None,
        config: FeatureConfig | None = None, seed: int = 0, device: torch.device | str = "cpu",
    ) -> FeatureModel:  # fmt: skip
        """Draw a bank for the signals and fit its head.

        Args:
            x: (cases, length, channels), padded beyond `lengths`; NaN was not observed.
            y: (cases,) classes from 0 on, (cases, labels) of 0 and 1, or (cases, numbers).
            kind: "multiclass", "multilabel" or "regression".
            lengths: (cases,) true lengths, or None.
            weights: (cases,) weights, or None; a case of weight 0 is left out. (cases, labels): each label has a ridge
                of its own, with its blocks and penalty, under its weights.
            config, seed, device: of the bank and everything that is drawn, and where to compute.
        """
        outputs = int(y.max()) + 1 if kind == "multiclass" else 0
        if weights is not None and not bool((counts := weights.reshape(len(weights), -1).amax(1) > 0).all()):
            x, y, weights = x[counts], y[counts], weights[counts]
            lengths = None if lengths is None else lengths[counts]
        features = SignalFeatures(x, lengths, config or FeatureConfig(), seed, device)
        targets = _targets(y, kind, outputs).to(float64_device(features.mean), torch.float32)
        if len(x) > features.bank.n_features > AT_ONCE / len(x) and (weights is None or weights.dim() == 1):
            sums = FeatureSums(features, kind, targets.shape[1])
            for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).split(BLOCK):
                ends, own = (None if each is None else each[rows] for each in (lengths, weights))
                sums.add(x[rows], y[rows], ends, own, rows)
            return sums.solve()
        made, blocks = features(x, lengths).to(targets.device), (features.bank.blocks, MINOR)
        if weights is None or weights.dim() == 1:
            with one_thread(device, len(x) <= EXACT):
                ridge = fit_ridge(made, targets, *blocks, weights, _scored(targets, kind))
                return cls(features, calibrate(ridge, kind, targets, weights))
        pairs = list(zip(targets.split(1, dim=1), weights.T.to(targets), strict=True))
        return cls(features, side_by_side([calibrate(fit_ridge(made, y, *blocks, w), kind, y, w) for y, w in pairs]))

    @property
    def size(self) -> int:
        """Fitted numbers of the head, those of features that are used."""
        return int(self.ridge.coef.any(1).sum() + 1) * self.ridge.coef.shape[1]

    @torch.no_grad()
    def forward(
        self, x: Tensor, lengths: Tensor | None = None, rate: float = 1.0, marks: Tensor | None = None
    ) -> Tensor:
        """Calibrated logits, or numbers (cases, outputs), of signals (cases, length, channels) at the rate of fit."""
        _check_rate(rate)
        ends = itertools.repeat(None) if lengths is None else lengths.cpu().split(BLOCK)
        parts = zip(x.cpu().split(BLOCK), ends, strict=False)
        return torch.cat([self.ridge(self.features(*part)) for part in parts])

    def contributions(self, x: Tensor, output: int, lengths: Tensor | None = None) -> Tensor:
        """What each feature adds to the logit of an output (cases, features).

        Their sum and a constant are the output, exactly; `features.bank.names()` says where they come from.
        """
        ridge = self.ridge
        return (self.features(x, lengths) - ridge.mean) / ridge.scale * ridge.coef[:, output]

    def initial_state(self, batch: int = 1) -> FeatureStream:
        """A stream that gives, after every chunk, what the model gives for the signal so far."""
        if self.features.bank.config.stretches:
            raise OptionError("this model pools over stretches of whole signals and cannot stream; fit it with "
                              "stretches=False (--no-stretches).")  # fmt: skip
        return FeatureStream(self, batch)

    def stream(self, x: Tensor, state: FeatureStream, rate: float = 1.0) -> tuple[Tensor, FeatureStream]:
        """Process a chunk; returns the output for the whole stream so far, and the state."""
        _check_rate(rate)
        return state.step(x), state

    def describe(self) -> dict[str, Any]:
        """Plain values from which `restore` makes a model of the same shape."""
        bank, ridge = self.features.bank, self.ridge
        config = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(bank.config).items()}
        return {"bank": config, "length": bank.length, "seed": bank.seed, "weights": ridge.weights,
                "penalty": ridge.penalty, "error": ridge.error}  # fmt: skip

    @classmethod
    def restore(cls, described: Mapping[str, Any], info: Any) -> FeatureModel:
        """A model of the shape of `describe` for the `DataInfo` of its run, its tensors yet to be loaded."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in described["bank"].items()}
        noise = torch.randn(2, described["length"], info.width, generator=torch.Generator().manual_seed(0))
        features = SignalFeatures(noise, None, FeatureConfig(**values), described["seed"], "cpu")
        coef = torch.zeros(features.bank.n_features, info.d_output)
        fitted = described["penalty"], described["weights"], described["error"]
        return cls(features, Ridge(coef[:, 0].clone(), coef[:, 0].clone(), coef, coef[0].clone(), *fitted))


class FeatureSums:
    """A `FeatureModel` fitted from blocks of cases, for data larger than memory or on several machines.

    The features are drawn for some of the cases; machines share one bank (`empty`).
    """

    def __init__(self, features: SignalFeatures, kind: str, outputs: int, sums: RidgeSums | None = None) -> None:
        self.features, self.kind, self.outputs, self.sums = features, kind, outputs, sums

    def add(
        self, x: Tensor, y: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Add a block of cases, as in `FeatureModel.fit`; `rows` (cases,) are their places among all."""
        made = self.features(x, lengths).to(float64_device(self.features.mean))
        self.sums = self.sums or RidgeSums.empty(made, self.outputs)
        self.sums.add(made, _targets(y, self.kind, self.outputs).to(made), weights, rows)

    def _first(self) -> RidgeSums:
        if self.sums is None:
            raise DataError("no case was added yet; add one first.")
        return self.sums

    def empty(self) -> FeatureSums:
        """Sums over no case that can be added to these: for another machine, once these have their first block."""
        return FeatureSums(self.features, self.kind, self.outputs, self._first().cleared())

    def __add__(self, other: FeatureSums) -> FeatureSums:
        """The sums over the cases of both."""
        return FeatureSums(self.features, self.kind, self.outputs, self._first() + other._first())

    def solve(self) -> FeatureModel:
        """The model of all cases so far."""
        sums = self._first()
        targets, weights = sums.sample()[1:]
        ridge = sums.solve(self.features.bank.blocks, MINOR, _scored(targets, self.kind))
        model = FeatureModel(self.features, calibrate(ridge, self.kind, targets, weights))
        model.ridge.sample = sums.rows
        return model


class FeatureStream:
    """A `FeatureModel` on a stream: memory of constant size, the same numbers as offline for the signal so far.

    As offline, a signal ends with its last observed sample: samples without any number wait for the next that has one.
    """

    def __init__(self, model: FeatureModel, batch: int) -> None:
        batch = check_int(batch, "FeatureModel.initial_state: batch", minimum=1)
        self.cases, self.channels = [_CaseStream(model) for _ in range(batch)], len(model.features.mean)

    @torch.no_grad()
    def step(self, x: Tensor | np.ndarray) -> Tensor:
        """Take samples (batch, length, channels), NaN where missing; returns the logits (batch, outputs) so far."""
        x = x if isinstance(x, Tensor) else torch.from_numpy(real_array(x, "FeatureStream.step: x"))
        if x.dim() != 3 or (len(x), x.shape[2]) != (len(self.cases), self.channels):
            expected = f"({len(self.cases)}, any length, {self.channels})"
            raise shape_error("FeatureStream.step: x", x, f"(batch, length, channels) = {expected}")
        if bool((x := x.float()).isinf().any()):
            raise NotFiniteError("FeatureStream.step: x has infinity in float32; drop it, or give NaN in its place.")
        return torch.cat([case.step(own) for case, own in zip(self.cases, x.split(1), strict=True)])


class _CaseStream:
    """The stream of one case."""

    def __init__(self, model: FeatureModel) -> None:
        bank, mean = model.features.bank, model.features.mean
        self.model, self.waiting = model, 0
        groups = (group.by_position() if group.stride >= SLOW else group for group in bank.groups)
        self.groups = [_GroupStream(group, bank.summed) for group in groups]
        self.counts = mean.new_zeros(1, 8, bank.values.sources, bank.values.levels.shape[1] + 1)
        self.first = self.last = mean.new_full((1, 1, len(mean)), torch.nan)  # NaN before there was a number

    def step(self, x: Tensor) -> Tensor:
        """Outputs (1, outputs) after samples (1, length, channels)."""
        mean, scale = self.model.features.mean, self.model.features.scale
        known = F.pad(x.to(mean), (0, 0, self.waiting, 0), value=torch.nan)
        observed = torch.nonzero(~known[0].isnan().all(1))
        end = int(observed[-1]) + 1 if len(observed) else 0
        self.waiting = known.shape[1] - end
        return self.model.ridge(self._take((known[:, :end] - mean) / scale))

    def _take(self, x: Tensor) -> Tensor:
        """Features (1, features) after standardised samples (1, length, channels), the last one observed."""
        bank, gap = self.model.features.bank, self.model.features.bank.config.missing == "gap"
        seen, unknown = ~x.isnan(), self.first.isnan()
        held = torch.cat([self.last, x], dim=1)
        held = hold(held, ~held.isnan())  # what a channel has before its first number, that number, is known with it
        first, last, x = torch.where(unknown, held[:, :1], self.first), held[:, :1], held[:, 1:]
        u, mask = bank.sources(x, first, last), seen.any(2).T.float() if gap else None
        read = [read_pools(*group.step(u, mask), bank.pools) for group in self.groups]
        row = [part[name].flatten(0, 1).T for name in bank.pools for part in read]
        new = unknown & seen.any(1, keepdim=True)
        if bank.config.values and x.shape[1]:
            more = bank.values.counts(x, seen.any(2) if gap else None, last, eighths=False)
            if bool(new.any()):  # what is known only now was counted as zeros
                now, zero = (bank.values.counts(own, None) for own in (first.where(new, 0), torch.zeros_like(first)))
                more += self.counts[:, :, :1].sum() * (now - zero)
            self.counts += more
        row += [bank.values.read(self.counts)] if bank.config.values else []
        self.first, self.last = (own.masked_fill(unknown & ~new, torch.nan) for own in (first, held[:, -1:]))
        return torch.cat(row, dim=1)


class _GroupStream:
    """State, sums and positions of whole chunks, and the samples of the open chunk of one group of cells."""

    def __init__(self, group: CellGroup, names: set[str]) -> None:
        sums = group.bias.new_zeros(*group.bias.shape, 1)
        self.group, self.count = group, sums.new_zeros(1)
        self.state = sums.new_zeros(*group.decay.shape[:2], 1)
        self.sums = dict.fromkeys(names, sums)
        self.open: list[Tensor] = []

    def step(self, u: Tensor, mask: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """Sums (cells, R, 1) and positions (1,) with samples u (sources, length, 1), seen where mask (length, 1) is."""
        new = [u] if mask is None else [u, mask[None]]
        new = [torch.cat(pair, dim=1) for pair in zip(self.open, new, strict=True)] if self.open else new
        whole = new[0].shape[1] // self.group.chunk * self.group.chunk
        if whole:
            self.sums, self.count, self.state = self._added(*(part[:, :whole] for part in new))
        self.open = [part[:, whole:] for part in new]
        if self.open[0].shape[1] < self.group.stride:  # before the first position of a chunk
            return self.sums, self.count
        return self._added(*self.open)[:2]

    def _added(self, u: Tensor, mask: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The sums with those of more samples, mask (1, length, 1), their positions, and the state after them."""
        z, state = self.group.columns(u, self.state)
        valid = u.new_ones(1).expand(z.shape[2], self.group.positions, 1)  # whole chunks without gaps
        if mask is not None or u.shape[1] % self.group.chunk:
            valid = self.group.seen(u.new_ones(u.shape[1], 1) if mask is None else mask[0], u.shape[1])
        found = pooled(self.group, z, valid, self.sums)
        parts = [{name: values.sum(2) for name, values in sums.items()} for _, sums in found]
        sums = {name: before + torch.cat([part[name] for part in parts]) for name, before in self.sums.items()}
        return sums, self.count + valid.sum((0, 1)), state


def _check_rate(rate: float) -> None:
    if rate != 1:
        raise OptionError(f"state features read signals of the sampling rate of training, this is another (rate "
                          f"{rate:g}); resample them, or train with --method gradient.")  # fmt: skip


def _channel_scale(x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (channels,) of the observed training samples; 1 for a channel that does not move."""
    inside = (torch.arange(x.shape[1]) < ends[:, None])[..., None] & ~x.isnan()
    n = inside.sum((0, 1)).clamp_min(1)
    mean = torch.where(inside, x, 0).sum((0, 1), dtype=torch.float64) / n
    deviation = (torch.where(inside, x - mean, 0).square().sum((0, 1), dtype=torch.float64) / n).sqrt()
    moves = deviation > 1e-12 * mean.abs()
    if not bool(moves.any()):
        raise DataError("X is constant in float32 in all training cases; subtract its offset if it does vary.")
    return mean.float(), torch.where(moves, deviation, 1.0).float()


def _scored(targets: Tensor, kind: str) -> Tensor | None:
    """Cases that can be left out (cases,): those whose class has another case. None: all."""
    if kind != "multiclass":
        return None
    ones = targets > 0
    return (ones & (ones.sum(0) > 1)).any(1)


def _targets(y: Tensor, kind: str, outputs: int) -> Tensor:
    """What the ridge fits: ±1 for classes and labels, numbers as they are. (cases, outputs)"""
    if kind == "multiclass":
        return 2.0 * F.one_hot(y.long(), outputs).float() - 1.0
    return 2.0 * y.float() - 1.0 if kind == "multilabel" else y.float().reshape(len(y), -1)
