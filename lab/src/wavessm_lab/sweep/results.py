"""One table of finished and failed runs, to which many processes append.

Under a lock beside the file, rows are appended by one write and synced; a line that a kill cut short is removed first,
and a result that is there already is not written again. So a run is in the table once or not at all.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from wavessm.errors import DataError
from wavessm.nn.config import ModelConfig
from wavessm.nn.layer import WaveSSM
from wavessm.nn.model import SequenceModel
from wavessm.operators import CLOSED_FORMS
from wavessm.training import checkpoint
from wavessm.training.evaluate import Evaluation
from wavessm.training.metrics import SELECTION
from wavessm.training.run import Run

COLUMNS = (
    "task", "dataset", "horizon", "variables", "model", "family", "measure", "structure", "recipe", "seed", "epochs",
    "params", "split", "metric", "value", "ci_low", "ci_high", "train_seconds", "gpu", "versions", "command", "status",
)  # fmt: skip
_KEY = ("command", "horizon", "split", "metric", "status")
Row = dict[str, Any]

_BASELINES = {"legs": "S4-LegS", "legt": "S4-LegT", "fout": "S4-FouT", "s4d-legs": "S4D-LegS", "s4d-lin": "S4D-Lin",
              "s4d-inv": "S4D-Inv"}  # fmt: skip
_DATASETS = {"WTH": "Weather"}


def append(path: Path, rows: Sequence[Row]) -> int:
    """Add the rows that are not in the table yet, from any process, and return their number.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "runs.csv"
    ...     append(table, [{"command": "a", "status": "ok"}]), append(table, [{"command": "a", "status": "ok"}])
    (1, 0)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        known = {_key(row) for row in _repair(path)}
        new = [row for row in rows if _key(row) not in known]
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        if not path.exists() or path.stat().st_size == 0:
            writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in new)
        with path.open("ab", buffering=0) as file:
            file.write(text.getvalue().encode())
            os.fsync(file.fileno())
    return len(new)


def read(path: Path) -> list[dict[str, str]]:
    """All rows of a table; none where there is no file."""
    if not path.exists():
        return []
    with _lock(path):
        return _repair(path)


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(path.name + ".lock"))  # released by the system if its holder dies


def _repair(path: Path) -> list[dict[str, str]]:
    """The rows, after removing a last line that has no end; a table of another kind is refused and not touched."""
    content, header = path.read_bytes() if path.exists() else b"", ",".join(COLUMNS).encode()
    first, ended, _ = content.partition(b"\n")
    if first.rstrip(b"\r") != header and (ended or not header.startswith(first)):
        raise DataError(f"{path}: its columns are not those of a table of runs; choose another --csv.")
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    return list(csv.DictReader(io.StringIO(whole.decode())))


def _key(row: Row) -> tuple[str, ...]:
    return tuple(_cell(row.get(name)) for name in _KEY)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def rows_of_run(run: Run, command: str, everything: bool = False) -> list[Row]:
    """The rows of a finished run: the selecting score on the test split, and scores of the parts of that split.

    Args:
        run: The run. One without a test has its best validation score alone.
        command: The command that trained it, which identifies it in the table.
        everything: Every score on the test split, and the best one in validation.
    """
    result = json.loads((run.folder / "result.json").read_text())
    common = _run_columns(run, result["parameters"]) | {"command": command, "split": "test"}
    selecting = SELECTION[run.info.kind].name
    scores = {name.removeprefix("test_"): value for name, value in result.items() if name.startswith("test_")}
    rows = _score_rows(common, scores, result.get("intervals", {}), None if everything else (selecting,))
    for part, own in result.get("parts", {}).items():
        spans = own.pop("intervals")
        rows += _score_rows(common | {"horizon": part}, own, spans, None if everything else (selecting, "mse"))
    if everything or not run.config.test:
        best = checkpoint.load(run.folder / "last.ckpt")["best"]
        rows.append(common | {"split": "val", "metric": selecting, "value": best})
    return rows


