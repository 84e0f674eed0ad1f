"""Your own arrays: X.npy and y.npy in a folder. `cases.py` splits, encodes and scales them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from wavessm.data.cases import Cases, guess_kind, make_set, without_padding
from wavessm.data.files import check_times, read_npy, to_float32
from wavessm.data.info import DataSet
from wavessm.data.task import OwnOptions, Recipe, Task
from wavessm.errors import DataError, OptionError

log = logging.getLogger("wavessm.data")
PARTS = ("val", "test")


@dataclass(frozen=True)
class ArraysOptions(OwnOptions):
    """X.npy (cases, length, channels) or (cases, length), y.npy, and lengths.npy where cases are padded.

    X_val.npy, y_val.npy, X_test.npy, y_test.npy (and lengths_…) are used where they are there; otherwise 15 % each are
    drawn from the training cases, by class. groups.npy, one name or number per case, keeps the cases of a group in one
    part; sample_weight.npy weighs the cases in the training loss. NaN in X is a missing sample. times.npy (cases,
    length) says when samples were taken, where they are not evenly spaced.
    """

    folder: str = ""
    """Folder with X.npy (cases, length, channels) and y.npy; lengths.npy, times.npy, groups.npy, sample_weight.npy,
    X_test.npy, y_test.npy if there are any."""
    kind: Literal["multiclass", "multilabel", "regression", "steps"] | None = None
    """What y means; None takes whole numbers and text for classes, those of shape (cases, length) for a class of each
    step, columns of 0 and 1 for labels."""
    quantiles: str = ""
    """Regression: predict these quantiles of each number, such as 0.1,0.5,0.9, instead of its mean."""
    sampling_rate: float | None = None
    """Samples per second, where it matters: for --from, for --crop and for new files of another rate."""
    channels: str = ""
    """Names of the channels, such as I,II: for --from, which finds them in the pretrained model."""

    def load(self, seed: int) -> DataSet:
        if not (folder := self.place()).is_dir():
            raise DataError(f"{folder}: no such folder; expected one with X.npy and y.npy.")
        there = [part for part in PARTS if any((folder / f"{name}_{part}.npy").exists() for name in "Xy")]
        read = {part: _read_part(folder, part) for part in ("train", *there)}
        (main, targets, *_), sizes = read["train"], [len(X) for X, *_ in read.values()]
        for part, (X, y, *_) in read.items():
            if X.shape[1:] != main.shape[1:] or y.shape[1:] != targets.shape[1:]:
                raise DataError(f"{_file(folder, 'X', part)}: cases have shape {X.shape[1:]}, targets {y.shape[1:]}, "
                                f"in X.npy and y.npy {main.shape[1:]} and {targets.shape[1:]}.")  # fmt: skip
        if main.shape[1] < main.shape[2]:
            log.warning("X.npy is read as (cases, length, channels) = %s: more channels than steps; swap its last two "
                        "axes if yours differ", main.shape)  # fmt: skip
        names = [f"{_file(folder, 'X', part)}, case {k}" for part, (X, *_) in read.items() for k in range(len(X))]
        X, y, lengths, groups, times = (np.concatenate(arrays) for arrays in zip(*read.values(), strict=True))
        weights, path = None, folder / "sample_weight.npy"
        if path.exists():
            weights = np.ones(len(X))
            weights[: len(main)] = _column(path, len(main), "buif", "numbers")
        leads = tuple(name.strip() for name in self.channels.split(",") if name.strip())
        if leads and len(leads) != X.shape[2]:
            raise DataError(f"{folder / 'X.npy'}: {X.shape[2]} channels, but --channels names {len(leads)}.")
        kind = self._kind(main.shape, targets)
        if self.quantiles and kind != "regression":
            raise OptionError(f"--quantiles are for numbers, but y.npy is read as {kind}; leave them out, or give "
                              "--kind regression.")  # fmt: skip
        if kind == "steps":
            if y.shape != X.shape[:2]:
                raise DataError(f"{folder / 'y.npy'}: shape {targets.shape}, expected {main.shape[:2]} for a label of "
                                "each step of X; pad it as X.")  # fmt: skip
            y = without_padding(y[..., None], lengths)[:, 0]
        cases = Cases(
            names, y, np.repeat(list(read), sizes), str(folder), kind,
            without_padding(X, lengths), lengths, weights=weights,
            about={"sampling_rate": self.sampling_rate, "channels": leads, "quantiles": read_levels(self.quantiles)},
            groups=groups if (folder / "groups.npy").exists() else None,
            times=without_padding(times[..., None], lengths)[:, 0] if (folder / "times.npy").exists() else None,
        )  # fmt: skip
        return make_set("arrays", cases)

    def files(self) -> list[Path]:
        beside = ("X", "y", "lengths", "groups", "times")
        names = [f"{name}{part}" for name in beside for part in ("", "_val", "_test")]
        return [self.place() / f"{name}.npy" for name in (*names, "sample_weight")]

    def needs_gradient(self) -> bool:
        with suppress(OSError, ValueError):  # what cannot be read is told when it is
            X, y = (np.load(self.place() / f"{name}.npy", "r") for name in "Xy")
            return (self.place() / "times.npy").exists() or self._kind(X.shape, y) == "steps"
        return False

    def _kind(self, shape: tuple[int, ...], y: np.ndarray) -> str:
        """What y means beside X of this shape, unless it is given."""
        whole = y.ndim == 2 and y.shape == shape[:2] and y.dtype.kind in "bui"
        text = y.ndim == 2 and y.dtype.kind in "US"
        return self.kind or ("steps" if (whole or text) and y.shape[1] > 1 else guess_kind(y))


RECIPES = {
    "best": Recipe(
        {"d_model": 64, "n_layers": 4, "dropout": 0.1},
        {"lr": 5e-3, "weight_decay": 0.01, "batch_size": 32, "epochs": 30, "schedule": "one-cycle", "warmup": 0.3},
    )
}
"""Of all own recordings."""
TASKS = (Task("arrays", ArraysOptions(), RECIPES, "folder", closed_form="features"),)


def read_levels(given: str | Sequence[float] | None) -> tuple[float, ...]:
    """Return levels of quantiles in rising order, from text with commas or numbers.

    >>> read_levels("0.9, 0.1"), read_levels(None)
    ((0.1, 0.9), ())
    """
    try:
        words = [word for word in given.split(",") if word.strip()] if isinstance(given, str) else given
        levels = tuple(sorted(float(level) for level in (() if words is None else words)))
    except (TypeError, ValueError):
        levels = (math.nan,)
    if not all(0 < level < 1 for level in levels) or len({*levels}) < len(levels):
        raise OptionError(f"quantiles is {given!r}, expected different numbers between 0 and 1, such as 0.1,0.5,0.9.")
    return levels


def _file(folder: Path, name: str, part: str) -> Path:
    return folder / (f"{name}.npy" if part == "train" else f"{name}_{part}.npy")


def _column(path: Path, size: int, kinds: str, expected: str) -> np.ndarray:
    """An array with one number or text for each case (cases,); bytes are decoded."""
    values = read_npy(path)
    if values.shape != (size,) or values.dtype.kind not in kinds:
        raise DataError(f"{path}: shape {values.shape} of {values.dtype}, expected {size} {expected}, one per case.")
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _read_part(folder: Path, part: str) -> tuple[np.ndarray, ...]:
    """X (cases, length, channels) float32, y, lengths, groups ("" without) and times (0 without) of a part, checked."""
    place = {name: _file(folder, name, part) for name in ("X", "y", "lengths", "groups", "times")}
    X, y = read_npy(place["X"]), read_npy(place["y"])
    if X.ndim not in (2, 3) or X.dtype.kind not in "buif" or 0 in X.shape:
        raise DataError(f"{place['X']}: shape {X.shape} of {X.dtype}, expected numbers (cases, length, channels).")
    y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
    if y.ndim not in (1, 2) or len(y) != len(X) or 0 in y.shape or y.dtype.kind not in "buifU":
        raise DataError(f"{place['y']}: shape {y.shape} of {y.dtype}, expected numbers or text "
                        f"({len(X)},) or ({len(X)}, k), one row per case of X.")  # fmt: skip
    X, lengths, groups = X.reshape(*X.shape[:2], -1), np.full(len(X), X.shape[1]), np.full(len(X), "")
    if (path := place["lengths"]).exists():
        lengths = _column(path, len(X), "iu", f"whole numbers from 1 to {X.shape[1]}")
        if lengths.min() < 1 or lengths.max() > X.shape[1]:
            raise DataError(f"{path}: {lengths.min()} to {lengths.max()}, expected {len(X)} whole numbers from 1 to "
                            f"{X.shape[1]}.")  # fmt: skip
        X[np.arange(X.shape[1]) >= lengths[:, None]] = 0.0  # padding may hold anything
    if (folder / "groups.npy").exists():
        groups = _column(place["groups"], len(X), "buiUS", "whole numbers or text").astype(str)
    times = np.zeros(X.shape[:2])
    if (folder / "times.npy").exists():
        times = _read_times(place["times"], lengths, X.shape[:2])
    return to_float32(X, place["X"]), y, lengths.astype(np.int64), groups, times


def _read_times(path: Path, lengths: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """When samples were taken (cases, length) float64, increasing up to the length of each case."""
    times = read_npy(path)
    if times.shape != shape or times.dtype.kind not in "uif":
        raise DataError(f"{path}: shape {times.shape} of {times.dtype}, expected numbers {shape}, one for each sample.")
    for case, length in enumerate(lengths):
        check_times(times[case, :length].astype(np.float64), f"{path}, case {case}")
    return times.astype(np.float64)
