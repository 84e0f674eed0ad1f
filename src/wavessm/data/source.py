"""What a loader hands to training: sources of batches, and what is known about a set.

A `Source` is one split. It lives whole on one device and gathers batches there, so no worker process is needed.
`DataSet` is three sources with a `DataInfo`. Loaders (`ptbxl`, `forecast`, `window_copy`, `own`) build them;
`training/` draws from them. This file knows no file format.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from wavessm.errors import OptionError, ShapeError

KINDS = ("multilabel", "multiclass", "forecast", "regression")
PAD = 0  # the padding token
_STEP = 64  # widths of buckets are multiples of it


class Batch(NamedTuple):
    """Cases that a model sees at once."""

    x: Tensor  # (batch, length, channels) float, or (batch, length) long for tokens
    y: Tensor  # (batch,) long | (batch, classes) float | (batch, horizon, columns) float | (batch, d_out) float
    lengths: Tensor | None = None  # (batch,) long: true lengths of padded cases
    marks: Tensor | None = None  # (batch, length + horizon, k) calendar features, long where they are embedded


class Source(ABC):
    """One split on one device. Below `to` stands what training asks of it, with what suits most."""

    draws = False
    """Whether `take` draws something: then it must be asked for whole batches, one after another."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of cases, or the size of an epoch where cases are drawn afresh."""

    @abstractmethod
    def take(self, index: Tensor) -> Batch:
        """The cases `index` (batch,) long, gathered on the source's device."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Source:
        """The same cases on another device."""

    @property
    def device(self) -> torch.device:
        """Where the cases are."""
        return torch.device("cpu")

    def arrange(self, order: Tensor, batch_size: int) -> Tensor:
        """An order of all cases, as batches are to be cut from it. (cases,) long"""
        return order.to(self.device)

    def at(self, done: float) -> Self:
        """Itself, ready for what belongs where a part `done` of the run is over, 0 to 1."""
        return self

    def length_at(self, done: float) -> float:
        """How long batches are meant to be there, where the last ones are 1."""
        return 1.0

    def mean_length(self) -> float:
        """Of the batches of a whole run, where the longest are 1."""
        return 1.0

    def get_state(self) -> Tensor | None:
        """What a checkpoint must keep for draws to go on as they would have."""
        return None

    def set_state(self, state: Tensor) -> None:
        """Go on from a state of `get_state`."""
        raise OptionError(f"{type(self).__name__}: draws nothing, so it cannot go on from a generator's state.")


class Arrays(Source):
    """Cases held as tensors.

    x: (cases, length, channels) or tokens (cases, length) long; y: (cases, …); lengths: (cases,) long or None.
    Integers that stand for a signal (int16 ECG) stay integers in memory: `affine = (factor, offset)`, numbers or
    tensors (length, 1), makes `take` return `x * factor + offset` in float32.

    >>> samples = torch.tensor([[[1], [2]], [[3], [4]]], dtype=torch.int16)
    >>> source = Arrays(samples, torch.tensor([0, 1]), affine=(0.5, 1.0))
    >>> source.take(torch.tensor([1])).x.flatten().tolist()
    [2.5, 3.0]
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        lengths: Tensor | None = None,
        affine: tuple[float, float] | tuple[Tensor, Tensor] | None = None,
    ) -> None:
        for name, values in (("y", y), ("lengths", lengths)):
            if values is not None and len(values) != len(x):
                raise ShapeError(f"Arrays: x has {len(x)} cases but {name} has {len(values)}; give one per case.")
        if lengths is not None and len(x) and (int(lengths.min()) < 1 or int(lengths.max()) > x.shape[1]):
            raise ShapeError(f"Arrays: lengths run from {int(lengths.min())} to {int(lengths.max())}, expected 1 to "
                             f"{x.shape[1]}, the length of x.")  # fmt: skip
        self.x, self.y, self.lengths, self.affine = x, y, lengths, affine

    def __len__(self) -> int:
        return len(self.x)

    @property
    def device(self) -> torch.device:
        return self.x.device

    def take(self, index: Tensor) -> Batch:
        index = index.to(self.device)
        x = self.x[index]
        if self.affine is not None:
            x = x.to(torch.float32).mul_(self.affine[0]).add_(self.affine[1])
        return Batch(x, self.y[index], None if self.lengths is None else self.lengths[index])

    def to(self, device: torch.device | str) -> Arrays:
        moved = copy.copy(self)
        moved.x, moved.y = self.x.to(device), self.y.to(device)
        moved.lengths = None if self.lengths is None else self.lengths.to(device)
        if self.affine is not None and isinstance(self.affine[0], Tensor):
            moved.affine = (self.affine[0].to(device), self.affine[1].to(device))
        return moved


