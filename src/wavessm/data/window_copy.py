"""Window copying: find marked windows in noise and give back their sum (drawn on the training device).

Place in the pipeline: a `Generated` source for training and two fixed `Arrays` for evaluation. Every choice that the
task leaves open is a field of `WindowCopy`.
"""

from __future__ import annotations

import dataclasses

import torch

from wavessm.checks import whole
from wavessm.data.source import Arrays, Batch, DataInfo, DataSet, Generated
from wavessm.errors import OptionError

# The evaluation sets are the same for every seed of training, on every device.
_EVALUATION_SEEDS = {"val": 20_250_001, "test": 20_250_002}


@dataclasses.dataclass(frozen=True)
class WindowCopy:
    """The task. Channel 1 is white noise; channel 2 is +1 at the first and -1 at the last sample of a window.

    The target, length d_max, is the sum of the windows, each filled up with zeros. Durations are uniform in
    [d_min, d_max]; after the last window comes a delay of at least r, uniform in [length/8, length/4]; windows have at
    least one free sample between them, and the rest of the room is split at random.

    >>> batch = WindowCopy(length=64, windows=2, d_min=4, d_max=8).draw(3, torch.Generator().manual_seed(0))
    >>> batch.x.shape, batch.y.shape
    (torch.Size([3, 64, 2]), torch.Size([3, 8]))
    """

    length: int = 4000
    windows: int = 2
    d_min: int = 8
    d_max: int = 8

    def __post_init__(self) -> None:
        for name, least in (("length", 8), ("windows", 1), ("d_min", 2), ("d_max", 2)):
            whole(getattr(self, name), name, least)
        if self.d_min > self.d_max:
            raise OptionError(f"d_min is {self.d_min}, more than d_max {self.d_max}; give d_min <= d_max.")
        room, need = self.length - self.length // 4, self.windows * (self.d_max + 1) - 1
        if need > room:
            raise OptionError(f"{self.windows} windows of up to {self.d_max} samples need {need} steps, but length "
                              f"{self.length} leaves {room} before the longest delay; raise the length.")  # fmt: skip

    @property
    def target_variance(self) -> float:
        """Variance of a target entry under unit noise: W E[d] / d_max."""
        return self.windows * (self.d_min + self.d_max) / 2 / self.d_max

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """`count` cases on the generator's device: x (count, length, 2), y (count, d_max)."""
        device = generator.device
        shape = (count, self.windows)
        durations = torch.randint(self.d_min, self.d_max + 1, shape, generator=generator, device=device)
        delay = torch.randint(self.length // 8, self.length // 4 + 1, (count, 1), generator=generator, device=device)
        slack = self.length - delay - durations.sum(1, keepdim=True) - (self.windows - 1)
        cuts = torch.rand(shape, generator=generator, device=device, dtype=torch.float64).sort(dim=1).values
        before = (durations + 1).cumsum(1) - (durations + 1)  # earlier windows, each with its free sample
        starts = (cuts * (slack + 1)).long() + before  # (count, windows)

        noise = torch.randn(count, self.length, generator=generator, device=device)
        marker = torch.zeros_like(noise)
        marker.scatter_(1, starts, 1.0)
        marker.scatter_(1, starts + durations - 1, -1.0)
        steps = torch.arange(self.d_max, device=device)
        rows = (starts[..., None] + steps).clamp_(max=self.length - 1)  # (count, windows, d_max)
        values = noise.gather(1, rows.flatten(1)).view(rows.shape)
        target = values.masked_fill(steps >= durations[..., None], 0.0).sum(1)
        return Batch(torch.stack([noise, marker], dim=2), target)


def window_copying(
    length: int = 4000,
    windows: int = 2,
    d_min: int = 8,
    d_max: int = 8,
    seed: int = 0,
    device: torch.device | str = "cpu",
    epoch: int = 16_384,
    cases: int = 2048,
) -> DataSet:
    """Fresh training cases from `seed` (`epoch` of them count as one epoch) and 2 x `cases` fixed ones to evaluate on.

    >>> data = window_copying(length=128, windows=2, cases=16)
    >>> len(data.val), data.info.target_variance
    (16, 2.0)
    """
    task = WindowCopy(length, windows, d_min, d_max)
    whole(epoch, "epoch", 1)
    whole(cases, "cases", 1)
    fixed = {}
    for part, own_seed in _EVALUATION_SEEDS.items():
        batch = task.draw(cases, torch.Generator().manual_seed(own_seed))
        fixed[part] = Arrays(batch.x, batch.y).to(device)
    info = DataInfo("regression", 2, d_max, length, channels=("noise", "marker"), target_variance=task.target_variance)
    return DataSet("window-copy", Generated(task.draw, epoch, seed, device), fixed["val"], fixed["test"], info)
