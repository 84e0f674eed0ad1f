"""The chunked scan in plain PyTorch: two matrix products and a short recurrence over chunks, on CPU and GPU.

Both directions share the products. With rows of M samples, s the state before a row and a the one after it of the
direction that reads backwards,

    heard = u [E | C₁ᵀ]        y = [u | s | a] [T₀ + T₁ᵀ ; C₀ ; Eᵀ]

Nothing of size R · L is formed and no FFT is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.modes import Sampled
from wavessm.ops.tables import Dense, Tables, dense_tables, diagonal_tables, toeplitz

CHUNK = 64


def tables_of(system: Sampled | Dense, dtype: torch.dtype) -> Callable[[int], Tables]:
    """Makes the tables of a system for a chunk length."""

    def make(chunk: int) -> Tables:
        tables = dense_tables(system, chunk) if isinstance(system, Dense) else diagonal_tables(system, chunk)
        return Tables(*(table.to(dtype) for table in tables))

    return make


def scan(
    u: Tensor,  # (batch, channels, length)
    tables: Callable[[int], Tables],  # of a chunk length, in u's dtype
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """y like u, and the state after the last sample (batch, channels, R) if wanted; both serve one direction only."""
    length = u.shape[-1]
    if state is None and not want_state:  # zeros at the end change nothing
        chunk = min(CHUNK, length)
        y, _ = _rows(F.pad(u, (0, -length % chunk)), tables(chunk), None, False)
        return y[..., :length], None
    s = None if state is None else state.to(u.dtype).transpose(0, 1)
    whole = length - length % CHUNK
    pieces = []
    if whole:
        y, s = _rows(u[..., :whole], tables(CHUNK), s, True)
        pieces.append(y)
    if whole < length:
        y, s = _rows(u[..., whole:], tables(length - whole), s, True)
        pieces.append(y)
    y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    return y, s.transpose(0, 1) if s is not None and want_state else None


def _rows(u: Tensor, tables: Tables, s: Tensor | None, want_state: bool) -> tuple[Tensor, Tensor | None]:
    """u (batch, channels, chunks · M), s (channels, batch, R)"""
    batch, channels, length = u.shape
    K, E, C, decay = tables
    R = E.shape[-1]
    rows = u.transpose(0, 1).reshape(channels, -1, E.shape[1])
    T, carried, out = toeplitz(K[0]), None, C[0]
    into = E if len(K) == 1 else torch.cat([E, C[1].transpose(1, 2)], dim=-1)
    heard = (rows @ into).unflatten(1, (batch, -1))
    carried, last = _Carry.apply(heard[..., :R], decay, s, False)
    if len(K) == 2:
        behind, _ = _Carry.apply(heard[..., R:], decay, None, True)
        carried, out = torch.cat([carried, behind], dim=-1), torch.cat([out, E.transpose(1, 2)], dim=1)
        T = T + toeplitz(K[1]).transpose(1, 2)
    y = torch.baddbmm(rows @ T, carried.flatten(1, 2), out)
    return y.view(channels, batch, length).transpose(0, 1), last


def carry(heard: Tensor, decay: Tensor, s: Tensor | None, back: bool) -> tuple[Tensor, Tensor]:
    """States before each chunk and after the last, s_{k+1} = D s_k + heard_k; backwards in time Dᵀ takes D's place.

    heard (channels, batch, chunks, R), s (channels, batch, R), decay (channels, slots, 2, 2) or (channels, R, R)
    """
    channels, batch, chunks, R = heard.shape
    states = torch.empty_like(heard)
    s = heard.new_zeros(channels, batch, R) if s is None else s
    if decay.dim() == 4:
        kept = torch.diagonal(decay, dim1=2, dim2=3).flatten(1)[:, None]  # (channels, 1, R)
        swapped = torch.stack(
            [decay[..., 1, 0], decay[..., 0, 1]] if back else [decay[..., 0, 1], decay[..., 1, 0]], -1
        )
        swapped = swapped.flatten(1)[:, None]
    across = decay if back else decay.transpose(1, 2)
    for k in range(chunks - 1, -1, -1) if back else range(chunks):
        states[:, :, k] = s
        if decay.dim() == 4:
            turned = torch.addcmul(heard[:, :, k], kept, s)
            s = turned.addcmul(swapped, s.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
        else:
            s = torch.baddbmm(heard[:, :, k], s, across)
    return states, s


class _Carry(torch.autograd.Function):
    """`carry`, whose adjoint is the same walk the other way."""

    @staticmethod
    def forward(ctx: Any, heard: Tensor, decay: Tensor, s: Tensor | None, back: bool) -> tuple[Tensor, Tensor]:
        states, last = carry(heard, decay, s, back)
        ctx.save_for_backward(states, decay)
        ctx.back, ctx.has_first = back, s is not None
        return states, last

    @staticmethod
    def backward(ctx: Any, dstates: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        states, decay = ctx.saved_tensors
        dheard, dfirst = carry(dstates, decay, dlast, not ctx.back)
        a, s = (states, dheard) if ctx.back else (dheard, states)
        if decay.dim() == 3:
            ddecay = a.flatten(1, 2).transpose(1, 2) @ s.flatten(1, 2)
        else:
            same = (a * s).sum((1, 2)).unflatten(-1, (-1, 2))
            crossed = (a * s.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)).sum((1, 2)).unflatten(-1, (-1, 2))
            ddecay = torch.stack([same[..., 0], crossed[..., 0], crossed[..., 1], same[..., 1]], -1).unflatten(
                -1, (2, 2)
            )
        return dheard, ddecay, dfirst if ctx.has_first else None, None
