"""Sources that draw at random: generated cases, and crops of recordings that differ each time.

A resumed run draws what an uninterrupted one would have drawn: checkpoints keep the generator's state.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from wavessm.data.source import Arrays, Batch, DataSet, Ragged, Source
from wavessm.errors import OptionError

Draw = Callable[[int, torch.Generator], Batch]
"""Draws a number of cases, on the generator's device."""


class RandomSource(Source):
    """A source with a generator on `device`, whose state is what a checkpoint keeps."""

    draws = True

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.generator = torch.Generator(device=device).manual_seed(seed)

    @property
    def device(self) -> torch.device:
        return self.generator.device

    def get_state(self) -> Tensor:
        return self.generator.get_state()

    def set_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())

    def to(self, device: torch.device | str) -> Self:
        """Return the source on a device; on another than its own, draws start again from the seed, and differ."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        moved = copy.copy(self)
        moved.generator = torch.Generator(device=device).manual_seed(self.seed)
        return moved


class Stage(NamedTuple):
    """A part of a training: its share of the steps, the length of its cases, and what draws them."""

    share: float
    length: int
    draw: Draw


class Generated(RandomSource):
    """Fresh cases on every call: `take` uses only the number of indices it is given.

    Cases may get longer during training, stage after stage: `at` sets the stage, before it is called it is the last.

    Args:
        stages: one, or several of growing length.
        epoch: cases that count as one epoch.
        seed: of the generator.
        device: where it draws.

    >>> draw = lambda length: lambda count, generator: Batch(torch.zeros(count, length, 1), torch.zeros(count, 1))
    >>> source = Generated([Stage(0.5, 8, draw(8)), Stage(0.5, 32, draw(32))], epoch=64, seed=0)
    >>> [source.at(done).take(torch.arange(2)).x.shape[1] for done in (0, 0.25, 0.5, 1)]
    [8, 8, 32, 32]
    """

    def __init__(self, stages: Sequence[Stage], epoch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(seed, device)
        self.stages, self.stage, self.epoch = tuple(stages), stages[-1], epoch

    def __len__(self) -> int:
        return self.epoch

    def take(self, index: Tensor) -> Batch:
        return self.stage.draw(len(index), self.generator)

    def _stage(self, done: float) -> Stage:
        for stage in self.stages:
            done -= stage.share
            if done < 0:
                return stage
        return self.stages[-1]

    def at(self, done: float) -> Self:
        self.stage = self._stage(done)
        return self

    def length_at(self, done: float) -> float:
        return self._stage(done).length / self.stages[-1].length


class Crops(RandomSource):
    """Recordings of `source` cut to `length` samples at random places, new ones each time; shorter ones stay whole.

    >>> whole = Arrays(torch.arange(10.0)[None, :, None], torch.tensor([0]))
    >>> x = Crops(whole, length=3, seed=0).take(torch.tensor([0])).x.flatten()
    >>> len(x), (x.diff() == 1).all().item()
    (3, True)
    """

    def __init__(self, source: Arrays | Ragged, length: int, seed: int) -> None:
        longest = source.x.shape[1] if isinstance(source, Arrays) else int(source.sizes.max())
        if not 1 <= length <= longest:
            raise OptionError(f"crop: {length} samples, but recordings have {longest}; take 1 to {longest}.")
        super().__init__(seed, source.device)
        self.source, self.length = source, length

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: Tensor) -> Batch:
        batch = self.source.take(index)
        cases, longest, channels = batch.x.shape
        if batch.lengths is None:
            starts = torch.randint(longest - self.length + 1, (cases, 1), generator=self.generator, device=self.device)
        else:
            room = (batch.lengths - self.length).clamp(min=0) + 1
            chance = torch.rand(cases, dtype=torch.float64, generator=self.generator, device=self.device)
            starts = (chance * room).long()[:, None]
            batch = batch._replace(lengths=batch.lengths.clamp(max=self.length))
        steps = starts + torch.arange(min(self.length, longest), device=self.device)
        if batch.y.dim() == 2 and not batch.y.is_floating_point():  # a label for each step
            batch = batch._replace(y=batch.y.gather(1, steps))
        if batch.times is not None:
            batch = batch._replace(times=batch.times.gather(1, steps))
        return batch._replace(x=batch.x.gather(1, steps[..., None].expand(-1, -1, channels)))

    def to(self, device: torch.device | str) -> Self:
        moved = super().to(device)
        moved.source = self.source.to(device)
        return moved


def cropped(data: DataSet, seconds: float, seed: int) -> DataSet:
    """Return a set whose training recordings are cut to crops of this many seconds."""
    rate = data.info.step_rate
    if rate is None or not isinstance(data.train, Arrays | Ragged):
        raise OptionError("crop: these data have no sampling rate or are no recordings; leave it out.")
    return dataclasses.replace(data, train=Crops(data.train, round(seconds * rate), seed))
