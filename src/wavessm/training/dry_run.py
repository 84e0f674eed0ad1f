"""What a run will take, measured on a few steps: parameters, memory, steps, time. Nothing is written.

The steps and one batch of the evaluation run on the run's own data and device. With several processes this is one of
them: its part of a batch, without the exchange of gradients. `stepper` and `synthetic_step` serve benchmarks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wavessm.data import get_task
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training.batches import EvalBatches, TrainBatches, as_trained
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.progress import clock
from wavessm.training.run import make_trainer, pick_device

TIMED_STEPS = 5
TIMED_SECONDS = 10.0
"""Timed steps end after the fifth, or after this time."""
CUDA_CONTEXT = 600 * 2**20
"""Bytes that a process takes on a GPU besides its tensors."""


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
    memory: int  # peak in bytes: what the run adds to the process, or takes on the GPU
    device: str

    @property
    def seconds(self) -> float:
        """Time of the whole run, without loading the data."""
        return self.steps * self.step_seconds + self.validations * self.evaluation_seconds + self.test_seconds

    def lines(self) -> list[str]:
        """Return the lines that the command line prints.

        >>> print(*RunEstimate(1200, 64, 8, 80, 10, 0.5, 2.0, 4.0, 3 * 2**29, "cpu").lines(), sep="\\n")
        parameters   1,200
        memory       1.50 GiB peak on cpu, batches of 8
        steps        80 in 10 validations, 64 training cases
        time         0:01:04 = 80 × 500.0 ms + 10 × 2.0 s of validation + 4.0 s of test
        """
        return [
            f"parameters   {self.parameters:,}",
            f"memory       {self.memory / 2**30:.2f} GiB peak on {self.device}, batches of {self.batch_size}",
            f"steps        {self.steps:,} in {self.validations:,} validations, {self.cases:,} training cases",
            f"time         {clock(self.seconds, hours=True)} = {self.steps:,} × {self.step_seconds * 1e3:.1f} ms + "
            f"{self.validations:,} × {self.evaluation_seconds:.1f} s of validation + {self.test_seconds:.1f} s of test",
        ]


def estimate_run(task: str, options: dict[str, Any], model: ModelConfig, config: TrainConfig) -> RunEstimate:
    """Do the first steps of a run, arguments as in `train`, and return what the run will take.

    Memory on the CPU is what the process grows by, so call it in a fresh one.
    """
    device = pick_device(replace(config, devices=1))
    before = _memory("VmRSS")
    data = get_task(task).with_options(options).load(config.seed)
    plan = config.plan(len(data.train))
    own = replace(config, batch_size=math.ceil(config.batch_size / config.world_size), devices=1, nodes=1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif (peak := Path("/proc/self/clear_refs")).exists():
        peak.write_text("5")  # Linux counts the peak anew from here
    torch.manual_seed(config.seed)
    network = SequenceModel(model_config(task, model, data.info, config.precision)).to(device)
    data = data.to(device)
    step_seconds = _time_steps(stepper(network, data, replace(own, buckets=1)), device)
    seconds = _time_evaluation(network, data, own, device)
    if device.type == "cuda":
        memory = torch.cuda.max_memory_reserved(device) + CUDA_CONTEXT
    else:
        memory = max(0, _memory("VmHWM") - before)
    return RunEstimate(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        cases=len(data.train),
        batch_size=own.batch_size,
        steps=plan.total_steps,
        validations=math.ceil(plan.total_steps / plan.validate_every),
        step_seconds=step_seconds * as_trained(data, own).train.mean_length(),  # timed on the longest
        evaluation_seconds=seconds * len(EvalBatches(data.val, own.eval_batch_size)) / config.world_size,
        test_seconds=seconds * len(EvalBatches(data.test, own.eval_batch_size)),
        memory=memory,
        device=str(device),
    )


def stepper(model: SequenceModel, data: DataSet, config: TrainConfig) -> Callable[[], torch.Tensor]:
    """Return a call that does the training step of the next batch. Sets the precision of matrix products."""
    trainer = make_trainer(model, data, config)
    batches = iter(TrainBatches(trainer.objective.source, config.batch_size, config.seed, 0, 10**9))
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    return lambda: trainer.advance(next(batches))


def synthetic_step(
    model: ModelConfig, config: TrainConfig, device: torch.device, shape: tuple[int, int, int]
) -> Callable[[], torch.Tensor]:
    """Return a call that does one training step on random multi-label cases of shape (length, channels, labels)."""
    length, channels, labels = shape
    cases = 4 * config.batch_size
    source = Arrays(torch.randn(cases, length, channels), (torch.rand(cases, labels) < 0.5).float()).to(device)
    info = DataInfo("multilabel", channels, labels, length, classes=tuple(map(str, range(labels))))
    torch.manual_seed(config.seed)
    network = SequenceModel(model_config("arrays", model, info, config.precision)).to(device)
    return stepper(network, DataSet("random", source, source, source, info), config)


def _time_steps(step: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a training step: the median of a few, after a warm-up."""
    times: list[float] = []
    for _ in range(5 if device.type == "cuda" else 1):
        _timed(step, device)
    while len(times) < TIMED_STEPS and sum(times) < TIMED_SECONDS:
        times.append(_timed(step, device))
    return statistics.median(times)


def _time_evaluation(model: SequenceModel, data: DataSet, config: TrainConfig, device: torch.device) -> float:
    """Seconds of one batch of the evaluation, after a warm-up."""
    batch = next(iter(EvalBatches(data.val, config.eval_batch_size)))
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        model(batch.x, lengths=batch.lengths, marks=batch.marks)
        return _timed(lambda: model(batch.x, lengths=batch.lengths, marks=batch.marks), device)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _memory(field: str) -> int:
    """Memory of this process in bytes: VmRSS now, VmHWM at its peak (elsewhere than on Linux and Windows: now)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field + ":"))
        return int(line.split()[1]) * 1024
    import psutil

    info = psutil.Process().memory_info()
    return getattr(info, "peak_wset", info.rss) if field == "VmHWM" else info.rss
