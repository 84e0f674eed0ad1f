"""The training loop of the estimators, in plain PyTorch: AdamW, warm-up, half a cosine, early stopping."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from wavessm.data.source import Batch, Source
from wavessm.errors import NotFiniteError
from wavessm.nn.block import SequenceNorm, TiedDropout
from wavessm.nn.layer import param_groups

WARMUP = 0.1
GRADIENT_NORM = 1.0
PREDICT_BATCH = 256


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    patience: int = 0
    steps_per_epoch: int | None = None
    verbose: int = 0
    label: str = ""


@dataclass
class History:
    """What happened, epoch by epoch."""

    loss: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0

    @property
    def epochs(self) -> int:
        return len(self.loss)


def run(model: nn.Module, batch: Batch) -> Tensor:
    """The model's output for a batch, no longer than its longest case."""
    x, lengths = batch.x, batch.lengths
    return model(x if lengths is None else x[:, : int(lengths.max())], lengths=lengths, marks=batch.marks)


def predict(model: nn.Module, source: Source) -> Tensor:
    """Outputs of all cases, in their order."""
    with torch.no_grad():
        return torch.cat([run(model, source.take(part)) for part in torch.arange(len(source)).split(PREDICT_BATCH)])


def train(
    model: nn.Module,
    plan: Plan,
    source: Source,
    loss: Callable[[Tensor, Tensor], Tensor],
    held: Source | None,
    seed: int,
) -> History:
    """Train in place; the model ends with its best weights, in evaluation mode."""
    order = torch.Generator().manual_seed(seed)
    masks = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    cases = len(source)
    per_epoch = -(-cases // plan.batch_size)
    per_epoch = per_epoch if plan.steps_per_epoch is None else min(per_epoch, plan.steps_per_epoch)
    optimiser = torch.optim.AdamW(param_groups(model, plan.learning_rate, plan.weight_decay))
    total = per_epoch * plan.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _shape(step, total))
    history, best, kept = History(), math.inf, None
    _set_generator(model, masks)
    for epoch in range(1, plan.epochs + 1):
        model.train()
        sums = torch.zeros(())
        for index in torch.randperm(cases, generator=order).split(plan.batch_size)[:per_epoch]:
            batch = source.take(index)
            value = loss(run(model, batch), batch.y)
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
            optimiser.step()
            schedule.step()
            sums += value.detach().cpu()
        history.loss.append(float(sums) / per_epoch)
        if not math.isfinite(history.loss[-1]):
            raise NotFiniteError(
                f"training: the loss is {history.loss[-1]} in epoch {epoch}; use a smaller learning_rate."
            )
        if held is not None:
            model.eval()
            targets = held.take(torch.arange(len(held))).y
            history.validation.append(float(loss(predict(model, held), targets)))
            if history.validation[-1] < best:
                best, history.best_epoch = history.validation[-1], epoch
                kept = {name: value.clone() for name, value in model.state_dict().items()}
        if plan.verbose and (epoch % max(1, plan.epochs // 10) == 0 or epoch == plan.epochs):
            print(f"{plan.label} epoch {epoch}/{plan.epochs}  loss {history.loss[-1]:.4f}", file=sys.stderr)
        if plan.patience and held is not None and epoch - history.best_epoch >= plan.patience:
            break
    _set_generator(model, None)
    if kept is None:
        history.best_epoch = history.epochs
        refresh_batch_norm(
            model, [source.take(part) for part in torch.arange(cases).split(plan.batch_size)[:per_epoch]]
        )
    else:
        model.load_state_dict(kept)
    model.eval()
    return history


def _set_generator(model: nn.Module, generator: torch.Generator | None) -> None:
    for module in model.modules():
        if isinstance(module, TiedDropout):
            module.generator = generator


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, batches: list[Batch]) -> None:
    """Recompute statistics of batch norms as the plain mean over batches: after a short training theirs lag behind."""
    norms = [module for module in model.modules() if isinstance(module, SequenceNorm) and module.kind == "batch"]
    inner = [cast(nn.BatchNorm1d, norm.norm) for norm in norms]
    momentum = [norm.momentum for norm in inner]
    model.eval()
    for norm in norms:
        norm.train()
    for number, batch in enumerate(batches if norms else (), start=1):
        for each in inner:
            each.momentum = 1 / number
        run(model, batch)
    for each, value in zip(inner, momentum, strict=True):
        each.momentum = value


def _shape(step: int, total: int) -> float:
    rise = max(1, round(WARMUP * total))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))
