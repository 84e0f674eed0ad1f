"""The chunked scan in plain PyTorch: two matrix products and a short recurrence over chunks, on CPU and GPU.

Both directions share the products. With rows of M samples, s the state before a row and a the state after it of the
direction that reads backwards,

    added = u [E | C₁ᵀ]        y = [u | s | a] [T₀ + T₁ᵀ ; C₀ ; Eᵀ]

Nothing of size R · L is formed and no FFT is run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.derivatives import first_only
from wavessm.ops.modes import DiagonalSystem
from wavessm.ops.tables import DenseSystem, dense_tables, diagonal_tables, toeplitz

CHUNK = 64


class ScanTables(NamedTuple):
    """The tables of one chunk length, arranged for the products; see the module's docstring."""

    into: Tensor  # (channels, M, directions · R)
    out: Tensor  # (channels, M + directions · R, M): from samples and states to outputs
    decay: Tensor  # (channels, R) by slots, or (channels, R, R) of a dense state
    n_complex: int  # slots that are complex numbers; none of a dense state


def scan_tables(system: DiagonalSystem | DenseSystem, chunk: int, dtype: torch.dtype) -> ScanTables:
    """The tables of a system, made in float64, arranged and cast once."""
    if isinstance(system, DenseSystem):
        n_complex, (K, E, C, decay) = 0, dense_tables(system, chunk)
    else:
        n_complex, (K, E, C, decay) = system.n_complex, diagonal_tables(system, chunk)
        decay = decay.flatten(1)
    T, into, out = toeplitz(K[0]), E, C[0]
    if len(K) == 2:
        T = T + toeplitz(K[1]).transpose(1, 2)
        into, out = torch.cat([E, C[1].transpose(1, 2)], dim=-1), torch.cat([out, E.transpose(1, 2)], dim=1)
    into, out, decay = (table.to(dtype).contiguous() for table in (into, torch.cat([T, out], dim=1), decay))
    return ScanTables(into, out, decay, n_complex)


def scan(
    u: Tensor,  # (batch, channels, length)
    system: DiagonalSystem | DenseSystem,
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """Run a system over signals, without its direct path; a state goes with one direction only.

    Returns:
        y like u, and the state after the last sample (batch, channels, R) if wanted, else None.
    """
    length = u.shape[-1]
    if state is None and not want_state:  # zeros at the end change nothing
        chunk = min(chunk, length)
        y, _ = _rows(F.pad(u, (0, -length % chunk)), scan_tables(system, chunk, u.dtype), None)
        return y[..., :length], None
    s = None if state is None else state.to(u.dtype).transpose(0, 1)
    whole = length - length % chunk
    pieces = []
    for begin, end, size in ((0, whole, chunk), (whole, length, length - whole)):
        if begin < end:
            y, s = _rows(u[..., begin:end], scan_tables(system, size, u.dtype), s)
            pieces.append(y)
    y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    return y, s.transpose(0, 1) if s is not None and want_state else None


def _rows(u: Tensor, tables: ScanTables, s: Tensor | None) -> tuple[Tensor, Tensor]:
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


def _carry(added: Tensor, decay: Tensor, n_complex: int, s: Tensor | None, back: bool) -> tuple[Tensor, Tensor]:
    """States before each chunk and after the last, s_{k+1} = D s_k + added_k; backwards in time Dᵀ replaces D.

    added (channels, batch, chunks, R), s (channels, batch, R); see `ScanTables` for decay and n_complex
    """
    channels, batch, chunks, R = added.shape
    states = added.new_empty(channels, batch, chunks + 1, R)
    states[:, :, -1 if back else 0] = 0 if s is None else s
    order = [(k, k + 1, k) for k in range(chunks - 1, -1, -1)] if back else [(k, k, k + 1) for k in range(chunks)]
    if decay.dim() == 3:
        across = decay if back else decay.transpose(1, 2)
        for k, here, there in order:
            states[:, :, there] = torch.baddbmm(added[:, :, k], states[:, :, here], across)
    else:
        for h, x, d in zip(*(_lanes(t, n_complex) for t in (added, states, decay[:, None])), strict=True):
            d = d.conj() if back else d
            for k, here, there in order:
                x[:, :, there] = torch.addcmul(h[:, :, k], d, x[:, :, here])
    return (states[:, :, 1:], states[:, :, 0]) if back else (states[:, :, :-1], states[:, :, -1])


def _lanes(x: Tensor, n_complex: int) -> list[Tensor]:
    """Views of x (..., R): complex slots as complex numbers, then the others; one of the two may be missing."""
    split = 2 * n_complex
    views = [torch.view_as_complex(x[..., :split].unflatten(-1, (-1, 2)))] if n_complex else []
    return [*views, x[..., split:]] if x.shape[-1] > split else views


class _Carry(torch.autograd.Function):
    """`_carry`, whose adjoint is the same walk the other way."""

    @staticmethod
    def forward(
        ctx: Any, added: Tensor, decay: Tensor, n_complex: int, s: Tensor | None, back: bool
    ) -> tuple[Tensor, Tensor]:
        states, last = _carry(added, decay, n_complex, s, back)
        ctx.save_for_backward(states, decay)
        ctx.n_complex, ctx.back, ctx.has_first = n_complex, back, s is not None
        return states, last.clone()

    @staticmethod
    @first_only
    def backward(ctx: Any, dstates: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        states, decay = ctx.saved_tensors
        dstates = dstates.clone(memory_format=torch.contiguous_format)  # complex views need their own storage
        dadded, dfirst = _carry(dstates, decay, ctx.n_complex, dlast, not ctx.back)
        a, s = (states, dadded) if ctx.back else (dadded, states)
        if decay.dim() == 3:
            ddecay = a.flatten(1, 2).transpose(1, 2) @ s.flatten(1, 2)
        else:
            pairs = zip(_lanes(s, ctx.n_complex), _lanes(a, ctx.n_complex), strict=True)
            sums = [(x.conj() * y).sum((1, 2)) for x, y in pairs]
            ddecay = torch.cat([torch.view_as_real(g).flatten(1) if g.is_complex() else g for g in sums], dim=1)
        return dadded, ddecay, None, dfirst if ctx.has_first else None, None
