"""Stage 8g: the Lightning module: a model, its data, one training step and one validation.

A Lightning "epoch" is the stretch of steps from one validation to the next, so that Lightning never has to resume in
the middle of one: `step` counts the steps of the run, and the loader starts wherever it stands. The optimiser is driven
by hand, for the whole step to fit into a CUDA graph. Of several processes each has its part of every batch and split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from wavessm.data.source import Batch, DataSet
from wavessm.errors import OptionError
from wavessm.training import metrics
from wavessm.training.batches import EvalBatches, TrainBatches, as_trained
from wavessm.training.config import Plan, TrainConfig
from wavessm.training.distributed import ALONE, DistInfo, seed_step
from wavessm.training.graphs import CapturedStep
from wavessm.training.groups import optimiser_groups
from wavessm.training.schedule import factor
from wavessm.training.timescales import slow_down


class TrainingModule(LightningModule):
    """What Lightning runs. `step` is the number of optimiser steps done."""

    run_model: Callable[..., Tensor]

    def __init__(
        self, model: nn.Module, data: DataSet, recipe: TrainConfig, plan: Plan, team: DistInfo = ALONE
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.data, self.recipe, self.plan = model, as_trained(data, recipe), recipe, plan
        self.team = team
        self.share = team.share(recipe.batch_size)  # of a batch that this process has
        self.step = 0
        self.optimiser_state: dict[str, Any] | None = None  # of a checkpoint to go on from
        self.table: list[Tensor] = []  # rows of the validation under way
        self.captured: CapturedStep | None = None
        # Outside the module's children, so that weights have one name whether compiled or not.
        self.__dict__["run_model"] = torch.compile(model) if recipe.compile else model

    # -- data ---------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> TrainBatches:
        every = self.plan.validate_every
        stop = min(self.step + every - self.step % every, self.plan.total_steps)
        recipe, total = self.recipe, self.plan.total_steps
        return TrainBatches(self.data.train, recipe.batch_size, recipe.seed, self.step, stop, self.team, total)

    def val_dataloader(self) -> EvalBatches:
        return EvalBatches(self.data.val, self.recipe.eval_batch_size, self.team)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        if batch.x.device == device:  # sources that live there need no help
            return batch
        return Batch(*(None if part is None else part.to(device) for part in batch))  # type: ignore[arg-type]

    # -- the step -----------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        recipe = self.recipe
        groups = optimiser_groups(self.model, recipe)
        on_gpu = next(self.model.parameters()).is_cuda
        if recipe.cuda_graphs and not on_gpu:
            raise OptionError("cuda_graphs: the model is on the CPU; a captured step needs a GPU.")
        for group in groups:
            group["highest_lr"] = group["lr"]
        optimiser = torch.optim.AdamW(groups, fused=on_gpu, capturable=recipe.cuda_graphs)
        if self.optimiser_state is not None:
            optimiser.load_state_dict(self.optimiser_state)
        if recipe.cuda_graphs:
            for group in optimiser.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=groups[0]["params"][0].device)
            self.captured = CapturedStep(lambda batch: self.work(batch, optimiser))
        return optimiser

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        return self.optimizers(use_pl_optimizer=False)  # type: ignore[return-value]

    def advance(self, batch: Batch, optimiser: torch.optim.Optimizer) -> Tensor:
        """One step, captured or not, at the learning rates of its place in the run. Returns the loss ()."""
        self.set_rates(optimiser)
        self.enter_stage()
        if self.team.size > 1:
            seed_step(self.recipe.seed, self.step, self.team.rank)
        loss = self.work(batch, optimiser) if self.captured is None else self.captured(batch).clone()
        self.step += 1
        return loss

    def enter_stage(self) -> None:
        """Where a curriculum goes on to longer sequences: slow the model down with them, if the recipe says so."""
        source, total = self.data.train, self.plan.total_steps
        if self.recipe.stretch_timescales and self.step:
            before, now = (source.length_at(step / total) for step in (self.step - 1, self.step))
            if before != now:
                slow_down(self.model, now / before)

    def set_rates(self, optimiser: torch.optim.Optimizer) -> None:
        """The learning rates of the coming step."""
        recipe = self.recipe
        part = factor(self.step, self.plan.total_steps, recipe.schedule, recipe.warmup)
        for group in optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(part * group["highest_lr"])
            else:
                group["lr"] = part * group["highest_lr"]

    def work(self, batch: Batch, optimiser: torch.optim.Optimizer) -> Tensor:
        """Forward, backward, optimiser: everything that can be captured. Returns the loss ()."""
        output = self.run_model(batch.x, lengths=batch.lengths, marks=batch.marks)
        loss = metrics.loss(self.data.info.kind, output, batch.y)
        if self.team.size == 1:
            loss.backward()
        else:  # DDP takes the mean over processes; parts of unequal size count by their share
            self.manual_backward(loss * (self.share * self.team.size))
        if self.recipe.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.grad_clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.advance(batch, self.optimiser)

    # -- validation ---------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self.table = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        output = self.model(batch.x, lengths=batch.lengths, marks=batch.marks)
        self.table.append(metrics.rows(self.data.info.kind, output, batch.y))

    def scores(self) -> dict[str, float]:
        """Of the validation that has just ended."""
        table = torch.cat(self.table)[: self.val_dataloader().cases]
        return metrics.summarise(self.data.info.kind, self.team.rows(table))
