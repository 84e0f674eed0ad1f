"""What a run will take, measured on a few steps: parameters, memory, steps, time. Nothing is written.

`stepper` and `synthetic_step` are the steps that benchmarks time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from wavessm.data import get_task
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training.batches import EvalBatches, TrainBatches
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.run import make_trainer, matmul_precision, pick_device

CUDA_CONTEXT = 600 * 2**20
"""Bytes that a process takes on a GPU besides its tensors."""


class RunEstimate(NamedTuple):
    """What a run will take; memory is its peak in bytes, on the CPU that of the whole process."""

    parameters: int
    steps: int
    step_seconds: float
    memory: int

    def __str__(self) -> str:
        time = timedelta(seconds=round(self.steps * self.step_seconds))
        return (
            f"{self.parameters:,} parameters, {self.steps:,} steps of {self.step_seconds * 1e3:.1f} ms: {time} without "
            f"validation; {self.memory / 2**30:.2f} GiB at the peak"
        )


def estimate_run(task: str, options: dict[str, Any], model: ModelConfig, config: TrainConfig) -> RunEstimate:
    """Do three steps and an evaluation of one batch, arguments as in `train`, and return what the run will take."""
    device = pick_device(config)
    data = get_task(task).with_options(options).load(config.seed).to(device)
    torch.manual_seed(config.seed)
    network = SequenceModel(model_config(task, model, data.info, config.precision)).to(device)
    trainer = make_trainer(network, data, config)
    source = trainer.objective.source
    for _ in range(2):  # the first one warms up
        began = time.perf_counter()
        with matmul_precision(config.precision):
            trainer.advance(source.take(source.widest(config.batch_size)))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    batch = next(iter(EvalBatches(data.val, config.eval_batch_size)))
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        network.eval()(batch.x, lengths=batch.lengths, marks=batch.marks)
    return RunEstimate(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        steps=config.plan(len(data.train)).total_steps,
        step_seconds=seconds * source.mean_length(config.batch_size),  # timed on the longest
        memory=torch.cuda.max_memory_reserved(device) + CUDA_CONTEXT if device.type == "cuda" else _peak(),
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


def _peak() -> int:
    """Peak memory of this process in bytes; 0 on Windows."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