class Windows(Source):
    """Stretches of one series: a context and the rows that follow it.

    series: (rows, channels) float; marks: (rows, k) or None; starts: (windows,) long, first row of each context;
    columns: channels of the series to forecast. A batch has x (batch, seq_len, channels),
    y (batch, horizon, len(columns)) and marks (batch, seq_len + horizon, k), zero over the horizon unless `eval_stamp`.

    >>> source = Windows(torch.arange(6.0)[:, None], None, seq_len=3, horizon=2, columns=[0], starts=torch.arange(2))
    >>> batch = source.take(torch.tensor([1]))
    >>> batch.x.flatten().tolist(), batch.y.flatten().tolist()
    ([1.0, 2.0, 3.0], [4.0, 5.0])
    """

    def __init__(
        self,
        series: Tensor,
        marks: Tensor | None,
        seq_len: int,
        horizon: int,
        columns: list[int] | tuple[int, ...],
        starts: Tensor,
        eval_stamp: bool = False,
    ) -> None:
        last = int(starts.max()) + seq_len + horizon if len(starts) else 0
        if last > len(series):
            raise ShapeError(f"Windows: the last window ends at row {last}, but the series has {len(series)} rows.")
        self.series, self.marks, self.starts, self.eval_stamp = series, marks, starts, eval_stamp
        self.seq_len, self.horizon, self.columns = seq_len, horizon, tuple(columns)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def device(self) -> torch.device:
        return self.series.device

    def take(self, index: Tensor) -> Batch:
        steps = torch.arange(self.seq_len + self.horizon, device=self.device)
        rows = self.starts[index.to(self.device)][:, None] + steps  # (batch, seq_len + horizon)
        values = self.series[rows]
        y = values[:, self.seq_len :]
        if self.columns != tuple(range(self.series.shape[1])):
            y = y[..., list(self.columns)]
        marks = None if self.marks is None else self.marks[rows]
        if marks is not None and not self.eval_stamp:
            marks[:, self.seq_len :] = 0
        return Batch(values[:, : self.seq_len], y, marks=marks)

    def to(self, device: torch.device | str) -> Windows:
        moved = copy.copy(self)
        moved.series, moved.starts = self.series.to(device), self.starts.to(device)
        moved.marks = None if self.marks is None else self.marks.to(device)
        return moved


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

    def rows(self, index: Tensor) -> Tokens:
        """Return the cases `index` (cases,) long as a source of their own."""
        return Tokens(self.flat, self.starts[index], self.lengths[index], self.y[index])

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


@dataclasses.dataclass(frozen=True)
class DataInfo:
    """What training, evaluation and prediction need to know about a set. Plain numbers and strings: it goes into JSON.

    scale: (means, standard deviations) of the input channels, one entry where all channels share it; x in a batch is
    (raw - mean) / std. step_scale: the same of every step, for one channel. target_scale: the same of the outputs, for
    "forecast" and "regression". symbols: what the numbers of a token sequence stand for; d_input is then 1.
    """

    kind: str
    d_input: int
    d_output: int
    length: int  # of x; of the context for "forecast"
    classes: tuple[str, ...] = ()
    horizon: int = 0
    columns: tuple[str, ...] = ()  # names of the outputs of a forecast
    channels: tuple[str, ...] = ()  # names of the inputs, where known
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    target_scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    rate: float | None = None  # samples a second
    mark_sizes: tuple[int, ...] = ()  # table sizes of marks that are embedded (timeenc 0)
    mark_width: int = 0  # number of marks that are real (timeenc 1)
    target_variance: float | None = None  # known in closed form for generated sets
    step: float | None = None  # seconds between rows of a series
    offset: str = ""  # of its clock to UTC, where the dates say it
    skipped: tuple[str, ...] = ()  # bad files left out with skip_bad
    symbols: tuple[str, ...] = ()
    step_scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    parts: tuple[str, ...] = ()  # of the test split: equally many cases each, one after another, scored apart

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"DataInfo: kind is {self.kind!r}, expected one of {', '.join(KINDS)}.")

    def standardise(self, x: Tensor) -> Tensor:
        """Raw values (…, channels) to the scale of x in a batch."""
        if self.step_scale is not None:
            mean, std = (_row(values[: x.shape[-2]], x)[:, None] for values in self.step_scale)
            return (x[..., : len(mean), :] - mean) / std
        return x if self.scale is None else (x - _row(self.scale[0], x)) / _row(self.scale[1], x)

    def restore(self, y: Tensor) -> Tensor:
        """Outputs (…, d_output) back to the units of the data, in float64: a large level leaves float32 few digits."""
        y = y.double()
        return y if self.target_scale is None else y * _row(self.target_scale[1], y) + _row(self.target_scale[0], y)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DataInfo:
        """Back from `to_dict`, lists (JSON knows no tuples) included.

        >>> info = DataInfo("regression", 2, 1, 10, scale=((0.0, 1.0), (1.0, 2.0)))
        >>> import json
        >>> DataInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info
        True
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise OptionError(f"DataInfo: unknown field {unknown[0]!r}; written by another version of wavessm?")
        return cls(**{name: _tuples(value) for name, value in values.items()})


def _row(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Three splits and what is known about them."""

    name: str
    train: Source
    val: Source
    test: Source
    info: DataInfo

    def to(self, device: torch.device | str) -> DataSet:
        """All three splits on a device."""
        parts = {part: getattr(self, part).to(device) for part in ("train", "val", "test")}
        return dataclasses.replace(self, **parts)


def split_set(
    name: str,
    arrays: Mapping[str, np.ndarray],
    info: DataInfo,
    affine: tuple[float, float] | tuple[Tensor, Tensor] | None = None,
) -> DataSet:
    """Return the set of the arrays x_train, y_train, x_val, y_val, x_test, y_test; see `Arrays` for `affine`."""

    def part(name: str) -> Arrays:
        return Arrays(torch.from_numpy(arrays[f"x_{name}"]), torch.from_numpy(arrays[f"y_{name}"]), affine=affine)

    return DataSet(name, part("train"), part("val"), part("test"), info)
