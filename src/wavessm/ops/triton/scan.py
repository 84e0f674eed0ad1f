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
from wavessm.ops.triton.low_rank import low_rank_tables
from wavessm.ops.triton.plan import KernelTables, ScanPlan, Settings, backward, default_settings, forward
from wavessm.ops.triton.tables import make_tables, table_gradients
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
        options = rate, state, _arithmetic(u, precision), cut
        if isinstance(layer, LowRank):
            y, last = _walk_low_rank(u[..., :whole], layer, D, *options)
        else:
            y, last = _walk_modes(u[..., :whole], layer, D, *options)
        state = last if want_state else None
        pieces.append(y)
    if whole < length:
        tail = u[..., whole:].float()
        system = dplr.sample(layer, rate) if isinstance(layer, LowRank) else modes.sample(layer, rate)
        y, flat = scan(tail, system, None if state is None else state.flatten(2), want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
        state = flat.unflatten(-1, (-1, 2))  # type: ignore[union-attr]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def _walk_modes(
    u: Tensor, layer: Modes, D: Tensor, rate: float, state: Tensor | None, arithmetic: str, cut: Settings
) -> tuple[Tensor, Tensor]:
    first = None if state is None else state.float().transpose(-1, -2)
    y, last = _ScanModes.apply(u, *layer, D, first, rate, arithmetic, cut)
    return y, last.transpose(-1, -2)


def _walk_low_rank(
    u: Tensor, layer: LowRank, D: Tensor, rate: float, state: Tensor | None, arithmetic: str, cut: Settings
) -> tuple[Tensor, Tensor]:
    first = None if state is None else state.flatten(2).float()[:, :, None]
    y, last = _ScanDense.apply(u, *low_rank_tables(layer, rate, cut.chunk), D, first, arithmetic, cut)
    return y, last[:, :, 0].unflatten(-1, (-1, 2))


def _arithmetic(u: Tensor, precision: str) -> str:
    return _ARITHMETIC[precision] if u.is_cuda or precision != "bf16" else "rounded"


def _rows(x: Tensor) -> Tensor:
    """x with the samples of a channel side by side."""
    if x.stride(-1) == 1:
        return x
    return transpose(x.transpose(1, 2)) if _channels_last(x) else x.contiguous()


def _channels_last(x: Tensor) -> bool:
    return x.transpose(1, 2).is_contiguous()


def _scan(
    u: Tensor, tables: KernelTables, first: Tensor | None, arithmetic: str, cut: Settings, save: bool
) -> tuple[Tensor, Tensor, Tensor, list, ScanPlan]:
    """y and the last state; the input as it was read, the saved states and the plan, for `_scan_backward`."""
    u, broken = finite_input(u) if len(tables.K) == 1 else (_rows(u), None)
    plan = ScanPlan.of(u, tables, cut, arithmetic)
    y, last, states = forward(plan, u, tables, first, save)
    if broken is not None:
        propagate_nan(y, last, broken)
    return y, last, u, states, plan


def _scan_backward(
    ctx: Any, u: Tensor, tables: KernelTables, states: list, dy: Tensor | None, dlast: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """du in the strides of the input, the gradient of a first state, and partial sums of the tables' gradients."""
    dy = torch.zeros_like(u) if dy is None else _rows(dy)
    du, dfirst, sums = backward(ctx.plan, u, dy, tables, states, dlast)
    return transpose(du).transpose(1, 2) if ctx.channels_last else du, dfirst if ctx.has_first else None, sums


class _ScanModes(torch.autograd.Function):
    """y and the last state from u, a diagonal layer's parameters and the first state: tables and walks in one node."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        *parameters, D, first, rate, arithmetic, cut = arguments
        *tables, sampled = make_tables(Modes(*parameters), D, rate, cut.chunk)
        ctx.channels_last, ctx.has_first = _channels_last(u), first is not None
        save = any(ctx.needs_input_grad)
        y, last, u, states, ctx.plan = _scan(u, KernelTables(*tables), first, arithmetic, cut, save)
        ctx.save_for_backward(u, sampled, *tables, *parameters, *states)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, sampled, *saved = ctx.saved_tensors
        tables, parameters, states = KernelTables(*saved[:4]), Modes(*saved[4:9]), saved[9:]
        du, dfirst, sums = _scan_backward(ctx, u, tables, states, dy, dlast)
        return du, *table_gradients(parameters, sampled, sums, ctx.plan.cut.chunk), dfirst, None, None, None


class _ScanDense(torch.autograd.Function):
    """The same from the tables of a dense state."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        K, E, C, decay, D, first, arithmetic, cut = arguments
        K = K.clone()
        K[0, :, 0] += D
        tables = KernelTables(K, E[:, None], C[:, :, None], decay)
        ctx.channels_last, ctx.has_first = _channels_last(u), first is not None
        y, last, u, states, ctx.plan = _scan(u, tables, first, arithmetic, cut, save=any(ctx.needs_input_grad))
        ctx.save_for_backward(u, *tables, *states)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, *saved = ctx.saved_tensors
        du, dfirst, sums = _scan_backward(ctx, u, KernelTables(*saved[:4]), saved[4:], dy, dlast)
        M, N = ctx.plan.cut.chunk, ctx.plan.width
        dT, dE, dC, ddecay = sums.sum(1).split((M * M, M * N, M * N, N * N), dim=-1)
        dK = dT.unflatten(-1, (M, M)).sum(2)  # the kernel stores the diagonals of dT as columns
        dtables = (
            dK,
            dE.sum(0).unflatten(-1, (M, N)),
            dC.unflatten(-1, (M, N)).transpose(-1, -2),
            ddecay.sum(0).unflatten(-1, (N, N)),
        )
        return du, *dtables, dK[0, :, 0], dfirst, None, None
