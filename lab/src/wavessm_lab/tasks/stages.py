"""A source whose cases get longer during training. `window_copy.py` uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch

from wavessm.data.crops import Draw, Generated


class Stage(NamedTuple):
    """A part of a training: its share of the steps, the length of its cases, and what draws them."""

    share: float
    length: int
    draw: Draw


class Staged(Generated):
    """Fresh cases, stage after stage: `at` sets the stage, before it is called it is the last.

    >>> from wavessm.data import Batch
    >>> draw = lambda length: lambda count, generator: Batch(torch.zeros(count, length, 1), torch.zeros(count, 1))
    >>> source = Staged([Stage(0.5, 8, draw(8)), Stage(0.5, 32, draw(32))], epoch=64, seed=0)
    >>> [source.at(done).take(torch.arange(2)).x.shape[1] for done in (0, 0.25, 0.5, 1)]
    [8, 8, 32, 32]
    """

    def __init__(self, stages: Sequence[Stage], epoch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(stages[-1].draw, epoch, seed, device)
        self.stages = tuple(stages)

    def _stage(self, done: float) -> Stage:
        for stage in self.stages:
            done -= stage.share
            if done < 0:
                return stage
        return self.stages[-1]

    def at(self, done: float) -> Self:
        self.draw = self._stage(done).draw
        return self

    def length_at(self, done: float) -> float:
        return self._stage(done).length / self.stages[-1].length
