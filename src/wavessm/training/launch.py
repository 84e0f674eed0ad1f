"""Stage 8q: several processes of one run on this machine, by torchrun's engine.

Every process runs `train` or `resume` as if torchrun had started it. If one dies, the engine ends the others and its
reason becomes one line; the run folder then holds the last checkpoint of rank 0.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from wavessm.data.parallel import end_with_parent
from wavessm.training import checkpoint
from wavessm.training.checkpoint import Interrupted, RunError
from wavessm.training.folder import resume_command

PRELOAD = ["wavessm.training.run", "wavessm.training.keeper", "wavessm.training.module", "wavessm.training.progress",
           "lightning.pytorch.strategies", "lightning.pytorch.loggers", "tensorboard.summary.writer.event_file_writer",
           "matplotlib.pyplot", "scipy.stats"]  # fmt: skip
"""What the server process imports once for all processes that it forks."""


STOPPED = 130
"""Exit status of a process that was asked to stop, and has saved."""
LOST = ("gloo", "nccl", "connection", "peer")
"""Words in the complaint of a process that another one has left."""
LOST_SECONDS = 5.0


def prepare_server() -> None:
    """Let processes be forked from one that has imported everything and holds no GPU. Must come before the first."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)


def start_server() -> None:
    """Start that process deaf to SIGTERM: sent to the whole group, as `timeout` and batch systems do, the signal would
    end it, and with it what it knows of runs that are still saving."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)


def launch(work: Callable[..., Any], arguments: tuple[Any, ...], folder: Path, count: int) -> None:
    """Run work(*arguments) in `count` processes; returns when all are done.

    Raises `Interrupted` if they were asked to stop, and a `RunError` with the reason of the first that died.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    prepare_server()
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method="forkserver",
    )
    try:
        with _silent():
            elastic_launch(config, _process)(work, arguments)
    except ChildFailedError as failed:
        step = _last_step(folder)
        if failed.get_first_failure()[1].exitcode == STOPPED and step is not None:
            raise Interrupted(folder, step) from failed
        raise RunError(f"{_reason(failed)}; {_go_on(folder)}") from failed
    except SignalException as asked:
        step = _last_step(folder)
        if step is None:
            raise KeyboardInterrupt from asked
        raise Interrupted(folder, step) from asked
    finally:
        if threads is None:
            os.environ.pop("OMP_NUM_THREADS", None)


def _process(work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """What each process does; what it raises, the engine brings home."""
    end_with_parent()
    os.setpgrp()  # Ctrl-C comes once, through the engine
    try:
        work(*arguments)
    except Interrupted:
        sys.exit(STOPPED)  # a returned value would wait for an engine that is itself stopping
    except RuntimeError as reason:
        if any(word in str(reason).lower() for word in LOST):
            time.sleep(LOST_SECONDS)  # let the one that died be noticed first
        raise


def _reason(failed: Any) -> str:
    """The first failure in one line."""
    rank, failure = failed.get_first_failure()
    if failure.exitcode < 0:
        return f"rank {rank} was killed ({signal.Signals(-failure.exitcode).name})"
    said = failure.message
    with suppress(ValueError, KeyError, TypeError):
        said = json.loads(said)["message"] if isinstance(said, str) else said["message"]
    lines = str(said).strip().splitlines() or ["no reason given"]
    return f"rank {rank}: {lines[0].removeprefix('RunError: ').rstrip('.')}"


def _go_on(folder: Path) -> str:
    step = _last_step(folder)
    return "nothing was saved yet" if step is None else f"saved at step {step}, go on with: {resume_command(folder)}"


def _last_step(folder: Path) -> int | None:
    last = folder / "last.ckpt"
    return checkpoint.load(last)["step"] if last.exists() else None


@contextmanager
def _silent() -> Iterator[None]:
    """Without the engine's own reports; ours is one line."""
    logger = logging.getLogger("torch.distributed.elastic")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic.")]
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
