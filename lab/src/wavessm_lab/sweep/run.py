"""Stage 8v: a sweep: jobs side by side, what is left after an interruption, a live table.

The table of runs says what is done: a job whose command has a row is not begun again. Locally every job is a process,
forked from one that has imported everything; `sweep_ray.py` hands jobs to a Ray cluster instead.
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

from wavessm.training import results
from wavessm.training.distributed import STOPPED, prepare_server, start_server
from wavessm_lab.sweep import job as jobs
from wavessm_lab.sweep.grid import Job
from wavessm_lab.sweep.job import SweepPaths

GRACE_SECONDS = 60.0
"""How long runs that are asked to stop may take to save."""


@dataclass
class SweepState:
    """What runs, waits, is done and failed, by the name of the job."""

    desk: SweepPaths
    waiting: list[Job]
    running: dict[str, Job] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    done: list[Job] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    @classmethod
    def of(cls, planned: Sequence[Job], desk: SweepPaths, retry: bool = False) -> SweepState:
        """Sorted by what the table of runs says. retry: try failed ones once more."""
        rows = results.read(desk.csv)
        status = {row["command"]: row["status"] for row in rows if row["status"] != "ok"}
        status |= {row["command"]: "ok" for row in rows if row["status"] == "ok"}
        board = cls(desk, [])
        for job in planned:
            said = status.get(job.command)
            if said is None or (retry and said != "ok"):
                board.waiting.append(job)
            elif said == "ok":
                board.done.append(job)
            else:
                board.failed[job.name] = said.removeprefix("failed: ")
        return board

    def begin(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running[job.name], self.since[job.name] = job, time.monotonic()

    def end(self, name: str, status: int) -> None:
        """A job's process has ended. One that left no row gets it here."""
        job = self.running.pop(name)
        if status == 0:
            self.done.append(job)
        elif status == STOPPED:
            self.waiting.append(job)
        elif status == jobs.FAILED:
            said = [r["status"] for r in results.read(self.desk.csv) if r["command"] == job.command]
            self.failed[name] = said[-1].removeprefix("failed: ") if said else "no reason given"
        else:
            self.refuse(job, f"its process ended by {_name(status)}{' (out of memory?)' if status == -9 else ''}")

    def refuse(self, job: Job, reason: str) -> None:
        """Write a failure down that the job's own process could not."""
        jobs.fail(job, self.desk, reason)
        if job in self.waiting:
            self.waiting.remove(job)
        self.failed[job.name] = reason


def _name(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


class Local:
    """Processes on this machine: at most `count` at a time, and no more than fit into `budget` bytes together."""

    def __init__(self, board: SweepState, count: int, budget: int | None) -> None:
        self.board, self.count, self.budget = board, count, budget
        self.processes: dict[str, Any] = {}
        self.needs: dict[str, int] = {}
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
        prepare_server()
        start_server()
        self.context = multiprocessing.get_context("forkserver")

    def run(self, show: Any) -> None:
        """Until nothing runs or waits, or until asked to stop; show(board) after every change."""
        with stopping() as asked:
            try:
                while (self.board.waiting or self.processes) and not asked:
                    self._fill()
                    show(self.board)
                    wait([process.sentinel for process in self.processes.values()], timeout=0.5)
                    self._reap()
            finally:
                self.board.stopped = bool(asked)
                self._stop()
        show(self.board)

    def _fill(self) -> None:
        """Begin jobs while there is room; a small one may go before a big one that has to wait."""
        for job in list(self.board.waiting):
            if len(self.processes) >= self.count:
                return
            need = self._need(job)
            if self.budget is not None and need > self.budget:
                said = f"needs {need / 2**30:.2f} GiB, the budget is {self.budget / 2**30:.2f}"
                self.board.refuse(job, f"{said}; use a smaller batch")
                continue
            taken = sum(self._need(other) for other in self.board.running.values())
            if self.budget is not None and taken + need > self.budget:
                continue
            process = self.context.Process(target=jobs.process, args=(job, self.board.desk), name=job.name)
            process.start()
            self.processes[job.name] = process
            self.board.begin(job)

    def _need(self, job: Job) -> int:
        """Bytes of a run by its dry run, made once for all seeds; 0 where no budget asks."""
        if self.budget is None:
            return 0
        if job.shape not in self.needs:
            answers = self.context.SimpleQueue()
            process = self.context.Process(target=jobs.measure, args=(job, answers))
            process.start()
            process.join()
            self.needs[job.shape] = 0 if answers.empty() else answers.get()
        return self.needs[job.shape]

    def _reap(self) -> None:
        for name, process in list(self.processes.items()):
            if process.exitcode is not None:
                del self.processes[name]
                self.board.end(name, process.exitcode)

    def _stop(self) -> None:
        """Ask what still runs to save and stop; end what does not."""
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
            self.board.end(name, 0 if process.exitcode == 0 else STOPPED)


@contextmanager
def stopping() -> Iterator[list[int]]:
    """A list that holds something once Ctrl-C or SIGTERM has come; a second one ends at once."""
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