def rows_of_evaluation(run: Run, result: Evaluation, arguments: list[str]) -> list[Row]:
    """The rows of another evaluation of a run: at another sampling rate, on another split, of another checkpoint."""
    options: Any = dataclasses.asdict(run.options)
    how = (dataset_name(options, result.rate), "low-pass" * result.antialias,
           "last checkpoint" * (result.checkpoint == "last"))  # fmt: skip
    common = _run_columns(run, sum(p.numel() for p in SequenceModel(run.model).parameters())) | {
        "dataset": " ".join(filter(None, how)),
        "split": result.split,
        "command": f"{run.environment['command']}; {shlex.join(['wavessm', 'evaluate', 'RUN', *arguments])}",
    }
    return _score_rows(common, result.scores, result.intervals)


def _score_rows(common: Row, scores: Row, intervals: Row, only: Sequence[str] | None = None) -> list[Row]:
    rows = []
    for name, value in scores.items():
        if only is None or name in only:
            low, high = intervals.get(name, (None, None))
            rows.append(common | {"metric": name, "value": value, "ci_low": low, "ci_high": high})
    return rows


def _run_columns(run: Run, parameters: int) -> Row:
    options: Any = dataclasses.asdict(run.options)
    last = checkpoint.load(run.folder / "last.ckpt")
    row = checkpoint.read_rows(run.folder / "metrics.csv")[-1]  # has steps and epochs; no need to read the data
    return described(run.task, options, run.recipe_name, run.config.seed) | {
        **model_columns(run.model),
        "epochs": last["step"] * row["epoch"] / row["step"],
        "params": parameters,
        "train_seconds": last["seconds"],
        "gpu": gpu_name(run.config.device),
        "versions": versions(run.environment),
        "status": "ok",
    }


def described(task: str, options: dict[str, Any], recipe_name: str, seed: int) -> Row:
    """The columns of a run that are known before it starts."""
    return {
        "task": task,
        "dataset": dataset_name(options),
        "horizon": options.get("horizon", ""),
        "variables": options.get("variables", ""),
        "recipe": recipe_name,
        "seed": seed,
    }


def dataset_name(options: dict[str, Any], rate: float = 1.0) -> str:
    """A data set as the tables name it: Speech Commands by words and sampling rate, own data by folder or file.

    >>> dataset_name({"dataset": "WTH"}), dataset_name({"words": 35}, rate=2), dataset_name({"folder": "my/ecg"}, 2)
    ('Weather', 'SC35 8 kHz', 'ecg every 2')
    """
    if "words" in options:
        return f"SC{options['words']} {16 / rate:g} kHz"
    name = options.get("dataset", "") or Path(options.get("folder") or options.get("path") or "").name
    return f"{_DATASETS.get(name, name)}{f' every {rate:g}' if rate != 1 else ''}".strip()


def model_columns(config: ModelConfig) -> Row:
    """The columns model, family, measure and structure, with defaults resolved."""
    layer = next(module for module in SequenceModel(config).modules() if isinstance(module, WaveSSM))
    if config.family in _BASELINES:
        measure = CLOSED_FORMS[config.family][1] if config.family in CLOSED_FORMS else ""
    else:
        measure = config.measure or "scaled"
    return model_name(config.family) | {"measure": measure, "structure": layer.structure}


def model_name(family: str) -> Row:
    """The columns model and family.

    >>> model_name("db6"), model_name("legs")
    ({'model': 'WaveSSM', 'family': 'db6'}, {'model': 'S4-LegS', 'family': ''})
    """
    baseline = _BASELINES.get(family)
    return {"model": baseline, "family": ""} if baseline else {"model": "WaveSSM", "family": family}


def gpu_name(device: str) -> str:
    """The GPU that a run with this device uses here, or "cpu"."""
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name(torch.device("cuda" if device == "auto" else device))
    return "cpu"


def versions(environment: dict[str, Any]) -> str:
    """Versions and revision in one cell."""
    names = [name for name in ("wavessm", "torch", "lightning", "python") if name in environment]
    return ", ".join(f"{name} {environment[name]}" for name in names) + f", revision {environment['revision']}"
