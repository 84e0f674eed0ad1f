"""Text of the Long Range Arena: IMDb reviews by character.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt  a review each

A text is cut to one less than the longest length, and an end token follows. The vocabulary comes from the cut training
texts. `tokens.py` holds what texts have in common.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wavessm.data.published import Published, check_cases
from wavessm.data.task import DataOptions, Recipe, Task, data_root, find_folder
from wavessm.errors import DataError, OptionError, check_int

if TYPE_CHECKING:
    from wavessm.data.source import DataSet
    from wavessm.data.tokens import TokenParts

HOMEPAGE = "https://ai.stanford.edu/~amaas/data/sentiment/"
CLASSES = ("neg", "pos")
_HOLD_OUT_SEED = 42


@dataclass(frozen=True)
class TextOptions(DataOptions):
    """Options of the data."""

    root: str = ""
    """Folder that holds aclImdb/; default $WAVESSM_DATA."""
    max_length: int = 4096
    """Characters of the longest review, its end included."""
    hold_out: int = 2500
    """Training reviews that validate; 0 trains on all: then report the last epoch."""
    min_count: int = 15
    """Characters rarer than this in training are unknown."""

    def load(self, seed: int) -> DataSet:
        return load_text(data_root(self.root), self.max_length, self.hold_out, self.min_count)


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "norm": "batch", "bidirectional": True},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 16, "epochs": 32, "eval_batch_size": 64, "dt_rate": "global",
     "precision": "tf32"},
)  # fmt: skip
TASKS = (
    Task(
        "text",
        TextOptions(),
        {"paper": _PAPER, "best": _PAPER.change("as paper; batches hold cases of like length", buckets=8)},
        "root",
    ),
)


def load_text(root: str | Path, max_length: int = 4096, hold_out: int = 2500, min_count: int = 15) -> DataSet:
    """Load IMDb reviews by character; y is 1 for a good review.

    Args:
        root: folder that holds aclImdb.
        max_length: characters of the longest review, its end included.
        hold_out: training reviews (seed 42) that validate. With 0 all reviews train and 2,500 of them are shown as
            validation: select nothing on those, report the last epoch.
        min_count: characters rarer than this in training are unknown.
    """
    import torch

    from wavessm.data.tokens import cached_tokens, token_set

    check_int(max_length, "load_text: max_length", least=2)
    folder = find_text(root)
    prepared = cached_tokens(
        "text",
        folder,
        [folder / "train", folder / "test"],
        {"max_length": max_length, "min_count": min_count},
        lambda: _encode(folder, max_length, min_count),
    )
    # The cache holds the two published parts; validation is drawn from training here.
    data = token_set("text", prepared, CLASSES, max_length)
    count = len(data.train)
    if not 0 <= hold_out < count:
        raise OptionError(f"load_text: hold_out is {hold_out}, expected 0 to {count - 1}.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_HOLD_OUT_SEED))
    shown = order[count - (hold_out or min(2500, max(1, count // 10))) :]
    train = order[: count - hold_out]
    chosen = {part: data.train.rows(rows.sort().values) for part, rows in (("train", train), ("val", shown))}  # type: ignore[attr-defined]
    return dataclasses.replace(data, **chosen)


def find_text(root: str | Path) -> Path:
    """Return the folder aclImdb."""
    missing = f"Text: no aclImdb/train/pos in {root}; get it with `wavessm data fetch text`, or from {HOMEPAGE}."
    return find_folder(root, ["aclImdb", ""], ["train/pos"], missing)


def _read(folder: Path, part: str) -> Iterator[tuple[str, int]]:
    for label, name in enumerate(CLASSES):
        paths = sorted((folder / part / name).glob("*.txt"))
        if not paths:
            raise DataError(f"{folder / part / name}: no review in it; unpack the archive again (it is at {HOMEPAGE}).")
        for path in paths:
            try:
                yield path.read_text(encoding="utf-8"), label
            except UnicodeDecodeError as reason:
                raise DataError(f"{path}: not UTF-8 text at byte {reason.start}.") from reason


def _encode(folder: Path, max_length: int, min_count: int) -> TokenParts:
    from wavessm.data.tokens import Vocabulary

    words = Vocabulary.of((text[: max_length - 1] for text, _ in _read(folder, "train")), min_count)
    parts = {
        part: ((words.encode(text, max_length), label) for text, label in _read(folder, part))
        for part in ("train", "test")
    }
    return parts, words.symbols


PUBLISHED = {
    "text": Published(
        "none stated; cite Maas et al. 2011",
        HOMEPAGE,
        lambda root: [find_text(root) / part for part in ("train", "test")],
        lambda root: check_cases(load_text(root), (22_500, 2_500, 25_000), 134),
        f"{HOMEPAGE}aclImdb_v1.tar.gz",
        "aclImdb",
        "aclImdb",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    )
}
