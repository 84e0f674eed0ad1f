"""Files of a run that are either complete or absent: checkpoints, JSON, tables.

A file is written beside its place and moved there when it is on the disk, so a kill or a full disk while saving leaves
the old one. Checkpoints are read with `weights_only=True`: loading one runs no code of its author. They are zip
archives whose entries have CRC-32 checksums, which PyTorch writes but does not verify; `load` does.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import shlex
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from wavessm.errors import NotFiniteError, WaveSSMError

FORMAT = "wavessm-run"
VERSION = 1
"""Raised when an older run can no longer be read."""


class RunError(WaveSSMError):
    """A run folder or checkpoint that cannot be read, or a run that cannot continue."""


class DivergedError(RunError, NotFiniteError):
    """Loss, score or weights that are not finite, or a loss far above its first value."""


class Interrupted(Exception):
    """The user or the machine asked the run to stop; it is saved. Arguments: folder and step."""


def resume_command(folder: Path) -> str:
    """Return what to type to resume a run."""
    return f"wavessm train --resume {shlex.quote(str(folder))}"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when all of it is on the disk; until then, what was there stays.

    Raises:
        RunError: the file could not be written; says why and what to do.
    """
    part = path.parent / f"{path.name}.part"
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as reason:
        part.unlink(missing_ok=True)
        if not isinstance(reason, OSError | RuntimeError) or isinstance(reason, WaveSSMError):
            raise
        full = not isinstance(reason, OSError) or reason.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free some space" if full else "Give a file in a folder that is there and can be written to"
        kept = "; the previous one is kept" if path.is_file() else ""
        raise RunError(f"{path}: could not be written ({_first_line(reason)}){kept}. {remedy}.") from reason


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint."""
    import torch

    with replacing(path) as file:
        torch.save({"format": FORMAT, "version": VERSION, **content}, file)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def read_rows(path: Path, last_step: float = float("inf")) -> list[dict[str, float]]:
    """Return the rows of metrics.csv up to a step; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]
    return [{**row, "step": int(row["step"])} for row in rows if row["step"] <= last_step]


def load(path: Path, run_id: str = "") -> dict[str, Any]:
    """Read a checkpoint of ours; anything else is refused in one line, and so is one of another run than `run_id`."""
    import torch

    if not path.is_file():
        raise RunError(f"{path}: no such checkpoint; give a run folder written by `wavessm train`.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        content: Any = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as reason:  # torch raises whatever its parsing meets
        raise RunError(f"{path}: not a checkpoint of wavessm ({_first_line(reason)}).") from reason
    if damaged:
        raise RunError(f"{path}: damaged ({damaged} does not have its checksum); bring a copy back, or train again.")
    check_format(content, path)
    own = content.get("run") or run_id  # the first runs had no id
    if run_id and own != run_id:
        raise RunError(f"{path}: belongs to another run ({own}, not {run_id} as in run.json); bring its own back.")
    return content


def check_format(content: Any, path: Path) -> None:
    """Refuse what was not written by `wavessm train`, or by a version whose files cannot be read."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{path}: not written by wavessm; give a run folder of `wavessm train`.")
    if (version := content.get("version")) != VERSION:
        raise RunError(f"{path}: written by another version of wavessm (format {version}, this one reads {VERSION}); "
                       "use that version or train again.")  # fmt: skip


def _first_line(reason: BaseException) -> str:
    text = str(getattr(reason, "strerror", None) or reason).strip().splitlines()
    return text[0][:120] if text else type(reason).__name__
