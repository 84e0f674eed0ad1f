"""Runs: `train` and `resume`, and the folder they write.

run.json      task, data options, model, training options, what the data are, versions, revision, command
metrics.csv   a row for each validation        curves.png   the same, drawn        tensorboard/  the same, live
best.ckpt     the model with the best validation score
last.ckpt     everything needed to resume      result.json  scores of the best model on the test split

A model that is fitted in closed form (`closed_form.py`) has one row of metrics, no curves and no last.ckpt.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch

from wavessm.data import DataOptions, get_task
from wavessm.data.baselines import majority_accuracy, naive_scores
from wavessm.data.source import DataInfo, DataSet
from wavessm.data.task import OwnOptions
from wavessm.errors import MissingExtraError, OptionError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import checkpoint, metrics
from wavessm.training.batches import EvalBatches, as_trained
from wavessm.training.checkpoint import FORMAT, VERSION, RunError, check_version, replacing, resume_command, write_json
from wavessm.training.closed_form import CLOSED, class_balance, fit_closed, prepare, without_calendar
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.direct import start_at_ridge
from wavessm.training.distributed import ALONE, DistInfo, connect, dist_info
from wavessm.training.loop import MUST_SAVE, Objective, Trainer
from wavessm.training.progress import Progress
from wavessm.training.record import draw_curves, environment, write_csv

log = logging.getLogger("wavessm.training")

MACHINE = ("device", "eval_batch_size", "cuda_graphs", "save_seconds")
"""Options of training that depend on the machine, and may be changed in run.json."""


@dataclass(frozen=True)
class Run:
    """A run folder: what run.json holds."""

    folder: Path
    task: str
    options: DataOptions
    recipe_name: str
    model: ModelConfig
    config: TrainConfig
    info: DataInfo
    environment: dict[str, Any]
    checksum: str = ""  # of own data
    id: str = ""  # also in its checkpoints; the first runs had none

    def content(self) -> dict[str, Any]:
        """Return what run.json holds."""
        options: Any = self.options
        return {
            "format": FORMAT,
            "version": VERSION,
            "data": dataclasses.asdict(options),
            "model": self.model.to_dict(),
            "train": self.config.to_dict(),
            "info": self.info.to_dict(),
            **{name: getattr(self, name) for name in ("task", "recipe_name", "environment", "checksum", "id")},
        }

    def write(self) -> None:
        """Write run.json, complete or not at all."""
        write_json(self.folder / "run.json", self.content())

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Return the run in a folder; folders of earlier versions are read too.

        Raises:
            RunError: the folder holds no run, or one that cannot be used; says why in one line.
        """
        path = folder / "run.json"
        if not path.is_file():
            raise RunError(f"{folder}: not a run folder (no run.json); give one written by `wavessm train`.")
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as reason:
            raise RunError(f"{path}: cannot be read ({reason}).") from reason
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunError(f"{path}: not written by wavessm; give a folder of `wavessm train`.")
        check_version(content.get("version"), path)
        try:
            run = cls(
                folder,
                content["task"],
                (task := get_task(content["task"])).with_options(task.options.earlier | content["data"]),
                content["recipe_name"],
                ModelConfig.from_dict(content["model"]),
                TrainConfig.from_dict(content["train"] if "train" in content else content["recipe"]),
                DataInfo.from_dict(content["info"]),
                content["environment"],
                content.get("checksum", ""),
                content.get("id", ""),
            )
            for name in ("d_input", "d_output"):
                if getattr(run.model, name) != getattr(run.info, name):
                    raise ValueError(f"model and info have another {name}")
            if "-" in run.id and run.id.partition("-")[2] != _digest(content):
                raise ValueError("model, training or description of the data have changed since the start of the run")
            return run
        except (KeyError, TypeError, AttributeError, ValueError) as reason:
            raise RunError(f"{path}: cannot be used by wavessm {metadata.version('wavessm')} ({reason}).") from reason

    @property
    def method(self) -> str:
        """How the model was fitted: "gradient", "features" or "linear"."""
        return self.config.method if self.config.method in CLOSED else "gradient"

    def load_data(self, options: DataOptions | None = None) -> DataSet:
        """Return the data of the run; refuses data that have changed since.

        Args:
            options: other data options, for the same records at another sampling rate.
        """
        data = without_calendar((options or self.options).load(self.config.seed), self.config)
        free = () if options in (None, self.options) else ("length", "rate", "sampling_rate", "scale", "skipped")
        what = next((name for name in _differing(self.info, data.info) if name not in free), None)
        if what is None and self.checksum and self.checksum != self.options.checksum():
            what = "checksum"
        if what is not None:
            raise RunError(
                f"{self.folder}: the data have changed since the run was started (not the {what} of run.json); bring "
                "the old ones back, or train again on the new ones."
            )
        return data

    def load_model(self, which: str = "best") -> Any:
        """Return the trained model of best.ckpt or last.ckpt, in evaluation mode.

        Returns:
            A `SequenceModel`, or where the method is a closed form a `FeatureNet` or `LineModel`, which are called and
            streamed in the same way.
        """
        path = self.folder / f"{which}.ckpt"
        if which == "best" and not path.exists():
            what = f"there is none yet; resume the run with: {resume_command(self.folder)}"
            if (self.folder / "metrics.csv").exists():
                what = "is missing, but there is metrics.csv. Bring it back, or train again."
            raise RunError(f"{path}: {what}")
        content = checkpoint.load(path, self.id)
        try:
            closed = self.method in CLOSED
            model = CLOSED[self.method].restore(content["closed"], self.info) if closed else SequenceModel(self.model)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as reason:
            raise RunError(f"{path}: does not hold a model of method {self.method}; bring it back.") from reason
        _fill(model, content, path)
        return model.eval()


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
        model: the architecture; the data decide input, output and head.
        config: the training; `resolve(task, recipe)` returns both for a recipe.
        out: run folder, new or empty; default the next free one in runs/.
        recipe_name: how tables of results call model and config.
        show: whether to show a progress bar.

    Raises:
        Interrupted: SIGINT or SIGTERM came, and the run is saved.
        RunError: training diverged, or the folder cannot be used.
    """
    if config.direct_start == "ridge" and not model.direct:
        raise OptionError("direct_start is 'ridge', but the model has no direct path; add --direct.")
    if config.method == "auto":
        config = dataclasses.replace(config, method="gradient")  # only the command line knows what was given
    dist, closed = dist_info(config), config.method in CLOSED
    pick_device(config, dist)  # what does not fit is refused before anything is written
    if closed and dist.size > 1:
        raise OptionError(f"method is {config.method!r}, which one process fits; leave torchrun out.")
    chosen, data = prepare(get_task(task).with_options(options), config)
    as_trained(data, config)
    holds = closed and model.missing == "auto" and data.info.missing > 0  # the default of state features
    model = model_config(task, model, data.info, config.precision)
    if data.info.missing:
        model = dataclasses.replace(model, missing="hold") if holds else model
        log.warning("%.3g %% of the samples are NaN: missing, --missing %s", 100 * data.info.missing, model.missing)
    torch.manual_seed(config.seed)
    network = None if closed else SequenceModel(model)
    folder = new_folder(out, task) if dist.rank == 0 else out or Path("runs")  # the others write nothing
    made = environment(), chosen.checksum()
    run = Run(folder, task, chosen, recipe_name, model, config, data.info, *made)
    run = dataclasses.replace(run, id=f"{uuid.uuid4().hex}-{_digest(run.content())}")
    with held(folder, dist):
        if dist.rank == 0:
            run.write()
        _fit(run, network, data, dist, None, show)
    return run


def resume(folder: Path, show: bool = True) -> Run:
    """Continue the run in a folder from its last checkpoint, bit for bit as if it had never stopped.

    Args:
        folder: run folder.
        show: whether to show a progress bar.

    Raises:
        RunError: the run is still running, its checkpoint is missing or damaged, or its data have changed.
    """
    run, last = Run.read(folder), folder / "last.ckpt"
    for name in ("metrics.csv", "result.json"):
        if (folder / name).exists() and not last.exists() and run.method == "gradient":
            raise RunError(f"{last}: is missing, but there is {name}: cannot resume. Bring it back, or train again.")
    dist = dist_info(run.config)
    with held(folder, dist):
        start = checkpoint.load(last, run.id) if last.exists() else None
        if start is not None and (missing := [name for name in MUST_SAVE if name not in start]):
            raise RunError(f"{last}: lacks {missing[0]!r}, so it cannot be resumed from; was it copied from best.ckpt?")
        data = run.load_data()
        torch.manual_seed(run.config.seed)
        network = SequenceModel(run.model) if run.method == "gradient" else None
        if start is not None and network is not None:
            _fill(network, start, last)
        _fit(run, network, data, dist, start, show)
    return run


def make_trainer(
    model: SequenceModel,
    data: DataSet,
    config: TrainConfig,
    dist: DistInfo = ALONE,
    folder: Path | None = None,
    start: dict[str, Any] | None = None,
) -> Trainer:
    """Return the loop that trains a model on a data set, both on one device; arguments as in `Trainer`."""
    plan, balance = config.plan(len(data.train)), class_balance(data, config)
    data, kind = as_trained(data, config), data.info.kind

    def loss(network: Any, batch: Any) -> torch.Tensor:
        output = network(batch.x, lengths=batch.lengths, marks=batch.marks)
        return metrics.loss(kind, output, batch.y, batch.weight, balance)

    def validate() -> dict[str, float]:
        batches = EvalBatches(data.val, config.eval_batch_size, dist)
        rows = [metrics.rows(kind, model(b.x, lengths=b.lengths, marks=b.marks), b.y) for b in batches]
        return metrics.summarise(kind, dist.rows(torch.cat(rows)[: batches.cases]))

    objective = Objective(data.train, loss, validate, metrics.SELECTION[kind])
    return Trainer(model, objective, config, plan, dist, folder, start)


def _fit_closed(run: Run, data: DataSet, device: torch.device) -> None:
    """Fit in closed form, and write the model and its validation scores."""
    from wavessm.training.evaluate import evaluate_split

    began = time.perf_counter()
    model = fit_closed(data, run.config, device, run.model.missing)
    seconds = time.perf_counter() - began
    scores, _ = evaluate_split(model, data.val, data.info, run.config.eval_batch_size)
    content = {"run": run.id, "step": 0, "model": model.state_dict(), "closed": model.describe()}
    checkpoint.save(run.folder / "best.ckpt", content)
    row = {"step": 0, "seconds": seconds, **{f"val_{name}": value for name, value in scores.items()}}
    write_csv(run.folder / "metrics.csv", [row], digits=8)


def _fit(
    run: Run, model: SequenceModel | None, data: DataSet, dist: DistInfo, start: dict[str, Any] | None, show: bool
) -> None:
    """Train from a checkpoint, or from the beginning, then score the best model; no model is a closed form."""
    config, device = run.config, pick_device(run.config, dist)
    if model is None:
        _fit_closed(run, data, device)
        return _score_test(run, data.to(device), device)
    data, total = data.to(device), config.plan(len(data.train)).total_steps
    if start is None or (start["step"] < total and not 0 < config.patience <= start["waited"]):
        model.to(device)
        if start is None and config.direct_start == "ridge":
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
    from wavessm.training.evaluate import evaluate_split, score_parts
    from wavessm.training.scores import best_thresholds

    best = run.load_model("best").to(device)
    scores: dict[str, float] = {}
    extra: dict[str, Any] = {"intervals": {}}
    if data.info.kind == "multilabel":
        chosen = best_thresholds(evaluate_split(best, data.val, data.info, run.config.eval_batch_size)[1])
        extra["thresholds"] = dict(zip(data.info.classes, chosen.tolist(), strict=True))
    if run.config.test:
        scores, table = evaluate_split(best, data.test, data.info, run.config.eval_batch_size)
        with replacing(run.folder / "test.npy") as file:  # lets reports pair it with another run's
            np.save(file, table.astype(np.float32))
        parts = score_parts(data.info, table)
        extra |= {"intervals": metrics.bootstrap(data.info.kind, table), **({"parts": parts} if parts else {})}
        if data.info.kind == "forecast" and isinstance(run.options, OwnOptions):
            extra["baselines"] = {name: found._asdict() for name, found in naive_scores(data).items()}
        if data.info.kind == "multiclass" and isinstance(run.options, OwnOptions):
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


def _fill(model: Any, content: dict[str, Any], path: Path) -> None:
    """Give a model the weights of a checkpoint; refuse those that are not finite."""
    try:
        model.load_state_dict(content["model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as reason:
        raise RunError(
            f"{path}: its weights do not fit the model of run.json; was it copied from another run?"
        ) from reason
    for name, weight in model.state_dict().items():
        good = weight > 0 if name == "ridge.scale" else torch.isfinite(weight)  # infinite where a feature is not used
        if not bool(good.all()):
            raise RunError(f"{path}: {name} holds NaN or infinity; bring a good copy back, or train again.")


def _digest(content: dict[str, Any]) -> str:
    """A checksum of what decides a result in run.json; where the run's data are and its device may change."""
    train = {name: value for name, value in content["train"].items() if name not in MACHINE}
    text = json.dumps([content["task"], content["model"], train, content["info"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _differing(was: DataInfo, now: DataInfo) -> Iterator[str]:
    """Fields in which two sets differ; scales may, by rounding, between machines."""
    for field in dataclasses.fields(DataInfo):
        a, b = getattr(was, field.name), getattr(now, field.name)
        close = field.name.endswith("scale") and a and b and np.shape(a) == np.shape(b)
        if a != b and not (close and (np.abs(np.subtract(a, b)) <= 1e-6 * np.array(b[1])).all()):
            yield field.name


def new_folder(out: Path | None, task: str) -> Path:
    """Return the folder of a new run: `out`, which must be empty, or the next free number under runs/."""
    if out is not None and out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; give a new or an empty folder with --out.")
    if out is not None and out.exists() and any(out.iterdir()):
        also = f", or resume: {resume_command(out)}" if (out / "run.json").exists() else "."
        raise RunError(f"{out}: is not an empty folder; choose another --out{also}")
    folder = Path("runs") if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1) if out is None else ():
            with suppress(FileExistsError):  # several runs may ask for one at once
                (folder / f"{task}-{number:03}").mkdir()
                return folder / f"{task}-{number:03}"
    except OSError as reason:
        raise RunError(f"{folder}: cannot be made ({reason.strerror}).") from reason
    return folder


@contextmanager
def held(folder: Path, dist: DistInfo = ALONE) -> Iterator[None]:
    """Lock a run for its first process, or refuse if another one has it; the system unlocks it if its holder dies."""
    try:
        with filelock.FileLock(folder / ".lock", timeout=0) if dist.rank == 0 else nullcontext():
            yield
    except filelock.Timeout:
        raise RunError(f"{folder}: this run is still running; wait for it, or stop it first.") from None
