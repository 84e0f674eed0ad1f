"""Tasks by name: options of their data, how to load them, recipes. Modules of `datasets/` define them.

No torch or pandas is imported here or in `datasets/`, so that `wavessm train TASK --help` is fast. Next: `info.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from wavessm.data.datasets import TASKS
from wavessm.errors import DataError, OptionError, unknown_name
from wavessm.nn.config import check_fields

if TYPE_CHECKING:
    from wavessm.data.files import Signal
    from wavessm.data.info import DataSet

ROOT_VARIABLE = "WAVESSM_DATA"
CALENDARS = ("table", "numbers", "waves", "waves-year")
RENAMED = {
    "hz": "sampling_rate", "least": "min_count", "epoch": "cases_per_epoch", "seq_len": "context",
    "timeenc": "calendar", "eval_stamp": "future_calendar",
}  # fmt: skip
"""Data options that had another name before: old name → new name. Run folders with the old ones still load."""


@dataclass(frozen=True)
class DataOptions:
    """Options of a task's data: a frozen dataclass of plain values, each documented by a docstring below it.

    Values are checked by their annotations, whole numbers must be at least 1; `checks` has other conditions.
    """

    checks: ClassVar[dict[str, Any]] = {}
    earlier: ClassVar[dict[str, Any]] = {}
    """Values that options had before there were such options, for run folders of that time."""
    duplicates, missing = "error", "skip"  # tables to forecast are read so, where they have no such options

    def __post_init__(self) -> None:
        check_fields(self, self.checks)

    def load(self, seed: int) -> DataSet:
        """Read the data; `seed` is that of the run, for generated data."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Return the files and folders that are read; raises `DataError` where one of a published set is missing."""
        raise NotImplementedError

    def checksum(self) -> str:
        """Digest that tells a user's files from others of the same shape; empty for published and generated sets."""
        return ""


@dataclass(frozen=True)
class PublishedOptions(DataOptions):
    """Options of a published set."""

    root: str = ""
    """Folder of the published sets, or of this one; default $WAVESSM_DATA."""

    def find(self, places: Iterable[str], wanted: Iterable[str], missing: str, source: str) -> Path:
        """Return the first of `places` below the data folder that holds all `wanted` files or folders.

        Otherwise `DataError` says what is `missing`, where it was looked for, and its `source`.
        """
        root, wanted = data_root(self.root), list(wanted)
        for folder in (root / place for place in places):
            if all((folder / name).exists() for name in wanted):
                return folder
        raise DataError(f"{missing} in {root}; {source}")


@dataclass(frozen=True)
class OwnOptions(DataOptions):
    """Options of a user's own data."""

    def shorten(self, signal: Signal, sampling_rate: float | None = None) -> Signal:
        """Return a recording as training has it: the whole of it, unless options cut it."""
        return signal

    def needs_gradient(self) -> bool:
        """Whether no closed form reads such data: samples with times, or a label for each step."""
        return False

    def place(self) -> Path:
        """Return the folder or file of the data, the first option."""
        option = dataclasses.fields(self)[0].name
        if not getattr(self, option):
            raise OptionError(f"where are the data? Give them after the name of the task, or with --{option}.")
        return Path(getattr(self, option))

    def checksum(self) -> str:
        from wavessm.data.cache import checksum

        place = self.place()
        return checksum(place if place.is_dir() else place.parent, self.files())


@dataclass(frozen=True)
class Recipe:
    """Values that differ from the defaults."""

    model: dict[str, Any] = field(default_factory=dict)  # fields of `ModelConfig`
    train: dict[str, Any] = field(default_factory=dict)  # fields of `TrainConfig`
    note: str = ""  # how the recipe differs from the paper's

    def change(self, note: str = "", model: Mapping[str, Any] | None = None, **train: Any) -> Recipe:
        """Return a copy with other values and another note.

        >>> Recipe({"d_model": 64}, {"lr": 0.1}).change("faster", lr=0.2).train
        {'lr': 0.2}
        """
        return Recipe({**self.model, **(model or {})}, {**self.train, **train}, note)


