"""Window copying: find marked windows in noise and give back their sum (drawn on the training device).

Place in the pipeline: a `Staged` source for training, two fixed `Arrays` for evaluation. Every choice that the task
leaves open is a field of `WindowCopy`. Where the number of windows varies from case to case, the test split is scored
by it: equally many cases for every second number.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING

from wavessm.data import DataOptions, Recipe, Task
from wavessm.data.datasets.demo import EVALUATION_SEEDS, draw_windows
from wavessm.errors import OptionError, check_int

if TYPE_CHECKING:
    import torch

    from wavessm.data import Batch, DataSet
    from wavessm_lab.tasks.stages import Stage

_EVERY = 2
"""Of the numbers of windows, the test split has every second one."""


@dataclasses.dataclass(frozen=True)
class WindowCopy:
    """The task. Channel 1 is white noise; channel 2 is +1 at the first and -1 at the last sample of a window.

    The target, length d_max, is the sum of the windows, each filled up with zeros. Durations are uniform in
    [d_min, d_max]; after the last window comes a delay of at least r, uniform in [length/8, length/4]; windows have at
    least one free sample between them, and the rest of the room is split at random. With `windows_max` every case has
    its own number of windows, uniform in [windows, windows_max].

    >>> import torch
    >>> batch = WindowCopy(length=64, windows=2, d_min=4, d_max=8).draw(3, torch.Generator().manual_seed(0))
    >>> batch.x.shape, batch.y.shape
    (torch.Size([3, 64, 2]), torch.Size([3, 8]))
    """

    length: int = 4000
    windows: int = 2
    d_min: int = 8
    d_max: int = 8
    windows_max: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("length", 8), ("windows", 1), ("d_min", 2), ("d_max", 2)):
            check_int(getattr(self, name), name, least)
        if self.d_min > self.d_max:
            raise OptionError(f"d_min is {self.d_min}, more than d_max {self.d_max}; give d_min <= d_max.")
        if self.windows_max is not None and check_int(self.windows_max, "windows_max", 1) < self.windows:
            raise OptionError(f"windows_max is {self.windows_max}, less than windows {self.windows}; give more.")
        if self.most > self.fitting:
            room, need = self.length - self.length // 4, self.most * (self.d_max + 1) - 1
            raise OptionError(f"{self.most} windows of up to {self.d_max} samples need {need} steps, but length "
                              f"{self.length} leaves {room} before the longest delay; raise the length.")  # fmt: skip

    @property
    def most(self) -> int:
        """The highest number of windows in a case."""
        return self.windows if self.windows_max is None else self.windows_max

    @property
    def fitting(self) -> int:
        """Windows that fit before the longest delay, however long they turn out."""
        return (self.length - self.length // 4 + 1) // (self.d_max + 1)

    @property
    def target_variance(self) -> float:
        """Variance of a target entry under unit noise: E[W] E[d] / d_max."""
        return (self.windows + self.most) / 2 * (self.d_min + self.d_max) / 2 / self.d_max

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """`count` cases on the generator's device: x (count, length, 2), y (count, d_max)."""
        windows, durations = (self.windows, self.most), (self.d_min, self.d_max)
        return draw_windows(count, generator, self.length, windows, durations)


Stages = tuple[tuple[int, float], ...]
"""A curriculum: lengths to begin with, each with its share of a run's steps. The rest has the task's own length."""


def read_stages(text: str) -> Stages:
    """Stages as they are typed.

    >>> read_stages("128:0.4,1000:0.3")
    ((128, 0.4), (1000, 0.3))
    """
    try:
        stages = tuple((int(length), float(share)) for length, share in (s.split(":") for s in text.split(",") if s))
    except ValueError:
        raise OptionError(f"stages is {text!r}, expected lengths and shares of the steps: 128:0.4,1000:0.3.") from None
    if not all(share > 0 for _, share in stages) or sum(share for _, share in stages) >= 1:
        raise OptionError(f"stages is {text!r}, expected positive shares that leave some steps for the full length.")
    return stages


def window_copying(
    length: int = 4000,
    windows: int = 2,
    d_min: int = 8,
    d_max: int = 8,
    seed: int = 0,
    device: torch.device | str = "cpu",
    cases_per_epoch: int = 16_384,
    cases: int = 2048,
) -> DataSet:
    """Fresh training cases from `seed`, `cases_per_epoch` in an epoch, and 2 x `cases` fixed ones to evaluate on.

    >>> data = window_copying(length=128, windows=2, cases=16)
    >>> len(data.val), data.info.target_variance
    (16, 2.0)
    """
    return copying_set(WindowCopy(length, windows, d_min, d_max), (), seed, device, cases_per_epoch, cases)


