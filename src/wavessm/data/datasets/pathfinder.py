"""Pathfinder and Path-X: pictures of dashed paths, generated (`wavessm data generate`) or released.

pathfinder32/curv_contour_length_14/imgs/<b>/sample_<i>.png        pathfinder128/… for Path-X
                                   /metadata/<b>.npy               despite its name plain text, a line a picture
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wavessm.data.published import Finding, Published, check_cases
from wavessm.data.task import DataOptions, Recipe, Task, data_root, find_folder
from wavessm.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np

    from wavessm.data.cache import Prepared
    from wavessm.data.source import DataSet

ARENA = "https://github.com/google-research/long-range-arena"
SIZES = {"pathfinder": 32, "pathx": 128}
LEVEL = "curv_contour_length_14"
COUNT = 200_000
RECORD = "generated.json"
CLASSES = ("apart", "joined")
_SPLIT_SEED = 42


def arena_places(*below: str) -> list[str]:
    """Return where a set of the Long Range Arena may be: in the data folder itself, or in the unpacked release."""
    return [f"{place}/{each}" for place in (".", "lra_release", "lra_release/lra_release") for each in below]


def arena_published(
    place: str, find: Callable[[Path], list[Path]], check: Callable[[Path], list[Finding]], remark: str
) -> Published:
    """Return the description of a set in the archive of the Long Range Arena."""
    url = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    return Published("Apache 2.0 (its code)", ARENA, find, check, url, place, place, remark=remark)


@dataclass(frozen=True)
class PathfinderOptions(DataOptions):
    """x (batch, size², 1) row by row, y 1 where the discs mark one path. Split 80, 10 and 10 %, as state-spaces/s4."""

    root: str = ""
    """Folder that holds pathfinder32/ (pathfinder128/ for Path-X), generated or released; default $WAVESSM_DATA."""
    name: Literal["pathfinder", "pathx"] = "pathfinder"
    """pathfinder or pathx."""
    center: bool = False
    """Pixels in [-1, 1] instead of [0, 1]."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read, and list them."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data.cache import cached
        from wavessm.data.source import DataInfo, split_set

        folder, size = find_pathfinder(data_root(self.root), self.name), SIZES[self.name]
        # Of the pictures only the folders are looked at: hundreds of thousands of files take long to ask about.
        folders = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder / "imgs"))
        files = [folder / "metadata"]
        prepared = cached(self.name, folder, files, {"folders": folders}, lambda: _read_all(folder, size))
        skipped = prepared.bad_files(self.skip_bad, str(folder))
        mean, std = (127.5, 127.5) if self.center else (0.0, 255.0)
        info = DataInfo("multiclass", 1, 2, size**2, classes=CLASSES, scale=((mean,), (std,)), skipped=skipped)
        return split_set(self.name, prepared.arrays, info, (1 / std, -mean / std))


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
TASKS = (
    Task("pathfinder", PathfinderOptions(), {"paper": _PAPER, "best": _BEST}, "root", fixed=("name",)),
    Task("pathx", PathfinderOptions(name="pathx"), {"paper": _PAPER_X, "best": _BEST_X}, "root", fixed=("name",)),
)


def find_pathfinder(root: Path, name: str) -> Path:
    """Return the folder of the 14-paddle set: below `root`, or below an unpacked release in it."""
    below = f"pathfinder{SIZES[name]}/{LEVEL}"
    made = f"make it with `wavessm data generate {name}`, or unpack the release of {ARENA}."
    return find_folder(root, arena_places(below), ["metadata"], f"{name}: no {below} in {root}; {made}")


def _read_metadata(folder: Path) -> list[tuple[str, int]]:
    """File and label of every picture, batch by batch."""
    files = sorted((folder / "metadata").glob("[0-9]*.npy"), key=lambda path: int(path.stem))
    if (folder / RECORD).exists():
        started = json.loads((folder / RECORD).read_text())
        batches = -(-started["count"] // started["batch"])
        if len(files) != batches:
            raise DataError(f"{folder}: {len(files)} batches of {batches}; the generator was stopped, run it again "
                            f"with count {started['count']} and seed {started['seed']}.")  # fmt: skip
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
    import numpy as np

    from wavessm.data.cache import Prepared

    Image = pillow()
    listed = _read_metadata(folder)
    pixels = np.empty((len(listed), size * size, 1), np.uint8)
    labels: list[int] = []
    bad: dict[str, str] = {}
    for name, label in listed:
        try:
            with Image.open(folder / name) as image:
                values = np.asarray(image.convert("L"))
            if values.shape != (size, size):
                raise ValueError(f"{values.shape[1]} × {values.shape[0]} pixels, expected {size} × {size}")
        except (OSError, ValueError, SyntaxError) as reason:
            bad[name] = f"{folder / name}: not a readable picture ({' '.join(str(reason).split())})."
            continue
        pixels[len(labels), :, 0] = values.reshape(-1)
        labels.append(label)
    y = np.array(labels, np.int64)
    parts = _split_rows(len(labels))
    if {*y[parts["train"]].tolist()} != {0, 1}:
        raise DataError(f"{folder}: the training part has not pictures of both kinds; the set is too small.")
    arrays = {f"x_{part}": pixels[rows] for part, rows in parts.items()}
    return Prepared(arrays | {f"y_{part}": y[rows] for part, rows in parts.items()}, {"bad": bad})


def _split_rows(count: int) -> dict[str, np.ndarray]:
    """Rows of the three parts.

    >>> [len(rows) for rows in _split_rows(200_000).values()]
    [160000, 20000, 20000]
    """
    import torch

    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT_SEED)).numpy()
    tenth = count // 10
    train, val = order[: count - 2 * tenth], order[count - 2 * tenth : count - tenth]
    return {"train": train, "val": val, "test": order[count - tenth :]}


def pillow() -> Any:
    """Return Pillow's `Image` module, or raise an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as reason:
        raise MissingExtraError("pictures need Pillow: pip install 'wavessm[train]'.") from reason
    return Image


def _check(root: Path, name: Any) -> list[Finding]:
    return check_cases(PathfinderOptions(str(root), name, skip_bad=True).load(0), (160_000, 20_000, 20_000))


PUBLISHED = {
    name: arena_published(
        f"pathfinder{size}/{LEVEL}",
        lambda root, name=name: [find_pathfinder(root, name)],  # type: ignore[misc]
        lambda root, name=name: _check(root, name),  # type: ignore[misc]
        f"or make it: wavessm data generate {name}",
    )
    for name, size in SIZES.items()
}
