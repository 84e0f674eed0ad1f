"""Heads, from features (batch, length, d_model) to the output of a task.

pool      (batch, d_output)           mean over the true length, then Linear
last      (batch, d_output)           the last true step
sequence  (batch, length, d_output)   every step; zero where padded
forecast  (batch, horizon, d_output)  the steps after the context
pair      (batch, d_output)           two sequences, pooled to a and b; [a, b, a − b, a · b] through two Linears

A forecast may also have a `DirectPath` beside encoder and backbone. Read next: `model.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.nn.config import ModelConfig
from wavessm.nn.encoders import masked_mean, take_steps
from wavessm.nn.layer import time_mask


class PooledState(NamedTuple):
    """Running mean of a stream for the pooled head, in float64: in float32 neither would change after 2²⁴ samples."""

    mean: Tensor  # (batch, d_model)
    steps: Tensor  # (batch, 1)


class Head(nn.Module):
    """The head of a config: features of some steps through a Linear."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.horizon = config.head, config.horizon or 0
        if self.kind == "pair":
            self.compare = nn.Linear(4 * config.d_model, config.d_model)
        self.decoder = nn.Linear(config.d_model, config.d_output)

    def forward(self, h: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the output of a task for features h (batch, length, d_model) of true lengths (batch,).

        Those of a pair are next to each other, (2 · batch, length, d_model); the horizon of a forecast follows the
        context, whose lengths are given.
        """
        if self.kind == "sequence":
            y = self.decoder(h)
            return y if lengths is None else y.masked_fill(~time_mask(lengths, h.shape[1]), 0)
        if self.kind == "last":
            h = h[:, -1] if lengths is None else take_steps(h, lengths[:, None] - 1)[:, 0]
        elif self.kind == "forecast":
            ahead = torch.arange(self.horizon, device=h.device)
            h = h[:, -self.horizon :] if lengths is None else take_steps(h, lengths[:, None] + ahead)
        else:
            h = masked_mean(h, lengths).to(self.decoder.weight.dtype)
        if self.kind == "pair":
            a, b = h.unflatten(0, (-1, 2)).unbind(1)
            h = F.gelu(self.compare(torch.cat([a, b, a - b, a * b], dim=-1)))
        return self.decoder(h)

    def stream(self, h: Tensor, pooled: PooledState) -> tuple[Tensor, PooledState]:
        """Return the output of `forward` for the whole stream so far; for "sequence", that of the new steps."""
        if self.kind != "pool":
            return self(h), pooled
        steps = pooled.steps + h.shape[1]
        mean = pooled.mean + (masked_mean(h, None) - pooled.mean) * (h.shape[1] / steps)
        return self.decoder(mean.to(self.decoder.weight.dtype)), PooledState(mean, steps)


class DirectPath(nn.Module):
    """A linear forecast from the context: y = Wᵀ x + Uᵀ m, zero at the start.

    x  the last `context` values of a column (zero before the first of a shorter one), W the same for all columns
    m  the real-valued marks of the last step, where there are any; U has weights for every column

    W is stored √context times as large, so a step of Adam changes forecasts by about its learning rate for any context.

    >>> config = ModelConfig(head="forecast", horizon=2, direct=True, context=3)
    >>> path = DirectPath(config).set(torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]))
    >>> path(torch.tensor([5.0, 6.0, 7.0, 8.0])[None, :, None]).flatten().tolist()     # the last, the third from it
    [8.0, 6.0]
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.context, self.d_output = cast(int, config.context), config.d_output
        horizon = cast(int, config.horizon)
        self.W = nn.Parameter(torch.zeros(self.context, horizon))
        self.U = nn.Parameter(torch.zeros(config.mark_width, horizon, self.d_output)) if config.mark_width else None

    @torch.no_grad()
    def set(self, W: Tensor, U: Tensor | None = None) -> DirectPath:
        """Set the maps to W (context, horizon) and U (marks, horizon, d_output)."""
        self.W.copy_(W * math.sqrt(self.context))
        if self.U is not None and U is not None:
            self.U.copy_(U)
        return self

    def forward(
        self,
        x: Tensor,  # (batch, length, columns), zero where padded
        marks: Tensor | None = None,  # (batch, length or more, k)
        lengths: Tensor | None = None,  # (batch,)
    ) -> Tensor:
        """Return forecasts (batch, horizon, d_output)."""
        recent, now = self.read(x, marks, lengths)
        y = torch.einsum("bsc,sh->bhc", recent, self.W / math.sqrt(self.context))
        return y if now is None or self.U is None else y + torch.einsum("bk,khc->bhc", now, self.U)

    def read(self, x: Tensor, marks: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what the maps are applied to: values (batch, context, d_output), marks (batch, k) or None."""
        padded = F.pad(x[..., -self.d_output :], (0, 0, self.context, 0))
        if lengths is None:
            recent = padded[:, x.shape[1] :]
        else:
            recent = take_steps(padded, lengths[:, None] + torch.arange(self.context, device=x.device))
        if self.U is None or marks is None:
            return recent, None
        now = marks[:, x.shape[1] - 1] if lengths is None else take_steps(marks, lengths[:, None] - 1)[:, 0]
        return recent, now.to(x.dtype)
