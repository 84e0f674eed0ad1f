"""Data sets as training takes them: publishers' layouts, generated tasks and your own files.

Read in this order: `source` (what a loader returns), `window_copy` (generated), `wfdb_files` and `ptbxl`, `series` and
`forecast`, `own` and `signals`, `baselines`, `cache`, `catalogue`.
"""

from wavessm.data.source import Arrays, Batch, DataInfo, DataSet, Generated, Source, Windows
from wavessm.data.window_copy import WindowCopy, window_copying

__all__ = [
    "Arrays",
    "Batch",
    "DataInfo",
    "DataSet",
    "Generated",
    "Source",
    "WindowCopy",
    "Windows",
    "window_copying",
]
