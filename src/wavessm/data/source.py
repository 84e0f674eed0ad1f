"""One split of a set: a `Source`, on one device as a whole. It gathers batches there, without worker processes.

`crops.py` has the sources that draw at random; `training/` takes batches from all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from wavessm.data.info import DataInfo as DataInfo
from wavessm.data.info import DataSet as DataSet

PAD = 0  # the padding token
IGNORED = -100  # the label of a padded step, which the cross-entropy of torch leaves out
Affine = tuple[float, float]
_STEP = 64  # widths of buckets are multiples of it


class Batch(NamedTuple):
    """Cases that a model sees at once."""

    x: Tensor  # (batch, length, channels) float, or (batch, length) long for tokens
    y: Tensor  # (batch[, length]) long | (batch, classes or numbers) float | (batch, horizon, columns) float
    lengths: Tensor | None = None  # (batch,) long: true lengths of padded cases
    marks: Tensor | None = None  # (batch, length + horizon, k) calendar features, long where they are embedded
    weight: Tensor | None = None  # (batch,) of the cases in the training loss
    times: Tensor | None = None  # (batch, length + horizon) float64: when samples were taken, in steps
    partner: Tensor | None = None  # (batch,) long: the case that each one was mixed with
    share: Tensor | None = None  # () of a case itself in the mixture
    rate: float = 1.0  # factor on the steps of the model

    def inputs(self) -> dict[str, Any]:
        """What a model is given beside x; times and rate only where they say something: not every model reads them."""
        times = {} if self.times is None else {"times": self.times}
        rate = {} if self.rate == 1.0 else {"rate": self.rate}
        return {"lengths": self.lengths, "marks": self.marks, **times, **rate}


class Source:
    """One split on one device. Subclasses define `__len__` and `take`; the rest has defaults."""

    draws = False
    """Whether `take` draws at random: then it must be called for whole batches, one after another."""
    weight: Tensor | None = None
    """Weights of the cases (cases,) in the training loss."""
    groups: np.ndarray | None = None
    """Names of the groups of the cases (cases,), for scores."""
    times: Tensor | None = None
    """When the samples of irregular signals were taken, float64, in the shape of the signals without channels."""
    _stay: tuple[str, ...] = ()  # attributes that `to` leaves on the CPU

    def __len__(self) -> int:
        """Return the number of cases, or the size of an epoch where cases are generated."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Batch:
        """Return the cases `index` (batch,) long, gathered on the source's device."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> Self:
        """Return the same cases on another device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor | Source) and name not in self._stay:
                setattr(moved, name, value.to(device))
        return moved

    @property
    def device(self) -> torch.device:
        """Where the cases are."""
        tensors = (value for value in vars(self).values() if isinstance(value, Tensor))
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def arrange(self, order: Tensor, batch_size: int) -> Tensor:
        """Return an order of all cases (cases,) long, as batches are to be cut from it."""
        return order.to(self.device)

    def split(self, index: Tensor, batch_size: int) -> list[Tensor]:
        """Cut cases into batches for evaluation, in their order."""
        return list(index.split(batch_size))

    def at(self, done: float) -> Self:
        """Return the source at training progress `done` in [0, 1]."""
        return self

    def length_at(self, done: float) -> float:
        """Return the relative batch length at training progress `done` (1.0 = longest)."""
        return 1.0

    def get_state(self) -> Tensor | None:
        """Return the generator's state for a checkpoint; None where nothing is drawn."""
        return None

    def set_state(self, state: Tensor) -> None:
        """Continue from a state of `get_state`; sources that draw nothing ignore it."""


class Arrays(Source):
    """Cases held as tensors.

    Args:
        x: (cases, length, channels), or tokens (cases, length) long.
        y: (cases, …).
        lengths: (cases,) long, or None.
        affine: factor and offset: integers that stand for a signal (int16 ECG) stay integers in memory, and `take`
            returns `x * factor + offset` in float32.

    >>> samples = torch.tensor([[[1], [2]], [[3], [4]]], dtype=torch.int16)
    >>> source = Arrays(samples, torch.tensor([0, 1]), affine=(0.5, 1.0))
    >>> source.take(torch.tensor([1])).x.flatten().tolist()
    [2.5, 3.0]
    """

    def __init__(self, x: Tensor, y: Tensor, lengths: Tensor | None = None, affine: Affine | None = None) -> None:
        self.x, self.y, self.lengths, self.affine = x, y, lengths, affine

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> Batch:
        index = index.to(self.device)
        x = self.x[index]
        if self.affine is not None:
            x = x.to(torch.float32).mul_(self.affine[0]).add_(self.affine[1])
        lengths, weight, times = (None if t is None else t[index] for t in (self.lengths, self.weight, self.times))
        return Batch(x, self.y[index], lengths, None, weight, times)


