"""Characters as numbers, and sets of token sequences. `datasets/text.py`, `retrieval.py` and `listops.py` use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
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


def cached_tokens(
    name: str,
    folder: Path,
    files: Iterable[Path],
    options: Mapping[str, Any],
    read: Callable[[], TokenParts],
    pairs: bool = False,
) -> Prepared:
    """Tokens, starts, lengths and labels of each part, from the cache where they are in it.

    Args:
        name: of the cache file.
        folder: of the set; the cache is beside it.
        files: files and folders that the result depends on.
        options: options that it depends on.
        read: reads the parts.
        pairs: whether sequences 2i and 2i + 1 belong together.
    """

    def build() -> Prepared:
        parts, symbols = read()
        arrays: dict[str, np.ndarray] = {}
        for part, cases in parts.items():
            tokens, labels = [], []
            for sequence, label in cases:
                tokens.append(sequence)
                labels.append(label)
            if not tokens:
                raise DataError(f"{folder}: the {part} part has no cases.")
            y, lengths = np.array(labels, np.int64), np.array([len(case) for case in tokens], np.int64)
            starts = np.cumsum(lengths) - lengths
            if pairs:
                starts, lengths, y = starts.reshape(-1, 2), lengths.reshape(-1, 2), y[::2]
            values = (np.concatenate(tokens), starts, lengths, y)
            arrays |= {f"{field}_{part}": array for field, array in zip(_FIELDS, values, strict=True)}
        return Prepared(arrays, {"symbols": list(symbols)})

    key = {"files": fingerprint(files, folder), **options, "layout": 2}
    return cached(cache_folder(folder.parent), name, key, build)


def token_set(name: str, prepared: Prepared, classes: tuple[str, ...], max_length: int) -> DataSet:
    """Put a set together; where no validation part was read, it is the training part."""
    parts = {
        part: Tokens(*(torch.from_numpy(prepared.arrays[f"{field}_{part}"]) for field in _FIELDS))
        for part in ("train", "val", "test")
        if f"flat_{part}" in prepared.arrays
    }
    symbols = tuple(prepared.notes["symbols"])
    info = DataInfo("multiclass", 1, len(classes), max_length, classes=classes, symbols=symbols)
    return DataSet(name, parts["train"], parts.get("val", parts["train"]), parts["test"], info)
