"""Stage 8h: what watches over a run: checkpoints, scores, divergence, Ctrl-C.

A checkpoint is taken only between steps whose validation, if one was due, is done; so what follows it is a function of
the checkpoint alone. The best model is written before the last state, which therefore never points to a missing one.
Of several processes only rank 0 writes; what all must do at the same step (save, stop) they agree on when they look.
"""

from __future__ import annotations

import csv
import io
import math
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from wavessm.nn.model import SequenceModel
from wavessm.training import checkpoint
from wavessm.training.batches import restore_source
from wavessm.training.checkpoint import Interrupted, RunError
from wavessm.training.curves import draw_curves
from wavessm.training.evaluate import evaluate_split
from wavessm.training.metrics import SELECTION
from wavessm.training.module import TrainingModule

CHECK_EVERY = {"cpu": 1}
"""Steps between looks at the loss; reading it makes a GPU wait, so it is looked at every 50 there."""


class Keeper(Callback):
    """Saves, scores and guards one run in `folder`."""

    def __init__(self, folder: Path, start: dict[str, Any] | None = None) -> None:
        self.folder, self.start = folder, start
        self.best: float | None = None if start is None else start["best"]
        self.best_step: int = 0 if start is None else start["best_step"]
        self.waited: int = 0 if start is None else start["waited"]
        self.first_loss: float | None = None if start is None else start["first_loss"]
        self.seconds: float = 0.0 if start is None else start["seconds"]
        self.loss_sum: float = 0.0 if start is None else start["loss_sum"]  # since the last validation
        self.loss_count: int = 0 if start is None else start["loss_count"]
        self.losses: list[Tensor] = []
        self.rows: list[dict[str, float]] = read_rows(folder / "metrics.csv", 0 if start is None else start["step"])
        self.latest: float = math.nan
        self.stop_asked = False
        self.stopped_early = False
        self.handlers: dict[int, Any] = {}
        self.began = self.saved = time.monotonic()

    # -- beginning and end ----------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = _ours(pl_module)
        for kind in (signal.SIGINT, signal.SIGTERM):
            try:
                self.handlers[kind] = signal.signal(kind, self._ask_to_stop)
            except ValueError:  # not the main thread: whoever runs us handles signals
                break
        if self.start is not None:
            restore_source(module.data.train, self.start["source"])
            _set_random_state(self.start["random"])
        self.began = self.saved = time.monotonic()
        if self.start is None:
            if module.recipe.direct_start == "ridge":
                self._score_start(module)
            self.save(module)

    def _score_start(self, module: TrainingModule) -> None:
        """A model that starts at a regression may already be the best one."""
        info, model = module.data.info, cast(SequenceModel, module.model)
        scores, _ = evaluate_split(model, module.data.val, info, module.recipe.eval_batch_size)
        model.train()
        self.best = scores[SELECTION[info.kind].name]
        self._check_score(self.best, SELECTION[info.kind].name, module.step)
        if module.team.rank == 0:
            checkpoint.save(self.folder / "best.ckpt", model_content(module))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for kind, handler in self.handlers.items():
            signal.signal(kind, handler)
        self.handlers = {}

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True

    # -- steps --------------------------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = _ours(pl_module)
        self.losses.append(outputs["loss"] if isinstance(outputs, dict) else outputs)
        often = module.team.size > 1 and module.recipe.save_seconds == 0
        looks = len(self.losses) >= (1 if often else CHECK_EVERY.get(module.device.type, 50))
        if looks:
            self.look(module)
        if module.step % module.plan.validate_every == 0 or module.step == module.plan.total_steps:
            return  # a validation follows, and saves
        if module.team.size > 1 and not looks:
            return
        stop, save = self._agree(module)
        if stop or save:
            self.save(module)
        if stop:
            raise Interrupted(self.folder, module.step)

    def _agree(self, module: TrainingModule) -> tuple[bool, bool]:
        """Whether to stop and whether to save now, the same answer in every process."""
        asked = [self.stop_asked, time.monotonic() - self.saved >= module.recipe.save_seconds]
        if module.team.size == 1:
            return asked[0], asked[1]
        stop, save = module.team.total(torch.tensor(asked, dtype=torch.float32, device=module.device)).tolist()
        return stop > 0, save > 0

    def look(self, module: TrainingModule) -> None:
        """Read the losses since the last look; stop if one of them says that the run is lost."""
        if not self.losses:
            return
        values = module.team.total(torch.stack([loss.float() for loss in self.losses]) * module.share).tolist()
        first = module.step - len(values) + 1
        self.losses = []
        limit = math.inf if self.first_loss is None else module.recipe.max_loss_ratio * max(self.first_loss, 1e-3)
        for step, value in enumerate(values, start=first):
            if not math.isfinite(value) or value > limit:
                what = (
                    "is not finite" if not math.isfinite(value) else f"is {value:.4g}, {self.first_loss:.4g} at first"
                )
                raise RunError(f"step {step}: the loss {what}; {self._advice()}")
        if self.first_loss is None:
            self.first_loss = values[0]
        self.loss_sum, self.loss_count = self.loss_sum + sum(values), self.loss_count + len(values)
        self.latest = values[-1]

    def _check_score(self, value: float, name: str, step: int) -> None:
        """Refuse a score that can choose no model."""
        if math.isnan(value):
            raise RunError(f"step {step}: {name.replace('_', ' ')} of the validation is not a number; {self._advice()}")

    def _advice(self) -> str:
        kept = self.folder / "last.ckpt"
        step = checkpoint.load(kept)["step"] if kept.is_file() else 0
        return f"the last good checkpoint is {kept} (step {step}). Try a lower --lr, --grad-clip 1 or --precision fp32."

    # -- validation -------------------------------------------------------------------------------------------------

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = _ours(pl_module)
        self.look(module)
        selection = SELECTION[module.data.info.kind]
        scores = module.scores()
        self._check_score(scores[selection.name], selection.name, module.step)
        row = {
            "step": module.step,
            "epoch": module.step / module.plan.steps_per_epoch,
            "train_loss": self.loss_sum / max(self.loss_count, 1),
            **{f"val_{name}": value for name, value in scores.items()},
            "lr": float(module.optimiser.param_groups[-1]["lr"]),
            "seconds": self.seconds + time.monotonic() - self.began,
        }
        self.loss_sum, self.loss_count = 0.0, 0
        self.rows.append(row)
        writes = module.team.rank == 0
        if writes:
            write_rows(self.folder / "metrics.csv", self.rows)
        if selection.better(scores[selection.name], self.best):
            self.best, self.best_step, self.waited = scores[selection.name], module.step, 0
            self._check_weights(module)
            if writes:
                checkpoint.save(self.folder / "best.ckpt", model_content(module))
        else:
            self.waited += 1
        self.save(module)
        for logger in trainer.loggers:
            logger.log_metrics({name: value for name, value in row.items() if name != "step"}, step=module.step)
        if self._agree(module)[0] and module.step < module.plan.total_steps:
            raise Interrupted(self.folder, module.step)
        if module.recipe.patience and self.waited >= module.recipe.patience:
            self.stopped_early = True
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if _ours(pl_module).team.rank == 0:
            draw_curves(self.rows, SELECTION[_ours(pl_module).data.info.kind].name, self.folder / "curves.png")

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self, module: TrainingModule) -> None:
        """Everything the run needs to go on from here, after a look at losses and weights."""
        self.look(module)
        self._check_weights(module)
        self.saved = time.monotonic()
        if module.team.rank > 0:
            return
        content = model_content(module) | {
            "optimiser": module.optimiser.state_dict(),
            "random": _random_state(),
            "source": module.data.train.get_state(),
            "best": self.best,
            "best_step": self.best_step,
            "waited": self.waited,
            "first_loss": self.first_loss,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "seconds": self.seconds + time.monotonic() - self.began,
        }
        checkpoint.save(self.folder / "last.ckpt", content)

    def _check_weights(self, module: TrainingModule) -> None:
        for name, weight in module.model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise RunError(f"step {module.step}: {name} holds NaN or infinity after it; {self._advice()}")


def model_content(module: TrainingModule) -> dict[str, Any]:
    """What a model needs to be used: step and weights."""
    return {"step": module.step, "model": module.model.state_dict()}


def _ours(module: LightningModule) -> TrainingModule:
    assert isinstance(module, TrainingModule)
    return module


def _random_state() -> dict[str, Any]:
    """Of the generators that dropout draws from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def read_rows(path: Path, step: int) -> list[dict[str, float]]:
    """The rows of metrics.csv up to a step."""
    if not path.exists() or step == 0:
        return []
    with path.open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return [{**row, "step": int(row["step"])} for row in rows if row["step"] <= step]


def write_rows(path: Path, rows: list[dict[str, float]]) -> None:
    """metrics.csv, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({k: v if isinstance(v, int) else f"{v:.8g}" for k, v in row.items()} for row in rows)
    with checkpoint.replacing(path) as file:
        file.write(text.getvalue().encode())
