"""Encoders, from inputs of any kind to (batch, length, d_model), and instance normalisation.

The output of an encoder at one step depends on no other step, so padding and streams need no care here. Values are
checked only on the CPU: on a GPU the host would wait for the device. Read next: `backbones.py`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import OptionError, can_sync, shape_error
from wavessm.nn.config import ModelConfig
from wavessm.nn.layer import time_mask


def _check_range(x: Tensor, what: str, size: int, advice: str) -> None:
    """Raise unless x holds whole numbers of any type from 0 to size − 1; values are read on the CPU only."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise OptionError(f"SequenceModel: {what} are {x.dtype}, expected whole numbers; use .long().")
    if not can_sync(x) or not x.numel():
        return
    low, high = (int(value) for value in x.long().aminmax())  # not every integer type has a minimum
    if low < 0 or high >= size:
        raise OptionError(f"SequenceModel: {what} run from {low} to {high}, expected 0 to {size - 1}; {advice}.")


class LinearEncoder(nn.Module):
    """Channels of a signal through a Linear, (batch, length, d_input) → (batch, length, d_model).

    With `missing`, the Linear reads as many channels again: 1 where a number was there, 0 where it was NaN.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_input = config.d_input
        self.linear = nn.Linear(config.d_input * (1 if config.missing == "error" else 2), config.d_model)

    def check(self, x: Tensor) -> None:
        """Raise for an input that is not (batch, length, d_input) of real numbers."""
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != self.d_input or 0 in x.shape:
            raise shape_error("SequenceModel: x", x, f"a tensor (batch, length, d_input) = (≥ 1, ≥ 1, {self.d_input})")
        if not x.is_floating_point():
            raise OptionError(f"SequenceModel: x is {x.dtype}, expected real numbers; use x.float().")

    def forward(self, x: Tensor, marks: Tensor | None, ahead: Tensor | None) -> Tensor:
        """Encode x; marks and ahead are those of `CalendarEncoder`."""
        return self.linear(x.to(self.linear.weight.dtype))


class EmbeddingEncoder(nn.Module):
    """A learned vector for each token, (batch, length) whole numbers → (batch, length, d_model)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(cast(int, config.vocabulary), config.d_model)

    def check(self, x: Tensor) -> None:
        """Raise for tokens that are not (batch, length) or not in the vocabulary."""
        if not isinstance(x, Tensor) or x.dim() != 2 or 0 in x.shape:
            raise shape_error("SequenceModel: x", x, "tokens, a tensor (batch, length) = (≥ 1, ≥ 1)")
        _check_range(x, "tokens", self.table.num_embeddings, "set vocabulary to one more than the largest token")

    def forward(self, x: Tensor, marks: Tensor | None, ahead: Tensor | None) -> Tensor:
        """Encode tokens x (batch, length); marks and ahead are not used."""
        return self.table(x.long())


class CalendarEncoder(LinearEncoder):
    """Values through a Linear, plus marks of the calendar, plus a mark for steps of the horizon."""

    starts: Tensor  # first row of each table among the rows of all

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.horizon_mask, self.width = config.horizon_mask, len(config.mark_sizes) or config.mark_width
        if config.mark_sizes:
            self.tables = nn.ModuleList(nn.Embedding(size, config.d_model) for size in config.mark_sizes)
            self.register_buffer("starts", torch.tensor([0, *config.mark_sizes[:-1]]).cumsum(0), persistent=False)
        else:
            self.marks = nn.Linear(config.mark_width, config.d_model)
        if config.head == "forecast":
            self.horizon = nn.Embedding(2, config.d_model)

    def check_marks(self, marks: Tensor | None, batch: int, length: int, horizon: int) -> None:
        """Raise for marks that are not (batch, length [+ horizon], k) or not in the range of their tables."""
        lengths = [length, length + horizon] if horizon else [length]
        expected = f"(batch, length, marks) = ({batch}, {' or '.join(map(str, lengths))}, {self.width})"
        if not isinstance(marks, Tensor) or tuple(marks.shape) not in [(batch, each, self.width) for each in lengths]:
            raise shape_error("SequenceModel: marks", marks, f"a tensor {expected}")
        if hasattr(self, "tables"):
            for column, table in enumerate(self.tables):
                size = cast(nn.Embedding, table).num_embeddings
                _check_range(marks[..., column], f"marks of column {column}", size, "see mark_sizes")

    def forward(self, x: Tensor, marks: Tensor | None, ahead: Tensor | None) -> Tensor:
        """Encode values x (batch, length, d_input) with their marks (batch, length, k), zero where these end before x.

        Marks are whole numbers, one table each, summed; or real numbers through a Linear. Steps of the horizon, where
        `ahead` (batch or 1, length, 1) is True, have a row of their own if the config has horizon_mask.
        """
        assert marks is not None
        missing = x.shape[1] - marks.shape[1]
        marks = F.pad(marks, (0, 0, 0, max(0, missing)))[:, : x.shape[1]]
        if missing > 0 and ahead is not None:
            marks = marks.masked_fill(ahead, 0)  # a padded context ends before the others do
        # All of it is linear, so it is one product: values, marks and the mark of the horizon beside each other.
        columns, weights = [x], [self.linear.weight]
        bias: Tensor = self.linear.bias
        if hasattr(self, "tables"):
            columns.append(self._indicators(marks))
            weights += [cast(nn.Embedding, table).weight.mT for table in self.tables]
        else:
            columns.append(marks)
            weights, bias = [*weights, self.marks.weight], bias + self.marks.bias
        if ahead is not None and hasattr(self, "horizon"):
            here, there = self.horizon.weight
            bias = bias + here
            if self.horizon_mask:
                columns.append(ahead.expand(x.shape[0], -1, -1))
                weights.append((there - here)[:, None])
        joined = torch.cat([column.to(bias.dtype) for column in columns], dim=-1)
        spare = -joined.shape[-1] % 8  # products of other widths are slow on GPUs
        return F.linear(F.pad(joined, (0, spare)), F.pad(torch.cat(weights, dim=1), (0, spare)), bias)

    def _indicators(self, marks: Tensor) -> Tensor:
        """A one for each mark at its row of its table, the tables after each other. (batch, length, rows of all)"""
        rows = sum(cast(nn.Embedding, table).num_embeddings for table in self.tables)
        zeros = self.linear.weight.new_zeros(marks.shape[0], marks.shape[1], rows)
        return zeros.scatter(-1, marks + self.starts, 1.0)


