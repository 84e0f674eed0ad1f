"""ListOps of the Long Range Arena: nested lists of digits, and their value.

    listops-1000/basic_{train,val,test}.tsv           a header, then expression and value

`wavessm data generate listops` draws the set by its published rules; `tokens.py` has what texts have in common.
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

OPERATORS = ("MIN", "MAX", "MED", "SM")
FILES = {part: f"basic_{part}.tsv" for part in ("train", "val", "test")}
FOLDER = "listops-1000"
SYMBOLS = ("<pad>", "<unk>", "<eos>", *map(str, range(10)), *(f"[{name}" for name in OPERATORS), "X")


@dataclass(frozen=True)
class ListopsOptions(DataOptions):
    """x (batch, longest) of 18 symbols, y the value 0 to 9. The closing bracket is X; parentheses are left out."""

    root: str = ""
    """Folder that holds listops-1000/, generated or released; default $WAVESSM_DATA."""
    max_length: int = 2048
    """Tokens of the longest sequence, its end included."""

    def load(self, seed: int) -> DataSet:
        from wavessm.data.tokens import token_set

        folder = find_listops(data_root(self.root))
        files = {part: folder / name for part, name in FILES.items()}
        return token_set(
            "listops",
            folder,
            files.values(),
            {"max_length": self.max_length},
            tuple(map(str, range(10))),
            lambda: ({part: _read(path, self.max_length) for part, path in files.items()}, SYMBOLS),
        )


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "norm": "batch", "bidirectional": True, "prenorm": False},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 50, "epochs": 40, "eval_batch_size": 64, "dt_rate": "global",
     "precision": "tf32"},
)  # fmt: skip
_BEST = _PAPER.change("as paper; batches hold cases of like length", buckets=8)
TASKS = (Task("listops", ListopsOptions(), {"paper": _PAPER, "best": _BEST}, "root"),)


def find_listops(root: Path) -> Path:
    """Return the folder of the three files."""
    made = f"make it with `wavessm data generate listops`, or unpack the release of {ARENA}."
    missing = f"ListOps: no {FOLDER}/{FILES['train']} in {root}; {made}"
    return find_folder(root, arena_places(FOLDER, ""), FILES.values(), missing)


def _read(path: Path, max_length: int) -> Iterator[tuple[np.ndarray, int]]:
    import numpy as np

    numbers = np.zeros(256, np.uint8)
    for number, letter in enumerate(b"0123456789abcd]", 3):
        numbers[letter] = number
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
            yield np.append(tokens[: max_length - 1], np.uint8(SYMBOLS.index("<eos>"))), int(target)


PUBLISHED = {
    "listops": arena_published(
        FOLDER,
        lambda root: [find_listops(root)],
        lambda root: check_cases(ListopsOptions(str(root)).load(0), (96_000, 2_000, 2_000), 18),
        "or make it: wavessm data generate listops",
    )
}
