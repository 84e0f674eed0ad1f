"""`wavessm sweep`: a grid of runs side by side, into one table."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from wavessm.cli import train as train_command
from wavessm.cli.parse import parse
from wavessm.errors import OptionError
from wavessm.training.checkpoint import RunError, write_json
from wavessm.training.config import Choice
from wavessm_lab.sweep.board import Screen, summary
from wavessm_lab.sweep.grid import Grid, Job, expand
from wavessm_lab.sweep.job import SweepPaths
from wavessm_lab.sweep.run import Local, SweepState

ABOUT = """A grid of runs: tasks × horizons × variables × recipes × variants × seeds. Lists are separated by commas;
options of `wavessm train` for all runs follow --. The same line again, or --resume, goes on with what is left."""
USAGE = """usage: wavessm sweep --tasks TASK[:SET],… [--variants FAMILY[:MEASURE[:STRUCTURE]],…] [--seeds 0,1,2]
                     [--jobs N] [--out FOLDER] [-- options of `wavessm train` for every run]
       wavessm sweep --file sweep.toml
       wavessm sweep --resume FOLDER

A grid of runs side by side, into one table. `wavessm sweep --help` lists every option. For example:

  wavessm sweep --tasks window-copy --variants morlet,legs --seeds 0,1,2 --jobs 2 -- --steps 500"""
LISTS = ("tasks", "variants", "horizons", "seeds", "recipes", "variables", "vary")


@dataclasses.dataclass(frozen=True)
class Options:
    tasks: str = ""
    """Tasks, with a data set if they have several: window-copy,forecast:ETTh1,forecast:WTH."""
    variants: str = ""
    """Models: family, family:measure, family:measure:structure, lstm, transformer. Default morlet."""
    horizons: str = ""
    """Horizons of forecasts; default the task's own."""
    seeds: str = ""
    """Seeds: 0,1,2. Default 0."""
    recipes: str = ""
    """Recipes: best, paper. Default best."""
    variables: str = ""
    """Forecasts: uni,multi; default the task's own."""
    vary: tuple[str, ...] = ()
    """Other options and their values: --vary windows=2,4,8 lr=0.01,0.003."""
    file: Path | None = None
    """TOML or JSON file with these axes as lists, and options; what is typed wins."""
    jobs: int | None = None
    """Runs side by side; default 1, with --resume as many as before."""
    memory_gib: float = 0.0
    """Memory of all runs together, each by its dry run; 0: nine tenths of a GPU's free memory, on the CPU no limit. inf
    sets none and makes no dry runs."""
    out: Path = Path("runs/sweep")
    """Folder of the sweep."""
    csv: Path | None = None
    """Table of runs; default runs.csv in the folder."""
    scores: Literal["selecting", "all"] = "selecting"
    """Rows of a run: its selecting score on the test split, or all scores and the best validation."""
    retry_failed: bool = False
    """Begin failed runs once more."""
    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or a Ray cluster (extra ray)."""
    dry_run: bool = False
    """List the runs and what is left of them."""
    quiet: bool = False
    """Show no table."""
    resume: Path | None = None
    """Go on with the sweep in this folder."""


def main(arguments: list[str]) -> int:
    if not arguments:
        print(USAGE)
        return 2
    own, shared = _split(arguments)
    given = parse(Options, Options(), own, "wavessm sweep", ABOUT)
    if given.jobs is not None and given.jobs < 1:
        raise OptionError(f"jobs is {given.jobs}, expected at least 1.")
    given, grid = _resumed(given, shared) if given.resume is not None else (given, _grid(given, shared))
    planned = expand(grid, _base)
    desk = SweepPaths(given.out, given.csv or given.out / "runs.csv", given.scores == "all")
    if given.dry_run:
        return _list(SweepState.of(planned, desk, given.retry_failed))
    given.out.mkdir(parents=True, exist_ok=True)
    with _only_one(given.out):
        csv = None if given.csv is None else str(given.csv.resolve())
        settings = {"csv": csv, "scores": given.scores, "jobs": given.jobs or 1, "memory_gib": given.memory_gib}
        write_json(given.out / "sweep.json", {"grid": dataclasses.asdict(grid), **settings})
        board = SweepState.of(planned, desk, given.retry_failed)
        screen = Screen(given.quiet)
        try:
            _engine(given, board, planned).run(screen)
        finally:
            screen.close()
    return report(board, given.out)


def report(board: SweepState, out: Path) -> int:
    """How it ended: 0, 1 if runs failed, 130 if it was stopped."""
    print(f"{summary(board)}; table: {board.desk.csv}")
    for name, reason in board.failed.items():
        print(f"failed: {name}: {reason}")
    if board.stopped:
        print(f"stopped; go on with: wavessm sweep --resume {out}", file=sys.stderr)
        return 130
    return 1 if board.failed else 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _grid(given: Options, shared: list[str]) -> Grid:
    """Axes of the file, then those typed."""
    values: dict[str, Any] = {} if given.file is None else _read(given.file)
    for name in LISTS:
        typed = getattr(given, name)
        if typed:
            values[name] = list(typed) if name == "vary" else typed.split(",")
    for name in ("horizons", "seeds"):
        if name in values and getattr(given, name):
            try:
                values[name] = [int(value) for value in values[name]]
            except ValueError:
                raise OptionError(
                    f"{name} are {getattr(given, name)!r}, expected whole numbers, as in 0,1,2."
                ) from None
    values["options"] = [*values.get("options", []), *shared]
    return Grid.from_dict(values).check()


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, OSError) as reason:
        raise OptionError(
            f"{path}: cannot be read as {'JSON' if path.suffix == '.json' else 'TOML'} ({reason})."
        ) from None
    if not isinstance(values, dict):
        raise OptionError(f"{path}: holds a {type(values).__name__}, expected names with lists, as in tasks and seeds.")
    return values


def _resumed(given: Options, shared: list[str]) -> tuple[Options, Grid]:
    folder, default = given.resume, Options()
    assert folder is not None
    typed = [name for name in (*LISTS, "file", "csv", "scores") if getattr(given, name) != getattr(default, name)]
    if typed or shared:
        raise OptionError(f"--resume goes on with the sweep as it was; leave out --{(typed or [''])[0]}.")
    path = folder / "sweep.json"
    if not path.is_file():
        raise RunError(f"{folder}: not the folder of a sweep (no sweep.json).")
    try:
        kept = json.loads(path.read_text())
        grid = Grid.from_dict(kept["grid"])
        csv = None if kept["csv"] is None else Path(kept["csv"])
        scores, jobs, memory = kept["scores"], given.jobs or kept["jobs"], given.memory_gib or kept["memory_gib"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path}: not written by `wavessm sweep`; begin the sweep again with its first line.") from None
    return dataclasses.replace(given, out=folder, csv=csv, scores=scores, jobs=jobs, memory_gib=memory), grid


def _base(arguments: list[str]) -> Choice:
    _, given = train_command.read(arguments)
    return train_command.fields_of_data(given.data), given.model, given.training


def _engine(given: Options, board: SweepState, planned: list[Job]) -> Any:
    jobs, on_gpu = given.jobs or 1, any(_on_gpu(job.config.device) for job in planned)
    if given.engine == "ray":
        from wavessm_lab.sweep.ray import OnRay

        return OnRay(board, jobs, 1 / jobs if on_gpu else 0)
    return Local(board, jobs, _budget(given.memory_gib, on_gpu))


def _on_gpu(device: str) -> bool:
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _budget(gib: float, on_gpu: bool) -> int | None:
    if not gib >= 0:
        raise OptionError(f"memory_gib is {gib:g}, expected a positive number, or 0.")
    if math.isinf(gib) or (not gib and not on_gpu):
        return None
    if gib:
        return int(gib * 2**30)
    import torch

    return int(0.9 * torch.cuda.mem_get_info()[0])


def _list(board: SweepState) -> int:
    for job in board.waiting:
        print(job.command)
    print(summary(board), file=sys.stderr)
    return 0


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Refuse a second sweep in the same folder."""
    with (folder / "sweep.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder}: a sweep is running there; wait for it, or choose another --out.") from None
        yield
