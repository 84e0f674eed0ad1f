"""A sweep on a Ray cluster, with Ray's own scheduling and retries. Needs the extra `ray`.

Every machine must see the sweep's folder and the data at the same path. The job of a worker that dies is started again
by Ray, and its run is resumed from the last checkpoint.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any

from wavessm.errors import MissingExtraError
from wavessm_lab.sweep import job as jobs
from wavessm_lab.sweep.grid import Job
from wavessm_lab.sweep.job import STOPPED, SweepPaths
from wavessm_lab.sweep.run import GRACE_SECONDS, SweepState, stopping

RETRIES = 3


class OnRay:
    """Runs jobs on a Ray cluster.

    Args:
        state: Jobs; updated while they run.
        count: Largest number of jobs at a time.
        gpus: GPUs of each job; a fraction shares one.
        address: Of the cluster; default a local one.
    """

    def __init__(self, state: SweepState, count: int, gpus: float, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as reason:
            raise MissingExtraError("a sweep on Ray needs ray: pip install 'wavessm-lab[ray]'.") from reason
        self.ray, self.state, self.count = ray, state, count
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(on_worker)

    def run(self, show: Any) -> None:
        """Run all jobs, or until asked to stop; calls show(state) after every change."""
        running: dict[Any, str] = {}
        with stopping() as asked:
            while (self.state.waiting or running) and not asked:
                while self.state.waiting and len(running) < self.count:
                    job = self.state.waiting[0]
                    running[self.remote.remote(job, self.state.paths)] = job.name
                    self.state.start(job)
                show(self.state)
                ready, _ = self.ray.wait(list(running), timeout=0.5)
                for answer in ready:
                    self._end(running.pop(answer), answer)
            self.state.stopped = bool(asked)
            self._stop(running)
        show(self.state)

    def _end(self, name: str, answer: Any) -> None:
        try:
            self.state.end(name, self.ray.get(answer))
        except self.ray.exceptions.RayError as reason:
            lines = str(reason).strip().splitlines() or [type(reason).__name__]
            self.state.fail(self.state.running.pop(name), lines[0])

    def _stop(self, running: dict[Any, str]) -> None:
        """Ask running jobs to save and stop: a worker gets a KeyboardInterrupt."""
        for answer in running:
            self.ray.cancel(answer)
        if running:
            self.ray.wait(list(running), num_returns=len(running), timeout=GRACE_SECONDS)
        for name in running.values():
            finished = (self.state.paths.folder / name / "result.json").exists()
            self.state.end(name, 0 if finished else STOPPED)


def on_worker(job: Job, paths: SweepPaths) -> int:
    """Entry point of a worker; the status of the job."""
    sys.argv = shlex.split(job.command)
    with jobs.owned(paths.log(job)):
        return jobs.work(job, paths)
