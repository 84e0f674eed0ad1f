"""The chunked scan on a GPU: what `scan` computes, by the launches of `triton_plan` on the tables of `triton_tables`.

For the backward only u and the states before each chunk are kept. The adjoint walk forms the gradient of u; from the
states of both walks a kernel of its own makes the sums that the gradients of the tables consist of.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from wavessm.errors import OptionError
from wavessm.ops import dplr
from wavessm.ops.derivatives import first_only
from wavessm.ops.dplr import LowRank
from wavessm.ops.modes import Modes, sample
from wavessm.ops.scan import scan, tables_of
from wavessm.ops.triton import table_gradients as triton_table_gradients
from wavessm.ops.triton import tables as triton_tables
from wavessm.ops.triton.language import missing
from wavessm.ops.triton.low_rank import low_rank_tables
from wavessm.ops.triton.plan import Plan, Tables, backward, forward
from wavessm.ops.triton.settings import Settings, default_settings
from wavessm.ops.triton.turn import heard, spoil, turn

# What tl.dot is told. Three TF32 products carry float32's accuracy; "bf16" rounds the factors, never the sums.
_ARITHMETIC = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "bf16"}

MOST_SLOTS, MOST_DENSE = 128, 128
"""Sizes of a state beyond which the tables leave a multiprocessor's memory."""


def available(u: Tensor, dense: int = 0, slots: int = 0) -> str | None:
    """None if the Triton scan can serve this input and a state of so many reals or slots, else the reason in a line."""
    if missing is not None:
        return f"triton is not installed ({missing}); pip install triton"
    if u.dtype not in (torch.float32, torch.bfloat16):
        return f"input is {u.dtype}, the kernels take float32 and bfloat16"
    if not u.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"input is on {u.device}, not on a CUDA device (and TRITON_INTERPRET=1 is not set)"
    if slots > MOST_SLOTS or dense > MOST_DENSE:
        return f"d_state is {dense or 2 * slots}, the kernels hold up to {MOST_DENSE if dense else 2 * MOST_SLOTS}"
    return None


