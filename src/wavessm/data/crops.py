"""Sources that draw at random: generated cases, and stretches of recordings that differ each time.

A resumed run draws what an uninterrupted one would have drawn: checkpoints keep the generator's state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wavessm.data.source import Arrays, Batch, DataSet, Source
from wavessm.errors import OptionError

Draw = Callable[[int, torch.Generator], Batch]
"""Draws so many cases, on the generator's device."""


class RandomSource(Source):
    """A source with chance in it, and the generator that it comes from.

    `get_state` and `set_state` are what a checkpoint keeps, so that a resumed run draws what an unbroken one would have
    drawn.
    """

    draws = True

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.generator = torch.Generator(device=device).manual_seed(seed)

    @property
    def device(self) -> torch.device:
        return self.generator.device

    def get_state(self) -> Tensor:
        """State of the generator, a byte tensor on the CPU."""
        return self.generator.get_state()

    def set_state(self, state: Tensor) -> None:
        """Go on from a state of `get_state`; it must come from the same kind of device."""
        self.generator.set_state(state.cpu())

    def is_on(self, device: torch.device | str) -> bool:
        """Whether it draws there already. On another device draws begin again from the seed, and differ."""
        device = torch.device(device)
        return device.type == self.device.type and device.index in (None, self.device.index)


class Generated(RandomSource):
    """Fresh cases on every call: `take` uses only how many indices it is given.

    draw: (count, generator) -> Batch on the generator's device.
    """

    def __init__(self, draw: Draw, epoch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(seed, device)
        self.draw, self.epoch = draw, epoch

    def __len__(self) -> int:
        return self.epoch

    def take(self, index: Tensor) -> Batch:
        return self.draw(len(index), self.generator)

    def to(self, device: torch.device | str) -> Generated:
        return self if self.is_on(device) else Generated(self.draw, self.epoch, self.seed, device)


class Stage(NamedTuple):
    """A stretch of a run: its share of the steps, the length of its cases, and what draws them."""

    share: float
    length: int
    draw: Draw


class Staged(Generated):
    """Drawn cases that get longer while a run goes on, stage after stage.

    `at` says where the run stands; before it is called, cases are those of the last stage.

    >>> draw = lambda length: lambda count, generator: Batch(torch.zeros(count, length, 1), torch.zeros(count, 1))
    >>> source = Staged([Stage(0.5, 8, draw(8)), Stage(0.5, 32, draw(32))], epoch=64, seed=0)
    >>> [source.at(done).take(torch.arange(2)).x.shape[1] for done in (0, 0.25, 0.5, 1)]
    [8, 8, 32, 32]
    """

    def __init__(self, stages: Sequence[Stage], epoch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(stages[-1].draw, epoch, seed, device)
        self.stages = tuple(stages)

    def stage(self, done: float) -> Stage:
        """The stage that a part `done` of the run lies in, 0 to 1."""
        for stage in self.stages:
            done -= stage.share
            if done < 0:
                return stage
        return self.stages[-1]

    def at(self, done: float) -> Staged:
        """Itself, ready to draw what belongs there."""
        self.draw = self.stage(done).draw
        return self

    def length_at(self, done: float) -> float:
        return self.stage(done).length / self.stages[-1].length

    def mean_length(self) -> float:
        *shorter, last = self.stages
        rest = 1 - sum(stage.share for stage in shorter)
        return rest + sum(stage.share * stage.length for stage in shorter) / last.length

    def to(self, device: torch.device | str) -> Staged:
        return self if self.is_on(device) else Staged(self.stages, self.epoch, self.seed, device)


class Crops(RandomSource):
    """Cases of `source` cut to `length` samples at random places.

    >>> whole = Arrays(torch.arange(10.0)[None, :, None], torch.tensor([0]))
    >>> x = Crops(whole, length=3, seed=0).take(torch.tensor([0])).x.flatten()
    >>> len(x), (x.diff() == 1).all().item()
    (3, True)
    """

    def __init__(self, source: Arrays, length: int, seed: int) -> None:
        longest = source.x.shape[1]
        if not 1 <= length <= longest:
            raise OptionError(
                f"crop: stretches of {length} samples, but recordings have {longest}; take 1 to {longest}."
            )
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
        steps = starts + torch.arange(self.length, device=self.device)
        return batch._replace(x=batch.x.gather(1, steps[..., None].expand(-1, -1, channels)))

    def to(self, device: torch.device | str) -> Crops:
        return self if self.is_on(device) else Crops(self.source.to(device), self.length, self.seed)


def cropped(data: DataSet, seconds: float, seed: int) -> DataSet:
    """A set whose training recordings are cut to so many seconds."""
    rate = data.info.rate
    if rate is None or not isinstance(data.train, Arrays):
        raise OptionError("crop: these data have no sampling rate or are no recordings; leave it out.")
    return dataclasses.replace(data, train=Crops(data.train, round(seconds * rate), seed))
