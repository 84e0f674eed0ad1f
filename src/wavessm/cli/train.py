"""`wavessm train TASK …` and `wavessm pretrain TASK …`: train a model with or without labels, or resume a run.

The options of a task are those of its data, its model and its training; `read` turns the words into objects.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field, make_dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from wavessm.cli.parse import parse, without
from wavessm.data.task import Task, get_task, tasks
from wavessm.errors import OptionError
from wavessm.nn.config import DATA_FIELDS, ModelConfig
from wavessm.training.config import FEATURE_FIELDS, SHARED_FIELDS, TrainConfig, changed_name, resolve

if TYPE_CHECKING:
    from wavessm.training import Run

ABOUT = """usage: wavessm {command} TASK [WHERE] [--recipe NAME] [options]
       wavessm {command} --resume RUN

{what} WHERE is the folder or file of the data. Tasks:

{tasks}

`wavessm {command} TASK --help` lists every option of a task with its value in the recipe."""
_WHAT = {
    "train": "Train a model; with --from MODEL, continue from one that is trained already.",
    "pretrain": "Train a model without labels; `wavessm train … --from RUN` then learns a task from few.",
}
_HIDDEN = {
    "train": ("pretrained", "objective", "patch", "ahead", "mask_share"),
    "pretrain": ("method", "class_weight", "pretrained", "train_blocks", "layer_decay", *FEATURE_FIELDS),
}
"""Options of training that a command does not have, or has by another name."""
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


@dataclass(frozen=True)
class ResumeOptions:
    """Resume an interrupted run."""

    resume: Path
    """Run folder."""
    quiet: bool = False
    """Show no progress."""


def pretrain(arguments: list[str]) -> int:
    """Run `wavessm pretrain`; returns the exit status."""
    return main(arguments, "pretrain")


def main(arguments: list[str], command: str = "train") -> int:
    """Run `wavessm train` or `wavessm pretrain`; returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<18}{about}" for name, about in tasks().items())
        print(ABOUT.format(tasks=listed, command=command, what=_WHAT[command]))
        return 0 if arguments else 2
    resumes = arguments[0].partition("=")[0] == "--resume"
    given: Any = parse(ResumeOptions, arguments, "wavessm train") if resumes else read(arguments, command)
    from wavessm.training import Interrupted, resume, resume_command, train

    try:
        if resumes:
            return _report(resume(given.resume, not given.quiet))
        what = given.task, given.data, given.model, given.config
        return _report(train(*what, given.out, given.recipe_name, show=not given.quiet))
    except Interrupted as end:
        folder, step = end.args
        print(f"\nstopped and saved at step {step}; resume with: {resume_command(folder)}", file=sys.stderr)
        return 130


def read(arguments: list[str], command: str = "train") -> TrainCommand:
    """Read the words after `wavessm train` or `pretrain`: a task, and options that replace those of its recipe."""
    if arguments[0].startswith("-"):
        raise OptionError(f"the name of a task comes first, got {arguments[0]}. Known: {', '.join(tasks())}.")
    task, words = get_task(arguments[0]), arguments[1:]
    prog = f"wavessm {command} {task.name}"
    about = f"{task.help[0].upper()}{task.help[1:]}. For example: {prog}{_where(task)} --steps 500 --out runs/first"
    kind, start = _options(task, _start(task, "best", task.options, command), command)
    if any(word.partition("=")[0] in _STARTS for word in words):
        typed = parse(kind, [word for word in words if word not in ("-h", "--help")], prog, start, about)
        kind, start = _options(task, _start(task, typed.recipe, typed.data, command), command)
    given = parse(kind, words, prog, start, about)
    before, (data, model, config) = _parts(start), _parts(given)
    recipe = before[1]
    model = recipe.replace(**{field: value for field, value in vars(model).items() if value != getattr(recipe, field)})
    if task.path_option and given.where:
        data[task.path_option] = given.where
    method = _method(task, config.method, words, data)
    config = TrainConfig(**{**vars(config), "method": method, "pretrained": given.source})
    if given.source:
        model = _of_source(model, given.source, words)
    called = changed_name(given.recipe if method == "gradient" else method, before, (data, model, config))
    if command == "pretrain":
        called = f"{config.objective}-{called}"
        if config.objective == "labels":
            raise OptionError("objective is labels, expected cpc or masked; `wavessm train` learns from labels.")
    return TrainCommand(task.name, data, model, config, called, given.out, given.quiet)


