"""Retrieval of the Long Range Arena: pairs of papers of the ACL Anthology Network, by character.

    tsv_data/new_aan_pairs.{train,eval,test}.tsv      label, id, id, text, text; no header, no quotes

Texts are encoded as in `text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wavessm.data.datasets.pathfinder import ARENA, arena_places, arena_published
from wavessm.data.published import check_cases
from wavessm.data.task import DataOptions, Recipe, Task, data_root, find_folder
from wavessm.errors import DataError

if TYPE_CHECKING:
    import numpy as np

    from wavessm.data.source import DataSet
    from wavessm.data.tokens import TokenParts

FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}


@dataclass(frozen=True)
class RetrievalOptions(DataOptions):
    """x (batch, 2, longest) of characters, y 1 where one paper cites the other."""

    root: str = ""
    """Folder that holds tsv_data/new_aan_pairs.*.tsv; default $WAVESSM_DATA."""
    max_length: int = 4000
    """Characters of the longest text, its end included."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data.tokens import token_set

        folder = find_retrieval(data_root(self.root))
        files = {part: folder / name for part, name in FILES.items()}
        options, classes = {"max_length": self.max_length}, ("apart", "cited")
        return token_set("retrieval", folder, files.values(), options, classes, lambda: self._encode(files), pairs=True)

    def _encode(self, files: dict[str, Path]) -> TokenParts:
        from wavessm.data.tokens import Vocabulary

        words = Vocabulary.of((text[: self.max_length - 1] for text, _ in _read(files["train"])), min_count=1)

        def encoded(path: Path) -> Iterator[tuple[np.ndarray, int]]:
            return ((words.encode(text, self.max_length), label) for text, label in _read(path))

        return {part: encoded(path) for part, path in files.items()}, words.symbols


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "norm": "batch", "bidirectional": True},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 64, "epochs": 20, "eval_batch_size": 64, "dt_rate": "global",
     "precision": "tf32"},
)  # fmt: skip
_BEST = _PAPER.change("as paper; batches hold cases of like length", buckets=8)
TASKS = (Task("retrieval", RetrievalOptions(), {"paper": _PAPER, "best": _BEST}, "root", "pair"),)


def find_retrieval(root: Path) -> Path:
    """Return the folder of the three files."""
    release = f"it is in the release of {ARENA} (`wavessm data fetch retrieval`)."
    missing = f"Retrieval: no tsv_data/{FILES['train']} in {root}; {release}"
    return find_folder(root, arena_places("tsv_data", ""), FILES.values(), missing)


def _read(path: Path) -> Iterator[tuple[str, int]]:
    """Texts with the label of their pair, two of each pair one after another."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
                raise DataError(f"{path}: line {number} has {len(fields)} fields and begins with {fields[0][:10]!r}; "
                                "expected label 0 or 1, two ids and two texts.")  # fmt: skip
            yield fields[3], int(fields[0][0])
            yield fields[4], int(fields[0][0])


PUBLISHED = {
    "retrieval": arena_published(
        "tsv_data",
        lambda root: [find_retrieval(root) / name for name in FILES.values()],
        lambda root: check_cases(RetrievalOptions(str(root)).load(0), (147_086, 18_090, 17_437), 98),
        "the texts are those of the ACL Anthology Network",
    )
}
