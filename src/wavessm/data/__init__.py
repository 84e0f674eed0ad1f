"""Data sets as training takes them: published ones in their publishers' layouts, and your own files.

Read in this order: `task` (names, options, recipes), `info` and `source` (what a loader returns), `datasets/` (one file
per set), `files` and `tables` (readers), `cases` and `windows` (from files to sets), `cache`, `crops`;
`published` is behind `wavessm data`. Everything is imported on first use: `wavessm.data.tasks()` imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from wavessm.data.task import DataOptions, Recipe, Task, data_root, get_task, load, tasks

_PLACES = {
    "baselines": ("ForecastErrors", "baseline_scores", "naive_errors"),
    "crops": ("Generated", "RandomSource", "cropped"),
    "files": ("Signal", "read_npy", "read_record", "read_signal", "read_wav"),
    "published": ("Finding", "Published", "check_set", "fetch_set", "list_sets"),
    "source": ("Arrays", "Batch", "DataInfo", "DataSet", "Ragged", "Source", "Windows"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = ["DataOptions", "Recipe", "Task", "data_root", "get_task", "load", "tasks", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'wavessm.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"wavessm.data.{_MODULE_OF[name]}"), name)
