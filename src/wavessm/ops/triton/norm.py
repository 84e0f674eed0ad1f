"""Layer norm and batch norm, in one and two passes over memory each way.

    y[r, :] = (x[r, :] − mean) · scale · weight + bias        scale = 1 / √(variance + eps)

Layer norm takes mean and variance over the features of a row, batch norm over all rows under a mask; rows outside it
become zero. PyTorch's layer norm takes six times as long where rows are many and short, most of it for the gradients of
weight and bias, which are summed on the way here; its batch norm has no mask, and one around it takes more than twenty
passes. In batch norm every program reduces its rows to a mean and the squared distances from it, and a second kernel
combines those: a sum of squares of uncentred values would cancel.

With `first` the result lies channels first, (batch, d, length), as a scan reads it, and so does its gradient. Tiles are
then larger, for the samples of a channel to fill whole sectors of memory.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from wavessm.ops.derivatives import first_only, operator
from wavessm.ops.triton.language import cdiv, jit, kernel, power_of_two, tl

MAX_FEATURES = 1024
"""Features of a row that a program can hold."""
TILE, FIRST_TILE, PROGRAMS = 2048, 8192, 1056
"""Numbers in a tile, the same with `first`, and programs that share the tiles: eight for each processor of an H200."""
SUM_ROWS, SUM_COLUMNS = 256, 16
"""Tile of `sum_rows`, whose programs share the columns."""


def layer_norm(x: Tensor, norm: nn.LayerNorm, low: bool = False, first: bool = False) -> Tensor:
    """`norm` of x (batch, length, d) in float32 or bfloat16; the result has x's type, except that without `low` it is
    float32 under autocast, as in PyTorch."""
    dtype = torch.float32 if torch.is_autocast_enabled(x.device.type) and not low else x.dtype
    y = normalize(x.contiguous(), norm.weight, norm.bias, norm.eps, dtype, first)[0]
    return y.mT if first else y


def _cut(x: Tensor, first: bool) -> tuple[dict[str, Any], int, int, int]:
    """Arguments of all kernels, tiles, tiles that a program takes one after the other, programs."""
    width = x.shape[-1]
    signals, rows = x.shape[:2] if first else (1, x.numel() // width)  # the rows of a tile are of one signal
    W = power_of_two(width)
    R = max(1, (FIRST_TILE if first else TILE) // W)
    tiles = signals * cdiv(rows, R)
    loops = power_of_two(cdiv(tiles, PROGRAMS), min_value=1)
    sizes = {"signals": signals, "rows": rows, "width": width, "R": R, "W": W, "num_warps": 8 if first else 4}
    return sizes, tiles, loops, cdiv(tiles, loops)


def _empty_like(x: Tensor, first: bool, dtype: torch.dtype) -> Tensor:
    """Memory for the result of a contiguous x."""
    return torch.empty_like(x.mT if first else x, dtype=dtype, memory_format=torch.contiguous_format)


@first_only
def _gradient(kept: tuple, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    *saved, first, backward, n_others = kept
    dx, sums = backward(dy, *saved, first)
    return dx, *sums.to(saved[1].dtype), *[None] * n_others


def _fake_normalize(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, dtype, first = others
    return _empty_like(x, first, dtype), x.new_empty(2, x.numel() // x.shape[-1], dtype=torch.float32)


def _fake_backward(dy: Tensor, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(2, x.shape[-1], dtype=torch.float32)


@operator(_fake_backward)
def normalize_backward(dy: Tensor, x: Tensor, weight: Tensor, statistics: Tensor, first: bool) -> tuple[Tensor, Tensor]:
    """The gradients of x, and of weight and bias together (2, d)."""
    sizes, _, loops, programs = _cut(x, first)
    dx, sums = torch.empty_like(x), torch.empty(programs, 2, x.shape[-1], device=x.device)
    norm_gradient_kernel[(programs,)](
        dy.contiguous(), x, weight, statistics, dx, sums, **sizes, LOOPS=loops, FIRST=first
    )
    return dx, sum_rows(sums)


@operator(_fake_normalize, _gradient, lambda args, made: ((*args[:2], made[1]), (args[5], normalize_backward, 3)))
def normalize(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, first: bool
) -> tuple[Tensor, Tensor]:
    """Layer norm of a contiguous x, and the mean and scale of its rows (2, rows)."""
    sizes, tiles, _, _ = _cut(x, first)
    y, statistics = _fake_normalize(x, weight, bias, eps, dtype, first)
    norm_kernel[(tiles,)](x, weight, bias, y, statistics, eps=eps, **sizes, FIRST=first)
    return y, statistics


@jit
def _rows(mask, tile, signals, rows, width, R: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr):
    """A tile's offsets in x (R, W) and in the result, which of them exist, which rows are under the mask (R, 1), and
    the numbers of the rows."""
    tiles = (rows + R - 1) // R
    signal = (tile // tiles).to(tl.int64)
    l, h = tile % tiles * R + tl.arange(0, R)[:, None], tl.arange(0, W)[None, :]
    r = signal * rows + l
    valid = (l < rows) & (r < signals * rows)
    there = valid & (h < width)
    if mask is not None:
        valid = valid & (tl.load(mask + r, mask=valid, other=0) > 0)
    at = r * width + h
    return at, (signal * width + h) * rows + l if FIRST else at, there, valid, r


@jit
def _feature(pointer, width, W: tl.constexpr):
    """One number for each feature, (1, W)."""
    h = tl.arange(0, W)[None, :]
    return tl.load(pointer + h, mask=h < width, other=0.0).to(tl.float32)


@kernel
def norm_kernel(
    x, weight, bias, y, statistics, eps, signals, rows, width, R: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr
):
    """One tile of the output, and the mean and scale of its rows."""
    at, to, there, valid, r = _rows(None, tl.program_id(0), signals, rows, width, R, W, FIRST)
    values = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    middle = tl.sum(values, 1)[:, None] / width
    centred = tl.where(tl.arange(0, W)[None, :] < width, values - middle, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    result = centred * factor * _feature(weight, width, W) + _feature(bias, width, W)
    tl.store(y + to, result.to(y.dtype.element_ty), mask=there)
    tl.store(statistics + r, middle, mask=valid)
    tl.store(statistics + signals * rows + r, factor, mask=valid)


@kernel
def norm_gradient_kernel(
    dy, x, weight, statistics, dx, sums, signals, rows, width,
    R: tl.constexpr, W: tl.constexpr, LOOPS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """dx, and this program's part of the sums over rows."""
    gain = _feature(weight, width, W)
    to_weight, to_bias = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    for k in range(LOOPS):
        at, to, there, valid, r = _rows(None, tl.program_id(0) * LOOPS + k, signals, rows, width, R, W, FIRST)
        middle = tl.load(statistics + r, mask=valid, other=0.0)
        factor = tl.load(statistics + signals * rows + r, mask=valid, other=0.0)
        g = tl.load(dy + to, mask=there, other=0.0).to(tl.float32)
        standard = tl.where(there, tl.load(x + at, mask=there, other=0.0).to(tl.float32) - middle, 0.0) * factor
        to_weight += tl.sum(g * standard, 0)
        to_bias += tl.sum(g, 0)
        g = g * gain
        along = tl.sum(g * standard, 1)[:, None] / width
        result = (g - tl.sum(g, 1)[:, None] / width - standard * along) * factor
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=there)
    _store_sums(sums, to_weight, to_bias, width, W)


