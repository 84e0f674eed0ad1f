"""Batches of a `Source` in an order that is a pure function of seed and epoch.

A resumed run asks for the batches from its step on and gets those of an uninterrupted run. Several processes take parts
of the same batches. Read `loop.py` next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wavessm.data.crops import cropped
from wavessm.data.source import Batch, DataSet, Ragged, Source
from wavessm.training.augment import check_augmentation
from wavessm.training.config import TrainConfig
from wavessm.training.distributed import ALONE, DistInfo


def order(cases: int, seed: int, epoch: int) -> Tensor:
    """Return the permutation of one epoch, (cases,) long.

    >>> bool((order(5, seed=0, epoch=1) == order(5, seed=0, epoch=1)).all()), order(5, 0, 1).sort().values.tolist()
    (True, [0, 1, 2, 3, 4])
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(cases, generator=generator)


@dataclass
class TrainBatches:
    """The training batches of steps start … stop − 1. The last batch of an epoch is filled up from its beginning."""

    source: Source
    batch_size: int
    seed: int
    start: int
    stop: int
    dist: DistInfo = ALONE
    total: int = 0  # steps of the run, by which a source with stages knows its progress; 0 is the end

    def __iter__(self) -> Iterator[Batch]:
        cases, size = len(self.source), self.batch_size
        in_epoch = max(1, -(-cases // size))
        epoch, permutation = -1, torch.empty(0, dtype=torch.long)
        for step in range(self.start, self.stop):
            if step // in_epoch != epoch:
                epoch = step // in_epoch
                permutation = self.source.arrange(order(cases, self.seed, epoch), size)
                # Every batch has the same size: a captured step has fixed shapes.
                permutation = torch.cat([permutation] * (1 + size // cases) + [permutation[:size]])
            self.source.at(step / self.total if self.total else 1.0)
            at = (step % in_epoch) * size
            yield self._part(permutation[at : at + size])

    def _part(self, index: Tensor) -> Batch:
        """This process's part of a batch. A source that draws must draw all of it, to stay in step with the others."""
        piece = self.dist.part(len(index))
        if not self.source.draws:
            return self.source.take(index[piece])
        return Batch(*(part[piece] if isinstance(part, Tensor) else part for part in self.source.take(index)))  # type: ignore[arg-type]


@dataclass
class EvalBatches:
    """A split from first case to last, once; the last batch may be smaller.

    Each of several processes has its part; one without cases gets the first case, which `cases` does not count.
    """

    source: Source
    batch_size: int
    dist: DistInfo = ALONE

    @property
    def cases(self) -> int:
        """Number of cases of this process."""
        piece = self.dist.part(len(self.source))
        return piece.stop - piece.start

    def __iter__(self) -> Iterator[Batch]:
        index = torch.arange(len(self.source), device=self.source.device)
        own = index[self.dist.part(len(index))]
        for part in self.source.split(own if len(own) else index[:1], self.batch_size):
            yield self.source.take(part)


def as_trained(data: DataSet, config: TrainConfig) -> DataSet:
    """Return the set with its training split cropped and sorted into buckets as the config asks.

    A captured step needs fixed shapes, so there a batch is filled up to a bucket even if it is the only one, as batches
    of tokens are in any case.
    """
    check_augmentation(config, data.info)
    if config.crop:
        data = cropped(data, config.crop, config.seed)
    if isinstance(data.train, Ragged) and (config.cuda_graphs or config.buckets > 1):
        filled = config.cuda_graphs or not data.train.is_signal
        data = replace(data, train=data.train.in_buckets(config.buckets, filled))
    return data
