"""One file per published data set and per kind of own data; a new one is such a file and one line here.

A module has `TASKS` (a tuple of `Task`) and, where a set is published, `PUBLISHED` (name → `Published`).
"""

TASKS = {
    "ptbxl-super-diag": ("ptbxl", "PTB-XL electrocardiograms, super-diag labels"),
    "ptbxl-sub-diag": ("ptbxl", "PTB-XL electrocardiograms, sub-diag labels"),
    "ptbxl-diag": ("ptbxl", "PTB-XL electrocardiograms, diag labels"),
    "ptbxl-all": ("ptbxl", "PTB-XL electrocardiograms, all labels"),
    "ptbxl-form": ("ptbxl", "PTB-XL electrocardiograms, form labels"),
    "ptbxl-rhythm": ("ptbxl", "PTB-XL electrocardiograms, rhythm labels"),
    "forecast": ("forecast", "ETTh1, ETTh2, ETTm1, WTH or ECL, as Informer reads them"),
    "speech": ("speech", "Speech Commands, single words at 16 kHz"),
    "listops": ("listops", "values of nested lists of digits"),
    "text": ("text", "IMDb reviews by character, good or bad"),
    "retrieval": ("retrieval", "pairs of papers by character, cited or not"),
    "image": ("image", "CIFAR-10 in grey, pixel by pixel"),
    "pathfinder": ("pathfinder", "whether two discs mark one path, 32 × 32 pixels"),
    "pathx": ("pathfinder", "whether two discs mark one path, 128 × 128 pixels"),
    "demo": ("demo", "marked windows in noise, to be found and added; needs no data"),
    "arrays": ("arrays", "your own X.npy and y.npy in a folder"),
    "csv": ("csv", "forecast your own CSV"),
    "wav": ("wav", "your own WAV files, a folder for each class"),
    "wfdb": ("wfdb", "your own WFDB records with a table of labels"),
    "beats": ("beats", "beats or other events inside your own long WFDB records; MIT-BIH"),
}
"""Name of a task → module and one line of help."""
