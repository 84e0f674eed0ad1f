"""Window copying: find marked windows in noise and give back their sum (drawn on the training device).

Place in the pipeline: a `Staged` source for training, two fixed `Arrays` for evaluation. Every choice that the task
leaves open is a field of `WindowCopy`. Where the number of windows varies from case to case, the test split is scored
by it: equally many cases for every second number.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from wavessm.data import DataOptions, Recipe, Task
from wavessm.data.datasets.demo import EVALUATION_SEEDS, draw_windows
from wavessm.errors import OptionError

if TYPE_CHECKING:
    import torch

    from wavessm.data import Batch, DataSet
    from wavessm_lab.tasks.stages import Stage

_EVERY = 2
"""Of the numbers of windows, the test split has every second one."""


@dataclasses.dataclass(frozen=True)
class WindowCopy(DataOptions):
    """The task. Channel 1 is white noise; channel 2 is +1 at the first and -1 at the last sample of a window.

    The target, length d_max, is the sum of the windows, each filled up with zeros. Durations are uniform in
    [d_min, d_max]; after the last window comes a delay of at least r, uniform in [length/8, length/4]; windows have at
    least one free sample between them, and the rest of the room is split at random.

    >>> import torch
    >>> batch = WindowCopy(length=64, windows=2, d_min=4, d_max=8).draw(3, torch.Generator().manual_seed(0))
    >>> batch.x.shape, batch.y.shape
    (torch.Size([3, 64, 2]), torch.Size([3, 8]))
    >>> data = WindowCopy(128, windows_max=6, stages="32:0.5", cases=16).load(seed=0)
    >>> len(data.val), len(data.test), data.info.parts
    (16, 48, ('2', '4', '6'))
    """

    length: int = 256
    """Samples of a sequence."""
    windows: int = 2
    """Windows to find and add."""
    d_min: int = 8
    """Shortest window."""
    d_max: int = 8
    """Longest window."""
    windows_max: int | None = None
    """Highest number of windows: each case has its own, from windows to this; the test is scored by number."""
    stages: str = ""
    """Shorter lengths to begin with, each with its share of the steps: 128:0.4,1000:0.3."""
    cases_per_epoch: int = 16_384
    """Drawn cases that count as one epoch."""
    cases: int = 2048
    """Fixed cases of validation, and as many of test; with windows_max for each of windows, windows + 2, …"""

    checks: ClassVar[dict[str, Any]] = {
        "length": (lambda value: value >= 8, "at least 8"),
        "d_min": (lambda value: value >= 2, "at least 2"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_min > self.d_max:
            raise OptionError(f"d_min is {self.d_min}, more than d_max {self.d_max}; give d_min <= d_max.")
        if self.most < self.windows:
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

    def load(self, seed: int) -> DataSet:
        import torch

        from wavessm.data import Arrays, DataInfo, DataSet
        from wavessm_lab.tasks.stages import Staged

        numbers = range(self.windows, self.most + 1, _EVERY) if self.windows_max is not None else ()
        generator = {part: torch.Generator().manual_seed(own) for part, own in EVALUATION_SEEDS.items()}
        val = self.draw(self.cases, generator["val"])
        tests = [replace(self, windows=number, windows_max=None) for number in numbers] or [self]
        drawn = [each.draw(self.cases, generator["test"]) for each in tests]
        test = Arrays(torch.cat([batch.x for batch in drawn]), torch.cat([batch.y for batch in drawn]))
        info = DataInfo(
            "regression", 2, self.d_max, self.length, channels=("noise", "marker"),
            target_variance=self.target_variance, parts=tuple(map(str, numbers)),
        )  # fmt: skip
        train = Staged(self._stages(), self.cases_per_epoch, seed)
        return DataSet("window-copy", train, Arrays(val.x, val.y), test, info)

    def _stages(self) -> list[Stage]:
        """What a run draws, one stage after another; shorter sequences have the windows that fit."""
        from wavessm_lab.tasks.stages import Stage

        made = []
        for length, share in read_stages(self.stages):
            fitting = replace(self, length=length, windows_max=None).fitting
            most = None if self.windows_max is None else max(self.windows, min(self.windows_max, fitting))
            made.append(Stage(share, length, replace(self, length=length, windows_max=most).draw))
        return [*made, Stage(1.0, self.length, self.draw)]


def read_stages(text: str) -> list[tuple[int, float]]:
    """Lengths to begin with, each with its share of a run's steps; the rest has the task's own length.

    >>> read_stages("128:0.4,1000:0.3")
    [(128, 0.4), (1000, 0.3)]
    """
    try:
        stages = [(int(length), float(share)) for length, share in (s.split(":") for s in text.split(",") if s)]
    except ValueError:
        raise OptionError(f"stages is {text!r}, expected lengths and shares of the steps: 128:0.4,1000:0.3.") from None
    if not all(share > 0 for _, share in stages) or sum(share for _, share in stages) >= 1:
        raise OptionError(f"stages is {text!r}, expected positive shares that leave some steps for the full length.")
    return stages


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
        WindowCopy(),
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
