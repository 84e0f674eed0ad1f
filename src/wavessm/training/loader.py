"""Stage 8c: batches of a `Source` in an order that is a pure function of seed and epoch.

A run that goes on at step s asks for the batches from s on and gets what an unbroken run would have got. A source that
draws its cases (window copying) has a generator; its state is saved with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wavessm.data.source import Batch, Generated, Source
from wavessm.errors import OptionError


def order(cases: int, seed: int, epoch: int) -> Tensor:
    """The permutation of one epoch. (cases,) long

    >>> bool((order(5, seed=0, epoch=1) == order(5, seed=0, epoch=1)).all()), order(5, 0, 1).sort().values.tolist()
    (True, [0, 1, 2, 3, 4])
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(cases, generator=generator)


@dataclass
class Stretch:
    """The training batches of steps start … stop − 1. The last batch of an epoch is filled up from its beginning."""

    source: Source
    batch_size: int
    seed: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[Batch]:
        cases = len(self.source)
        in_epoch = max(1, -(-cases // self.batch_size))
        epoch, permutation = -1, torch.empty(0, dtype=torch.long)
        for step in range(self.start, self.stop):
            if step // in_epoch != epoch:
                epoch = step // in_epoch
                permutation = order(cases, self.seed, epoch).to(device_of(self.source))
                # Every batch has the same size: a captured step has fixed shapes.
                permutation = torch.cat(
                    [permutation] * (1 + self.batch_size // cases) + [permutation[: self.batch_size]]
                )
            at = (step % in_epoch) * self.batch_size
            yield self.source.take(permutation[at : at + self.batch_size])


@dataclass
class Whole:
    """A split from first case to last, once; the last batch may be smaller."""

    source: Source
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        index = torch.arange(len(self.source), device=device_of(self.source))
        for part in index.split(self.batch_size):
            yield self.source.take(part)


def device_of(source: Source) -> torch.device:
    """Where a source keeps its cases; the CPU for those that do not say."""
    return torch.device(getattr(source, "device", "cpu"))


def source_state(source: Source) -> Tensor | None:
    """What a checkpoint must hold of a source: the state of its generator, or None."""
    return source.get_state() if isinstance(source, Generated) else None


def restore_source(source: Source, state: Tensor | None) -> None:
    """Let a source that draws go on where `source_state` was taken."""
    if isinstance(source, Generated) and state is not None:
        try:
            source.set_state(state)
        except RuntimeError as reason:
            raise OptionError(
                f"the run began on another kind of device than {source.device}; go on there, its cases are drawn there."
            ) from reason
