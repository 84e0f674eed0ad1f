"""Stage 6e: heads, from features (batch, length, d_model) to what a task asks for.

pool      (batch, d_output)           mean over the true length, then Linear
last      (batch, d_output)           the last true step
sequence  (batch, length, d_output)   every step; zero where padded
forecast  (batch, horizon, d_output)  the steps after the context
pair      (batch, d_output)           two sequences, pooled to a and b; [a, b, a − b, a · b] through two Linears
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.config import ModelConfig
from wavessm.encoders import take_steps
from wavessm.layer import time_mask


class Heard(NamedTuple):
    """What a stream has heard so far, for the pooled head."""

    mean: Tensor  # (batch, d_model)
    steps: Tensor  # (batch, 1)


def make_head(config: ModelConfig) -> nn.Module:
    """The head a config asks for; all are called as head(h, lengths), lengths those of the context."""
    if config.head == "pair":
        return PairHead(config.d_model, config.d_output)
    if config.head == "forecast":
        assert config.horizon is not None
        return ForecastHead(config.d_model, config.d_output, config.horizon)
    return {"pool": PoolHead, "last": LastHead, "sequence": SequenceHead}[config.head](config.d_model, config.d_output)


def pool(h: Tensor, lengths: Tensor | None) -> Tensor:
    """Mean over the true length, at least in float32. (batch, length, d_model) → (batch, d_model)"""
    dtype = torch.promote_types(h.dtype, torch.float32)
    if lengths is None:
        return h.mean(1, dtype=dtype)
    return h.masked_fill(~time_mask(lengths, h.shape[1]), 0).sum(1, dtype=dtype) / lengths[:, None]


class LastHead(nn.Module):
    """The last true step through a Linear."""

    def __init__(self, d_model: int, d_output: int) -> None:
        super().__init__()
        self.decoder = nn.Linear(d_model, d_output)

    def forward(self, h: Tensor, lengths: Tensor | None = None) -> Tensor:
        last = h[:, -1] if lengths is None else take_steps(h, lengths[:, None] - 1)[:, 0]
        return self.decoder(last)

    def stream(self, h: Tensor, heard: Heard) -> tuple[Tensor, Heard]:
        """What `forward` would say after all that was heard; `sequence` speaks of the new steps."""
        return self(h), heard


class SequenceHead(LastHead):
    """Every step through a Linear."""

    def forward(self, h: Tensor, lengths: Tensor | None = None) -> Tensor:
        y = self.decoder(h)
        return y if lengths is None else y.masked_fill(~time_mask(lengths, h.shape[1]), 0)


class PoolHead(LastHead):
    """The mean over time through a Linear; in a stream, the mean of what was heard."""

    def forward(self, h: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.decoder(pool(h, lengths).to(self.decoder.weight.dtype))

    def stream(self, h: Tensor, heard: Heard) -> tuple[Tensor, Heard]:
        steps = heard.steps + h.shape[1]
        mean = heard.mean + (pool(h, None) - heard.mean) * (h.shape[1] / steps)
        return self.decoder(mean.to(self.decoder.weight.dtype)), Heard(mean, steps)


class ForecastHead(nn.Module):
    """The `horizon` steps that follow each context, through a Linear."""

    def __init__(self, d_model: int, d_output: int, horizon: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.decoder = nn.Linear(d_model, d_output)

    def forward(self, h: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return self.decoder(h[:, -self.horizon :])
        steps = lengths[:, None] + torch.arange(self.horizon, device=h.device)
        return self.decoder(take_steps(h, steps))


class PairHead(nn.Module):
    """Whether two sequences belong together: h (2 · batch, length, d_model), the partners next to each other."""

    def __init__(self, d_model: int, d_output: int) -> None:
        super().__init__()
        self.compare, self.decoder = nn.Linear(4 * d_model, d_model), nn.Linear(d_model, d_output)

    def forward(self, h: Tensor, lengths: Tensor | None = None) -> Tensor:
        a, b = pool(h, lengths).to(self.decoder.weight.dtype).unflatten(0, (-1, 2)).unbind(1)
        return self.decoder(F.gelu(self.compare(torch.cat([a, b, a - b, a * b], dim=-1))))