@dataclass(eq=False)
class Windows(Source):
    """Windows of one series: a context and the rows that follow it.

    Calendar marks of the horizon are zero unless `future_calendar`.

    >>> source = Windows(torch.arange(6.0)[:, None], None, context=3, horizon=2, starts=torch.arange(2))
    >>> batch = source.take(torch.tensor([1]))
    >>> batch.x.flatten().tolist(), batch.y.flatten().tolist()
    ([1.0, 2.0, 3.0], [4.0, 5.0])
    """

    series: Tensor  # (rows, channels) float
    marks: Tensor | None  # (rows, k)
    context: int  # rows of x
    horizon: int  # rows of y
    starts: Tensor  # (windows,) long, first row of each context
    future_calendar: bool = False
    gaps: Tensor | None = None  # (rows, channels) bool, values that were not observed: NaN in y

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Values (time, columns), the same with NaN where not observed, and the row after each context."""
        values = self.series.double()
        truth = values if self.gaps is None else values.masked_fill(self.gaps, torch.nan)
        yield values.cpu().numpy(), truth.cpu().numpy(), self.starts.cpu().numpy() + self.context

    def take(self, index: Tensor) -> Batch:
        steps = torch.arange(self.context + self.horizon, device=self.device)
        rows = self.starts[index.to(self.device)][:, None] + steps  # (batch, context + horizon)
        values = self.series[rows]
        y = values[:, self.context :]
        if self.gaps is not None:
            y = y.masked_fill(self.gaps[rows[:, self.context :]], torch.nan)
        marks = None if self.marks is None else self.marks[rows]
        if marks is not None and not self.future_calendar:
            marks[:, self.context :] = 0
        return Batch(values[:, : self.context], y, marks=marks)


class Ragged(Source):
    """Cases of unequal length as parts of one long row `flat`, (tokens,) whole numbers or (samples, channels) float.

    `starts` and `lengths` are (cases,) long, or (cases, 2) for pairs. A batch has x (batch, longest, channels), for
    tokens (batch, longest) long or (batch, 2, longest) for pairs of them, filled up with zeros (the padding token) to
    its own longest case, and its lengths. y has a row for each case or, with `by_step`, a label for each sample,
    `IGNORED` where a batch is filled up. After `in_buckets`, `arrange` puts cases of like length into one batch.

    >>> source = Ragged(torch.tensor([5, 6, 7, 8, 2]), torch.tensor([0, 2]), torch.tensor([2, 3]), torch.tensor([0, 1]))
    >>> source.take(torch.tensor([0, 1])).x.tolist()
    [[5, 6, 0], [7, 8, 2]]
    """

    by_step = False
    _stay = ("sizes",)  # looked up for every batch

    def __init__(self, flat: Tensor, starts: Tensor, lengths: Tensor, y: Tensor) -> None:
        self.flat, self.starts, self.lengths, self.y = flat, starts, lengths, y
        self.sizes = lengths.cpu().flatten(1).amax(1) if lengths.dim() > 1 else lengths.cpu()  # (cases,)
        self.widths: tuple[int, ...] = ()
        self.filled = True  # batches up to their width, not to their longest case

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, index: Tensor) -> Batch:
        steps = torch.arange(self._width(index), device=self.device)
        index = index.to(self.device, non_blocking=True)
        lengths = self.lengths[index]
        at = (self.starts[index][..., None] + steps).clamp_(max=len(self.flat) - 1)
        x, padded = self.flat[at], steps >= lengths[..., None]
        x = x.masked_fill_(padded[..., None], 0) if self.is_signal else x.long().masked_fill_(padded, PAD)
        y = self.y[at].masked_fill_(padded, IGNORED) if self.by_step else self.y[index]
        weight, times = (None if all_ is None else all_[i] for all_, i in ((self.weight, index), (self.times, at)))
        return Batch(x, y, lengths, None, weight, times)

    @property
    def is_signal(self) -> bool:
        """Whether the cases are signals, not tokens."""
        return self.flat.dim() == 2

    def _width(self, index: Tensor) -> int:
        if len(self.widths) == 1 and self.filled:
            return self.widths[0]
        longest = int(self.sizes[index.cpu()].max())
        return next((width for width in self.widths if width >= longest and self.filled), longest)

    def rows(self, index: Tensor) -> Ragged:
        """Return the cases `index` (cases,) long as a source of their own."""
        return Ragged(self.flat, self.starts[index], self.lengths[index], self.y[index])

    def in_buckets(self, count: int, filled: bool = True) -> Ragged:
        """Return the same cases, batches of like lengths in at most `count` buckets, the same number of cases to each.

        `filled` batches have the width of their bucket, else that of their own longest case. With one bucket, filled,
        every batch is as wide as the longest case: fixed shapes, and no length is read.
        """
        shares = torch.arange(1, count + 1, dtype=torch.float64) / count
        quantiles = torch.quantile(self.sizes.double(), shares, interpolation="higher").long()
        rounded = (quantiles + _STEP - 1) // _STEP * _STEP
        sorted_ = copy.copy(self)
        sorted_.widths = tuple(sorted(set(rounded.clamp(max=int(self.sizes.max())).tolist())))
        sorted_.filled = filled
        return sorted_

    def arrange(self, order: Tensor, batch_size: int) -> Tensor:
        """Rearrange an order of all cases so that batches hold cases of one width; batches come in any order.

        A batch at the border of two widths has the larger one; the last, incomplete batch stays last. The order stays
        on the CPU, where lengths are looked up.
        """
        if len(self.widths) < 2:
            return order
        bucket = torch.searchsorted(torch.tensor(self.widths), self.sizes[order])
        together = order[bucket.argsort(stable=True)]
        whole = len(order) // batch_size
        batches = together[: whole * batch_size].view(whole, batch_size)[order[:whole].argsort()]
        return torch.cat([batches.flatten(), together[whole * batch_size :]])

    def split(self, index: Tensor, batch_size: int) -> list[Tensor]:
        """Cut in order, with at most `batch_size` times the mean length of padded steps in a batch."""
        parts, first, room = [], 0, batch_size * float(self.sizes.double().mean())
        sizes = self.sizes[index.cpu()].tolist()
        widest = 0
        for at, size in enumerate(sizes):
            widest = max(widest, size)
            if at > first and ((at + 1 - first) * widest > room or at - first == batch_size):
                parts.append(index[first:at])
                first, widest = at, size
        return [*parts, index[first:]]
