"""`wavessm train TASK …`: train a model, or resume an interrupted run.

The options of a task are those of its data, its model and its training; `read` turns the words into objects.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from wavessm.cli import plugin
from wavessm.cli.parse import parse, without
from wavessm.data.task import Task, get_task, tasks
from wavessm.errors import OptionError
from wavessm.nn.config import DATA_FIELDS, ModelConfig
from wavessm.training.config import FEATURE_FIELDS, SHARED_FIELDS, TrainConfig, changed_name, resolve

if TYPE_CHECKING:
    from wavessm.training import Run

ABOUT = """usage: wavessm train TASK [WHERE] [--recipe NAME] [options]
       wavessm train --resume RUN

Train a model. WHERE is the folder or file of the data. Tasks:

{tasks}

`wavessm train TASK --help` lists every option of a task with its value in the recipe."""
_STARTS = ("--recipe", "--dataset", "--horizon", "--variables")
"""Options that decide where all others start."""


@dataclass(frozen=True)
class TrainCommand:
    """One `wavessm train TASK` as objects."""

    task: str
    data: dict[str, Any]
    model: ModelConfig
    config: TrainConfig
    recipe_name: str
    """The recipe, with the options that differ from it: best+lr=0.2."""
    out: Path | None
    quiet: bool
    dry_run: bool


@dataclass(frozen=True)
class ResumeOptions:
    """Resume an interrupted run."""

    resume: Path
    """Run folder."""
    quiet: bool = False
    """Show no progress."""


def main(arguments: list[str]) -> int:
    """Run `wavessm train`; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(ABOUT.format(tasks="\n".join(f"  {name:<18}{about}" for name, about in tasks().items())))
        return 0 if arguments else 2
    if {"--devices", "--nodes"} & {word.partition("=")[0] for word in arguments}:
        raise OptionError("--devices and --nodes are gone: torchrun --nproc-per-node N -m wavessm train … starts N.")
    resumes = arguments[0].partition("=")[0] == "--resume"
    given: Any = parse(ResumeOptions, arguments, "wavessm train") if resumes else read(arguments)
    from wavessm.training import Interrupted, estimate_run, resume, resume_command, train

    try:
        if resumes:
            return _report(resume(given.resume, not given.quiet))
        what = given.task, given.data, given.model, given.config
        if not given.dry_run:
            return _report(train(*what, given.out, given.recipe_name, show=not given.quiet))
        if given.config.method == "gradient":
            print(estimate_run(*what))
        else:
            print(f"method {given.config.method}: fitted in closed form, without steps; --method gradient trains")
        return 0
    except Interrupted as end:
        folder, step = end.args
        print(f"\nstopped and saved at step {step}; resume with: {resume_command(folder)}", file=sys.stderr)
        return 130


def read(arguments: list[str]) -> TrainCommand:
    """Read the words after `wavessm train`: a task, and options that replace those of its recipe."""
    if arguments[0].startswith("-"):
        raise OptionError(f"the name of a task comes first, got {arguments[0]}. Known: {', '.join(tasks())}.")
    task, words = get_task(arguments[0]), arguments[1:]
    prog = f"wavessm train {task.name}"
    about = f"{task.help[0].upper()}{task.help[1:]}. For example: {prog}{_where(task)} --steps 500 --out runs/first"
    kind, start = _options(task, _start(task, "best", task.options))
    if any(word.partition("=")[0] in _STARTS for word in words):
        typed = parse(kind, [word for word in words if word not in ("-h", "--help")], prog, start, about)
        kind, start = _options(task, _start(task, typed.recipe, typed.data))
    given = parse(kind, words, prog, start, about)
    before, (data, model, config) = _parts(start), _parts(given)
    recipe = before[1]
    model = recipe.replace(**{field: value for field, value in vars(model).items() if value != getattr(recipe, field)})
    if task.path_option and given.where:
        data[task.path_option] = given.where
    method = _method(task, config.method, words)
    config = TrainConfig(**{**vars(config), "method": method})
    called = changed_name(given.recipe if method == "gradient" else method, before, (data, model, config))
    return TrainCommand(task.name, data, model, config, called, given.out, given.quiet, given.dry_run)


