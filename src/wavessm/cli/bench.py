"""`wavessm bench`: training speed of a model on this machine, data on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from wavessm.cli.parse import parse, without
from wavessm.errors import check_int
from wavessm.nn.config import DATA_FIELDS, ModelConfig
from wavessm.training.config import TrainConfig

if TYPE_CHECKING:
    import torch

_SHOWN = ("batch_size", "precision", "compile", "cuda_graphs", "device")
_MODEL = without(ModelConfig(norm="batch", bidirectional=True, head="auto"), DATA_FIELDS)
_TRAINING = without(TrainConfig(batch_size=64), [each.name for each in fields(TrainConfig) if each.name not in _SHOWN])
_WARM_UP = 5


@dataclass(frozen=True)
class BenchOptions:
    """Measure the training speed of a model on random cases."""

    model: _MODEL = field(default_factory=_MODEL)  # type: ignore[valid-type]
    training: _TRAINING = field(default_factory=lambda: _TRAINING(batch_size=64))  # type: ignore[valid-type]
    length: int = 1000
    """Samples of a case."""
    channels: int = 12
    """Channels of a case."""
    classes: int = 5
    """Classes."""
    steps: int = 20
    """Timed steps, after five that are not."""


def main(arguments: list[str]) -> int:
    """Run `wavessm bench`; returns the exit status."""
    given = parse(BenchOptions, arguments, "wavessm bench")
    for name in ("steps", "length", "channels", "classes"):
        check_int(getattr(given, name), f"bench: {name}", minimum=1)
    model, config = ModelConfig(**vars(given.model)), TrainConfig(**vars(given.training))
    import torch

    from wavessm.training import pick_device

    device = pick_device(config)
    step = synthetic_step(model, config, device, (given.length, given.channels, given.classes))

    def seconds_of(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    seconds_of(_WARM_UP)
    seconds = seconds_of(given.steps) / given.steps
    memory = f", {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB" if device.type == "cuda" else ""
    print(f"{seconds * 1e3:.2f} ms a step, {config.batch_size / seconds:.0f} samples/s{memory}")
    return 0


def synthetic_step(
    model: ModelConfig, config: TrainConfig, device: torch.device, shape: tuple[int, int, int]
) -> Callable[[], torch.Tensor]:
    """Return a call that does one training step on random multi-label cases of shape (length, channels, labels).

    Sets the precision of matrix products.
    """
    import torch

    from wavessm.data import Arrays, DataInfo, DataSet
    from wavessm.nn.model import SequenceModel
    from wavessm.training import make_trainer, model_config
    from wavessm.training.batches import TrainBatches

    length, channels, labels = shape
    cases = 4 * config.batch_size
    source = Arrays(torch.randn(cases, length, channels), (torch.rand(cases, labels) < 0.5).float()).to(device)
    info = DataInfo("multilabel", channels, labels, length, classes=tuple(map(str, range(labels))))
    torch.manual_seed(config.seed)
    network = SequenceModel(model_config("arrays", model, info, config.precision)).to(device)
    trainer = make_trainer(network, DataSet("random", source, source, source, info), config)
    batches = iter(TrainBatches(trainer.objective.source, config.batch_size, config.seed, 0, 10**9))
    torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    return lambda: trainer.advance(next(batches))
