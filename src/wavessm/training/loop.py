"""The one training loop, in plain PyTorch: batches → forward → loss → backward → AdamW → validation → checkpoint.

`fit.py` uses it with a run folder. The estimators use it in memory:

    objective = Objective(source, loss, validate)      # loss(model, batch) → (), validate() → {"loss": value} or None
    history = Trainer(model, objective, config).fit(Progress("WaveSSMClassifier", show=verbose))

The model then has its best weights (its last ones without validation) and is in evaluation mode. Read `checkpoint.py`
and `fit.py` next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wavessm.data.source import Batch, Source
from wavessm.errors import OptionError
from wavessm.training import checkpoint
from wavessm.training.augment import augment
from wavessm.training.batches import TrainBatches
from wavessm.training.checkpoint import DivergedError, Interrupted
from wavessm.training.config import Plan, TrainConfig
from wavessm.training.distributed import ALONE, DistInfo, stop_signals
from wavessm.training.graphs import CapturedStep
from wavessm.training.metrics import SelectionScore
from wavessm.training.optimiser import freeze_statistics, lr_factor, optimiser_groups, stretch_timescales
from wavessm.training.progress import Progress
from wavessm.training.record import write_csv

SAVED = ("step", "best", "best_step", "waited", "first_loss", "loss_sum", "loss_count", "seconds")
"""Fields of a `Trainer` that its checkpoints hold."""
MUST_SAVE = ("optimiser", "model", "random", "source", *SAVED)
"""What a checkpoint to resume from has; the first runs had no `rows` there."""
CHECK_EVERY = 50
"""Steps between looks at the loss on a GPU, which waits for them; on the CPU every step is checked."""


@dataclass(frozen=True)
class Objective:
    """What a model is trained for."""

    source: Source
    """Training split."""
    loss: Callable[[Any, Any], Tensor]
    """(model, batch) → (); `model` is the one to call, which may be compiled or distributed."""
    validate: Callable[[], dict[str, float]] | None = None
    """Scores by name, in evaluation mode without gradients; None keeps the last weights."""
    selection: SelectionScore = SelectionScore("loss", highest=False)  # noqa: RUF009
    """The score that chooses the best weights."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """The same score of forecasts without training, by their names, to show beside that of the model."""


@dataclass(frozen=True)
class History:
    """What happened: a row of numbers per validation, and the step of the best weights."""

    rows: list[dict[str, float]]
    selection: str
    best: float | None
    best_step: int

    @property
    def loss(self) -> list[float]:
        """Mean training loss before each validation."""
        return [row["train_loss"] for row in self.rows]

    @property
    def validation(self) -> list[float]:
        """The selecting score of each validation; empty without one."""
        return [row[f"val_{self.selection}"] for row in self.rows if f"val_{self.selection}" in row]


class Trainer:
    """Trains one model.

    Args:
        model: trained in place, on its device.
        objective: data, loss and validation.
        config: options of the training.
        plan: steps; default those of `config` for the size of the training split.
        dist: this process among several.
        folder: run folder for checkpoints and metrics.csv; None keeps the best weights in memory.
        start: content of last.ckpt to resume from.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        config: TrainConfig,
        plan: Plan | None = None,
        dist: DistInfo = ALONE,
        folder: Path | None = None,
        start: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.objective, self.config, self.dist, self.folder = model, objective, config, dist, folder
        self.plan = plan or config.plan(len(objective.source))
        self.start = start or {}
        self.device = next(model.parameters()).device
        if config.max_minutes and dist.size > 1:  # their clocks would disagree about the last step
            raise OptionError("max_minutes is for one process; several take epochs or steps.")
        piece = dist.part(config.batch_size)
        self.share = (piece.stop - piece.start) / config.batch_size  # of a batch that this process has
        self.step, self.best_step, self.waited = 0, 0, 0  # waited: validations since the best one
        self.best: float | None = None
        self.first_loss: float | None = None
        self.loss_sum, self.loss_count, self.seconds = 0.0, 0, 0.0  # of losses since the last validation
        vars(self).update({name: self.start[name] for name in SAVED if name in self.start})
        self.best_weights: dict[str, Tensor] | None = None
        self.losses: list[Tensor] = []  # not read yet
        self.latest: float | None = None
        self.rows: list[dict[str, float]] = self.start.get("rows", [])
        if folder and self.step and "rows" not in self.start:
            self.rows = checkpoint.read_rows(folder / "metrics.csv", self.step)
        self.run_id = ""
        self.stop_asked = False
        self.clock = self.saved = time.monotonic()
        self.network = self._network()
        self.optimiser = self._optimiser()
        self.captured = CapturedStep(self.work) if config.cuda_graphs else None

    def _network(self) -> Any:
        """The model as it is called in training; weights keep their names in `self.model`."""
        network: Any = self.model
        if self.dist.size > 1:
            devices = [self.device] if self.device.type == "cuda" else None
            network = nn.parallel.DistributedDataParallel(network, device_ids=devices)
        return torch.compile(network) if self.config.compile else network

    def _optimiser(self) -> torch.optim.Optimizer:
        on_gpu = self.device.type == "cuda"
        groups = optimiser_groups(self.model, self.config)
        for group in groups:
            group["highest_lr"] = group["lr"]
        optimiser = torch.optim.AdamW(groups, fused=on_gpu, capturable=self.config.cuda_graphs)
        if "optimiser" in self.start:
            optimiser.load_state_dict(self.start["optimiser"])
        if self.config.cuda_graphs:  # a captured step reads its rates from the device
            for group in optimiser.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
        return optimiser

    # -- the loop ---------------------------------------------------------------------------------------------------

    def fit(self, progress: Progress | None = None) -> History:
        """Train to the end of the plan or until validation stops improving.

        Raises:
            DivergedError: the loss, the score or a weight is not finite, or the loss has grown too much.
            Interrupted: SIGINT or SIGTERM came; everything is saved in the folder.
        """
        config, total = self.config, self.plan.total_steps
        signals = nullcontext() if self.folder is None else stop_signals(self._ask_to_stop)
        with signals, progress or Progress("", show=False) as bar:
            self._restore()
            while self._schedule_step() < total and not (config.patience and self.waited >= config.patience):
                every = self.plan.validate_every
                stop = min(self.step + every - self.step % every, total)
                self.model.train()
                freeze_statistics(self.model)
                source = self.objective.source
                for batch in TrainBatches(source, config.batch_size, config.seed, self.step, stop, self.dist, total):
                    self.losses.append(self.advance(batch))
                    self._after_step()
                    if (at := self._schedule_step()) >= total:
                        break
                    if self.step < stop:
                        bar.update(self.step, self._numbers(), round(total * self.step / at))
                self._validate()
                bar.update(self.step, self._numbers(), round(total * self.step / self._schedule_step()), line=True)
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        self.model.eval()
        return History(self.rows, self.objective.selection.name, self.best, self.best_step)

    def advance(self, batch: Batch) -> Tensor:
        """Do one step, captured or not, at the learning rates of its place in the run. Returns the loss ()."""
        config, total = self.config, self.plan.total_steps
        factor = lr_factor(self._schedule_step(), total, config.schedule, config.warmup)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(factor * group["highest_lr"])
            else:
                group["lr"] = factor * group["highest_lr"]
        if config.stretch_timescales and self.step:
            before, now = (self.objective.source.length_at(step / total) for step in (self.step - 1, self.step))
            if before != now:
                stretch_timescales(self.model, now / before)
        if self.dist.size > 1:  # dropout by run, step and rank: there is no state to save
            torch.manual_seed(((config.seed * 1_000_003 + self.step) * 65_537 + self.dist.rank) % 2**63)
        batch = augment(batch, config, self.step, self.dist.rank)
        loss = self.work(batch) if self.captured is None else self.captured(batch).clone()
        self.step += 1
        return loss

    def work(self, batch: Batch) -> Tensor:
        """Forward, backward, optimiser: everything that can be captured. Returns the loss ()."""
        with self._autocast():  # the backward pass takes the precision of each operation from the forward pass
            loss = self.objective.loss(self.network, batch)
        # DDP takes the mean over processes; parts of unequal size count by their share
        (loss if self.dist.size == 1 else loss * (self.share * self.dist.size)).backward()
        if self.config.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def _schedule_step(self) -> float:
        return self.config.schedule_step(self.step, self.plan.total_steps, self._elapsed())

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def _numbers(self) -> str:
        """Loss, latest score and samples per second, for the progress bar."""
        parts = [] if self.latest is None else [f"loss {self.latest:.4g}"]
        name = f"val_{self.objective.selection.name}"
        if self.rows and name in self.rows[-1]:
            beside = ", ".join(f"{other} {value:.4g}" for other, value in self.objective.baselines.items())
            parts.append(f"{name.replace('_', ' ')} {self.rows[-1][name]:.4g}{f' ({beside})' if beside else ''}")
        speed = self.step * self.config.batch_size / max(self._elapsed(), 1e-9)
        return "  ".join([*parts, f"{speed:.0f} samples/s"])

    # -- validation -------------------------------------------------------------------------------------------------

    def _validate(self) -> None:
        """Score the model, add a row to metrics.csv, keep the model if it is the best, save."""
        self.check_losses()
        scores, selection = self.score() if self.objective.validate is not None else {}, self.objective.selection
        row = {
            "step": self.step,
            "epoch": self.step / self.plan.steps_per_epoch,
            "train_loss": self.loss_sum / max(self.loss_count, 1),
            **{f"val_{name}": value for name, value in scores.items()},
            **{f"{name.replace(' ', '_')}_{selection.name}": v for name, v in self.objective.baselines.items()},
            "lr": float(self.optimiser.param_groups[-1]["lr"]),
            "seconds": self._elapsed(),
        }
        self.loss_sum, self.loss_count = 0.0, 0
        self.rows.append(row)
        if self.folder is not None and self.dist.rank == 0:
            write_csv(self.folder / "metrics.csv", self.rows, digits=8)
        if not scores:
            self.best_step = self.step
        elif selection.better(scores[selection.name], self.best):
            self.best, self.best_step, self.waited = scores[selection.name], self.step, 0
            self._keep_best()
        else:
            self.waited += 1
        self.save()
        if self.folder is not None and self._agree()[0] and self.step < self.plan.total_steps:
            raise Interrupted(self.folder, self.step)

    def score(self) -> dict[str, float]:
        """Return the scores of the validation; refuses one that is not a number, which can choose no model."""
        assert self.objective.validate is not None
        self.model.eval()
        with torch.no_grad(), self._autocast():
            scores = self.objective.validate()
        self.model.train()
        name = self.objective.selection.name
        if math.isnan(scores[name]):
            what = f"{name.replace('_', ' ')} of the validation is not a number"
            raise self._diverged(what if self.best is not None else f"{what} (are its targets all equal?)")
        return scores

    def _keep_best(self) -> None:
        self.check_weights()
        if self.folder is None:
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        elif self.dist.rank == 0:
            content = {"run": self.run_id, "step": self.step, "model": self.model.state_dict()}
            checkpoint.save(self.folder / "best.ckpt", content)

    # -- guards -----------------------------------------------------------------------------------------------------

    def _after_step(self) -> None:
        """Check the loss; save and stop between steps where it is time to, in all processes at the same step."""
        several = self.dist.size > 1
        often = self.device.type == "cpu" or (several and self.config.save_seconds == 0)
        if checked := often or len(self.losses) >= CHECK_EVERY:
            self.check_losses()
        if self.step % self.plan.validate_every == 0 or self.step == self.plan.total_steps:
            return  # a validation follows, and saves
        if self.folder is None or (several and not checked):
            return
        stop, save = self._agree()
        if stop or save:
            self.save()
        if stop:
            raise Interrupted(self.folder, self.step)

    def _ask_to_stop(self) -> None:
        if self.stop_asked and self.dist.size == 1:  # torchrun sends a signal of its own after Ctrl-C
            raise KeyboardInterrupt
        self.stop_asked = True

    def _agree(self) -> tuple[bool, bool]:
        """Whether to stop and whether to save now, the same answer in every process."""
        asked = self.stop_asked, time.monotonic() - self.saved >= self.config.save_seconds
        if self.dist.size == 1:
            return asked
        stop, save = self.dist.total(torch.tensor(asked, dtype=torch.float32, device=self.device)).tolist()
        return stop > 0, save > 0

    def check_losses(self) -> None:
        """Read the losses since the last check; stop the run if one of them has diverged."""
        if not self.losses:
            return
        values = self.dist.total(torch.stack([loss.float() for loss in self.losses]) * self.share).tolist()
        limit = math.inf if self.first_loss is None else self.config.max_loss_ratio * max(self.first_loss, 1e-3)
        for step, value in enumerate(values, start=self.step - len(values) + 1):
            if not math.isfinite(value):
                raise self._diverged("the loss is not finite", step)
            if value > limit:
                raise self._diverged(f"the loss is {value:.4g}, {self.first_loss:.4g} at first", step)
        self.losses = []
        if self.first_loss is None:
            self.first_loss = values[0]
        self.loss_sum, self.loss_count = self.loss_sum + sum(values), self.loss_count + len(values)
        self.latest = values[-1]

    def check_weights(self) -> None:
        """Refuse to keep weights that are not finite."""
        for name, weight in self.model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise self._diverged(f"{name} holds NaN or infinity after it")

    def _diverged(self, what: str, step: int | None = None) -> DivergedError:
        advice = "use a smaller learning_rate."
        if self.folder is not None:
            last = self.folder / "last.ckpt"
            good = checkpoint.load(last)["step"] if last.is_file() else 0
            advice = f"the last good checkpoint is {last} (step {good}). "
            advice += "Try a lower --lr, --grad-clip 1 or --precision fp32."
        return DivergedError(f"step {self.step if step is None else step}: {what}; {advice}")

    # -- saving and resuming ------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write last.ckpt: everything needed to continue from here, bit for bit."""
        self.check_losses()
        self.saved = time.monotonic()
        if self.folder is None:
            return
        self.check_weights()
        if self.dist.rank > 0:
            self.dist.wait()
            return
        self._elapsed()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        weights = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        draws = {"random": {"cpu": torch.get_rng_state(), "cuda": cuda}, "source": self.objective.source.get_state()}
        content = {"run": self.run_id, "rows": self.rows} | weights | draws
        checkpoint.save(self.folder / "last.ckpt", content | {name: getattr(self, name) for name in SAVED})
        self.dist.wait()  # no process is ahead of what is saved

    def _elapsed(self) -> float:
        """Seconds of training, those before a resume included."""
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        return self.seconds

    def _restore(self) -> None:
        """Continue the random numbers of a checkpoint, or score and save a new run before its first step."""
        self.clock = self.saved = time.monotonic()
        if not self.start:
            if self.config.direct_start == "ridge" and self.objective.validate is not None:
                self.best = self.score()[self.objective.selection.name]  # a regression may already be the best model
                self._keep_best()
            self.save()
            return
        try:
            self.objective.source.set_state(self.start["source"])
        except RuntimeError as reason:
            what = f"the run draws its cases on another kind of device than {self.device}"
            raise OptionError(f"{what}; resume it there.") from reason
        random = self.start["random"]
        torch.set_rng_state(random["cpu"])
        if random["cuda"] and len(random["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(random["cuda"])
