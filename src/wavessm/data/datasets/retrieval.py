"""Retrieval of the Long Range Arena: pairs of papers of the ACL Anthology Network, by character.

    tsv_data/new_aan_pairs.{train,eval,test}.tsv      label, id, id, text, text; no header, no quotes

Read `text.py` first: texts are encoded as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wavessm.data.datasets.pathfinder import ARENA, ARENA_CODE, ARENA_PLACES, ARENA_URL
from wavessm.data.published import Published, check_cases
from wavessm.data.task import DataOptions, Recipe, Task, data_root, find_folder
from wavessm.errors import DataError, check_int

if TYPE_CHECKING:
    import numpy as np

    from wavessm.data.source import DataSet
    from wavessm.data.tokens import TokenParts

FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}


@dataclass(frozen=True)
class RetrievalOptions(DataOptions):
    """Options of the data."""

    root: str = ""
    """Folder that holds tsv_data/new_aan_pairs.*.tsv; default $WAVESSM_DATA."""
    max_length: int = 4000
    """Characters of the longest text, its end included."""

    def load(self, seed: int) -> DataSet:
        return load_retrieval(data_root(self.root), self.max_length)


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "norm": "batch", "bidirectional": True},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 64, "epochs": 20, "eval_batch_size": 64, "dt_rate": "global",
     "precision": "tf32"},
)  # fmt: skip
TASKS = (
    Task(
        "retrieval",
        RetrievalOptions(),
        {"paper": _PAPER, "best": _PAPER.change("as paper; batches hold cases of like length", buckets=8)},
        "root",
        "pair",
    ),
)


def load_retrieval(root: str | Path, max_length: int = 4000) -> DataSet:
    """Load pairs of papers by character.

    Returns:
        x (batch, 2, longest); y 1 where one paper cites the other.
    """
    from wavessm.data.tokens import cached_tokens, token_set

    check_int(max_length, "load_retrieval: max_length", least=2)
    folder = find_retrieval(root)
    files = {part: folder / name for part, name in FILES.items()}
    prepared = cached_tokens(
        "retrieval",
        folder,
        files.values(),
        {"max_length": max_length},
        lambda: _encode(files, max_length),
        pairs=True,
    )
    return token_set("retrieval", prepared, ("apart", "cited"), max_length)


def find_retrieval(root: str | Path) -> Path:
    """Return the folder of the three files."""
    places = [f"{place}/{below}" for place in ARENA_PLACES for below in ("tsv_data", "")]
    release = f"it is in the release of {ARENA} (`wavessm data fetch retrieval`)."
    return find_folder(root, places, FILES.values(), f"Retrieval: no tsv_data/{FILES['train']} in {root}; {release}")


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


def _encode(files: dict[str, Path], max_length: int) -> TokenParts:
    from wavessm.data.tokens import Vocabulary

    words = Vocabulary.of((text[: max_length - 1] for text, _ in _read(files["train"])), min_count=1)

    def encoded(path: Path) -> Iterator[tuple[np.ndarray, int]]:
        return ((words.encode(text, max_length), label) for text, label in _read(path))

    return {part: encoded(path) for part, path in files.items()}, words.symbols


PUBLISHED = {
    "retrieval": Published(
        ARENA_CODE,
        ARENA,
        lambda root: [find_retrieval(root) / name for name in FILES.values()],
        lambda root: check_cases(load_retrieval(root), (147_086, 18_090, 17_437), 98),
        ARENA_URL,
        "tsv_data",
        "tsv_data",
        remark="the texts are those of the ACL Anthology Network",
    )
}
