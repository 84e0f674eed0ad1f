"""Your own arrays: X.npy and y.npy in a folder. `cases.py` splits, encodes and scales them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from wavessm.data.cases import Cases, guess_kind, make_set, without_padding
from wavessm.data.files import read_npy, to_float32
from wavessm.data.info import DataSet
from wavessm.data.task import OwnOptions, Recipe, Task
from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")


@dataclass(frozen=True)
class ArraysOptions(OwnOptions):
    """X.npy (cases, length, channels) or (cases, length), y.npy, and lengths.npy where cases are padded.

    X_val.npy, y_val.npy, X_test.npy, y_test.npy (and lengths_…) are used where they are there; otherwise 15 % each are
    drawn from the training cases, by class. groups.npy, one name or number per case, keeps the cases of a group in one
    part; sample_weight.npy weighs the cases in the training loss. NaN in X is a missing sample.
    """

    folder: str = ""
    """Folder with X.npy (cases, length, channels) and y.npy; lengths.npy, groups.npy, sample_weight.npy,
    X_test.npy, y_test.npy if there are any."""
    kind: Literal["multiclass", "multilabel", "regression"] | None = None
    """What y means; None takes whole numbers and text for classes, columns of 0 and 1 for labels."""

    def load(self, seed: int) -> DataSet:
        folder = self.place()
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; expected one with X.npy and y.npy.")
        read = {"train": _read_part(folder, "")}
        for part in ("val", "test"):
            if (folder / f"X_{part}.npy").exists() or (folder / f"y_{part}.npy").exists():
                read[part] = _read_part(folder, f"_{part}")
        main = read["train"]
        for part, (X, y, _) in read.items():
            if X.shape[1:] != main[0].shape[1:] or y.shape[1:] != main[1].shape[1:]:
                raise DataError(f"{folder / f'X_{part}.npy'}: cases have shape {X.shape[1:]}, targets {y.shape[1:]}, "
                                f"in X.npy and y.npy {main[0].shape[1:]} and {main[1].shape[1:]}.")  # fmt: skip
        if main[0].shape[1] < main[0].shape[2]:
            log.warning("X.npy is read as (cases, length, channels) = %s: more channels than steps; swap its last two "
                        "axes if yours differ", main[0].shape)  # fmt: skip
        part_of = np.repeat(list(read), [len(X) for X, _, _ in read.values()])

        def name(case: int) -> str:
            suffix = "" if part_of[case] == "train" else f"_{part_of[case]}"
            return f"{folder / f'X{suffix}.npy'}, case {case - int(np.argmax(part_of == part_of[case]))}"

        X, y, lengths = (np.concatenate([arrays[i] for arrays in read.values()]) for i in range(3))
        kind = self.kind or guess_kind(main[1])
        sizes = {part: len(each) for part, (each, _, _) in read.items()}
        groups, weights = _beside(folder, "groups", sizes), _beside(folder, "sample_weight", {"train": sizes["train"]})
        if weights is not None:
            weights = np.concatenate([weights, np.ones(len(X) - len(weights))])
        about = y, part_of, name, str(folder), kind
        cases = Cases(without_padding(X, lengths), lengths, *about, groups=groups, weights=weights)
        return make_set("arrays", cases)

    def files(self) -> list[Path]:
        names = [f"{name}{part}" for name in ("X", "y", "lengths", "groups") for part in ("", "_val", "_test")]
        return [self.place() / f"{name}.npy" for name in (*names, "sample_weight")]


RECIPES = {
    "best": Recipe(
        {"d_model": 64, "n_layers": 4, "dropout": 0.1},
        {"lr": 5e-3, "weight_decay": 0.01, "batch_size": 32, "epochs": 30, "schedule": "one-cycle", "warmup": 0.3},
    )
}
"""Of all own recordings."""
TASKS = (Task("arrays", ArraysOptions(), RECIPES, "folder", closed_form="features"),)


def _beside(folder: Path, what: str, sizes: dict[str, int]) -> np.ndarray | None:
    """groups.npy as text, or sample_weight.npy as numbers: one for each case of the parts; None without the file."""
    if not (folder / f"{what}.npy").exists():
        return None
    found = []
    for part, size in sizes.items():
        path = folder / (f"{what}.npy" if part == "train" else f"{what}_{part}.npy")
        values = read_npy(path)
        kinds, words = ("buiUS", "whole numbers or text") if what == "groups" else ("buif", "numbers")
        if values.shape != (size,) or values.dtype.kind not in kinds:
            raise DataError(
                f"{path}: shape {values.shape} of {values.dtype}, expected {words} ({size},), one per case."
            )
        values = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        found.append(values.astype(str if what == "groups" else np.float64))
    return np.concatenate(found)


def _read_part(folder: Path, suffix: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X (cases, length, channels) float32, y and lengths of one part, checked against each other."""
    files = {name: folder / f"{name}{suffix}.npy" for name in ("X", "y", "lengths")}
    X, y = read_npy(files["X"]), read_npy(files["y"])
    if X.ndim not in (2, 3) or X.dtype.kind not in "buif" or 0 in X.shape:
        raise DataError(f"{files['X']}: shape {X.shape} of {X.dtype}, expected numbers (cases, length, channels).")
    y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
    if y.ndim not in (1, 2) or len(y) != len(X) or 0 in y.shape or y.dtype.kind not in "buifU":
        raise DataError(f"{files['y']}: shape {y.shape} of {y.dtype}, expected numbers or text ({len(X)},) or "
                        f"({len(X)}, k), one row per case of X.")  # fmt: skip
    X = X.reshape(*X.shape[:2], -1)
    lengths = np.full(len(X), X.shape[1])
    if files["lengths"].exists():
        lengths = read_npy(files["lengths"])
        whole = lengths.shape == (len(X),) and lengths.dtype.kind in "iu"
        if not whole or lengths.min() < 1 or lengths.max() > X.shape[1]:
            raise DataError(f"{files['lengths']}: shape {lengths.shape} of {lengths.dtype}, expected {len(X)} whole "
                            f"numbers from 1 to {X.shape[1]}.")  # fmt: skip
        X[np.arange(X.shape[1]) >= lengths[:, None]] = 0.0  # padding may hold anything
    return to_float32(X, files["X"]), y, lengths.astype(np.int64)
