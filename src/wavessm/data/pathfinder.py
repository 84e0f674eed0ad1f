"""Pathfinder and Path-X: sets of pictures on disk, generated or released, and as training takes them.

    pathfinder32/curv_contour_length_14/imgs/<b>/sample_<i>.png        pathfinder128/… for Path-X
                                       /metadata/<b>.npy               despite its name plain text, a line a picture
                                       /statistics/<b>.json            of generated sets: see `Statistics`

A batch of pictures appears under its name when it is whole, its metadata last: a generator that was stopped goes on
with the batches that have none. Picture i depends on the seed and on i alone.
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

import numpy as np
import torch

from wavessm.checks import whole
from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.parallel import in_order
from wavessm.data.snakes import draw_picture
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.data.strokes import STYLES, pillow
from wavessm.errors import DataError
from wavessm.registry import unknown_name

PUBLISHED = "https://github.com/google-research/long-range-arena"
SIZES = {"pathfinder": 32, "pathx": 128}
LEVEL = "curv_contour_length_14"
COUNT = 200_000
CLASSES = ("apart", "joined")
_BATCH = {32: 1000, 128: 200}
_SPLIT_SEED = 42
_RECORD = "generated.json"


class _Job(NamedTuple):
    folder: str
    size: int
    seed: int
    batch: int
    first: int  # number of the first picture in the set
    pictures: int
    as_published: bool


@dataclasses.dataclass
class Statistics:
    """Of the pictures of a generated set: to be held against the settings of the published one."""

    pictures: int = 0
    joined: int = 0
    attempts: int = 0
    distractors: int = 0
    bright: float = 0.0  # sum over pictures of the share of pixels that are not black
    mean: float = 0.0  # sum over pictures of the mean pixel

    def __iadd__(self, other: Statistics) -> Statistics:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    def lines(self) -> list[str]:
        """As text, a line each."""
        n = self.pictures
        return [
            f"pictures {n:,}, joined {100 * self.joined / n:.1f} %; pairs of paths begun for each "
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
) -> Statistics:
    """Write a set of `count` pictures below `root`, or what is left of it. name: pathfinder (32 × 32) or pathx (128).

    The statistics are those of the whole set, what was drawn before a stop included. as_published: paths may touch, as
    in the release; see `snakes`. show: called with (pictures done, pictures in all) after every batch.
    """
    if name not in SIZES:
        raise unknown_name("set of pictures", name, SIZES)
    whole(count, f"{name}: count", least=1)
    pillow()
    size = SIZES[name]
    folder = Path(root) / f"pathfinder{size}" / LEVEL
    _agree(folder, {"count": count, "seed": seed, "batch": _BATCH[size], "as_published": as_published, "generator": 2})
    jobs, statistics = [], Statistics()
    for batch, first in enumerate(range(0, count, _BATCH[size])):
        pictures = min(_BATCH[size], count - first)
        if (folder / "metadata" / f"{batch}.npy").exists():
            statistics += Statistics(**json.loads((folder / "statistics" / f"{batch}.json").read_text()))
        else:
            jobs.append(_Job(str(folder), size, seed, batch, first, pictures, as_published))
    if show is not None:
        show(statistics.pictures, count)
    for part in in_order(_draw_batch, jobs, min(workers or os.cpu_count() or 1, max(1, len(jobs)))):
        statistics += part
        if show is not None:
            show(statistics.pictures, count)
    return statistics


def _agree(folder: Path, wanted: dict[str, int]) -> None:
    """Begin a set, or make sure that the one begun there is the same; leftovers of a stopped run are removed."""
    record = folder / _RECORD
    if record.exists():
        begun = json.loads(record.read_text())
        if begun != wanted:
            raise DataError(f"{folder}: begun with {begun}, asked for {wanted}; remove it or ask for the same.")
    elif (folder / "metadata").exists():
        raise DataError(f"{folder}: holds a set that was not generated here; give another folder.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _write_text(record, json.dumps(wanted))
    for name in ("metadata", "imgs", "statistics"):
        (folder / name).mkdir(exist_ok=True)
    for left in (folder / "imgs").glob(".*.partial"):
        shutil.rmtree(left)


def _rng(job: _Job, i: int) -> random.Random:
    return random.Random(f"pathfinder {job.size} {job.seed} {job.first + i}")


def _draw_batch(job: _Job) -> Statistics:
    """Draw and write one batch."""
    Image, _ = pillow()
    folder, style, statistics = Path(job.folder), STYLES[job.size], Statistics()
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
        statistics += Statistics(
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


# -- reading --------------------------------------------------------------------------------------------------------


def load_pathfinder(
    root: str | Path, name: str = "pathfinder", center: bool = False, skip_bad: bool = False
) -> DataSet:
    """x (batch, size², 1) row by row in [0, 1], or in [-1, 1] with `center`; y 1 where the discs mark one path.

    80, 10 and 10 % at random (seed 42), as state-spaces/s4 splits them.
    """
    if name not in SIZES:
        raise unknown_name("set of pictures", name, SIZES)
    folder = find_pathfinder(root, name)
    # Of the pictures only the folders are looked at: hundreds of thousands of files take long to ask about.
    folders = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder / "imgs"))
    key = {"files": fingerprint([folder / "metadata"], folder), "folders": folders, "layout": 1}
    prepared = cached(cache_folder(folder.parent.parent), name, key, lambda: _read_all(folder, SIZES[name]))
    bad: dict[str, str] = prepared.notes["bad"]
    if bad and not skip_bad:
        raise DataError(f"{next(iter(bad.values()))} ({len(bad)} bad in all) Mend it, or go on with skip_bad.")
    scale, affine = ((127.5,), (127.5,)), (1 / 127.5, -1.0)
    if not center:
        scale, affine = ((0.0,), (255.0,)), (1 / 255.0, 0.0)
    parts = {
        part: Arrays(
            torch.from_numpy(prepared.arrays[f"x_{part}"]),
            torch.from_numpy(prepared.arrays[f"y_{part}"]).long(),
            affine=affine,
        )
        for part in ("train", "val", "test")
    }
    info = DataInfo("multiclass", 1, 2, SIZES[name] ** 2, classes=CLASSES, scale=scale, skipped=tuple(bad))
    return DataSet(name, parts["train"], parts["val"], parts["test"], info)


def find_pathfinder(root: str | Path, name: str) -> Path:
    """The folder of the 14-paddle set: below `root`, or below an unpacked release in it."""
    below = Path(f"pathfinder{SIZES[name]}") / LEVEL
    for place in arena_places(root):
        if (place / below / "metadata").is_dir():
            return place / below
    raise DataError(
        f"{name}: no {below} in {root}; make it with `wavessm data generate {name}`, or unpack the release "
        f"of {PUBLISHED}."
    )


def arena_places(root: str | Path) -> list[Path]:
    """Folders in which a set of the Long Range Arena may lie: `root`, or the unpacked release in it."""
    root = Path(root)
    return [root, root / "lra_release", root / "lra_release" / "lra_release"]


def read_metadata(folder: Path) -> list[tuple[str, int]]:
    """File and label of every picture, batch by batch."""
    files = sorted((folder / "metadata").glob("[0-9]*.npy"), key=lambda path: int(path.stem))
    if not files:
        raise DataError(f"{folder / 'metadata'}: no metadata in it; was the generator stopped before its first batch?")
    record = folder / _RECORD
    if record.exists():
        begun = json.loads(record.read_text())
        if len(files) != -(-begun["count"] // begun["batch"]):
            raise DataError(
                f"{folder}: {len(files)} batches of {-(-begun['count'] // begun['batch'])}; the generator was stopped, "
                f"run it again with count {begun['count']} and seed {begun['seed']}."
            )
    found = []
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fields = line.split()
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise DataError(f"{path}: line {number} has no label 0 or 1 in its fourth field.")
            found.append((f"{fields[0]}/{fields[1]}", int(fields[3])))
    return found


def _read_all(folder: Path, size: int) -> Prepared:
    """Pictures (cases, size², 1) uint8 and labels of the three parts, each in the order of the split."""
    Image, _ = pillow()
    listed = read_metadata(folder)
    pixels = np.empty((len(listed), size * size, 1), np.uint8)
    labels = np.empty(len(listed), np.uint8)
    bad: dict[str, str] = {}
    good = 0
    for name, label in listed:
        try:
            with Image.open(folder / name) as image:
                values = np.asarray(image.convert("L"))
            if values.shape != (size, size):
                raise ValueError(f"{values.shape[1]} × {values.shape[0]} pixels, expected {size} × {size}")
        except (OSError, ValueError, SyntaxError) as reason:
            bad[name] = f"{folder / name}: not a readable picture ({' '.join(str(reason).split())})."
            continue
        pixels[good, :, 0], labels[good] = values.reshape(-1), label
        good += 1
    parts = split_rows(good)
    arrays = {f"x_{part}": pixels[rows] for part, rows in parts.items()}
    arrays |= {f"y_{part}": labels[rows] for part, rows in parts.items()}
    if {*np.unique(arrays["y_train"])} != {0, 1}:
        raise DataError(f"{folder}: the training part has pictures of one kind only; the set is too small.")
    return Prepared(arrays, {"bad": bad})


def split_rows(count: int) -> dict[str, np.ndarray]:
    """Rows of the three parts, 80, 10 and 10 % of a permutation with seed 42.

    >>> [len(rows) for rows in split_rows(200_000).values()]
    [160000, 20000, 20000]
    """
    if count < 10:
        raise DataError(f"{count} pictures are too few to split into three parts; expected at least 10.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED)).numpy()
    tenth = count // 10
    return {
        "train": order[: count - 2 * tenth],
        "val": order[count - 2 * tenth : count - tenth],
        "test": order[count - tenth :],
    }
