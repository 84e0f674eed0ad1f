"""The chunked scan in plain PyTorch: two matrix products and a short recurrence over chunks, on CPU and GPU.

Both directions share the products. With rows of M samples, s the state before a row and a the state after it of the
direction that reads backwards,

    added = u [E | C₁ᵀ]        y = [u | s | a] [T₀ + T₁ᵀ ; C₀ ; Eᵀ]

Nothing of size R · L is formed and no FFT is run. `scan` makes its tables on every call; streams make them once and
call `run_chunks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.derivatives import full_precision, operator
from wavessm.ops.modes import DenseSystem, DiagonalSystem, exact
from wavessm.ops.tables import chunk_tables, toeplitz

try:
    from torch.fx.experimental.symbolic_shapes import has_static_value
except ImportError:  # an older PyTorch compiles each length by itself
    has_static_value = None  # type: ignore[assignment]

CHUNK = 64


class ScanTables(NamedTuple):
    """The tables of one chunk length, with the direct path in `out`; see the module's docstring."""

    into: Tensor  # (channels, M, directions · R)
    out: Tensor  # (channels, M + directions · R, M): from samples and states to outputs
    decay: Tensor  # D as in `ChunkTables`


def scan_tables(
    system: DiagonalSystem | DenseSystem, D: Tensor, chunk: int, dtype: torch.dtype | None = None
) -> ScanTables:
    """The tables of a system with direct path D (channels,), made in float64 and cast once; on D's device."""
    K, E, C, decay = chunk_tables(system, chunk)
    T, into, out = toeplitz(K[0] + F.pad(exact(D)[:, None], (0, chunk - 1))), E, C[0]
    if len(K) == 2:
        T = T + toeplitz(K[1]).mT
        into, out = torch.cat([E, C[1].mT], dim=-1), torch.cat([out, E.mT], dim=1)
    tables = into, torch.cat([T, out], dim=1), decay
    return ScanTables(*(table.to(dtype or D.dtype).to(D.device).contiguous() for table in tables))


def is_symbolic(length: int) -> bool:
    """Whether a traced length stands for any: what depends on its value would fix it."""
    return has_static_value is not None and torch.compiler.is_compiling() and not has_static_value(length)


