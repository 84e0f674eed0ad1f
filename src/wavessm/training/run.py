"""Runs: `train` and `resume`, and the folder they write.

run.json      task, data options, model, training options, what the data are, versions, revision, command
metrics.csv   a row for each validation        curves.png   the same, drawn
best.ckpt     the model with the best validation score
last.ckpt     everything needed to resume      result.json  scores of the best model on the test split

A model that is fitted in closed form (`closed_form.py`) has one row of metrics, no curves and no last.ckpt.
"""

from __future__ import annotations

import dataclasses
import hashlib
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
from wavessm.data.baselines import baseline_scores, majority_accuracy
from wavessm.data.source import DataInfo, DataSet
from wavessm.data.task import OwnOptions
from wavessm.errors import MissingExtraError, OptionError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.nn.pretrained import find_folder, load_model, pretrained, read_config, read_extra
from wavessm.training import checkpoint, metrics
from wavessm.training.augment import mixed_loss
from wavessm.training.batches import as_trained
from wavessm.training.checkpoint import FORMAT, VERSION, RunError, check_format, replacing, resume_command, write_json
from wavessm.training.closed_form import CLOSED, class_balance, fit_closed, prepare, without_calendar
from wavessm.training.config import TrainConfig, model_config
from wavessm.training.direct import start_at_ridge
from wavessm.training.distributed import ALONE, DistInfo, connect, dist_info
from wavessm.training.evaluate import evaluate_split, score_parts
from wavessm.training.finetune import set_trainable, start_from
from wavessm.training.loop import MUST_SAVE, Objective, Trainer
from wavessm.training.pretrain import Pretrainer, linear_probe, pretrain_objective
from wavessm.training.progress import Progress
from wavessm.training.record import draw_curves, environment, write_csv
from wavessm.training.scores import best_thresholds

log = logging.getLogger("wavessm.training")
Network = SequenceModel | Pretrainer

MACHINE = ("device", "eval_batch_size", "cuda_graphs", "save_seconds")
"""Options of training that depend on the machine, and may be changed in run.json."""


