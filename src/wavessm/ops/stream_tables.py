"""The chunked scan for streams: tables made once, few operations, no gradients.

`scan.scan` is for training and both directions; a stream processes about ten milliseconds at a time, where the
operations around the products cost as much as the products. Here a real mode takes a complex number of its own, so that
one multiplication moves all of them over a chunk; D is part of the table; states and samples lie side by side in one
buffer, from which one product gives the output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.modes import DiagonalSystem
from wavessm.ops.scan import scan_tables
from wavessm.ops.tables import DenseSystem


class StreamTables(NamedTuple):
    """As `scan.ScanTables`, of one direction.

    The state inside has W ≥ R numbers: the halves of complex modes, then real modes with a zero behind each.
    """

    into: Tensor  # (channels, M, W)
    out: Tensor  # (channels, W + M, M), with a row of zeros if M is odd: complex views want even strides
    decay: Tensor  # (channels, 1, W / 2) complex, or (channels, R, R) of a dense state, transposed
    halves: int  # numbers that are halves of complex modes; all of a dense state


def build(system: DiagonalSystem | DenseSystem, D: Tensor, chunk: int) -> StreamTables:
    """The tables of a causal system with direct path D (channels,) for chunks of one length, like D."""
    into, out, decay, n_complex = scan_tables(system, chunk, D)
    out[:, range(chunk), range(chunk)] += D[:, None]
    samples, states, halves = out[:, :chunk], out[:, chunk:], 2 * n_complex
    if isinstance(system, DenseSystem):
        decay, halves = decay.transpose(1, 2).contiguous(), decay.shape[-1]
    else:
        into, decay = _spread(into, halves), _spread(decay, halves)
        states = _spread(states.transpose(1, 2), halves).transpose(1, 2)
        decay = torch.view_as_complex(decay.unflatten(-1, (-1, 2)))[:, None]
    out = F.pad(torch.cat([states, samples], dim=1), (0, 0, 0, chunk % 2))
    return StreamTables(into.contiguous(), out.contiguous(), decay, halves)


def _spread(x: Tensor, halves: int) -> Tensor:
    """x with a zero behind every number from `halves` on. (..., R) → (..., W)"""
    real = x[..., halves:]
    return torch.cat([x[..., :halves], torch.stack([real, torch.zeros_like(real)], -1).flatten(-2)], dim=-1)


def run_chunks(u: Tensor, tables: StreamTables, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run whole chunks of a stream.

    Args:
        u: Input (batch, chunks · M, channels).
        tables: Tables for chunks of M samples.
        state: State before the first sample (batch, channels, R), or None for zero.

    Returns:
        y like u, and the state after the last sample.
    """
    batch, length, channels = u.shape
    into, out, decay, halves = tables
    _, M, W = into.shape
    chunks = length // M
    both = u.new_empty(channels, batch, chunks, out.shape[1])
    both[..., W : W + M] = u.reshape(batch, chunks, M, channels).permute(3, 0, 1, 2)
    both[..., W + M :] = 0
    rows = both.view(channels, batch * chunks, -1)
    added = torch.bmm(rows[..., W : W + M], into).view(channels, batch, chunks, W)
    first = both[:, :, 0, :W]
    first.zero_()
    if state is not None:
        first[..., :halves] = state[..., :halves].transpose(0, 1)
        first[..., halves::2] = state[..., halves:].transpose(0, 1)
    if decay.is_complex():
        s, h = (torch.view_as_complex(t.unflatten(-1, (-1, 2))).unbind(2) for t in (both[..., :W], added))
        for k in range(chunks - 1):
            torch.addcmul(h[k], decay, s[k], out=s[k + 1])
        last = torch.view_as_real(torch.addcmul(h[-1], decay, s[-1])).flatten(-2)
    else:
        s, h = both[..., :W].unbind(2), added.unbind(2)
        for k in range(chunks - 1):
            s[k + 1].copy_(torch.baddbmm(h[k], s[k], decay))
        last = torch.baddbmm(h[-1], s[-1], decay)
    y = torch.bmm(rows, out).view(channels, batch, length).permute(1, 2, 0)
    last = last if halves == W else torch.cat([last[..., :halves], last[..., halves::2]], dim=-1)
    return y, last.transpose(0, 1)
