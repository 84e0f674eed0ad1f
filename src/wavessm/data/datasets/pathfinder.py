"""Pathfinder and Path-X: sets of pictures on disk, generated or released, and as training takes them.

pathfinder32/curv_contour_length_14/imgs/<b>/sample_<i>.png        pathfinder128/… for Path-X
                                   /metadata/<b>.npy               despite its name plain text, a line a picture
                                   /statistics/<b>.json            of generated sets: see `Statistics`
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.errors import DataError, MissingExtraError, unknown_name

PUBLISHED = "https://github.com/google-research/long-range-arena"
SIZES = {"pathfinder": 32, "pathx": 128}
LEVEL = "curv_contour_length_14"
COUNT = 200_000
CLASSES = ("apart", "joined")
_SPLIT_SEED = 42
RECORD = "generated.json"


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
    record = folder / RECORD
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
    Image = pillow()
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


def pillow() -> Any:
    """Pillow's `Image` module, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as reason:
        raise MissingExtraError("pictures need Pillow: pip install 'wavessm[train]'.") from reason
    return Image
