"""Stage 8p: the processes of one run, and how a batch and a split are shared among them.

A global batch is the same whatever the number of processes: each takes its contiguous part, and losses count with the
part's share, so that parts of unequal size give the gradient of the whole batch. Who starts the processes: `launch.py`,
torchrun or SLURM.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

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
        """The contiguous part of `count` things that falls to this process."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, count: int) -> float:
        """That part's fraction of the whole."""
        piece = self.part(count)
        return (piece.stop - piece.start) / count

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes of a tensor that each of them holds; every process gets it."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def rows(self, table: Tensor) -> np.ndarray:
        """The rows of all processes in the order of their ranks, however many each has. (part, k) → (cases, k)"""
        own = table.cpu().numpy()
        if self.size == 1:
            return own
        parts: list[np.ndarray] = [own] * self.size
        dist.all_gather_object(parts, own)
        return np.concatenate(parts)


ALONE = DistInfo()


def team_of(recipe: TrainConfig) -> DistInfo | None:
    """This process's place in the run a recipe asks for; None if its processes have yet to be started."""
    wanted = recipe.devices * recipe.nodes
    started = _started()
    if started is None or (wanted == 1 and started.size == 1):
        return ALONE if wanted == 1 else None
    if started.size != wanted:
        raise OptionError(
            f"{started.size} processes were started, but the recipe asks for devices = {recipe.devices} × nodes = "
            f"{recipe.nodes}; give --devices and --nodes as to torchrun or srun."
        )
    if recipe.batch_size < wanted:
        raise OptionError(
            f"batch_size is {recipe.batch_size}, fewer than the {wanted} processes; give each a case at least."
        )
    return started


def _started() -> DistInfo | None:
    """What torchrun (or `launch.py`, which is the same engine) or srun say about this process."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        return DistInfo(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"]))
    if "SLURM_STEP_ID" in env and int(env.get("SLURM_NTASKS", "1")) > 1:  # inside srun, not in a batch script
        return DistInfo(int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env["SLURM_LOCALID"]))
    return None


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout of several processes as a function of run, step and rank: nothing to keep, nothing shared by accident."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_537 + rank)
