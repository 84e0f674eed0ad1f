"""CIFAR-10 in grey, pixel by pixel: the Long Range Arena's Image task, from the publisher's files.

cifar-10-batches-py/{data_batch_1 … 5, test_batch}    the Python version, read without running what is in it
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wavessm.data.cache import Prepared, cached
from wavessm.data.info import DataInfo, DataSet, split_set
from wavessm.data.published import Published
from wavessm.data.task import PublishedOptions, Recipe, Task
from wavessm.errors import DataError

HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = 122.6, 61.0  # of the grey training pixels, rounded as in state-spaces/s4
FOLDER = "cifar-10-batches-py"
_NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class ImageOptions(PublishedOptions):
    """x (batch, 1024, 1): grey pixels row by row; y the class of ten. A tenth of the training pictures validates."""

    def files(self) -> list[Path]:
        source = f"get it with `wavessm data fetch image`, or from {HOMEPAGE}."
        folder = self.find([FOLDER, ""], _NAMES, f"Image: no {FOLDER}", source)
        return [folder / name for name in _NAMES]

    def load(self, seed: int) -> DataSet:
        files = self.files()
        prepared = cached("image", files[0].parent, files, {}, lambda: _read_all(files))
        info = DataInfo("multiclass", 1, 10, 1024, classes=CLASSES, scale=((MEAN,), (STD,)))
        return split_set("image", prepared.arrays, info, (1 / STD, -MEAN / STD))


def _read_all(files: list[Path]) -> Prepared:
    from torch import Generator, randperm

    *batches, (x_test, y_test) = [_read(path) for path in files]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    train, val = np.split(randperm(len(x), generator=Generator().manual_seed(42)).numpy(), [int(len(x) * 0.9)])
    arrays = {"x_train": x[train], "y_train": y[train], "x_val": x[val], "y_val": y[val]}
    return Prepared({**arrays, "x_test": x_test, "y_test": y_test}, {})


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels (cases, 1024, 1) uint8 and labels (cases,) of a file, checked."""
    try:
        with path.open("rb") as file:
            batch = _OnlyArrays(file, encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as reason:
        raise DataError(f"{path}: not a file of CIFAR-10, or truncated ({reason}).") from reason
    good = pixels.ndim == 2 and pixels.shape[1] == _PIXELS and pixels.dtype == np.uint8 and pixels.size
    if not good or labels.shape != pixels.shape[:1] or labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{path}: pictures {pixels.shape} of {pixels.dtype} and labels {labels.shape}, expected "
                        f"(cases, {_PIXELS}) of uint8 and (cases,) from 0 to 9.")  # fmt: skip
    return grey(pixels.reshape(-1, 3, 1024))[..., None], labels.astype(np.int64)


def grey(pixels: np.ndarray) -> np.ndarray:
    """ITU-R 601 luma in whole numbers, as Pillow computes it. (cases, 3, …) uint8 → (cases, …) uint8"""
    red, green, blue = (pixels[:, i].astype("uint32") for i in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype("uint8")


class _OnlyArrays(pickle.Unpickler):
    """Reads dictionaries, lists, numbers and arrays, and refuses to call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
            ("numpy.core.multiarray", "_reconstruct"): np.array(0).__reduce__()[0],  # wherever NumPy keeps it
        }
        module = module.replace("numpy._core", "numpy.core")
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known[module, name]


_PAPER = Recipe(
    {"d_model": 512, "n_layers": 6, "bidirectional": True, "prenorm": False, "dropout": 0.1},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 50, "epochs": 200, "eval_batch_size": 64, "c_rate": "ssm",
     "precision": "tf32"},
)  # fmt: skip
TASKS = (
    Task(
        "image",
        ImageOptions(),
        {"paper": _PAPER, "best": _PAPER.change("as paper; nothing tuned yet")},
        "root",
    ),
)
PUBLISHED = {
    "image": Published(
        "none stated; cite Krizhevsky 2009", HOMEPAGE, ImageOptions(), (45_000, 5_000, 10_000),
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        place=FOLDER, inside=FOLDER,
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    )
}  # fmt: skip