def run_modes(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    modes: Modes,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    precision: str = "fp32",
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `ops.run_modes`: y in u's dtype, and the state in float32."""
    batch, channels, length = u.shape
    slots, arithmetic = modes.C.shape[2], _arithmetic(u, precision)
    cut = settings or default_settings(batch, channels, slots, length, precision, dense=False)
    whole = length - length % cut.chunk if want_state else length
    pieces, planes = [], None if state is None else state.float().transpose(-1, -2)
    if whole:
        y, last = _Diagonal.apply(u[..., :whole], *modes, D, planes, rate, arithmetic, cut)
        state = last.transpose(-1, -2) if want_state else None
        pieces.append(y)
    if whole < length:  # what a chunk leaves over needs tables of its own
        flat = None if state is None else state.flatten(2)
        tail = u[..., whole:].float()
        y, last = scan(tail, tables_of(sample(modes, rate), tail.dtype), flat, want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
        state = last.unflatten(-1, (-1, 2))  # type: ignore[union-attr]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def run_low_rank(
    u: Tensor,  # (batch, channels, length), float32 or bfloat16, any strides
    layer: LowRank,
    D: Tensor,  # (channels,)
    rate: float = 1.0,
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    want_state: bool = False,
    precision: str = "fp32",
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `ops.run_low_rank`; see `run_modes`."""
    batch, channels, length = u.shape
    arithmetic = _arithmetic(u, precision)
    cut = settings or default_settings(batch, channels, 2 * layer.B.shape[1], length, precision, dense=True)
    whole = length - length % cut.chunk if want_state else length
    pieces, flat = [], None if state is None else state.flatten(2)
    if whole:
        first = None if flat is None else flat.float()[:, :, None]
        y, last = _Dense.apply(u[..., :whole], *low_rank_tables(layer, rate, cut.chunk), D, first, arithmetic, cut)
        flat = last[:, :, 0] if want_state else None
        pieces.append(y)
    if whole < length:
        tail = u[..., whole:].float()
        y, flat = scan(tail, tables_of(dplr.sample(layer, rate), tail.dtype), flat, want_state=True)
        pieces.append((y + D[:, None] * tail).to(u.dtype))
    state = None if flat is None else flat.unflatten(-1, (-1, 2))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1), state


def _arithmetic(u: Tensor, precision: str) -> str:
    if precision not in _ARITHMETIC:
        raise OptionError(f"precision is {precision!r}, expected one of {', '.join(_ARITHMETIC)}")
    return _ARITHMETIC[precision] if u.is_cuda or precision != "bf16" else "rounded"


def _rows(x: Tensor) -> Tensor:
    """A channel's samples must lie side by side."""
    if x.stride(-1) == 1:
        return x
    return turn(x.transpose(1, 2)) if _channels_last(x) else x.contiguous()


def _channels_last(x: Tensor) -> bool:
    return x.transpose(1, 2).is_contiguous()


class _Diagonal(torch.autograd.Function):
    """y and the last state from u, a layer's parameters and the first state: tables and walks as one node."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        *parameters, first, rate, arithmetic, cut = arguments
        *modal, D = parameters
        modes, ctx.channels_last = Modes(*modal), _channels_last(u)
        u, broken = heard(u) if len(modes.C) == 1 else (_rows(u), None)
        *made, sampled = triton_tables.make_tables(modes, D, rate, cut.chunk)
        tables = Tables(*made)
        plan = Plan.of(u, tables, cut, arithmetic)
        y, last, kept = forward(plan, u, tables, first, save=any(ctx.needs_input_grad))
        if broken is not None:
            spoil(y, last, broken)
        ctx.save_for_backward(u, sampled, *tables, *modes, *kept)
        ctx.plan, ctx.has_first = plan, first is not None
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, sampled, *saved = ctx.saved_tensors
        tables, modes, kept = Tables(*saved[:4]), Modes(*saved[4:9]), saved[9:]
        dy = torch.zeros_like(u) if dy is None else _rows(dy)
        du, dfirst, sums = backward(ctx.plan, u, dy, tables, kept, dlast)
        dparameters = triton_table_gradients.gradients(modes, sampled, sums, ctx.plan.cut.chunk)
        du = turn(du).transpose(1, 2) if ctx.channels_last else du
        return du, *dparameters, dfirst if ctx.has_first else None, None, None, None


class _Dense(torch.autograd.Function):
    """The same from the tables of a dense state."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        K, E, C, decay, D, first, arithmetic, cut = arguments
        ctx.channels_last = _channels_last(u)
        u, broken = heard(u) if len(K) == 1 else (_rows(u), None)
        exact = K.clone()
        exact[0, :, 0] += D
        tables = Tables(exact, E[:, None], C[:, :, None], decay)
        plan = Plan.of(u, tables, cut, arithmetic)
        y, last, kept = forward(plan, u, tables, first, save=any(ctx.needs_input_grad))
        if broken is not None:
            spoil(y, last, broken)
        ctx.save_for_backward(u, *tables, *kept)
        ctx.plan, ctx.has_first = plan, first is not None
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        u, *saved = ctx.saved_tensors
        tables, kept, plan = Tables(*saved[:4]), saved[4:], ctx.plan
        dy = torch.zeros_like(u) if dy is None else _rows(dy)
        du, dfirst, sums = backward(plan, u, dy, tables, kept, dlast)
        M, N = plan.cut.chunk, plan.width
        dT, dE, dC, ddecay = sums.sum(1).split((M * M, M * N, M * N, N * N), dim=-1)
        dK = dT.unflatten(-1, (M, M)).sum(2)  # the kernel stores the diagonals of dT as columns
        dtables = (
            dK,
            dE.sum(0).unflatten(-1, (M, N)),
            dC.unflatten(-1, (M, N)).transpose(-1, -2),
            ddecay.sum(0).unflatten(-1, (N, N)),
        )
        du = turn(du).transpose(1, 2) if ctx.channels_last else du
        return du, *dtables, dK[0, :, 0], dfirst if ctx.has_first else None, None, None