def scan(
    u: Tensor,  # (batch, channels, length)
    system: DiagonalSystem | DenseSystem,
    D: Tensor,  # (channels,)
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """Run a system over signals; a state goes with one direction only. Returns y like u, and the state after the last
    sample (batch, channels, R) if wanted, else None."""
    length = u.shape[-1]
    if state is None and not want_state:  # zeros at the end change nothing
        chunk = chunk if is_symbolic(length) else min(chunk, length)
        padded = F.pad(u, (0, (length + chunk - 1) // chunk * chunk - length))
        y, _ = run_chunks(padded, scan_tables(system, D, chunk, u.dtype), None, carry)
        return y[..., :length], None
    whole = length - length % chunk
    pieces = []
    for begin, end, size in ((0, whole, chunk), (whole, length, length - whole)):
        if begin < end:
            y, state = run_chunks(u[..., begin:end], scan_tables(system, D, size, u.dtype), state, carry)
            pieces.append(y)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1), state if want_state else None


def run_chunks(u: Tensor, tables: ScanTables, state: Tensor | None, walk: Callable) -> tuple[Tensor, Tensor]:
    """Run whole chunks u (batch, channels, chunks · M) from a state (batch, channels, R) or zero; returns y like u and
    the state after the last chunk. `walk` is `carry`, or `walk_chunks` for a compiler that fuses it with the rest."""
    (batch, channels, length), (into, out, decay) = u.shape, tables
    dense, R = decay.dim() == 3, decay.shape[-1]
    s = None if state is None else state.to(u.dtype).transpose(0, 1)
    s = s if s is None or dense else s.unflatten(-1, (-1, 2)).mT.flatten(2)
    rows = u.transpose(0, 1).contiguous().view(channels, -1, into.shape[1])  # batched products are slow on views
    ahead, *behind = torch.bmm(rows, into).view(channels, batch, -1, into.shape[2]).split(R, dim=-1)
    states = walk(ahead, decay, s, False)
    parts = [rows, states[:, :, :-1].flatten(1, 2)]
    if behind:
        parts.append(walk(behind[0], decay, None, True)[:, :, 1:].flatten(1, 2))
    y = torch.bmm(torch.cat(parts, dim=-1), out).view(channels, batch, length).transpose(0, 1)
    last = states[:, :, -1] if dense else states[:, :, -1].unflatten(-1, (2, -1)).mT.flatten(2)
    return y, last.transpose(0, 1)


def walk_chunks(added: Tensor, decay: Tensor, s: Tensor | None, back: bool) -> Tensor:
    """States before and after each chunk, s_{k+1} = D s_k + added_k from s_0 = s; backwards in time s_k = Dᵀ s_{k+1} +
    added_k from the last one.

    added (channels, batch, chunks, R), D as in `ChunkTables`, s (channels, batch, R) or zero → (channels, batch, chunks
    + 1, R)
    """
    s = torch.zeros_like(added[:, :, 0]) if s is None else s
    chunks = reversed(added.unbind(2)) if back else added.unbind(2)
    if decay.dim() == 3:
        states = [s]
        for h in chunks:
            states.append(torch.baddbmm(h, states[-1], decay if back else decay.mT))
        return torch.stack(states[::-1] if back else states, dim=2)
    (near, far), (_, turn) = (factor.chunk(2, -1) for factor in decay)
    turn = -turn if back else turn
    halves = [[half] for half in s.chunk(2, -1)]
    for h in chunks:
        (a, b), (h_a, h_b) = (half[-1] for half in halves), h.chunk(2, -1)
        halves[0].append(torch.addcmul(torch.addcmul(h_a, near, a), turn, b, value=-1))
        halves[1].append(torch.addcmul(torch.addcmul(h_b, far, b), turn, a))
    return torch.cat([torch.stack(half[::-1] if back else half, dim=2) for half in halves], dim=-1)


def _swap(s: Tensor) -> Tensor:
    """First and second halves of all slots exchanged. (..., R)"""
    return s.unflatten(-1, (2, -1)).flip(-2).flatten(-2)


def _fake_carry(added: Tensor, *others: Any) -> Tensor:
    channels, batch, chunks, R = added.shape
    return added.new_empty(channels, batch, chunks + 1, R)


@full_precision
def _adjoint(kept: tuple, dstates: Tensor) -> tuple[Tensor | None, ...]:
    """The adjoint is the same walk the other way."""
    states, decay, has_first, back = kept
    early, late = (..., slice(-1), slice(None)), (..., slice(1, None), slice(None))
    here, there, first, last = (late, early, 0, -1) if back else (early, late, -1, 0)
    g = carry(dstates[here], decay, dstates[:, :, first], not back)
    # D takes s_k to s_{k+1}, backwards Dᵀ takes s_{k+1} to s_k
    a, s = (states[late], g[early]) if back else (g[late], states[early])
    a, s = a.flatten(1, 2), s.flatten(1, 2)
    if decay.dim() == 3:
        ddecay = a.mT @ s
    else:
        ddecay = torch.stack([(a * s).sum(1, keepdim=True), (a * _swap(s)).sum(1, keepdim=True)])
    return g[there], ddecay, g[:, :, last] if has_first else None, None


@operator(_fake_carry, _adjoint, lambda inputs, states: ((states, inputs[1]), (inputs[2] is not None, inputs[3])))
def carry(added: Tensor, decay: Tensor, s: Tensor | None, back: bool) -> Tensor:
    """`walk_chunks` as one operator of PyTorch, so that a graph does not depend on the number of chunks."""
    return walk_chunks(added, decay, s, back)
