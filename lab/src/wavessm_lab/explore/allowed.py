"""The files that the page may read: those under the folders it was given, and what was uploaded to it.

A path is resolved first and then has to lie under one of the folders; readers hold the names inside of tables and WFDB
headers to the same rule. What is not a plain file or is too large is not opened. Uploads are stored under the hash of
their content, so that links to them stay valid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from wavessm.data.files import inside
from wavessm.errors import DataError

T = TypeVar("T")

LARGEST = 16 * 2**20
"""Bytes of a file that is read or uploaded."""
KEPT = 64
"""Number of uploads that are stored; the oldest are deleted first."""
LISTED = 200
DEPTH, VISITED = 5, 5000
"""How deep, and how many folders, are looked through for runs and signals."""
SIGNALS = (".csv", ".wav", ".npy")


def default_keep() -> Path:
    """Return the folder of uploads: below $WAVESSM_CACHE, or the user's cache folder."""
    return Path(os.environ.get("WAVESSM_CACHE") or Path.home() / ".cache" / "wavessm") / "explore"


class AllowedFiles:
    """Checks paths before anything reads them.

    Args:
        folders: Where files may be read.
        keep: Folder of uploads, made when there is one.
    """

    def __init__(self, folders: Sequence[Path], keep: Path) -> None:
        self.folders = tuple(Path(folder) for folder in folders)
        self.keep = Path(keep)

    def inside(self, path: str | Path) -> Path:
        """Return the path if it lies under one of the folders, links resolved; else raise `DataError`."""
        return inside(path, (*self.folders, self.keep))

    def file(self, path: str | Path, largest: int = LARGEST) -> Path:
        """Return the path of a file that may be read: inside, plain, and not larger than `largest` bytes."""
        found = self.inside(path)
        if not found.is_file():
            raise DataError(f"{path}: no such file.")
        size = found.stat().st_size
        if size > largest:
            raise DataError(f"{path}: {size / 2**20:.1f} MiB, expected at most {largest / 2**20:.0f} MiB; cut it.")
        return found

    def tree(self, path: str | Path) -> Path:
        """Return a folder that a loader may read: no link in it leads out of the given folders."""
        found = self.inside(path)
        for folder, below, names in os.walk(found):
            for name in (*below, *names):
                if os.path.islink(os.path.join(folder, name)):
                    self.inside(os.path.join(folder, name))
        return found

    # -- what is there --------------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """Return run folders under the given ones, up to a few levels down."""
        found = (str(folder) for folder, names in self._walk() if "run.json" in names)
        return list(islice(found, LISTED))

    def signals(self) -> list[str]:
        """Return files that may hold a signal and are not part of a run."""
        found = (
            str(folder / name)
            for folder, names in self._walk()
            if "run.json" not in names
            for name in sorted(names)
            if Path(name).suffix.lower() in SIGNALS
        )
        return list(islice(found, LISTED))

    def _walk(self) -> Iterator[tuple[Path, list[str]]]:
        for top in self.folders:
            for folder, below, names in islice(os.walk(top), VISITED):
                depth = len(Path(folder).relative_to(top).parts)
                below[:] = sorted(name for name in below if not name.startswith(".")) if depth < DEPTH else []
                yield Path(folder), names

    # -- uploads --------------------------------------------------------------------------------------------

    def receive(self, name: str, contents: str, read: Callable[[Path], T]) -> tuple[Path, T]:
        """Store an upload (`contents` as a data URL) if `read` accepts it; the file and what was read."""
        shown = Path(name.replace("\\", "/")).name or "upload"
        data = _bytes(contents, shown)
        if Path(shown).suffix.lower() not in SIGNALS:
            raise DataError(f"{shown}: unknown kind of file; expected {', '.join(SIGNALS)}.")
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(shown).stem).strip("._")[:40] or "upload"
        path = self.keep / f"{hashlib.sha256(data).hexdigest()[:12]}-{stem}{Path(shown).suffix.lower()}"
        new = not path.exists()
        self.keep.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        try:
            result = read(path)
        except Exception as reason:
            if new:
                path.unlink(missing_ok=True)
            if isinstance(reason, ValueError):
                raise DataError(str(reason).replace(str(path), shown)) from reason
            raise
        self._forget()
        return path, result

    def _forget(self) -> None:
        files = sorted((path for path in self.keep.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime)
        for path in files[:-KEPT]:
            path.unlink(missing_ok=True)


def _bytes(contents: str, name: str) -> bytes:
    """What a data URL holds."""
    encoded = contents.partition(",")[2]
    if len(encoded) * 3 // 4 > LARGEST:
        raise DataError(f"{name}: {len(encoded) * 3 / 4 / 2**20:.1f} MiB, expected at most {LARGEST // 2**20} MiB.")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as reason:
        raise DataError(f"{name}: the upload is damaged; try again.") from reason
    if not data:
        raise DataError(f"{name}: the file is empty.")
    return data
