"""Your own data: arrays in a folder, or a CSV file to forecast. Recordings in folders are in `signals`."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from wavessm.data.cases import About, Cases, guess_kind, make_set
from wavessm.data.dates import guess_dates
from wavessm.data.series import WindowOptions, read_series, window_sets
from wavessm.data.signals import read_npy
from wavessm.data.source import KINDS, DataSet
from wavessm.data.tables import read_table
from wavessm.errors import DataError, OptionError

log = logging.getLogger("wavessm.data")


def load_arrays(folder: str | Path, kind: str | None = None, seed: int = 0) -> DataSet:
    """X.npy (cases, length, channels) or (cases, length), y.npy, and lengths.npy where cases are padded.

    y (cases,) of whole numbers or text are classes, (cases, k) of 0 and 1 labels, other numbers values to predict;
    `kind` ("multiclass", "multilabel", "regression") overrides that. X_val.npy, y_val.npy, X_test.npy, y_test.npy (and
    lengths_…) are used where they are there; otherwise 15 % each are drawn from the training cases, by class.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one with X.npy and y.npy.")
    read = {"train": _read_part(folder, "")}
    for part in ("val", "test"):
        if (folder / f"X_{part}.npy").exists() or (folder / f"y_{part}.npy").exists():
            read[part] = _read_part(folder, f"_{part}")
    main = read["train"]
    for part, (X, y, _) in read.items():
        if X.shape[1:] != main[0].shape[1:] or y.shape[1:] != main[1].shape[1:]:
            raise DataError(f"{folder / f'X_{part}.npy'}: cases have shape {X.shape[1:]} and targets {y.shape[1:]}, in "
                            f"X.npy and y.npy {main[0].shape[1:]} and {main[1].shape[1:]}.")  # fmt: skip
    kind = kind or guess_kind(main[1])
    if kind not in KINDS or kind == "forecast":
        raise OptionError(f"load_arrays: kind is {kind!r}, expected multiclass, multilabel or regression.")
    if main[0].shape[1] < main[0].shape[2]:
        log.warning("X.npy is read as (cases, length, channels) = %s: more channels than steps", main[0].shape)
    sizes = [len(X) for X, _, _ in read.values()]
    part_of = np.repeat(list(read), sizes)

    def name(case: int) -> str:
        suffix = "" if part_of[case] == "train" else f"_{part_of[case]}"
        return f"{folder / f'X{suffix}.npy'}, case {case - int(np.argmax(part_of == part_of[case]))}"

    X, y, lengths = (np.concatenate([arrays[i] for arrays in read.values()]) for i in range(3))
    return make_set("arrays", Cases(X, lengths, y, part_of, name, str(folder)), About(kind), seed)


def _read_part(folder: Path, suffix: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X (cases, length, channels) float32, y and lengths of one part, checked against each other."""
    files = {name: folder / f"{name}{suffix}.npy" for name in ("X", "y", "lengths")}
    X, y = read_npy(files["X"]), read_npy(files["y"])
    if X.ndim not in (2, 3) or X.dtype.kind not in "buif" or 0 in X.shape:
        raise DataError(f"{files['X']}: shape {X.shape} of {X.dtype}, expected numbers (cases, length, channels).")
    if y.ndim not in (1, 2) or len(y) != len(X):
        raise DataError(f"{files['y']}: shape {y.shape}, expected ({len(X)},) or ({len(X)}, k), one row per case of X.")
    if y.dtype.kind not in "buifUS" or 0 in y.shape:
        raise DataError(f"{files['y']}: shape {y.shape} of {y.dtype}, expected numbers or text.")
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{files['y']}: bytes that are not text in UTF-8; save the labels as text.") from None
    X = X.reshape(*X.shape[:2], -1).astype(np.float32)
    lengths = np.full(len(X), X.shape[1])
    if files["lengths"].exists():
        lengths = read_npy(files["lengths"])
        if lengths.shape != (len(X),) or lengths.dtype.kind not in "iu":
            raise DataError(
                f"{files['lengths']}: shape {lengths.shape} of {lengths.dtype}, expected {len(X)} whole numbers."
            )
        if lengths.min() < 1 or lengths.max() > X.shape[1]:
            raise DataError(f"{files['lengths']}: from {lengths.min()} to {lengths.max()}, expected 1 to {X.shape[1]}.")
        X[np.arange(X.shape[1]) >= lengths[:, None]] = 0.0  # padding may hold anything
    return X, y, lengths.astype(np.int64)


def checksum(folder: Path, files: Iterable[Path]) -> str:
    """What tells files below a folder from others: their names and contents; of WAV files, names and sizes."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in files if path.is_file()):
        digest.update(f"{os.path.relpath(path, folder)}\0{path.stat().st_size}\n".encode())
        if path.suffix.lower() != ".wav":
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def load_csv(
    path: str | Path,
    target: str | None = None,
    horizon: int = 24,
    context: int = 96,
    date_column: str | None = None,
    timeenc: int = 0,
    eval_stamp: bool = False,
) -> DataSet:
    """A table of rows in time to forecast: `target` alone, or all columns where it is None.

    date_column=None takes a column named date, datetime, timestamp or time (in any case) where there is one; if it
    holds numbers alone, it is left out. Without dates there are no marks.
    The first 70 % of the rows train, the next 10 % validate, the last 20 % test.
    """
    path = Path(path)
    options = WindowOptions(context, horizon, timeenc, eval_stamp)
    columns = None if target is None else [target]
    if date_column is None:
        table = read_table(path)
        date_column, dated = guess_dates(table)
        others = [str(name) for name in table.columns if name != date_column]
        if date_column is not None and not dated and others:
            log.warning(
                "%s: column %r holds numbers, not dates; it is left out and rows have no dates", path, date_column
            )
            columns, date_column = columns or others, None
    series = read_series(path, columns, date_column)
    if series.seconds is not None and np.unique(np.diff(series.seconds)).size > 1:
        log.warning("%s: rows are not evenly spaced in time; they are taken as if they were", path)
    rows = len(series.values)
    if rows < context + horizon:
        raise DataError(f"{path}: {rows} rows, fewer than context {context} + horizon {horizon}; give more rows, or a "
                        f"shorter context or horizon.")  # fmt: skip
    train, test = int(0.7 * rows), int(0.2 * rows)
    val = rows - train - test
    parts = {"train": (0, train), "val": (train, train + val), "test": (train + val, rows)}
    return window_sets("csv", series, parts, options)