@jit
def _store_sums(sums, to_weight, to_bias, width, W: tl.constexpr):
    h = tl.arange(0, W)
    to = sums + tl.program_id(0).to(tl.int64) * (2 * width) + h
    tl.store(to, to_weight, mask=h < width)
    tl.store(to + width, to_bias, mask=h < width)


def batch_norm(x: Tensor, mask: Tensor | None, norm: nn.BatchNorm1d, first: bool = False) -> Tensor:
    """Batch norm in training of x (batch, length, d), over the rows under the mask (batch, length, 1) if given."""
    assert norm.num_batches_tracked is not None
    running = [cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)]
    rows = None if mask is None else mask.contiguous().view(torch.uint8)
    inputs = x.contiguous(), norm.weight, norm.bias, rows, *running
    y, statistics = standardize(*inputs, norm.eps, norm.momentum, first)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        torch._foreach_copy_(running, list(statistics[3:]))
    return y.mT if first else y


@operator(_fake_backward)
def standardize_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mask: Tensor | None, statistics: Tensor, first: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of x, and of weight and bias together (2, d)."""
    sizes, tiles, loops, programs = _cut(x, first)
    dy, options = dy.contiguous(), {**sizes, "FIRST": first}
    parts = torch.empty(programs, 2, x.shape[-1], device=x.device)
    gradient_sums_kernel[(programs,)](dy, x, mask, statistics, parts, **options, LOOPS=loops)
    sums, dx = sum_rows(parts), torch.empty_like(x)
    apply_gradient_kernel[(tiles,)](dy, x, mask, weight, statistics, sums, dx, **options)
    return dx, sums


def _fake_standardize(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _empty_like(x, others[-1], x.dtype), x.new_empty(5, x.shape[-1], dtype=torch.float32)


@operator(
    _fake_standardize,
    _gradient,
    lambda args, made: ((*args[:2], args[3], made[1]), (args[8], standardize_backward, 6)),
)
def standardize(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, mean: Tensor, variance: Tensor, eps: float,
    momentum: float, first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Batch norm of a contiguous x, and statistics (5, d): mean, scale, 1 / rows, next running mean and variance."""
    sizes, _, loops, programs = _cut(x, False)
    width = x.shape[-1]
    y, statistics = _fake_standardize(x, first)
    parts = torch.empty(programs, 3, width, device=x.device)
    moments_kernel[(programs,)](x, mask, parts, **sizes, LOOPS=loops)
    merge_kernel[(cdiv(width, SUM_COLUMNS),)](
        parts, mean, variance, statistics, programs, width, eps, momentum, P=SUM_ROWS, H=SUM_COLUMNS, num_warps=8
    )
    sizes, tiles, _, _ = _cut(x, first)
    apply_kernel[(tiles,)](x, mask, weight, bias, statistics, y, **sizes, FIRST=first)
    return y, statistics


