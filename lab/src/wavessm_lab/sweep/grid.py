"""A grid of runs: tasks × horizons × variables × recipes × variants × seeds, expanded into a list of jobs.

A job is one `wavessm train` command together with what it means; the command is its key in the table of runs. An axis
that a task does not have (the horizon of a classification) is ignored for this task.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shlex
from dataclasses import dataclass, replace
from typing import Any

from tyro.conf import Suppress

from wavessm.cli.train import TrainCommand, read
from wavessm.data import get_task
from wavessm.errors import OptionError, unknown_name
from wavessm.nn.config import ModelConfig


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep, which `wavessm sweep` has as options."""

    tasks: tuple[str, ...] = ()
    """Tasks, with a data set if they have several: window-copy,forecast:ETTh1,forecast:WTH."""
    variants: tuple[str, ...] = ("morlet",)
    """Models: family, family:measure, family:measure:structure."""
    horizons: tuple[int, ...] = ()
    """Horizons of forecasts: 24,48. Default the task's own."""
    seeds: tuple[int, ...] = (0,)
    """Seeds: 0,1,2."""
    recipes: tuple[str, ...] = ("best",)
    """Recipes: best, paper."""
    variables: tuple[str, ...] = ()
    """Forecasts: uni,multi; default the task's own."""
    vary: tuple[str, ...] = ()
    """Other options and their values: --vary windows=2,4,8 lr=0.01,0.003."""
    options: Suppress[tuple[str, ...]] = ()
    """Options of `wavessm train` for every run; on the command line, what follows --."""

    def check(self) -> None:
        """Raise `OptionError` without a task, for an empty axis, or for an option given twice."""
        for name in ("tasks", "variants", "seeds", "recipes"):
            if not getattr(self, name):
                raise OptionError(f"no {name}; give at least one, as in --tasks window-copy,forecast:ETTh1.")
        for entry in self.vary:
            if "=" not in entry:
                raise OptionError(f"vary has {entry!r}, expected an option and its values, as in windows=2,4.")
        decided = self._decided()
        typed = [word.removeprefix("--").partition("=")[0] for word in self.options if word.startswith("--")]
        for name in (*typed, *(entry.partition("=")[0].strip() for entry in self.vary)):
            if name in decided:
                raise OptionError(f"--{name} is decided by --{decided[name]}; give it there.")

    def _decided(self) -> dict[str, str]:
        """Options of a run, and the axes that decide them."""
        axes = {"recipe": "recipes", "seed": "seeds"}
        axes |= {name: "variants" for variant in self.variants for name in variant_fields(variant)}
        axes |= {"horizon": "horizons"} if self.horizons else {}
        axes |= {"variables": "variables"} if self.variables else {}
        return axes | ({"dataset": "tasks"} if any(":" in task for task in self.tasks) else {})


@dataclass(frozen=True, kw_only=True)
class Job(TrainCommand):
    """One run of a sweep, with the command line that it stands for."""

    command: str

    @property
    def name(self) -> str:
        """A readable name, unique to this command: that of its folder."""
        parts = [self.task, self.data.get("dataset"), self.data.get("horizon"), label(self.model),
                 self.recipe_name.partition("+")[0], f"s{self.config.seed}",
                 hashlib.sha1(self.command.encode()).hexdigest()[:6]]  # fmt: skip
        return "-".join(str(part) for part in parts if part)


def label(model: ModelConfig) -> str:
    """Return a short name of a model.

    >>> label(ModelConfig(family="db6", measure="translated"))
    'db6-translated'
    """
    return "-".join(part for part in (model.family, model.measure, model.structure) if part)


def expand(grid: Grid) -> list[Job]:
    """Return all jobs of a grid, each once, in the order of the axes with the seeds innermost."""
    grid.check()
    tasks = [place.partition(":")[0] for place in grid.tasks]
    for axis, name in (("horizons", "horizon"), ("variables", "variables")):
        if getattr(grid, axis) and not any(name in _data_fields(task) for task in tasks):
            raise OptionError(f"{axis} are given, but {', '.join(tasks)} has none to choose from.")
    jobs: dict[str, Job] = {}
    varied = [
        [["--" + name.strip(), value] for value in values.split(",")]
        for name, _, values in (entry.partition("=") for entry in grid.vary)
    ]
    for place, recipe_name, extra in itertools.product(grid.tasks, grid.recipes, itertools.product(*varied)):
        task, _, dataset = place.partition(":")
        arguments = [task, "--recipe", recipe_name, *grid.options, *itertools.chain(*extra)]
        for chosen in _data_axes(grid, task, dataset):
            words = [*arguments, *_words(chosen)]
            given = read(words)
            for variant, seed in itertools.product(grid.variants, grid.seeds):
                fields: dict[str, Any] = variant_fields(variant)
                command = shlex.join(["wavessm", "train", *words, *_words({**fields, "seed": seed})])
                changed = {"model": given.model.replace(**fields), "config": replace(given.config, seed=seed)}
                jobs[command] = Job(**{**vars(given), **changed}, command=command)
    return list(jobs.values())


def _words(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _data_fields(task: str) -> list[str]:
    return [field.name for field in dataclasses.fields(get_task(task).options)]


def _data_axes(grid: Grid, task: str, dataset: str) -> list[dict[str, Any]]:
    """Every choice of data set, horizon and variables that the task has."""
    from wavessm.data.datasets.forecast import ALIASES, SETS

    known = _data_fields(task)
    if dataset and "dataset" not in known:
        raise OptionError(f"{task} has no data sets to choose from, got {task}:{dataset}.")
    dataset = ALIASES.get(dataset.lower(), dataset)
    if dataset and dataset not in SETS:
        raise unknown_name("forecasting set", dataset, SETS)
    axes = {"dataset": [dataset] if dataset else [], "horizon": grid.horizons, "variables": grid.variables}
    there = {name: values for name, values in axes.items() if values and name in known}
    return [dict(zip(there, choice, strict=True)) for choice in itertools.product(*there.values())]


def variant_fields(variant: str) -> dict[str, str]:
    """Return the model options that a variant stands for.

    >>> variant_fields("db6:translated")
    {'family': 'db6', 'measure': 'translated'}
    """
    from wavessm.nn.initial import STRUCTURES, check_family
    from wavessm.operators import MEASURES

    parts = variant.split(":")
    if len(parts) > 3 or not all(parts):
        raise OptionError(f"variant {variant!r}, expected family, family:measure or family:measure:structure.")
    check_family(parts[0])
    for kind, name, known in zip(("measure", "structure"), parts[1:], (MEASURES, STRUCTURES), strict=False):
        if name not in known:
            raise unknown_name(kind, name, known)
    return dict(zip(("family", "measure", "structure"), parts, strict=False))
