"""Characters as numbers, and sets of token sequences. `datasets/text.py`, `retrieval.py` and `listops.py` use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wavessm.data.cache import Prepared, cached
from wavessm.data.source import DataInfo, DataSet, Tokens
from wavessm.errors import DataError

SPECIALS = ("<pad>", "<unk>", "<eos>")
UNKNOWN, END = 1, 2
_CODES = 0x110000  # of Unicode
_FIELDS = ("flat", "starts", "lengths", "y")

TokenParts = tuple[Mapping[str, Iterator[tuple[np.ndarray, int]]], Sequence[str]]
"""Sequences with their labels, by part, and the symbols that the numbers stand for."""


class Vocabulary:
    """Characters and their numbers; the first three are padding, unknown, end.

    >>> words = Vocabulary("abc")
    >>> words.encode("abx", longest=10).tolist(), len(words.symbols)
    ([3, 4, 1, 2], 6)
    """

    def __init__(self, characters: Sequence[str]) -> None:
        self.symbols = (*SPECIALS, *characters)
        self.dtype = np.uint8 if len(self.symbols) <= 256 else np.int32
        self._numbers = np.full(_CODES, UNKNOWN, self.dtype)
        for number, character in enumerate(characters, len(SPECIALS)):
            self._numbers[ord(character)] = number

    @classmethod
    def of(cls, texts: Iterable[str], min_count: int) -> Vocabulary:
        """Return the characters that occur `min_count` times or more, in the order of Unicode.

        >>> Vocabulary.of(["ban", "ana"], min_count=2).symbols[3:]
        ('a', 'n')
        """
        counts = np.zeros(_CODES, np.int64)
        for text in texts:
            codes, found = np.unique(_codes(text), return_counts=True)
            counts[codes] += found
        return cls([chr(code) for code in np.flatnonzero(counts >= min_count)])

    def encode(self, text: str, longest: int) -> np.ndarray:
        """Return the numbers of at most longest − 1 characters, and the end."""
        return np.append(self._numbers[_codes(text[: longest - 1])], self.dtype(END))


def _codes(text: str) -> np.ndarray:
    """Unicode numbers of a text, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def token_set(
    name: str,
    folder: Path,
    files: Iterable[Path],
    options: dict[str, Any],
    classes: tuple[str, ...],
    read: Callable[[], TokenParts],
    pairs: bool = False,
) -> DataSet:
    """Return a set of token sequences, from the cache where it is in it.

    Args:
        name: of the set.
        folder: of the set.
        files: files and folders below it that the set depends on.
        options: options that it depends on, "max_length" among them.
        classes: names of the classes.
        read: reads the parts; where "val" is not among them, it is the training part.
        pairs: whether sequences 2i and 2i + 1 belong together.
    """

    def build() -> Prepared:
        parts, symbols = read()
        arrays: dict[str, np.ndarray] = {}
        for part, cases in parts.items():
            listed = list(cases)
            if not listed:
                raise DataError(f"{folder}: the {part} part has no cases.")
            tokens, labels = zip(*listed, strict=True)
            y, lengths = np.array(labels, np.int64), np.array([len(case) for case in tokens], np.int64)
            starts = np.cumsum(lengths) - lengths
            if pairs:
                starts, lengths, y = starts.reshape(-1, 2), lengths.reshape(-1, 2), y[::2]
            values = (np.concatenate(tokens), starts, lengths, y)
            arrays |= {f"{field}_{part}": array for field, array in zip(_FIELDS, values, strict=True)}
        return Prepared(arrays, {"symbols": list(symbols)})

    prepared = cached(name, folder, files, options, build)
    sources = {
        part: Tokens(*(torch.from_numpy(prepared.arrays[f"{field}_{part}"]) for field in _FIELDS))
        for part in ("train", "val", "test")
        if f"flat_{part}" in prepared.arrays
    }
    symbols = tuple(prepared.notes["symbols"])
    info = DataInfo("multiclass", 1, len(classes), options["max_length"], classes=classes, symbols=symbols)
    return DataSet(name, sources["train"], sources.get("val", sources["train"]), sources["test"], info)
