"""`FeatureModel`: state features with a ridge on top, fitted in closed form, for whole signals and for streams."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wavessm.errors import DataError, OptionError
from wavessm.features.bank import FeatureConfig, Pools, StateBank
from wavessm.features.calibration import Calibration, calibrate
from wavessm.features.ridge import Ridge, fit_ridge

BIAS_CASES = 64
"""Training cases on whose outputs the biases are quantiles."""
BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
"""Size of the outputs of a stage that are held at once."""


class SignalFeatures:
    """Signals of any lengths to state features: standardises each channel, then runs a bank drawn for these signals.

    Args:
        x: (cases, length, channels) training signals, padded beyond `lengths`.
        lengths: (cases,) true lengths, or None.
        config: size and pools of the bank.
        seed: of everything that is drawn.
        device: where to compute.
    """

    def __init__(
        self, x: Tensor, lengths: Tensor | None, config: FeatureConfig, seed: int, device: torch.device | str
    ) -> None:
        self.mean, self.scale = _channel_scale(x, lengths)
        length = x.shape[1] if lengths is None else int(lengths.double().median())
        self.bank = StateBank(config, x.shape[2], length, seed).to(torch.device(device))
        drawn = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:BIAS_CASES]
        shortest = x.shape[1] if lengths is None else int(lengths[drawn].min())
        self.bank.set_biases(self.standardised(x[drawn, :shortest]))

    def __call__(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features (cases, features) of signals (cases, length, channels), on the bank's device."""
        largest = max(stage.weight.shape[0] * stage.weight.shape[1] for stage in self.bank.stages)
        at_once = max(8, BLOCK_BYTES.get(self.bank.device.type, 2**24) // (4 * largest))
        made = torch.empty(len(x), self.bank.n_features, device=self.bank.device)
        for rows, length in _same_length(x, lengths):
            for block in rows.split(at_once):
                made[block.to(made.device)] = self.bank.features(self.standardised(x[block, :length]))
        return made

    def standardised(self, x: Tensor) -> Tensor:
        """Signals (…, channels) with the training signals' mean and deviation taken out."""
        return (x.float() - self.mean) / self.scale


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
            x: (cases, length, channels), padded beyond `lengths`.
            y: (cases,) classes from 0 on, (cases, labels) of 0 and 1, or (cases, numbers).
            kind: "multiclass", "multilabel" or "regression".
            lengths: (cases,) true lengths, or None.
            weights: (cases,) weights, or None.
            config: size and pools of the bank.
            seed: of everything that is drawn.
            device: where to compute.
        """
        features = SignalFeatures(x, lengths, config or FeatureConfig(), seed, device)
        bank = features.bank
        weights = None if weights is None else weights.to(bank.device).float()
        pools = bank.config.pools
        choices = [pools, (*pools, "stretch")] if bank.config.stretches else [pools]
        targets = _targets(y, kind).to(bank.device)
        ridge = fit_ridge(features(x, lengths), targets, bank.blocks, choices, weights)
        if kind == "regression":
            return cls(features, ridge, None)
        counted = None if weights is None else weights[ridge.sample]
        truth = y.to(bank.device)[ridge.sample]
        return cls(features, ridge, calibrate(kind, ridge.left_out, truth, counted))

    def scores(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Outputs of the head (cases, outputs): numbers of a regression, uncalibrated scores of classes."""
        return self.ridge.predict(self.features(x, lengths))

    def logits(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Calibrated logits (cases, outputs), or the numbers of a regression."""
        scores = self.scores(x, lengths)
        return scores if self.calibration is None else self.calibration.logits(scores)

    def stream(self, batch: int = 1) -> FeatureStream:
        """A stream that gives, after every chunk, what `logits` gives for the signal so far."""
        if "stretch" in self.ridge.chosen:
            raise OptionError(
                "this model pools over stretches of a whole signal and cannot stream; fit it with stretches=False."
            )
        return FeatureStream(self, batch)


class FeatureStream:
    """A `FeatureModel` on a stream: memory of constant size, the same numbers as offline for the signal so far."""

    def __init__(self, model: FeatureModel, batch: int) -> None:
        self.model, self.batch = model, batch
        stages = model.features.bank.stages
        self.states = [stage.start(batch) for stage in stages]
        self.pools = [Pools(stage, batch) for stage in stages]
        self.buffers: list[Tensor] = [model.features.mean.new_empty(0)] * len(
            stages
        )  # samples of each stage's open chunk
        self.first: Tensor | None = None
        self.last: Tensor | None = None

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """Take samples (batch, length, channels); returns the logits (batch, outputs) of the signal so far."""
        bank = self.model.features.bank
        u = torch.einsum("blc,sc->slb", self.model.features.standardised(x).to(bank.device), bank.mixing)
        self.first = u[:, :1] if self.first is None else self.first
        u = u - self.first
        if bank.config.difference:
            before = u[:, :1] if self.last is None else self.last
            self.last = u[:, -1:]
            u = torch.cat([u, u.diff(dim=1, prepend=before)])
        features: dict[str, list[Tensor]] = {name: [] for name in bank.blocks}
        for at in range(len(bank.stages)):
            self._advance(at, u)
            for name, values in bank.read(self.pools[at], bank.stretch[at]).items():
                features[name].append(values.flatten(0, 1).T)
        row = torch.cat([torch.cat(parts, dim=1) for parts in features.values()], dim=1)
        scores = self.model.ridge.predict(row)
        return scores if self.model.calibration is None else self.model.calibration.logits(scores)

    def _advance(self, at: int, u: Tensor) -> None:
        """Run samples (sources, length, batch) through a stage; what does not fill a chunk stays in the buffer."""
        stage = self.model.features.bank.stages[at]
        M = stage.carry.shape[2] - stage.carry.shape[1]
        buffer = self.buffers[at]
        read = 0 if not buffer.numel() else buffer.shape[1] // stage.stride
        u = u if not buffer.numel() else torch.cat([buffer, u], dim=1)
        state = self.states[at]
        for first in range(0, u.shape[1], M):
            chunk = u[:, first : first + M]
            for y, after in stage.run(chunk, state):
                if y.shape[1] > read:
                    self.pools[at].add(y[:, read:])
                state = after
            read = 0
            if chunk.shape[1] == M:
                self.states[at] = state
            state = self.states[at]
        self.buffers[at] = u[:, u.shape[1] // M * M :]


def _channel_scale(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation (channels,) of the training samples; 1 for a channel that does not move."""
    flat = x.flatten(0, 1) if lengths is None else x[torch.arange(x.shape[1]) < lengths[:, None]]
    flat = flat.double()
    mean, deviation = flat.mean(0), flat.std(0, correction=0)
    moves = deviation > 1e-12 * mean.abs()
    if not bool(moves.any()):
        raise DataError("X is constant in all training cases; there is nothing to learn.")
    return mean.float(), torch.where(moves, deviation, 1.0).float()


def _targets(y: Tensor, kind: str) -> Tensor:
    """What the ridge fits: ±1 for classes and labels, numbers as they are. (cases, outputs)"""
    if kind == "multiclass":
        return 2.0 * torch.nn.functional.one_hot(y.long()).float() - 1.0
    return 2.0 * y.float() - 1.0 if kind == "multilabel" else y.float().reshape(len(y), -1)


def _same_length(x: Tensor, lengths: Tensor | None) -> Iterator[tuple[Tensor, int]]:
    """Rows of the cases of each length."""
    if lengths is None:
        yield torch.arange(len(x)), x.shape[1]
        return
    for length in lengths.unique().tolist():
        yield torch.nonzero(lengths == length)[:, 0], int(length)
