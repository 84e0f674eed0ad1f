"""Stage 8x: a sweep on a Ray cluster, with Ray's own scheduling and retries. Needs the extra `ray`.

Every machine must see the sweep's folder and the data at the same path. A worker that dies has its job started again
by Ray, and the run goes on from its last checkpoint.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any

from wavessm.errors import MissingExtraError
from wavessm.training.distributed import STOPPED
from wavessm_lab.sweep import job as jobs
from wavessm_lab.sweep.grid import Job
from wavessm_lab.sweep.job import SweepPaths
from wavessm_lab.sweep.run import GRACE_SECONDS, SweepState, stopping

RETRIES = 3


class OnRay:
    """At most `count` jobs at a time; `gpus` of a GPU each."""

    def __init__(self, board: SweepState, count: int, gpus: float, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as reason:
            raise MissingExtraError("a sweep on Ray needs ray: pip install 'wavessm[ray]'.") from reason
        self.ray, self.board, self.count = ray, board, count
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(on_worker)

    def run(self, show: Any) -> None:
        """Until nothing runs or waits, or until asked to stop; show(board) after every change."""
        under_way: dict[Any, str] = {}
        with stopping() as asked:
            while (self.board.waiting or under_way) and not asked:
                while self.board.waiting and len(under_way) < self.count:
                    job = self.board.waiting[0]
                    under_way[self.remote.remote(job, self.board.desk)] = job.name
                    self.board.begin(job)
                show(self.board)
                ready, _ = self.ray.wait(list(under_way), timeout=0.5)
                for answer in ready:
                    self._end(under_way.pop(answer), answer)
            self.board.stopped = bool(asked)
            self._stop(under_way)
        show(self.board)

    def _end(self, name: str, answer: Any) -> None:
        try:
            self.board.end(name, self.ray.get(answer))
        except self.ray.exceptions.RayError as reason:
            lines = str(reason).strip().splitlines() or [type(reason).__name__]
            self.board.refuse(self.board.running.pop(name), lines[0])

    def _stop(self, under_way: dict[Any, str]) -> None:
        """Ask what still runs to save and stop: a worker hears it as Ctrl-C."""
        for answer in under_way:
            self.ray.cancel(answer)
        if under_way:
            self.ray.wait(list(under_way), num_returns=len(under_way), timeout=GRACE_SECONDS)
        for name in under_way.values():
            done = (self.board.desk.folder / name / "result.json").exists()
            self.board.end(name, 0 if done else STOPPED)


def on_worker(job: Job, desk: SweepPaths) -> int:
    """What a worker of Ray does; the status of the job."""
    sys.argv = shlex.split(job.command)
    with jobs.owned(desk.log(job)):
        return jobs.work(job, desk)
