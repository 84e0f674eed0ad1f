"""Stage 7: data sets as training takes them: publishers' layouts, generated tasks and your own files.

Read in this order: `source` (what a loader returns), `window_copy` (generated), `wfdb_files` and `ptbxl`, `series` and
`forecast`, `cases`, `signals` and `own`, then `baselines`, `cache`, `catalogue`.
"""

from wavessm.data.baselines import LastValue, Linear, Score, Seasonal, baseline_scores, fit_linear, predict, score
from wavessm.data.catalogue import Finding, Row, check_set, list_sets
from wavessm.data.forecast import load_forecast
from wavessm.data.own import load_arrays, load_csv
from wavessm.data.ptbxl import load_ptbxl
from wavessm.data.signals import Signal, load_wav_folder, load_wfdb, read_signal, read_wav
from wavessm.data.source import Arrays, Batch, DataInfo, DataSet, Generated, Source, Windows
from wavessm.data.wfdb_files import read_record
from wavessm.data.window_copy import WindowCopy, window_copying

__all__ = [
    "Arrays",
    "Batch",
    "DataInfo",
    "DataSet",
    "Finding",
    "Generated",
    "LastValue",
    "Linear",
    "Row",
    "Score",
    "Seasonal",
    "Signal",
    "Source",
    "WindowCopy",
    "Windows",
    "baseline_scores",
    "check_set",
    "fit_linear",
    "list_sets",
    "load_arrays",
    "load_csv",
    "load_forecast",
    "load_ptbxl",
    "load_wav_folder",
    "load_wfdb",
    "predict",
    "read_record",
    "read_signal",
    "read_wav",
    "score",
    "window_copying",
]
