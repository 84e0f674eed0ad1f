"""Stage 8p: which parameter learns at which rate: the layer's groups, and what S4 changes from task to task."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wavessm.nn.heads import DirectPath
from wavessm.nn.layer import WaveSSM, param_groups
from wavessm.training.config import TrainConfig


def optimiser_groups(model: nn.Module, recipe: TrainConfig) -> list[dict[str, Any]]:
    """Groups for AdamW.

    dt_rate "global" trains the steps at the global rate; c_rate "ssm" trains C at the rate of the dynamics, with decay.
    A direct path has a rate of its own.
    """
    groups = param_groups(model, recipe.lr, recipe.weight_decay, recipe.lr_ssm)
    layers = [module for module in model.modules() if isinstance(module, WaveSSM)]
    moves: list[tuple[str, list[Tensor], dict[str, float]]] = []
    if recipe.dt_rate == "global":
        moves.append(("dt", [layer.log_dt for layer in layers], {"lr": recipe.lr, "weight_decay": 0.0}))
    if recipe.c_rate == "ssm":
        moves.append(("C", [layer.C for layer in layers], {"lr": recipe.lr_ssm, "weight_decay": recipe.weight_decay}))
    paths: list[Tensor] = [
        w for module in model.modules() if isinstance(module, DirectPath) for w in module.parameters()
    ]
    if paths:
        moves.append(("direct", paths, {"lr": recipe.lr_direct, "weight_decay": recipe.weight_decay}))
    for name, parameters, rates in moves:
        moved = {id(parameter) for parameter in parameters if parameter.requires_grad}
        if not moved:
            continue
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) not in moved]
        groups.append({"name": name, "params": [p for p in parameters if id(p) in moved], **rates})
    there = [group for group in groups if group["params"]]
    return sorted(there, key=lambda group: group["name"] != "direct")  # first: the last one's rate is written down
