"""The end of a block in one pass over memory each way: bias, gated linear unit, dropout and the residual path.

    out[b, l, h] = around[b, l, h] + factor[b, h] · (p[b, l, h] + bias[h]) · σ(p[b, l, d + h] + bias[d + h])

p is the projection without its bias; the backward sums the bias's gradient on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
from wavessm.ops.triton.language import cdiv, jit, tl
from wavessm.ops.triton.norm import sum_rows

ROWS, COLUMNS, WARPS = 16, 128, 4
"""Samples and features in a tile, and the warps that share it."""
BACK_ROWS, BACK_WARPS, LOOPS = 8, 2, 8
"""The same for the backward, which waits for memory more often; and the tiles of a program."""


def gate(p: Tensor, bias: Tensor, factors: Tensor | None, around: Tensor | None) -> Tensor:
    """See the module's docstring. p (batch, length, 2 d), bias (2 d,), factors (batch, 1, d), around and the result
    (batch, length, d)."""
    factors = None if factors is None else factors.contiguous()
    around = None if around is None else around.contiguous()
    return _Gate.apply(p.contiguous(), bias.contiguous(), factors, around)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, bias: Tensor, factors: Tensor | None, around: Tensor | None) -> Tensor:
        batch, length, width = p.shape
        dtype = p.dtype if around is None else torch.promote_types(p.dtype, around.dtype)
        out = torch.empty(batch, length, width // 2, dtype=dtype, device=p.device)
        grid = cdiv(batch * length, ROWS), cdiv(width // 2, COLUMNS)
        gate_kernel[grid](
            p, bias, factors, around, out, batch * length, length, width // 2, ROWS, COLUMNS, num_warps=WARPS
        )
        ctx.save_for_backward(p, bias, factors)
        ctx.around = None if around is None else around.dtype
        return out

    @staticmethod
    @first_only
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None]:
        p, bias, factors = ctx.saved_tensors
        batch, length, width = p.shape
        grid = cdiv(batch * length, BACK_ROWS * LOOPS), cdiv(width // 2, COLUMNS)
        dp, dbias = torch.empty_like(p), torch.empty(grid[0], width, device=p.device)
        gate_gradient_kernel[grid](
            dout.contiguous(), p, bias, factors, dp, dbias, batch * length, length, width // 2,
            BACK_ROWS, COLUMNS, LOOPS, num_warps=BACK_WARPS,
        )  # fmt: skip
        return dp, sum_rows(dbias).to(bias.dtype), None, None if ctx.around is None else dout.to(ctx.around)


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


@jit
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


@jit
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
