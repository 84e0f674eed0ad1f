"""Stage 8j: how a run tells how far it is: a bar on a terminal, a line for each validation elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from wavessm.training.keeper import Keeper
from wavessm.training.metrics import SELECTION
from wavessm.training.words import clock

REFRESH_SECONDS = 0.5


class Progress(Callback):
    """Steps done, loss, validation score, samples a second and the time left."""

    def __init__(self, keeper: Keeper, label: str) -> None:
        self.keeper, self.label = keeper, label
        self.bar: Any = None
        self.shown = 0.0
        self.began, self.began_at = 0.0, 0
        self.printed = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        self.began, self.began_at, self.printed = time.monotonic(), module.step, len(self.keeper.rows)
        size = sum(parameter.numel() for parameter in module.model.parameters())
        print(
            f"{self.label}: {size} parameters, {module.plan.total_steps} steps; {self.keeper.folder}", file=sys.stderr
        )
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.bar = Progress(  # fits 80 columns
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self.bar.add_task("", total=module.plan.total_steps, completed=module.step, numbers="")
        self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if self.bar is None or now - self.shown < REFRESH_SECONDS:
            return
        module: Any = pl_module
        self.shown = now
        self.bar.update(self.bar.task_ids[0], completed=module.step, numbers=self.numbers(module))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        if self.bar is None and len(self.keeper.rows) > self.printed:
            self.printed = len(self.keeper.rows)
            print(f"step {module.step}/{module.plan.total_steps}  {self.numbers(module)}", file=sys.stderr)

    def numbers(self, module: Any) -> str:
        """Loss, latest score, samples a second, time left."""
        done, seconds = module.step - self.began_at, time.monotonic() - self.began
        speed = done / seconds if seconds > 0 else 0.0
        parts = [] if math.isnan(self.keeper.latest) else [f"loss {self.keeper.latest:.4g}"]
        if self.keeper.rows:
            score = SELECTION[module.data.info.kind].name
            parts.append(f"{score.replace('_', ' ')} {self.keeper.rows[-1][f'val_{score}']:.4g}")
        parts.append(f"{speed * module.recipe.batch_size:.0f} samples/s")
        if self.bar is None and speed > 0:
            parts.append(f"{clock((module.plan.total_steps - module.step) / speed)} left")
        return "  ".join(parts)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.stop(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.stop(pl_module)

    def stop(self, module: Any) -> None:
        """Give the terminal back."""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=module.step, numbers=self.numbers(module))
            self.bar.stop()
            self.bar = None
