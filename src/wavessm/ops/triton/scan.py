"""The chunked scan on a GPU: what `wavessm.ops.scan` computes, by the launches of `plan` on the tables of `tables`.

For the backward only u and the states before each chunk are stored. The adjoint walk computes the gradient of u; from
the states of both walks another kernel sums the gradients of the tables.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only
from wavessm.ops.modes import Modes, sample
from wavessm.ops.scan import scan
from wavessm.ops.triton.language import cdiv, jit, missing, tl
from wavessm.ops.triton.low_rank import low_rank_gradients, low_rank_tables
from wavessm.ops.triton.plan import Settings, default_settings, make_plan
from wavessm.ops.triton.tables import KernelTables, diagonal_gradients, diagonal_tables

# The precision of tl.dot. Three TF32 products have float32's accuracy; "bf16" rounds the factors, never the sums.
_ARITHMETIC = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}

BLOCK = 64
"""Side of a tile of `rows`."""
MAX_DIAGONAL, MAX_DENSE = 256, 128
"""d_state beyond which the tables do not fit into a multiprocessor's memory."""


def unavailable(u: Tensor, layer: Modes | None = None) -> str | None:
    """The reason in one line why the kernels cannot run a call, or None if they can."""
    if missing is not None:
        return f"triton is not installed ({missing}); pip install triton"
    if u.dtype not in (torch.float32, torch.bfloat16):
        return f"input is {u.dtype}, the kernels take float32 and bfloat16"
    if not u.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"input is on {u.device}, not on a CUDA device (and TRITON_INTERPRET=1 is not set)"
    if layer is None:
        return None
    d_state, largest = 2 * layer.B.shape[1], MAX_DIAGONAL if layer.P is None else MAX_DENSE
    return f"d_state is {d_state}, the kernels hold up to {largest}" if d_state > largest else None


def run_layer(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    layer: Modes,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    precision: str = "fp32",
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `ops.run_layer`: y in u's dtype, and the state in float32.

    If the state is wanted, the samples after the last whole chunk need tables of their own and take the torch scan.
    """
    batch, channels, length = u.shape
    slots, dense = layer.B.shape[1], layer.P is not None
    cut = settings or default_settings(batch, channels, 2 * slots if dense else slots, length, precision, dense)
    whole = length - length % cut.chunk if want_state else length
    pieces = []
    if whole:
        arithmetic = _ARITHMETIC[precision] if u.is_cuda or precision != "bf16" else "rounded"
        # (batch, channels, planes, width): halves of slots in two planes, or all reals in one
        first = None if state is None else state.float().flatten(2)[:, :, None] if dense else state.float().mT
        y, last = _Scan.apply(u[..., :whole], first, D, rate, arithmetic, cut, *layer)
        last = last[:, :, 0].unflatten(-1, (-1, 2)) if dense else last.mT
        state = last if want_state else None
        pieces.append(y)
    if whole < length:
        tail = u[..., whole:].float()
        y, flat = scan(tail, sample(layer, rate), None if state is None else state.flatten(2), want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
        state = flat.unflatten(-1, (-1, 2))  # type: ignore[union-attr]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def rows(x: Tensor, broken: Tensor | None = None) -> Tensor:
    """x (batch, channels, length) of any strides with the samples of a channel side by side; a copy at the speed of
    memory where they are not.

    NaN or infinity in a chunk's product would reach the chunk's first sample. With `broken` (batch, channels) int32,
    always a copy, they become zero and the first one of each signal is noted there.
    """
    if broken is None and x.stride(-1) == 1:
        return x
    batch, channels, length = x.shape
    out = torch.empty(batch, channels, length, dtype=x.dtype, device=x.device)
    grid = cdiv(length, BLOCK), cdiv(channels, BLOCK), batch
    rows_kernel[grid](x, out, broken, channels, length, *x.stride(), BLOCK=BLOCK, num_warps=4)
    return out


@jit
def rows_kernel(x, out, broken, channels, length, x_batch, x_channel, x_sample, BLOCK: tl.constexpr):
    """One tile of `rows`."""
    b = tl.program_id(2).to(tl.int64)
    l = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = (l < length)[:, None] & (h < channels)[None, :]
    at = b * x_batch + l.to(tl.int64)[:, None] * x_sample + h.to(tl.int64)[None, :] * x_channel
    tile = tl.load(x + at, mask=ok, other=0.0)
    if broken is not None:
        finite = tl.abs(tile.to(tl.float32)) < float("inf")
        first = tl.min(tl.where(finite, length, l[:, None]), 0)
        tl.atomic_min(broken + b * channels + h, first, mask=(h < channels) & (first < length))
        tile = tl.where(finite, tile, 0.0)
    at_out = (b * channels + h[:, None]) * length + l[None, :]
    tl.store(out + at_out, tl.trans(tile), mask=tl.trans(ok))


@jit
def propagate_nan_kernel(y, last, broken, channels, length, last_batch, last_channel, width, BLOCK: tl.constexpr):
    """NaN into one signal y from the sample in `broken` on, and into its last state."""
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    stop = tl.load(broken + b * channels + h)
    if stop < length:
        for start in range(0, length, BLOCK):
            l = start + tl.arange(0, BLOCK)
            tl.store(y + (b * channels + h) * length + l, float("nan"), mask=(l >= stop) & (l < length))
        n = tl.arange(0, BLOCK)
        tl.store(last + b * last_batch + h * last_channel + n, float("nan"), mask=n < width)


class _Scan(torch.autograd.Function):
    """y and the last state from u, the first state and a layer's parameters: tables and walks in one node."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, first: Tensor | None, D: Tensor, rate: float, arithmetic: str, cut: Settings,
        *layer: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        make = diagonal_tables if layer[-1] is None else low_rank_tables
        tables, made = make(Modes(*layer), D, rate, cut.chunk)
        ctx.channels_last, ctx.has_first, ctx.rate = u.mT.is_contiguous(), first is not None, rate
        (batch, channels, length), broken = u.shape, None
        if len(tables.K) == 1:
            broken = torch.full((batch, channels), length, dtype=torch.int32, device=u.device)
        u = rows(u, broken)
        _, planes, _, width = tables.E.shape
        ctx.plan = make_plan(*u.shape, width, planes, cut, arithmetic)
        y, last, states = ctx.plan.forward(u, tables, first, any(ctx.needs_input_grad))
        if broken is not None:
            propagate_nan_kernel[(channels, batch)](
                y, last, broken, channels, length, *last.stride()[:2], last[0, 0].numel(), BLOCK=1024
            )
        ctx.directions = len(states)
        ctx.save_for_backward(u, *tables, *layer, *made, *states)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, *saved = ctx.saved_tensors
        tables, layer = KernelTables(*saved[:4]), Modes(*saved[4:10])
        made, states = saved[10 : -ctx.directions], saved[-ctx.directions :]
        dy = torch.zeros_like(u) if dy is None else rows(dy)
        du, dfirst, sums = ctx.plan.backward(u, dy, tables, states, dlast)
        du = rows(du.mT).mT if ctx.channels_last else du
        differentiate = diagonal_gradients if layer.P is None else low_rank_gradients
        *dlayer, dD = differentiate(layer, made, sums, ctx.rate, ctx.plan.cut.chunk)
        return du, dfirst if ctx.has_first else None, dD, None, None, None, *dlayer
