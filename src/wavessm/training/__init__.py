"""Training: one loop, one `TrainConfig`, run folders, evaluation and prediction.

Read in this order: `config`, `batches`, `loop`, `checkpoint`, `run`, `distributed`; then `evaluate` and `predict`.
Importing the package imports no torch; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavessm.training.checkpoint import DivergedError, Interrupted, RunError, read_rows, resume_command
    from wavessm.training.config import Plan, TrainConfig, changed_name, model_config, resolve
    from wavessm.training.direct import start_at_ridge
    from wavessm.training.dry_run import estimate_run
    from wavessm.training.evaluate import decimate, evaluate_run, evaluate_split, low_pass
    from wavessm.training.events import draw_events, predict_events
    from wavessm.training.loop import History, Objective, Trainer
    from wavessm.training.metrics import SELECTION, auroc
    from wavessm.training.predict import draw_predictions, future_dates, predict_files, read_context, write_rows
    from wavessm.training.progress import Progress
    from wavessm.training.run import Run, make_trainer, pick_device, resume, train
    from wavessm.training.stream import follow_wav, predict_stream, wav_rate

__all__ = [
    "SELECTION", "DivergedError", "History", "Interrupted", "Objective", "Plan", "Progress", "Run", "RunError",
    "TrainConfig", "Trainer", "auroc", "changed_name", "decimate", "draw_events", "draw_predictions", "estimate_run",
    "evaluate_run", "evaluate_split", "follow_wav", "future_dates", "low_pass", "make_trainer", "model_config",
    "pick_device", "predict_events", "predict_files", "predict_stream", "read_context", "read_rows", "resolve",
    "resume", "resume_command", "start_at_ridge", "train", "wav_rate", "write_rows",
]  # fmt: skip
_MODULES = (
    "config", "checkpoint", "progress", "metrics", "direct", "loop", "run", "evaluate", "predict", "events", "stream",
    "dry_run",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
