"""Pathfinder and Path-X drawn by their published rules, in the layout that `wavessm.data` reads.

A batch of pictures appears under its name when it is whole, its metadata last: a stopped generator resumes with the
batches that have none. Picture i depends on the seed and on i alone.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from wavessm.errors import DataError
from wavessm.training.checkpoint import replacing, write_json
from wavessm_lab.generate.parallel import in_order
from wavessm_lab.generate.snakes import draw_picture
from wavessm_lab.generate.strokes import CONTOUR_LENGTH, DISTRACTOR_LENGTH, STYLES
from wavessm_lab.tasks.pathfinder import COUNT, LEVEL, RECORD, SIZES, pillow

_BATCH = {32: 1000, 128: 200}


class _PictureBatch(NamedTuple):
    folder: str
    size: int
    seed: int
    batch: int
    first: int  # number of the first picture in the set
    pictures: int
    as_published: bool


def generate_pathfinder(
    root: str | Path,
    name: str = "pathfinder",
    count: int = COUNT,
    seed: int = 0,
    workers: int = 0,
    show: Callable[[int, int], None] | None = None,
    as_published: bool = False,
) -> dict[str, float]:
    """Write a set of `count` pictures below `root`, or what is left of it. name: pathfinder (32 × 32) or pathx (128).

    as_published: paths may touch, as in the release; see `snakes`. show: called with (pictures done, pictures in all)
    after every batch. Returns sums over the whole set, what was drawn before a stop included: `pictures`, `joined`,
    pairs of paths tried (`attempts`), `distractors`, shares of pixels that are not black (`bright`), mean pixels.
    """
    pillow()
    size = SIZES[name]
    folder = Path(root) / f"pathfinder{size}" / LEVEL
    _agree(folder, {"count": count, "seed": seed, "batch": _BATCH[size], "as_published": as_published, "generator": 2})
    sums: dict[str, float] = {}
    jobs = []
    for batch, first in enumerate(range(0, count, _BATCH[size])):
        pictures = min(_BATCH[size], count - first)
        if (folder / "metadata" / f"{batch}.npy").exists():
            _add(sums, json.loads((folder / "statistics" / f"{batch}.json").read_text()))
        else:
            jobs.append(_PictureBatch(str(folder), size, seed, batch, first, pictures, as_published))
    if show is not None:
        show(int(sums.get("pictures", 0)), count)
    for part in in_order(_draw_batch, jobs, min(workers or os.cpu_count() or 1, max(1, len(jobs)))):
        _add(sums, part)
        if show is not None:
            show(int(sums.get("pictures", 0)), count)
    return sums


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value


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
        write_json(record, wanted)
    for name in ("metadata", "imgs", "statistics"):
        (folder / name).mkdir(exist_ok=True)
    for left in (folder / "imgs").glob(".*.partial"):
        shutil.rmtree(left)


def _draw_batch(job: _PictureBatch) -> dict[str, float]:
    """Draw and write one batch."""
    Image = pillow()
    folder, style = Path(job.folder), STYLES[job.size]
    sums: dict[str, float] = {}
    partial = folder / "imgs" / f".{job.batch}.{secrets.token_hex(4)}.partial"
    partial.mkdir()
    lines = []
    for i in range(job.pictures):
        picture = draw_picture(
            job.size, random.Random(f"pathfinder {job.size} {job.seed} {job.first + i}"), job.as_published
        )
        Image.fromarray(picture.pixels).save(partial / f"sample_{i}.png")
        lines.append(
            f"imgs/{job.batch} sample_{i}.png {i} {picture.label} {style.continuity} {CONTOUR_LENGTH} "
            f"{DISTRACTOR_LENGTH} {style.paddle_length} {style.thickness} {picture.margin} 1\n"
        )
        own = {"pictures": 1, "joined": picture.label, "attempts": picture.attempts,
               "distractors": len(picture.distractors), "bright": float((picture.pixels > 0).mean()),
               "mean": float(picture.pixels.mean())}  # fmt: skip
        _add(sums, own)
    final = folder / "imgs" / str(job.batch)
    if final.exists():  # moved, but its metadata were never written
        shutil.rmtree(final)
    os.replace(partial, final)
    write_json(folder / "statistics" / f"{job.batch}.json", sums)
    with replacing(folder / "metadata" / f"{job.batch}.npy") as file:
        file.write("".join(lines).encode())
    return sums