def _method(task: Task, asked: str, words: list[str]) -> str:
    """The method: "auto" is the closed form of the task unless an option of gradient training was given."""
    names = (word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--"))
    given = {name.removeprefix("--").removeprefix("no-").replace("-", "_"): name for name in names}
    training = {"recipe", *vars(TrainConfig())} - {*SHARED_FIELDS, *FEATURE_FIELDS}
    training |= {*vars(ModelConfig())} - {*DATA_FIELDS, *vars(task.options), "missing"}
    gradient = [given[name] for name in given if name in training]
    features = [given[name] for name in given if name in FEATURE_FIELDS]
    if asked == "auto":
        asked = "gradient" if gradient or not task.closed_form else task.closed_form
        asked = "features" if features and not gradient else asked
    if asked != "gradient" and gradient:
        raise OptionError(f"{gradient[0]} is an option of gradient training, the method is {asked}; leave one out.")
    if asked != "features" and features:
        raise OptionError(f"{features[0]} is an option of --method features, the method is {asked}; leave one out.")
    return asked


def _start(task: Task, recipe: str, data: Any) -> tuple[Any, ModelConfig, TrainConfig]:
    """Where all options start: those of a recipe; "best" may have its own for each data set and horizon."""
    start = resolve(task.name, recipe)
    tuned = plugin("wavessm.tuned", task.name) if recipe == "best" else None
    if tuned is None:
        return task.options, *start
    chosen = {name: getattr(data, name) for name in ("dataset", "horizon", "variables")}
    return tuned(dataclasses.replace(task.options, **chosen), *start)


def _parts(options: Any) -> tuple[dict[str, Any], ModelConfig, TrainConfig]:
    return dict(vars(options.data)), ModelConfig(**vars(options.model)), TrainConfig(**vars(options.training))


def _where(task: Task) -> str:
    return f" {'FILE' if task.path_option == 'path' else 'FOLDER'}" if task.path_option else ""


def _options(task: Task, start: tuple[Any, ModelConfig, TrainConfig]) -> tuple[Any, Any]:
    """The options of `wavessm train TASK` as a dataclass, and an object of it with the values of `start`."""
    data, model, training = start
    groups = {"data": without(data, task.fixed), "model": without(model, DATA_FIELDS), "training": without(training)}
    recipes = f"Where all values start: {' or '.join(task.recipes)}."
    fields: list[Any] = [
        *groups.items(),
        ("recipe", Annotated[str, arg(help=recipes)], "best"),
        ("out", Annotated[Path | None, arg(help="Run folder; default the next free one in runs/.")], None),
        ("quiet", Annotated[bool, arg(help="Show no progress.")], False),
        ("dry_run", Annotated[bool, arg(help="Print parameters, steps, time and memory; train nothing.")], False),
    ]
    if task.path_option:
        about = arg(help=f"Where the data are; the same as --{task.path_option}.", metavar=f"[{_where(task).strip()}]")
        fields.append(("where", Annotated[Positional[str], about], ""))
    kind = make_dataclass("TrainOptions", [(n, t, *(field(default=v) for v in d)) for n, t, *d in fields], frozen=True)
    return kind, kind(*(group(**vars(each)) for group, each in zip(groups.values(), start, strict=True)))


def _report(run: Run) -> int:
    """Print the scores and the folder of a finished run; of several processes, only the first prints."""
    from wavessm.training.distributed import dist_info
    from wavessm.training.evaluate import score_lines

    if dist_info(run.config).rank > 0:
        return 0
    result = json.loads((run.folder / "result.json").read_text())
    scores = "  ".join(f"{name.removeprefix('test_').replace('_', ' ')} {value:.4g}" for name, value in result.items()
                       if name.startswith("test_"))  # fmt: skip
    skipped = run.info.skipped
    if skipped:
        print(f"left out {len(skipped)} bad files: {', '.join(skipped[:5])}{' …' if len(skipped) > 5 else ''}")
    closed = run.method != "gradient"
    how = f"{run.method}, closed form" if closed else f"best model: step {result['best_step']}"
    print(f"test: {scores or 'left out'}  ({how}, {result['parameters']} parameters)")
    for line in score_lines(result.get("parts", {}) | result.get("baselines", {})):
        print(line)
    print(f"run folder: {run.folder}" + ("" if closed else f"   curves: {run.folder / 'curves.png'}"))
    return 0
