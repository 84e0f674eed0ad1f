"""`FeatureModel`: state features with a ridge on top, fitted in closed form, for whole signals and for streams.

NaN is a sample that was not observed. The last value is held in the dynamics, which is exact for a signal that is
constant between samples; with missing="gap" positions without an observed sample are not pooled, with "hold" they are.
A case ends with its last observed sample.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wavessm.errors import DataError, OptionError
from wavessm.features.bank import CellGroup, FeatureConfig, StateBank
from wavessm.features.calibration import Calibration, calibrate
from wavessm.features.pools import pooled, read_pools, total_sums
from wavessm.features.ridge import Blocks, Ridge, RidgeSums, fit_ridge

BIAS_CASES = 32
"""Training cases on whose outputs the biases are quantiles."""
MANY_CASES = 1000
"""Training cases from which twice the number of features is drawn by default."""
CASE_BYTES = {"cpu": 2**25, "cuda": 2**30}
"""Size of the chunks and states of a group of cells that are held at once."""


class SignalFeatures:
    """Signals of any lengths to state features: standardises each channel, then runs a bank drawn for these signals.

    Args:
        x: (cases, length, channels) training signals, padded beyond `lengths`; NaN was not observed.
        lengths: (cases,) true lengths, or None.
        config: size and pools of the bank.
        seed: of everything that is drawn.
        device: where to compute.
    """

    def __init__(
        self, x: Tensor, lengths: Tensor | None, config: FeatureConfig, seed: int, device: torch.device | str
    ) -> None:
        ends = case_ends(x, lengths)
        self.missing = config.missing
        self.mean, self.scale = _channel_scale(x, ends)
        length = int(ends.double().median())
        if config.n_features is None:
            config = replace(config, n_features=10_000 if len(x) < MANY_CASES else 20_000)
        self.bank = StateBank(config, x.shape[2], length, seed).to(torch.device(device))
        drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:BIAS_CASES]
        values, mask = self.prepared(x[drawn], ends[drawn])
        self.bank.set_biases(values.to(device), None if mask is None else mask.to(device))

    def __call__(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features (cases, features) of signals (cases, length, channels), on the bank's device."""
        bank, ends = self.bank, case_ends(x, lengths)
        order = ends.argsort(descending=True, stable=True)
        made = torch.empty(len(x), bank.n_features, device=bank.device)
        largest = max(len(group.source) * (1 + group.decay.shape[1] / group.chunk) for group in bank.groups)
        budget = CASE_BYTES.get(bank.device.type, 2**25) / (4 * largest)
        at_most = 64 if bank.device.type == "cpu" else 4096
        while len(order):
            rows = order[: max(8, min(at_most, int(budget / int(ends[order[0]]))))]
            values, mask = self.prepared(x[rows], ends[rows])
            mask = None if mask is None else mask.to(bank.device)
            made[rows.to(bank.device)] = bank.features(values.to(bank.device), mask)
            order = order[len(rows) :]
        return made

    def prepared(self, x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor | None]:
        """Signals standardised, missing samples filled; and the samples to pool, None for all.

        Args:
            x: (cases, length, channels).
            ends: (cases,) lengths of the cases.

        Returns:
            (cases, longest, channels) float32 and (cases, longest, 1 or channels) bool or None.
        """
        longest = int(ends.max())
        x = (x[:, :longest].float() - self.mean) / self.scale
        inside = (torch.arange(longest) < ends[:, None])[..., None] if int(ends.min()) < longest else None
        seen = ~x.isnan() if inside is None else ~x.isnan() & inside
        if bool(seen.all()):
            return x, inside
        x = hold(x, seen)
        gaps = not bool(seen.all()) if inside is None else bool((seen != inside).any())
        return x, seen if self.missing == "gap" and gaps else inside


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


def hold(x: Tensor, seen: Tensor, last: Tensor | None = None) -> Tensor:
    """Signals with the last observed value in place of missing ones.

    Args:
        x: (cases, length, channels); seen: the same, bool.
        last: (cases, 1, channels), value before x, NaN for none; before the first observed value comes that value, and
            zero in a channel without any.
    """
    time = torch.arange(x.shape[1], device=x.device)[:, None]
    index = torch.where(seen, time, -1).cummax(1).values
    filled = x.gather(1, index.clamp_min(0))
    first = x.gather(1, seen.int().argmax(1, keepdim=True))
    before = first if last is None else torch.where(last.isnan(), first, last)
    return torch.where(index < 0, before, filled).nan_to_num(0.0)


