"""Your own WFDB records with a table of labels. `cases.py` reads, splits and scales them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wavessm.data.datasets.arrays import RECIPES
from wavessm.data.task import DataOptions, Task, data_path
from wavessm.errors import DataError

if TYPE_CHECKING:
    from wavessm.data.source import DataSet


@dataclass(frozen=True)
class WfdbOptions(DataOptions):
    """Options of the data."""

    folder: str = ""
    """Folder with WFDB records."""
    labels: str | None = None
    """CSV with a column record and one of classes, or several of 0 and 1; None takes labels.csv in the folder."""
    skip_bad: bool = False
    """Leave out records that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        return load_wfdb(data_path(self.folder, "folder"), self.labels, skip_bad=self.skip_bad)

    def checksum(self) -> str:  # headers hold the checksums of their signals
        from wavessm.data.cases import checksum
        from wavessm.data.tables import read_table

        folder = Path(self.folder)
        labels = Path(self.labels or folder / "labels.csv")
        records = read_table(labels)["record"]
        return checksum(folder, [labels, *(folder / f"{record}.hea" for record in records)])


TASKS = (Task("wfdb", WfdbOptions(), RECIPES, "folder"),)


def load_wfdb(
    folder: str | Path, labels_csv: str | Path | None = None, skip_bad: bool = False, seed: int = 0
) -> DataSet:
    """Load WFDB records with a table: columns `record` (path below the folder, without suffix), and either one column
    of classes or several of 0 and 1 (labels); an optional column `split` holds train, val or test. Records and classes
    are text as it is written (04015, NA).

    Args:
        folder: where the records are.
        labels_csv: the table; None takes labels.csv in the folder.
        skip_bad: leave out records that cannot be read; `info.skipped` lists them.
        seed: seed of the split, where none is given.
    """
    from wavessm.data.cases import PARTS, Recordings, load_recordings
    from wavessm.data.files import read_record
    from wavessm.data.tables import need_columns, numbers, read_table

    folder = Path(folder)
    path = folder / "labels.csv" if labels_csv is None else Path(labels_csv)
    table = read_table(path, text=True)
    need_columns(table, ["record"], path)
    names = [str(name) for name in table.columns if name not in ("record", "split")]
    if len(table) == 0 or not names:
        raise DataError(f"{path}: no rows, or no column of labels; expected one of classes, or several of 0 and 1.")
    for column in ("record", names[0]):
        for line in table.index[table[column].isna()]:
            raise DataError(f"{path}: nothing in column {column!r}, line {line}; fill it or drop the row.")
    parts = table["split"].astype(str).str.lower() if "split" in table.columns else None
    if parts is not None and (odd := parts[~parts.isin(list(PARTS))]).size:
        raise DataError(f"{path}: split is {odd.iloc[0]!r} in line {odd.index[0]}, expected train, val or test.")
    kind = "multiclass" if len(names) == 1 else "multilabel"
    targets = table[names[0]] if kind == "multiclass" else numbers(table, names, path)
    recordings = Recordings(
        folder,
        table["record"].astype(str).tolist(),
        targets,
        [""] * len(table) if parts is None else [PARTS[part] for part in parts],
        kind,
        tuple(names) if kind == "multilabel" else (),
    )
    return load_recordings("wfdb", recordings, read_record, skip_bad, seed)
