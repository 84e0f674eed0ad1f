"""The chunked scan as Triton kernels: forward and backward, in three arithmetics. Equal to `scan.diagonal_scan`.

A chunk has M samples, λ̄ = exp(log_lam), and s is the state before the chunk (complex, N modes, row vectors):

    y  = u T + Re s C           T[i, j] = K[j − i] for j ≥ i, K[l] = Re Σ w λ̄^l;   C[n, j] = w_n λ̄_n^{j+1}
    s' = λ̄^M s + u E            E[i, n] = λ̄_n^{M−1−i}

and in reverse time, with a the gradient of the state after the chunk (as pairs of reals):

    du = dy Tᵀ + a Eᵀ           a' = conj(λ̄^M) a + dy Cᵀ
    dT = Σ uᵀ dy      dE = Σ uᵀ a      dC = Σ sᵀ dy      dλ̄^M = Σ conj(s) a       (sums over batch and chunks)

One program takes a channel and a tile of *rows*, keeps the state (or its gradient) in registers and walks over the
chunks of those rows, forward or back; every product runs on tensor cores. The sums are one more kernel. A row is a
signal of the batch or, where there are too few of them to fill the chip, one segment of it: then a first walk finds
what each segment adds to the state, a small kernel chains the segments, and the full walk starts each row from its
true state.

Only u and the states before each chunk are kept for the backward, whose walk stores as many numbers a. Samples past
the last whole chunk give outputs in the same walk; the state after them takes one small product in float64, since E
and λ̄^M differ for a shorter chunk.

The tables are those of `tables.make_tables`, formed in float64 by one kernel and differentiated by another.
Complex ones are split, real part first: axis 1 of size 2 in E (channels, 2, M, N), C (channels, 2, N, M), with C's
imaginary part negated so that Re s C is two real products, λ̄^M (channels, 2, N), and states (batch, channels, 2, N).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wavessm.errors import OptionError

try:
    import triton  # type: ignore
    import triton.language as tl  # type: ignore

    _jit = triton.jit
    _missing = None
except ImportError as error:  # the functions below stay plain Python, and `available` tells why
    _missing = str(error)

    def _jit(function: Any) -> Any:
        return function


# What tl.dot is told. Three TF32 products carry float32's accuracy; "bf16" rounds the factors, never the sums.
_ARITHMETIC = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}
PRECISIONS = tuple(_ARITHMETIC)

# (precision, more than 32 modes): part, block, warps_back and stages_back of `Settings`
_SUMS = {
    ("fp32", False): (64, 32, 4, 2),
    ("fp32", True): (32, 32, 4, 3),
    ("tf32", False): (64, 32, 8, 1),
    ("tf32", True): (32, 64, 4, 2),
    ("bf16", False): (64, 64, 4, 3),
    ("bf16", True): (64, 64, 4, 3),
}


@dataclass(frozen=True)
class Settings:
    """How the work is cut. Powers of two, chunk and tile at least 16 (the smallest side of a tensor-core product)."""

    chunk: int = 64  # M, samples in a chunk
    tile: int = 16  # rows in a program
    segments: int = 1  # rows that each signal is cut into
    warps: int = 4
    stages: int = 2
    part: int = 32  # samples of the chunk in one program of the tables' gradients
    block: int = 32  # chunks summed over at a time for the gradients of the tables
    programs: int = 512  # that these sums are spread over, if the channels alone are fewer
    warps_back: int = 4
    stages_back: int = 3


def available(u: Tensor) -> str | None:
    """None if the Triton scan can serve this input, else the reason in one line."""
    if _missing is not None:
        return f"triton is not installed ({_missing}); pip install triton"
    if u.dtype not in (torch.float32, torch.bfloat16):
        return f"input is {u.dtype}, the kernels take float32 and bfloat16"
    if not u.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"input is on {u.device}, not on a CUDA device (and TRITON_INTERPRET=1 is not set)"
    return None


def default_settings(batch: int, channels: int, modes: int, length: int, precision: str) -> Settings:
    """What was fastest on an H200 at the sizes of the benchmarks; see `Settings`."""
    if modes > 64:  # tables of 64 samples would not fit a multiprocessor's shared memory
        return Settings(chunk=min(32, _power_of_two(length)), warps=8, part=16, block=16)
    chunk = min(64, _power_of_two(length))
    tile = 16
    if precision != "fp32" and modes > 32 and batch > 16:
        tile = 32
    elif modes <= 32 and ((precision != "fp32" and batch > 32) or (precision == "bf16" and batch == 1)):
        tile = 64
    # Signals that fill less than half a tile are cut into rows enough for whole tiles, two programs a processor.
    enough = -(-max(tile, 256 * tile // channels) // batch)
    segments = max(1, min(enough, -(-length // chunk) // 4)) if 2 * batch < tile else 1
    part, block, warps, stages = _SUMS[precision, modes > 32]
    return Settings(chunk, tile, segments, 4, 3, part, block, warps_back=warps, stages_back=stages)


def diagonal_scan(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    log_lam: Tensor,  # (channels, modes, 2)
    w: Tensor,  # (channels, modes, 2)
    state: Tensor | None,  # (batch, channels, modes, 2)
    precision: str = "fp32",
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor]:
    """As `scan.diagonal_scan`: y in u's dtype, and the state after the last sample in float32.

    Inputs whose last axis is not contiguous are copied first: a channel's samples must lie side by side.
    """
    if (reason := available(u)) is not None:
        raise OptionError(f"the Triton scan cannot serve this call: {reason}")
    if precision not in _ARITHMETIC:
        raise OptionError(f"precision is {precision!r}, expected one of {', '.join(PRECISIONS)}")
    batch, channels, length = u.shape
    modes = log_lam.shape[1]
    cut = settings or default_settings(batch, channels, modes, length, precision)
    K, E, C, decay = split_tables(log_lam, w, cut.chunk)
    first = None if state is None else state.float().transpose(-1, -2)
    save = torch.is_grad_enabled() and any(table.requires_grad for table in (log_lam, w))
    arithmetic = _ARITHMETIC[precision] if u.is_cuda or precision != "bf16" else "rounded"
    y, last = _Scan.apply(u, K, E, C, decay, first, arithmetic, cut, save)
    rest = length % cut.chunk
    if rest:
        last = _finish(last, u[..., length - rest :], E)
    return y, last.transpose(-1, -2)


def _finish(last: Tensor, tail: Tensor, E: Tensor) -> Tensor:
    """The state `last` (batch, channels, 2, N) after a tail shorter than a chunk, whose E is the end of E.

    In float64: neither autocast nor TF32 settings of torch touch it, and it is a small product.
    """
    rest, chunk = tail.shape[-1], E.shape[2]
    power = E[:, :, chunk - 1 - rest].double()  # λ̄^rest
    real, imag = last.double().unbind(2)
    kept = torch.stack([power[:, 0] * real - power[:, 1] * imag, power[:, 0] * imag + power[:, 1] * real], dim=2)
    heard = torch.einsum("bhi,hpin->bhpn", tail.double(), E[:, :, chunk - rest :].double())
    return (kept + heard).float()


def _power_of_two(n: int, least: int = 16) -> int:
    return max(least, 1 << (n - 1).bit_length())


@dataclass(frozen=True)
class _Plan:
    """Sizes shared by the launches of one call."""

    batch: int
    channels: int
    length: int
    modes: int
    cut: Settings
    arithmetic: str

    @property
    def chunks(self) -> int:
        return -(-self.length // self.cut.chunk)

    @property
    def steps(self) -> int:
        """Chunks in a row."""
        return -(-self.chunks // self.cut.segments)

    @property
    def segments(self) -> int:
        """Rows that hold at least one chunk; all but the last of a signal are full."""
        return -(-self.chunks // self.steps)

    @property
    def rows(self) -> int:
        return self.batch * self.segments

    @property
    def tiles(self) -> int:
        return -(-self.rows // self.cut.tile)

    @property
    def edge_shape(self) -> tuple[int, ...]:
        """Of the states at one end of all rows."""
        return self.batch, self.segments, self.channels, 2, self.modes

    def sizes(self) -> dict[str, Any]:
        """The arguments every walk takes."""
        return {
            "channels": self.channels,
            "modes": self.modes,
            "rows": self.rows,
            "segments": self.segments,
            "steps": self.steps,
            "length": self.length,
            "M": self.cut.chunk,
            "N": _power_of_two(self.modes),
            "PRECISION": self.arithmetic,
        }

    def boundary(self, edge: Tensor | None, at: int, like: Tensor) -> Tensor | None:
        """The states that rows start from: `edge` (batch, channels, 2, N) in segment `at`, zero in the others."""
        if edge is None and self.segments == 1:
            return None
        states = torch.zeros(self.edge_shape, device=like.device)
        if edge is not None:
            states[:, at] = edge
        return states

    def chain(self, begin: Tensor, ends: Tensor, decay: Tensor, reverse: bool) -> None:
        """Put into `begin` the state each segment starts from, given where walks from the old `begin` ended."""
        _chain_kernel[(self.channels, self.batch)](
            begin, ends, decay, self.channels, self.modes, self.segments, self.steps,
            N=_power_of_two(self.modes), REVERSE=reverse,
        )  # fmt: skip


def split_tables(log_lam: Tensor, w: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """K (channels, M), E, C and λ̄^M of the module's docstring: `tables.make_tables` in one launch, differentiable."""
    return _Tables.apply(log_lam, w, chunk)


