"""Sources that draw at random: generated cases, and crops of recordings that differ each time.

A resumed run draws what an uninterrupted one would have drawn: checkpoints keep the generator's state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from wavessm.data.source import Arrays, Batch, DataSet, Ragged, Source
from wavessm.errors import OptionError

Draw = Callable[[int, torch.Generator], Batch]


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
        moved = super().to(device)
        moved.generator = torch.Generator(device=device).manual_seed(self.seed)
        return moved


class Generated(RandomSource):
    """Fresh cases on every call: `take` uses only the number of indices it is given.

    Args:
        draw: draws a number of cases, on the generator's device.
        epoch: cases that count as one epoch.
        seed: of the generator.
        device: where it draws.

    >>> noise = Generated(lambda n, own: Batch(torch.randn(n, 8, 1, generator=own), torch.zeros(n)), epoch=64, seed=0)
    >>> len(noise), noise.take(torch.arange(2)).x.shape
    (64, torch.Size([2, 8, 1]))
    """

    def __init__(self, draw: Draw, epoch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(seed, device)
        self.draw, self.epoch = draw, epoch

    def __len__(self) -> int:
        return self.epoch

    def take(self, index: Tensor) -> Batch:
        return self.draw(len(index), self.generator)


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


def cropped(data: DataSet, seconds: float, seed: int) -> DataSet:
    """Return a set whose training recordings are cut to crops of this many seconds."""
    rate = data.info.step_rate
    if rate is None or not isinstance(data.train, Arrays | Ragged):
        raise OptionError("crop: these data have no sampling rate or are no recordings; leave it out.")
    return dataclasses.replace(data, train=Crops(data.train, round(seconds * rate), seed))
