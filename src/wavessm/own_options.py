"""Stage 7d: data options of one's own signals; `tasks.py` registers them.

`checksum` tells whether a run that goes on, or is evaluated, still has the data it began with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wavessm.data.source import DataSet
from wavessm.errors import OptionError


def _given(value: str, option: str) -> Path:
    if not value:
        raise OptionError(f"where are the data? Give them after the name of the task, or with {option}.")
    return Path(value)


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _checksum(folder: Path, files: Iterable[Path]) -> str:
    from wavessm.data.own import checksum

    return checksum(folder, files)


@dataclass(frozen=True)
class ArraysOptions:
    folder: str = ""
    """Folder with X.npy (cases, length, channels) and y.npy; lengths.npy, X_test.npy, y_test.npy if there are any."""
    kind: Literal["multiclass", "multilabel", "regression"] | None = None
    """What y means; None takes whole numbers and text for classes, columns of 0 and 1 for labels."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_arrays

        return load_arrays(_given(self.folder, "--folder"), self.kind)

    def checksum(self) -> str:
        folder = Path(self.folder)
        names = [f"{name}{part}.npy" for name in ("X", "y", "lengths") for part in ("", "_val", "_test")]
        return _checksum(folder, [folder / name for name in names])


@dataclass(frozen=True)
class CsvOptions:
    path: str = ""
    """CSV file with a row for each time step."""
    target: str | None = None
    """Column to forecast; None forecasts all."""
    horizon: int = 24
    """Steps to forecast."""
    context: int = 96
    """Steps the model sees."""
    date_column: str | None = None
    """Column with dates, for the calendar; None takes one named date, datetime, timestamp or time."""
    timeenc: Literal[0, 1, 2, 3] = 2
    """Calendar as tables (0), as real numbers (1), as waves of day and week (2), or of day, week and year (3)."""
    eval_stamp: bool = True
    """Give the model the calendar of the horizon too; it is known."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_csv

        return load_csv(
            _given(self.path, "--path"),
            target=self.target,
            horizon=self.horizon,
            context=self.context,
            date_column=self.date_column,
            timeenc=self.timeenc,
            eval_stamp=self.eval_stamp,
        )

    def checksum(self) -> str:
        return _checksum(Path(self.path).parent, [Path(self.path)])


@dataclass(frozen=True)
class WavOptions:
    folder: str = ""
    """Folder with one folder of WAV files for each class."""
    skip_bad: bool = False
    """Leave out files that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_wav_folder

        return load_wav_folder(_given(self.folder, "--folder"), skip_bad=self.skip_bad)

    def checksum(self) -> str:
        found = Path(self.folder).rglob("*.[wW][aA][vV]")
        return _checksum(Path(self.folder), [file for file in found if not _is_hidden(file, Path(self.folder))])


@dataclass(frozen=True)
class WfdbOptions:
    folder: str = ""
    """Folder with WFDB records."""
    labels: str | None = None
    """CSV with a column record and one of classes, or several of 0 and 1; None takes labels.csv in the folder."""
    skip_bad: bool = False
    """Leave out records that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data import load_wfdb

        return load_wfdb(_given(self.folder, "--folder"), self.labels, skip_bad=self.skip_bad)

    def checksum(self) -> str:  # headers hold the checksums of their signals
        from wavessm.data.tables import read_table

        folder = Path(self.folder)
        labels = Path(self.labels or folder / "labels.csv")
        records = read_table(labels)["record"]
        return _checksum(folder, [labels, *(folder / f"{record}.hea" for record in records)])
