"""Windows in noise, the task of `wavessm demo`: generated, so that it needs no download.

wavessm-lab has the whole family of such tasks as `window-copy`, which draws its cases with `draw_windows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wavessm.data.task import DataOptions, Recipe, Task

if TYPE_CHECKING:
    import torch

    from wavessm.data.info import DataSet
    from wavessm.data.source import Batch

EVALUATION_SEEDS = {"val": 20_250_001, "test": 20_250_002}
"""Validation and test cases are the same for every seed of training."""


def draw_windows(
    count: int, generator: torch.Generator, length: int, windows: tuple[int, int], durations: tuple[int, int]
) -> Batch:
    """Draw cases of noise with marked windows, whose sum is the target: x (count, length, 2), y (count, longest).

    Channel 1 is white noise; channel 2 is +1 at the first and -1 at the last sample of a window. Numbers and durations
    of windows are uniform between two bounds, both included. After the last window comes a delay of at least r, uniform
    in [length/8, length/4]; windows have at least one free sample between them. Shorter windows end in zeros in y.
    """
    import torch

    from wavessm.data.source import Batch

    device, (fewest, most), (shortest, longest) = generator.device, windows, durations
    shape = (count, most)
    number = torch.full((count, 1), fewest, device=device)
    if most > fewest:
        number = torch.randint(fewest, most + 1, (count, 1), generator=generator, device=device)
    there = torch.arange(most, device=device) < number  # (count, most): the windows that a case has
    duration = torch.randint(shortest, longest + 1, shape, generator=generator, device=device) * there
    delay = torch.randint(length // 8, length // 4 + 1, (count, 1), generator=generator, device=device)
    slack = length - delay - duration.sum(1, keepdim=True) - (number - 1)
    cuts = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    cuts = cuts.masked_fill(~there, 1.0).sort(dim=1).values
    before = (duration + 1).cumsum(1) - (duration + 1)  # earlier windows, each with its free sample
    starts = ((cuts * (slack + 1)).long() + before).masked_fill(~there, 0)  # (count, most)

    noise = torch.randn(count, length, generator=generator, device=device)
    marker, sign = torch.zeros_like(noise), there.to(noise.dtype)
    marker.scatter_add_(1, starts, sign)
    marker.scatter_add_(1, (starts + duration - 1).clamp_(min=0), -sign)
    steps = torch.arange(longest, device=device)
    rows = (starts[..., None] + steps).clamp_(max=length - 1)  # (count, most, longest)
    values = noise.gather(1, rows.flatten(1)).view(rows.shape)
    target = values.masked_fill(steps >= duration[..., None], 0.0).sum(1)
    return Batch(torch.stack([noise, marker], dim=2), target)


@dataclass(frozen=True)
class DemoOptions(DataOptions):
    """Options of the data: cases of 64 samples with two windows of 8."""

    cases_per_epoch: int = 1600
    """Drawn cases that count as one epoch."""
    cases: int = 1024
    """Cases of validation, and of test."""

    def load(self, seed: int) -> DataSet:
        import torch

        from wavessm.data.crops import Generated
        from wavessm.data.source import Arrays, DataInfo, DataSet

        draw = partial(draw_windows, length=LENGTH, windows=(WINDOWS, WINDOWS), durations=(DURATION, DURATION))
        generators = (torch.Generator().manual_seed(own) for own in EVALUATION_SEEDS.values())
        val, test = (Arrays(*draw(self.cases, generator)[:2]) for generator in generators)
        info = DataInfo("regression", 2, DURATION, LENGTH, channels=("noise", "marker"), target_variance=WINDOWS)
        return DataSet("demo", Generated(draw, self.cases_per_epoch, seed), val, test, info)


LENGTH, WINDOWS, DURATION = 64, 2, 8
_BEST = Recipe(
    {"d_model": 64, "n_layers": 2, "d_state": 32, "b_init": "slow-modes", "norm": "none", "dt_min_first": 0.02,
     "dt_max_first": 0.2, "dt_min": 0.25 / LENGTH, "dt_max": 2.5 / LENGTH},
    {"lr": 0.01, "batch_size": 32, "steps": 1000, "schedule": "one-cycle", "eval_batch_size": 128},
    "the first layer fast enough for single samples, the second slow; no norm, so that sums stay linear",
)  # fmt: skip
TASKS = (Task("demo", DemoOptions(), {"best": _BEST}, head="last"),)
