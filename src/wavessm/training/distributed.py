"""The processes of one run: how they share batches and splits, and how they are started on this machine.

A global batch is the same for any number of processes: each takes its contiguous part, and losses count with the part's
share, so that parts of unequal size give the gradient of the whole batch. Processes are started by `launch`, torchrun
or SLURM.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from wavessm.data.parallel import end_with_parent
from wavessm.errors import OptionError
from wavessm.training import checkpoint
from wavessm.training.checkpoint import Interrupted, RunError, resume_command
from wavessm.training.config import TrainConfig

START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
PRELOAD = ["wavessm.training.run", "wavessm.training.evaluate", "torch.utils.tensorboard", "matplotlib.pyplot",
           "scipy.stats"]  # fmt: skip
"""What the server process imports once for all processes that it forks."""
STOPPED = 130
"""Exit status of a process that was asked to stop, and has saved."""
_LOST = ("gloo", "nccl", "connection", "peer")  # in the message of a process that lost another one
_LOST_SECONDS = 5.0


@dataclass(frozen=True)
class DistInfo:
    """This process among those of its run.

    >>> [DistInfo(rank, 3).part(10) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on its machine

    def part(self, count: int) -> slice:
        """Return the contiguous part of `count` things of this process."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, count: int) -> float:
        """Return that part's fraction of the whole."""
        piece = self.part(count)
        return (piece.stop - piece.start) / count

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, in every process."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Return when all processes have come here."""
        if self.size > 1:
            dist.barrier()

    def rows(self, table: Tensor) -> np.ndarray:
        """Return the rows of all processes in the order of their ranks: (own cases, k) → (cases, k)."""
        own = table.cpu().numpy()
        if self.size == 1:
            return own
        parts: list[np.ndarray] = [own] * self.size
        dist.all_gather_object(parts, own)
        return np.concatenate(parts)


ALONE = DistInfo()


def dist_info(config: TrainConfig) -> DistInfo | None:
    """Return this process's place in the run that a config asks for; None if its processes have yet to be started."""
    started = _started()
    if config.world_size == 1 and (started is None or started.size == 1):
        return ALONE
    if started is not None and started.size != config.world_size:
        raise OptionError(
            f"{started.size} processes were started, but the options ask for devices = {config.devices} × nodes = "
            f"{config.nodes}; give --devices and --nodes as to torchrun or srun."
        )
    if config.nodes > 1 and started is None:
        raise OptionError(
            f"nodes is {config.nodes}: start the command on every machine, with `torchrun --nnodes {config.nodes} "
            f"--nproc-per-node {config.devices} … -m wavessm train …` or `srun`."
        )
    if config.batch_size < config.world_size:
        raise OptionError(f"batch_size is {config.batch_size}, fewer than the {config.world_size} processes.")
    return started


def _started() -> DistInfo | None:
    """What torchrun (or `launch`) or srun tell this process."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        return DistInfo(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"]))
    if "SLURM_STEP_ID" in env and int(env.get("SLURM_NTASKS", "1")) > 1:  # inside srun, not in a batch script
        return DistInfo(int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env["SLURM_LOCALID"]))
    return None


@contextmanager
def process_group(info: DistInfo, device: torch.device) -> Iterator[None]:
    """Connect the processes of a run, by NCCL on GPUs and gloo on the CPU."""
    if info.size == 1:
        yield
        return
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # srun: all meet at the first node, at a port of the job's own
        first = re.sub(r"\[(.*?)[,\-\]].*", r"\1", os.environ["SLURM_NODELIST"]).partition(",")[0]
        os.environ.setdefault("MASTER_ADDR", first)
        os.environ.setdefault("MASTER_PORT", str(15_000 + int(os.environ["SLURM_JOB_ID"][-4:])))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=info.rank, world_size=info.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the dropout of one of several processes by run, step and rank: there is no state to save."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_537 + rank)


# -- starting processes -----------------------------------------------------------------------------------------------


def prepare_server() -> None:
    """Let processes be forked from one that has imported everything and uses no GPU. Call it before the first."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    if START_METHOD == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)


def start_server() -> None:
    """Start that process so that it ignores SIGTERM: sent to the whole group, as `timeout` and batch systems do, the
    signal would end it before the runs have saved."""
    if START_METHOD != "forkserver":
        return
    from multiprocessing import forkserver

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM inside the block; outside the main thread nothing changes."""
    handlers: dict[int, Any] = {}
    with suppress(ValueError):  # not the main thread
        for kind in (signal.SIGINT, signal.SIGTERM):
            handlers[kind] = signal.signal(kind, lambda number, frame: stop())
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def launch(work: Callable[..., Any], arguments: tuple[Any, ...], folder: Path, count: int) -> None:
    """Run work(*arguments) in `count` processes as torchrun would; returns when all have finished.

    Raises:
        Interrupted: they were asked to stop, and saved.
        RunError: one of them died; the message has its reason.
    """
    prepare_server()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    given = (work, arguments, count, port)
    processes: Any = start_processes(_process, given, count, join=False, start_method=START_METHOD)
    asked = []

    def stop() -> None:
        asked.append(True)
        for process in processes.processes:
            process.terminate()

    try:
        with stop_signals(stop):
            while not processes.join():
                pass
    except (ProcessExitedException, ProcessRaisedException) as failed:
        last = folder / "last.ckpt"
        step = checkpoint.load(last)["step"] if last.exists() else None
        if asked or getattr(failed, "exit_code", 0) == STOPPED:
            raise KeyboardInterrupt if step is None else Interrupted(folder, step) from failed
        saved = "nothing was saved yet" if step is None else f"saved at step {step}, resume: {resume_command(folder)}"
        raise RunError(f"rank {failed.error_index} {_reason(failed)}; {saved}") from None


def _process(rank: int, work: Callable[..., Any], arguments: tuple[Any, ...], count: int, port: int) -> None:
    end_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C comes once, through `launch`
    names = {"TORCHELASTIC_RUN_ID": port, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    try:
        work(*arguments)
    except Interrupted:
        sys.exit(STOPPED)
    except RuntimeError as reason:
        if any(word in str(reason).lower() for word in _LOST):
            time.sleep(_LOST_SECONDS)  # let the one that died be noticed first
        raise


def _reason(failed: Any) -> str:
    """Why a process died, in one line."""
    if isinstance(failed, ProcessExitedException):
        name = failed.signal_name
        return f"was killed ({name})" if name else f"ended with status {failed.exit_code}"
    line = str(failed).strip().splitlines()[-1]
    return "failed: " + re.sub(r"^[\w.]*(Error|Exception): ", "", line).rstrip(".")