class FeatureModel:
    """Signals to classes, labels or numbers, fitted in closed form.

    Args:
        features: signals to state features.
        ridge: the head.
        calibration: from its scores to logits; None for a regression.
    """

    def __init__(self, features: SignalFeatures, ridge: Ridge, calibration: Calibration | None) -> None:
        self.features, self.ridge, self.calibration = features, ridge, calibration

    @classmethod
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        kind: str,
        lengths: Tensor | None = None,
        weights: Tensor | None = None,
        config: FeatureConfig | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> FeatureModel:
        """Draw a bank for the signals and fit its head.

        Args:
            x: (cases, length, channels), padded beyond `lengths`; NaN was not observed.
            y: (cases,) classes from 0 on, (cases, labels) of 0 and 1, or (cases, numbers).
            kind: "multiclass", "multilabel" or "regression".
            lengths: (cases,) true lengths, or None.
            weights: (cases,) weights, or None; a case of weight 0 is left out.
            config: size and pools of the bank.
            seed: of everything that is drawn.
            device: where to compute.
        """
        outputs = int(y.max()) + 1 if kind == "multiclass" else 0
        if weights is not None and bool((weights <= 0).any()):
            counts = weights > 0
            x, y, weights = x[counts], y[counts], weights[counts]
            lengths = None if lengths is None else lengths[counts]
        features = SignalFeatures(x, lengths, config or FeatureConfig(), seed, device)
        targets = _targets(y, kind, outputs).to(features.bank.device)
        ridge = fit_ridge(features(x, lengths), targets, _blocks(features), weights, _scored(targets, kind))
        counted = None if weights is None else weights[ridge.sample.to(weights.device)]
        return cls(features, ridge, calibrated(kind, ridge, y[ridge.sample.to(y.device)], counted))

    def scores(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Outputs of the head (cases, outputs): numbers of a regression, uncalibrated scores of classes."""
        return self.ridge.predict(self.features(x, lengths))

    def logits(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Calibrated logits (cases, outputs), or the numbers of a regression."""
        return self._calibrated(self.scores(x, lengths))

    def _calibrated(self, scores: Tensor) -> Tensor:
        return scores if self.calibration is None else self.calibration.logits(scores)

    def contributions(self, x: Tensor, output: int, lengths: Tensor | None = None) -> Tensor:
        """What each feature adds to the logit of an output (cases, features).

        Their sum and a constant are `logits(x)[:, output]`, exactly; `features.bank.names()` says where they come from.
        """
        added = self.ridge.contributions(self.features(x, lengths), output)
        if self.calibration is None:
            return added
        slope = self.calibration.slope
        return added * (slope if slope.dim() == 0 else slope[output])

    def stream(self, batch: int = 1) -> FeatureStream:
        """A stream that gives, after every chunk, what `logits` gives for the signal so far."""
        if "stretch" in self.ridge.chosen or self.features.bank.values.parts[1:]:
            raise OptionError(
                "this model pools over stretches of a whole signal and cannot stream; fit it with stretches=False."
            )
        return FeatureStream(self, batch)


class FeatureSums:
    """A `FeatureModel` fitted from blocks of cases, for data larger than memory or on several machines.

    Args:
        features: signals to state features, drawn for some of the cases; machines share one (`empty`).
        kind: "multiclass", "multilabel" or "regression".
        outputs: number of classes, labels or numbers.
    """

    def __init__(self, features: SignalFeatures, kind: str, outputs: int) -> None:
        self.features, self.kind, self.outputs = features, kind, outputs
        self.sums: RidgeSums | None = None

    def add(self, x: Tensor, y: Tensor, lengths: Tensor | None = None, weights: Tensor | None = None) -> None:
        """Add a block of cases, as in `FeatureModel.fit`."""
        made = self.features(x, lengths)
        if self.sums is None:
            self.sums = RidgeSums.empty(made, self.outputs)
        self.sums.add(made, _targets(y, self.kind, self.outputs).to(made), weights)

    def empty(self) -> FeatureSums:
        """Sums over no case that can be added to these: for another machine, once these have their first block."""
        made = FeatureSums(self.features, self.kind, self.outputs)
        if self.sums is not None:
            made.sums = self.sums.cleared()
        return made

    def __add__(self, other: FeatureSums) -> FeatureSums:
        """The sums over the cases of both."""
        if self.sums is None or other.sums is None:
            return self if other.sums is None else other
        made = FeatureSums(self.features, self.kind, self.outputs)
        made.sums = self.sums + other.sums
        return made

    def solve(self) -> FeatureModel:
        """The model of all cases so far."""
        if self.sums is None:
            raise DataError("no case was added yet; call add first.")
        ridge = self.sums.solve(_blocks(self.features), _scored(self.sums.kept[1], self.kind))
        truth = self.sums.kept[1]
        truth = truth.argmax(1) if self.kind == "multiclass" else (truth > 0).float()
        return FeatureModel(self.features, ridge, calibrated(self.kind, ridge, truth, self.sums.kept[2]))


class FeatureStream:
    """A `FeatureModel` on a stream: memory of constant size, the same numbers as offline for the signal so far."""

    def __init__(self, model: FeatureModel, batch: int) -> None:
        self.model, self.batch = model, batch
        bank = model.features.bank
        self.groups = [_GroupStream(group, batch, bank.pools) for group in bank.groups]
        self.counts: Tensor | None = None
        self.first: Tensor | None = None
        self.last: Tensor | None = None

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """Take samples (batch, length, channels), none missing; returns the logits (batch, outputs) so far."""
        features = self.model.features
        bank = features.bank
        x = ((x.float() - features.mean) / features.scale).to(bank.device)
        self.first = x[:, :1] if self.first is None else self.first
        u = bank.sources(x, self.first, self.last)
        blocks: dict[str, list[Tensor]] = {name: [] for name in bank.config.pools}
        for group in self.groups:
            for name, values in group.step(u, bank.config.pools).items():
                blocks[name].append(values.flatten(0, 1).T)
        row = torch.cat([torch.cat(parts, dim=1) for parts in blocks.values()], dim=1)
        if bank.config.values:
            more = bank.values.counts(x, None, self.last, eighths=False)
            self.counts = more if self.counts is None else self.counts + more
            row = torch.cat([row, bank.values.read(self.counts)], dim=1)
        self.last = x[:, -1:]
        return self.model._calibrated(self.model.ridge.predict(row))


class _GroupStream:
    """State, sums and the samples of the open chunk of one group of cells."""

    def __init__(self, group: CellGroup, batch: int, names: set[str]) -> None:
        self.group, self.names, self.state = group, names, group.start(batch)
        self.sums: dict[str, Tensor] | None = None
        self.count = 0
        self.open: Tensor | None = None

    def step(self, u: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Take samples u (sources, length, batch); returns the pools (cells, R, batch) of the signal so far."""
        group = self.group
        u = u if self.open is None else torch.cat([self.open, u], dim=1)
        whole = u.shape[1] // group.chunk * group.chunk
        if whole:
            sums, self.state = self._pooled(u[:, :whole])
            self.sums = sums if self.sums is None else _joined(self.sums, sums)
            self.count += whole // group.stride
        self.open = u[:, whole:]
        sums, _ = self._pooled(self.open)
        count = self.count + self.open.shape[1] // group.stride
        total = sums if self.sums is None else _joined(self.sums, sums)
        return read_pools(total, u.new_full((1, 1), float(count)), names)

    def _pooled(self, u: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        z, state = self.group.columns(self.group.padded(u), self.state)
        valid = self.group.seen(u.new_ones(1, u.shape[1], 1))
        parts = [total_sums(sums) for _, sums in pooled(self.group, z, valid, self.names)]
        return {name: torch.cat([part[name] for part in parts]) for name in self.names}, state


def _joined(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sums of two parts of a signal."""
    return {name: torch.maximum(a[name], b[name]) if name == "peak" else a[name] + b[name] for name in a}


def calibrated(kind: str, ridge: Ridge, truth: Tensor, weights: Tensor | None) -> Calibration | None:
    """Curves from the ridge's leave-one-out scores to logits; None for a regression."""
    if kind == "regression":
        return None
    device = ridge.left_out.device
    return calibrate(kind, ridge.left_out, truth.to(device), None if weights is None else weights.to(device))


def _blocks(features: SignalFeatures) -> Blocks:
    """Pools and stretches to start from; stretches may be left out, values added."""
    bank = features.bank
    start = tuple(name for name in bank.blocks if name != "values")
    return Blocks(bank.blocks, start, tuple(name for name in ("stretch", "values") if name in bank.blocks))


def _channel_scale(x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (channels,) of the observed training samples; 1 for a channel that does not move."""
    inside = (torch.arange(x.shape[1]) < ends[:, None])[..., None] & ~x.isnan()
    n = inside.sum((0, 1)).clamp_min(1)
    mean = torch.where(inside, x, 0).sum((0, 1), dtype=torch.float64) / n
    deviation = (torch.where(inside, x - mean, 0).square().sum((0, 1), dtype=torch.float64) / n).sqrt()
    moves = deviation > 1e-12 * mean.abs()
    if not bool(moves.any()):
        raise DataError("X is constant in all training cases; there is nothing to learn.")
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
        return 2.0 * torch.nn.functional.one_hot(y.long(), outputs).float() - 1.0
    return 2.0 * y.float() - 1.0 if kind == "multilabel" else y.float().reshape(len(y), -1)
