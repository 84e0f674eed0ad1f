"""A run: the folder that `fit.py` writes, and what evaluation, prediction and fine-tuning read from it.

run.json      task, data options, model, training options, what the data are, versions, revision, command
metrics.csv   a row for each validation        curves.png   the same, drawn
best.ckpt     the model with the best validation score
last.ckpt     everything needed to resume      result.json  scores of the best model on the test split

A model that is fitted in closed form (`closed_form.py`) has one row of metrics, no curves and no last.ckpt. A model
folder or a name of `ws.pretrained()` is read as a run without data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from wavessm.data import DataOptions, get_task
from wavessm.data.source import DataInfo, DataSet
from wavessm.errors import OptionError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.nn.pretrained import find_folder, load_model, pretrained, read_config, read_extra
from wavessm.training import checkpoint
from wavessm.training.checkpoint import FORMAT, VERSION, RunError, check_format, resume_command
from wavessm.training.closed_form import CLOSED, load_data, restore
from wavessm.training.config import TrainConfig
from wavessm.training.distributed import ALONE, DistInfo
from wavessm.training.pretrain import Pretrainer

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
            if "-" in own and own.partition("-")[2] != digest(content):
                raise ValueError("model, training or description of the data have changed since the start of the run")
            task = get_task(content["task"])
            options = task.with_options(task.options.earlier | content["data"])
            model, info = ModelConfig.from_dict(content["model"]), DataInfo.from_dict(content["info"])
            config = TrainConfig.from_dict(content["train"] if "train" in content else content["recipe"])
            name, machine, checksum = content["recipe_name"], content["environment"], content.get("checksum", "")
            fresh = tuple(content.get("fresh", ()))
            return cls(folder, task.name, options, name, model, config, info, machine, checksum, own, fresh)
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
        data = load_data(options or self.options, self.config)
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
            closed = self.method in CLOSED
            model = restore(self.method, content["closed"], self.info) if closed else SequenceModel(self.model)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as reason:
            raise RunError(f"{path}: holds no {self.method} model that this version reads; fit it again.") from reason
        wrapped = self.unlabelled and isinstance(model, SequenceModel)
        fill(Pretrainer(model, self.config) if wrapped else model, content, path)
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


def fill(model: Any, content: dict[str, Any], path: Path) -> None:
    """Give a model the weights of a checkpoint."""
    try:
        model.load_state_dict(content["model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as reason:
        what = "its weights do not fit the model of run.json; is it of another run, or an earlier version? fit it again"
        raise RunError(f"{path}: {what}") from reason


def digest(content: dict[str, Any]) -> str:
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
