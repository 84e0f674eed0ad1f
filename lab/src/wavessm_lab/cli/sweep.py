"""`wavessm sweep`: a grid of runs side by side, into one table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wavessm.cli.parse import parse
from wavessm.errors import OptionError
from wavessm_lab.sweep.grid import Grid, Job, expand

if TYPE_CHECKING:
    from wavessm.training import Progress
    from wavessm_lab.sweep.run import SweepState

AXES = tuple(field.name for field in dataclasses.fields(Grid) if field.name not in ("vary", "options"))


@dataclasses.dataclass(frozen=True)
class SweepOptions(Grid):
    """Train a grid of runs: tasks × horizons × variables × recipes × variants × seeds.

    Lists are separated by commas; options of `wavessm train` for all runs follow --. The same command again, or
    --resume, runs what is left. For example:

    wavessm sweep --tasks window-copy --variants morlet,legs --seeds 0,1,2 --jobs 2 -- --steps 500
    """

    jobs: int | None = None
    """Runs at a time; default 1, with --resume as before."""
    out: Path = Path("runs/sweep")
    """Folder of the sweep."""
    csv: Path | None = None
    """Table of runs; default runs.csv in the folder."""
    scores: Literal["selecting", "all"] = "selecting"
    """Rows of a run: its selecting score on the test split, or all scores and the best validation."""
    retry_failed: bool = False
    """Start failed runs once more."""
    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or a Ray cluster (extra ray)."""
    dry_run: bool = False
    """List the runs that are left; start none."""
    quiet: bool = False
    """Show no table."""
    resume: Path | None = None
    """Resume the sweep in this folder."""


def main(arguments: list[str]) -> int:
    """Run `wavessm sweep`; returns the exit status."""
    if not arguments:
        with contextlib.suppress(SystemExit):
            parse(SweepOptions, ["--help"], "wavessm sweep")
        return 2
    given, grid = read(arguments)
    from filelock import FileLock, Timeout

    from wavessm.training import Progress
    from wavessm.training.checkpoint import RunError, write_json
    from wavessm_lab.sweep.job import SweepPaths
    from wavessm_lab.sweep.run import SweepState

    planned = expand(grid)
    paths = SweepPaths(given.out, given.csv or given.out / "runs.csv", given.scores == "all")
    if given.dry_run:
        return _list(SweepState.of(planned, paths, given.retry_failed))
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(given.out / "sweep.lock", timeout=0):
            csv = None if given.csv is None else str(given.csv.resolve())
            settings = {"csv": csv, "scores": given.scores, "jobs": given.jobs or 1}
            write_json(given.out / "sweep.json", {"grid": dataclasses.asdict(grid), **settings})
            state = SweepState.of(planned, paths, given.retry_failed)
            with Progress("sweep", total=len(planned), show=not given.quiet) as progress:
                _engine(given, state, planned).run(_show_changes(progress))
    except Timeout:
        raise RunError(f"{given.out}: a sweep is running there; wait for it, or choose another --out.") from None
    return _report(state, given.out)


def _show_changes(progress: Progress) -> Callable[[SweepState], None]:
    """What an engine calls with the state: the bar moves, and without a terminal each change is a line."""
    shown = ""

    def show(state: SweepState) -> None:
        nonlocal shown
        text = state.summary()
        progress.update(len(state.finished) + len(state.failed), text, line=text != shown)
        shown = text

    return show


def _report(state: SweepState, out: Path) -> int:
    """Print how it ended; 0, 1 if runs failed, 130 if it was stopped."""
    print(f"{state.summary()}; table: {state.paths.csv}")
    for name, reason in state.failed.items():
        print(f"failed: {name}: {reason}")
    if state.stopped:
        print(f"stopped; resume with: wavessm sweep --resume {out}", file=sys.stderr)
        return 130
    return 1 if state.failed else 0


def read(arguments: list[str]) -> tuple[SweepOptions, Grid]:
    """Return the options and the grid: what is typed, or that of the folder to resume."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, shared = arguments[:at], arguments[at + 1 :]
    given = parse(SweepOptions, _separate(own), "wavessm sweep")
    if given.jobs is not None and given.jobs < 1:
        raise OptionError(f"jobs is {given.jobs}, expected at least 1.")
    if given.resume is None:
        return given, Grid(**{name: getattr(given, name) for name in (*AXES, "vary")}, options=tuple(shared))
    typed = [word.removeprefix("--").partition("=")[0] for word in own if word.startswith("--")]
    fixed = [name for name in typed if name in (*AXES, "vary", "csv", "scores")]
    if fixed or shared:
        raise OptionError(f"--resume runs the sweep as it was; leave out --{(fixed or [''])[0]}.")
    return _resumed(given, given.resume)


def _separate(arguments: list[str]) -> list[str]:
    """Lists as tyro reads them: --seeds 0,1 as --seeds 0 1."""
    words: list[str] = []
    in_list = False
    for word in arguments:
        option, _, value = word.partition("=") if word.startswith("--") else ("", "", word)
        in_list = option.removeprefix("--") in AXES if option else in_list
        words += [*filter(None, [option]), *filter(None, value.split(","))] if in_list else [word]
    return words


def _resumed(given: SweepOptions, folder: Path) -> tuple[SweepOptions, Grid]:
    from wavessm.training.checkpoint import RunError

    path = folder / "sweep.json"
    if not path.is_file():
        raise RunError(f"{folder}: not the folder of a sweep (no sweep.json).")
    try:
        saved = json.loads(path.read_text())
        grid = Grid(**{name: tuple(values) for name, values in saved["grid"].items()})
        csv = None if saved["csv"] is None else Path(saved["csv"])
        scores, jobs = saved["scores"], given.jobs or saved["jobs"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(
            f"{path}: not written by `wavessm sweep`; start the sweep again with its first command."
        ) from None
    return dataclasses.replace(given, out=folder, csv=csv, scores=scores, jobs=jobs), grid


def _engine(given: SweepOptions, state: SweepState, planned: list[Job]) -> Any:
    jobs = given.jobs or 1
    if given.engine == "ray":
        from wavessm_lab.sweep.ray import OnRay
        from wavessm_lab.sweep.results import gpu_name

        on_gpu = any(gpu_name(job.config.device) != "cpu" for job in planned)
        return OnRay(state, jobs, 1 / jobs if on_gpu else 0)
    from wavessm_lab.sweep.run import Local

    return Local(state, jobs)


def _list(state: SweepState) -> int:
    for job in state.waiting:
        print(job.command)
    print(state.summary(), file=sys.stderr)
    return 0
