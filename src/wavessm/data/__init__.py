"""Stage 7: data sets as training takes them: publishers' layouts, generated tasks and your own files.

Read in this order: `source` (what a loader returns), `window_copy` (generated), `wfdb_files` and `ptbxl`, `series` and
`forecast`, `cases`, `signals` and `own`; `tokens`, `listops` and `arena`; `strokes`, `snakes` and `pathfinder`;
`cifar`, `speech`; then `baselines`, `cache`, `catalogue`, `fetch`.
"""

from wavessm.data.baselines import LastValue, Linear, Score, Seasonal, baseline_scores, fit_linear, predict, score
from wavessm.data.catalogue import Finding, Row, check_set, list_sets
from wavessm.data.datasets.arena import load_listops, load_retrieval, load_text
from wavessm.data.datasets.forecast import load_forecast
from wavessm.data.datasets.image import load_image
from wavessm.data.datasets.pathfinder import load_pathfinder
from wavessm.data.datasets.ptbxl import load_ptbxl
from wavessm.data.datasets.speech import load_speech
from wavessm.data.drawn import Generated
from wavessm.data.fetch import fetch_set
from wavessm.data.own import load_arrays, load_csv
from wavessm.data.signals import Signal, load_wav_folder, load_wfdb, read_signal, read_wav
from wavessm.data.source import Arrays, Batch, DataInfo, DataSet, Source, Windows
from wavessm.data.tokens import Tokens
from wavessm.data.wfdb_files import read_record

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
    "Tokens",
    "Windows",
    "baseline_scores",
    "check_set",
    "fetch_set",
    "fit_linear",
    "list_sets",
    "load_arrays",
    "load_csv",
    "load_forecast",
    "load_image",
    "load_listops",
    "load_pathfinder",
    "load_ptbxl",
    "load_retrieval",
    "load_speech",
    "load_text",
    "load_wav_folder",
    "load_wfdb",
    "predict",
    "read_record",
    "read_signal",
    "read_wav",
    "score",
]
