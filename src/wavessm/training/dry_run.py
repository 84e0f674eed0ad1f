"""Stage 8r: what a run will take, before it begins: parameters, memory, steps, time. Nothing is written.

A few steps and one batch of the evaluation are really done, on the run's own data and device, and the rest is counted.
With several processes this is one of them: its part of a batch, without the exchange of gradients.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wavessm.data import get_task
from wavessm.data.source import DataSet
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training.batches import EvalBatches, as_trained
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.run import pick_device, require_extra
from wavessm.training.stepper import stepper
from wavessm.training.words import clock

TIMED_STEPS = 5
TIMED_SECONDS = 10.0
"""Timed steps end after the fifth, or after so long."""
CUDA_CONTEXT = 600 * 2**20
"""Bytes set aside for what a process takes on a GPU besides its tensors."""


@dataclass(frozen=True)
class RunEstimate:
    """What one process of a run will take."""

    parameters: int
    cases: int  # of the training split
    batch_size: int  # of this process
    steps: int
    validations: int
    step_seconds: float
    evaluation_seconds: float  # of one validation
    test_seconds: float
    memory: int  # bytes at the highest: what the run adds to the process, or takes on the GPU
    device: str

    @property
    def seconds(self) -> float:
        """Of the whole run, without loading the data."""
        return self.steps * self.step_seconds + self.validations * self.evaluation_seconds + self.test_seconds

    def lines(self) -> list[str]:
        """As the command line prints it.

        >>> print(*RunEstimate(1200, 64, 8, 80, 10, 0.5, 2.0, 4.0, 3 * 2**29, "cpu").lines(), sep="\\n")
        parameters   1,200
        memory       1.50 GiB on cpu at the highest, batches of 8
        steps        80 in 10 validations, 64 training cases
        time         0:01:04 = 80 × 500.0 ms + 10 × 2.0 s of validation + 4.0 s of test
        """
        return [
            f"parameters   {self.parameters:,}",
            f"memory       {self.memory / 2**30:.2f} GiB on {self.device} at the highest, batches of {self.batch_size}",
            f"steps        {self.steps:,} in {self.validations:,} validations, {self.cases:,} training cases",
            f"time         {clock(self.seconds, hours=True)} = {self.steps:,} × {self.step_seconds * 1e3:.1f} ms + "
            f"{self.validations:,} × {self.evaluation_seconds:.1f} s of validation + {self.test_seconds:.1f} s of test",
        ]


def estimate_run(task: str, options: dict[str, Any], model: ModelConfig, recipe: TrainConfig) -> RunEstimate:
    """Do the first steps of a run and forget them.

    Memory on the CPU is what the process grows by, so call it in a fresh one.
    """
    require_extra()
    device = pick_device(replace(recipe, devices=1))
    before = _resident()
    data = get_task(task).with_options(options).load(recipe.seed)
    plan = recipe.plan(len(data.train))
    own = replace(recipe, batch_size=math.ceil(recipe.batch_size / (recipe.devices * recipe.nodes)), devices=1, nodes=1)
    peak = _Peak(device, before)
    torch.manual_seed(recipe.seed)
    network = SequenceModel(model_config(task, model, data.info, recipe.precision)).to(device)
    data = data.to(device)
    step_seconds = _time_steps(network, data, replace(own, buckets=1), device)
    batches, seconds = _time_evaluation(network, data, own, device)
    return RunEstimate(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        cases=len(data.train),
        batch_size=own.batch_size,
        steps=plan.total_steps,
        validations=math.ceil(plan.total_steps / plan.validate_every),
        step_seconds=step_seconds * as_trained(data, own).train.mean_length(),  # timed on the longest
        evaluation_seconds=seconds * batches / (recipe.devices * recipe.nodes),
        test_seconds=seconds * len(EvalBatches(data.test, own.eval_batch_size)),
        memory=peak.read(),
        device=str(device),
    )


def _time_steps(model: SequenceModel, data: DataSet, recipe: TrainConfig, device: torch.device) -> float:
    """Seconds of a training step: the median of a few, after those in which things settle."""
    step = stepper(model, data, recipe)
    times: list[float] = []
    for _ in range(5 if device.type == "cuda" else 1):
        _timed(step, device)
    while len(times) < TIMED_STEPS and sum(times) < TIMED_SECONDS:
        times.append(_timed(step, device))
    return statistics.median(times)


def _time_evaluation(
    model: SequenceModel, data: DataSet, recipe: TrainConfig, device: torch.device
) -> tuple[int, float]:
    """Batches of a validation, and the seconds of one."""
    loader = EvalBatches(data.val, recipe.eval_batch_size)
    batch = next(iter(loader))
    model.eval()

    def evaluate() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            model(batch.x, lengths=batch.lengths, marks=batch.marks)

    evaluate()
    return len(loader), _timed(evaluate, device)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


class _Peak:
    """The highest memory between its making and `read`."""

    def __init__(self, device: torch.device, before: int) -> None:
        self.device, self.before = device, before
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif sys.platform == "linux":
            Path("/proc/self/clear_refs").write_text("5")  # the kernel's high-water mark begins again here

    def read(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device) + CUDA_CONTEXT
        return max(0, _memory("VmHWM") - self.before)


def _resident() -> int:
    return _memory("VmRSS")


def _memory(field: str) -> int:
    """Bytes of this process, as the kernel counts them."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, only ever rising
    line = next(line for line in status.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
