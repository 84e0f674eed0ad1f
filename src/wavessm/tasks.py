"""Stage 7b: tasks. A name, the options of its data, how to load them, and the model that fits them.

    task + options → DataSet;   recipe's model options + what the data say → ModelConfig

Training, evaluation and the command line know tasks by name only; a new task is one record here.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

from wavessm.arena_options import (
    ImageOptions,
    ListopsOptions,
    PathfinderOptions,
    RetrievalOptions,
    SpeechOptions,
    TextOptions,
)
from wavessm.data.source import DataSet
from wavessm.errors import OptionError, Registry, unknown_name
from wavessm.own_options import ArraysOptions, CsvOptions, WavOptions, WfdbOptions

ROOT_VARIABLE = "WAVESSM_DATA"


class DataOptions(Protocol):
    """Options of a task's data: a frozen dataclass of plain values that can load them."""

    def load(self, seed: int) -> DataSet: ...


def data_root(given: str = "") -> Path:
    """The folder of the published sets: as given, or $WAVESSM_DATA."""
    root = given or os.environ.get(ROOT_VARIABLE, "")
    if not root:
        raise OptionError(f"no data folder: give it with --root FOLDER, or set {ROOT_VARIABLE}.")
    return Path(root)


@dataclass(frozen=True)
class PtbxlOptions:
    root: str = ""
    """Folder of the PTB-XL release, or one that holds it; default $WAVESSM_DATA."""
    labels: str = "super-diag"
    """Label set: all, diag, sub-diag, super-diag, form or rhythm."""
    hz: Literal[100, 500] = 100
    """Sampling rate of the records."""
    skip_bad: bool = False
    """Leave out records that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_ptbxl

        return load_ptbxl(data_root(self.root), self.labels, rate=self.hz, skip_bad=self.skip_bad)


@dataclass(frozen=True)
class ForecastOptions:
    root: str = ""
    """Folder of the CSV files, or one that holds forecasting/; default $WAVESSM_DATA."""
    dataset: str = "ETTh1"
    """ETTh1, ETTh2, ETTm1, WTH (weather) or ECL."""
    horizon: int = 24
    """Steps to forecast."""
    variables: Literal["uni", "multi"] = "uni"
    """The target alone, or all columns in and out."""
    seq_len: int | None = None
    """Steps of context; None takes Informer's for the set and horizon."""
    timeenc: Literal[0, 1, 2, 3] = 0
    """Calendar as tables (0), as real numbers (1), as waves of day and week (2), or of day, week and year (3)."""
    eval_stamp: bool = False
    """Give the model the calendar of the horizon too; it is known."""

    def __post_init__(self) -> None:
        from wavessm.data.datasets.forecast import ALIASES

        object.__setattr__(self, "dataset", ALIASES.get(self.dataset.lower(), self.dataset))

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_forecast
        from wavessm.data.datasets.forecast import SETS

        if self.dataset not in SETS:
            raise unknown_name("forecasting set", self.dataset, SETS)
        return load_forecast(
            data_root(self.root),
            self.dataset,
            horizon=self.horizon,
            multivariate=self.variables == "multi",
            seq_len=self.seq_len,
            timeenc=self.timeenc,
            eval_stamp=self.eval_stamp,
        )


def data_checksum(options: DataOptions) -> str:
    """What tells own data from others of the same shape and scale; empty for published and generated sets."""
    own = getattr(options, "checksum", None)
    return "" if own is None else own()


@dataclass(frozen=True)
class Task:
    """A name for one kind of training run."""

    name: str
    help: str
    recipes: str  # group of recipes, see training/task_recipes.py
    data: DataOptions
    where: str | None = None  # the data option that says where the data are
    head: str = "pool"  # of models that do not forecast
    fixed: tuple[str, ...] = ()  # data options that the name decides


TASKS: Registry[Task] = Registry("task")


def register(task: Task) -> None:
    """Add a task to those that `wavessm train` knows."""
    TASKS.register(task.name, task)


for _labels, _recipes in (
    ("super-diag", "ptbxl"),
    *((labels, "ptbxl-many") for labels in ("sub-diag", "diag", "all")),
    *((labels, f"ptbxl-{labels}") for labels in ("form", "rhythm")),
):
    register(
        Task(
            f"ptbxl-{_labels}",
            f"PTB-XL electrocardiograms, {_labels} labels",
            _recipes,
            PtbxlOptions(labels=_labels),
            where="root",
            fixed=("labels",),
        )
    )
register(
    Task("forecast", "ETTh1, ETTh2, ETTm1, WTH or ECL, as Informer reads them", "forecast", ForecastOptions(), "root")
)
register(Task("speech", "Speech Commands, single words at 16 kHz", "speech", SpeechOptions(), "root"))
register(Task("listops", "values of nested lists of digits", "listops", ListopsOptions(), "root"))
register(Task("text", "IMDb reviews by character, good or bad", "text", TextOptions(), "root"))
register(
    Task("retrieval", "pairs of papers by character, cited or not", "retrieval", RetrievalOptions(), "root", "pair")
)
register(Task("image", "CIFAR-10 in grey, pixel by pixel", "image", ImageOptions(), "root"))
for _name, _pixels in (("pathfinder", "32 × 32"), ("pathx", "128 × 128")):
    register(
        Task(
            _name,
            f"whether two discs mark one path, {_pixels} pixels",
            _name,
            PathfinderOptions(name=_name),
            where="root",
            fixed=("name",),
        )
    )
register(Task("arrays", "your own X.npy and y.npy in a folder", "own", ArraysOptions(), "folder"))
register(Task("csv", "forecast your own CSV", "own-forecast", CsvOptions(), "path"))
register(Task("wav", "your own WAV files, a folder for each class", "own", WavOptions(), "folder"))
register(Task("wfdb", "your own WFDB records with a table of labels", "own", WfdbOptions(), "folder"))


def data_options(task: str, values: dict[str, Any]) -> DataOptions:
    """The options of a task's data with some of them replaced; unknown ones are refused.

    >>> data_options("forecast", {"dataset": "WTH"}).dataset
    'WTH'
    """
    default: Any = TASKS[task].data
    known = [f.name for f in dataclasses.fields(default)]
    for name in values:
        if name not in known:
            raise unknown_name(f"option of {task}", name, known)
    return dataclasses.replace(default, **values)


for _entry in metadata.entry_points(group="wavessm.tasks"):  # tasks of other packages register themselves when imported
    _entry.load()
