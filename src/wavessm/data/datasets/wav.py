"""Your own WAV files, a folder for each class. `cases.py` reads, splits and scales them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from wavessm.data.cases import PARTS, RecordingOptions
from wavessm.data.datasets.arrays import RECIPES
from wavessm.data.files import Signal, read_wav
from wavessm.data.info import DataSet
from wavessm.data.tables import import_pandas, need_columns, read_table
from wavessm.data.task import Task
from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")


@dataclass(frozen=True)
class WavOptions(RecordingOptions):
    """folder/<class>/*.wav, or folder/{train,val,test}/<class>/*.wav; missing parts are drawn from the training files.

    Files may differ in length (batches carry the true ones), in sampling rate if they are resampled, not in channels.
    groups.csv in the folder, with columns file (path below the folder) and group, keeps all files of a group in one
    part. Prediction scales and shortens files as training does.
    """

    scaling: Literal["recording", "global"] = "recording"
    """Take the mean from each recording and divide it by its own RMS, so that loudness does not matter; or scale all by
    the mean and deviation of the training files. Streams are always scaled by those."""
    front_end: Literal["auto", "energies", "none"] = "auto"
    """What a model reads: log energies in bands of frequency, a frame every 10 ms; or the samples themselves. auto:
    energies from 4,000 Hz on."""
    max_length: float = 0.0
    """Seconds after which recordings are cut; 0 keeps them whole."""
    trim_silence: float = 0.0
    """Remove start and end of a recording, as far as they are this many dB below its peak; 0 keeps them."""

    checks: ClassVar[dict[str, Any]] = dict.fromkeys(("max_length", "trim_silence"), (lambda s: s >= 0, "at least 0"))
    earlier: ClassVar[dict[str, Any]] = {"scaling": "global", "front_end": "none"}

    def load(self, seed: int) -> DataSet:
        folder = self.place()
        expected = f"expected {folder.name}/<class>/*.wav, with train, val or test above the class or nothing."
        rows = []
        for path in self._recordings():
            *above, label, _ = ("", *path.relative_to(folder).parts)
            if not label or label in PARTS or len(above) > 2 or (len(above) == 2 and above[1].lower() not in PARTS):
                raise DataError(f"{path}: a WAV file outside of a class folder; {expected}")
            rows.append((str(path.relative_to(folder)), label, PARTS[above[1].lower()] if len(above) > 1 else ""))
        if not rows:
            raise DataError(f"{folder}: no WAV file in it; {expected}")
        table = import_pandas().DataFrame(rows, columns=["record", "label", "split"])
        if (path := folder / "groups.csv").exists():
            groups = read_table(path, text=True)
            need_columns(groups, ["file", "group"], path)
            table["group"] = table["record"].map(dict(zip(groups["file"], groups["group"], strict=True)))
            for file in table["record"][table["group"].isna()]:
                raise DataError(f"{path}: no group for {file}; add a line with the file and its group.")
        key = {name: getattr(self, name) for name in ("max_length", "trim_silence")}
        data = self.load_table("wav", table, lambda path: self.shorten(read_wav(path)), key, scaling=self.scaling,
                               front_end=self.front_end)  # fmt: skip
        if self.max_length and data.info.length == round(self.max_length * (data.info.sampling_rate or 0)):
            log.warning("%s: recordings longer than %g s are cut there (max_length).", folder, self.max_length)
        return data

    def shorten(self, signal: Signal, sampling_rate: float | None = None) -> Signal:
        signal = super().shorten(signal)
        values = signal.values
        if self.trim_silence:
            loud = np.abs(values).max(axis=1)
            heights = np.flatnonzero(loud >= loud.max() * 10 ** (-self.trim_silence / 20))
            values = values[heights[0] : heights[-1] + 1]
        if self.max_length:
            values = values[: max(1, round(self.max_length * (signal.sampling_rate or sampling_rate or 0)))]
        return signal._replace(values=values)

    def files(self) -> list[Path]:
        return [self.place() / "groups.csv", *self._recordings()]

    def _recordings(self) -> list[Path]:
        """WAV files below the folder, hidden ones left out."""
        found = (path for path in sorted(self.place().rglob("*")) if path.suffix.lower() == ".wav")
        return [path for path in found if not any(part[0] == "." for part in path.relative_to(self.place()).parts)]


_RECIPES = {name: recipe.change(recipe.note, buckets=4) for name, recipe in RECIPES.items()}
TASKS = (Task("wav", WavOptions(), _RECIPES, "folder", closed_form="features"),)
