"""Sums over the rows of a tall table, such as a gradient's shares from many programs, always in the same order."""

from __future__ import annotations

import torch
from torch import Tensor

from wavessm.ops.triton.language import jit, missing

if missing is None:
    import triton.language as tl  # type: ignore

ROWS, COLUMNS = 256, 16
"""Of a tile; programs share the columns."""


def sum_rows(table: Tensor) -> Tensor:
    """(rows, …) contiguous float32 → (…)"""
    rows, width = len(table), table[0].numel()
    out = torch.empty(table.shape[1:], device=table.device)
    sum_rows_kernel[(-(-width // COLUMNS),)](table, out, rows, width, R=ROWS, H=COLUMNS, num_warps=8)
    return out


@jit
def sum_rows_kernel(
    table: tl.tensor, out: tl.tensor, rows: tl.tensor, width: tl.tensor, R: tl.constexpr, H: tl.constexpr
) -> None:
    h = tl.program_id(0) * H + tl.arange(0, H)
    total = tl.zeros((R, H), tl.float32)
    for first in range(0, rows, R):
        r = first + tl.arange(0, R)
        ok = (r < rows)[:, None] & (h < width)[None, :]
        total += tl.load(table + r.to(tl.int64)[:, None] * width + h[None, :], mask=ok, other=0.0)
    tl.store(out + h, tl.sum(total, 0), mask=h < width)