@kernel
def moments_kernel(x, mask, parts, signals, rows, width, R: tl.constexpr, W: tl.constexpr, LOOPS: tl.constexpr):
    """Mean, squared distances from it and number of this program's rows, in each element of the tile until the end."""
    count, mean, squares = tl.zeros((R, 1), tl.float32), tl.zeros((R, W), tl.float32), tl.zeros((R, W), tl.float32)
    for k in range(LOOPS):
        at, _, there, valid, _ = _rows(mask, tl.program_id(0) * LOOPS + k, signals, rows, width, R, W, False)
        values = tl.load(x + at, mask=there & valid, other=0.0).to(tl.float32)
        count += valid.to(tl.float32)
        before = tl.where(valid, values - mean, 0.0)
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


@kernel
def merge_kernel(parts, mean, variance, statistics, programs, width, eps, momentum, P: tl.constexpr, H: tl.constexpr):
    """The parts of all programs combined, and the next running statistics."""
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
    tl.store(statistics + h, middle, mask=ok)
    tl.store(statistics + width + h, 1.0 / tl.sqrt(squares / count + eps), mask=ok)
    tl.store(statistics + 2 * width + h, 1.0 / count, mask=ok)
    old = tl.load(mean + h, mask=ok, other=0.0).to(tl.float32)
    tl.store(statistics + 3 * width + h, old + momentum * (middle - old), mask=ok)
    old = tl.load(variance + h, mask=ok, other=0.0).to(tl.float32)
    tl.store(statistics + 4 * width + h, old + momentum * (squares / tl.maximum(count - 1.0, 1.0) - old), mask=ok)


