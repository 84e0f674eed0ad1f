"""Backbones, (batch, length, d_model) → (batch, length, d_model): residual blocks of `WaveSSM` or LSTM, and PyTorch's
Transformer encoder, so that a comparison changes nothing else.

Padding has no effect in any of them, and lengths stay on their device: the backward LSTM reverses each sequence within
its length by a gather instead of packing. Read next: `heads.py`.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from wavessm.nn.block import ResidualBlock, SequenceNorm, TiedDropout
from wavessm.nn.config import ModelConfig
from wavessm.nn.encoders import take_steps
from wavessm.nn.layer import WaveSSM, time_mask
from wavessm.ops import Engine

States = tuple[Tensor, ...]
"""One state per layer, batch on axis 0."""


def make_backbone(config: ModelConfig) -> nn.Module:
    """Return the backbone of a config, called as backbone(h, lengths, rate, tail).

    `tail` is the number of last steps that will be used; a backbone may leave out the others.
    """
    if config.backbone == "transformer":
        return Transformer(config)
    if config.backbone == "lstm":
        return Stack([LSTMBlock(config) for _ in range(config.n_layers)], config)
    return Stack([_wavessm_block(config, first=index == 0) for index in range(config.n_layers)], config)


def _wavessm_block(config: ModelConfig, first: bool) -> ResidualBlock:
    names = ("d_model", "d_state", "family", "measure", "structure", "bidirectional", "backend", "precision", "b_init")
    layer = WaveSSM(
        **{name: getattr(config, name) for name in names},
        dt_min=(first and config.dt_min_first) or config.dt_min,
        dt_max=(first and config.dt_max_first) or config.dt_max,
        n_ssm=config.d_model if config.n_ssm is None else config.n_ssm,
    )
    return ResidualBlock(layer, norm=config.norm, prenorm=config.prenorm, dropout=config.dropout)


class Stack(nn.Module):
    """Residual blocks one after another, and one more norm where they are pre-norm."""

    def __init__(self, blocks: list, config: ModelConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = SequenceNorm(config.d_model, config.norm) if config.prenorm else None
        self.kind, self.engine = config.norm, Engine(config.backend, config.precision)

    def forward(self, h: Tensor, lengths: Tensor | None = None, rate: float = 1.0, tail: int | None = None) -> Tensor:
        """Process whole sequences, h (batch, length, d_model) → the same, or only the last `tail` steps."""
        *before, last = self.blocks
        for block in before:
            h = block(h, rate=rate, lengths=lengths)
        ends = tail is not None and lengths is None and self.kind != "batch" and isinstance(last, ResidualBlock)
        h = last(h, rate=rate, lengths=lengths, **({"tail": tail} if ends else {}))
        if self.norm is None:
            return h
        return self.norm(h, None if lengths is None else time_mask(lengths, h.shape[1]), self.engine)

    def initial_state(self, batch: int) -> States:
        """Return the states before the first sample."""
        return tuple(cast(ResidualBlock, block).initial_state(batch) for block in self.blocks)

    def stream(self, h: Tensor, states: States, rate: float = 1.0) -> tuple[Tensor, States]:
        """Process a chunk (batch, length, d_model) from the states; returns outputs and the states after it."""
        after = []
        for block, state in zip(self.blocks, states, strict=True):
            h, state = block(h, state=state, return_state=True, rate=rate)
            after.append(state)
        return (h if self.norm is None else self.norm(h, None, self.engine)), tuple(after)


class LSTMBlock(nn.Module):
    """One LSTM layer with norm, dropout and a residual path; called like `ResidualBlock`.

    Each of two directions has half of the features. The state is (batch, 2, d_model): output and cell.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_model, self.prenorm = config.d_model, config.prenorm
        hidden = config.d_model // 2 if config.bidirectional else config.d_model
        self.ahead = nn.LSTM(config.d_model, hidden, batch_first=True)
        self.behind = nn.LSTM(config.d_model, hidden, batch_first=True) if config.bidirectional else None
        self.norm = SequenceNorm(config.d_model, config.norm)
        self.dropout = TiedDropout(config.dropout)

    def forward(
        self,
        x: Tensor,  # (batch, length, d_model)
        state: Tensor | None = None,  # (batch, 2, d_model)
        return_state: bool = False,
        rate: float = 1.0,  # of the common signature; the model refuses all but 1
        lengths: Tensor | None = None,  # (batch,)
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return y with the shape of x, and the state after the last sample if `return_state`."""
        mask = None if lengths is None else time_mask(lengths, x.shape[1])
        z = self.norm(x, mask) if self.prenorm else x
        before = None if state is None else tuple(part[None].contiguous() for part in state.unbind(1))
        out, after = self.ahead(z, before)
        if self.behind is not None:
            out = torch.cat([out, _reverse(self.behind(_reverse(z, lengths))[0], lengths)], dim=-1)
        y = x + self.dropout(out)
        y = y if self.prenorm else self.norm(y, mask)
        return (y, torch.stack([after[0][0], after[1][0]], dim=1)) if return_state else y

    def initial_state(self, batch: int) -> Tensor:
        """Return zeros, shape (batch, 2, d_model)."""
        return next(self.parameters()).new_zeros(batch, 2, self.d_model)


def _reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence (batch, length, d) backwards within its length, padding left in place.

    >>> _reverse(torch.tensor([[[1], [2], [3]]]), torch.tensor([2])).flatten().tolist()
    [2, 1, 3]
    """
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    back = lengths[:, None] - 1 - t
    return take_steps(x, torch.where(back >= 0, back, t))


class Transformer(nn.Module):
    """PyTorch's Transformer encoder on sinusoidal positions, causal unless bidirectional."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.d_model
        layer = nn.TransformerEncoderLayer(
            d, config.n_heads, 4 * d, config.dropout, activation="gelu", batch_first=True, norm_first=config.prenorm
        )
        norm = nn.LayerNorm(d) if config.prenorm else None
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, norm=norm, enable_nested_tensor=False)
        for parameter in self.encoder.parameters():  # the encoder copies one layer; each should start by itself
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.causal = not config.bidirectional

    def forward(self, h: Tensor, lengths: Tensor | None = None, rate: float = 1.0, tail: int | None = None) -> Tensor:
        """Process whole sequences, h (batch, length, d_model) → the same."""
        length = h.shape[1]
        h = h + _positions(length, h.shape[2], h.device).to(h.dtype)
        padding = None if lengths is None else ~time_mask(lengths, length)[..., 0]
        future = torch.ones(length, length, dtype=torch.bool, device=h.device).triu(1) if self.causal else None
        return self.encoder(h, mask=future, src_key_padding_mask=padding, is_causal=self.causal)


def _positions(length: int, d_model: int, device: torch.device) -> Tensor:
    """Sines and cosines of geometric wavelengths from 2π to 20000π, (length, d_model)."""
    t = torch.arange(length, device=device, dtype=torch.float32)
    frequency = torch.exp(torch.arange(0, d_model, 2, device=device) * (-math.log(1e4) / d_model))
    angle = t[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]
