"""`wavessm train TASK …`: a new run, or an interrupted one that goes on."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from wavessm.cli import plugin
from wavessm.cli.parse import explained, parse, shown_model
from wavessm.data import Task, get_task, tasks
from wavessm.errors import OptionError
from wavessm.nn.config import DATA_FIELDS, ModelConfig
from wavessm.training import Run, resume_command
from wavessm.training.checkpoint import Interrupted
from wavessm.training.config import TrainConfig, changed_name, resolve
from wavessm.training.distributed import dist_info

ABOUT = """usage: wavessm train TASK [WHERE] [--recipe NAME] [options]
       wavessm train --resume RUN

Train a model. WHERE is the folder or file of the data. Tasks:

{tasks}

`wavessm train TASK --help` lists every option of a task with its value in the recipe."""


DRY_RUN = "Say parameters, memory, steps and time from a few timed steps, and write nothing."


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(ABOUT.format(tasks="\n".join(f"  {name:<18}{about}" for name, about in tasks().items())))
        return 0 if arguments else 2
    if arguments[0].startswith("--resume"):
        return _resume(arguments)
    return _run(*read(arguments))


def read(arguments: list[str]) -> tuple[Task, Any]:
    """The task and all options (data, model, training, recipe, out, quiet, dry_run) of `wavessm train TASK …`."""
    if arguments[0].startswith("-"):
        raise OptionError(f"the name of a task comes first, got {arguments[0]}. Known: {', '.join(tasks())}.")
    task = get_task(arguments[0])
    rest = arguments[1:]
    if rest and not rest[0].startswith("-"):
        if task.path_option is None:
            raise OptionError(f"{task.name} makes its own data and takes no folder, got {rest[0]!r}.")
        rest = [f"--{task.path_option}", *rest]
    name = _peek(rest, "--recipe") or "best"
    model, config = resolve(task.name, name)
    kind = _options(task)
    hidden = (
        *task.fixed,
        *(set(DATA_FIELDS) - {f.name for of in (task.options, config) for f in dataclasses.fields(of)}),
    )
    line = f"wavessm train {task.name}" + (f" {task.path_option.upper()}" if task.path_option else "")
    about = f"{task.help[0].upper()}{task.help[1:]}. For example: {line} --steps 500 --out runs/first"
    start = kind(task.options, shown_model(model), config)
    tuned = plugin("wavessm.tuned", task.name)
    if tuned and name == "best":  # it has a setting of its own for many data sets and horizons
        typed = parse(kind, start, [word for word in rest if word not in ("-h", "--help")], line, about, hidden)
        place = {field: getattr(typed.data, field) for field in ("dataset", "horizon", "variables")}
        data, model, config = tuned(dataclasses.replace(task.options, **place), model, config)
        start = kind(data, shown_model(model), config)
    given = parse(kind, start, rest, line, about, hidden)
    return task, dataclasses.replace(given, model=ModelConfig(**vars(given.model)))


def _run(task: Task, given: Any) -> int:
    from wavessm.training.run import train

    if given.dry_run:
        from wavessm.training.dry_run import estimate_run

        print("\n".join(estimate_run(task.name, fields_of_data(given.data), given.model, given.training).lines()))
        return 0

    try:
        fields, called = fields_of_data(given.data), _called(task, given)
        run = train(task.name, fields, given.model, given.training, given.out, called, show=not given.quiet)
    except Exception as end:
        return _interrupted(end)
    return report(run)


def _called(task: Task, given: Any) -> str:
    """The recipe's name, with the options that make it another."""
    place = [(name, getattr(given.data, name, None)) for name in ("dataset", "horizon", "variables")]
    typed = [word for name, value in place if value is not None for word in (f"--{name}", str(value))]
    _, own = read([task.name, "--recipe", given.recipe, *typed])
    before, after = ((fields_of_data(each.data), each.model, each.training) for each in (own, given))
    return changed_name(given.recipe, before, after)


def _resume(arguments: list[str]) -> int:
    from wavessm.training.run import resume

    given = parse(Resume, None, arguments, "wavessm train", "Go on with an interrupted run.")
    try:
        return report(resume(given.resume, not given.quiet, given.devices, given.nodes))
    except Exception as end:
        return _interrupted(end)


def _interrupted(end: Exception) -> int:
    """130 and how to go on if the run was asked to stop; anything else is raised again."""
    if not isinstance(end, Interrupted):
        raise end
    folder, step = end.args
    print(f"\nstopped and saved at step {step}; go on with: {resume_command(folder)}", file=sys.stderr)
    return 130


def report(run: Run) -> int:
    """Say how the run ended and where things are; of several processes, only the first says it."""
    dist = dist_info(run.config)
    if dist is not None and dist.rank > 0:
        return 0
    from wavessm.training.evaluate import part_lines

    result = json.loads((run.folder / "result.json").read_text())
    scores = "  ".join(f"{name.removeprefix('test_').replace('_', ' ')} {value:.4g}" for name, value in result.items()
                       if name.startswith("test_"))  # fmt: skip
    skipped = run.info.skipped
    if skipped:
        print(f"left out {len(skipped)} bad files: {', '.join(skipped[:5])}{' …' if len(skipped) > 5 else ''}")
    print(f"test: {scores or 'left out'}  (best model: step {result['best_step']}, {result['parameters']} parameters)")
    for line in part_lines(result.get("parts", {})):
        print(line)
    print(f"run folder: {run.folder}   curves: {run.folder / 'curves.png'}")
    return 0


@dataclasses.dataclass(frozen=True)
class Resume:
    """Options of a run that goes on: all others are in its folder."""

    resume: Path
    """Run folder."""
    quiet: bool = False
    """Show no progress."""
    devices: int | None = None
    """Another number of processes; None keeps that of the run."""
    nodes: int | None = None
    """Another number of machines; None keeps that of the run."""


def _options(task: Task) -> Any:
    """The options of `wavessm train TASK` as a dataclass: data, recipe, output."""
    start = f"Where all values start: {' or '.join(task.recipes)}."
    place = "Run folder; default the next free one in runs/."
    return dataclasses.make_dataclass(
        "TrainOptions",
        [
            ("data", type(task.options)),
            ("model", type(shown_model(ModelConfig()))),
            ("training", TrainConfig),
            ("recipe", explained(str, start), dataclasses.field(default="best")),
            ("out", explained(Path | None, place), dataclasses.field(default=None)),
            ("quiet", explained(bool, "Show no progress."), dataclasses.field(default=False)),
            ("dry_run", explained(bool, DRY_RUN), dataclasses.field(default=False)),
        ],
        frozen=True,
    )


def fields_of_data(options: Any) -> dict[str, Any]:
    """Data options by name."""
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}


def _peek(arguments: list[str], option: str) -> str | None:
    """The value of an option; of several, the last one counts, as it does for the others."""
    found = None
    for at, argument in enumerate(arguments):
        if argument == option and at + 1 < len(arguments):
            found = arguments[at + 1]
        elif argument.startswith(option + "="):
            found = argument.partition("=")[2]
    return found
