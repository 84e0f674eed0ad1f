"""Arrays that were costly to prepare, kept on disk. Loaders call `cached`.

An entry is a folder named after a hash of what it was made from (names, sizes and times of the files, options), with a
.npy file per array. It is written under another name and moved into place, so it is whole or absent; a disk that is
full or read-only only costs the time saved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")
T = TypeVar("T")


class Prepared(NamedTuple):
    """Arrays by name, and notes that go into JSON; notes["bad"] lists files that could not be read, with the reason."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]

    def bad_files(self, skip_bad: bool, where: str) -> tuple[str, ...]:
        """Return the bad files with `skip_bad`; without, raise the first as `DataError`."""
        bad: dict[str, str] = self.notes["bad"]
        if bad and not skip_bad:
            first, more = next(iter(bad.values())), f" ({len(bad) - 1} more are bad)" if len(bad) > 1 else ""
            raise DataError(f"{first}{more} Mend or remove it, or leave it out with --skip-bad (skip_bad=True).")
        if bad:
            log.warning("%s: %d bad files left out: %s", where, len(bad), ", ".join(list(bad)[:10]))
        return tuple(bad)


def read_each(names: Iterable[str], read: Callable[[str], T], where: Any) -> tuple[dict[str, T], dict[str, str]]:
    """Return what `read` makes of every name, and the reason for each bad one: where `read` raises `DataError`."""
    good: dict[str, T] = {}
    bad: dict[str, str] = {}
    for name in names:
        try:
            good[name] = read(name)
        except DataError as reason:
            bad[name] = str(reason)
    if not good:
        raise DataError(f"{where}: none of {len(bad)} files could be read; the first: {next(iter(bad.values()), '')}")
    return good, bad


def sums_of(cases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum and the sum of squares of each case of whole numbers (cases, …): (cases,) int64 both."""
    wide = (case.astype(np.int64) for case in cases)
    sums, squares = zip(*((case.sum(), np.square(case).sum()) for case in wide), strict=True)
    return np.array(sums), np.array(squares)


def cached(name: str, folder: Path, files: Iterable[Path], options: dict, build: Callable[[], Prepared]) -> Prepared:
    """Return what `build` returns, from the cache where an entry of that name is there: below the folder of the data in
    .wavessm-cache, or in $WAVESSM_CACHE. Arrays are then views of files, private to this process.

    The result depends on `files`, which may be folders, and on `options`, other values that go into JSON.
    """
    key = json.dumps({"files": fingerprint(files), "format": 4, **options}, sort_keys=True)
    place = Path(os.environ.get("WAVESSM_CACHE") or folder / ".wavessm-cache")
    place /= f"{name}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"
    if place.is_dir():
        try:
            about = json.loads((place / "notes.json").read_text())
            arrays = {each: np.load(place / f"{each}.npy", mmap_mode="c").view(np.ndarray) for each in about["arrays"]}
            return Prepared(arrays, about["notes"])
        except (OSError, ValueError, KeyError, TypeError, EOFError) as reason:
            log.warning("cache %s is damaged (%s): building it again", place, reason)
            shutil.rmtree(place, ignore_errors=True)
    prepared = build()
    partial = place.with_name(f"{place.name}.{secrets.token_hex(6)}.partial")
    try:
        partial.mkdir(parents=True)
        for each, array in prepared.arrays.items():
            np.save(partial / f"{each}.npy", array)
        about = {"arrays": list(prepared.arrays), "notes": prepared.notes}
        (partial / "notes.json").write_text(json.dumps(about))
        with suppress(FileExistsError):  # another process was faster
            os.replace(partial, place)
    except OSError as reason:
        log.warning("cache %s not written (%s): continuing without", place, reason)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return prepared


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a hash of names, sizes and modification times; folders are walked, hidden entries left out."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(found for given in paths for found in _walk(os.path.abspath(given))):
        about = os.stat(path, follow_symlinks=os.path.exists(path))  # a link to nothing is for its reader
        digest.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _walk(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        for name in os.listdir(path):
            if not name.startswith("."):
                yield from _walk(os.path.join(path, name))
    elif os.path.lexists(path):
        yield path


def checksum(folder: Path, files: Iterable[Path]) -> str:
    """Digest that tells files from others: names below `folder` and contents; of WAV files, names and sizes."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in files if path.is_file()):
        digest.update(f"{os.path.relpath(path, folder)}\0{path.stat().st_size}\n".encode())
        if path.suffix.lower() != ".wav":
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()
