"""One file over HTTP: goes on where a cut connection left off, checked, and under its name only when it is whole.

`fetch` says what to download; nothing here knows a data set.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import http.client
import json
import os
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from wavessm.errors import DataError, OptionError

Show = Callable[[int, int], None]  # bytes done, bytes in all (0: not known)
_CHUNK = 1 << 18
_MOST_CUTS = 1000
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long to wait for a server: seconds without a byte, tries without progress, seconds before the second try."""

    timeout: float = 30.0
    tries: int = 6
    pause: float = 1.0

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.tries < 1 or self.pause < 0:
            raise OptionError(f"download: timeout {self.timeout}, tries {self.tries}, pause {self.pause}; expected "
                              "timeout > 0, tries ≥ 1, pause ≥ 0.")  # fmt: skip


class _Cut(Exception):
    """The connection ended early; trying again may help."""


def download(
    url: str, path: Path, sha256: str | None = None, patience: Patience | None = None, show: Show | None = None
) -> str:
    """Bring `url` to `path`; returns its SHA-256. A file that is there already is only checked.

    Meanwhile it is called `path`.partial; a later call goes on with it. A file with a wrong sum is removed and fetched
    once more from the start, then refused.
    """
    patience = patience or Patience()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    for last in (False, True):
        if not path.exists():
            _complete(url, partial, patience, show)
        there = path if path.exists() else partial
        digest = digest_of(there)
        if sha256 is None or digest == sha256:
            if there is partial:
                os.replace(partial, path)
            _note(partial).unlink(missing_ok=True)
            return digest
        there.unlink()
        _note(partial).unlink(missing_ok=True)
        if last:
            raise DataError(
                f"{url}: SHA-256 is {digest}, expected {sha256}; damaged on its way, twice, or changed by its "
                "publisher. It was removed."
            )
    raise AssertionError("unreachable")


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(partial: Path) -> Path:
    """What is known about the file that a partial one is a part of."""
    return partial.with_name(partial.name + ".json")


def _complete(url: str, partial: Path, patience: Patience, show: Show | None) -> None:
    """Try until the partial file is whole."""
    idle = 0
    for _ in range(_MOST_CUTS):
        before = _size(partial)
        try:
            _go_on(url, partial, patience, show)
            return
        except _Cut as reason:
            idle = 0 if _size(partial) > before else idle + 1
            if idle >= patience.tries:
                raise DataError(
                    f"{url}: {reason}; gave up after {idle} tries without progress, {_size(partial):,} bytes are kept. "
                    "Run it again to go on from there."
                ) from None
            time.sleep(min(60.0, patience.pause * 2.0 ** max(0, idle - 1)))
    raise DataError(f"{url}: cut {_MOST_CUTS} times; {_size(partial):,} bytes are kept.")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _go_on(url: str, partial: Path, patience: Patience, show: Show | None) -> None:
    """One connection, from the end of the partial file on."""
    have, known = _size(partial), _read_note(partial, url)
    request = urllib.request.Request(url, headers={"User-Agent": "wavessm"})
    if have and known.get("mark"):
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known["mark"])
    elif have:  # nothing says that the file is still the same
        have = 0
    try:
        with urllib.request.urlopen(request, timeout=patience.timeout) as answer:
            _receive(answer, url, partial, have, show)
    except urllib.error.HTTPError as reason:
        if reason.code == 416 and have:  # nothing behind what we have: begin again, the sums decide
            partial.unlink()
            raise _Cut("the server has no more than is here") from reason
        if reason.code in (408, 425, 429) or reason.code >= 500:
            raise _Cut(f"the server says {reason.code} {reason.reason}") from reason
        raise DataError(f"{url}: the server says {reason.code} {reason.reason}.") from reason
    except urllib.error.URLError as reason:
        cause = reason.reason
        lost = isinstance(cause, socket.gaierror) or getattr(cause, "errno", None) in _NO_ROUTE
        if lost or (isinstance(cause, ConnectionRefusedError) and not have):
            why, path = (
                getattr(cause, "strerror", None) or cause,
                partial.with_name(partial.name.removesuffix(".partial")),
            )
            raise DataError(
                f"cannot reach {urlsplit(url).netloc} ({why}); is there a network? Elsewhere, fetch {url} and put it "
                f"at {path}."
            ) from reason
        raise _Cut(f"no connection ({cause})") from reason
    except (TimeoutError, ConnectionError, http.client.HTTPException) as reason:
        silent = isinstance(reason, TimeoutError)
        raise _Cut(f"no byte for {patience.timeout:g} seconds" if silent else f"cut ({reason})") from reason


def _receive(answer: http.client.HTTPResponse, url: str, partial: Path, have: int, show: Show | None) -> None:
    start, total = 0, int(answer.headers.get("Content-Length") or 0)
    if answer.status == 206:
        unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
        first, _, size = rest.partition("-")[0], None, rest.rpartition("/")[2]
        start, total = (int(first), int(size)) if first.isdigit() and size.isdigit() else (0, 0)
        if start != have or unit != "bytes":
            partial.unlink(missing_ok=True)
            raise _Cut("the server sent another part than was asked for")
    _check_room(partial, total - start)
    mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    _note(partial).write_text(json.dumps({"url": url, "mark": "" if mark.startswith("W/") else mark}))
    done = start
    with open(partial, "r+b" if start else "wb") as file:
        file.seek(start)
        if show is not None:
            show(done, total)
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            if show is not None:
                show(done, total)
    if total and done < total:
        raise _Cut(f"cut at {done:,} of {total:,} bytes")


def _check_room(partial: Path, needed: int) -> None:
    free = shutil.disk_usage(partial.parent).free
    if needed > free:
        raise DataError(f"{partial.parent}: {needed:,} bytes are to come, {free:,} are free; make room or give --root.")


def _read_note(partial: Path, url: str) -> dict[str, str]:
    try:
        note = json.loads(_note(partial).read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and note.get("url") == url else {}
