"""Stage 9a: the training loop of the estimators, in plain PyTorch.

AdamW with the layers' own parameter groups, a short warm-up and half a cosine. With a validation score, the best
weights are kept and the loop ends after `patience` epochs without a better one.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from wavessm.errors import NotFiniteError, OptionError, check_int, check_positive
from wavessm.estimators import defaults
from wavessm.nn.block import SequenceNorm
from wavessm.nn.layer import param_groups

WARMUP = 0.1
GRADIENT_NORM = 1.0
BAR = 24
REFRESH_SECONDS = 0.2


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    patience: int = 0
    """Epochs without a better validation score before the loop ends; 0 never ends it."""
    steps_per_epoch: int | None = None
    """At most so many steps in an epoch; None takes all cases."""
    verbose: int = 0
    label: str = ""


def make_plan(estimator: Any, cases: int, batch: int, steps_per_epoch: int | None = None) -> Plan:
    """The plan of an estimator's options, for so many cases an epoch."""
    epochs = defaults.epochs(cases, batch) if estimator.max_epochs is None else estimator.max_epochs
    return Plan(
        epochs=check_int(epochs, "max_epochs", least=1),
        batch_size=batch,
        learning_rate=check_positive(estimator.learning_rate, "learning_rate"),
        weight_decay=estimator.weight_decay,
        patience=check_int(estimator.n_iter_no_change, "n_iter_no_change", least=1),
        steps_per_epoch=steps_per_epoch,
        verbose=estimator.verbose,
        label=type(estimator).__name__,
    )


@dataclass
class History:
    """What happened, epoch by epoch."""

    loss: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0

    @property
    def epochs(self) -> int:
        return len(self.loss)


def train(
    model: nn.Module,
    plan: Plan,
    cases: int,
    loss: Callable[[Tensor], Tensor],  # the loss of cases with these numbers (k,)
    validate: Callable[[], float] | None = None,  # smaller is better; called in evaluation mode
) -> History:
    """Train in place; the model ends with its best weights, in evaluation mode."""
    per_epoch = -(-cases // plan.batch_size)
    per_epoch = per_epoch if plan.steps_per_epoch is None else min(per_epoch, plan.steps_per_epoch)
    optimiser = torch.optim.AdamW(param_groups(model, plan.learning_rate, plan.weight_decay))
    total = per_epoch * plan.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _shape(step, total))
    history, best, kept = History(), math.inf, None
    began = time.monotonic()
    with _bar(plan) as show:
        for epoch in range(1, plan.epochs + 1):
            model.train()
            sums = torch.zeros(())
            for batch in torch.randperm(cases).split(plan.batch_size)[:per_epoch]:
                sums += _step(model, loss(batch), optimiser, schedule)
            history.loss.append(float(sums) / per_epoch)
            _check_finite(history.loss[-1], epoch)
            if validate is not None:
                model.eval()
                with torch.no_grad():
                    history.validation.append(validate())
                if history.validation[-1] < best:
                    best, history.best_epoch = history.validation[-1], epoch
                    kept = {name: value.clone() for name, value in model.state_dict().items()}
            show(epoch, history)
            if plan.patience and validate is not None and epoch - history.best_epoch >= plan.patience:
                break
    if kept is None:
        history.best_epoch = history.epochs
        _settle(model, loss, torch.arange(cases).split(plan.batch_size)[:per_epoch])
    else:
        model.load_state_dict(kept)
    history.seconds = time.monotonic() - began
    model.eval()
    return history


@torch.no_grad()
def _settle(model: nn.Module, loss: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> None:
    """Statistics of batch norms anew, as the plain mean over batches: after a short training theirs lag behind."""
    norms = [module for module in model.modules() if isinstance(module, SequenceNorm) and module.kind == "batch"]
    inner = [cast(nn.BatchNorm1d, norm.norm) for norm in norms]
    momentum = [norm.momentum for norm in inner]
    model.eval()
    for norm in norms:
        norm.train()
    for number, batch in enumerate(batches if norms else (), start=1):
        for each in inner:
            each.momentum = 1 / number
        loss(batch)
    for each, value in zip(inner, momentum, strict=True):
        each.momentum = value


def _step(
    model: nn.Module, value: Tensor, optimiser: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LambdaLR
) -> Tensor:
    optimiser.zero_grad(set_to_none=True)
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
    optimiser.step()
    schedule.step()
    return value.detach().cpu()


def _shape(step: int, total: int) -> float:
    """Warm-up, then half a cosine down to nothing.

    >>> [round(_shape(step, 10), 2) for step in (0, 1, 5, 10)]
    [1.0, 1.0, 0.59, 0.0]
    """
    rise = max(1, round(WARMUP * total))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))


def _check_finite(loss: float, epoch: int) -> None:
    if not math.isfinite(loss):
        raise NotFiniteError(f"training: the loss is {loss} in epoch {epoch}; use a smaller learning_rate.")


@contextlib.contextmanager
def _bar(plan: Plan) -> Iterator[Callable[[int, History], None]]:
    """A function that shows progress: a bar on a terminal, elsewhere ten lines in all; nothing unless verbose."""
    began, live, last = time.monotonic(), sys.stderr.isatty(), 0.0

    def show(epoch: int, history: History) -> None:
        nonlocal last
        now = time.monotonic()
        end = epoch == plan.epochs
        due = now - last > REFRESH_SECONDS if live else epoch % max(1, plan.epochs // 10) == 0
        if not plan.verbose or not (due or end):
            return
        last = now
        left = (now - began) / epoch * (plan.epochs - epoch)
        words = f"epoch {epoch}/{plan.epochs}  loss {history.loss[-1]:.4f}"
        if history.validation:
            words += f"  validation {history.validation[-1]:.4f}"
        done = round(BAR * epoch / plan.epochs)
        bar = f"[{'#' * done}{'.' * (BAR - done)}] " if live else ""
        print(f"{plan.label} {bar}{words}  {left:.0f} s left", end="\r" if live else "\n", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if plan.verbose and live:
            print(file=sys.stderr)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """PyTorch's random numbers from a seed inside, as they were before outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def pick_device(name: str) -> torch.device:
    """auto, cpu, cuda, cuda:1, mps."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as reason:
        raise OptionError(f"device is {name!r}, which is not there; expected 'auto', 'cpu' or 'cuda'.") from reason
    return device