@dataclass(frozen=True)
class NoData(DataOptions):
    """Data of a model folder, which has none."""

    def load(self, seed: int) -> DataSet:
        raise RunError("this is a model without its data; give the run folder that it was exported from.")


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
    fresh: tuple[str, ...] = ()  # parts that did not come from a pretrained model

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
            **{name: getattr(self, name) for name in ("task", "recipe_name", "environment", "checksum", "id", "fresh")},
        }

    @classmethod
    def read(cls, folder: str | Path, unlabelled: bool = False) -> Run:
        """Return the run in a folder; folders of earlier versions are read too.

        Args:
            folder: the folder; a model folder or a name of `ws.pretrained()` is read as a run without data.
            unlabelled: also read models that were pretrained without labels, which cannot predict any.

        Raises:
            RunError: the folder holds no run, or one that cannot be used; says why in one line.
        """
        run = cls._read(Path(folder))
        if not unlabelled and (run.unlabelled or run.info.kind == "unknown"):
            what = "was pretrained without labels" if run.unlabelled else "says nothing about its data"
            raise RunError(f"{folder}: {what}; fine-tune it: wavessm train … --from {folder}")
        return run

    @classmethod
    def _read(cls, folder: Path) -> Run:
        path = folder / "run.json"
        if not path.is_file() and (str(folder) in pretrained() or (folder / "config.json").is_file()):
            return cls._of_model(find_folder(folder))
        if not path.is_file():
            raise RunError(f"{folder}: not a run folder (no run.json); give one written by `wavessm train`.")
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as reason:
            raise RunError(f"{path}: cannot be read ({reason}).") from reason
        check_format(content, path)
        try:
            own = content.get("id", "")
            if "-" in own and own.partition("-")[2] != _digest(content):
                raise ValueError("model, training or description of the data have changed since the start of the run")
            task = get_task(content["task"])
            return cls(
                folder,
                task.name,
                task.with_options(task.options.earlier | content["data"]),
                content["recipe_name"],
                ModelConfig.from_dict(content["model"]),
                TrainConfig.from_dict(content["train"] if "train" in content else content["recipe"]),
                DataInfo.from_dict(content["info"]),
                content["environment"],
                content.get("checksum", ""),
                own,
                tuple(content.get("fresh", ())),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as reason:
            raise RunError(f"{path}: cannot be used by wavessm {metadata.version('wavessm')} ({reason}).") from reason

    @classmethod
    def _of_model(cls, folder: Path) -> Run:
        """The run that a model folder stands for."""
        model, extra = read_config(folder), read_extra(folder) or {}
        try:
            known = DataInfo("unknown", model.d_input, model.d_output, 1).to_dict() | extra.get("info", {})
            info = DataInfo.from_dict(known)
            if (info.width, info.d_output) != (model.d_input, model.d_output):
                raise ValueError("other channels or outputs than those of the model")
            config = TrainConfig(method="gradient", objective=extra.get("objective", "labels"))
            return cls(folder, extra.get("task", ""), NoData(), "", model, config, info, {})
        except (TypeError, AttributeError, ValueError, AssertionError) as reason:
            raise RunError(f"{folder / 'config.json'}: its description of the data is damaged ({reason}).") from reason

    @property
    def has_data(self) -> bool:
        """Whether this is a run, not a model folder."""
        return (self.folder / "run.json").is_file()

    @property
    def unlabelled(self) -> bool:
        """Whether the model was pretrained without labels, and has no head."""
        return self.config.objective != "labels"

    @property
    def method(self) -> str:
        """How the model was fitted: "gradient", "features" or "linear"."""
        return self.config.method if self.config.method in CLOSED else "gradient"

    def load_data(self, options: DataOptions | None = None) -> DataSet:
        """Return the data of the run, or those of `options` at another sampling rate; refuses changed data."""
        data = without_calendar((options or self.options).load(self.config.seed), self.config)
        free = () if options in (None, self.options) else ("length", "rate", "sampling_rate", "scale", "skipped")
        what = next((name for name in _differing(self.info, data.info) if name not in free), None)
        if what is None and self.checksum and self.checksum != self.options.checksum():
            what = "checksum"
        if what is not None:
            raise RunError(f"{self.folder}: the data have changed since the run was started (not the {what} of "
                           "run.json); bring the old ones back, or train again on the new ones.")  # fmt: skip
        return data

    def load_model(self, which: str = "best") -> Any:
        """Return the trained model of best.ckpt or last.ckpt, in evaluation mode.

        Returns:
            A `SequenceModel`, or for a closed form a `FeatureModel` or `LineModel`, which are called and
            streamed in the same way.
        """
        if not self.has_data:
            return load_model(self.folder)
        path = self.folder / f"{which}.ckpt"
        if which == "best" and not path.exists():
            raise RunError(f"{path}: there is none; resume the run with: {resume_command(self.folder)}")
        content = checkpoint.load(path, self.id)
        try:
            closed = CLOSED.get(self.method)
            model = SequenceModel(self.model) if closed is None else closed.restore(content["closed"], self.info)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as reason:
            raise RunError(f"{path}: does not hold a model of method {self.method}; bring it back.") from reason
        wrapped = self.unlabelled and isinstance(model, SequenceModel)
        _fill(Pretrainer(model, self.config) if wrapped else model, content, path)  # type: ignore[arg-type]
        return model.eval()

    def thresholds(self) -> list[float] | None:
        """The thresholds of the run's labels, from result.json; None for other kinds and for runs without them."""
        path = self.folder / "result.json"
        if self.info.kind != "multilabel" or (self.has_data and not path.is_file()):
            return None
        try:
            found = (json.loads(path.read_text()) if self.has_data else read_extra(self.folder)).get("thresholds")
            return None if found is None else [float(found[name]) for name in self.info.classes]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as reason:
            raise RunError(f"{path}: cannot be read ({reason!r}); resume the run to write it anew.") from reason


def open_model(source: str | Path) -> Run:
    """Return the model to fine-tune from a run folder, a model folder, a name of `ws.pretrained()`, or a hub."""
    if (run := Run.read(find_folder(source), unlabelled=True)).method != "gradient":
        raise OptionError(f"{source}: was fitted by method {run.method}; fine-tuning needs one trained by gradient.")
    return run


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
        raise OptionError("direct_start is 'ridge', but the model has no direct path; add --direct.")
    if config.method == "auto":
        config = dataclasses.replace(config, method="gradient")  # only the command line knows what was given
    dist, closed = dist_info(config), config.method in CLOSED
    pick_device(config, dist)  # what does not fit is refused before anything is written
    if closed and dist.size > 1:
        raise OptionError(f"method is {config.method!r}, which one process fits; leave torchrun out.")
    chosen, data = prepare(get_task(task).with_options(options), config)
    as_trained(data, config)
    if config.pretrained:
        model = _start_config(open_model(config.pretrained).model, model, data.info)
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
    run = dataclasses.replace(run, id=f"{uuid.uuid4().hex}-{_digest(run.content())}")
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
            _fill(network, start, last)
        _fit(run, network, data, dist, start, show)
    return run


def make_trainer(
    model: Network,
    data: DataSet,
    config: TrainConfig,
    dist: DistInfo = ALONE,
    folder: Path | None = None,
    start: dict[str, Any] | None = None,
) -> Trainer:
    """Return the loop that trains a model on a data set, both on one device; arguments as in `Trainer`."""
    plan, balance = config.plan(len(data.train)), class_balance(data, config)
    if isinstance(model, Pretrainer):
        objective = pretrain_objective(model, data, as_trained(data, config).train, config, dist)
        return Trainer(model, objective, config, plan, dist, folder, start)
    data, kind = as_trained(data, config), data.info.kind

    def loss(network: Any, batch: Any) -> torch.Tensor:
        output = network(batch.x, **batch.inputs())
        return mixed_loss(lambda out, y, weight: metrics.loss(kind, out, y, weight, balance), output, batch)

    def validate() -> dict[str, float]:
        return evaluate_split(model, data.val, data.info, config.eval_batch_size, dist)[0]

    objective = Objective(data.train, loss, validate, metrics.SELECTION[kind])
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


def _fit(
    run: Run, model: Network | None, data: DataSet, dist: DistInfo, start: dict[str, Any] | None, show: bool
) -> None:
    """Train from a checkpoint, or from the beginning, then score the best model; no model is a closed form."""
    config, device = run.config, pick_device(run.config, dist)
    if model is None:
        _fit_closed(run, data, device)
        return _score_test(run, data.to(device), device)
    data, total = data.to(device), config.plan(len(data.train)).total_steps
    if start is None or (start["step"] < total and not 0 < config.patience <= start["waited"]):
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


def _fill(model: Any, content: dict[str, Any], path: Path) -> None:
    """Give a model the weights of a checkpoint."""
    try:
        model.load_state_dict(content["model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as reason:
        what = "its weights do not fit the model of run.json; was it copied from another run?"
        raise RunError(f"{path}: {what}") from reason


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
    number = 0
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                also = f", or resume: {resume_command(out)}" if (out / "run.json").exists() else "."
                raise RunError(f"{out}: is not an empty folder; choose another --out{also}")
            return out
        while True:
            number += 1
            with suppress(FileExistsError):  # several runs may ask for one at once
                (folder := Path("runs") / f"{task}-{number:03}").mkdir(parents=True)
                return folder
    except OSError as reason:
        raise RunError(f"{out or 'runs'}: cannot be made ({reason.strerror}); choose another --out.") from reason


@contextmanager
def held(folder: Path, dist: DistInfo = ALONE) -> Iterator[None]:
    """Lock a run for its first process, or refuse if another one has it; the system unlocks it if its holder dies."""
    try:
        with filelock.FileLock(folder / ".lock", timeout=0) if dist.rank == 0 else nullcontext():
            yield
    except filelock.Timeout:
        raise RunError(f"{folder}: this run is still running; wait for it, or stop it first.") from None
