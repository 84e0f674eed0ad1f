"""Stage 8s: one table of finished and failed runs, to which many processes append.

A row is one line. Under a lock beside the file it is appended by one write and synced; a line that a kill cut short is
taken off first, and a result that is there already is not written again. So a run is in the table once or not at all.
"""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import io
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import wavessm
from wavessm.errors import DataError
from wavessm.nn.config import ModelConfig
from wavessm.nn.model import SequenceModel
from wavessm.operators import CLOSED_FORMS
from wavessm.training import checkpoint
from wavessm.training.evaluate import Evaluation
from wavessm.training.folder import Run
from wavessm.training.metrics import SELECTION

COLUMNS = (
    "task", "dataset", "horizon", "variables", "model", "family", "measure", "structure", "recipe", "seed", "epochs",
    "params", "split", "metric", "value", "ci_low", "ci_high", "train_seconds", "gpu", "versions", "command", "status",
)  # fmt: skip
Row = dict[str, Any]

_BASELINES = {
    "legs": "S4-LegS",
    "legt": "S4-LegT",
    "fout": "S4-FouT",
    "s4d-legs": "S4D-LegS",
    "s4d-lin": "S4D-Lin",
    "s4d-inv": "S4D-Inv",
}
_DATASETS = {"WTH": "Weather"}


# -- the file -------------------------------------------------------------------------------------------------------


def append(path: Path, rows: Sequence[Row]) -> int:
    """Add rows that are not there yet, from any process; how many were new.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "runs.csv"
    ...     append(table, [{"command": "a", "status": "ok"}]), append(table, [{"command": "a", "status": "ok"}])
    (1, 0)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        there = {_key(row) for row in _repaired(path)}
        new = [row for row in rows if _key(row) not in there]
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        if not path.exists() or path.stat().st_size == 0:
            writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in new)
        if text.getvalue():
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(number, text.getvalue().encode())
                os.fsync(number)
            finally:
                os.close(number)
    return len(new)


def read(path: Path) -> list[dict[str, str]]:
    """All rows; none if there is no file."""
    if not path.exists():
        return []
    with _locked(path):
        return _repaired(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(path.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the system if its holder dies
        yield


def _repaired(path: Path) -> list[dict[str, str]]:
    """The rows, after taking off a last line that has no end. Another table is left as it is."""
    if not path.exists():
        return []
    content, header = path.read_bytes(), ",".join(COLUMNS)
    first, ended, _ = content.partition(b"\n")
    said = first.decode(errors="replace").rstrip("\r")
    if said != header and (ended or not header.startswith(said)):
        raise DataError(f"{path}: its columns are not those of a table of runs; choose another --csv.")
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    return list(csv.DictReader(io.StringIO(whole.decode())))


def _key(row: Row) -> tuple[str, ...]:
    return tuple(_cell(row.get(name, "")) for name in ("command", "horizon", "split", "metric", "status"))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


# -- the rows of a run ----------------------------------------------------------------------------------------------


def rows_of_run(run: Run, command: str, everything: bool = False) -> list[Row]:
    """A finished run: its selecting score on the test split; or every score there, and the best one in validation.

    A run without a test has that one alone. A test split with parts (window copying by the number of windows) has rows
    for each, its name as the horizon.
    """
    result = json.loads((run.folder / "result.json").read_text())
    last = checkpoint.load(run.folder / "last.ckpt")
    common = _of_run(run, last, result["parameters"]) | {"command": command}
    selecting = SELECTION[run.info.kind].name
    rows = []
    for name in [key.removeprefix("test_") for key in result if key.startswith("test_")]:
        low, high = result["intervals"].get(name, (None, None))
        if everything or name == selecting:
            rows.append(common | {"split": "test", "metric": name, "value": result[f"test_{name}"],
                                  "ci_low": low, "ci_high": high})  # fmt: skip
    for part, scores in result.get("parts", {}).items():
        intervals = scores.pop("intervals")
        for name, value in scores.items():
            low, high = intervals.get(name, (None, None))
            if everything or name in (selecting, "mse"):
                rows.append(common | {"horizon": part, "split": "test", "metric": name, "value": value,
                                      "ci_low": low, "ci_high": high})  # fmt: skip
    if everything or not run.recipe.test:
        rows.append(common | {"split": "val", "metric": selecting, "value": last["best"]})
    return rows


def rows_of_evaluation(run: Run, result: Evaluation, arguments: list[str]) -> list[Row]:
    """A trained model's scores of another look at the data: half the samples, another split."""
    options: Any = dataclasses.asdict(run.options)  # type: ignore[call-overload]
    told = (
        dataset_name(options, result.rate),
        "low-pass" * result.antialias,
        "last checkpoint" * (result.checkpoint == "last"),
    )
    looked = " ".join(filter(None, told))
    trained = run.environment["command"]
    parameters = sum(p.numel() for p in SequenceModel(run.model).parameters())
    common = _of_run(run, checkpoint.load(run.folder / "last.ckpt"), parameters) | {
        "dataset": looked,
        "split": result.split,
        "command": f"{trained}; {shlex.join(['wavessm', 'evaluate', 'RUN', *arguments])}",
    }
    rows = []
    for name, value in result.scores.items():
        low, high = result.intervals.get(name, (None, None))
        rows.append(common | {"metric": name, "value": value, "ci_low": low, "ci_high": high})
    return rows


