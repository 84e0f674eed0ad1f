"""One job of a sweep in a process of its own: started, resumed, or only recorded; never twice at a time.

A process holds the lock beside its log while it works, so that a run has one owner even when a killed sweep is started
again at once. The system releases the lock when its holder dies.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from wavessm.training import Interrupted, Run
from wavessm_lab.generate.parallel import end_with_parent
from wavessm_lab.sweep import results
from wavessm_lab.sweep.grid import Job

STOPPED = 130
"""Exit status of a process that was asked to stop, and has saved."""
FAILED = 1
"""Exit status of a process that has recorded why its run failed."""


@dataclass(frozen=True)
class SweepPaths:
    """Files of a sweep."""

    folder: Path
    csv: Path
    all_scores: bool = False
    """Write a row for every score, not only for the selecting one."""

    def run(self, job: Job) -> Path:
        """Return the run folder of a job."""
        return self.folder / job.name

    def log(self, job: Job) -> Path:
        """Return the file of what a job prints."""
        return self.folder / "logs" / f"{job.name}.log"


def work(job: Job, paths: SweepPaths) -> int:
    """Train, resume or read one run and append its rows; an interrupted run has none. Returns the exit status."""
    try:
        run = _trained(job, paths.run(job))
        results.append(paths.csv, results.rows_of_run(run, job.command, paths.all_scores))
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    except Exception as reason:
        lines = str(reason).strip().splitlines() or [""]
        record_failure(
            job, paths, lines[0] if isinstance(reason, ValueError) else f"{type(reason).__name__}: {lines[0]}"
        )
        return FAILED
    return 0


def _trained(job: Job, folder: Path) -> Run:
    from wavessm.training import resume, train

    if (folder / "result.json").exists():
        return Run.read(folder)
    if (folder / "run.json").exists():
        return resume(folder, show=False)
    shutil.rmtree(folder, ignore_errors=True)
    return train(job.task, job.data, job.model, job.config, folder, job.recipe_name, show=False)


def record_failure(job: Job, paths: SweepPaths, reason: str) -> None:
    """Append the row of a run that failed."""
    from wavessm.training.record import environment

    model = job.model
    row = results.described(job.task, job.data, job.recipe_name, job.config.seed) | {
        **results.model_name(model.family),
        "measure": model.measure,
        "structure": model.structure,
        "gpu": results.gpu_name(job.config.device),
        "versions": results.versions(environment()),
        "command": job.command,
        "status": f"failed: {reason}",
    }
    results.append(paths.csv, [row])


def process(job: Job, paths: SweepPaths) -> None:
    """Entry point of a process of the local engine."""
    _leave_the_terminal()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # until the run handles it itself
    with owned(paths.log(job)):
        sys.argv = shlex.split(job.command)
        status = work(job, paths)
    sys.exit(status)


def _leave_the_terminal() -> None:
    """Let Ctrl-C reach the sweep only, which asks its processes to stop."""
    end_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    else:  # Windows
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def owned(log: Path) -> Iterator[None]:
    """Hold the lock of a log and send everything that is printed to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{log}.lock"), log.open("a") as file:
        saved = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in enumerate(saved, 1):
                os.dup2(old, number)
                os.close(old)
