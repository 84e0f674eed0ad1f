"""CIFAR-10 in grey, pixel by pixel: the Long Range Arena's Image task, from the publisher's files.

cifar-10-batches-py/{data_batch_1 … 5, test_batch}            the Python version, read without running what is in it
cifar-10-batches-bin/{data_batch_1.bin … 5.bin, test_batch.bin}
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavessm.data.published import Published, check_cases
from wavessm.data.task import DataOptions, Recipe, Task, data_root
from wavessm.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from wavessm.data.cache import Prepared
    from wavessm.data.source import DataSet

HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = 122.6, 61.0  # of the grey training pixels, rounded as in state-spaces/s4
_NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_PIXELS = 3 * 32 * 32
_SPLIT_SEED = 42


@dataclass(frozen=True)
class ImageOptions(DataOptions):
    """x (batch, 1024, 1): grey pixels row by row; y the class of ten. A tenth of the training pictures validates."""

    root: str = ""
    """Folder that holds cifar-10-batches-py/ or cifar-10-batches-bin/; default $WAVESSM_DATA."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data.cache import cached
        from wavessm.data.source import DataInfo, split_set

        files = find_image(data_root(self.root))
        prepared = cached("image", files[0].parent, files, {}, lambda: _read_all(files))
        info = DataInfo("multiclass", 1, 10, 1024, classes=CLASSES, scale=((MEAN,), (STD,)))
        return split_set("image", prepared.arrays, info, (1 / STD, -MEAN / STD))


_PAPER = Recipe(
    {"d_model": 512, "n_layers": 6, "bidirectional": True, "prenorm": False, "dropout": 0.1},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 50, "epochs": 200, "eval_batch_size": 64, "c_rate": "ssm",
     "precision": "tf32"},
)  # fmt: skip
TASKS = (
    Task("image", ImageOptions(), {"paper": _PAPER, "best": _PAPER.change("as paper; nothing tuned yet")}, "root"),
)


def find_image(root: Path) -> list[Path]:
    """Return five training files and the test file, of the Python or the binary version."""
    for name, suffix in (("cifar-10-batches-py", ""), ("cifar-10-batches-bin", ".bin")):
        for folder in (root / name, root):
            files = [folder / f"{stem}{suffix}" for stem in _NAMES]
            if all(path.is_file() for path in files):
                return files
    raise DataError(
        f"Image: no cifar-10-batches-py (nor -bin) in {root}; get it with `wavessm data fetch image`, "
        f"or from {HOMEPAGE}."
    )


def _grey(pixels: np.ndarray) -> np.ndarray:
    """ITU-R 601 luma in whole numbers, as Pillow computes it. (cases, 3, …) uint8 → (cases, …) uint8"""
    red, green, blue = (pixels[:, i].astype("uint32") for i in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype("uint8")


def _read_all(files: list[Path]) -> Prepared:
    import numpy as np
    import torch

    from wavessm.data.cache import Prepared

    read = _read_binary if files[0].suffix == ".bin" else _read_pickle
    batches = [read(path) for path in files]
    x, y = (np.concatenate([batch[i] for batch in batches[:-1]]) for i in range(2))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(_SPLIT_SEED)).numpy()
    train, val = order[: int(len(x) * 0.9)], order[int(len(x) * 0.9) :]
    arrays = {"x_train": x[train], "y_train": y[train], "x_val": x[val], "y_val": y[val]}
    return Prepared({**arrays, "x_test": batches[-1][0], "y_test": batches[-1][1]}, {})


def _finish(path: Path, pixels: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels (cases, 1024, 1) uint8 and labels (cases,), checked."""
    import numpy as np

    pixels, labels = np.asarray(pixels), np.asarray(labels)
    if pixels.ndim != 2 or pixels.shape[1] != _PIXELS or pixels.dtype != np.uint8 or labels.shape != pixels.shape[:1]:
        raise DataError(f"{path}: pictures {pixels.shape} of {pixels.dtype} and labels {labels.shape}, expected "
                        f"(cases, {_PIXELS}) of uint8 and (cases,).")  # fmt: skip
    if not labels.size or labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{path}: no pictures, or a label outside of 0 to 9.")
    return _grey(pixels.reshape(-1, 3, 1024))[..., None], labels.astype(np.int64)


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    raw = np.fromfile(path, np.uint8)
    if not raw.size or raw.size % (_PIXELS + 1):
        raise DataError(f"{path}: {raw.size:,} bytes, expected a multiple of {_PIXELS + 1:,}; the file is truncated.")
    rows = raw.reshape(-1, _PIXELS + 1)
    return _finish(path, rows[:, 1:], rows[:, 0])


class _OnlyArrays(pickle.Unpickler):
    """Reads dictionaries, lists, numbers and arrays, and refuses to call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

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


def _read_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _OnlyArrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = batch[b"data"], batch[b"labels"]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as reason:
        raise DataError(f"{path}: not a file of CIFAR-10's Python version ({reason}).") from reason
    return _finish(path, pixels, labels)


PUBLISHED = {
    "image": Published(
        "none stated; cite Krizhevsky 2009",
        HOMEPAGE,
        find_image,
        lambda root: check_cases(ImageOptions(str(root)).load(0), (45_000, 5_000, 10_000)),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        "cifar-10-batches-py",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    )
}
