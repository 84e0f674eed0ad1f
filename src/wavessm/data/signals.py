"""Folders of recordings: WAV files by class, and WFDB records with a table of labels.

Files are read once, padded to the longest and cached. A file that cannot be read is named; with `skip_bad` it is left
out and listed. `read_signal` reads one file of any kind, for prediction.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.cases import PARTS, About, Cases, make_set
from wavessm.data.source import DataSet
from wavessm.data.tables import counted, first_line, is_number, need_columns, numbers, read_table
from wavessm.data.wfdb_files import read_record
from wavessm.errors import DataError, MissingExtraError, OptionError

log = logging.getLogger("wavessm.data")

_PART_NAMES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
UNKNOWN_SIZE = 0xFFFFFFFF  # written by programs that stream into a WAV file


class Signal(NamedTuple):
    """One recording."""

    values: np.ndarray  # (length, channels) float32
    rate: float | None
    channels: tuple[str, ...]


def read_wav(path: str | Path) -> Signal:
    """A WAV file, whole: (length, channels) in [-1, 1] for PCM. Truncated and unreadable files raise `DataError`."""
    path = Path(path)
    values, rate = wav_samples(path, "float32")
    if not len(values):
        raise DataError(f"{path}: no samples in this WAV file.")
    if (gaps := np.argwhere(~np.isfinite(values))).size:
        raise DataError(f"{path}: NaN at sample {gaps[0][0]}, channel {gaps[0][1]} ({len(gaps)} in all).")
    return Signal(values, float(rate), ())


def wav_samples(path: Path, dtype: str) -> tuple[np.ndarray, int]:
    """Samples (length, channels) of a WAV file as `dtype`, and their rate; one that is not whole raises `DataError`."""
    check_riff(path)
    try:
        import soundfile
    except ImportError as reason:
        raise MissingExtraError("WAV files need soundfile; install it with pip install 'wavessm[train]'.") from reason
    try:
        return soundfile.read(path, dtype=dtype, always_2d=True)
    except (RuntimeError, OSError, ValueError) as reason:
        raise DataError(f"{path}: not a readable WAV file ({' '.join(str(reason).split())}).") from reason


def check_riff(path: Path) -> None:
    """Raise where the file is shorter than its own header says; libsndfile would read what is there without a word."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(12)
            if len(start) < 12 or start[8:] != b"WAVE" or start[:4] not in (b"RIFF", b"RIFX", b"RF64"):
                raise DataError(f"{path}: not a WAV file (no RIFF/WAVE header).")
            order = "big" if start[:4] == b"RIFX" else "little"
            position = 12
            while True:
                file.seek(position)
                head = file.read(8)
                if len(head) < 8:
                    raise DataError(f"{path}: truncated, it ends before its data.")
                length = int.from_bytes(head[4:], order)  # type: ignore[arg-type]
                position += 8 + length + length % 2
                if head[:4] == b"data":
                    break
    except OSError as reason:
        raise DataError(f"{path}: unreadable ({reason.strerror}).") from reason
    there = size - (position - length - length % 2)
    if length > there and length != UNKNOWN_SIZE and start[:4] != b"RF64":
        raise DataError(f"{path}: truncated, {there:,} bytes of sound, expected {length:,} by its header.")


