"""What a run folder has to show: its curves, the time scales it learned, what it predicts.

Only files inside the folders of the command are read, the data of a run included.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from wavessm.data.task import data_root, get_task
from wavessm.errors import DataError
from wavessm.frames import Array
from wavessm.training import SELECTION, checkpoint
from wavessm.training.run import Run
from wavessm_lab.explore.allowed import AllowedFiles

FILES = ("run.json", "metrics.csv", "result.json", "best.ckpt")
LARGEST = 2**31
CASES = 24
"""Cases of the test split that are shown."""


@dataclass(frozen=True, eq=False)
class Scales:
    """One layer: its steps Δ (channels,) and the samples its modes remember, 1 / (Δ·decay) (channels · modes,)."""

    layer: str
    dt: Array
    memory: Array


@dataclass(frozen=True, eq=False)
class Opened:
    """A run folder, read."""

    run: Run
    metrics: list[dict[str, float]]
    result: dict[str, Any]
    scales: tuple[Scales, ...]

    @property
    def score(self) -> str:
        """The score that selected the model."""
        return SELECTION[self.run.info.kind].name


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says beside what is true.

    kind     as in `DataInfo`; names: classes or columns
    predicted     (cases, classes) chances, (cases, columns) numbers, or (horizon, columns) of one forecast
    true     the same of the truth
    context  (steps, columns) before a forecast, else None
    """

    kind: str
    names: tuple[str, ...]
    predicted: Array
    true: Array
    context: Array | None = None


def open_run(allowed: AllowedFiles, folder: str) -> Opened:
    """The run of a folder; every file of it is checked before it is read."""
    path = allowed.inside(folder)
    stamps = []
    for name in FILES:
        if (path / name).exists() or (path / name).is_symlink():
            stamps.append(allowed.file(path / name, LARGEST).stat().st_mtime_ns)
    return _read(path, tuple(stamps))


@lru_cache(maxsize=8)
def _read(path: Path, stamps: tuple[int, ...]) -> Opened:
    run, result = Run.read(path), path / "result.json"
    with damage(path / "metrics.csv"):
        rows = checkpoint.read_rows(path / "metrics.csv")
    with damage(result):
        scores = json.loads(result.read_text()) if result.exists() else {}
    return Opened(run, rows, scores, _scales(path / "best.ckpt"))


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Say which file cannot be read."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, csv.Error) as reason:
        raise DataError(f"{path}: damaged ({' '.join(str(reason).split())}); resume the run.") from reason


def _scales(path: Path) -> tuple[Scales, ...]:
    """From the weights alone, without making the model."""
    if not path.exists():
        return ()
    weights = checkpoint.load(path)["model"]
    found: list[Scales] = []
    for name in weights:
        if name.endswith("log_dt"):
            place = name.removesuffix("log_dt")
            dt, decay = weights[name].double().exp(), weights[place + "log_decay"].double().exp()  # (H,), (copies, K)
            per_copy = dt.reshape(len(decay), -1, 1) * decay[:, None]
            found.append(Scales(f"layer {len(found) + 1}", dt.numpy(), (1 / per_copy).flatten().numpy()))
    return tuple(found)


# -- predictions --------------------------------------------------------------------------------------------------


def predict(allowed: AllowedFiles, opened: Opened) -> Predictions:
    """For cases of the test split."""
    best = opened.run.folder / "best.ckpt"
    if not best.exists():
        raise DataError(f"{opened.run.folder}: no best.ckpt yet; the run has had no validation.")
    _check_data(allowed, opened.run)
    return _on_test(opened.run.folder, best.stat().st_mtime_ns)


def _check_data(allowed: AllowedFiles, run: Run) -> None:
    """Refuse data of a run that are not inside the given folders."""
    task, options = get_task(run.task), vars(run.options)
    if task.path_option is not None:
        given = str(options[task.path_option])
        allowed.tree(data_root(given) if task.path_option == "root" else given)
    if options.get("labels") and task.name == "wfdb":  # a table elsewhere; the reader keeps its records in the folder
        allowed.file(options["labels"])


@lru_cache(maxsize=8)
def _on_test(folder: Path, stamp: int) -> Predictions:
    run = Run.read(folder)
    source = run.options.load(run.config.seed).test
    if not len(source):
        raise DataError(f"{folder}: the data have no test split.")
    batch = source.take(torch.linspace(0, len(source) - 1, min(CASES, len(source))).long())
    with torch.no_grad():
        output = run.load_model()(batch.x, lengths=batch.lengths, marks=batch.marks)
    info = run.info
    if info.kind == "forecast":
        named = list(info.channels)  # the outputs of a forecast stand among its inputs
        columns = [named.index(name) if name in named else place for place, name in enumerate(info.columns)]
        context = batch.x[0][:, columns] if max(columns) < batch.x.shape[-1] else None
        before = None if context is None else info.restore(context).double().numpy()
        predicted, true = info.restore(output[0]), info.restore(batch.y[0])
        return Predictions(info.kind, info.columns, predicted.double().numpy(), true.double().numpy(), before)
    if info.kind == "regression":
        names = info.columns or tuple(f"y{k}" for k in range(output.shape[1]))
        predicted, true = info.restore(output), info.restore(batch.y)
        return Predictions(info.kind, names, predicted.double().numpy(), true.double().numpy())
    if info.kind == "multilabel":
        chances, labels = torch.sigmoid(output), batch.y
    else:
        chances, labels = torch.softmax(output, dim=1), torch.nn.functional.one_hot(batch.y.long(), output.shape[1])
    return Predictions(info.kind, info.classes, chances.double().numpy(), labels.double().numpy())
