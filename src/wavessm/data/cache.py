"""Arrays that were costly to prepare, kept on disk and never trusted without a check.

A cache file is named after a hash of what it was made from (names, sizes and times of the files, options) and carries
the checksum of every array. It is written under another name and moved into place, so a killed run leaves no half file.
A file that does not check out is rebuilt with a log line; a disk that is full or read-only only costs the time saved.
Loaders call `cached`; nothing else reads these files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavessm.errors import DataError

log = logging.getLogger("wavessm.data")

_MAGIC = b"wavessm cache 1\n"
_ALIGN = 64


class Prepared(NamedTuple):
    """Arrays by name, and notes that go into JSON."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]


class _Damaged(Exception):
    """Why a cache file is not used."""


def left_out(prepared: Prepared, skip_bad: bool, where: str) -> tuple[str, ...]:
    """Return the files that could not be read, listed in the notes under "bad".

    Args:
        prepared: arrays of the others.
        skip_bad: whether to continue without them; else the first is raised as `DataError`.
        where: what they belong to, for the log.
    """
    bad: dict[str, str] = prepared.notes["bad"]
    if bad and not skip_bad:
        more = f" ({len(bad) - 1} more are bad)" if len(bad) > 1 else ""
        raise DataError(f"{next(iter(bad.values()))}{more} Mend or remove it, or leave it out with skip_bad.")
    if bad:
        log.warning("%s: %d bad files left out: %s", where, len(bad), ", ".join(list(bad)[:10]))
    return tuple(bad)


def cache_folder(root: Path) -> Path:
    """Where caches of the data under `root` live: $WAVESSM_CACHE, or a hidden folder beside the data."""
    chosen = os.environ.get("WAVESSM_CACHE")
    return Path(chosen) if chosen else Path(root) / ".wavessm-cache"


def fingerprint(paths: Iterable[Path], base: Path) -> str:
    """Hash of names below `base`, sizes, modification times and, in up to 32 of the files, the first kilobytes.

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


def _entries(path: Path | str) -> Iterable[tuple[str, int, int]]:
    if not os.path.isdir(path):
        about = os.stat(path)
        yield os.fspath(path), about.st_size, about.st_mtime_ns
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _entries(entry.path)
            else:
                about = entry.stat(follow_symlinks=os.path.exists(entry.path))  # a link to nothing is for its reader
                yield entry.path, about.st_size, about.st_mtime_ns


def cached(folder: Path, name: str, key: dict[str, Any], build: Callable[[], Prepared]) -> Prepared:
    """What `build` returns, from the cache where a sound file for this key is there.

    key: everything the result depends on, JSON-able. Arrays from the cache are views of the file, private to this
    process: writing to them does not reach the disk.
    """
    identity = json.dumps(key, sort_keys=True)
    path = folder / f"{name}-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}.bin"
    if path.exists():
        try:
            return _read(path, identity)
        except (_Damaged, OSError, ValueError, KeyError, TypeError) as reason:
            log.warning("cache %s is damaged (%s): building it again", path, reason)
    prepared = build()
    try:
        _write(path, identity, prepared)
    except OSError as reason:
        log.warning("cache %s not written (%s): going on without", path, reason)
    return prepared


def _write(path: Path, identity: str, prepared: Prepared) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in prepared.arrays.items()}
    entries, offset = [], 0
    for name, array in arrays.items():
        entry = {"name": name, "dtype": array.dtype.str, "shape": array.shape, "offset": offset, "crc": _crc(array)}
        entries.append(entry)
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    head = json.dumps({"key": identity, "arrays": entries, "size": offset, "notes": prepared.notes}).encode()
    head += b" " * (-(len(_MAGIC) + 12 + len(head)) % _ALIGN)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(_MAGIC + len(head).to_bytes(8, "little") + zlib.crc32(head).to_bytes(4, "little") + head)
            for array in arrays.values():
                file.write(array.data if array.size else b"")
                file.write(b"\0" * (-array.nbytes % _ALIGN))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path, identity: str) -> Prepared:
    with open(path, "rb") as file:
        start = file.read(len(_MAGIC) + 12)
        if len(start) < len(_MAGIC) + 12 or not start.startswith(_MAGIC):
            raise _Damaged("not a cache file of this version")
        length = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 8], "little")
        if length > path.stat().st_size:
            raise _Damaged("its header is longer than the file")
        head = file.read(length)
    if zlib.crc32(head) != int.from_bytes(start[-4:], "little"):
        raise _Damaged("its header does not match its checksum")
    about = json.loads(head)
    if about["key"] != identity:
        raise _Damaged("made from something else")
    begin = len(start) + len(head)
    if path.stat().st_size != begin + about["size"]:
        raise _Damaged(f"{path.stat().st_size} bytes, expected {begin + about['size']}")
    arrays = {}
    for entry in about["arrays"]:
        shape, dtype = tuple(entry["shape"]), np.dtype(entry["dtype"])
        if 0 in shape:
            array = np.zeros(shape, dtype)
        else:
            array = np.memmap(path, dtype, mode="c", offset=begin + entry["offset"], shape=shape).view(np.ndarray)
        if _crc(array) != entry["crc"]:
            raise _Damaged(f"array {entry['name']} does not match its checksum")
        arrays[entry["name"]] = array
    return Prepared(arrays, about["notes"])


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data) if array.size else 0
