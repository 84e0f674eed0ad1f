"""The processes of one run, started by torchrun: how they share batches and splits.

A global batch is the same for any number of processes: each takes its contiguous part, and losses count with the part's
share, so that parts of unequal size give the gradient of the whole batch.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from wavessm.errors import OptionError
from wavessm.training.config import TrainConfig


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
        parts: list[np.ndarray] = [table.cpu().numpy()] * self.size
        if self.size > 1:
            dist.all_gather_object(parts, parts[0])
        return np.concatenate(parts)


ALONE = DistInfo()


def dist_info(config: TrainConfig) -> DistInfo:
    """Return this process's place among those that torchrun has started; `ALONE` without it."""
    env = os.environ
    if int(env.get("WORLD_SIZE", "1")) == 1 or "TORCHELASTIC_RUN_ID" not in env:
        return ALONE
    info = DistInfo(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"]))
    if config.batch_size < info.size:
        raise OptionError(f"batch_size is {config.batch_size}, fewer than the {info.size} processes.")
    if config.cuda_graphs:
        raise OptionError("cuda_graphs captures one process; leave it out, or train without torchrun.")
    return info


def connect(info: DistInfo, device: torch.device) -> None:
    """Connect the processes of torchrun until they end, by NCCL on GPUs and gloo on the CPU."""
    if info.size > 1 and not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(lambda: (gc.collect(), dist.destroy_process_group()))  # a living model holds its threads


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
