"""Pathfinder and Path-X: pictures of dashed paths, generated (`wavessm data generate`) or released.

pathfinder32/curv_contour_length_14/imgs/<b>/sample_<i>.png        pathfinder128/… for Path-X
                                   /metadata/<b>.npy               despite its name plain text, a line a picture
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wavessm.data.cache import Prepared, cached, read_each
from wavessm.data.files import inside
from wavessm.data.info import DataInfo, DataSet, split_set
from wavessm.data.published import Published
from wavessm.data.task import PublishedOptions, Recipe, Task
from wavessm.errors import DataError, import_extra

ARENA = "https://github.com/google-research/long-range-arena"
SIZES = {"pathfinder": 32, "pathx": 128}
LEVEL = "curv_contour_length_14"
COUNT = 200_000
RECORD = "generated.json"


def arena_places(*below: str) -> list[str]:
    """Return where a set of the Long Range Arena may be: in the data folder itself, or in the unpacked release."""
    return [f"{place}/{each}" for place in (".", "lra_release", "lra_release/lra_release") for each in below]


def arena_published(options: Any, cases: tuple[int, int, int], symbols: int = 0, made: str = "") -> Published:
    """Return the description of a set of the Long Range Arena, whose archive of 8 GB holds all of them."""
    remark = f"{made}download and unpack https://storage.googleapis.com/long-range-arena/lra_release.gz"
    return Published("Apache 2.0 (its code)", ARENA, options, cases, symbols, remark=remark)


@dataclass(frozen=True)
class PathfinderOptions(PublishedOptions):
    """x (batch, size², 1) row by row, y 1 where the discs mark one path. Split 80, 10 and 10 %, as state-spaces/s4."""

    name: Literal["pathfinder", "pathx"] = "pathfinder"
    """pathfinder or pathx."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, and list them."""

    def files(self) -> list[Path]:
        below = f"pathfinder{SIZES[self.name]}/{LEVEL}"
        source = f"make it with `wavessm data generate {self.name}`, or unpack the release of {ARENA}."
        return [self.find(arena_places(below), ["metadata"], f"{self.name}: no {below}", source)]

    def load(self, seed: int) -> DataSet:
        (folder,), size = self.files(), SIZES[self.name]
        # Of the pictures only the folders are looked at: hundreds of thousands of files take long to ask about.
        folders = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder / "imgs"))
        files = [folder / "metadata"]
        prepared = cached(self.name, folder, files, {"folders": folders}, lambda: _read_all(folder, size))
        skipped = prepared.bad_files(self.skip_bad, str(folder))
        scale = ((0.0,), (255.0,))
        info = DataInfo("multiclass", 1, 2, size**2, classes=("apart", "joined"), scale=scale, skipped=skipped)
        return split_set(self.name, prepared.arrays, info, (1 / 255, 0.0))


def _read_metadata(folder: Path) -> dict[str, int]:
    """File and label of every picture, batch by batch."""
    files = sorted((folder / "metadata").glob("[0-9]*.npy"), key=lambda path: int(path.stem))
    if (folder / RECORD).exists():
        started = json.loads((folder / RECORD).read_text())
        batches = -(-started["count"] // started["batch"])
        if len(files) != batches:
            raise DataError(f"{folder}: {len(files)} batches of {batches}; the generator was stopped, run it again "
                            f"with count {started['count']} and seed {started['seed']}.")  # fmt: skip
    found = {}
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fields = line.split()
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise DataError(f"{path}: line {number} has no label 0 or 1 in its fourth field.")
            found[f"{fields[0]}/{fields[1]}"] = int(fields[3])
    return found


def _read_all(folder: Path, size: int) -> Prepared:
    """Pictures (cases, size², 1) uint8 and labels of the three parts, each in the order of the split."""
    from torch import Generator, randperm

    Image, labels = pillow(), _read_metadata(folder)

    def read(name: str) -> np.ndarray:
        try:
            with Image.open(inside(folder / name, [folder])) as image:
                values = np.asarray(image.convert("L"))
            if values.shape != (size, size):
                raise ValueError(f"{values.shape[1]} × {values.shape[0]} pixels, expected {size} × {size}")
        except (OSError, ValueError, SyntaxError) as reason:
            raise DataError(f"{folder / name}: not a readable picture ({' '.join(str(reason).split())}).") from reason
        return values.reshape(-1, 1)

    images, bad = read_each(labels, read, folder)
    pixels, y = np.stack(list(images.values())), np.array([labels[name] for name in images], np.int64)
    tenth, order = len(y) // 10, randperm(len(y), generator=Generator().manual_seed(42)).numpy()
    parts = np.split(order, [len(y) - 2 * tenth, len(y) - tenth])
    arrays: dict[str, np.ndarray] = {}
    for part, rows in zip(("train", "val", "test"), parts, strict=True):
        arrays |= {f"x_{part}": pixels[rows], f"y_{part}": y[rows]}
    return Prepared(arrays, {"bad": bad})


def pillow() -> Any:
    """Return Pillow's `Image` module, or raise an error that says how to get it."""
    return import_extra("PIL.Image", "pictures")


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "d_state": 128, "n_ssm": None, "norm": "batch", "bidirectional": True},
    {"lr": 0.001, "weight_decay": 0.03, "batch_size": 64, "epochs": 200, "eval_batch_size": 64, "c_rate": "ssm",
     "precision": "tf32"},
)  # fmt: skip
_PAPER_X = _PAPER.change(lr=0.0005, lr_ssm=0.0005, weight_decay=0.05, batch_size=32, epochs=50, eval_batch_size=32)
_BEST_X = _PAPER_X.change(
    "smallest step 1e-4, as in S4, instead of 1e-3, with which every frame of the paper fails", {"dt_min": 1e-4}
)
_BEST = _PAPER.change("as paper; nothing tuned yet")
_TASK, _TASK_X = PathfinderOptions(), PathfinderOptions(name="pathx")
TASKS = (
    Task("pathfinder", _TASK, {"paper": _PAPER, "best": _BEST}, "root", fixed=("name",)),
    Task("pathx", _TASK_X, {"paper": _PAPER_X, "best": _BEST_X}, "root", fixed=("name",)),
)
PUBLISHED = {
    options.name: arena_published(
        options, (160_000, 20_000, 20_000), made=f"make it with `wavessm data generate {options.name}`, or "
    )
    for options in (_TASK, _TASK_X)
}
