"""Training: one loop, one `TrainConfig`, run folders, evaluation and prediction.

Read in this order: `config`, `batches`, `loop`, `checkpoint`, `run`, `distributed`; then `evaluate` and `predict`.
Importing the package imports no torch; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavessm.training.checkpoint import DivergedError as DivergedError
    from wavessm.training.checkpoint import Interrupted as Interrupted
    from wavessm.training.checkpoint import RunError as RunError
    from wavessm.training.checkpoint import read_rows as read_rows
    from wavessm.training.checkpoint import resume_command as resume_command
    from wavessm.training.config import Plan as Plan
    from wavessm.training.config import TrainConfig as TrainConfig
    from wavessm.training.config import changed_name as changed_name
    from wavessm.training.config import model_config as model_config
    from wavessm.training.config import resolve as resolve
    from wavessm.training.direct import start_at_ridge as start_at_ridge
    from wavessm.training.dry_run import estimate_run as estimate_run
    from wavessm.training.evaluate import decimate as decimate
    from wavessm.training.evaluate import evaluate_run as evaluate_run
    from wavessm.training.evaluate import evaluate_split as evaluate_split
    from wavessm.training.evaluate import low_pass as low_pass
    from wavessm.training.loop import History as History
    from wavessm.training.loop import Objective as Objective
    from wavessm.training.loop import Trainer as Trainer
    from wavessm.training.metrics import SELECTION as SELECTION
    from wavessm.training.metrics import auroc as auroc
    from wavessm.training.predict import draw_predictions as draw_predictions
    from wavessm.training.predict import future_dates as future_dates
    from wavessm.training.predict import predict_files as predict_files
    from wavessm.training.predict import read_context as read_context
    from wavessm.training.predict import write_rows as write_rows
    from wavessm.training.progress import Progress as Progress
    from wavessm.training.run import Run as Run
    from wavessm.training.run import make_trainer as make_trainer
    from wavessm.training.run import pick_device as pick_device
    from wavessm.training.run import resume as resume
    from wavessm.training.run import train as train
    from wavessm.training.stream import follow_wav as follow_wav
    from wavessm.training.stream import predict_stream as predict_stream
    from wavessm.training.stream import wav_rate as wav_rate

_NAMES = {
    "checkpoint": "DivergedError Interrupted RunError read_rows resume_command",
    "config": "Plan TrainConfig changed_name model_config resolve",
    "direct": "start_at_ridge",
    "dry_run": "estimate_run",
    "evaluate": "decimate evaluate_run evaluate_split low_pass",
    "loop": "History Objective Trainer",
    "metrics": "SELECTION auroc",
    "predict": "draw_predictions future_dates predict_files read_context write_rows",
    "progress": "Progress",
    "run": "Run make_trainer pick_device resume train",
    "stream": "follow_wav predict_stream wav_rate",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
