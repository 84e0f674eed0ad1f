"""ListOps of the Long Range Arena: nested lists of digits, and their value.

    listops-1000/basic_{train,val,test}.tsv           a header, then expression and value

`wavessm data generate listops` draws the set by its published rules; `tokens.py` has what texts have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavessm.data.task import Task
from wavessm.errors import DataError
from wavessm_lab.tasks.pathfinder import ARENA, arena_places, arena_published
from wavessm_lab.tasks.tokens import END, SPECIALS, TokenOptions, Tokens, recipes

OPERATORS = ("MIN", "MAX", "MED", "SM")
FILES = {part: f"basic_{part}.tsv" for part in ("train", "val", "test")}
FOLDER = "listops-1000"
SYMBOLS = (*SPECIALS, *map(str, range(10)), *(f"[{name}" for name in OPERATORS), "X")


@dataclass(frozen=True)
class ListopsOptions(TokenOptions):
    """x (batch, longest) of 18 symbols, y the value 0 to 9. The closing bracket is X; parentheses are left out."""

    max_length: int = 2048
    """Tokens of the longest sequence, its end included."""

    name, classes = "listops", tuple(map(str, range(10)))

    def parts(self) -> dict[str, Path]:
        source = f"make it with `wavessm data generate listops`, or unpack the release of {ARENA}."
        missing = f"ListOps: no {FOLDER}/{FILES['train']}"
        folder = self.find(arena_places(FOLDER, ""), FILES.values(), missing, source)
        return {part: folder / name for part, name in FILES.items()}

    def encode(self, parts: dict[str, Path], min_count: int = 1) -> tuple[dict[str, Tokens], Sequence[str]]:
        return {part: self._expressions(path) for part, path in parts.items()}, SYMBOLS

    def _expressions(self, path: Path) -> Iterator[tuple[np.ndarray, int]]:
        numbers = np.zeros(256, np.uint8)
        numbers[list(b"0123456789abcd]")] = np.arange(3, 18)
        with open(path, "rb") as file:
            if file.readline().split() != [b"Source", b"Target"]:
                raise DataError(f"{path}: the first line is no header; expected the columns Source and Target.")
            for line_number, line in enumerate(file, 2):
                source, _, target = line.rstrip(b"\r\n").partition(b"\t")
                for letter, name in zip(b"abcd", OPERATORS, strict=True):
                    source = source.replace(b"[" + name.encode(), bytes([letter]))
                tokens = numbers[np.frombuffer(source.translate(None, b"() "), np.uint8)]
                if not tokens.size or not tokens.all() or not target.isdigit() or int(target) > 9:
                    raise DataError(f"{path}: line {line_number} is no expression of digits and {', '.join(OPERATORS)} "
                                    "with a value from 0 to 9.")  # fmt: skip
                yield np.append(tokens[: self.max_length - 1], np.uint8(END)), int(target)


TASKS = (Task("listops", ListopsOptions(), recipes(50, 40, prenorm=False), "root"),)
PUBLISHED = {
    "listops": arena_published(
        ListopsOptions(), (96_000, 2_000, 2_000), 18, "make it with `wavessm data generate listops`, or "
    )
}
