"""The state of a sweep, and the engine that runs its jobs as processes on this machine.

A job whose command has a row in the table of runs is not started again. Every job is a process, forked where possible
from one that has imported everything; `ray.py` hands jobs to a Ray cluster instead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from wavessm_lab.sweep import job as jobs
from wavessm_lab.sweep import results
from wavessm_lab.sweep.grid import Job
from wavessm_lab.sweep.job import STOPPED, SweepPaths

GRACE_SECONDS = 60.0
"""Time that runs have to save when they are asked to stop."""
PRELOAD = ["wavessm.training.fit", "wavessm.training.evaluate", "matplotlib.pyplot",
           "scipy.stats"]  # fmt: skip
"""What the server process imports once for all processes that it forks."""


@dataclass
class SweepState:
    """Which jobs wait, run, are finished and have failed."""

    paths: SweepPaths
    waiting: list[Job]
    running: dict[str, Job] = field(default_factory=dict)
    finished: list[Job] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    @classmethod
    def of(cls, planned: Sequence[Job], paths: SweepPaths, retry: bool = False) -> SweepState:
        """Sort the planned jobs by their status in the table of runs.

        Args:
            planned: All jobs of the sweep.
            paths: Where the table is.
            retry: Whether failed jobs wait once more.
        """
        rows = results.read(paths.csv)
        status = {row["command"]: row["status"] for row in rows if row["status"] != "ok"}
        status |= {row["command"]: "ok" for row in rows if row["status"] == "ok"}
        state = cls(paths, [])
        for job in planned:
            found = status.get(job.command)
            if found is None or (retry and found != "ok"):
                state.waiting.append(job)
            elif found == "ok":
                state.finished.append(job)
            else:
                state.failed[job.name] = found.removeprefix("failed: ")
        return state

    def summary(self) -> str:
        """Return the numbers of jobs in one line."""
        kinds = {"finished": self.finished, "running": self.running, "waiting": self.waiting, "failed": self.failed}
        return ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())

    def start(self, job: Job) -> None:
        """Move a job from waiting to running."""
        self.waiting.remove(job)
        self.running[job.name] = job

    def end(self, name: str, status: int) -> None:
        """Sort a job by the exit status of its process; append the row that a killed one could not write."""
        job = self.running.pop(name)
        if status == 0:
            self.finished.append(job)
        elif status == STOPPED:
            self.waiting.append(job)
        elif status == jobs.FAILED:
            rows = [row["status"] for row in results.read(self.paths.csv) if row["command"] == job.command]
            self.failed[name] = rows[-1].removeprefix("failed: ") if rows else "no reason given"
        else:
            self.fail(job, f"its process ended by {_name(status)}{' (out of memory?)' if status == -9 else ''}")

    def fail(self, job: Job, reason: str) -> None:
        """Record a failure that the job's own process could not."""
        jobs.record_failure(job, self.paths, reason)
        if job in self.waiting:
            self.waiting.remove(job)
        self.failed[job.name] = reason


def _name(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def start_server() -> Any:
    """Return the context whose processes are forked from one that has imported everything and uses no GPU.

    That one ignores SIGTERM: sent to the whole group, as `timeout` and batch systems do, the signal would end it
    before the runs have saved.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    os.environ.setdefault("MPLBACKEND", "Agg")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)
    return context


class Local:
    """Runs jobs as processes on this machine.

    Args:
        state: Jobs; updated while they run.
        count: Largest number of jobs at a time.
    """

    def __init__(self, state: SweepState, count: int) -> None:
        self.state, self.count = state, count
        self.processes: dict[str, Any] = {}
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
        self.context = start_server()

    def run(self, show: Any) -> None:
        """Run all jobs, or until asked to stop; calls show(state) after every change."""
        with stopping() as asked:
            try:
                while (self.state.waiting or self.processes) and not asked:
                    self._fill()
                    show(self.state)
                    wait([process.sentinel for process in self.processes.values()], timeout=0.5)
                    self._reap()
            finally:
                self.state.stopped = bool(asked)
                self._stop()
        show(self.state)

    def _fill(self) -> None:
        """Start jobs while there is room."""
        for job in list(self.state.waiting)[: self.count - len(self.processes)]:
            process = self.context.Process(target=jobs.process, args=(job, self.state.paths), name=job.name)
            process.start()
            self.processes[job.name] = process
            self.state.start(job)

    def _reap(self) -> None:
        for name, process in list(self.processes.items()):
            if process.exitcode is not None:
                del self.processes[name]
                self.state.end(name, process.exitcode)

    def _stop(self) -> None:
        """Ask running jobs to save and stop; kill those that do not."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        for name, process in list(self.processes.items()):
            del self.processes[name]
            self.state.end(name, 0 if process.exitcode == 0 else STOPPED)


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Yield a list that is not empty after Ctrl-C or SIGTERM; a second signal raises KeyboardInterrupt."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {kind: signal.signal(kind, ask) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