def read_signal(path: str | Path) -> Signal:
    """One recording by its suffix: .wav, .npy (length,) or (length, channels), .csv (a column each, `date` left out;
    a first line of numbers alone is a sample), or a WFDB record (.hea, .dat).
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".wav":
        return read_wav(path)
    if suffix in (".hea", ".dat"):
        record = read_record(path)
        return Signal(record.values, record.rate, record.names)
    if suffix == ".csv":
        return _read_columns(path)
    if suffix == ".npy":
        values = read_npy(path)
        if values.ndim not in (1, 2) or values.dtype.kind not in "buif":
            raise DataError(f"{path}: shape {values.shape} of {values.dtype}, expected numbers (length, channels).")
        return Signal(values.reshape(len(values), -1).astype(np.float32), None, ())
    raise DataError(f"{path}: unknown kind of file {suffix or 'without suffix'!r}; expected .wav, .npy, .csv or .hea.")


def _read_columns(path: Path) -> Signal:
    """A CSV file; a first line with names and numbers is refused, since it may be a sample with a fault."""
    header = first_line(path)
    numeric = [is_number(name) for name in header if name.lower() != "date"]
    if any(numeric) and not all(numeric):
        raise DataError(f"{path}: the first line is {','.join(header)[:60]!r}; expected names or numbers, not both.")
    bare = any(numeric) and len(numeric) == len(header) and not counted(header)
    table = read_table(path, bare=bare)
    if len(table) == 0:
        raise DataError(f"{path}: no rows below the header.")
    names = [str(name) for name in table.columns if str(name).lower() != "date"]
    return Signal(numbers(table, names, path).astype(np.float32), None, () if bare else tuple(names))


def read_npy(path: Path) -> np.ndarray:
    """An array file; ragged ones (arrays of objects) and damaged ones are refused."""
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (ValueError, EOFError, OSError) as reason:
        if "allow_pickle" in str(reason) or "Object arrays" in str(reason):
            raise DataError(
                f"{path}: ragged (an array of objects), expected rows of one length: fill cases up with zeros and give "
                f"lengths.npy, or, for text, save it with astype(str)."
            ) from reason
        raise DataError(f"{path}: not a readable .npy file ({' '.join(str(reason).split())}).") from reason


def load_wav_folder(folder: str | Path, skip_bad: bool = False, seed: int = 0) -> DataSet:
    """WAV files by class: folder/<class>/*.wav, or folder/{train,val,test}/<class>/*.wav where the parts are given.

    Files may differ in length (batches carry the true ones), not in sampling rate or channels. Missing parts are
    drawn from the training files with `seed`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected {folder.name}/<class>/*.wav.")
    files, labels, parts = [], [], []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() != ".wav" or any(p.startswith(".") for p in path.relative_to(folder).parts):
            continue
        *above, label, _ = ("", *path.relative_to(folder).parts)
        if not label or label in _PART_NAMES:
            raise DataError(f"{path}: a WAV file outside of a class folder; expected {folder.name}/<class>/*.wav.")
        files.append(os.path.relpath(path, folder))
        labels.append(label)
        parts.append(_PART_NAMES.get(above[1].lower(), "") if len(above) > 1 else "")
    if not files:
        raise DataError(f"{folder}: no WAV file in it; expected {folder.name}/<class>/*.wav.")
    deepest = 3 if any(parts) else 2
    if (deep := next((file for file in files if len(Path(file).parts) > deepest), None)) is not None:
        raise DataError(
            f"{folder / deep}: too deep; expected {folder.name}/<class>/*.wav, with one of {', '.join(PARTS)} above "
            "the class or nothing."
        )
    table = _Table(folder, files, np.array(labels), np.array(parts), "multiclass", ())
    return _load("wav", table, lambda path: (read_wav(path), ()), skip_bad, seed)


def load_wfdb(
    folder: str | Path, labels_csv: str | Path | None = None, skip_bad: bool = False, seed: int = 0
) -> DataSet:
    """WFDB records with a table: columns `record` (path below the folder, without suffix), and either one column of
    classes or several of 0 and 1 (labels); an optional column `split` holds train, val or test. Records and classes are
    text as it is written (04015, NA).

    labels_csv=None takes labels.csv in the folder.
    """
    folder = Path(folder)
    path = folder / "labels.csv" if labels_csv is None else Path(labels_csv)
    table = read_table(path, text=True)
    need_columns(table, ["record"], path)
    if len(table) == 0:
        raise DataError(f"{path}: no rows below the header.")
    if (gaps := np.flatnonzero(table["record"].isna())).size:
        raise DataError(f"{path}: no record in line {table.index[gaps[0]]}; name it or drop the row.")
    names = [str(name) for name in table.columns if name not in ("record", "split")]
    if not names:
        raise DataError(f"{path}: column 'label' is missing; expected one of classes, or several of 0 and 1.")
    kind = "multiclass" if len(names) == 1 else "multilabel"
    targets = _classes(table, names[0], path) if kind == "multiclass" else _flags(table, names, path)
    classes = tuple(names) if kind == "multilabel" else ()
    files = [str(name) for name in table["record"]]
    listed = _Table(folder, files, targets, _parts(table, path), kind, classes)

    def read(path: str) -> tuple[Signal, tuple[str, ...]]:
        record = read_record(path)
        return Signal(record.values, record.rate, record.names), record.units

    return _load("wfdb", listed, read, skip_bad, seed)


def _classes(table: Any, name: str, path: Path) -> np.ndarray:
    """The labels of a column, (rows,) of text."""
    if (gaps := np.flatnonzero(table[name].isna())).size:
        raise DataError(f"{path}: no label in column {name!r}, line {table.index[gaps[0]]}; fill it or drop the row.")
    return table[name].astype(str).to_numpy(dtype=str)


def _flags(table: Any, names: list[str], path: Path) -> np.ndarray:
    """Columns of 0 and 1, (rows, columns)."""
    flags = numbers(table, names, path)
    if (odd := np.argwhere(~np.isin(flags, (0, 1)))).size:
        row, k = odd[0]
        raise DataError(f"{path}: {flags[row, k]:g} in column {names[k]!r}, line {table.index[row]}; expected 0 or 1.")
    return flags


def _parts(table: Any, path: Path) -> np.ndarray:
    """The part of every row, (rows,) of text; empty where the table has no column `split`."""
    if "split" not in table.columns:
        return np.full(len(table), "", dtype=str)
    parts = []
    for line, value in zip(table.index, table["split"], strict=True):
        if str(value).lower() not in _PART_NAMES:
            raise DataError(f"{path}: split is {value!r} in line {line}, expected {', '.join(PARTS)}.")
        parts.append(_PART_NAMES[str(value).lower()])
    return np.array(parts)


Read = Callable[[str], tuple[Signal, tuple[str, ...]]]
"""Reads a file: its signal, and the units of its channels where they are known."""


class _Table(NamedTuple):
    """Files below a folder with their targets and parts."""

    folder: Path
    files: list[str]
    targets: np.ndarray
    parts: np.ndarray
    kind: str
    classes: tuple[str, ...]


def _load(name: str, table: _Table, read: Read, skip_bad: bool, seed: int) -> DataSet:
    key = {"files": fingerprint([table.folder], table.folder), "names": table.files, "layout": 2}
    prepared = cached(cache_folder(table.folder), name, key, lambda: _read_all(table, read))
    bad: dict[str, str] = prepared.notes["bad"]
    if bad and not skip_bad:
        more = f" ({len(bad) - 1} more files are bad too)" if len(bad) > 1 else ""
        raise DataError(f"{next(iter(bad.values()))}{more} Mend or remove it, or go on without it with skip_bad.")
    if bad:
        log.warning("%s: %d bad files left out: %s", table.folder, len(bad), ", ".join(list(bad)[:10]))
    good = np.array([file not in bad for file in table.files])
    files = [file for file in table.files if file not in bad]
    values, lengths = np.array(prepared.arrays["values"]), np.array(prepared.arrays["lengths"])
    cases = Cases(
        values,
        lengths,
        table.targets[good],
        table.parts[good],
        lambda i: str(table.folder / files[i]),
        str(table.folder),
    )
    channels = tuple(prepared.notes["channels"])
    about = About(table.kind, table.classes, channels, prepared.notes["rate"], tuple(bad))
    return make_set(name, cases, about, seed)


def _format(signal: Signal, units: tuple[str, ...]) -> str:
    named = f" ({', '.join(signal.channels)})" if signal.channels else ""
    measured = f" in {', '.join(units)}" if units else ""
    return f"{signal.rate:g} Hz, {signal.values.shape[1]} channels{named}{measured}"


def _read_all(table: _Table, read: Read) -> Prepared:
    """Every sound file, padded: values (cases, length, channels), lengths (cases,). The most common format is that of
    the set; files that differ count as bad.
    """
    signals: dict[str, Signal] = {}
    formats: dict[str, str] = {}
    bad: dict[str, str] = {}
    for file in table.files:
        if file in signals:
            raise OptionError(f"{table.folder}: {file} is listed twice; list every record once.")
        try:
            signals[file], units = read(str(table.folder / file))
            formats[file] = _format(signals[file], units)
        except DataError as reason:
            bad[file] = str(reason)
    if not signals:
        raise DataError(
            f"{table.folder}: none of {len(bad)} files could be read; the first: {next(iter(bad.values()))}"
        )
    common = collections.Counter(formats.values()).most_common(1)[0][0]
    for file, found in formats.items():
        if found.lower().replace("µ", "u") != common.lower().replace("µ", "u"):
            bad[file] = f"{table.folder / file}: {found}; the others have {common}."
            del signals[file]
    _, rate, channels = first = next(iter(signals.values()))
    width = first.values.shape[1]
    lengths = np.array([len(signal.values) for signal in signals.values()], np.int64)
    values = np.zeros((len(signals), int(lengths.max()), width), np.float32)
    for row, signal in zip(values, signals.values(), strict=True):
        row[: len(signal.values)] = signal.values
    return Prepared({"values": values, "lengths": lengths}, {"bad": bad, "rate": rate, "channels": channels})
