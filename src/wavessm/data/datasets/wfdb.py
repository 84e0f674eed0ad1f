"""Your own WFDB records with a table of labels. `cases.py` reads, splits and scales them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wavessm.data.cases import PARTS, Recordings, load_recordings
from wavessm.data.datasets.arrays import RECIPES
from wavessm.data.files import Signal, inside, read_record, record_files
from wavessm.data.info import DataSet
from wavessm.data.tables import need_columns, numbers, read_table
from wavessm.data.task import OwnOptions, Task
from wavessm.errors import DataError


@dataclass(frozen=True)
class WfdbOptions(OwnOptions):
    """A table with a column `record` (path below the folder, without suffix), and either one column of classes or
    several of 0 and 1 (labels). Optional columns: `split` holds train, val or test; `group` names whose record it is,
    and keeps all of one group in one part. Records and classes are text as it is written (04015, NA).
    """

    folder: str = ""
    """Folder with WFDB records."""
    labels: str | None = None
    """CSV with a column record and one of classes, or several of 0 and 1; None takes labels.csv in the folder."""
    skip_bad: bool = False
    """Leave out records that cannot be read, and list them."""

    def _labels(self) -> Path:
        return Path(self.labels or self.place() / "labels.csv")

    def load(self, seed: int) -> DataSet:
        folder, path = self.place(), self._labels()
        table = read_table(path, text=True)
        need_columns(table, ["record"], path)
        names = [name for name in table.columns if name not in ("record", "split", "group")]
        if len(table) == 0 or not names:
            raise DataError(f"{path}: no rows, or no column of labels; expected one of classes, or several of 0 and 1.")
        for column in ("record", names[0], *table.columns.intersection(["group"])):
            for line in table.index[table[column].isna()]:
                raise DataError(f"{path}: nothing in column {column!r}, line {line}; fill it or drop the row.")
        for line in table.index[table["record"].duplicated()]:
            raise DataError(f"{path}: {table['record'][line]} is listed twice, line {line}; list every record once.")
        parts = [""] * len(table)
        if "split" in table.columns:
            split = table["split"].astype(str).str.lower()
            for line in split.index[~split.isin(list(PARTS))]:
                raise DataError(f"{path}: split is {split[line]!r} in line {line}, expected train, val or test.")
            parts = [PARTS[part] for part in split]
        files = table["record"].tolist()
        groups = table["group"].tolist() if "group" in table.columns else None
        if len(names) == 1:
            listed = Recordings(folder, files, table[names[0]], parts, "multiclass", groups=groups)
        else:
            listed = Recordings(folder, files, numbers(table, names, path), parts, "multilabel", tuple(names), groups)

        def read(record: Path) -> Signal:
            return read_record(inside(record, [folder]), [folder])

        return load_recordings("wfdb", listed, self._record_files(files), read, self.skip_bad)

    def files(self) -> list[Path]:
        found = self._record_files(read_table(self._labels(), text=True)["record"].dropna())
        return [self._labels(), *(path for path in found if path.suffix == ".hea")]  # they hold the signals' checksums

    def _record_files(self, records: Iterable[str]) -> list[Path]:
        """The files of all records; those that cannot be read are left to the reader."""
        found, folder = [], self.place()
        for name in records:
            with suppress(DataError):
                found += record_files(inside(folder / name, [folder]), [folder])
        return found


TASKS = (Task("wfdb", WfdbOptions(), RECIPES, "folder", closed_form="features"),)
