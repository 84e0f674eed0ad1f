"""Pathfinder and Path-X drawn by their published rules, in the layout that `wavessm.data` reads.

A batch of pictures appears under its name when it is whole, its metadata last: a stopped generator resumes with the
batches that have none. Picture i depends on the seed and on i alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from wavessm.data.datasets.pathfinder import COUNT, LEVEL, RECORD, SIZES, pillow
from wavessm.data.parallel import in_order
from wavessm.errors import DataError, check_int, unknown_name
from wavessm_lab.generate.snakes import draw_picture
from wavessm_lab.generate.strokes import STYLES

_BATCH = {32: 1000, 128: 200}


class _PictureBatch(NamedTuple):
    folder: str
    size: int
    seed: int
    batch: int
    first: int  # number of the first picture in the set
    pictures: int
    as_published: bool


@dataclasses.dataclass
class PictureStatistics:
    """Of the pictures of a generated set: to be held against the settings of the published one."""

    pictures: int = 0
    joined: int = 0
    attempts: int = 0
    distractors: int = 0
    bright: float = 0.0  # sum over pictures of the share of pixels that are not black
    mean: float = 0.0  # sum over pictures of the mean pixel

    def __iadd__(self, other: PictureStatistics) -> PictureStatistics:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    def lines(self) -> list[str]:
        """As text, a line each."""
        n = self.pictures
        return [
            f"pictures {n:,}, joined {100 * self.joined / n:.1f} %; pairs of paths tried for each "
            f"{self.attempts / n:.0f}",
            f"short paths a picture {self.distractors / n:.2f}; pixels not black {100 * self.bright / n:.1f} %, "
            f"mean pixel {self.mean / n:.1f}",
        ]


def generate_pathfinder(
    root: str | Path,
    name: str = "pathfinder",
    count: int = COUNT,
    seed: int = 0,
    workers: int = 0,
    show: Callable[[int, int], None] | None = None,
    as_published: bool = False,
) -> PictureStatistics:
    """Write a set of `count` pictures below `root`, or what is left of it. name: pathfinder (32 × 32) or pathx (128).

    The statistics are those of the whole set, what was drawn before a stop included. as_published: paths may touch, as
    in the release; see `snakes`. show: called with (pictures done, pictures in all) after every batch.
    """
    if name not in SIZES:
        raise unknown_name("set of pictures", name, SIZES)
    check_int(count, f"{name}: count", minimum=1)
    pillow()
    size = SIZES[name]
    folder = Path(root) / f"pathfinder{size}" / LEVEL
    _agree(folder, {"count": count, "seed": seed, "batch": _BATCH[size], "as_published": as_published, "generator": 2})
    jobs, statistics = [], PictureStatistics()
    for batch, first in enumerate(range(0, count, _BATCH[size])):
        pictures = min(_BATCH[size], count - first)
        if (folder / "metadata" / f"{batch}.npy").exists():
            statistics += PictureStatistics(**json.loads((folder / "statistics" / f"{batch}.json").read_text()))
        else:
            jobs.append(_PictureBatch(str(folder), size, seed, batch, first, pictures, as_published))
    if show is not None:
        show(statistics.pictures, count)
    for part in in_order(_draw_batch, jobs, min(workers or os.cpu_count() or 1, max(1, len(jobs)))):
        statistics += part
        if show is not None:
            show(statistics.pictures, count)
    return statistics


def _agree(folder: Path, wanted: dict[str, int]) -> None:
    """Start a set, or make sure that the one started there is the same; leftovers of a stopped run are removed."""
    record = folder / RECORD
    if record.exists():
        started = json.loads(record.read_text())
        if started != wanted:
            raise DataError(f"{folder}: started with {started}, asked for {wanted}; remove it or ask for the same.")
    elif (folder / "metadata").exists():
        raise DataError(f"{folder}: holds a set that was not generated here; give another folder.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _write_text(record, json.dumps(wanted))
    for name in ("metadata", "imgs", "statistics"):
        (folder / name).mkdir(exist_ok=True)
    for left in (folder / "imgs").glob(".*.partial"):
        shutil.rmtree(left)


def _rng(job: _PictureBatch, i: int) -> random.Random:
    return random.Random(f"pathfinder {job.size} {job.seed} {job.first + i}")


def _draw_batch(job: _PictureBatch) -> PictureStatistics:
    """Draw and write one batch."""
    Image = pillow()
    folder, style, statistics = Path(job.folder), STYLES[job.size], PictureStatistics()
    partial = folder / "imgs" / f".{job.batch}.{secrets.token_hex(4)}.partial"
    partial.mkdir()
    lines = []
    for i in range(job.pictures):
        picture = draw_picture(job.size, _rng(job, i), job.as_published)
        Image.fromarray(picture.pixels).save(partial / f"sample_{i}.png")
        lines.append(
            f"imgs/{job.batch} sample_{i}.png {i} {picture.label} {style.continuity} {style.contour_length} "
            f"{style.distractor_length} {style.paddle_length} {style.thickness} {picture.margin} 1\n"
        )
        statistics += PictureStatistics(
            1,
            picture.label,
            picture.attempts,
            len(picture.distractors),
            float((picture.pixels > 0).mean()),
            float(picture.pixels.mean()),
        )
    final = folder / "imgs" / str(job.batch)
    if final.exists():  # moved, but its metadata were never written
        shutil.rmtree(final)
    os.replace(partial, final)
    _write_text(folder / "statistics" / f"{job.batch}.json", json.dumps(dataclasses.asdict(statistics)))
    _write_text(folder / "metadata" / f"{job.batch}.npy", "".join(lines))
    return statistics


def _write_text(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    partial.write_text(text)
    os.replace(partial, path)
