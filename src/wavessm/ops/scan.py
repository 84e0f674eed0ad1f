"""The chunked scan in plain PyTorch: three matrix products and a short recurrence over chunks, on CPU and GPU.

Nothing of size N · L is formed and no FFT is run; gradients come from autograd through the same products. The same
walk serves both structures: modes decay one by one (`diagonal_scan`), a dense state as a vector (`dense_scan`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wavessm.ops.tables import Tables, make_dense_tables, make_tables

CHUNK = 64


def diagonal_scan(
    u: Tensor,  # (batch, channels, length)
    log_lam: Tensor,  # (channels, modes, 2)
    w: Tensor,  # (channels, modes, 2)
    state: Tensor | None,  # (batch, channels, modes, 2)
) -> tuple[Tensor, Tensor]:
    """As `reference.diagonal_scan`, in u's precision."""
    flat = None if state is None else state.flatten(2)
    y, last = chunked_scan(u, lambda size: make_tables(log_lam, w, size, u.dtype), 2 * log_lam.shape[1], flat)
    return y, last.unflatten(-1, (-1, 2))


def dense_scan(
    u: Tensor,  # (batch, channels, length)
    A: Tensor,  # (channels, R, R)
    B: Tensor,  # (channels, R)
    C: Tensor,  # (channels, R)
    state: Tensor | None,  # (batch, channels, R)
) -> tuple[Tensor, Tensor]:
    """As `reference.dense_scan`: x[l] = A x[l−1] + B u[l], y[l] = C x[l], in u's precision."""
    return chunked_scan(u, lambda size: make_dense_tables(A, B, C, size, u.dtype), B.shape[1], state)


def chunked_scan(
    u: Tensor, tables_of: Callable[[int], Tables], width: int, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Full chunks at once, then what is left as one shorter chunk. state (batch, channels, width)"""
    batch, channels, length = u.shape
    s = u.new_zeros(channels, batch, width) if state is None else state.to(u.dtype).transpose(0, 1)
    whole = length - length % CHUNK
    pieces = []
    if whole:
        y, s = _equal_chunks(u[..., :whole], tables_of(CHUNK), s)
        pieces.append(y)
    if whole < length:
        y, s = _equal_chunks(u[..., whole:], tables_of(length - whole), s)
        pieces.append(y)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1), s.transpose(0, 1)


def _equal_chunks(u: Tensor, tables: Tables, s: Tensor) -> tuple[Tensor, Tensor]:
    """u (batch, channels, chunks · M), s (channels, batch, width)"""
    batch, channels, length = u.shape
    T, E, C, decay = tables
    chunks = length // T.shape[-1]
    rows = u.transpose(0, 1).reshape(channels, batch * chunks, -1)
    heard = (rows @ E).view(channels, batch, chunks, -1)
    before, after = carry(heard, decay, s)
    y = torch.baddbmm(rows @ T, before.reshape(channels, batch * chunks, -1), C)
    return y.view(channels, batch, length).transpose(0, 1), after


def carry(heard: Tensor, decay: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """States before each chunk, and after the last: s_{i+1} = decay s_i + heard_i.

    heard (channels, batch, chunks, width), first (channels, batch, width),
    decay (channels, modes, 2) for pairs of modes or (channels, width, width) for a dense state
    """
    states = [first]
    if decay.shape[1] == first.shape[-1]:  # dense
        turn = decay.transpose(1, 2)
        for heard_i in heard.unbind(2):
            states.append(torch.baddbmm(heard_i, states[-1], turn))
    else:
        real, imag = decay[:, None, :, 0], decay[:, None, :, 1]
        for heard_i in heard.unbind(2):
            a, b = states[-1].unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([real * a - imag * b, real * b + imag * a], dim=-1).flatten(-2)
            states.append(turned + heard_i)
    return torch.stack(states[:-1], dim=2), states[-1]