@kernel
def apply_kernel(
    x, mask, weight, bias, statistics, y, signals, rows, width, R: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr
):
    """One tile of the output."""
    at, to, there, valid, _ = _rows(mask, tl.program_id(0), signals, rows, width, R, W, FIRST)
    gain = _feature(statistics + width, width, W) * _feature(weight, width, W)
    values = tl.load(x + at, mask=there & valid, other=0.0).to(tl.float32) - _feature(statistics, width, W)
    result = tl.where(valid, values * gain + _feature(bias, width, W), 0.0)
    tl.store(y + to, result.to(y.dtype.element_ty), mask=there)


@kernel
def gradient_sums_kernel(
    dy, x, mask, statistics, parts, signals, rows, width,
    R: tl.constexpr, W: tl.constexpr, LOOPS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """This program's part of the gradients of weight and bias."""
    mean, scale = _feature(statistics, width, W), _feature(statistics + width, width, W)
    to_weight, to_bias = tl.zeros((R, W), tl.float32), tl.zeros((R, W), tl.float32)
    for k in range(LOOPS):
        at, to, there, valid, _ = _rows(mask, tl.program_id(0) * LOOPS + k, signals, rows, width, R, W, FIRST)
        g = tl.load(dy + to, mask=there & valid, other=0.0).to(tl.float32)
        standard = (tl.load(x + at, mask=there & valid, other=0.0).to(tl.float32) - mean) * scale
        to_weight += g * standard
        to_bias += g
    _store_sums(parts, tl.sum(to_weight, 0), tl.sum(to_bias, 0), width, W)


@kernel
def apply_gradient_kernel(
    dy, x, mask, weight, statistics, sums, dx, signals, rows, width,
    R: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """One tile of dx."""
    at, to, there, valid, _ = _rows(mask, tl.program_id(0), signals, rows, width, R, W, FIRST)
    scale, share = _feature(statistics + width, width, W), _feature(statistics + 2 * width, width, W)
    g = tl.load(dy + to, mask=there & valid, other=0.0).to(tl.float32)
    standard = (tl.load(x + at, mask=there & valid, other=0.0).to(tl.float32) - _feature(statistics, width, W)) * scale
    mean_g, along = _feature(sums + width, width, W) * share, _feature(sums, width, W) * share
    result = (g - mean_g - standard * along) * (scale * _feature(weight, width, W))
    tl.store(dx + at, tl.where(valid, result, 0.0).to(dx.dtype.element_ty), mask=there)


def sum_rows(table: Tensor) -> Tensor:
    """Sum over the first axis of a contiguous float32 table (rows, …), always in the same order."""
    rows, width = table.shape[0], table.numel() // table.shape[0]
    out = torch.empty(table.shape[1:], device=table.device)
    sum_rows_kernel[(cdiv(width, SUM_COLUMNS),)](table, out, rows, width, R=SUM_ROWS, H=SUM_COLUMNS, num_warps=8)
    return out


@kernel
def sum_rows_kernel(table, out, rows, width, R: tl.constexpr, H: tl.constexpr):
    """The sums of H columns."""
    h = tl.program_id(0) * H + tl.arange(0, H)
    total = tl.zeros((R, H), tl.float32)
    for first in range(0, rows, R):
        r = first + tl.arange(0, R)
        ok = (r < rows)[:, None] & (h < width)[None, :]
        total += tl.load(table + r.to(tl.int64)[:, None] * width + h[None, :], mask=ok, other=0.0)
    tl.store(out + h, tl.sum(total, 0), mask=h < width)