def _typed(words: list[str]) -> dict[str, str]:
    """Names of the fields whose options were given, with the options as they were typed."""
    names = (word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--"))
    return {name.removeprefix("--").removeprefix("no-").replace("-", "_"): name for name in names}


def _of_source(model: ModelConfig, source: str, words: list[str]) -> ModelConfig:
    """The model with the dropout of the one to start from, unless one is given; the rest is decided by that one."""
    from wavessm.training.run import open_model

    typed, free = _typed(words), ("dropout", "backend")
    if refused := [typed[name] for name in typed if name in {*vars(model)} - {*free, *DATA_FIELDS}]:
        raise OptionError(f"{refused[0]} is decided by the model of --from; leave one of them out.")
    return model if "dropout" in typed else dataclasses.replace(model, dropout=open_model(source).model.dropout)


def _method(task: Task, asked: str, words: list[str], data: dict[str, Any]) -> str:
    """The method: "auto" is the closed form of the task, unless gradient training has an option or is all there is."""
    given = _typed(words)
    training = {"recipe", "from", *vars(TrainConfig())} - {*SHARED_FIELDS, *FEATURE_FIELDS}
    training |= {*vars(ModelConfig())} - {*DATA_FIELDS, *vars(task.options), "missing"}
    gradient = [given[name] for name in given if name in training]
    features = [given[name] for name in given if name in FEATURE_FIELDS]
    if asked == "auto":
        asked = "gradient" if gradient or not task.closed_form else task.closed_form
        asked = "features" if features and not gradient else asked
        if asked != "gradient" and not features and task.path_option and data[task.path_option]:
            asked = "gradient" if task.with_options(data).needs_gradient() else asked
    if asked != "gradient" and gradient:
        raise OptionError(f"{gradient[0]} is an option of gradient training, the method is {asked}; leave one out.")
    if asked != "features" and features:
        raise OptionError(f"{features[0]} is an option of --method features, the method is {asked}; leave one out.")
    return asked


def _start(task: Task, recipe: str, data: Any, command: str = "train") -> tuple[Any, ModelConfig, TrainConfig]:
    """Where all options start: those of a recipe; "best" may have its own for each data set and horizon."""
    start = resolve(task.name, recipe)
    if command == "pretrain":
        causal = dataclasses.replace(start[0], bidirectional=False)
        return task.options, causal, dataclasses.replace(start[1], objective="cpc", method="gradient")
    tuned = metadata.entry_points(group="wavessm.tuned", name=task.name) if recipe == "best" else ()
    for found in tuned:  # of another package
        chosen = {name: getattr(data, name) for name in ("dataset", "horizon", "variables")}
        return found.load()(dataclasses.replace(task.options, **chosen), *start)
    return task.options, *start


def _parts(options: Any) -> tuple[dict[str, Any], ModelConfig, TrainConfig]:
    return dict(vars(options.data)), ModelConfig(**vars(options.model)), TrainConfig(**vars(options.training))


def _where(task: Task) -> str:
    return f" {'FILE' if task.path_option == 'path' else 'FOLDER'}" if task.path_option else ""


def _options(task: Task, start: tuple[Any, ModelConfig, TrainConfig], command: str = "train") -> tuple[Any, Any]:
    """The options of `wavessm train TASK` as a dataclass, and an object of it with the values of `start`."""
    data, model, training = start
    decided = {*DATA_FIELDS, *(vars(data).keys() & vars(model).keys())}  # an option of the data decides by itself
    groups = {"data": without(data, task.fixed), "model": without(model, sorted(decided)),
              "training": without(training, _HIDDEN[command])}  # fmt: skip
    models = "Start from this model: a folder, a run, a name of ws.pretrained(), or owner/name of a hub."
    recipes = f"Where all values start: {' or '.join(task.recipes)}."
    fields: list[Any] = [
        *groups.items(),
        ("source", Annotated[str, arg(name="from", help=models)], ""),
        ("recipe", Annotated[str, arg(help=recipes)], "best"),
        ("out", Annotated[Path | None, arg(help="Run folder; default the next free one in runs/.")], None),
        ("quiet", Annotated[bool, arg(help="Show no progress.")], False),
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
    if skipped := run.info.skipped:
        print(f"left out {len(skipped)} bad files: {', '.join(skipped[:5])}{' …' if len(skipped) > 5 else ''}")
    closed = run.method != "gradient"
    how = f"{run.method}, closed form" if closed else f"best model: step {result['best_step']}"
    print(f"test: {scores or 'left out'}  ({how}, {result['parameters']} parameters)")
    for line in score_lines(result.get("parts", {}) | result.get("baselines", {})):
        print(line)
    print(f"run folder: {run.folder}" + ("" if closed else f"   curves: {run.folder / 'curves.png'}"))
    return 0
