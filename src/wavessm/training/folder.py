"""Stage 8k: the run folder, what a run is and where its files are.

run.json      task, data options, resolved recipe, what the data are (with a checksum of own ones), model, versions,
              revision, command
metrics.csv   a row for each validation        curves.png   the same, drawn        tensorboard/  the same, live
best.ckpt     the model with the best validation score
last.ckpt     everything needed to go on       result.json  scores of the best model on the test split
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import wavessm
from wavessm.data import DataOptions, get_task
from wavessm.data.source import DataInfo, DataSet
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.training import checkpoint
from wavessm.training.checkpoint import FORMAT, VERSION, RunError, check_version, write_json
from wavessm.training.config import TrainConfig
from wavessm.training.record import processor, revision


@dataclass(frozen=True)
class Run:
    """What run.json holds."""

    folder: Path
    task: str
    options: DataOptions
    recipe_name: str
    model: ModelConfig
    config: TrainConfig
    info: DataInfo
    environment: dict[str, Any]
    checksum: str = ""  # of own data; runs of before have none

    def write(self) -> None:
        """run.json, whole or not at all."""
        options: Any = self.options
        write_json(
            self.folder / "run.json",
            {
                "format": FORMAT,
                "version": VERSION,
                "task": self.task,
                "data": dataclasses.asdict(options),
                "recipe_name": self.recipe_name,
                "model": self.model.to_dict(),
                "train": self.config.to_dict(),
                "info": self.info.to_dict(),
                "environment": self.environment,
                "checksum": self.checksum,
            },
        )

    @classmethod
    def read(cls, folder: Path) -> Run:
        """The run in a folder, or one line about why it is none."""
        path = folder / "run.json"
        if not path.is_file():
            raise RunError(f"{folder}: not a run folder (no run.json); give one written by `wavessm train`.")
        try:
            content = json.loads(path.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as reason:
            raise RunError(f"{path}: cannot be read ({reason}).") from reason
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunError(f"{path}: not written by wavessm; give a folder of `wavessm train`.")
        check_version(content.get("version"), path)
        try:
            run = cls(
                folder,
                content["task"],
                get_task(content["task"]).with_options(content["data"]),
                content["recipe_name"],
                ModelConfig.from_dict(content["model"]),
                TrainConfig.from_dict(content["train"] if "train" in content else content["recipe"]),
                DataInfo.from_dict(content["info"]),
                content["environment"],
                content.get("checksum", ""),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as reason:
            raise RunError(f"{path}: cannot be used by wavessm {wavessm.__version__} ({reason}).") from reason
        info, model = run.info, run.model
        named = info.kind not in ("multiclass", "multilabel") or len(info.classes) == info.d_output
        if not named or (info.d_input, info.d_output) != (model.d_input, model.d_output):
            raise RunError(
                f"{path}: its data ({info.d_input} channels, {info.d_output} outputs, {len(info.classes)} classes) do "
                f"not fit its model ({model.d_input} channels, {model.d_output} outputs); was it edited?"
            )
        return run

    def load_data(self, options: DataOptions | None = None) -> DataSet:
        """The data of the run, refused where they are no longer those it began with.

        options: the same records at another sampling rate.
        """
        data = (options or self.options).load(self.config.seed)
        free = () if options in (None, self.options) else ("length", "rate", "scale", "skipped")
        what = next((name for name in _differing(self.info, data.info) if name not in free), None)
        if what is None and self.checksum and self.checksum != self.options.checksum():
            what = "checksum"
        if what is not None:
            raise RunError(
                f"{self.folder}: the data have changed since the run began (not the {what} of run.json); bring the old "
                "ones back, or train again on the new ones."
            )
        return data

    def load_model(self, which: str = "best") -> SequenceModel:
        """The trained model of best.ckpt or last.ckpt, in evaluation mode."""
        path = self.folder / f"{which}.ckpt"
        if not path.exists() and (self.folder / "metrics.csv").exists():
            raise RunError(f"{path}: is missing, but there is metrics.csv. Bring it back, or train again.")
        if which == "best" and not path.exists():
            raise RunError(
                f"{path}: not there yet; the run has had no validation. Go on with: {resume_command(self.folder)}"
            )
        model = SequenceModel(self.model)
        fill(model, checkpoint.load(path), path)
        return model.eval()


def fill(model: SequenceModel, content: dict[str, Any], path: Path) -> None:
    """Give a model the weights of a checkpoint, or say that they do not fit."""
    try:
        model.load_state_dict(content["model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as reason:
        raise RunError(
            f"{path}: its weights do not fit the model of run.json; was it copied from another run?"
        ) from reason


def _differing(was: DataInfo, now: DataInfo) -> Iterator[str]:
    """Fields in which two sets differ; scales may, by rounding, between machines."""
    for field in dataclasses.fields(DataInfo):
        a, b = getattr(was, field.name), getattr(now, field.name)
        close = field.name.endswith("scale") and a and b and np.shape(a) == np.shape(b)
        if a != b and not (close and (np.abs(np.subtract(a, b)) <= 1e-6 * np.array(b[1])).all()):
            yield field.name


def environment() -> dict[str, Any]:
    """Versions, revision, machine, command and time."""
    names = ("torch", "numpy", "scipy", "PyWavelets", "lightning")
    return {
        "wavessm": wavessm.__version__,
        **{name: metadata.version(name) for name in names},
        "python": platform.python_version(),
        "revision": revision(),
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
        "command": shlex.join(["wavessm", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def resume_command(folder: Path) -> str:
    """What to type to go on."""
    return f"wavessm train --resume {shlex.quote(str(folder))}"


def new_folder(out: Path | None, task: str) -> Path:
    """The folder of a new run: as given and empty, or the next free number under runs/."""
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out}: is not an empty folder; choose another --out, or go on with: {resume_command(out)}")
    folder = Path("runs") if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _numbered(folder, task) if out is None else folder
    except OSError as reason:
        raise RunError(f"{folder}: cannot be made ({reason.strerror}).") from reason


def _numbered(folder: Path, task: str) -> Path:
    """A new folder with the next free number, made at once: several runs may ask for one."""
    for number in itertools.count(1):
        with suppress(FileExistsError):
            (numbered := folder / f"{task}-{number:03}").mkdir()
            break
    return numbered


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run for this process, or say in one line that another one has it: a lock on run.json, which the system
    takes back if its holder dies."""
    import fcntl  # what reads runs does without

    with (folder / "run.json").open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder}: this run is still running; wait for it, or stop it first.") from None
        except OSError:  # a file system without locks
            yield
            return
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
