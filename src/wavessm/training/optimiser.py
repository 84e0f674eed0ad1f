"""What is trained and how fast: groups of parameters, the schedule over steps, time scales of longer sequences."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from wavessm.errors import OptionError, check_int
from wavessm.nn.heads import DirectPath
from wavessm.nn.layer import WaveSSM, decay_by_depth, param_groups
from wavessm.nn.model import SequenceModel
from wavessm.training.config import TrainConfig

FLOOR = 1 / 25
"""Where one-cycle starts, as a fraction of the highest rate."""


def optimiser_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Return parameter groups for AdamW: those of `param_groups`, changed by dt_rate, c_rate and lr_direct."""
    groups = param_groups(model, config.lr, config.weight_decay, config.lr_ssm)
    layers = [module for module in model.modules() if isinstance(module, WaveSSM)]
    paths = [p for each in model.modules() if isinstance(each, DirectPath) for p in each.parameters()]
    for applies, name, parameters, lr, decay in (
        (config.dt_rate == "global", "dt", [layer.log_dt for layer in layers], config.lr, 0.0),
        (config.c_rate == "ssm", "C", [layer.C for layer in layers], config.lr_ssm, config.weight_decay),
        (True, "direct", paths, config.lr_direct, config.weight_decay),
    ):
        own = [parameter for parameter in parameters if applies and parameter.requires_grad]
        moved = {id(parameter) for parameter in own}
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) not in moved]
        groups.append({"name": name, "params": own, "lr": lr, "weight_decay": decay})
    groups = [group for group in groups if group["params"]]
    if config.pretrained and config.objective == "labels" and config.layer_decay != 1:
        groups = decay_by_depth(groups, model, config.layer_decay)
    return sorted(groups, key=lambda group: group["name"] != "direct")  # metrics.csv shows the rate of the last one


def lr_factor(step: float, total: int, schedule: str, warmup: float) -> float:
    """Return the factor of the highest learning rates at `step`, counted from 0; nothing has to be saved to resume.

    cosine     0 → 1 linearly over the warm-up, then half a cosine to 0 after the last step
    one-cycle  1/25 → 1 → 0, both along half a cosine
    constant   0 → 1 over the warm-up, then 1

    >>> [round(lr_factor(step, 10, "cosine", 0.2), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rise = warmup if warmup >= 1 else warmup * total
    if step < rise:
        if schedule == "one-cycle":
            return 1 - (1 - FLOOR) * (1 + math.cos(math.pi * step / rise)) / 2
        return min(1.0, (step + 1) / rise)
    if schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (step - rise) / max(total - rise, 1))) / 2


def stretch_timescales(model: nn.Module, factor: float) -> None:
    """Slow all `WaveSSM` layers but the first down by `factor`, in place, for sequences that are longer by it.

    With Δ divided by k and B multiplied by it, zero-order hold turns a kernel K(t) into K(t / k): what a layer
    remembers, as a fraction of the length, stays the same. The first layer keeps its steps: delays and edges of the
    signal itself do not grow with the length.
    """
    with torch.no_grad():
        for layer in [module for module in model.modules() if isinstance(module, WaveSSM)][1:]:
            layer.log_dt.sub_(math.log(factor))
            layer.B.mul_(factor)


def set_trainable(model: SequenceModel, blocks: int | None) -> None:
    """Choose what is trained: everything (None), or the last blocks and the head; 0 is the head alone.

    Parts that are new (`model.fresh`) are always trained.
    """
    if blocks is None:
        return
    layers = list(model.backbone.blocks)
    if check_int(blocks, "train_blocks", 0) > len(layers):
        raise OptionError(f"train_blocks is {blocks}, but the model has {len(layers)} blocks.")
    model.requires_grad_(False)
    trained = [model.head, model.direct, *layers[len(layers) - blocks :], model.backbone.norm if blocks else None]
    for part in [*trained, model.encoder if "encoder" in model.fresh else None]:
        if part is not None:
            part.requires_grad_(True)


def freeze_statistics(model: nn.Module) -> None:
    """Put parts without a trained parameter into evaluation mode: no dropout, no new statistics of batch norms."""
    for module in model.modules():
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            module.eval()
