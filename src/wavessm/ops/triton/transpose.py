"""Between a scan, whose signals lie channels first, and what is around it, where they lie channels last.

`transpose` runs at the speed of memory; `activate` applies GELU on the way to the projection:

    z[b, l, h] = after[b, h] · GELU(before[b, h] · x[b, h, l])

NaN or infinity in a chunk's product would reach the chunk's first sample. `finite_input` therefore zeroes them on the
way into a causal scan and records the first one, and `propagate_nan` makes the outputs NaN from there on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
from wavessm.ops.triton.language import cdiv, jit, tl

BLOCK, WARPS = 64, 4
BACK_BLOCK, BACK_WARPS = 32, 2
"""For the gradient of `activate`, which reads twice as much."""


def transpose(x: Tensor) -> Tensor:
    """(batch, rows, columns) contiguous → (batch, columns, rows) contiguous."""
    batch, rows, columns = x.shape
    out = torch.empty(batch, columns, rows, dtype=x.dtype, device=x.device)
    grid = cdiv(columns, BLOCK), cdiv(rows, BLOCK), batch
    transpose_kernel[grid](x, out, rows, columns, BLOCK=BLOCK, num_warps=WARPS)
    return out


def finite_input(x: Tensor) -> tuple[Tensor, Tensor]:
    """A contiguous copy of x (batch, channels, length) with zeros for NaN and infinity, and where they begin in each
    signal, or its length: (batch, channels) int32."""
    batch, channels, length = x.shape
    out = torch.empty(batch, channels, length, dtype=x.dtype, device=x.device)
    broken = torch.full((batch, channels), length, dtype=torch.int32, device=x.device)
    grid = cdiv(length, BLOCK), cdiv(channels, BLOCK), batch
    finite_input_kernel[grid](x, out, broken, channels, length, *x.stride(), BLOCK=BLOCK, num_warps=WARPS)
    return out, broken


def propagate_nan(y: Tensor, last: Tensor, broken: Tensor) -> None:
    """Write NaN into y (batch, channels, length) from index `broken` on, and into those states of `last`."""
    batch, channels, length = y.shape
    width = last[0, 0].numel()
    propagate_nan_kernel[(channels, batch)](y, last, broken, channels, length, *last.stride()[:2], width, BLOCK=1024)


def activate(x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
    """x (batch, channels, length) → (batch, length, channels), both contiguous; factors (batch, 1, channels)."""
    return _Activate.apply(x, *(None if factor is None else factor.contiguous() for factor in (before, after)))


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, before, after)
        batch, channels, length = x.shape
        out = torch.empty(batch, length, channels, dtype=x.dtype, device=x.device)
        grid = cdiv(length, BLOCK), cdiv(channels, BLOCK), batch
        gelu_kernel[grid](x, before, after, None, out, channels, length, BLOCK=BLOCK, num_warps=WARPS)
        return out

    @staticmethod
    @first_only
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, None, None]:
        (batch, channels, length), dx = ctx.saved_tensors[0].shape, torch.empty_like(ctx.saved_tensors[0])
        grid = cdiv(length, BACK_BLOCK), cdiv(channels, BACK_BLOCK), batch
        gelu_kernel[grid](
            *ctx.saved_tensors, dz.contiguous(), dx, channels, length, BLOCK=BACK_BLOCK, num_warps=BACK_WARPS
        )
        return dx, None, None


@jit
def transpose_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    """One tile, transposed."""
    b = tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = (r < rows)[:, None] & (c < columns)[None, :]
    tile = tl.load(x + (b * rows + r[:, None]) * columns + c[None, :], mask=ok, other=0.0)
    tl.store(out + (b * columns + c[:, None]) * rows + r[None, :], tl.trans(tile), mask=tl.trans(ok))


@jit
def finite_input_kernel(x, out, broken, channels, length, x_batch, x_channel, x_sample, BLOCK: tl.constexpr):
    """One tile, transposed and finite; the first sample that was not goes into `broken`."""
    b = tl.program_id(2).to(tl.int64)
    l = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = (l < length)[:, None] & (h < channels)[None, :]
    at = b * x_batch + l.to(tl.int64)[:, None] * x_sample + h.to(tl.int64)[None, :] * x_channel
    tile = tl.load(x + at, mask=ok, other=0.0)
    finite = tl.abs(tile.to(tl.float32)) < float("inf")
    first = tl.min(tl.where(finite, length, l[:, None]), 0)
    tl.atomic_min(broken + b * channels + h, first, mask=(h < channels) & (first < length))
    at_out = (b * channels + h[:, None]) * length + l[None, :]
    tl.store(out + at_out, tl.trans(tl.where(finite, tile, 0.0)), mask=tl.trans(ok))


@jit
def propagate_nan_kernel(y, last, broken, channels, length, last_batch, last_channel, width, BLOCK: tl.constexpr):
    """NaN into one signal and its last state."""
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    stop = tl.load(broken + b * channels + h)
    if stop < length:
        for start in range(0, length, BLOCK):
            l = start + tl.arange(0, BLOCK)
            tl.store(y + (b * channels + h) * length + l, float("nan"), mask=(l >= stop) & (l < length))
        n = tl.arange(0, BLOCK)
        tl.store(last + b * last_batch + h * last_channel + n, float("nan"), mask=n < width)


@jit
def gelu_kernel(x, before, after, dz, out, channels, length, BLOCK: tl.constexpr):
    """z from x, or with dz given its gradient back to x; GELU(v) = v Φ(v), with derivative Φ(v) + v φ(v)."""
    b = tl.program_id(2).to(tl.int64)
    l = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at_x = (b * channels + h[:, None]) * length + l[None, :]
    at_z = (b * length + l[:, None]) * channels + h[None, :]
    ok = (h < channels)[:, None] & (l < length)[None, :]
    v = tl.load(x + at_x, mask=ok, other=0.0).to(tl.float32)
    scale = tl.zeros((BLOCK,), tl.float32) + 1.0
    if before is not None:
        inner = tl.load(before + b * channels + h, mask=h < channels, other=0.0).to(tl.float32)
        v *= inner[:, None]
    if after is not None:
        scale = tl.load(after + b * channels + h, mask=h < channels, other=0.0).to(tl.float32)
    half = 0.5 * (1.0 + tl.erf(v * 0.7071067811865476))
    if dz is None:
        z = tl.trans(v * half * scale[:, None])
        tl.store(out + at_z, z.to(out.dtype.element_ty), mask=tl.trans(ok))
    else:
        slope = half + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
        if before is not None:
            scale *= inner
        g = tl.trans(tl.load(dz + at_z, mask=tl.trans(ok), other=0.0)).to(tl.float32)
        tl.store(out + at_x, (g * slope * scale[:, None]).to(out.dtype.element_ty), mask=ok)
