"""Speech Commands: one-second clips of single words at 16 kHz, 35 words (version 0.02) or 30 (0.01).

    <word>/*.wav     validation_list.txt, testing_list.txt: one clip a line, the others train

Clips shorter than a second end in zeros. Two scalings:
    global      one mean and one standard deviation over the training clips
    s4-compat   as state-spaces/s4: divided by 2¹⁵ once more, then mean and deviation of every one of the 16,000 steps
Half the rate is heard by `wavessm evaluate RUN --every 2`: every second sample of scaled clips, steps twice as long.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import torch

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.signals import wav_samples
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.errors import DataError, OptionError, unknown_name

log = logging.getLogger("wavessm.data")

PUBLISHED = "https://www.tensorflow.org/datasets/catalog/speech_commands"
LATER_WORDS = ("backward", "follow", "forward", "learn", "visual")  # new in version 0.02
WORDS: dict[int, tuple[str, ...]] = {
    30: (
        "bed", "bird", "cat", "dog", "down", "eight", "five", "four", "go", "happy", "house", "left", "marvin", "nine",
        "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "wow", "yes",
        "zero",
    )
}  # fmt: skip
WORDS[35] = tuple(sorted((*WORDS[30], *LATER_WORDS)))
VERSIONS = {35: "0.02", 30: "0.01"}
LISTS = {"val": "validation_list.txt", "test": "testing_list.txt"}
SCALINGS = ("global", "s4-compat")
RATE = LENGTH = 16_000
_FULL = 32_768.0
_CHUNK = 2048


def load_speech(root: str | Path, words: int = 35, scaling: str = "global", skip_bad: bool = False) -> DataSet:
    """x (batch, 16000, 1), y the word. With `skip_bad` clips that cannot be read are left out and listed."""
    if words not in WORDS:
        raise OptionError(f"load_speech: words is {words!r}, expected 35 (version 0.02) or 30 (0.01).")
    if scaling not in SCALINGS:
        raise unknown_name("scaling", scaling, SCALINGS)
    folder = find_speech(root, words)
    lists = {part: folder / name for part, name in LISTS.items()}
    places = [folder / word for word in WORDS[words]]
    key = {"files": fingerprint([*places, *lists.values()], folder), "words": words, "layout": 1}
    prepared = cached(cache_folder(folder.parent), f"speech-{words}", key, lambda: _read_all(folder, words))
    bad: dict[str, str] = prepared.notes["bad"]
    if bad and not skip_bad:
        more = f" ({len(bad) - 1} more clips are bad too)" if len(bad) > 1 else ""
        raise DataError(f"{next(iter(bad.values()))}{more} Fetch it again, or go on without it with skip_bad.")
    if bad:
        log.warning("Speech Commands: %d bad clips left out: %s", len(bad), ", ".join(list(bad)[:10]))
    return _assemble(prepared, words, scaling, tuple(bad))


def find_speech(root: str | Path, words: int) -> Path:
    """The folder with the word folders and lists: `root`, or one below it named as the archive."""
    root, name = Path(root), f"speech_commands_v{VERSIONS[words]}"
    for folder in (root / name, root / "SpeechCommands" / name, root):
        if all((folder / file).is_file() for file in LISTS.values()):
            missing = [word for word in WORDS[words] if not (folder / word).is_dir()]
            if not missing:
                return folder
            hint = " This looks like version 0.01: ask for 30 words." if set(missing) == set(LATER_WORDS) else ""
            raise DataError(f"{folder}: no folder {missing[0]!r} ({len(missing)} of {words} words are missing).{hint}")
    raise DataError(
        f"Speech Commands: no {name} with {LISTS['val']} in {root}; get it with "
        f"`wavessm data fetch {'speech' if words == 35 else 'speech-30'}`, or from {PUBLISHED}."
    )


def clips(folder: Path, words: int) -> dict[str, list[str]]:
    """Clips of each part, as word/file, in order; listed clips of other words are not among them."""
    known = set(WORDS[words])
    listed = {
        part: {line for line in (folder / name).read_text().split() if line.partition("/")[0] in known}
        for part, name in LISTS.items()
    }
    there = sorted(
        f"{word}/{file}" for word in WORDS[words] for file in os.listdir(folder / word) if file.endswith(".wav")
    )
    for part, names in listed.items():
        if absent := sorted(names.difference(there)):
            raise DataError(f"{folder}: {absent[0]} is in {LISTS[part]}, but not there ({len(absent)} such clips).")
    if both := sorted(listed["val"] & listed["test"]):
        raise DataError(f"{folder}: {both[0]} is in both lists.")
    held = listed["val"] | listed["test"]
    parts = {"train": [name for name in there if name not in held]}
    parts |= {part: [name for name in there if name in names] for part, names in listed.items()}
    for part, kept in parts.items():
        if not kept:
            raise DataError(f"{folder}: no clip in the {part} part.")
    return parts


def _read_all(folder: Path, words: int) -> Prepared:
    """Samples (clips, 16000, 1) int16 and word numbers of each part; sums over the training clips of every step."""
    number = {word: i for i, word in enumerate(WORDS[words])}
    arrays: dict[str, np.ndarray] = {}
    bad: dict[str, str] = {}
    for part, names in clips(folder, words).items():
        values, labels, good = np.zeros((len(names), LENGTH, 1), np.int16), [], 0
        for name in names:
            try:
                clip = read_clip(folder / name)
            except DataError as reason:
                bad[name] = str(reason)
                continue
            values[good, : len(clip), 0] = clip
            labels.append(number[name.partition("/")[0]])
            good += 1
        if not good:
            raise DataError(f"{folder}: no readable clip in the {part} part; the first: {next(iter(bad.values()))}")
        arrays |= {f"x_{part}": values[:good], f"y_{part}": np.array(labels, np.int64)}
    train = arrays["x_train"][..., 0]
    sums, squares = np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.int64)
    for first in range(0, len(train), _CHUNK):
        part_of_it = train[first : first + _CHUNK].astype(np.int64)
        sums += part_of_it.sum(axis=0)
        squares += np.square(part_of_it).sum(axis=0)
    return Prepared({**arrays, "sums": sums, "squares": squares}, {"bad": bad})


def read_clip(path: Path) -> np.ndarray:
    """A clip (samples,) int16, at most a second at 16 kHz."""
    values, rate = wav_samples(path, "int16")
    if rate != RATE or values.shape[1] != 1 or not 0 < len(values) <= LENGTH:
        raise DataError(f"{path}: {rate} Hz, {values.shape[1]} channels, {len(values)} samples; expected "
                        f"{RATE} Hz, 1 channel, 1 to {LENGTH} samples.")  # fmt: skip
    return values[:, 0]


def _assemble(prepared: Prepared, words: int, scaling: str, skipped: tuple[str, ...]) -> DataSet:
    arrays = prepared.arrays
    clips, sums, squares = len(arrays["y_train"]), arrays["sums"], arrays["squares"]
    missing = sorted(set(range(words)).difference(arrays["y_train"].tolist()))
    if missing:
        raise DataError(
            f"Speech Commands: no training clip of {WORDS[words][missing[0]]!r}; the release is incomplete."
        )
    scale = step_scale = None
    affine: tuple[float, float] | tuple[torch.Tensor, torch.Tensor]
    if scaling == "global":
        mean = float(sums.sum()) / (clips * LENGTH)
        std = float(np.sqrt(float(squares.sum()) / (clips * LENGTH) - mean**2))
        if std == 0:
            raise DataError("Speech Commands: every training clip is silent.")
        scale = ((mean / _FULL,), (std / _FULL,))
        affine = (1 / std, -mean / std)
    else:
        means, stds = s4_statistics(sums, squares, clips)
        step_scale = (tuple(means.tolist()), tuple(stds.tolist()))
        affine = (
            torch.from_numpy(1 / (_FULL * stds)).float()[:, None],
            torch.from_numpy(-means / stds).float()[:, None],
        )
    parts = {
        part: Arrays(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]), affine=affine)
        for part in ("train", "val", "test")
    }
    info = DataInfo("multiclass", 1, words, LENGTH, classes=WORDS[words], scale=scale, step_scale=step_scale,
                    rate=float(RATE), skipped=skipped)  # fmt: skip
    return DataSet("speech", parts["train"], parts["val"], parts["test"], info)


def s4_statistics(sums: np.ndarray, squares: np.ndarray, clips: int) -> tuple[np.ndarray, np.ndarray]:
    """Offset and divisor of every step for samples in [-1, 1]: (x/2¹⁵ − m_t) / (s_t + 1e-5). (steps,), (steps,)

    Sums and squares are of 16-bit integers. Both results are rounded to eight digits: they go into a run's JSON file.
    """
    means = sums / clips
    variances = np.maximum(squares / clips - means**2, 0) * (clips / max(1, clips - 1))
    offset, divisor = means / _FULL, np.sqrt(variances) / _FULL + 1e-5 * _FULL  # both times 2¹⁵
    return np.array([float(f"{v:.8g}") for v in offset]), np.array([float(f"{v:.8g}") for v in divisor])