def _table_sizes(chunk: int) -> dict[str, int]:
    """Few modes in a program: float64 fills the registers fast."""
    return {"M": chunk, "N": 8, "BITS": chunk.bit_length() - 1, "num_warps": 8}


class _Tables(torch.autograd.Function):
    """Formed in float64 and cast once, as the gradients are; launches one by one would outlast the scan itself."""

    @staticmethod
    def forward(ctx: Any, log_lam: Tensor, w: Tensor, chunk: int) -> tuple[Tensor, ...]:
        log_lam, w = log_lam.contiguous(), w.contiguous()
        channels, modes, _ = log_lam.shape
        shapes = (channels, chunk), (channels, 2, chunk, modes), (channels, 2, modes, chunk), (channels, 2, modes)
        tables = tuple(torch.empty(shape, device=w.device) for shape in shapes)
        _table_kernel[(channels,)](log_lam, w, *tables, modes, **_table_sizes(chunk))
        ctx.save_for_backward(log_lam, w)
        return tables

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        log_lam, w = ctx.saved_tensors
        channels, modes, _ = log_lam.shape
        dlog_lam, dw = torch.empty_like(log_lam), torch.empty_like(w)
        dtables = [grad.contiguous() for grad in grads]
        sizes = _table_sizes(grads[0].shape[1])
        _table_gradient_kernel[(channels, -(-modes // sizes["N"]))](log_lam, w, *dtables, dlog_lam, dw, modes, **sizes)
        return dlog_lam, dw, None


class _Scan(torch.autograd.Function):
    """y and the state after the last whole chunk, from u, the tables and the first state."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        K: Tensor,
        E: Tensor,
        C: Tensor,
        decay: Tensor,
        first: Tensor | None,
        arithmetic: str,
        cut: Settings,
        save: bool,
    ) -> tuple[Tensor, Tensor]:
        u = u if u.stride(-1) == 1 else u.contiguous()
        batch, channels, length = u.shape
        plan = _Plan(batch, channels, length, decay.shape[-1], cut, arithmetic)
        tables = K, E, C, decay
        y, last, states = _walk(plan, u, tables, first, save, reverse=False)
        ctx.plan, ctx.has_first = plan, first is not None
        ctx.save_for_backward(u, *tables, states)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, *tables, states = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros(u.shape, dtype=u.dtype, device=u.device)
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        du, dfirst, adjoints = _walk(ctx.plan, dy, tuple(tables), dlast, states is not None, reverse=True)
        dtables: tuple[Tensor | None, ...] = (None,) * 4
        if states is not None and adjoints is not None:
            dtables = _table_gradients(ctx.plan, u, dy, states, adjoints)
        return du, *dtables, dfirst if ctx.has_first else None, None, None, None


def _walk(
    plan: _Plan, x: Tensor, tables: tuple[Tensor, ...], edge: Tensor | None, save: bool, reverse: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The scan of x from the state `edge`, or its transpose: outputs, the state at the end, the states on the way."""
    from_end = plan.segments - 1 if reverse else 0
    begin = plan.boundary(edge, from_end, x)
    ends = torch.empty(plan.edge_shape, device=x.device)
    cut = plan.cut

    def launch(y: Tensor | None, states: Tensor | None) -> None:
        _walk_kernel[(plan.channels, plan.tiles)](
            x, *tables, begin, y, states, ends, x.stride(0), x.stride(1), **plan.sizes(),
            R=cut.tile, REVERSE=reverse, num_warps=cut.warps, num_stages=cut.stages,
        )  # fmt: skip

    if begin is not None and plan.segments > 1:
        launch(None, None)
        plan.chain(begin, ends, tables[-1], reverse)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    states = None
    if save:
        kept = torch.bfloat16 if plan.arithmetic in ("bf16", "rounded") else torch.float32
        states = torch.empty(plan.channels, plan.rows, plan.steps, 2, plan.modes, dtype=kept, device=x.device)
    launch(y, states)
    return y, ends[:, plan.segments - 1 - from_end], states


def _table_gradients(plan: _Plan, u: Tensor, dy: Tensor, states: Tensor, adjoints: Tensor) -> tuple[Tensor, ...]:
    """Of K, E, C and λ̄^M: products over all chunks, in `splits` partial sums for each channel."""
    cut, channels, M, N = plan.cut, plan.channels, plan.cut.chunk, plan.modes
    blocks = -(-plan.rows * plan.steps // cut.block)
    per_split = -(-blocks // max(1, min(blocks, cut.programs // channels)))
    splits = -(-blocks // per_split)
    sizes = [M * M, 2 * M * N, 2 * M * N, 2 * N]
    sums = torch.empty(splits, channels, sum(sizes), device=u.device)
    part = min(cut.part, M)
    _gradient_kernel[(channels * (M // part), splits)](
        u, dy, states, adjoints, sums, u.stride(0), u.stride(1), dy.stride(0), dy.stride(1), per_split,
        **plan.sizes(), P=part, Q=cut.block, num_warps=cut.warps_back, num_stages=cut.stages_back,
    )  # fmt: skip
    dT, dE, dC, ddecay = (sums[0] if splits == 1 else sums.sum(0)).split(sizes, dim=-1)
    dK = dT.unflatten(1, (M, M)).sum(1)  # the kernel stores the diagonals of dT as columns
    shape = (channels, 2, M, N)
    return dK, dE.unflatten(1, shape[1:]), dC.unflatten(1, shape[1:]).transpose(2, 3), ddecay.unflatten(1, (2, N))


@_jit
def _dot(a: tl.tensor, b: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """total + a b"""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "rounded":  # the interpreter would multiply the bit patterns of bfloat16
        return tl.dot(a.to(tl.bfloat16).to(tl.float32), b.to(tl.bfloat16).to(tl.float32), total)
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)


@_jit
def _table(pointer: tl.tensor, mask: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """A table in the type it is multiplied in, zero outside the mask."""
    values = tl.load(pointer, mask=mask, other=0.0)
    return values.to(tl.bfloat16) if PRECISION == "bf16" else values


@_jit
def _walk_kernel(
    x: tl.tensor, K: tl.tensor, E: tl.tensor, C: tl.tensor, decay: tl.tensor,
    begin: tl.tensor, y: tl.tensor, states: tl.tensor, ends: tl.tensor, x_batch: tl.tensor, x_channel: tl.tensor,
    channels: tl.tensor, modes: tl.tensor, rows: tl.tensor, segments: tl.tensor, steps: tl.tensor, length: tl.tensor,
    M: tl.constexpr, N: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr, REVERSE: tl.constexpr,
) -> None:  # fmt: skip
    """R rows of one channel from `begin` to `ends`: y and the states met, or neither. N is a power of two here.

    In reverse x is dy, y is du, s is a, and the transposes of the tables change places: Tᵀ for T, Cᵀ for E, Eᵀ for C.
    """
    h = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * R + tl.arange(0, R)
    signal, segment = (row // segments).to(tl.int64), row % segments
    i, n = tl.arange(0, M), tl.arange(0, N)
    row_ok, n_ok, n_ok_t = (row < rows)[:, None], (n < modes)[None, :], (n < modes)[:, None]

    size = M * modes
    if REVERSE:
        at_in, at_out = C + i[:, None] + n[None, :] * M, E + i[None, :] * modes + n[:, None]
        lag = i[:, None] - i[None, :]
    else:
        at_in, at_out = E + i[:, None] * modes + n[None, :], C + i[None, :] + n[:, None] * M
        lag = i[None, :] - i[:, None]
    in_re = _table(at_in + h * 2 * size, n_ok, PRECISION)
    in_im = _table(at_in + h * 2 * size + size, n_ok, PRECISION)
    decay_re = tl.load(decay + h * 2 * modes + n[None, :], mask=n_ok, other=0.0)
    decay_im = tl.load(decay + h * 2 * modes + modes + n[None, :], mask=n_ok, other=0.0)
    if REVERSE:
        decay_im = -decay_im
    if y is not None:
        T = _table(K + h * M + lag, lag >= 0, PRECISION)
        out_re = _table(at_out + h * 2 * size, n_ok_t, PRECISION)
        out_im = _table(at_out + h * 2 * size + size, n_ok_t, PRECISION)

    at_edge = ((row.to(tl.int64) * channels + h) * 2 * modes)[:, None] + n[None, :]
    s_re, s_im = tl.zeros((R, N), tl.float32), tl.zeros((R, N), tl.float32)
    if begin is not None:
        s_re += tl.load(begin + at_edge, mask=row_ok & n_ok, other=0.0)
        s_im += tl.load(begin + at_edge + modes, mask=row_ok & n_ok, other=0.0)

    start = segment * (steps * M)
    at_x = x + (signal * x_batch + h * x_channel + start)[:, None] + i[None, :]
    at_y = (signal * channels * length + h * length + start)[:, None] + i[None, :]
    at_states = ((h * rows + row) * steps * 2 * modes)[:, None] + n[None, :]
    for k in range(steps):
        step = steps - 1 - k if REVERSE else k
        ok = row_ok & ((start + step * M)[:, None] + i[None, :] < length)
        chunk = tl.load(at_x + step * M, mask=ok, other=0.0)
        # A chunk cut short leaves the state as it was: forward it hears the samples but passes nothing on, and
        # backward the gradient of the state goes past it, adding only what its outputs saw.
        whole = (start + step * M + M <= length)[:, None]
        seen_re, seen_im = s_re, s_im
        if REVERSE:
            seen_re, seen_im = tl.where(whole, s_re, 0.0), tl.where(whole, s_im, 0.0)
        if y is not None:
            out = _dot(chunk, T, tl.zeros((R, M), tl.float32), PRECISION)
            out = _dot(seen_re, out_re, out, PRECISION)
            out = _dot(seen_im, out_im, out, PRECISION)
            tl.store(y + at_y + step * M, out.to(y.dtype.element_ty), mask=ok)
        if states is not None:
            to = states + at_states + step * 2 * modes
            tl.store(to, seen_re.to(states.dtype.element_ty), mask=row_ok & n_ok)
            tl.store(to + modes, seen_im.to(states.dtype.element_ty), mask=row_ok & n_ok)
        next_re, next_im = decay_re * s_re - decay_im * s_im, decay_re * s_im + decay_im * s_re
        if REVERSE:
            next_re, next_im = tl.where(whole, next_re, s_re), tl.where(whole, next_im, s_im)
        next_re, next_im = _dot(chunk, in_re, next_re, PRECISION), _dot(chunk, in_im, next_im, PRECISION)
        if REVERSE:
            s_re, s_im = next_re, next_im
        else:
            s_re, s_im = tl.where(whole, next_re, s_re), tl.where(whole, next_im, s_im)
    tl.store(ends + at_edge, s_re, mask=row_ok & n_ok)
    tl.store(ends + at_edge + modes, s_im, mask=row_ok & n_ok)


@_jit
def _gradient_kernel(
    u: tl.tensor, dy: tl.tensor, states: tl.tensor, adjoints: tl.tensor, sums: tl.tensor,
    u_batch: tl.tensor, u_channel: tl.tensor, dy_batch: tl.tensor, dy_channel: tl.tensor, blocks: tl.tensor,
    channels: tl.tensor, modes: tl.tensor, rows: tl.tensor, segments: tl.tensor, steps: tl.tensor, length: tl.tensor,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """P rows of dT, dE and dCᵀ, and dλ̄^M, of one channel, summed over `blocks` blocks of Q chunks from all rows."""
    h, first = (tl.program_id(0) // (M // P)).to(tl.int64), tl.program_id(0) % (M // P) * P
    i, p, n = tl.arange(0, M), first + tl.arange(0, P), tl.arange(0, N)
    n_ok = (n < modes)[None, :]
    dT = tl.zeros((P, M), tl.float32)
    dE_re, dE_im = tl.zeros((P, N), tl.float32), tl.zeros((P, N), tl.float32)
    dC_re, dC_im = tl.zeros((P, N), tl.float32), tl.zeros((P, N), tl.float32)
    dd_re, dd_im = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    for block in range(blocks):
        chunk = (tl.program_id(1) * blocks + block) * Q + tl.arange(0, Q)
        row = chunk // steps
        signal = (row // segments).to(tl.int64)
        start = (row % segments) * (steps * M) + (chunk % steps) * M
        here = ((row < rows) & (start < length))[:, None]
        at_u = u + (signal * u_batch + h * u_channel + start)[:, None]
        at_dy = dy + (signal * dy_batch + h * dy_channel + start)[:, None]
        g = tl.load(at_dy + i[None, :], mask=here & (start[:, None] + i[None, :] < length), other=0.0)
        part_ok = here & (start[:, None] + p[None, :] < length)
        x_t = tl.trans(tl.load(at_u + p[None, :], mask=part_ok, other=0.0))
        g_t = tl.trans(g if P == M else tl.load(at_dy + p[None, :], mask=part_ok, other=0.0))
        at = ((h * rows * steps + chunk) * 2 * modes)[:, None] + n[None, :]
        s_re = tl.load(states + at, mask=here & n_ok, other=0.0)
        s_im = tl.load(states + at + modes, mask=here & n_ok, other=0.0)
        a_re = tl.load(adjoints + at, mask=here & n_ok, other=0.0)
        a_im = tl.load(adjoints + at + modes, mask=here & n_ok, other=0.0)
        dT = _dot(x_t, g, dT, PRECISION)
        dE_re, dE_im = _dot(x_t, a_re, dE_re, PRECISION), _dot(x_t, a_im, dE_im, PRECISION)
        dC_re, dC_im = _dot(g_t, s_re, dC_re, PRECISION), _dot(g_t, s_im, dC_im, PRECISION)
        s_re, s_im, a_re, a_im = s_re.to(tl.float32), s_im.to(tl.float32), a_re.to(tl.float32), a_im.to(tl.float32)
        dd_re += tl.sum(s_re * a_re + s_im * a_im, 0)
        dd_im += tl.sum(s_re * a_im - s_im * a_re, 0)

    to = sums + (tl.program_id(1) * channels + h) * (M * M + 4 * M * modes + 2 * modes)
    # Column d of row i is dT[i, i + d]; the places left over take the zeros from below the diagonal.
    ahead = i[None, :] - p[:, None]
    tl.store(to + p[:, None] * M + (ahead + M) % M, tl.where(ahead >= 0, dT, 0.0))
    at_E, size = to + M * M + p[:, None] * modes + n[None, :], M * modes
    tl.store(at_E, dE_re, mask=n_ok)
    tl.store(at_E + size, dE_im, mask=n_ok)
    tl.store(at_E + 2 * size, dC_re, mask=n_ok)
    tl.store(at_E + 3 * size, dC_im, mask=n_ok)
    if first == 0:  # the programs of the other rows have the same sums
        at_decay = to + M * M + 4 * size + n
        tl.store(at_decay, dd_re, mask=n < modes)
        tl.store(at_decay + modes, dd_im, mask=n < modes)


@_jit
def _chain_kernel(
    begin: tl.tensor, ends: tl.tensor, decay: tl.tensor,
    channels: tl.tensor, modes: tl.tensor, segments: tl.tensor, steps: tl.tensor,
    N: tl.constexpr, REVERSE: tl.constexpr,
) -> None:  # fmt: skip
    """begin[k + 1] = ends[k] + λ̄^{M steps} begin[k] along one signal's segments (k − 1 and conjugate in reverse).

    The first walk began at the true state in the first segment and at zero in the others, so the sum starts at zero.
    """
    h, signal = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    ok = n < modes
    # decay ** steps by squaring, in float64 because each square doubles the relative error
    base_re = tl.load(decay + h * 2 * modes + n, mask=ok, other=0.0).to(tl.float64)
    base_im = tl.load(decay + h * 2 * modes + modes + n, mask=ok, other=0.0).to(tl.float64)
    if REVERSE:
        base_im = -base_im
    over_re, over_im = tl.zeros((N,), tl.float64) + 1.0, tl.zeros((N,), tl.float64)
    left = steps
    while left > 0:
        if left % 2 == 1:
            over_re, over_im = over_re * base_re - over_im * base_im, over_re * base_im + over_im * base_re
        base_re, base_im = base_re * base_re - base_im * base_im, 2.0 * base_re * base_im
        left = left // 2
    over_re, over_im = over_re.to(tl.float32), over_im.to(tl.float32)
    s_re, s_im = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    for k in range(segments - 1):
        source = segments - 1 - k if REVERSE else k
        target = source - 1 if REVERSE else source + 1
        at = ((signal * segments + source) * channels + h) * 2 * modes + n
        to = ((signal * segments + target) * channels + h) * 2 * modes + n
        next_re = tl.load(ends + at, mask=ok, other=0.0) + over_re * s_re - over_im * s_im
        next_im = tl.load(ends + at + modes, mask=ok, other=0.0) + over_re * s_im + over_im * s_re
        s_re, s_im = next_re, next_im
        tl.store(begin + to, s_re, mask=ok)
        tl.store(begin + to + modes, s_im, mask=ok)


@_jit
def _powers(re: tl.tensor, im: tl.tensor, l: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """λ̄^l for l < M = 2^BITS, and λ̄^M, as real and imaginary parts: products of λ̄, λ̄², λ̄⁴, … by the bits of l.

    A sine of each element in float64 is slow and its code large; six products in float64 cost nothing in accuracy.
    """
    p_re, p_im = l * re * 0.0 + 1.0, l * re * 0.0
    for bit in range(BITS):
        chosen = (l >> bit) % 2 == 1
        next_re, next_im = p_re * re - p_im * im, p_re * im + p_im * re
        p_re, p_im = tl.where(chosen, next_re, p_re), tl.where(chosen, next_im, p_im)
        re, im = re * re - im * im, 2.0 * re * im
    return p_re, p_im, re, im


@_jit
def _table_kernel(
    log_lam: tl.tensor, w: tl.tensor, K: tl.tensor, E: tl.tensor, C: tl.tensor, decay: tl.tensor, modes: tl.tensor,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """The tables of one channel, N modes at a time, from the powers p = λ̄^l, l < M, in float64."""
    h = tl.program_id(0).to(tl.int64)
    l = tl.arange(0, M)[None, :]
    size = M * modes
    kernel = tl.zeros((M,), tl.float64)
    for first in range(0, modes, N):
        n = first + tl.arange(0, N)[:, None]
        ok = n < modes
        at = (h * modes + n) * 2
        log_re = tl.load(log_lam + at, mask=ok, other=0.0).to(tl.float64)
        log_im = tl.load(log_lam + at + 1, mask=ok, other=0.0).to(tl.float64)
        w_re = tl.load(w + at, mask=ok, other=0.0).to(tl.float64)  # zero past the last mode: K does not hear it
        w_im = tl.load(w + at + 1, mask=ok, other=0.0).to(tl.float64)
        lam_re, lam_im = tl.exp(log_re) * tl.cos(log_im), tl.exp(log_re) * tl.sin(log_im)
        p_re, p_im, over_re, over_im = _powers(lam_re, lam_im, l, BITS)
        kernel += tl.sum(w_re * p_re - w_im * p_im, 0)
        at_E = E + h * 2 * size + (M - 1 - l) * modes + n
        tl.store(at_E, p_re.to(tl.float32), mask=ok)
        tl.store(at_E + size, p_im.to(tl.float32), mask=ok)
        v_re, v_im = w_re * lam_re - w_im * lam_im, w_re * lam_im + w_im * lam_re
        at_C = C + h * 2 * size + n * M + l
        tl.store(at_C, (v_re * p_re - v_im * p_im).to(tl.float32), mask=ok)
        tl.store(at_C + size, -(v_re * p_im + v_im * p_re).to(tl.float32), mask=ok)
        tl.store(decay + h * 2 * modes + n, over_re.to(tl.float32), mask=ok)
        tl.store(decay + h * 2 * modes + modes + n, over_im.to(tl.float32), mask=ok)
    tl.store(K + h * M + tl.arange(0, M), kernel.to(tl.float32))


@_jit
def _table_gradient_kernel(
    log_lam: tl.tensor, w: tl.tensor, dK: tl.tensor, dE: tl.tensor, dC: tl.tensor, ddecay: tl.tensor,
    dlog_lam: tl.tensor, dw: tl.tensor, modes: tl.tensor, M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """Gradients of N modes of one channel: for z = f(x) holomorphic, x has conj(f′(x)) times the gradient of z.

    Here p = λ̄^l with gradient g, v = w λ̄ and C = conj(v p); k and c are the gradients of K and of v p.
    """
    h = tl.program_id(0).to(tl.int64)
    n, l = tl.program_id(1) * N + tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    ok = n < modes
    at = (h * modes + n) * 2
    log_re = tl.load(log_lam + at, mask=ok, other=0.0).to(tl.float64)
    log_im = tl.load(log_lam + at + 1, mask=ok, other=0.0).to(tl.float64)
    w_re = tl.load(w + at, mask=ok, other=0.0).to(tl.float64)
    w_im = tl.load(w + at + 1, mask=ok, other=0.0).to(tl.float64)
    lam_re, lam_im = tl.exp(log_re) * tl.cos(log_im), tl.exp(log_re) * tl.sin(log_im)
    p_re, p_im, over_re, over_im = _powers(lam_re, lam_im, l, BITS)
    v_re, v_im = w_re * lam_re - w_im * lam_im, w_re * lam_im + w_im * lam_re

    size = M * modes
    at_C = dC + h * 2 * size + n * M + l
    c_re = tl.load(at_C, mask=ok, other=0.0).to(tl.float64)
    c_im = -tl.load(at_C + size, mask=ok, other=0.0).to(tl.float64)
    k = tl.load(dK + h * M + l).to(tl.float64)
    at_E = dE + h * 2 * size + (M - 1 - l) * modes + n
    g_re = tl.load(at_E, mask=ok, other=0.0).to(tl.float64) + w_re * k + v_re * c_re + v_im * c_im
    g_im = tl.load(at_E + size, mask=ok, other=0.0).to(tl.float64) - w_im * k + v_re * c_im - v_im * c_re

    v_g_re = tl.sum(p_re * c_re + p_im * c_im, 1)[:, None]
    v_g_im = tl.sum(p_re * c_im - p_im * c_re, 1)[:, None]
    w_g_re = tl.sum(p_re * k, 1)[:, None] + lam_re * v_g_re + lam_im * v_g_im
    w_g_im = tl.sum(-p_im * k, 1)[:, None] + lam_re * v_g_im - lam_im * v_g_re
    tl.store(dw + at, w_g_re.to(dw.dtype.element_ty), mask=ok)
    tl.store(dw + at + 1, w_g_im.to(dw.dtype.element_ty), mask=ok)

    # To log λ̄: from p, with derivative l p; from v, with derivative v; from λ̄^M, with derivative M λ̄^M.
    o_re = tl.load(ddecay + h * 2 * modes + n, mask=ok, other=0.0).to(tl.float64)
    o_im = tl.load(ddecay + h * 2 * modes + modes + n, mask=ok, other=0.0).to(tl.float64)
    log_g_re = tl.sum(l * (p_re * g_re + p_im * g_im), 1)[:, None] + v_re * v_g_re + v_im * v_g_im
    log_g_im = tl.sum(l * (p_re * g_im - p_im * g_re), 1)[:, None] + v_re * v_g_im - v_im * v_g_re
    log_g_re += M * (over_re * o_re + over_im * o_im)
    log_g_im += M * (over_re * o_im - over_im * o_re)
    tl.store(dlog_lam + at, log_g_re.to(dlog_lam.dtype.element_ty), mask=ok)
    tl.store(dlog_lam + at + 1, log_g_im.to(dlog_lam.dtype.element_ty), mask=ok)
