"""`wavessm data fetch`: every published set from its official source, unpacked where its loader looks for it.

An archive is downloaded into `.downloads` below the data folder (`download`), unpacked beside its final place and moved
there when it is whole. The sums are those that tensorflow/datasets, torchaudio, torchvision and the releases give.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from wavessm.data.datasets import arena, forecast, pathfinder, ptbxl, speech
from wavessm.data.datasets import image as cifar
from wavessm.data.download import Patience, Show, download
from wavessm.errors import DataError, unknown_name


@dataclasses.dataclass(frozen=True)
class Official:
    """Where a set is published. Without `url` it cannot be fetched, and `remark` says what to do.

    place: what it becomes below the data folder. inside: the folder of the archive that becomes it, "" for all of it.
    """

    licence: str
    page: str
    url: str = ""
    place: str = ""
    inside: str = ""
    sha256: str | None = None
    remark: str = ""


_PTBXL = "ptb-xl-a-large-publicly-available-electrocardiography-dataset-1.0.3"
_ETT = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"
_ARENA = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
_SPEECH = "https://storage.googleapis.com/download.tensorflow.org/data"
_BY_HAND = "its publisher keeps it on a shared drive: download it by hand into forecasting/"
_ETT_SUMS = {
    "ETTh1": "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    "ETTh2": "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
    "ETTm1": "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
}


def _of_arena(place: str, remark: str) -> Official:
    return Official("Apache 2.0 (its code)", pathfinder.PUBLISHED, _ARENA, place, place, remark=remark)


OFFICIAL = {
    "ptbxl": Official(
        "CC BY 4.0",
        ptbxl.PUBLISHED,
        f"https://physionet.org/static/published-projects/ptb-xl/{_PTBXL}.zip",
        "ptbxl",
        _PTBXL,
        remark="the release brings SHA256SUMS.txt: `wavessm data check ptbxl` compares every file",
    ),
    **{
        name: Official("CC BY-ND 4.0", forecast.SETS[name].published, f"{_ETT}/{name}.csv",
                       f"forecasting/{name}.csv", sha256=digest)
        for name, digest in _ETT_SUMS.items()
    },
    **{name: Official("see the publisher", forecast.SETS[name].published, remark=_BY_HAND) for name in ("WTH", "ECL")},
    "speech": Official(
        "CC BY 4.0",
        speech.PUBLISHED,
        f"{_SPEECH}/speech_commands_v0.02.tar.gz",
        "speech_commands_v0.02",
        sha256="af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
    ),
    "speech-30": Official(
        "CC BY 4.0",
        speech.PUBLISHED,
        f"{_SPEECH}/speech_commands_v0.01.tar.gz",
        "speech_commands_v0.01",
        sha256="743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
    ),
    "listops": _of_arena("listops-1000", "or make it: wavessm data generate listops"),
    "text": Official(
        "none stated; cite Maas et al. 2011",
        arena.IMDB,
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "aclImdb",
        "aclImdb",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    ),
    "retrieval": _of_arena("tsv_data", "the texts are those of the ACL Anthology Network"),
    "image": Official(
        "none stated; cite Krizhevsky 2009",
        cifar.PUBLISHED,
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        "cifar-10-batches-py",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    "pathfinder": _of_arena("pathfinder32/curv_contour_length_14", "or make it: wavessm data generate pathfinder"),
    "pathx": _of_arena("pathfinder128/curv_contour_length_14", "or make it: wavessm data generate pathx"),
}  # fmt: skip


class Fetched(NamedTuple):
    """Where a set is now; sha256 of what was downloaded, None where it was there already."""

    path: Path
    sha256: str | None


def fetch_set(
    root: str | Path,
    name: str,
    patience: Patience | None = None,
    keep: bool = False,
    show: Show | None = None,
) -> Fetched:
    """Bring a set to `root`. keep: leave the archive in .downloads, for the next set of the same release.

    An archive that lies there already, put there by hand, is checked and unpacked without any network.
    """
    if name not in OFFICIAL:
        raise unknown_name("data set", name, OFFICIAL)
    official, root = OFFICIAL[name], Path(root)
    if not official.url:
        raise DataError(
            f"{name} cannot be fetched: {official.remark} below {root}. It is published at {official.page}."
        )
    final = root / official.place
    if final.exists():
        return Fetched(final, None)
    archive = root / ".downloads" / PurePosixPath(official.url).name
    try:
        digest = download(official.url, archive, official.sha256, patience, show)
    except DataError as reason:
        hint = f" {official.remark[0].upper()}{official.remark[1:]}." if official.remark.startswith("or make") else ""
        raise DataError(f"{name}: {reason}{hint}") from reason
    final.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".csv":
        os.replace(archive, final)
    else:
        _unpack(archive, official, final)
        if not keep:
            archive.unlink()
    return Fetched(final, digest)


def _unpack(archive: Path, official: Official, final: Path) -> None:
    """The wanted folder of an archive, first beside its final place, then moved there."""
    beside = final.with_name(f".{final.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    files = 0
    try:
        with _members(archive) as members:
            for name, opened in members:
                below = _below(name, official.inside)
                if below is None:
                    continue
                target = beside / below
                target.parent.mkdir(parents=True, exist_ok=True)
                with opened() as source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                files += 1
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as reason:
        archive.unlink()
        raise DataError(f"{archive}: damaged ({reason}); it was removed, fetch it again.") from reason
    else:
        if not files:
            raise DataError(f"{archive}: no {official.inside} in it; has the publisher changed the archive?")
        os.replace(beside, final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


Member = tuple[str, Callable[[], IO[bytes]]]


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[Member]]:
    """Names of the plain files in an archive and how to open them; links and devices are passed over."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            plain = (info for info in packed.infolist() if not info.is_dir())
            yield ((info.filename, partial(packed.open, info)) for info in plain)
        return
    with tarfile.open(archive, "r|*") as stream:  # as a stream: an archive may have millions of members
        yield ((info.name, partial(_tar_file, stream, info)) for info in stream if info.isfile())


def _tar_file(stream: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = stream.extractfile(info)
    assert file is not None  # it is a plain file
    return file


def _below(name: str, inside: str) -> Path | None:
    """Path of a member below the wanted folder, wherever in the archive that is; None for others.

    >>> str(_below("lra_release/lra_release/listops-1000/basic_val.tsv", "listops-1000"))
    'basic_val.tsv'
    >>> _below("../etc/passwd", "") is None
    True
    """
    parts = [part for part in PurePosixPath(name).parts if part != "."]
    if ".." in parts or PurePosixPath(name).is_absolute():
        return None
    wanted = list(PurePosixPath(inside).parts)
    for at in range(len(parts) - len(wanted)):
        if parts[at : at + len(wanted)] == wanted:
            return Path(*parts[at + len(wanted) :])
    return None
