"""The files that the page may read: those under the folders it was given, and single files that it was given.

A path is resolved first and then has to lie under one of the folders; readers hold the names inside of tables and WFDB
headers to the same rule. What is not a plain file or is too large is not opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from wavessm.data.files import inside
from wavessm.errors import DataError

LARGEST = 16 * 2**20
"""Bytes of a file that is read."""
LISTED = 200
DEPTH, VISITED = 5, 5000
"""How deep, and how many folders, are looked through for runs and signals."""


class AllowedFiles:
    """Checks paths before anything reads them; `folders` are folders and files that may be read."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(Path(folder) for folder in folders)

    def inside(self, path: str | Path) -> Path:
        """Return the path if it lies under one of the folders, links resolved; else raise `DataError`."""
        return inside(path, self.folders)

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

    def files(self, *kinds: str) -> list[str]:
        """Return files of these kinds that are not part of a run."""
        below = (folder / name for folder, names in self._walk() if "run.json" not in names for name in sorted(names))
        found = (str(path) for path in chain(filter(Path.is_file, self.folders), below) if path.suffix.lower() in kinds)
        return list(islice(found, LISTED))

    def _walk(self) -> Iterator[tuple[Path, list[str]]]:
        for top in self.folders:
            for folder, below, names in islice(os.walk(top), VISITED):
                depth = len(Path(folder).relative_to(top).parts)
                below[:] = sorted(name for name in below if not name.startswith(".")) if depth < DEPTH else []
                yield Path(folder), names
