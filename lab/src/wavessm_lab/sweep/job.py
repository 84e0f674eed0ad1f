"""Stage 8u: one job of a sweep in a process of its own: begun, gone on with, or only written down; never twice.

A process holds the lock of its log while it works, so that a run has one owner even when a killed sweep is started
again at once. The system gives the lock back when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavessm.data.parallel import end_with_parent
from wavessm.training import results
from wavessm.training.checkpoint import Interrupted
from wavessm.training.distributed import STOPPED
from wavessm.training.run import Run
from wavessm_lab.sweep.grid import Job

FAILED = 1
"""Exit status of a process that has written down why its run failed."""


@dataclass(frozen=True)
class SweepPaths:
    """Where a sweep keeps its things."""

    folder: Path
    csv: Path
    everything: bool = False  # a row for every score, not only for the one that selects

    def run(self, job: Job) -> Path:
        return self.folder / job.name

    def log(self, job: Job) -> Path:
        return self.folder / "logs" / f"{job.name}.log"


def work(job: Job, desk: SweepPaths) -> int:
    """Do a job and write its row; the exit status. A run that was asked to stop leaves none."""
    try:
        run = _trained(job, desk.run(job))
        results.append(desk.csv, results.rows_of_run(run, job.command, desk.everything))
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    except Exception as reason:
        lines = str(reason).strip().splitlines() or [""]
        fail(job, desk, lines[0] if isinstance(reason, ValueError) else f"{type(reason).__name__}: {lines[0]}")
        return FAILED
    return 0


def _trained(job: Job, folder: Path) -> Run:
    from wavessm.training.run import resume, train

    if (folder / "result.json").exists():
        return Run.read(folder)
    if (folder / "run.json").exists():
        return resume(folder, show=False)
    shutil.rmtree(folder, ignore_errors=True)
    return train(job.task, job.options, job.model, job.config, folder, job.recipe_name, show=False)


def fail(job: Job, desk: SweepPaths, reason: str) -> None:
    """Write down a run that failed."""
    from wavessm.training.run import environment

    model = job.model
    row = results.described(job.task, job.options, job.recipe_name, job.config.seed) | {
        **results.model_name(model.backbone, model.family),
        "measure": model.measure,
        "structure": model.structure,
        "gpu": results.gpu_name(job.config.device),
        "versions": results.versions(environment()),
        "command": job.command,
        "status": f"failed: {reason}",
    }
    results.append(desk.csv, [row])


def process(job: Job, desk: SweepPaths) -> None:
    """What a process of the local engine does."""
    end_with_parent()
    os.setpgrp()  # Ctrl-C is the sweep's; it asks us to stop
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # until the run has its own way to stop
    with owned(desk.log(job)):
        sys.argv = shlex.split(job.command)
        status = work(job, desk)
    sys.exit(status)


@contextmanager
def owned(log: Path) -> Iterator[None]:
    """Hold a log's lock and let everything that is printed go there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(1), os.dup(2)
    with log.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:  # a process that lives on (a worker of Ray) must not keep the lock through its output
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in enumerate(kept, 1):
                os.dup2(old, number)
                os.close(old)


def measure(job: Job, answers: Any) -> None:
    """The bytes that a run takes at the highest, or 0 if its dry run fails: the run will say why."""
    from wavessm.training.dry_run import estimate_run

    end_with_parent()
    os.setpgrp()
    try:
        answers.put(estimate_run(job.task, job.options, job.model, job.config).memory)
    except Exception:
        answers.put(0)
