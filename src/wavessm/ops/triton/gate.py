"""What follows a scan in a block, in one pass over memory each way: GELU on the way to the projection, which turns
channels last; then bias, gated linear unit, dropout and the residual path.

    z[b, l, h] = after[b, h] · GELU(before[b, h] · x[b, h, l])
    out[b, l, h] = around[b, l, h] + factor[b, h] · (p[b, l, h] + bias[h]) · σ(p[b, l, d + h] + bias[d + h])

p is the projection without its bias; the backward sums the bias's gradient on the way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only, operator
from wavessm.ops.triton.language import cdiv, jit, kernel, tl
from wavessm.ops.triton.norm import sum_rows

ROWS, COLUMNS, WARPS = 16, 128, 4
"""Samples and features in a tile, and the warps that share it."""
BACK_ROWS, BACK_WARPS, LOOPS = 8, 2, 8
"""The same for the backward, which waits for memory more often; and the tiles of a program."""


BLOCK, BLOCK_WARPS = 64, 4
BACK_BLOCK, BACK_BLOCK_WARPS = 32, 2
"""Sides of a tile of `activate`, and of its gradient, which reads twice as much."""


def _fake_activate(x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1])


@operator(lambda dz, x, before, after: torch.empty_like(x))
def activate_backward(dz: Tensor, x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
    """The gradient of x."""
    (batch, channels, length), dx = x.shape, torch.empty_like(x)
    grid = cdiv(length, BACK_BLOCK), cdiv(channels, BACK_BLOCK), batch
    gelu_kernel[grid](
        x, before, after, dz.contiguous(), dx, channels, length, BLOCK=BACK_BLOCK, num_warps=BACK_BLOCK_WARPS
    )
    return dx


@first_only
def _activate_gradient(kept: tuple, dz: Tensor) -> tuple[Tensor, None, None]:
    return activate_backward(dz, *kept), None, None


@operator(_fake_activate, _activate_gradient)
def activate(x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
    """x (batch, channels, length) → (batch, length, channels), all contiguous; factors (batch, 1, channels)."""
    (batch, channels, length), out = x.shape, _fake_activate(x, before, after)
    grid = cdiv(length, BLOCK), cdiv(channels, BLOCK), batch
    gelu_kernel[grid](x, before, after, None, out, channels, length, BLOCK=BLOCK, num_warps=BLOCK_WARPS)
    return out


def _fake_gate(p: Tensor, bias: Tensor, factors: Tensor | None, around: Tensor | None) -> Tensor:
    dtype = p.dtype if around is None else torch.promote_types(p.dtype, around.dtype)
    return p.new_empty(*p.shape[:-1], p.shape[-1] // 2, dtype=dtype)


@operator(lambda dout, p, bias, factors: (torch.empty_like(p), p.new_empty(p.shape[-1], dtype=torch.float32)))
def gate_backward(dout: Tensor, p: Tensor, bias: Tensor, factors: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of p and of the bias."""
    batch, length, width = p.shape
    grid = cdiv(batch * length, BACK_ROWS * LOOPS), cdiv(width // 2, COLUMNS)
    dp, dbias = torch.empty_like(p), torch.empty(grid[0], width, device=p.device)
    gate_gradient_kernel[grid](
        dout.contiguous(), p, bias, factors, dp, dbias, batch * length, length, width // 2,
        BACK_ROWS, COLUMNS, LOOPS, num_warps=BACK_WARPS,
    )  # fmt: skip
    return dp, sum_rows(dbias)


@first_only
def _gate_gradient(kept: tuple, dout: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, dtype = kept
    dp, dbias = gate_backward(dout, *inputs)
    return dp, dbias.to(inputs[1].dtype), None, None if dtype is None else dout.to(dtype)


@operator(_fake_gate, _gate_gradient, lambda inputs, _: (inputs[:3], (None if inputs[3] is None else inputs[3].dtype,)))
def gate(p: Tensor, bias: Tensor, factors: Tensor | None, around: Tensor | None) -> Tensor:
    """See the module's docstring. p (batch, length, 2 d), bias (2 d,), factors (batch, 1, d), around and the result
    (batch, length, d), all contiguous."""
    batch, length, width = p.shape
    out = _fake_gate(p, bias, factors, around)
    grid = cdiv(batch * length, ROWS), cdiv(width // 2, COLUMNS)
    gate_kernel[grid](p, bias, factors, around, out, batch * length, length, width // 2, ROWS, COLUMNS, num_warps=WARPS)
    return out


@jit
def _tile(p, bias, factors, r, h, ok, length, width):
    """The value, σ of the gate, and the dropout factor of samples r and features h."""
    at = r.to(tl.int64)[:, None] * (2 * width) + h[None, :]
    inside = (h < width)[None, :]
    value = tl.load(p + at, mask=ok, other=0.0).to(tl.float32)
    value += tl.load(bias + h[None, :], mask=inside, other=0.0).to(tl.float32)
    opening = tl.load(p + at + width, mask=ok, other=0.0).to(tl.float32)
    opening += tl.load(bias + width + h[None, :], mask=inside, other=0.0).to(tl.float32)
    factor = tl.zeros_like(value) + 1.0
    if factors is not None:
        factor = tl.load(factors + (r // length)[:, None] * width + h[None, :], mask=ok, other=0.0).to(tl.float32)
    return value, tl.sigmoid(opening), factor


@kernel
def gate_kernel(p, bias, factors, around, out, rows, length, width, R: tl.constexpr, H: tl.constexpr):
    """One tile of the output."""
    r, h = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * H + tl.arange(0, H)
    ok = (r < rows)[:, None] & (h < width)[None, :]
    value, opening, factor = _tile(p, bias, factors, r, h, ok, length, width)
    at = r.to(tl.int64)[:, None] * width + h[None, :]
    result = value * opening * factor
    if around is not None:
        result += tl.load(around + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=ok)


@kernel
def gate_gradient_kernel(
    dout, p, bias, factors, dp, dbias, rows, length, width,
    R: tl.constexpr, H: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """dp, and this program's part of the sum over samples."""
    h = tl.program_id(1) * H + tl.arange(0, H)
    sum_value, sum_opening = tl.zeros((H,), tl.float32), tl.zeros((H,), tl.float32)
    for k in range(LOOPS):
        r = (tl.program_id(0) * LOOPS + k) * R + tl.arange(0, R)
        ok = (r < rows)[:, None] & (h < width)[None, :]
        value, opening, factor = _tile(p, bias, factors, r, h, ok, length, width)
        at = r.to(tl.int64)[:, None] * width + h[None, :]
        g = tl.load(dout + at, mask=ok, other=0.0).to(tl.float32) * factor
        to_value = g * opening
        to_opening = to_value * value * (1.0 - opening)
        at += r.to(tl.int64)[:, None] * width
        tl.store(dp + at, to_value.to(dp.dtype.element_ty), mask=ok)
        tl.store(dp + at + width, to_opening.to(dp.dtype.element_ty), mask=ok)
        sum_value += tl.sum(to_value, 0)
        sum_opening += tl.sum(to_opening, 0)
    to = dbias + tl.program_id(0).to(tl.int64) * (2 * width) + h
    tl.store(to, sum_value, mask=h < width)
    tl.store(to + width, sum_opening, mask=h < width)


@kernel
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
