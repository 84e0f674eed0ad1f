"""`wavessm bench`: training speed of a model on this machine, data on the device."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields

from wavessm.cli.parse import parse, without
from wavessm.errors import check_int
from wavessm.nn.config import DATA_FIELDS, ModelConfig
from wavessm.training.config import TrainConfig

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
    from wavessm.training.dry_run import synthetic_step

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
