"""Retrieval of the Long Range Arena: pairs of papers of the ACL Anthology Network, by character.

    tsv_data/new_aan_pairs.{train,eval,test}.tsv      label, id, id, text, text; no header, no quotes

Texts are encoded as in `text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wavessm.data.task import Task
from wavessm.errors import DataError
from wavessm_lab.tasks.pathfinder import ARENA, arena_places, arena_published
from wavessm_lab.tasks.tokens import TokenOptions, recipes

FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}


@dataclass(frozen=True)
class RetrievalOptions(TokenOptions):
    """x (batch, 2, longest) of characters, y 1 where one paper cites the other."""

    max_length: int = 4000
    """Characters of the longest text, its end included."""

    name, classes, pairs = "retrieval", ("apart", "cited"), True

    def parts(self) -> dict[str, Path]:
        source = f"it is in the release of {ARENA}."
        missing = f"Retrieval: no tsv_data/{FILES['train']}"
        folder = self.find(arena_places("tsv_data", ""), FILES.values(), missing, source)
        return {part: folder / name for part, name in FILES.items()}

    def read(self, path: Path) -> Iterator[tuple[str, int]]:
        with open(path, encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                fields = line.rstrip("\r\n").split("\t")
                if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
                    raise DataError(f"{path}: line {number} has {len(fields)} fields and begins with "
                                    f"{fields[0][:10]!r}; expected label 0 or 1, two ids and two texts.")  # fmt: skip
                yield fields[3], int(fields[0][0])
                yield fields[4], int(fields[0][0])


TASKS = (Task("retrieval", RetrievalOptions(), recipes(64, 20), "root", "pair"),)
PUBLISHED = {"retrieval": arena_published(RetrievalOptions(), (147_086, 18_090, 17_437), 98)}
