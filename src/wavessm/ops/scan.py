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

from wavessm.ops.derivatives import first_only
from wavessm.ops.modes import Sampled
from wavessm.ops.tables import Dense, dense_tables, diagonal_tables, toeplitz

CHUNK = 64


class Prepared(NamedTuple):
    """The tables of a chunk length as the products take them; see the module's docstring."""

    into: Tensor  # (channels, M, directions · R)
    out: Tensor  # (channels, M + directions · R, M): what samples and states add to outputs
    decay: Tensor  # (channels, R) by slots, or (channels, R, R) of a dense state
    n_complex: int  # slots that are complex numbers; none of a dense state


def prepare(system: Sampled | Dense, chunk: int, dtype: torch.dtype) -> Prepared:
    """Tables in float64, arranged and cast once."""
    if isinstance(system, Dense):
        n_complex, (K, E, C, decay) = 0, dense_tables(system, chunk)
    else:
        n_complex, (K, E, C, decay) = system.n_complex, diagonal_tables(system, chunk)
        decay = decay.flatten(1)
    T, into, out = toeplitz(K[0]), E, C[0]
    if len(K) == 2:
        T = T + toeplitz(K[1]).transpose(1, 2)
        into, out = torch.cat([E, C[1].transpose(1, 2)], dim=-1), torch.cat([out, E.transpose(1, 2)], dim=1)
    into, out, decay = (table.to(dtype).contiguous() for table in (into, torch.cat([T, out], dim=1), decay))
    return Prepared(into, out, decay, n_complex)


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
    into, out, decay, n_complex = tables
    rows = u.transpose(0, 1).reshape(channels, -1, into.shape[1]).contiguous()  # batched products are slow on views
    ahead, *behind = (rows @ into).unflatten(1, (batch, -1)).split(decay.shape[1], dim=-1)
    states, last = _Carry.apply(ahead, decay, n_complex, s, False)
    parts = [rows, states.flatten(1, 2)]
    if behind:
        parts.append(_Carry.apply(behind[0], decay, n_complex, None, True)[0].flatten(1, 2))
    return (torch.cat(parts, dim=-1) @ out).view(channels, batch, length).transpose(0, 1), last


def carry(heard: Tensor, decay: Tensor, n_complex: int, s: Tensor | None, back: bool) -> tuple[Tensor, Tensor]:
    """States before each chunk and after the last, s_{k+1} = D s_k + heard_k; backwards in time Dᵀ takes D's place.

    heard (channels, batch, chunks, R), s (channels, batch, R); see `Prepared` for decay and n_complex
    """
    channels, batch, chunks, R = heard.shape
    states = heard.new_empty(channels, batch, chunks + 1, R)
    states[:, :, -1 if back else 0] = 0 if s is None else s
    order = [(k, k + 1, k) for k in range(chunks - 1, -1, -1)] if back else [(k, k, k + 1) for k in range(chunks)]
    if decay.dim() == 3:
        across = decay if back else decay.transpose(1, 2)
        for k, here, there in order:
            states[:, :, there] = torch.baddbmm(heard[:, :, k], states[:, :, here], across)
    else:
        for h, x, d in zip(*(lanes(t, n_complex) for t in (heard, states, decay[:, None])), strict=True):
            d = d.conj() if back else d
            for k, here, there in order:
                x[:, :, there] = torch.addcmul(h[:, :, k], d, x[:, :, here])
    return (states[:, :, 1:], states[:, :, 0]) if back else (states[:, :, :-1], states[:, :, -1])


def lanes(x: Tensor, n_complex: int) -> list[Tensor]:
    """Views of x (..., R): the slots that turn as complex numbers, and the others; of which there is at least one."""
    split = 2 * n_complex
    views = [torch.view_as_complex(x[..., :split].unflatten(-1, (-1, 2)))] if n_complex else []
    return [*views, x[..., split:]] if x.shape[-1] > split else views


class _Carry(torch.autograd.Function):
    """`carry`, whose adjoint is the same walk the other way."""

    @staticmethod
    def forward(
        ctx: Any, heard: Tensor, decay: Tensor, n_complex: int, s: Tensor | None, back: bool
    ) -> tuple[Tensor, Tensor]:
        states, last = carry(heard, decay, n_complex, s, back)
        ctx.save_for_backward(states, decay)
        ctx.n_complex, ctx.back, ctx.has_first = n_complex, back, s is not None
        return states, last.clone()

    @staticmethod
    @first_only
    def backward(ctx: Any, dstates: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        states, decay = ctx.saved_tensors
        dstates = dstates.clone(memory_format=torch.contiguous_format)  # complex views want their own storage
        dheard, dfirst = carry(dstates, decay, ctx.n_complex, dlast, not ctx.back)
        a, s = (states, dheard) if ctx.back else (dheard, states)
        if decay.dim() == 3:
            ddecay = a.flatten(1, 2).transpose(1, 2) @ s.flatten(1, 2)
        else:
            pairs = zip(lanes(s, ctx.n_complex), lanes(a, ctx.n_complex), strict=True)
            sums = [(x.conj() * y).sum((1, 2)) for x, y in pairs]
            ddecay = torch.cat([torch.view_as_real(g).flatten(1) if g.is_complex() else g for g in sums], dim=1)
        return dheard, ddecay, None, dfirst if ctx.has_first else None, None
