"""`wavessm data fetch`: a published set from its official source, unpacked where its loader looks for it.

pooch downloads the archive into `.downloads` below the data folder and checks it; it is unpacked beside its final place
and moved there when it is complete. `published.py` says what a set is; the sums are those that tensorflow/datasets,
torchaudio, torchvision and the releases give.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from wavessm.data.published import Published, digest, get_published
from wavessm.errors import DataError, MissingExtraError

Show = Callable[[int, int], None]  # bytes done, bytes in all (0: not known)


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
    try:
        import pooch
        import requests
    except ImportError as reason:
        raise MissingExtraError("downloads need pooch: pip install 'wavessm[train]'.") from reason
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(timeout=timeout, progressbar=_Progress(show) if show else False)
    store = pooch.create(
        archive.parent, "", registry={archive.name: known.sha256}, urls={archive.name: known.url},
        retry_if_failed=max(0, tries - 1),
    )  # fmt: skip
    try:
        store.fetch(archive.name, downloader=downloader)
    except requests.HTTPError as reason:
        raise DataError(f"{known.url}: the server refuses it ({reason}).") from reason
    except requests.RequestException as reason:
        raise DataError(
            f"cannot download from {urlsplit(known.url).netloc} ({type(reason).__name__}); is there a network? "
            f"Elsewhere, fetch {known.url} and put it at {archive}."
        ) from reason
    except ValueError as reason:  # a wrong sum
        raise DataError(
            f"{known.url}: its SHA-256 is not {known.sha256}; damaged on its way or changed by its publisher. It was "
            "removed."
        ) from reason


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
