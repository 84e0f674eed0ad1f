"""Token sequences of different lengths: vocabularies, and a source that pads batches, of cases of like length if asked.

Place in the pipeline: `arena` encodes texts with a `Vocabulary` and hands them on as `Tokens`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wavessm.data.source import Batch, Source
from wavessm.errors import OptionError, ShapeError

SPECIALS = ("<pad>", "<unk>", "<eos>")
PAD, UNKNOWN, END = range(3)
_CODES = 0x110000  # of Unicode
_STEP = 64  # widths of buckets are multiples of it


class Tokens(Source):
    """Cases as stretches of one long row of tokens.

    flat: (tokens,) whole numbers; starts, lengths: (cases,), or (cases, 2) for pairs; y: (cases,) long. A batch has
    x (batch, longest) long, or (batch, 2, longest), filled up with the padding token, and its lengths. With `widths`
    (`in_buckets`) it is filled up to the next of them, and `arrange` puts cases of like length into one batch.

    >>> source = Tokens(torch.tensor([5, 6, 7, 8, 2]), torch.tensor([0, 2]), torch.tensor([2, 3]), torch.tensor([0, 1]))
    >>> source.take(torch.tensor([0, 1])).x.tolist()
    [[5, 6, 0], [7, 8, 2]]
    """

    def __init__(self, flat: Tensor, starts: Tensor, lengths: Tensor, y: Tensor) -> None:
        if starts.shape != lengths.shape or len(y) != len(starts):
            raise ShapeError(
                f"Tokens: starts {tuple(starts.shape)}, lengths {tuple(lengths.shape)} and y {tuple(y.shape)}; "
                "expected one of each for every case."
            )
        if len(y) and (int(lengths.min()) < 1 or int((starts + lengths).max()) > len(flat)):
            raise ShapeError(f"Tokens: a case is empty or ends behind the {len(flat)} tokens there are.")
        self.flat, self.starts, self.lengths, self.y = flat, starts, lengths, y
        self.sizes = lengths.cpu().flatten(1).amax(1) if lengths.dim() > 1 else lengths.cpu()  # of cases; read often
        self.widths: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        return self.flat.device

    def take(self, index: Tensor) -> Batch:
        steps = torch.arange(self._width(index), device=self.device)
        index = index.to(self.device, non_blocking=True)
        lengths = self.lengths[index]
        at = (self.starts[index][..., None] + steps).clamp_(max=len(self.flat) - 1)
        x = self.flat[at].long().masked_fill_(steps >= lengths[..., None], PAD)
        return Batch(x, self.y[index], lengths)

    def _width(self, index: Tensor) -> int:
        if len(self.widths) == 1:
            return self.widths[0]
        longest = int(self.sizes[index.cpu()].max())
        return next((width for width in self.widths if width >= longest), longest)

    def in_buckets(self, count: int) -> Tokens:
        """The same cases, batches filled up to one of so many widths at most, equally many cases to each.

        With one, every batch is as wide as the longest case: fixed shapes, and no length is read.
        """
        if count < 1 or not len(self):
            raise OptionError(f"Tokens.in_buckets: {count} buckets for {len(self)} cases; expected one of each.")
        shares = torch.arange(1, count + 1, dtype=torch.float64) / count
        quantiles = torch.quantile(self.sizes.double(), shares, interpolation="higher").long()
        rounded = (quantiles + _STEP - 1) // _STEP * _STEP
        sorted_ = copy.copy(self)
        sorted_.widths = tuple(sorted(set(rounded.clamp(max=int(self.sizes.max())).tolist())))
        return sorted_

    def arrange(self, order: Tensor, batch_size: int) -> Tensor:
        """An order of all cases, rearranged so that batches hold cases of one width; batches come in any order.

        A batch at the border of two widths has the larger one; the last batch, not a whole one, stays last. The order
        stays on the CPU, where lengths are looked up.
        """
        if len(self.widths) < 2:
            return order
        bucket = torch.searchsorted(torch.tensor(self.widths), self.sizes[order])
        together = order[bucket.argsort(stable=True)]
        whole = len(order) // batch_size
        batches = together[: whole * batch_size].view(whole, batch_size)[order[:whole].argsort()]
        return torch.cat([batches.flatten(), together[whole * batch_size :]])

    def mean_length(self) -> float:
        """Of batches in buckets, each as wide as its bucket."""
        if len(self.widths) < 2:
            return 1.0
        widths = torch.tensor(self.widths)
        return float(widths[torch.searchsorted(widths, self.sizes)].double().mean()) / self.widths[-1]

    def to(self, device: torch.device | str) -> Tokens:
        moved = copy.copy(self)
        moved.flat, moved.y = self.flat.to(device), self.y.to(device)
        moved.starts, moved.lengths = self.starts.to(device), self.lengths.to(device)
        return moved


class Vocabulary:
    """Characters and their numbers; the first three are padding, unknown, end.

    >>> words = Vocabulary("abc")
    >>> words.encode("abx", longest=10).tolist(), len(words)
    ([3, 4, 1, 2], 6)
    """

    def __init__(self, characters: Sequence[str]) -> None:
        self.symbols = (*SPECIALS, *characters)
        if len(set(self.symbols)) != len(self.symbols):
            raise OptionError("Vocabulary: a character is listed twice.")
        self.dtype = np.uint8 if len(self.symbols) <= 256 else np.int32
        self._numbers = np.full(_CODES, UNKNOWN, self.dtype)
        for number, character in enumerate(characters, len(SPECIALS)):
            self._numbers[ord(character)] = number

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str, longest: int) -> np.ndarray:
        """Numbers of at most longest − 1 characters, and the end."""
        codes = codes_of(text[: longest - 1])
        return np.append(self._numbers[codes], self.dtype(END))


class Counter:
    """Counts characters text by text."""

    def __init__(self) -> None:
        self.counts = np.zeros(_CODES, np.int64)

    def add(self, text: str) -> None:
        codes, counts = np.unique(codes_of(text), return_counts=True)
        self.counts[codes] += counts

    def frequent(self, least: int) -> list[str]:
        """Characters that occur so often, by number in Unicode.

        >>> counter = Counter()
        >>> counter.add("banana")
        >>> counter.frequent(2)
        ['a', 'n']
        """
        return [chr(code) for code in np.flatnonzero(self.counts >= least)]


def codes_of(text: str) -> np.ndarray:
    """Unicode numbers of a text, (characters,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def join(cases: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cases in one row: tokens, starts and lengths."""
    lengths = np.array([len(case) for case in cases], np.int64)
    return np.concatenate(cases), np.cumsum(lengths) - lengths, lengths
