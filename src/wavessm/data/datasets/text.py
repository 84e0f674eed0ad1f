"""Text of the Long Range Arena: IMDb reviews by character.

    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt  a review each

A text is cut to one less than the longest length, and an end token follows. The vocabulary comes from the cut training
texts. `tokens.py` has what texts have in common.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from wavessm.data.published import Published, check_cases
from wavessm.data.task import DataOptions, Recipe, Task, data_root, find_folder
from wavessm.errors import DataError, OptionError

if TYPE_CHECKING:
    from wavessm.data.source import DataSet
    from wavessm.data.tokens import TokenParts

HOMEPAGE = "https://ai.stanford.edu/~amaas/data/sentiment/"
CLASSES = ("neg", "pos")
_HOLD_OUT_SEED = 42


@dataclass(frozen=True)
class TextOptions(DataOptions):
    """x (batch, longest) of characters, y 1 for a good review."""

    root: str = ""
    """Folder that holds aclImdb/; default $WAVESSM_DATA."""
    max_length: int = 4096
    """Characters of the longest review, its end included."""
    hold_out: int = 2500
    """Training reviews (seed 42) that validate; 0 trains on all and shows 2,500 of them: then report the last epoch."""
    min_count: int = 15
    """Characters rarer than this in training are unknown."""

    checks: ClassVar[dict[str, Any]] = {"hold_out": (lambda value: value >= 0, "at least 0")}

    def load(self, seed: int) -> DataSet:
        import torch

        from wavessm.data.tokens import token_set

        folder = find_text(data_root(self.root))
        options = {"max_length": self.max_length, "min_count": self.min_count}
        files = [folder / "train", folder / "test"]
        # The cache holds the two published parts; validation is drawn from training here.
        data = token_set("text", folder, files, options, CLASSES, lambda: self._encode(folder))
        count = len(data.train)
        if self.hold_out >= count:
            raise OptionError(f"text: hold_out is {self.hold_out}, expected 0 to {count - 1}.")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(_HOLD_OUT_SEED))
        shown = order[count - (self.hold_out or min(2500, max(1, count // 10))) :]
        train, val = (data.train.rows(rows.sort().values) for rows in (order[: count - self.hold_out], shown))  # type: ignore[attr-defined]
        return dataclasses.replace(data, train=train, val=val)

    def _encode(self, folder: Path) -> TokenParts:
        from wavessm.data.tokens import Vocabulary

        words = Vocabulary.of((text[: self.max_length - 1] for text, _ in _read(folder, "train")), self.min_count)
        parts = {
            part: ((words.encode(text, self.max_length), label) for text, label in _read(folder, part))
            for part in ("train", "test")
        }
        return parts, words.symbols


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "norm": "batch", "bidirectional": True},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 16, "epochs": 32, "eval_batch_size": 64, "dt_rate": "global",
     "precision": "tf32"},
)  # fmt: skip
_BEST = _PAPER.change("as paper; batches hold cases of like length", buckets=8)
TASKS = (Task("text", TextOptions(), {"paper": _PAPER, "best": _BEST}, "root"),)


def find_text(root: Path) -> Path:
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


PUBLISHED = {
    "text": Published(
        "none stated; cite Maas et al. 2011",
        HOMEPAGE,
        lambda root: [find_text(root) / part for part in ("train", "test")],
        lambda root: check_cases(TextOptions(str(root)).load(0), (22_500, 2_500, 25_000), 134),
        f"{HOMEPAGE}aclImdb_v1.tar.gz",
        "aclImdb",
        "aclImdb",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    )
}
