"""Training a run: `train` starts one, `resume` continues it, both write the folder that `run.py` reads.

Gradient training goes through the loop of `loop.py`, a closed form through `closed_form.py`; the best model is then
scored on the test split.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wavessm.data import get_task
from wavessm.data.baselines import baseline_scores, line_errors, majority_accuracy
from wavessm.data.source import DataInfo, DataSet
from wavessm.data.task import OwnOptions
from wavessm.errors import MissingExtraError, OptionError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import checkpoint, metrics
from wavessm.training.augment import mixed_loss
from wavessm.training.batches import as_trained
from wavessm.training.checkpoint import RunError, replacing, write_json
from wavessm.training.closed_form import CLOSED, class_balance, fit_closed, load_data
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.direct import start_at_ridge
from wavessm.training.distributed import ALONE, DistInfo, connect, dist_info
from wavessm.training.evaluate import evaluate_split, score_parts
from wavessm.training.finetune import start_from
from wavessm.training.loop import MUST_SAVE, Objective, Trainer
from wavessm.training.optimiser import set_trainable
from wavessm.training.pretrain import Pretrainer, linear_probe, pretrain_objective
from wavessm.training.progress import Progress
from wavessm.training.record import draw_curves, environment, write_csv
from wavessm.training.run import Run, digest, fill, held, new_folder, open_model
from wavessm.training.scores import best_thresholds, class_curves

log = logging.getLogger("wavessm.training")
Network = SequenceModel | Pretrainer


def _network(model: ModelConfig, config: TrainConfig, info: DataInfo, show: bool) -> Network:
    """What is trained: a new model or an adapted one, inside its pretraining."""
    network, note = start_from(config.pretrained, model, info) if config.pretrained else (SequenceModel(model), "")
    if note and show:
        print(note, file=sys.stderr)
    return network if config.objective == "labels" else Pretrainer(network, config)


def _start_config(base: ModelConfig, model: ModelConfig, info: DataInfo) -> ModelConfig:
    """The architecture of a pretrained model, with the dropout and backend of another, for new data."""
    base = base if info.kind == base.head == "forecast" else base.replace(head="pool")
    missing = "auto" if base.missing == "error" else base.missing
    return dataclasses.replace(base, head="auto", missing=missing, dropout=model.dropout, backend=model.backend)


def train(
    task: str,
    options: dict[str, Any],
    model: ModelConfig,
    config: TrainConfig,
    out: Path | None = None,
    recipe_name: str = "custom",
    show: bool = True,
) -> Run:
    """Train a new model and return its run when it has finished; under torchrun, call it in every process.

    Args:
        task: name of the task, as in `wavessm train TASK`.
        options: replaces fields of the task's data options.
        model: the architecture; the data decide input, output and head. With config.pretrained it is that of the
            pretrained model, and only dropout and backend are taken from here.
        config: the training; `resolve(task, recipe)` returns both for a recipe.
        out: run folder, new or empty; default the next free one in runs/.
        recipe_name: how tables of results call model and config.
        show: whether to show a progress bar.

    Raises:
        Interrupted: SIGINT or SIGTERM came, and the run is saved.
        RunError: training diverged, or the folder cannot be used.
    """
    if config.direct_start == "ridge" and not model.direct:
        raise OptionError("direct_start is 'ridge', but the model has no direct path; add --direct-start zero.")
    if config.method == "auto":
        config = dataclasses.replace(config, method="gradient")  # only the command line knows what was given
    dist, closed = dist_info(config), config.method in CLOSED
    pick_device(config, dist)  # what does not fit is refused before anything is written
    if closed and dist.size > 1:
        raise OptionError(f"method is {config.method!r}, which one process fits; leave torchrun out.")
    chosen = get_task(task).with_options(options)
    data = load_data(chosen, config)
    as_trained(data, config)
    if config.pretrained:
        model = _start_config(open_model(config.pretrained).model, model, data.info)
        config = config if model.direct else dataclasses.replace(config, direct_start="zero")
    holds = closed and model.missing == "auto" and data.info.missing > 0  # the default of state features
    model = model_config(task, model, data.info, config.precision)
    if data.info.missing:
        model = dataclasses.replace(model, missing="hold") if holds else model
        log.warning("%.3g %% of the samples are NaN: missing, --missing %s", 100 * data.info.missing, model.missing)
    if config.objective != "labels":
        if data.info.timed:
            raise OptionError("pretraining reads no times; take times.npy away, or train with labels.")
        model = model.replace(head="pool")
    torch.manual_seed(config.seed)
    network = None if closed else _network(model, config, data.info, show and dist.rank == 0)
    folder = new_folder(out, task) if dist.rank == 0 else out or Path("runs")  # the others write nothing
    run = Run(folder, task, chosen, recipe_name, model, config, data.info, environment(), chosen.checksum())
    run = dataclasses.replace(run, fresh=getattr(network, "fresh", ()))
    run = dataclasses.replace(run, id=f"{uuid.uuid4().hex}-{digest(run.content())}")
    with held(folder, dist):
        if dist.rank == 0:
            write_json(folder / "run.json", run.content())
        _fit(run, network, data, dist, None, show)
    return run


def resume(folder: Path, show: bool = True) -> Run:
    """Continue the run in a folder from its last checkpoint, bit for bit as if it had never stopped.

    Raises:
        RunError: the run is still running, its checkpoint is missing or damaged, or its data have changed.
    """
    run, last = Run.read(folder, unlabelled=True), folder / "last.ckpt"
    if (folder / "metrics.csv").exists() and not last.exists() and run.method == "gradient":
        raise RunError(f"{last}: is missing, but there is metrics.csv: cannot resume. Bring it back, or train again.")
    dist = dist_info(run.config)
    with held(folder, dist):
        start = checkpoint.load(last, run.id) if last.exists() else None
        if start is not None and (missing := [name for name in MUST_SAVE if name not in start]):
            raise RunError(f"{last}: lacks {missing[0]!r}, so it cannot be resumed from; was it copied from best.ckpt?")
        data = run.load_data()
        torch.manual_seed(run.config.seed)
        config = run.config if start is None else dataclasses.replace(run.config, pretrained="")
        network = _network(run.model, config, run.info, show=False) if run.method == "gradient" else None
        if start is not None and network is not None:
            fill(network, start, last)
        _fit(run, network, data, dist, start, show)
    return run


def make_trainer(
    model: Network, data: DataSet, config: TrainConfig, dist: DistInfo = ALONE, folder: Path | None = None,
    start: dict[str, Any] | None = None,
) -> Trainer:  # fmt: skip
    """Return the loop that trains a model on a data set, both on one device; arguments as in `Trainer`."""
    plan, balance = config.plan(len(data.train)), class_balance(data, config)
    if isinstance(model, Pretrainer):
        objective = pretrain_objective(model, data, as_trained(data, config).train, config, dist)
        return Trainer(model, objective, config, plan, dist, folder, start)
    data, kind, levels = as_trained(data, config), data.info.kind, data.info.quantiles

    def loss(network: Any, batch: Any) -> torch.Tensor:
        output = network(batch.x, **batch.inputs())
        return mixed_loss(lambda out, y, weight: metrics.loss(kind, out, y, weight, balance, levels), output, batch)

    def validate() -> dict[str, float]:
        scores, table = evaluate_split(model, data.val, data.info, config.eval_batch_size, dist)
        return scores | class_curves(data.info, table)

    shown = kind == "forecast" and folder is not None
    beside = {"line": line_errors(data)} | baseline_scores(data, "val") if shown else {}
    errors = {name: found.mse for name, found in beside.items()}
    objective = Objective(data.train, loss, validate, metrics.SELECTION["quantiles" if levels else kind], errors)
    return Trainer(model, objective, config, plan, dist, folder, start)


def _fit_closed(run: Run, data: DataSet, device: torch.device) -> None:
    """Fit in closed form, and write the model and its validation scores."""
    began = time.perf_counter()
    model = fit_closed(data, run.config, device, run.model.missing)
    seconds = time.perf_counter() - began
    scores, _ = evaluate_split(model, data.val, data.info, run.config.eval_batch_size)
    content = {"run": run.id, "step": 0, "model": model.state_dict(), "closed": model.describe()}
    checkpoint.save(run.folder / "best.ckpt", content)
    row = {"step": 0, "seconds": seconds, **{f"val_{name}": value for name, value in scores.items()}}
    write_csv(run.folder / "metrics.csv", [row], digits=8)


def _fit(run: Run, model: Network | None, data: DataSet, dist: DistInfo, start: dict | None, show: bool) -> None:
    """Train from a checkpoint, or from the beginning, then score the best model; no model is a closed form."""
    config, device = run.config, pick_device(run.config, dist)
    if model is None:
        _fit_closed(run, data, device)
        return _score_test(run, data.to(device), device)
    data, total = data.to(device), config.plan(len(data.train)).total_steps
    left = start is None or config.schedule_step(start["step"], total, start["seconds"]) < total
    if start is None or (left and not 0 < config.patience <= start["waited"]):
        model.to(device)
        if config.pretrained and isinstance(model, SequenceModel):
            model.fresh = run.fresh
            set_trainable(model, config.train_blocks)
        if start is None and config.direct_start == "ridge" and isinstance(model, SequenceModel):
            start_at_ridge(model, data)
        if dist.size > 1 and device.type == "cuda":  # statistics of the whole batch; the CPU has no such layer
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        connect(dist, device)
        with matmul_precision(config.precision):
            trainer = make_trainer(model, data, config, dist, run.folder, start)
            trainer.run_id = run.id
            show, label = show and dist.rank == 0, f"{run.task} {run.model.family}"
            if show:
                size = sum(parameter.numel() for parameter in model.parameters())
                print(f"{label}: {size} parameters, {total} steps; {run.folder}", file=sys.stderr)
            history = trainer.fit(Progress(label, total, trainer.step, show))
        if dist.rank == 0:
            with suppress(MissingExtraError):
                draw_curves(history.rows, f"val_{history.selection}", run.folder / "curves.png")
    if dist.rank == 0:
        _score_test(run, data, device)


def _score_test(run: Run, data: DataSet, device: torch.device) -> None:
    """Write result.json: the best model, and its scores on the test split unless the config leaves it out."""
    best = run.load_model("best").to(device)
    scores: dict[str, float] = {}
    extra: dict[str, Any] = {"intervals": {}}
    if run.unlabelled:
        scores = linear_probe(best, data, data.test, run.config.eval_batch_size) if run.config.test else {}
    elif data.info.kind == "multilabel":
        chosen = best_thresholds(evaluate_split(best, data.val, data.info, run.config.eval_batch_size)[1])
        extra["thresholds"] = dict(zip(data.info.classes, chosen.tolist(), strict=True))
    if run.config.test and not run.unlabelled:
        scores, table = evaluate_split(best, data.test, data.info, run.config.eval_batch_size)
        with replacing(run.folder / "test.npy") as file:  # lets reports pair it with another run's
            np.save(file, table.astype(np.float32))
        parts = score_parts(data.info, table)
        extra |= {"intervals": metrics.bootstrap(data.info.kind, table), **({"parts": parts} if parts else {})}
        if data.info.kind == "forecast" and isinstance(run.options, OwnOptions):
            extra["baselines"] = {name: found._asdict() for name, found in baseline_scores(data).items()}
        if data.info.kind in ("multiclass", "steps") and isinstance(run.options, OwnOptions):
            extra["baselines"] = {"most frequent class": {"accuracy": majority_accuracy(data)}}
    result = {
        "task": run.task,
        "method": run.method,
        "family": run.model.family if run.method == "gradient" else run.method,
        "seed": run.config.seed,
        "best_step": checkpoint.load(run.folder / "best.ckpt")["step"],
        "parameters": best.size if run.method in CLOSED else sum(p.numel() for p in best.parameters()),
        **{f"test_{name}": value for name, value in scores.items()},
        **extra,
    }
    write_json(run.folder / "result.json", result)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Use TF32 products, except for fp32, inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def pick_device(config: TrainConfig, dist: DistInfo = ALONE) -> torch.device:
    """Return the device a config asks for: auto is the GPU, where there is one; each of several processes has one."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise OptionError(f"device is {name!r}, expected auto, cpu, cuda or cuda:1.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError("device is cuda, but PyTorch sees no GPU; use --device cpu.")
    if device.type == "cuda" and dist.size > 1:
        device = torch.device("cuda", dist.local_rank)
        if dist.local_rank >= torch.cuda.device_count():
            raise OptionError(f"PyTorch sees {torch.cuda.device_count()} GPUs; start one process for each.")
    if config.cuda_graphs and device.type != "cuda":
        raise OptionError("cuda_graphs needs a GPU; leave it out on the CPU.")
    return device
