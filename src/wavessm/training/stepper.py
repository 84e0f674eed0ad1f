"""Stage 8g′: training steps without a run or a trainer, for benchmarks and dry runs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training.batches import TrainBatches
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.run import require_extra


def synthetic_step(
    model: ModelConfig, recipe: TrainConfig, device: torch.device, shape: tuple[int, int, int]
) -> Callable[[], torch.Tensor]:
    """One training step on random multi-label cases (length, channels, labels), without a run: for benchmarks."""
    require_extra()
    length, channels, classes = shape
    cases = 4 * recipe.batch_size
    source = Arrays(torch.randn(cases, length, channels), (torch.rand(cases, classes) < 0.5).float()).to(device)
    info = DataInfo("multilabel", channels, classes, length, classes=tuple(map(str, range(classes))))
    torch.manual_seed(recipe.seed)
    config = model_config("arrays", model, info, recipe.precision)
    return stepper(SequenceModel(config).to(device), DataSet("random", source, source, source, info), recipe)


def stepper(model: SequenceModel, data: DataSet, recipe: TrainConfig) -> Callable[[], torch.Tensor]:
    """A call that does the training step of the next batch, without a run or a trainer. It sets the products' mode."""
    from wavessm.training.module import TrainingModule

    module = TrainingModule(model, data, recipe, recipe.plan(len(data.train)))
    optimiser = module.configure_optimizers()
    batches = iter(TrainBatches(module.data.train, recipe.batch_size, recipe.seed, 0, 10**9))
    device = next(model.parameters()).device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16")
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")

    def step() -> torch.Tensor:
        with autocast:
            return module.advance(next(batches), optimiser)

    return step
