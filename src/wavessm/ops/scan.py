"""The chunked scan in plain PyTorch: two matrix products and a short recurrence over chunks, on CPU and GPU.

Both directions share the products. With rows of M samples, s the state before a row and a the state after it of the
direction that reads backwards,

    added = u [E | C₁ᵀ]        y = [u | s | a] [T₀ + T₁ᵀ ; C₀ ; Eᵀ]

Nothing of size R · L is formed and no FFT is run. `scan` is for training and both directions; `run_chunks` is for
streams, with tables made once and no gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wavessm.ops.derivatives import full_precision, operator
from wavessm.ops.modes import DenseSystem, DiagonalSystem, flags
from wavessm.ops.tables import chunk_tables, toeplitz

try:
    from torch.fx.experimental.symbolic_shapes import has_static_value
except ImportError:  # an older PyTorch compiles each length by itself
    has_static_value = None  # type: ignore[assignment]

CHUNK = 64


class ScanTables(NamedTuple):
    """The tables of one chunk length, arranged for the products; see the module's docstring."""

    into: Tensor  # (channels, M, directions · R)
    out: Tensor  # (channels, M + directions · R, M): from samples and states to outputs
    decay: Tensor  # (channels, R) by slots, or (channels, R, R) of a dense state
    n_complex: int  # slots that are complex numbers; none of a dense state


def scan_tables(system: DiagonalSystem | DenseSystem, chunk: int, like: Tensor) -> ScanTables:
    """The tables of a system, made in float64, arranged and cast once to the dtype and device of `like`."""
    K, E, C, decay = chunk_tables(system, chunk)
    T, into, out = toeplitz(K[0]), E, C[0]
    decay = decay if isinstance(system, DenseSystem) else decay.flatten(1)
    if len(K) == 2:
        T = T + toeplitz(K[1]).transpose(1, 2)
        into, out = torch.cat([E, C[1].transpose(1, 2)], dim=-1), torch.cat([out, E.transpose(1, 2)], dim=1)
    into, out, decay = (
        table.to(like.dtype).to(like.device).contiguous() for table in (into, torch.cat([T, out], dim=1), decay)
    )
    return ScanTables(into, out, decay, 0 if isinstance(system, DenseSystem) else system.n_complex)


def is_symbolic(length: int) -> bool:
    """Whether a traced length stands for any: what depends on its value would fix it."""
    return has_static_value is not None and torch.compiler.is_compiling() and not has_static_value(length)


