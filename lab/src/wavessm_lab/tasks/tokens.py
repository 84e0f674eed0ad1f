"""Characters as numbers, and sets of token sequences. `text.py`, `retrieval.py` and `listops.py` use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from wavessm.data.cache import Prepared, cached
from wavessm.data.info import DataInfo, DataSet
from wavessm.data.task import PublishedOptions, Recipe
from wavessm.errors import DataError

SPECIALS = ("<pad>", "<unk>", "<eos>")
UNKNOWN, END = 1, 2
_CODES = 0x110000  # of Unicode
_FIELDS = ("flat", "starts", "lengths", "y")
Tokens = Iterable[tuple[np.ndarray, int]]
"""Sequences with their labels."""


class Vocabulary:
    """The characters that occur `min_count` times or more in texts, in the order of Unicode, and their numbers.

    The first three numbers are padding, unknown, end.

    >>> words = Vocabulary(["ban", "ana"], min_count=2)
    >>> words.symbols[3:], words.encode("bank", longest=10).tolist()
    (('a', 'n'), [1, 3, 4, 1, 2])
    """

    def __init__(self, texts: Iterable[str], min_count: int) -> None:
        counts = np.zeros(_CODES, np.int64)
        for text in texts:
            codes, found = np.unique(_codes(text), return_counts=True)
            counts[codes] += found
        kept = np.flatnonzero(counts >= min_count)
        self.symbols = (*SPECIALS, *map(chr, kept))
        self._numbers = np.full(_CODES, UNKNOWN, np.uint8 if len(self.symbols) <= 256 else np.int32)
        self._numbers[kept] = np.arange(len(SPECIALS), len(self.symbols))

    def encode(self, text: str, longest: int) -> np.ndarray:
        """Return the numbers of at most longest − 1 characters, and the end."""
        return np.append(self._numbers[_codes(text[: longest - 1])], self._numbers.dtype.type(END))


def _codes(text: str) -> np.ndarray:
    """Unicode numbers of a text, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@dataclass(frozen=True)
class TokenOptions(PublishedOptions):
    """A set of token sequences: subclasses find its files and read them."""

    max_length: int = 0
    """Tokens of the longest sequence, its end included."""

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    pairs: ClassVar[bool] = False
    """Whether sequences 2i and 2i + 1 belong together."""

    def parts(self) -> dict[str, Path]:
        """Return the file or folder of each part; where "val" is not among them, it is the training part."""
        raise NotImplementedError

    def read(self, path: Path) -> Iterable[tuple[str, int]]:
        """Return the texts of a part with their labels."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        return list(self.parts().values())

    def encode(self, parts: dict[str, Path], min_count: int = 1) -> tuple[dict[str, Tokens], Sequence[str]]:
        """Return the sequences of each part, and the symbols; by default the characters of the cut training texts."""
        longest = self.max_length
        words = Vocabulary((text[: longest - 1] for text, _ in self.read(parts["train"])), min_count)
        encoded: dict[str, Tokens] = {
            part: ((words.encode(text, longest), label) for text, label in self.read(path))
            for part, path in parts.items()
        }
        return encoded, words.symbols

    def load(self, seed: int) -> DataSet:
        import torch

        from wavessm.data import source

        paths = self.parts()
        folder = paths["train"].parent
        options = {name: value for name, value in vars(self).items() if name in ("max_length", "min_count")}
        prepared = cached(self.name, folder, paths.values(), options, lambda: self._prepare(paths))
        sources = {
            part: source.Ragged(*(torch.from_numpy(prepared.arrays[f"{field}_{part}"]) for field in _FIELDS))
            for part in paths
        }
        symbols = tuple(prepared.notes["symbols"])
        info = DataInfo("multiclass", 1, len(self.classes), self.max_length, classes=self.classes, symbols=symbols)
        return DataSet(self.name, sources["train"], sources.get("val", sources["train"]), sources["test"], info)

    def _prepare(self, paths: dict[str, Path]) -> Prepared:
        arrays: dict[str, np.ndarray] = {}
        parts, symbols = self.encode(paths)
        for part, cases in parts.items():
            listed = list(cases)
            if not listed:
                raise DataError(f"{paths[part]}: the {part} part has no cases.")
            tokens, labels = zip(*listed, strict=True)
            y, lengths = np.array(labels, np.int64), np.array([len(case) for case in tokens], np.int64)
            starts = np.cumsum(lengths) - lengths
            if self.pairs:
                starts, lengths, y = starts.reshape(-1, 2), lengths.reshape(-1, 2), y[::2]
            values = (np.concatenate(tokens), starts, lengths, y)
            arrays |= {f"{field}_{part}": array for field, array in zip(_FIELDS, values, strict=True)}
        return Prepared(arrays, {"symbols": list(symbols)})


def recipes(batch_size: int, epochs: int, prenorm: bool = True) -> dict[str, Recipe]:
    """Return the recipes of the token sets of the Long Range Arena."""
    post = {} if prenorm else {"prenorm": False}
    paper = Recipe(
        {"d_model": 256, "n_layers": 6, "norm": "batch", "bidirectional": True, **post},
        {"lr": 0.01, "weight_decay": 0.05, "batch_size": batch_size, "epochs": epochs, "eval_batch_size": 64,
         "dt_rate": "global", "precision": "tf32"},
    )  # fmt: skip
    return {"paper": paper, "best": paper.change("as paper; batches hold cases of like length", buckets=8)}
