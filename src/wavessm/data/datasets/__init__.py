"""One file per published data set and per kind of own data; a new one is such a file and one line here.

A module has `TASKS` (a tuple of `Task`) and, where a set is published, `PUBLISHED` (name → `Published`).
"""

TASKS = {
    **{
        f"ptbxl-{labels}": ("ptbxl", f"PTB-XL electrocardiograms, {labels} labels")
        for labels in ("super-diag", "sub-diag", "diag", "all", "form", "rhythm")
    },
    "forecast": ("forecast", "ETTh1, ETTh2, ETTm1, WTH or ECL, as Informer reads them"),
    "speech": ("speech", "Speech Commands, single words at 16 kHz"),
    "demo": ("demo", "marked windows in noise, to be found and added; needs no data"),
    "arrays": ("arrays", "your own X.npy and y.npy in a folder"),
    "csv": ("csv", "forecast your own CSV"),
    "wav": ("wav", "your own WAV files, a folder for each class"),
    "wfdb": ("wfdb", "your own WFDB records with a table of labels"),
    "beats": ("beats", "beats or other events inside your own long WFDB records; MIT-BIH"),
}
"""Name of a task → module and one line of help."""
