"""`wavessm bench`: training steps a second of a model on this machine, data on the device."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Literal

from wavessm.cli.parse import parse, without
from wavessm.errors import check_int
from wavessm.nn.config import DATA_FIELDS, ModelConfig
from wavessm.training.config import TrainConfig

if TYPE_CHECKING:
    import torch


_DEFAULT = ModelConfig(norm="batch", bidirectional=True, head="auto")
_Model = without(_DEFAULT, DATA_FIELDS)


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """Measure the training speed of a model on random cases."""

    model: _Model = dataclasses.field(default_factory=_Model)  # type: ignore[valid-type]
    length: int = 1000
    """Samples of a case."""
    channels: int = 12
    """Channels of a case."""
    classes: int = 5
    """Labels."""
    batch_size: int = 64
    """Cases in a step."""
    steps: int = 20
    """Steps timed, after five that are not."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic."""
    compile: bool = False
    """torch.compile."""
    cuda_graphs: bool = False
    """Whole step as one CUDA graph."""
    device: str = "auto"
    """auto, cpu or cuda."""


WARM_UP = 5


def main(arguments: list[str]) -> int:
    """Run `wavessm bench`; returns the exit status."""
    given = parse(BenchOptions, arguments, "wavessm bench")
    for name in ("steps", "length", "channels", "classes"):
        check_int(getattr(given, name), f"bench: {name}", least=1)
    import torch

    from wavessm.training import pick_device
    from wavessm.training.dry_run import synthetic_step

    config = TrainConfig(
        batch_size=given.batch_size,
        precision=given.precision,
        compile=given.compile,
        cuda_graphs=given.cuda_graphs,
        device=given.device,
    )
    device = pick_device(config)
    model = ModelConfig(**vars(given.model))
    step = synthetic_step(model, config, device, (given.length, given.channels, given.classes))
    for _ in range(WARM_UP):
        step()
    _wait(device)
    began = time.perf_counter()
    for _ in range(given.steps):
        step()
    _wait(device)
    seconds = (time.perf_counter() - began) / given.steps
    memory = f", {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB" if device.type == "cuda" else ""
    print(f"{seconds * 1e3:.2f} ms a step, {given.batch_size / seconds:.0f} samples/s{memory}")
    return 0


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
