"""The chunked scan in plain PyTorch: two matrix products and a short recurrence over chunks, on CPU and GPU.

Both directions share the products. With rows of M samples, s the state before a row and a the one after it of the
direction that reads backwards,

    heard = u [E | C₁ᵀ]        y = [u | s | a] [T₀ + T₁ᵀ ; C₀ ; Eᵀ]

Nothing of size R · L is formed and no FFT is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.modes import Sampled
from wavessm.ops.tables import Dense, dense_tables, diagonal_tables, toeplitz

CHUNK = 64


class Prepared(NamedTuple):
    """The tables of a chunk length as the products take them; see the module's docstring."""

    T: Tensor  # (channels, M, M)
    into: Tensor  # (channels, M, directions · R)
    out: Tensor  # (channels, directions · R, M)
    decay: Tensor  # (channels, slots, 2, 2) or (channels, R, R)

    @property
    def directions(self) -> int:
        """Two if the last half of the state reads backwards."""
        width = 2 * self.decay.shape[1] if self.decay.dim() == 4 else self.decay.shape[1]
        return self.into.shape[2] // width


def prepare(system: Sampled | Dense, chunk: int, dtype: torch.dtype) -> Prepared:
    """Tables in float64, arranged and cast once."""
    K, E, C, decay = dense_tables(system, chunk) if isinstance(system, Dense) else diagonal_tables(system, chunk)
    T, into, out = toeplitz(K[0]), E, C[0]
    if len(K) == 2:
        T = T + toeplitz(K[1]).transpose(1, 2)
        into, out = torch.cat([E, C[1].transpose(1, 2)], dim=-1), torch.cat([out, E.transpose(1, 2)], dim=1)
    return Prepared(*(table.to(dtype).contiguous() for table in (T, into, out, decay)))


def tables_of(system: Sampled | Dense, dtype: torch.dtype) -> Callable[[int], Prepared]:
    """Prepares the tables of a system for a chunk length, in u's dtype."""
    return lambda chunk: prepare(system, chunk, dtype)


def scan(
    u: Tensor,  # (batch, channels, length)
    tables: Callable[[int], Prepared],
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """y like u, and the state after the last sample (batch, channels, R) if wanted; both serve one direction only."""
    length = u.shape[-1]
    if state is None and not want_state:  # zeros at the end change nothing
        chunk = min(chunk, length)
        y, _ = _rows(F.pad(u, (0, -length % chunk)), tables(chunk), None)
        return y[..., :length], None
    s = None if state is None else state.to(u.dtype).transpose(0, 1)
    whole = length - length % chunk
    pieces = []
    for begin, end, size in ((0, whole, chunk), (whole, length, length - whole)):
        if begin < end:
            y, s = _rows(u[..., begin:end], tables(size), s)
            pieces.append(y)
    y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    return y, s.transpose(0, 1) if s is not None and want_state else None


def _rows(u: Tensor, tables: Prepared, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """u (batch, channels, chunks · M), s (channels, batch, R)"""
    batch, channels, length = u.shape
    T, into, out, decay = tables
    rows = u.transpose(0, 1).reshape(channels, -1, T.shape[1]).contiguous()  # batched products are slow on views
    heard = (rows @ into).unflatten(1, (batch, -1))
    if tables.directions == 1:
        carried, last = _Carry.apply(heard, decay, s, False)
    else:
        ahead, behind = heard.chunk(2, dim=-1)
        (ahead, last), (behind, _) = _Carry.apply(ahead, decay, s, False), _Carry.apply(behind, decay, None, True)
        carried = torch.cat([ahead, behind], dim=-1)
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
