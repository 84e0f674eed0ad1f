"""Training: one loop, one `TrainConfig`, run folders, evaluation and prediction.

Read in this order: `config`, `batches`, `loop`, `checkpoint`, `run`, `fit`, `distributed`; then `evaluate`, `predict`.
Importing the package imports no torch; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "checkpoint": ("DivergedError", "Interrupted", "RunError", "read_rows", "resume_command"),
    "config": ("Plan", "TrainConfig", "changed_name", "model_config", "resolve"),
    "direct": ("start_at_ridge",),
    "evaluate": ("decimate", "evaluate_run", "evaluate_split"),
    "fit": ("make_trainer", "pick_device", "resume", "train"),
    "events": ("draw_events", "predict_events"),
    "loop": ("History", "Objective", "Trainer"),
    "metrics": ("SELECTION", "auroc"),
    "predict": ("draw_predictions", "predict_files", "read_context", "write_rows"),
    "progress": ("Progress",),
    "run": ("Run",),
    "stream": ("predict_stream",),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
