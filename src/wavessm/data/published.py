"""Published sets under a folder: which are there, whether they are complete, where they come from.

Modules of `datasets/` describe their sets in `PUBLISHED`; `fetch.py` downloads them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wavessm.data.task import modules
from wavessm.errors import DataError, unknown_name


class Finding(NamedTuple):
    """One line of `check_set`: level is "ok", "note" or "problem"."""

    level: str
    text: str


class Row(NamedTuple):
    """One line of `list_sets`."""

    name: str
    present: bool
    size: int  # bytes on disk
    licence: str
    published: str


@dataclass(frozen=True)
class Published:
    """A published set.

    Attributes:
        licence: its licence, as the publisher states it.
        homepage: where it is published.
        options: the `PublishedOptions` that read it.
        cases: published numbers of training, validation and test cases.
        symbols: published number of symbols, of sets of tokens.
        check: options → findings; None compares the numbers of cases and symbols.
        url: file or archive to download; "" where only a person can, and `remark` says how.
        place: what it becomes below the data folder.
        inside: folder of the archive that becomes it; "" for the whole archive.
        sha256: digest of the download, as published.
        remark: a note for `wavessm data fetch`.
    """

    licence: str
    homepage: str
    options: Any
    cases: tuple[int, int, int] = (0, 0, 0)
    symbols: int = 0
    check: Callable[[Any], list[Finding]] | None = None
    url: str = ""
    place: str = ""
    inside: str = ""
    sha256: str | None = None
    remark: str = ""

    def at(self, root: str | Path) -> Any:
        """Return the options for a data folder; files that cannot be read are left out and listed."""
        names = {field.name for field in dataclasses.fields(self.options)}
        return dataclasses.replace(self.options, root=str(root), **({"skip_bad": True} if "skip_bad" in names else {}))


def published() -> dict[str, Published]:
    """Return name → description of every published set."""
    return {name: each for module in modules() for name, each in getattr(module, "PUBLISHED", {}).items()}


def get_published(name: str) -> Published:
    """Return the description of one set; an unknown name is refused with the closest match."""
    known = published()
    if name not in known:
        raise unknown_name("data set", name, known)
    return known[name]


def list_sets(root: str | Path) -> list[Row]:
    """Return every published set, whether it is under `root`, its size and source."""
    rows = []
    for name, known in published().items():
        try:
            files = known.at(root).files()
        except DataError:
            files = []
        rows.append(Row(name, bool(files), sum(map(_size, files)), known.licence, known.homepage))
    return rows


def check_set(root: str | Path, name: str) -> list[Finding]:
    """Check a set under `root`: files, counts, checksums; one finding each."""
    known = get_published(name)
    options = known.at(root)
    try:
        options.files()
        if known.check is not None:
            return known.check(options)
        data = options.load(0)
    except DataError as reason:
        return [Finding("problem", str(reason))]
    findings = [Finding("problem", f"{file} cannot be read") for file in data.info.skipped[:20]]
    found = (len(data.train), len(data.val), len(data.test))
    findings.append(expect("training, validation and test cases", found, known.cases))
    return findings + ([expect("symbols", len(data.info.symbols), known.symbols)] if known.symbols else [])


def expect(what: str, found: object, expected: object) -> Finding:
    """Return "ok" where both are equal, else a problem that names both."""
    if found == expected:
        return Finding("ok", f"{what}: {found}")
    return Finding("problem", f"{what}: {found}, expected {expected}")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