class InstanceNorm(nn.Module):
    """Subtract the level of each context, column by column, and add it to the forecast.

    The kinds are "none", "last" (value), "mean", and "mean_std", which also divides by the standard deviation.

    >>> scaled, centre, scale = InstanceNorm("last")(torch.tensor([[[1.0], [3.0]]]))
    >>> scaled.flatten().tolist(), centre.item(), scale
    ([-2.0, 0.0], 3.0, None)
    """

    FLOOR = 1e-5

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return contexts (batch, length, columns), zero beyond lengths (batch,), their centre and scale, or None.

        Both are (batch, 1, columns).
        """
        centre, scale = None, None
        if self.kind == "last":
            centre = x[:, -1:] if lengths is None else take_steps(x, lengths[:, None] - 1)
        elif self.kind != "none":
            centre = masked_mean(x, lengths)[:, None].to(x.dtype)
        if centre is not None:
            x = x - centre
        if self.kind == "mean_std":
            scale = masked_mean(x.square(), lengths)[:, None].to(x.dtype).clamp(min=self.FLOOR**2).sqrt()
            x = x / scale
        return x if lengths is None else x.masked_fill(~time_mask(lengths, x.shape[1]), 0), centre, scale

    def undo(self, y: Tensor, centre: Tensor | None, scale: Tensor | None) -> Tensor:
        """Return forecasts (batch, horizon, d_output) at the level of the last d_output columns."""
        if scale is not None:
            y = y * scale[..., -y.shape[-1] :]
        return y if centre is None else y + centre[..., -y.shape[-1] :]


def hold(x: Tensor, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Replace NaN by the value before it in the same channel, or by `last` (batch, d) where there is none.

    Returns the filled values and True where there was a number, both (batch, length, d).

    >>> filled, seen = hold(torch.tensor([[[torch.nan], [2.0], [torch.nan]]]))
    >>> filled.flatten().tolist(), seen.flatten().tolist()
    ([0.0, 2.0, 2.0], [False, True, False])
    """
    seen = ~x.isnan()
    steps = torch.arange(x.shape[1], device=x.device)[:, None]
    latest = torch.where(seen, steps, -1).cummax(1).values
    start = torch.zeros_like(x[:, :1]) if last is None else last[:, None]
    return torch.where(latest >= 0, x.masked_fill(~seen, 0).gather(1, latest.clamp(min=0)), start), seen


def masked_mean(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the mean over the true length, at least in float32, (batch, length, d) → (batch, d)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if lengths is None:
        return x.mean(1, dtype=dtype)
    return x.masked_fill(~time_mask(lengths, x.shape[1]), 0).sum(1, dtype=dtype) / lengths[:, None]


def take_steps(x: Tensor, steps: Tensor) -> Tensor:
    """Return steps of each sequence by index, (batch, length, d) and (batch, k) → (batch, k, d)."""
    return x.gather(1, steps[..., None].expand(-1, -1, x.shape[-1]))