def scan(
    u: Tensor,  # (batch, channels, length)
    system: DiagonalSystem | DenseSystem,
    state: Tensor | None = None,  # (batch, channels, R)
    want_state: bool = False,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """Run a system over signals, without its direct path; a state goes with one direction only. Returns y like u, and
    the state after the last sample (batch, channels, R) if wanted, else None."""
    length = u.shape[-1]
    if state is None and not want_state:  # zeros at the end change nothing
        chunk = chunk if is_symbolic(length) else min(chunk, length)
        padded = F.pad(u, (0, (length + chunk - 1) // chunk * chunk - length))
        y, _ = _rows(padded, scan_tables(system, chunk, u), None)
        return y[..., :length], None
    s = None if state is None else state.to(u.dtype).transpose(0, 1)
    whole = length - length % chunk
    pieces = []
    for begin, end, size in ((0, whole, chunk), (whole, length, length - whole)):
        if begin < end:
            y, s = _rows(u[..., begin:end], scan_tables(system, size, u), s)
            pieces.append(y)
    y = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    return y, s.transpose(0, 1) if s is not None and want_state else None


def _rows(u: Tensor, tables: ScanTables, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """u (batch, channels, chunks · M), s (channels, batch, R)"""
    batch, channels, length = u.shape
    into, out, decay, n_complex = tables
    chunks = length // into.shape[1]
    rows = u.transpose(0, 1).contiguous().view(channels, batch * chunks, -1)  # batched products are slow on views
    ahead, *behind = (rows @ into).view(channels, batch, chunks, -1).split(decay.shape[1], dim=-1)
    states = carry(ahead, decay, n_complex, s, False)
    parts = [rows, states[:, :, :-1].flatten(1, 2)]
    if behind:
        parts.append(carry(behind[0], decay, n_complex, None, True)[:, :, 1:].flatten(1, 2))
    y = torch.cat(parts, dim=-1) @ out
    return y.view(channels, batch, length).transpose(0, 1), states[:, :, -1]


def _lanes(x: Tensor, n_complex: int) -> list[Tensor]:
    """Views of x (..., R): complex slots as complex numbers, then the others; one of the two may be missing."""
    split = 2 * n_complex
    views = [torch.view_as_complex(x[..., :split].unflatten(-1, (-1, 2)))] if n_complex else []
    return [*views, x[..., split:]] if x.shape[-1] > split else views


def _fake_carry(added: Tensor, *others: Any) -> Tensor:
    channels, batch, chunks, R = added.shape
    return added.new_empty(channels, batch, chunks + 1, R)


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    _, decay, ctx.n_complex, first, ctx.back = inputs
    ctx.has_first = first is not None
    ctx.save_for_backward(output, decay)


@full_precision
def _adjoint(ctx: Any, dstates: Tensor) -> tuple[Tensor | None, ...]:
    """The adjoint is the same walk the other way."""
    states, decay = ctx.saved_tensors
    early, late = (..., slice(-1), slice(None)), (..., slice(1, None), slice(None))
    here, there, first, last = (late, early, 0, -1) if ctx.back else (early, late, -1, 0)
    g = carry(dstates[here], decay, ctx.n_complex, dstates[:, :, first], not ctx.back)
    # D takes s_k to s_{k+1}, backwards Dᵀ takes s_{k+1} to s_k
    a, s = (states[late], g[early]) if ctx.back else (g[late], states[early])
    a, s = a.flatten(1, 2), s.flatten(1, 2)
    if decay.dim() == 3:
        ddecay = a.transpose(1, 2) @ s
    else:
        split = 2 * ctx.n_complex
        (s_0, s_1), (a_0, a_1) = (x[..., :split].unflatten(-1, (-1, 2)).unbind(-1) for x in (s, a))
        turned = torch.stack([(s_0 * a_0 + s_1 * a_1).sum(1), (s_0 * a_1 - s_1 * a_0).sum(1)], -1)
        ddecay = torch.cat([turned.flatten(1), (s[..., split:] * a[..., split:]).sum(1)], dim=1)
    return g[there], ddecay, None, g[:, :, last] if ctx.has_first else None, None


@operator(_fake_carry, _save, _adjoint)
def carry(added: Tensor, decay: Tensor, n_complex: int, s: Tensor | None, back: bool) -> Tensor:
    """States before and after each chunk, s_{k+1} = D s_k + added_k from s_0 = s; backwards in time s_k = Dᵀ s_{k+1} +
    added_k from the last one. One operator of PyTorch, so that a compiled graph does not depend on the chunks' number.

    added (channels, batch, chunks, R), D and n_complex as in `ScanTables`, s (channels, batch, R) or zero →
    (channels, batch, chunks + 1, R)
    """
    channels, batch, chunks, R = added.shape
    added = added if added.stride(-1) == 1 else added.contiguous()  # for complex views
    states = added.new_empty(channels, batch, chunks + 1, R)
    states[:, :, -1 if back else 0] = 0 if s is None else s
    order = [(k, k + 1, k) for k in range(chunks - 1, -1, -1)] if back else [(k, k, k + 1) for k in range(chunks)]
    if decay.dim() == 3:
        across = decay if back else decay.transpose(1, 2)
        for k, here, there in order:
            states[:, :, there] = torch.baddbmm(added[:, :, k], states[:, :, here], across)
    else:
        for h, x, d in zip(*(_lanes(t, n_complex) for t in (added, states, decay[:, None])), strict=True):
            d = torch.conj_physical(d) if back else d
            for k, here, there in order:
                x[:, :, there] = torch.addcmul(h[:, :, k], d, x[:, :, here])
    return states


class StreamTables(NamedTuple):
    """As `ScanTables`, of one direction, with D in `out`; first halves of all slots come before their second halves."""

    into: Tensor  # (channels, M, R)
    out: Tensor  # (channels, M + R, M)
    decay: Tensor  # (3, channels, 1, slots): factors d of s₀' = d₀ s₀ − d₁ s₁, s₁' = d₂ s₁ + d₁ s₀; or (channels, R, R)


def stream_tables(system: DiagonalSystem | DenseSystem, D: Tensor, chunk: int) -> StreamTables:
    """The tables of a causal system with direct path D (channels,) for chunks of one length, like D."""
    into, out, decay, n_complex = scan_tables(system, chunk, D)
    out[:, range(chunk), range(chunk)] += D[:, None]
    order = torch.arange(into.shape[2], device=D.device).view(-1, 2).T.flatten()
    out = torch.cat([out[:, :chunk], out[:, chunk + order]], dim=1)
    if isinstance(system, DenseSystem):
        decay = decay[:, order][:, :, order].transpose(1, 2).contiguous()
    else:
        first, second = decay.unflatten(1, (-1, 2)).unbind(-1)
        c = flags(n_complex, first.shape[1], first)
        decay = torch.stack([first, c * second, c * first + (1 - c) * second])[:, :, None]
    return StreamTables(into[..., order].contiguous(), out, decay)


def run_chunks(u: Tensor, tables: StreamTables, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run whole chunks of a stream, u (batch, chunks · M, channels), from a state (batch, channels, slots, 2) or zero.

    Returns y like u, and the state after the last sample. All of it is real arithmetic, which a compiler can fuse.
    """
    (batch, length, channels), (into, out, decay) = u.shape, tables
    M, slots = into.shape[1], into.shape[2] // 2
    rows = u.reshape(batch, -1, M, channels).permute(3, 0, 1, 2).contiguous().view(channels, -1, M)
    added = torch.bmm(rows, into).view(channels, batch, -1, 2, slots).unbind(2)
    s = u.new_zeros(channels, batch, 2, slots) if state is None else state.permute(1, 0, 3, 2)
    first, second = s.unbind(2)
    before: tuple[list[Tensor], list[Tensor]] = [], []
    for h in added:
        before[0].append(first)
        before[1].append(second)
        if decay.dim() == 3:
            joined = torch.cat([first, second], dim=-1)
            first, second = torch.baddbmm(h.flatten(2), joined, decay).chunk(2, dim=-1)
        else:
            near, turn, far = decay
            first, second = (
                torch.addcmul(torch.addcmul(h[:, :, 0], near, first), turn, second, value=-1),
                torch.addcmul(torch.addcmul(h[:, :, 1], far, second), turn, first),
            )
    states = [torch.stack(half, dim=2).flatten(1, 2) for half in before]
    y = torch.bmm(torch.cat([rows, *states], dim=-1), out).view(channels, batch, length).permute(1, 2, 0)
    return y, torch.stack([first.transpose(0, 1), second.transpose(0, 1)], dim=-1)
