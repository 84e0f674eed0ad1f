"""Speech Commands: one-second clips of single words at 16 kHz, 35 words (version 0.02) or 30 (0.01).

    <word>/*.wav     validation_list.txt, testing_list.txt: one clip a line, the others train

Clips shorter than a second end in zeros; one mean and one standard deviation over the training clips scale all.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wavessm.data.cache import Prepared, cached, read_each, sums_of
from wavessm.data.files import wav_samples
from wavessm.data.info import DataInfo, DataSet, split_set
from wavessm.data.published import Published
from wavessm.data.task import PublishedOptions, Recipe, Task
from wavessm.errors import DataError

HOMEPAGE = "https://www.tensorflow.org/datasets/catalog/speech_commands"
FOLDERS = {35: "speech_commands_v0.02", 30: "speech_commands_v0.01"}
LISTS = {"val": "validation_list.txt", "test": "testing_list.txt"}
RATE = LENGTH = 16_000
_FULL = 32_768.0


@dataclass(frozen=True)
class SpeechOptions(PublishedOptions):
    """x (batch, 16000, 1), y the word."""

    words: Literal[35, 30] = 35
    """35 words are version 0.02, 30 words 0.01."""
    skip_bad: bool = False
    """Leave out clips that cannot be read, and list them."""

    def files(self) -> list[Path]:
        name = FOLDERS[self.words]
        source = f"get it with `wavessm data fetch speech{'' if self.words == 35 else '-30'}`, or from {HOMEPAGE}."
        missing = f"Speech Commands: no {name} with {LISTS['val']}"
        folder = self.find([name, f"SpeechCommands/{name}", ""], LISTS.values(), missing, source)
        words = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "_.")
        if len(words) != self.words:
            raise DataError(f"{folder}: {len(words)} folders of words, expected {self.words}; of version 0.01 ask "
                            "for 30, of version 0.02 for 35.")  # fmt: skip
        return [*words, *(folder / each for each in LISTS.values())]

    def load(self, seed: int) -> DataSet:
        files = self.files()
        folder, words = files[0].parent, tuple(path.name for path in files[: self.words])
        prepared = cached(f"speech-{self.words}", folder, files, {}, lambda: _read_all(folder, words))
        skipped = prepared.bad_files(self.skip_bad, "Speech Commands")
        arrays = prepared.arrays
        mean = float(arrays["sums"].sum()) / arrays["x_train"].size
        std = math.sqrt(float(arrays["squares"].sum()) / arrays["x_train"].size - mean**2)
        info = DataInfo("multiclass", 1, len(words), LENGTH, classes=words, scale=((mean / _FULL,), (std / _FULL,)),
                        sampling_rate=float(RATE), skipped=skipped)  # fmt: skip
        return split_set("speech", arrays, info, (1 / std, -mean / std))


def _clips(folder: Path, words: tuple[str, ...]) -> dict[str, list[str]]:
    """Clips of each part, as word/file, in order; listed clips of other words are not among them."""
    listed = {
        part: {line for line in (folder / name).read_text().split() if line.partition("/")[0] in words}
        for part, name in LISTS.items()
    }
    there = sorted(f"{word}/{file}" for word in words for file in os.listdir(folder / word) if file.endswith(".wav"))
    for part, names in listed.items():
        if absent := sorted(names.difference(there)):
            raise DataError(f"{folder}: {absent[0]} is in {LISTS[part]}, but not there ({len(absent)} such clips).")
    listed = {"train": set(there) - listed["val"] - listed["test"], **listed}
    return {part: [name for name in there if name in names] for part, names in listed.items()}


def _read_all(folder: Path, words: tuple[str, ...]) -> Prepared:
    """Samples (clips, 16000, 1) int16 and word numbers of each part; sum and squares of each training clip."""
    arrays: dict[str, np.ndarray] = {}
    bad: dict[str, str] = {}
    for part, names in _clips(folder, words).items():
        clips, unreadable = read_each(names, lambda name: _read_clip(folder / name), folder)
        labels = [words.index(name.partition("/")[0]) for name in clips]
        arrays |= {f"x_{part}": np.stack(list(clips.values())), f"y_{part}": np.array(labels, np.int64)}
        bad |= unreadable
    sums, squares = sums_of(arrays["x_train"])
    return Prepared({**arrays, "sums": sums, "squares": squares}, {"bad": bad})


def _read_clip(path: Path) -> np.ndarray:
    """A clip of at most a second at 16 kHz, zeros after its end: (16000, 1) int16."""
    values, rate = wav_samples(path, "int16")
    if rate != RATE or values.shape[1] != 1 or not 0 < len(values) <= LENGTH:
        raise DataError(f"{path}: {rate} Hz, {values.shape[1]} channels, {len(values)} samples; expected "
                        f"{RATE} Hz, 1 channel, 1 to {LENGTH} samples.")  # fmt: skip
    return np.pad(values, ((0, LENGTH - len(values)), (0, 0)))


_PAPER = Recipe(
    {"d_model": 128, "n_layers": 6, "n_ssm": 2, "norm": "batch", "bidirectional": True},
    {"lr": 0.001, "weight_decay": 0.05, "batch_size": 16, "epochs": 40, "warmup": 1000, "eval_batch_size": 64,
     "precision": "tf32"},
)  # fmt: skip
_BEST = _PAPER.change("as paper; nothing tuned yet")
TASKS = (Task("speech", SpeechOptions(), {"paper": _PAPER, "best": _BEST}, "root"),)


def _set(words: Any, cases: tuple[int, int, int], sha256: str) -> Published:
    url = f"https://storage.googleapis.com/download.tensorflow.org/data/{FOLDERS[words]}.tar.gz"
    options = SpeechOptions(words=words)
    return Published("CC BY 4.0", HOMEPAGE, options, cases, url=url, place=FOLDERS[words], sha256=sha256)


PUBLISHED = {
    "speech": _set(35, (84_843, 9_981, 11_005), "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58"),
    "speech-30": _set(30, (51_088, 6_798, 6_835), "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d"),
}
