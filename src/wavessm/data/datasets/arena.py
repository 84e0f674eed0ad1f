"""The token tasks of the Long Range Arena: ListOps, Text (IMDb) and Retrieval (AAN pairs), from their official files.

    listops-1000/basic_{train,val,test}.tsv           a header, expression and value
    aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt  a review each
    tsv_data/new_aan_pairs.{train,eval,test}.tsv      label, id, id, text, text; no header, no quotes

A text is cut to one less than the longest length, and an end token follows. Vocabularies come from the cut training
texts. `pathfinder` and `cifar` hold the picture tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.datasets.pathfinder import PUBLISHED, arena_places
from wavessm.data.source import DataInfo, DataSet
from wavessm.data.tokens import END, SPECIALS, Counter, Tokens, Vocabulary, join
from wavessm.errors import DataError, OptionError, check_int

OPERATORS = ("MIN", "MAX", "MED", "SM")
LISTOPS_FILES = {part: f"basic_{part}.tsv" for part in ("train", "val", "test")}
LISTOPS_FOLDER = "listops-1000"

PARTS = ("train", "val", "test")
LISTOPS_SYMBOLS = (*SPECIALS, *map(str, range(10)), *(f"[{name}" for name in OPERATORS), "X")
IMDB = "https://ai.stanford.edu/~amaas/data/sentiment/"
PAIRS = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
_HOLD_OUT_SEED = 42
_SENTIMENT = {"neg": 0, "pos": 1}


# -- ListOps --------------------------------------------------------------------------------------------------------


def load_listops(root: str | Path, max_length: int = 2048) -> DataSet:
    """x (batch, longest) of 18 symbols, y the value 0 to 9. The closing bracket is X; parentheses are left out."""
    check_int(max_length, "load_listops: max_length", least=2)
    folder = find_listops(root)
    files = {part: folder / name for part, name in LISTOPS_FILES.items()}
    key = {"files": fingerprint(files.values(), folder), "max_length": max_length, "layout": 1}
    build = lambda: _prepare({part: _read_listops(path, max_length) for part, path in files.items()})  # noqa: E731
    prepared = cached(cache_folder(folder.parent), "listops", key, build)
    classes = tuple(map(str, range(10)))
    return _assemble("listops", prepared, _info(classes, LISTOPS_SYMBOLS, max_length))


def find_listops(root: str | Path) -> Path:
    for place in arena_places(root):
        for folder in (place / LISTOPS_FOLDER, place):
            if all((folder / name).is_file() for name in LISTOPS_FILES.values()):
                return folder
    raise DataError(
        f"ListOps: no {LISTOPS_FOLDER}/{LISTOPS_FILES['train']} in {root}; make it with `wavessm data generate "
        f"listops`, or unpack the release of {PUBLISHED}."
    )


def _read_listops(path: Path, max_length: int) -> Iterator[tuple[np.ndarray, int]]:
    numbers = np.zeros(256, np.uint8)
    for letter, symbol in zip(b"0123456789abcd]", LISTOPS_SYMBOLS[len(SPECIALS) :], strict=True):
        numbers[letter] = LISTOPS_SYMBOLS.index(symbol)
    with open(path, "rb") as file:
        if file.readline().split() != [b"Source", b"Target"]:
            raise DataError(f"{path}: the first line is no header; expected the columns Source and Target.")
        for number, line in enumerate(file, 2):
            source, _, target = line.rstrip(b"\r\n").partition(b"\t")
            for letter, name in zip(b"abcd", OPERATORS, strict=True):
                source = source.replace(b"[" + name.encode(), bytes([letter]))
            tokens = numbers[np.frombuffer(source.translate(None, b"() "), np.uint8)]
            if not tokens.size or not tokens.all() or not target.isdigit() or int(target) > 9:
                raise DataError(f"{path}: line {number} is no expression of digits and {', '.join(OPERATORS)} "
                                "with a value from 0 to 9.")  # fmt: skip
            yield np.append(tokens[: max_length - 1], np.uint8(END)), int(target)


# -- Text -----------------------------------------------------------------------------------------------------------


def load_text(root: str | Path, max_length: int = 4096, hold_out: int = 2500, least: int = 15) -> DataSet:
    """IMDb reviews by character; y 1 for a good review.

    hold_out: training reviews (seed 42) that validate. With 0 all reviews train and 2,500 of them are shown as
    validation: select nothing on those, report the last epoch. least: characters rarer than this in training are
    unknown.
    """
    check_int(max_length, "load_text: max_length", least=2)
    folder = find_text(root)
    key = {"files": fingerprint([folder / "train", folder / "test"], folder), "max_length": max_length, "least": least}
    prepared = cached(cache_folder(folder.parent), "text", key, lambda: _prepare_text(folder, max_length, least))
    data = _assemble("text", prepared, _info(("neg", "pos"), tuple(prepared.notes["symbols"]), max_length))
    count = len(data.train)
    if not 0 <= hold_out < count:
        raise OptionError(f"load_text: hold_out is {hold_out}, expected 0 to {count - 1}.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_HOLD_OUT_SEED))
    shown = order[count - (hold_out or min(2500, max(1, count // 10))) :]
    train = order[: count - hold_out].sort().values
    return dataclasses.replace(data, train=_rows(data.train, train), val=_rows(data.train, shown.sort().values))


def find_text(root: str | Path) -> Path:
    for folder in (Path(root) / "aclImdb", Path(root)):
        if (folder / "train" / "pos").is_dir():
            return folder
    raise DataError(f"Text: no aclImdb/train/pos in {root}; get it with `wavessm data fetch text`, or from {IMDB}.")


def _read_reviews(folder: Path, part: str) -> Iterator[tuple[str, int]]:
    for name, label in _SENTIMENT.items():
        paths = sorted((folder / part / name).glob("*.txt"))
        if not paths:
            raise DataError(f"{folder / part / name}: no review in it; unpack the archive again (it is at {IMDB}).")
        for path in paths:
            try:
                yield path.read_text(encoding="utf-8"), label
            except UnicodeDecodeError as reason:
                raise DataError(f"{path}: not UTF-8 text at byte {reason.start}.") from reason


def _prepare_text(folder: Path, max_length: int, least: int) -> Prepared:
    counter = Counter()
    for text, _ in _read_reviews(folder, "train"):
        counter.add(text[: max_length - 1])
    words = Vocabulary(counter.frequent(least))

    def encoded(part: str) -> Iterator[tuple[np.ndarray, int]]:
        return ((words.encode(text, max_length), label) for text, label in _read_reviews(folder, part))

    # Validation is drawn from training when the set is put together; the cache holds the two published parts.
    return _prepare({"train": encoded("train"), "test": encoded("test")}, words.symbols)


# -- Retrieval ------------------------------------------------------------------------------------------------------


def load_retrieval(root: str | Path, max_length: int = 4000) -> DataSet:
    """Pairs of papers by character, x (batch, 2, longest); y 1 where one cites the other."""
    check_int(max_length, "load_retrieval: max_length", least=2)
    folder = find_retrieval(root)
    files = {part: folder / name for part, name in PAIRS.items()}
    key = {"files": fingerprint(files.values(), folder), "max_length": max_length, "layout": 1}
    prepared = cached(cache_folder(folder.parent), "retrieval", key, lambda: _prepare_pairs(files, max_length))
    return _assemble("retrieval", prepared, _info(("apart", "cited"), tuple(prepared.notes["symbols"]), max_length))


def find_retrieval(root: str | Path) -> Path:
    for place in arena_places(root):
        for folder in (place / "tsv_data", place):
            if all((folder / name).is_file() for name in PAIRS.values()):
                return folder
    raise DataError(
        f"Retrieval: no tsv_data/{PAIRS['train']} in {root}; it is in the release of {PUBLISHED} "
        "(`wavessm data fetch retrieval`)."
    )


def _read_pairs(path: Path) -> Iterator[tuple[str, str, int]]:
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\r\n").split("\t")
            if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
                raise DataError(f"{path}: line {number} has {len(fields)} fields and begins with {fields[0][:10]!r}; "
                                "expected label 0 or 1, two ids and two texts.")  # fmt: skip
            yield fields[3], fields[4], int(fields[0][0])


def _prepare_pairs(files: dict[str, Path], max_length: int) -> Prepared:
    counter = Counter()
    for one, other, _ in _read_pairs(files["train"]):
        counter.add(one[: max_length - 1])
        counter.add(other[: max_length - 1])
    words = Vocabulary(counter.frequent(1))

    def encoded(path: Path) -> Iterator[tuple[np.ndarray, int]]:
        for one, other, label in _read_pairs(path):
            yield words.encode(one, max_length), label
            yield words.encode(other, max_length), label

    return _prepare({part: encoded(path) for part, path in files.items()}, words.symbols, pairs=True)


# -- common ---------------------------------------------------------------------------------------------------------


def _prepare(
    parts: dict[str, Iterator[tuple[np.ndarray, int]]], symbols: tuple[str, ...] = (), pairs: bool = False
) -> Prepared:
    """Tokens, starts, lengths and labels of each part; of pairs, cases 2i and 2i + 1 belong together."""
    arrays: dict[str, np.ndarray] = {}
    for part, cases in parts.items():
        tokens, labels = [], []
        for sequence, label in cases:
            tokens.append(sequence)
            labels.append(label)
        if not tokens:
            raise DataError(f"the {part} part has no cases.")
        flat, starts, lengths = join(tokens)
        y = np.array(labels, np.int64)
        if pairs:
            starts, lengths, y = starts.reshape(-1, 2), lengths.reshape(-1, 2), y[::2]
        arrays |= {f"flat_{part}": flat, f"starts_{part}": starts, f"lengths_{part}": lengths, f"y_{part}": y}
    return Prepared(arrays, {"symbols": list(symbols)})


def _assemble(name: str, prepared: Prepared, info: DataInfo) -> DataSet:
    parts = {}
    for part in PARTS:
        if f"flat_{part}" in prepared.arrays:
            fields = (torch.from_numpy(prepared.arrays[f"{field}_{part}"]) for field in _FIELDS)
            parts[part] = Tokens(*fields)
    return DataSet(name, parts["train"], parts.get("val", parts["train"]), parts["test"], info)


_FIELDS = ("flat", "starts", "lengths", "y")


def _info(classes: tuple[str, ...], symbols: tuple[str, ...], max_length: int) -> DataInfo:
    return DataInfo("multiclass", 1, len(classes), max_length, classes=classes, symbols=symbols)


def _rows(source: object, rows: torch.Tensor) -> Tokens:
    assert isinstance(source, Tokens)
    return Tokens(source.flat, source.starts[rows], source.lengths[rows], source.y[rows])