@dataclass(frozen=True)
class Task:
    """What `wavessm train NAME` trains on."""

    name: str
    options: Any  # a `DataOptions` with the defaults
    recipes: dict[str, Recipe]  # by name; "best" is the default
    path_option: str | None = None  # the option that names the folder or file; None where data are generated
    head: str = "pool"  # of models that do not forecast
    fixed: tuple[str, ...] = ()  # options that the name decides, so that they are none on the command line
    help: str = ""  # one line for `wavessm train --help`, where no list has it
    closed_form: str = ""  # method "auto" of `wavessm train`, "features" or "linear"; "" is gradient training

    def recipe(self, name: str = "best") -> Recipe:
        """Return the named recipe."""
        if name not in self.recipes:
            raise unknown_name(f"recipe of {self.name}", name, self.recipes)
        return self.recipes[name]

    def with_options(self, values: Mapping[str, Any]) -> Any:
        """Return the data options with some of them replaced; names of earlier versions are understood.

        >>> get_task("forecast").with_options({"dataset": "WTH"}).dataset
        'WTH'
        """
        known = [f.name for f in dataclasses.fields(self.options)]
        values = {name if name in known else RENAMED.get(name, name): value for name, value in values.items()}
        if isinstance(values.get("calendar"), int):  # it was a number
            values["calendar"] = CALENDARS[values["calendar"]]
        for name in values:
            if name not in known:
                raise unknown_name(f"option of {self.name}", name, known)
        return dataclasses.replace(self.options, **values)


def tasks() -> dict[str, str]:
    """Return name → one line of help, of all tasks; only modules of other packages are imported."""
    return {name: about for name, (_, about) in _listed().items()}


def get_task(name: str) -> Task:
    """Return a task; only its module is imported. An unknown name is refused with the closest match."""
    if name not in (listed := _listed()):
        raise unknown_name("task", name, listed)
    module, about = listed[name]
    found = next(task for task in importlib.import_module(module).TASKS if task.name == name)
    return dataclasses.replace(found, help=about)


def load(task: str, path: str | Path = "", seed: int = 0, **options: Any) -> DataSet:
    """Load the data of a task.

    Args:
        task: its name, one of `tasks()`.
        path: folder or file of the data; default $WAVESSM_DATA for published sets.
        seed: seed of a run, for generated data.
        **options: options of the data, as on the command line: `load("forecast", root, dataset="ETTh1", horizon=24)`.

    Raises:
        DataError: naming the file that is missing or wrong.
        OptionError: naming the option.
    """
    chosen = get_task(task)
    given = {chosen.path_option: os.fspath(path)} if path and chosen.path_option else {}
    return chosen.with_options({**given, **options}).load(seed)


def modules() -> list[ModuleType]:
    """Return all modules that define tasks: those of `datasets`, then those of other packages."""
    return [importlib.import_module(name) for name in dict.fromkeys(module for module, _ in _listed().values())]


def _listed() -> dict[str, tuple[str, str]]:
    """Name of a task → its module and one line of help.

    Other packages name a module in the entry-point group `wavessm.tasks`; it has `TASKS`, a tuple, and may list more in
    `MORE` as this function does, so that their modules are imported only when they are asked for.
    """
    listed = {name: (f"wavessm.data.datasets.{module}", about) for name, (module, about) in TASKS.items()}
    for module in (entry.load() for entry in metadata.entry_points(group="wavessm.tasks")):
        listed |= {task.name: (module.__name__, task.help) for task in module.TASKS} | getattr(module, "MORE", {})
    return listed


def data_root(given: str = "") -> Path:
    """Return the folder of the published sets: as given, or $WAVESSM_DATA."""
    if not (root := given or os.environ.get(ROOT_VARIABLE, "")):
        raise OptionError(f"no data folder: give it with --root FOLDER, or set {ROOT_VARIABLE}.")
    return Path(root)
