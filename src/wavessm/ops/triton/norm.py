"""Layer norm over features in one pass over memory each way.

    y[r, :] = (x[r, :] − mean) · scale · weight + bias        scale = 1 / √(variance + eps)

PyTorch's own takes six times as long where rows are many and short, most of it for the gradients of weight and bias;
here they are added up on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
from wavessm.ops.triton.language import jit, missing
from wavessm.ops.triton.settings import power_of_two
from wavessm.ops.triton.sums import sum_rows

if missing is None:
    import triton.language as tl  # type: ignore

WIDEST = 1024
"""Features of a row that a program holds at most."""
TILE, PROGRAMS = 2048, 1056
"""Numbers of a tile, and programs of the backward, which take tiles after each other: eight a processor of an H200."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x (…, d) in float32 or bf16, weight and bias (d,) → like x, in float32 under autocast as PyTorch has it."""
    dtype = torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
    return _LayerNorm.apply(x.contiguous(), weight.contiguous(), bias.contiguous(), eps, dtype)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        width = x.shape[-1]
        rows, W, R = x.numel() // width, power_of_two(width), max(1, TILE // power_of_two(width))
        y = torch.empty(x.shape, dtype=dtype, device=x.device)
        mean, scale = (torch.empty(rows, device=x.device) for _ in range(2))
        norm_kernel[(-(-rows // R),)](x, weight, bias, y, mean, scale, rows, width, eps, R, W, num_warps=4)
        ctx.save_for_backward(x, weight, mean, scale)
        return y

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, scale = ctx.saved_tensors
        width = x.shape[-1]
        rows, W, R = x.numel() // width, power_of_two(width), max(1, TILE // power_of_two(width))
        loops = power_of_two(-(-rows // (R * PROGRAMS)), least=1)
        programs = -(-rows // (R * loops))
        dx = torch.empty_like(x)
        sums = torch.empty(programs, 2, width, device=x.device)
        norm_gradient_kernel[(programs,)](
            dy.contiguous(), x, weight, mean, scale, dx, sums, rows, width, R, W, loops, num_warps=4
        )
        dweight, dbias = sum_rows(sums).to(weight.dtype)
        return dx, dweight, dbias, None, None


@jit
def norm_kernel(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, y: tl.tensor, mean: tl.tensor, scale: tl.tensor,
    rows: tl.tensor, width: tl.tensor, eps: tl.tensor, R: tl.constexpr, W: tl.constexpr,
) -> None:  # fmt: skip
    r, h = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = (h < width)[None, :]
    ok = (r < rows)[:, None] & inside
    at = r.to(tl.int64)[:, None] * width + h[None, :]
    values = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    middle = tl.sum(values, 1) / width
    centred = tl.where(inside, values - middle[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    gain = tl.load(weight + h[None, :], mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + h[None, :], mask=inside, other=0.0).to(tl.float32)
    result = centred * factor[:, None] * gain + offset
    tl.store(y + at, result.to(y.dtype.element_ty), mask=ok)
    tl.store(mean + r, middle, mask=r < rows)
    tl.store(scale + r, factor, mask=r < rows)


@jit
def norm_gradient_kernel(
    dy: tl.tensor, x: tl.tensor, weight: tl.tensor, mean: tl.tensor, scale: tl.tensor, dx: tl.tensor, sums: tl.tensor,
    rows: tl.tensor, width: tl.tensor, R: tl.constexpr, W: tl.constexpr, LOOPS: tl.constexpr,
) -> None:  # fmt: skip
    """dx, and this program's share of the sums over rows."""
    h = tl.arange(0, W)
    inside = (h < width)[None, :]
    gain = tl.load(weight + h[None, :], mask=inside, other=0.0).to(tl.float32)
    to_weight, to_bias = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    for k in range(LOOPS):
        r = (tl.program_id(0) * LOOPS + k) * R + tl.arange(0, R)
        ok = (r < rows)[:, None] & inside
        at = r.to(tl.int64)[:, None] * width + h[None, :]
        middle = tl.load(mean + r, mask=r < rows, other=0.0)[:, None]
        factor = tl.load(scale + r, mask=r < rows, other=0.0)[:, None]
        g = tl.load(dy + at, mask=ok, other=0.0).to(tl.float32)
        standard = tl.where(ok, tl.load(x + at, mask=ok, other=0.0).to(tl.float32) - middle, 0.0) * factor
        to_weight += tl.sum(g * standard, 0)
        to_bias += tl.sum(g, 0)
        g = g * gain
        along = tl.sum(g * standard, 1)[:, None] / width
        result = (g - tl.sum(g, 1)[:, None] / width - standard * along) * factor
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=ok)
    to = sums + tl.program_id(0).to(tl.int64) * (2 * width) + h
    tl.store(to, to_weight, mask=h < width)
    tl.store(to + width, to_bias, mask=h < width)
