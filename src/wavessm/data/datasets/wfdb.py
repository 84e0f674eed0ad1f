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
    """A table with a column `record` (path below the folder, without suffix), and either one column of classes or
    several of 0 and 1 (labels); an optional column `split` holds train, val or test. Records and classes are text as it
    is written (04015, NA).
    """

    folder: str = ""
    """Folder with WFDB records."""
    labels: str | None = None
    """CSV with a column record and one of classes, or several of 0 and 1; None takes labels.csv in the folder."""
    skip_bad: bool = False
    """Leave out records that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data.cases import PARTS, Recordings, load_recordings
        from wavessm.data.files import read_record
        from wavessm.data.tables import need_columns, numbers, read_table

        folder = data_path(self.folder, "folder")
        path = Path(self.labels or folder / "labels.csv")
        table = read_table(path, text=True)
        need_columns(table, ["record"], path)
        names = [name for name in table.columns if name not in ("record", "split")]
        if len(table) == 0 or not names:
            raise DataError(f"{path}: no rows, or no column of labels; expected one of classes, or several of 0 and 1.")
        for column in ("record", names[0]):
            for line in table.index[table[column].isna()]:
                raise DataError(f"{path}: nothing in column {column!r}, line {line}; fill it or drop the row.")
        parts = [""] * len(table)
        if "split" in table.columns:
            split = table["split"].astype(str).str.lower()
            for line in split.index[~split.isin(list(PARTS))]:
                raise DataError(f"{path}: split is {split[line]!r} in line {line}, expected train, val or test.")
            parts = [PARTS[part] for part in split]
        files = table["record"].tolist()
        if len(names) == 1:
            listed = Recordings(folder, files, table[names[0]], parts, "multiclass")
        else:
            listed = Recordings(folder, files, numbers(table, names, path), parts, "multilabel", tuple(names))
        return load_recordings("wfdb", listed, read_record, self.skip_bad)

    def checksum(self) -> str:  # headers hold the checksums of their signals
        from wavessm.data.cases import checksum
        from wavessm.data.tables import read_table

        folder = Path(self.folder)
        labels = Path(self.labels or folder / "labels.csv")
        return checksum(folder, [labels, *(folder / f"{name}.hea" for name in read_table(labels)["record"])])


TASKS = (Task("wfdb", WfdbOptions(), RECIPES, "folder"),)