def copying_set(
    task: WindowCopy,
    stages: Stages = (),
    seed: int = 0,
    device: torch.device | str = "cpu",
    cases_per_epoch: int = 16_384,
    cases: int = 2048,
) -> DataSet:
    """The same for any task, starting with shorter sequences if `stages` say so, which have the windows that fit.

    With `windows_max` the test split has `cases` cases for each of windows, windows + 2, …

    >>> data = copying_set(WindowCopy(128, 2, windows_max=6), ((32, 0.5),), cases=16)
    >>> len(data.val), len(data.test), data.info.parts
    (16, 48, ('2', '4', '6'))
    """
    import torch

    from wavessm.data import Arrays, DataInfo, DataSet
    from wavessm_lab.tasks.stages import Staged

    check_int(cases_per_epoch, "cases_per_epoch", 1)
    check_int(cases, "cases", 1)
    numbers = range(task.windows, task.most + 1, _EVERY) if task.windows_max is not None else ()
    generator = {part: torch.Generator().manual_seed(own) for part, own in EVALUATION_SEEDS.items()}
    val = task.draw(cases, generator["val"])
    tests = [replace(task, windows=number, windows_max=None) for number in numbers] or [task]
    drawn = [each.draw(cases, generator["test"]) for each in tests]
    test = Arrays(torch.cat([batch.x for batch in drawn]), torch.cat([batch.y for batch in drawn]))
    info = DataInfo(
        "regression", 2, task.d_max, task.length, channels=("noise", "marker"), target_variance=task.target_variance,
        parts=tuple(map(str, numbers)),
    )  # fmt: skip
    train = Staged(_stages(task, stages), cases_per_epoch, seed, device)
    return DataSet("window-copy", train, Arrays(val.x, val.y).to(device), test.to(device), info)


def _stages(task: WindowCopy, stages: Stages) -> list[Stage]:
    """What a run draws, one stage after another."""
    from wavessm_lab.tasks.stages import Stage

    made = []
    for length, share in stages:
        fitting = replace(task, length=length, windows_max=None).fitting
        most = None if task.windows_max is None else max(task.windows, min(task.windows_max, fitting))
        made.append(Stage(share, length, replace(task, length=length, windows_max=most).draw))
    return [*made, Stage(1.0, task.length, task.draw)]


@dataclasses.dataclass(frozen=True)
class WindowCopyOptions(DataOptions):
    """Options of the data."""

    length: int = 256
    """Samples of a sequence."""
    windows: int = 2
    """Windows to find and add."""
    windows_max: int | None = None
    """Highest number of windows: each case has its own, from windows to this; the test is scored by number."""
    stages: str = ""
    """Shorter lengths to begin with, each with its share of the steps: 128:0.4,1000:0.3."""
    d_min: int = 8
    """Shortest window."""
    d_max: int = 8
    """Longest window."""
    cases_per_epoch: int = 16_384
    """Drawn cases that count as one epoch."""
    cases: int = 2048
    """Fixed cases of validation, and as many of test."""

    def load(self, seed: int) -> DataSet:
        task = WindowCopy(self.length, self.windows, self.d_min, self.d_max, self.windows_max)
        return copying_set(task, read_stages(self.stages), seed, cases_per_epoch=self.cases_per_epoch, cases=self.cases)


_PAPER = Recipe(
    {"d_model": 128, "n_layers": 2, "b_init": "slow-modes"},
    {"lr": 5e-3, "batch_size": 64, "epochs": 31.25, "schedule": "one-cycle", "warmup": 0.3, "precision": "tf32"},
    "the paper gives two layers of 128 only; the rest is ours",
)  # 8,000 steps
_BEST = _PAPER.change(
    "the first layer fast enough for single samples, the second slow; no norm, so that sums stay linear; lr 1e-2; in "
    "stages of length, the second layer slows down with it",
    {"norm": "none", "dt_min_first": 0.02, "dt_max_first": 0.2, "dt_min": 0.002, "dt_max": 0.02},
    lr=0.01,
    epochs=39.0625,  # 10,000 steps
    warmup=0.1,
    val_per_epoch=0.2,
    eval_batch_size=128,
    stretch_timescales=True,
)
TASKS = (
    Task(
        "window-copy",
        WindowCopyOptions(),
        {"paper": _PAPER, "best": _BEST},
        head="last",
        help="find marked windows in noise and add them",
    ),
)
_ARENA = "wavessm_lab.tasks."
MORE = {
    "listops": (_ARENA + "listops", "values of nested lists of digits"),
    "text": (_ARENA + "text", "IMDb reviews by character, good or bad"),
    "retrieval": (_ARENA + "retrieval", "pairs of papers by character, cited or not"),
    "image": (_ARENA + "image", "CIFAR-10 in grey, pixel by pixel"),
    "pathfinder": (_ARENA + "pathfinder", "whether two discs mark one path, 32 × 32 pixels"),
    "pathx": (_ARENA + "pathfinder", "whether two discs mark one path, 128 × 128 pixels"),
}
"""Other tasks of the lab: module and one line of help. The entry point `wavessm.tasks` names this module."""
