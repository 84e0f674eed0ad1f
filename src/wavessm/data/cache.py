"""Arrays that were costly to prepare, kept on disk and checked before use. Loaders call `cached`.

An entry is a folder named after a hash of what it was made from (names, sizes and times of the files, options), with a
.npy file per array and their checksums. It is written under another name and moved into place. A damaged entry is built
again with a log line; a disk that is full or read-only only costs the time saved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")


class Prepared(NamedTuple):
    """Arrays by name, and notes that go into JSON; notes["bad"] lists files that could not be read, with the reason."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]

    def bad_files(self, skip_bad: bool, where: str) -> tuple[str, ...]:
        """Return the bad files with `skip_bad`; without, raise the first as `DataError`."""
        bad: dict[str, str] = self.notes["bad"]
        if bad and not skip_bad:
            more = f" ({len(bad) - 1} more are bad)" if len(bad) > 1 else ""
            raise DataError(f"{next(iter(bad.values()))}{more} Mend or remove it, or leave it out with skip_bad.")
        if bad:
            log.warning("%s: %d bad files left out: %s", where, len(bad), ", ".join(list(bad)[:10]))
        return tuple(bad)


def read_each(
    names: list[str], read: Callable[[str], np.ndarray], where: Any
) -> tuple[np.ndarray, list[str], dict[str, str]]:
    """Return what `read` makes of every name, stacked, the names, and the bad ones with the reason.

    A file is bad where `read` raises `DataError`, or returns another shape than that of the first.
    """
    values: np.ndarray | None = None
    good: list[str] = []
    bad: dict[str, str] = {}
    for name in names:
        try:
            array = read(name)
            if values is not None and array.shape != values.shape[1:]:
                raise DataError(f"{name}: shape {array.shape}, the files before it have {values.shape[1:]}.")
        except DataError as reason:
            bad[name] = str(reason)
            continue
        if values is None:
            values = np.empty((len(names), *array.shape), array.dtype)
        values[len(good)] = array
        good.append(name)
    if values is None:
        first = next(iter(bad.values()), "")
        raise DataError(f"{where}: none of {len(bad)} files could be read; the first: {first}")
    return values[: len(good)], good, bad


def cached(
    name: str, folder: Path, files: Iterable[Path], options: dict[str, Any], build: Callable[[], Prepared]
) -> Prepared:
    """Return what `build` returns, from the cache where a sound entry is there.

    Args:
        name: of the entry.
        folder: of the data; entries are in its .wavessm-cache, or in $WAVESSM_CACHE.
        files: files and folders that the result depends on.
        options: other values that it depends on, JSON-able.
        build: prepares the arrays. Cached ones are views of files, private to this process.
    """
    key = json.dumps({"files": fingerprint(files, folder), "format": 3, **options}, sort_keys=True)
    place = Path(os.environ.get("WAVESSM_CACHE") or folder / ".wavessm-cache")
    place /= f"{name}-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
    if place.is_dir():
        try:
            return _read(place, key)
        except (OSError, ValueError, KeyError, TypeError, EOFError) as reason:
            log.warning("cache %s is damaged (%s): building it again", place, reason)
            shutil.rmtree(place, ignore_errors=True)
    prepared = build()
    partial = place.with_name(f"{place.name}.{secrets.token_hex(6)}.partial")
    try:
        partial.mkdir(parents=True)
        sums = {}
        for each, array in prepared.arrays.items():
            np.save(partial / f"{each}.npy", array)
            sums[each] = _crc(np.ascontiguousarray(array))
        (partial / "notes.json").write_text(json.dumps({"key": key, "sums": sums, "notes": prepared.notes}))
        with suppress(FileExistsError):  # another process was faster
            os.replace(partial, place)
    except OSError as reason:
        log.warning("cache %s not written (%s): continuing without", place, reason)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return prepared


def _read(folder: Path, key: str) -> Prepared:
    about = json.loads((folder / "notes.json").read_text())
    if about["key"] != key:
        raise ValueError("made from something else")
    arrays = {}
    for name, crc in about["sums"].items():
        arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="c").view(np.ndarray)
        if _crc(arrays[name]) != crc:
            raise ValueError(f"array {name} does not match its checksum")
    return Prepared(arrays, about["notes"])


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def fingerprint(paths: Iterable[Path], base: Path) -> str:
    """Return a hash of names relative to `base`, sizes, modification times and, in up to 32 files, the first kilobytes.

    Folders are walked, hidden entries left out. Names are relative, so a set may move with its cache; the content keeps
    apart sets that differ in nothing else (unpacked archives often share their times).
    """
    digest = hashlib.blake2b(digest_size=16)
    entries = sorted(entry for path in paths for entry in _entries(path))
    for name, size, time in entries:
        digest.update(f"{os.path.relpath(name, base)}\0{size}\0{time}\n".encode())
    for name, _, _ in entries[:: max(1, -(-len(entries) // 32))]:
        with suppress(FileNotFoundError), open(name, "rb") as file:
            digest.update(file.read(4096))
    return digest.hexdigest()


def _entries(path: Path | str) -> Iterator[tuple[str, int, int]]:
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path):
        about = os.stat(path, follow_symlinks=os.path.exists(path))  # a link to nothing is for its reader
        yield os.fspath(path), about.st_size, about.st_mtime_ns
        return
    for name in os.listdir(path):
        if not name.startswith("."):
            yield from _entries(os.path.join(path, name))


def checksum(folder: Path, files: Iterable[Path]) -> str:
    """Digest that tells files from others: names below `folder` and contents; of WAV files, names and sizes."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in files if path.is_file()):
        digest.update(f"{os.path.relpath(path, folder)}\0{path.stat().st_size}\n".encode())
        if path.suffix.lower() != ".wav":
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()
