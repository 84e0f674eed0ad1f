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
    from wavessm.training.dry_run import estimate_run
    from wavessm.training.evaluate import evaluate_run
    from wavessm.training.loop import History, Objective, Trainer
    from wavessm.training.progress import Progress
    from wavessm.training.run import Run, pick_device, resume, train

_MODULES = {
    "checkpoint": ("DivergedError", "Interrupted", "RunError", "read_rows", "resume_command"),
    "config": ("Plan", "TrainConfig", "changed_name", "model_config", "resolve"),
    "dry_run": ("estimate_run",),
    "evaluate": ("evaluate_run",),
    "loop": ("History", "Objective", "Trainer"),
    "progress": ("Progress",),
    "run": ("Run", "pick_device", "resume", "train"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DivergedError",
    "History",
    "Interrupted",
    "Objective",
    "Plan",
    "Progress",
    "Run",
    "RunError",
    "TrainConfig",
    "Trainer",
    "changed_name",
    "estimate_run",
    "evaluate_run",
    "model_config",
    "pick_device",
    "read_rows",
    "resolve",
    "resume",
    "resume_command",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
