"""Your own WFDB records with a table of labels. `cases.py` reads, splits and scales them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wavessm.data.cases import PARTS, RecordingOptions
from wavessm.data.datasets.arrays import RECIPES
from wavessm.data.files import Signal, inside, pick_leads, read_record
from wavessm.data.info import DataSet
from wavessm.data.tables import need_columns, numbers, read_table
from wavessm.data.task import Task
from wavessm.errors import DataError


def read_leads(path: Path, folder: Path, leads: Sequence[str]) -> Signal:
    """Read a record that lies in a folder: these leads, or all."""
    signal = read_record(inside(path, [folder]))
    return pick_leads(signal, leads, path) if leads else signal


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True)
class WfdbOptions(RecordingOptions):
    """A table with a column `record` (path below the folder, without suffix), and either one column of classes or
    several of 0 and 1 (labels). Optional columns: `split` holds train, val or test; `group` names whose record it is,
    and keeps all of one group in one part. Records and classes are text as it is written (04015, NA)."""

    labels: str | None = None
    """CSV with a column record and one of classes, or several of 0 and 1; None takes labels.csv in the folder."""
    leads: str = ""
    """Leads by name or by position from 0, with commas: II,V5; default all, which must be the same in all records."""

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
        if "split" not in table.columns:
            table["split"] = ""
        split = table["split"].astype(str).str.lower().map({"": "", **PARTS})
        for line in split.index[split.isna()]:
            raise DataError(f"{path}: split is {table['split'][line]!r} in line {line}, expected train, val or test.")
        table["split"] = split
        if len(names) > 1:
            table[names] = numbers(table, names, path)
        leads = words(self.leads)
        return self.load_table("wfdb", table, lambda at: self.shorten(read_leads(at, folder, leads)), {"leads": leads})

    def files(self) -> list[Path]:
        records = read_table(self._labels(), text=True)["record"].dropna()
        return [self._labels(), *(self.place() / f"{name}.hea" for name in records)]  # they hold the signals' checksums


TASKS = (Task("wfdb", WfdbOptions(), RECIPES, "folder", closed_form="features"),)
