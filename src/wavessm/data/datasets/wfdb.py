"""Your own WFDB records with a table of labels. `cases.py` reads, splits and scales them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavessm.data.cases import PARTS, Cases, load_recordings
from wavessm.data.datasets.arrays import RECIPES
from wavessm.data.files import Signal, inside, pick_leads, read_record, record_files, resample
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
    leads: str = ""
    """Leads by name or by position from 0, with commas: II,V5; default all, which must be the same in all records."""
    sampling_rate: float | None = None
    """Resample all records to this rate in hertz; None refuses records of another rate than most have."""
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
        one = len(names) == 1
        targets = table[names[0]].to_numpy(str) if one else numbers(table, names, path)
        cases = Cases(
            [str(folder / file) for file in files], targets, np.array(parts), str(folder),
            "multiclass" if one else "multilabel", classes=() if one else tuple(names),
            groups=table["group"].to_numpy(str) if "group" in table.columns else None,
        )  # fmt: skip

        def read(record: Path) -> Signal:
            signal, leads = read_record(inside(record, [folder])), [name for name in self.leads.split(",") if name]
            return self.shorten(pick_leads(signal, leads, record) if leads else signal)

        cut = {"leads": self.leads, "sampling_rate": self.sampling_rate} if self.leads or self.sampling_rate else None
        return load_recordings("wfdb", folder, files, cases, read, record_files(folder, files), self.skip_bad, cut)

    def shorten(self, signal: Signal, sampling_rate: float | None = None) -> Signal:
        return resample(signal, self.sampling_rate) if self.sampling_rate else signal

    def files(self) -> list[Path]:
        found = record_files(self.place(), read_table(self._labels(), text=True)["record"].dropna())
        return [self._labels(), *(path for path in found if path.suffix == ".hea")]  # they hold the signals' checksums


TASKS = (Task("wfdb", WfdbOptions(), RECIPES, "folder", closed_form="features"),)
