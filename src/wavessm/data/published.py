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

RETRIES = 5  # of a download that fails
Show = Callable[[int, int], None]  # bytes done, bytes in all (0: not known)


class Finding(NamedTuple):
    """One line of `check_set`: level is "ok" or "problem"."""

    level: str
    text: str


@dataclass(frozen=True)
class Published:
    """A published set."""

    licence: str  # as the publisher states it
    homepage: str
    options: Any  # the `PublishedOptions` that read it
    cases: tuple[int, int, int] = (0, 0, 0)  # published numbers of training, validation and test cases
    symbols: int = 0  # published number of symbols, of sets of tokens
    url: str = ""  # file or archive; "" where only a person can download it, and `remark` says how
    place: str = ""  # what it becomes below the data folder
    inside: str = ""  # folder of the archive that becomes it; "" for the whole archive
    sha256: str | None = None  # of the download, as published
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
    if name not in (known := published()):
        raise unknown_name("data set", name, known)
    return known[name]


def list_sets(root: str | Path) -> dict[str, int | None]:
    """Return the bytes on disk of every published set under `root`, None of those that are absent."""
    found: dict[str, int | None] = {}
    for name, known in published().items():
        try:
            paths = (path for file in known.at(root).files() for path in (file, *file.rglob("*")))
            found[name] = sum(path.stat().st_size for path in paths if path.is_file())
        except DataError:
            found[name] = None
    return found


def check_set(root: str | Path, name: str) -> list[Finding]:
    """Check a set under `root`: files, counts, checksums; one finding each."""
    known = get_published(name)
    options = known.at(root)
    try:
        files, data = options.files(), options.load(0)
    except DataError as reason:
        return [Finding("problem", str(reason))]
    findings = [Finding("problem", f"{file} cannot be read") for file in data.info.skipped[:20]]
    cases = (len(data.train), len(data.val), len(data.test))
    compared: dict[str, tuple[object, object]] = {"training, validation and test cases": (cases, known.cases)}
    if known.symbols:
        compared["symbols"] = len(data.info.symbols), known.symbols
    if known.sha256 and len(files) == 1 and files[0].is_file():
        compared["SHA-256"] = _digest(files[0]), known.sha256
    for what, (found, expected) in compared.items():
        wrong = f", expected {expected}" if found != expected else ""
        findings.append(Finding("problem" if wrong else "ok", f"{what}: {found}{wrong}"))
    return findings


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- wavessm data fetch ----------------------------------------------------------------------------------------------


def fetch_set(root: str | Path, name: str, show: Show | None = None) -> tuple[Path, str | None]:
    """Bring a set to `root`; `show` is called with bytes done and bytes in all.

    An archive that is in .downloads already is checked and unpacked without any network. Returns where the set is now,
    and the SHA-256 of what was downloaded: None where it was there already.
    """
    known, root = get_published(name), Path(root)
    if not known.url:
        raise DataError(f"{name} cannot be fetched: {known.remark} below {root}. It is published at {known.homepage}.")
    if (final := root / known.place).exists():
        return final, None
    archive = root / ".downloads" / PurePosixPath(known.url).name
    _download(name, known, archive, show)
    sha256 = _digest(archive)
    final.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".csv":
        os.replace(archive, final)
    else:
        _unpack(archive, known.inside, final)
        archive.unlink()
    return final, sha256


class _Progress:
    """What pooch takes for a progress bar."""

    def __init__(self, show: Show) -> None:
        self.show, self.total, self.done = show, 0, 0

    def update(self, count: int) -> None:
        self.done = min(self.done + count, self.total or self.done + count)
        self.show(self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _download(name: str, known: Published, archive: Path, show: Show | None) -> None:
    pooch, requests = (import_extra(name, "downloads") for name in ("pooch", "requests"))
    pooch.get_logger().setLevel("WARNING")
    store = pooch.create(
        archive.parent, "", registry={archive.name: known.sha256}, urls={archive.name: known.url},
        retry_if_failed=RETRIES,
    )  # fmt: skip
    try:
        store.fetch(archive.name, downloader=pooch.HTTPDownloader(progressbar=_Progress(show) if show else False))
    except requests.RequestException as reason:
        understood = isinstance(reason, requests.HTTPError)
        what = str(reason) if understood else f"{type(reason).__name__}; is there a network?"
        raise DataError(f"{name}: cannot download from {urlsplit(known.url).netloc} ({what}). Elsewhere, fetch "
                        f"{known.url} and put it at {archive}.") from reason  # fmt: skip
    except ValueError as reason:  # a wrong sum
        raise DataError(f"{name}: the SHA-256 of {known.url} is not {known.sha256}; damaged on its way or changed by "
                        "its publisher. It was removed.") from reason  # fmt: skip


def _unpack(archive: Path, inside: str, final: Path) -> None:
    """Unpack an archive beside its final place, and move its wanted folder there."""
    beside = final.with_name(f".{final.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, beside, "zip")  # passes over names that lead out of it
        else:
            shutil.unpack_archive(archive, beside, "tar", filter="data")  # refuses them
        if not (beside / inside).exists():
            raise DataError(f"{archive}: no {inside} in it; has the publisher changed the archive?")
        os.replace(beside / inside, final)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as reason:
        archive.unlink()
        raise DataError(f"{archive}: damaged ({reason}); it was removed, fetch it again.") from reason
    finally:
        shutil.rmtree(beside, ignore_errors=True)
