"""Stretches of recordings, drawn anew each time a case comes up: shorter steps, and no recording is seen twice alike.

A model that pools over time, or reads a state, can train on stretches and be asked about whole recordings. One that is
shorter than a stretch stays whole.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from wavessm.data.drawn import RandomSource
from wavessm.data.source import Arrays, Batch, DataSet
from wavessm.errors import OptionError


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
