"""Work in several processes whose results come back in the order of the jobs.

Generators (`listops`, `pathfinder`) draw every block of a set from the seed and the block's number alone. Results
therefore do not depend on how many processes there are. Nothing here knows what the work is.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait
from typing import TypeVar

from wavessm.errors import DataError

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(work: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """Yield work(job) of every job, in order. At most two jobs per process wait or run at a time.

    Args:
        work: a function of a module, since it travels by name.
        jobs: what to do; may be endless.
        workers: processes; 1 works in this one, 0 takes one per core.

    >>> list(in_order(abs, [-1, 2, -3], workers=1))
    [1, 2, 3]
    """
    workers = workers or os.cpu_count() or 1
    if workers == 1:
        yield from map(work, jobs)
        return
    left = iter(jobs)
    # A new interpreter for each: a fork of a process with threads (torch has some) may hang.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)
    waiting: deque[Future[Result]] = deque()
    try:
        waiting.extend(pool.submit(work, job) for job in islice(left, 2 * workers))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(work, job) for job in islice(left, 1))
            yield result
    except BrokenProcessPool as reason:
        raise DataError("a working process was killed (out of memory?); run again with fewer workers.") from reason
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """End this process when the one that started it is gone: one that was killed cannot tell."""
    parent = multiprocessing.parent_process()

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
