"""Batch norm of the samples that belong to their sequences, in two passes over memory each way.

    y[r, :] = (x[r, :] − mean) · scale · weight + bias        rows under the mask; zero elsewhere

Every program reduces its rows to a mean and the squares around it, and one more kernel puts those together: no sum of
squares of uncentred values, which would cancel. PyTorch's own knows no mask, and one around it takes more than twenty
passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wavessm.ops.derivatives import first_only
from wavessm.ops.triton.language import jit, missing
from wavessm.ops.triton.settings import power_of_two
from wavessm.ops.triton.sums import COLUMNS, ROWS, sum_rows

if missing is None:
    import triton.language as tl  # type: ignore

WIDEST = 1024
"""Features of a row that a program holds at most."""
TILE, PROGRAMS = 2048, 1056
"""Numbers of a tile, and programs that share the rows: eight a processor of an H200."""


def batch_norm(x: Tensor, mask: Tensor | None, norm: nn.BatchNorm1d) -> Tensor:
    """As `norm` in training would of the rows under the mask (batch, length, 1), or of all. x (batch, length, d)"""
    statistics = norm.running_mean, norm.running_var
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    rows = None if mask is None else mask.contiguous().view(torch.uint8)
    return _BatchNorm.apply(x.contiguous(), norm.weight, norm.bias, rows, *statistics, norm.eps, norm.momentum)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, mean: Tensor, variance: Tensor,
        eps: float, momentum: float,
    ) -> Tensor:  # fmt: skip
        rows, width, options = _cut(x)
        programs = -(-rows // (options["R"] * options["LOOPS"]))
        parts = torch.empty(programs, 3, width, device=x.device)
        moments_kernel[(programs,)](x, mask, parts, rows, width, **options)
        kept = torch.empty(3, width, device=x.device)  # mean, scale, 1 / rows
        merge_kernel[(-(-width // COLUMNS),)](
            parts, mean, variance, kept, programs, width, eps, momentum, P=ROWS, H=COLUMNS, num_warps=8
        )
        y = torch.empty_like(x)
        apply_kernel[(-(-rows // options["R"]),)](
            x, mask, weight, bias, kept, y, rows, width, R=options["R"], W=options["W"]
        )
        ctx.save_for_backward(x, weight, mask, kept)
        return y

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask, kept = ctx.saved_tensors
        rows, width, options = _cut(x)
        programs, dy = -(-rows // (options["R"] * options["LOOPS"])), dy.contiguous()
        parts = torch.empty(programs, 2, width, device=x.device)
        gradient_sums_kernel[(programs,)](dy, x, mask, kept, parts, rows, width, **options)
        sums, dx = sum_rows(parts), torch.empty_like(x)
        apply_gradient_kernel[(-(-rows // options["R"]),)](
            dy, x, mask, weight, kept, sums, dx, rows, width, R=options["R"], W=options["W"]
        )
        dweight, dbias = sums.to(weight.dtype)
        return dx, dweight, dbias, None, None, None, None, None


def _cut(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Rows, features, and how programs share them."""
    width = x.shape[-1]
    rows, W = x.numel() // width, power_of_two(width)
    R = max(1, TILE // W)
    return rows, width, {"R": R, "W": W, "LOOPS": power_of_two(-(-rows // (R * PROGRAMS)), least=1)}


@jit
def _rows(
    mask: tl.tensor, first: tl.tensor, rows: tl.tensor, width: tl.tensor, R: tl.constexpr, W: tl.constexpr
) -> tl.tensor:
    """Places of the rows from `first` on, those that there are (R, W), and the rows that count (R, 1)."""
    r, h = first + tl.arange(0, R)[:, None], tl.arange(0, W)[None, :]
    heard = r < rows
    if mask is not None:
        heard = heard & (tl.load(mask + r, mask=r < rows, other=0) > 0)
    return r.to(tl.int64) * width + h, (r < rows) & (h < width), heard


@jit
def moments_kernel(
    x: tl.tensor, mask: tl.tensor, parts: tl.tensor, rows: tl.tensor, width: tl.tensor,
    R: tl.constexpr, W: tl.constexpr, LOOPS: tl.constexpr,
) -> None:  # fmt: skip
    """Mean, squares around it and number of this program's rows. Each place of the tile keeps its own until the end."""
    count, mean, squares = tl.zeros((R, 1), tl.float32), tl.zeros((R, W), tl.float32), tl.zeros((R, W), tl.float32)
    for k in range(LOOPS):
        at, there, heard = _rows(mask, (tl.program_id(0) * LOOPS + k) * R, rows, width, R, W)
        values = tl.load(x + at, mask=there & heard, other=0.0).to(tl.float32)
        count += heard.to(tl.float32)
        before = tl.where(heard, values - mean, 0.0)
        mean += before * (1.0 / tl.maximum(count, 1.0))
        squares += before * (values - mean)
    here = tl.sum(tl.broadcast_to(count, (R, W)), 0)
    middle = tl.sum(mean * count, 0) / tl.maximum(here, 1.0)
    away = mean - middle[None, :]
    h = tl.arange(0, W)
    to = parts + tl.program_id(0).to(tl.int64) * (3 * width) + h
    tl.store(to, middle, mask=h < width)
    tl.store(to + width, tl.sum(squares + count * away * away, 0), mask=h < width)
    tl.store(to + 2 * width, here, mask=h < width)


@jit
def merge_kernel(
    parts: tl.tensor, mean: tl.tensor, variance: tl.tensor, kept: tl.tensor,
    programs: tl.tensor, width: tl.tensor, eps: tl.tensor, momentum: tl.tensor, P: tl.constexpr, H: tl.constexpr,
) -> None:  # fmt: skip
    """The parts of all programs as one, and the running statistics a step on."""
    h = tl.program_id(0) * H + tl.arange(0, H)[None, :]
    ok = h < width
    count, middle, squares = tl.zeros((1, H), tl.float32), tl.zeros((1, H), tl.float32), tl.zeros((1, H), tl.float32)
    for first in range(0, programs, P):
        p = first + tl.arange(0, P)[:, None]
        at, there = parts + p * (3 * width) + h, (p < programs) & ok
        own = tl.load(at + 2 * width, mask=there, other=0.0)
        means = tl.load(at, mask=there, other=0.0)
        here = tl.sum(own, 0)[None, :]
        centre = tl.sum(means * own, 0)[None, :] / tl.maximum(here, 1.0)
        around = means - centre
        inner = tl.sum(tl.load(at + width, mask=there, other=0.0) + own * around * around, 0)[None, :]
        both = tl.maximum(count + here, 1.0)
        away = centre - middle
        squares += inner + away * away * (count * here / both)
        middle += away * (here / both)
        count += here
    count = tl.maximum(count, 1.0)
    tl.store(kept + h, middle, mask=ok)
    tl.store(kept + width + h, 1.0 / tl.sqrt(squares / count + eps), mask=ok)
    tl.store(kept + 2 * width + h, 1.0 / count, mask=ok)
    old = tl.load(mean + h, mask=ok, other=0.0).to(tl.float32)
    tl.store(mean + h, old + momentum * (middle - old), mask=ok)
    old = tl.load(variance + h, mask=ok, other=0.0).to(tl.float32)
    tl.store(variance + h, old + momentum * (squares / tl.maximum(count - 1.0, 1.0) - old), mask=ok)


@jit
def _feature(pointer: tl.tensor, width: tl.tensor, W: tl.constexpr) -> tl.tensor:
    """A number a feature, (1, W)"""
    h = tl.arange(0, W)[None, :]
    return tl.load(pointer + h, mask=h < width, other=0.0).to(tl.float32)


@jit
def apply_kernel(
    x: tl.tensor, mask: tl.tensor, weight: tl.tensor, bias: tl.tensor, kept: tl.tensor, y: tl.tensor,
    rows: tl.tensor, width: tl.tensor, R: tl.constexpr, W: tl.constexpr,
) -> None:  # fmt: skip
    at, there, heard = _rows(mask, tl.program_id(0) * R, rows, width, R, W)
    gain = _feature(kept + width, width, W) * _feature(weight, width, W)
    values = tl.load(x + at, mask=there & heard, other=0.0).to(tl.float32) - _feature(kept, width, W)
    result = tl.where(heard, values * gain + _feature(bias, width, W), 0.0)
    tl.store(y + at, result.to(y.dtype.element_ty), mask=there)


@jit
def gradient_sums_kernel(
    dy: tl.tensor, x: tl.tensor, mask: tl.tensor, kept: tl.tensor, parts: tl.tensor, rows: tl.tensor, width: tl.tensor,
    R: tl.constexpr, W: tl.constexpr, LOOPS: tl.constexpr,
) -> None:  # fmt: skip
    """This program's share of what weight and bias get."""
    mean, scale = _feature(kept, width, W), _feature(kept + width, width, W)
    to_weight, to_bias = tl.zeros((R, W), tl.float32), tl.zeros((R, W), tl.float32)
    for k in range(LOOPS):
        at, there, heard = _rows(mask, (tl.program_id(0) * LOOPS + k) * R, rows, width, R, W)
        g = tl.load(dy + at, mask=there & heard, other=0.0).to(tl.float32)
        standard = (tl.load(x + at, mask=there & heard, other=0.0).to(tl.float32) - mean) * scale
        to_weight += g * standard
        to_bias += g
    h = tl.arange(0, W)
    to = parts + tl.program_id(0).to(tl.int64) * (2 * width) + h
    tl.store(to, tl.sum(to_weight, 0), mask=h < width)
    tl.store(to + width, tl.sum(to_bias, 0), mask=h < width)


@jit
def apply_gradient_kernel(
    dy: tl.tensor, x: tl.tensor, mask: tl.tensor, weight: tl.tensor, kept: tl.tensor, sums: tl.tensor, dx: tl.tensor,
    rows: tl.tensor, width: tl.tensor, R: tl.constexpr, W: tl.constexpr,
) -> None:  # fmt: skip
    at, there, heard = _rows(mask, tl.program_id(0) * R, rows, width, R, W)
    scale, share = _feature(kept + width, width, W), _feature(kept + 2 * width, width, W)
    g = tl.load(dy + at, mask=there & heard, other=0.0).to(tl.float32)
    standard = (tl.load(x + at, mask=there & heard, other=0.0).to(tl.float32) - _feature(kept, width, W)) * scale
    mean_g, along = _feature(sums + width, width, W) * share, _feature(sums, width, W) * share
    result = (g - mean_g - standard * along) * (scale * _feature(weight, width, W))
    tl.store(dx + at, tl.where(heard, result, 0.0).to(dx.dtype.element_ty), mask=there)
