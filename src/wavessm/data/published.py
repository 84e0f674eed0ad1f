"""Published sets under a folder: which are there, whether they are complete, and how they come there.

Modules of `datasets/` describe their sets in `PUBLISHED`. To fetch one, pooch downloads its archive into `.downloads`
below the data folder and checks it; it is unpacked beside its final place and moved there when it is complete. The sums
are those that tensorflow/datasets, torchaudio, torchvision and the releases give.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from wavessm.data.task import modules
from wavessm.errors import DataError, import_extra, unknown_name

Show = Callable[[int, int], None]  # bytes done, bytes in all (0: not known)


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


# -- wavessm data fetch ----------------------------------------------------------------------------------------------


class Fetched(NamedTuple):
    """Where a set is now; sha256 of what was downloaded, None where it was there already."""

    path: Path
    sha256: str | None


def fetch_set(
    root: str | Path, name: str, timeout: float = 30.0, tries: int = 6, keep: bool = False, show: Show | None = None
) -> Fetched:
    """Bring a set to `root`. An archive that is in .downloads already is checked and unpacked without any network.

    Args:
        root: data folder.
        name: of the set, as `wavessm data list` shows it.
        timeout: seconds without a byte after which a try fails.
        tries: downloads to try.
        keep: leave the archive in .downloads, for the next set of the same release.
        show: called with bytes done and bytes in all.
    """
    known, root = get_published(name), Path(root)
    if not known.url:
        raise DataError(f"{name} cannot be fetched: {known.remark} below {root}. It is published at {known.homepage}.")
    final = root / known.place
    if final.exists():
        return Fetched(final, None)
    archive = root / ".downloads" / PurePosixPath(known.url).name
    try:
        _download(known, archive, timeout, tries, show)
    except DataError as reason:
        hint = f" {known.remark[0].upper()}{known.remark[1:]}." if known.remark.startswith("or make") else ""
        raise DataError(f"{name}: {reason}{hint}") from reason
    sha256 = digest(archive)
    final.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".csv":
        os.replace(archive, final)
    else:
        _unpack(archive, known, final)
        if not keep:
            archive.unlink()
    return Fetched(final, sha256)


class _Progress:
    """What pooch takes for a progress bar."""

    def __init__(self, show: Show) -> None:
        self.show, self.total, self.done = show, 0, 0

    def update(self, count: int) -> None:
        self.done = min(self.done + count, self.total) if self.total else self.done + count
        self.show(self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _download(known: Published, archive: Path, timeout: float, tries: int, show: Show | None) -> None:
    pooch, requests = (import_extra(name, "downloads") for name in ("pooch", "requests"))
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(timeout=timeout, progressbar=_Progress(show) if show else False)
    store = pooch.create(
        archive.parent, "", registry={archive.name: known.sha256}, urls={archive.name: known.url},
        retry_if_failed=max(0, tries - 1),
    )  # fmt: skip
    try:
        store.fetch(archive.name, downloader=downloader)
    except requests.RequestException as reason:
        what = (
            str(reason) if isinstance(reason, requests.HTTPError) else f"{type(reason).__name__}; is there a network?"
        )
        raise DataError(f"cannot download from {urlsplit(known.url).netloc} ({what}). Elsewhere, fetch {known.url} and "
                        f"put it at {archive}.") from reason  # fmt: skip
    except ValueError as reason:  # a wrong sum
        raise DataError(f"{known.url}: its SHA-256 is not {known.sha256}; damaged on its way or changed by its "
                        "publisher. It was removed.") from reason  # fmt: skip


def _unpack(archive: Path, known: Published, final: Path) -> None:
    """The wanted folder of an archive, first beside its final place, then moved there."""
    beside = final.with_name(f".{final.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        _extract(archive, known.inside, beside)
        if not beside.exists():
            raise DataError(f"{archive}: no {known.inside} in it; has the publisher changed the archive?")
        os.replace(beside, final)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as reason:
        archive.unlink()
        raise DataError(f"{archive}: damaged ({reason}); it was removed, fetch it again.") from reason
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _extract(archive: Path, inside: str, folder: Path) -> None:
    """The plain files below the folder `inside` of an archive; links and devices are passed over."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir() and (below := _below(info.filename, inside)):
                    info.filename = below
                    packed.extract(info, folder)
        return
    with tarfile.open(archive, "r|*") as stream:  # as a stream: an archive may have millions of members
        for member in stream:
            if member.isfile() and (below := _below(member.name, inside)):
                stream.extract(member.replace(name=below, deep=False), folder, filter="data")


def _below(name: str, inside: str) -> str | None:
    """Path of a member below the wanted folder, wherever in the archive that is; None for others.

    >>> _below("lra_release/lra_release/listops-1000/basic_val.tsv", "listops-1000")
    'basic_val.tsv'
    >>> _below("../etc/passwd", "") is None
    True
    """
    path = PurePosixPath(name)
    if ".." in path.parts or path.is_absolute():
        return None
    _, found, below = f"/{path}".partition(f"/{inside}/" if inside else "/")
    return below if found else None
