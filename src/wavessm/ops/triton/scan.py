"""The chunked scan on a GPU: what `wavessm.ops.scan` computes, by the launches of `plan` on the tables of `tables`.

For the backward only u and the states before each chunk are stored. The adjoint walk computes the gradient of u; from
the states of both walks another kernel sums the gradients of the tables.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from wavessm.ops import dplr, modes
from wavessm.ops.derivatives import first_only
from wavessm.ops.dplr import LowRank
from wavessm.ops.modes import Modes
from wavessm.ops.scan import scan
from wavessm.ops.triton.language import missing
from wavessm.ops.triton.low_rank import low_rank_gradients, low_rank_tables
from wavessm.ops.triton.plan import ScanPlan, Settings, backward, default_settings, forward
from wavessm.ops.triton.tables import KernelTables, diagonal_gradients, diagonal_tables
from wavessm.ops.triton.transpose import finite_input, propagate_nan, transpose

# The precision of tl.dot. Three TF32 products have float32's accuracy; "bf16" rounds the factors, never the sums.
_ARITHMETIC = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}

MAX_DIAGONAL, MAX_DENSE = 256, 128
"""d_state beyond which the tables do not fit into a multiprocessor's memory."""


def unavailable(u: Tensor, layer: Modes | LowRank | None = None) -> str | None:
    """The reason in one line why the kernels cannot run a call, or None if they can."""
    if missing is not None:
        return f"triton is not installed ({missing}); pip install triton"
    if u.dtype not in (torch.float32, torch.bfloat16):
        return f"input is {u.dtype}, the kernels take float32 and bfloat16"
    if not u.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"input is on {u.device}, not on a CUDA device (and TRITON_INTERPRET=1 is not set)"
    d_state = 0 if layer is None else 2 * layer.B.shape[1]
    largest = MAX_DENSE if isinstance(layer, LowRank) else MAX_DIAGONAL
    return f"d_state is {d_state}, the kernels hold up to {largest}" if d_state > largest else None


def run_layer(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    layer: Modes | LowRank,
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
    slots, dense = layer.B.shape[1], isinstance(layer, LowRank)
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
        system = dplr.sample(layer, rate) if isinstance(layer, LowRank) else modes.sample(layer, rate)
        y, flat = scan(tail, system, None if state is None else state.flatten(2), want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
        state = flat.unflatten(-1, (-1, 2))  # type: ignore[union-attr]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def _rows(x: Tensor) -> Tensor:
    """x with the samples of a channel side by side."""
    if x.stride(-1) == 1:
        return x
    return transpose(x.transpose(1, 2)) if _channels_last(x) else x.contiguous()


def _channels_last(x: Tensor) -> bool:
    return x.transpose(1, 2).is_contiguous()


class _Scan(torch.autograd.Function):
    """y and the last state from u, the first state and a layer's parameters: tables and walks in one node."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        first: Tensor | None,
        D: Tensor,
        rate: float,
        arithmetic: str,
        cut: Settings,
        *layer: Tensor,
    ) -> tuple[Tensor, Tensor]:
        if len(layer) == len(LowRank._fields):
            tables, made = low_rank_tables(LowRank(*layer), D, rate, cut.chunk)
        else:
            tables, made = diagonal_tables(Modes(*layer), D, rate, cut.chunk)
        ctx.channels_last, ctx.has_first, ctx.rate = _channels_last(u), first is not None, rate
        u, broken = finite_input(u) if len(tables.K) == 1 else (_rows(u), None)
        ctx.plan = ScanPlan.of(u, tables, cut, arithmetic)
        y, last, states = forward(ctx.plan, u, tables, first, any(ctx.needs_input_grad))
        if broken is not None:
            propagate_nan(y, last, broken)
        ctx.counts = len(layer), len(made)
        ctx.save_for_backward(u, *tables, *layer, *made, *states)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, *saved = ctx.saved_tensors
        (tables, saved), (n_layer, n_made), chunk = (saved[:4], saved[4:]), ctx.counts, ctx.plan.cut.chunk
        layer, made, states = saved[:n_layer], saved[n_layer : n_layer + n_made], saved[n_layer + n_made :]
        dy = torch.zeros_like(u) if dy is None else _rows(dy)
        du, dfirst, sums = backward(ctx.plan, u, dy, KernelTables(*tables), states, dlast)
        du = transpose(du).transpose(1, 2) if ctx.channels_last else du
        if n_layer == len(LowRank._fields):
            *dlayer, dD = low_rank_gradients(LowRank(*layer), made, sums, ctx.rate, chunk)
        else:
            *dlayer, dD = diagonal_gradients(Modes(*layer), made, sums, chunk)
        return du, dfirst if ctx.has_first else None, dD, None, None, None, *dlayer