def _of_run(run: Run, last: dict[str, Any], parameters: int) -> Row:
    options: Any = dataclasses.asdict(run.options)  # type: ignore[call-overload]
    return described(run.task, options, run.recipe_name, run.recipe.seed) | {
        **model_columns(run.model),
        "epochs": last["step"] / _steps_per_epoch(run),
        "params": parameters,
        "train_seconds": last["seconds"],
        "gpu": gpu_name(run.recipe.device),
        "versions": versions(run.environment),
        "status": "ok",
    }


def _steps_per_epoch(run: Run) -> float:
    """From metrics.csv, which has both; the data need not be read again."""
    with (run.folder / "metrics.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[-1]
    return float(row["step"]) / float(row["epoch"])


def described(task: str, options: dict[str, Any], recipe_name: str, seed: int) -> Row:
    """What is known of a run before it begins."""
    return {
        "task": task,
        "dataset": dataset_name(options),
        "horizon": options.get("horizon", ""),
        "variables": options.get("variables", ""),
        "recipe": recipe_name,
        "seed": seed,
    }


def dataset_name(options: dict[str, Any], rate: float = 1.0) -> str:
    """A data set as the tables name it; Speech Commands by its words and its sampling rate, own data by their folder or
    file.

    >>> dataset_name({"dataset": "WTH"}), dataset_name({"words": 35}, rate=2), dataset_name({"folder": "my/ecg"}, 2)
    ('Weather', 'SC35 8 kHz', 'ecg every 2')
    """
    if "words" in options:
        return f"SC{options['words']} {16 / rate:g} kHz"
    name = options.get("dataset", "") or Path(options.get("folder") or options.get("path") or "").name
    return f"{_DATASETS.get(name, name)}{f' every {rate:g}' if rate != 1 else ''}".strip()


def model_columns(config: ModelConfig) -> Row:
    """model, family, measure, structure: as they turned out, not as they were left open."""
    named = model_name(config.backbone, config.family)
    if config.backbone != "wavessm":
        return named
    layer = next(m for m in SequenceModel(config).modules() if isinstance(m, wavessm.WaveSSM))
    if config.family in _BASELINES:
        measure = CLOSED_FORMS[config.family][1] if config.family in CLOSED_FORMS else ""
    else:
        measure = config.measure or "scaled"
    return named | {"measure": measure, "structure": layer.structure}


def model_name(backbone: str, family: str) -> Row:
    """
    >>> model_name("wavessm", "db6"), model_name("wavessm", "legs")
    ({'model': 'WaveSSM', 'family': 'db6'}, {'model': 'S4-LegS', 'family': ''})
    """
    if backbone != "wavessm":
        return {"model": {"lstm": "LSTM", "transformer": "Transformer"}[backbone], "family": ""}
    if family in _BASELINES:
        return {"model": _BASELINES[family], "family": ""}
    return {"model": "WaveSSM", "family": family}


def gpu_name(device: str) -> str:
    """The GPU that a run with this device uses here; cpu if none."""
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name(torch.device("cuda" if device == "auto" else device))
    return "cpu"


def versions(environment: dict[str, Any]) -> str:
    """Versions and revision in one cell."""
    names = ("wavessm", "torch", "lightning", "python")
    return ", ".join(f"{name} {environment[name]}" for name in names) + f", revision {environment['revision']}"
