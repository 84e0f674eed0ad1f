"""The chunked scan on a GPU: what `wavessm.ops.scan` computes, by the launches of `plan` on the tables of `tables`.

For the backward only u and the states before each chunk are stored. The adjoint walk computes the gradient of u; from
the states of both walks another kernel sums the gradients of the tables.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only, operator
from wavessm.ops.modes import Modes, sample
from wavessm.ops.scan import is_symbolic, scan
from wavessm.ops.triton.language import cdiv, kernel, missing, tl
from wavessm.ops.triton.low_rank import fill_low_rank, low_rank_gradients
from wavessm.ops.triton.plan import ScanPlan, Settings, default_chunk, default_settings, make_plan
from wavessm.ops.triton.tables import KernelTables, diagonal_gradients, empty_tables, fill_diagonal

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
    length, slots, dense = u.shape[-1], layer.B.shape[1], layer.P is not None
    fixed = None if is_symbolic(length) else length
    cut = list(settings or [default_chunk(2 * slots if dense else slots, precision, dense, fixed)])
    whole = length - length % cut[0] if want_state else length
    pieces = []
    if not want_state or whole:
        # (batch, channels, planes, width): halves of slots in two planes, or all reals in one
        first = None if state is None else state.float().flatten(2)[:, :, None] if dense else state.float().mT
        leaves = u, first, D, *layer
        save = torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves)
        copy = layer.C.shape[0] == 1 or u.stride(-1) != 1
        y, last, *_ = chunked_scan(u[..., :whole] if want_state else u, *leaves[1:], rate, precision, cut, save, copy)
        last = last[:, :, 0].unflatten(-1, (-1, 2)) if dense else last.mT
        state = last if want_state else None
        pieces.append(y)
    if want_state and whole < length:
        tail = u[..., whole:].float()
        y, flat = scan(tail, sample(layer, rate), D, None if state is None else state.flatten(2), want_state=True)
        pieces.append(y.to(u.dtype))
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


@kernel
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


@kernel
def propagate_nan_kernel(y, last, broken, channels, length, width, BLOCK: tl.constexpr):
    """NaN into one signal y from the sample in `broken` on, and into its last state."""
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    stop = tl.load(broken + b * channels + h)
    if stop < length:
        for start in range(0, length, BLOCK):
            l = start + tl.arange(0, BLOCK)
            tl.store(y + (b * channels + h) * length + l, float("nan"), mask=(l >= stop) & (l < length))
        n = tl.arange(0, BLOCK)
        tl.store(last + (b * channels + h) * width + n, float("nan"), mask=n < width)


def _make_plan(u: Tensor, layer: Modes, precision: str, cut: list[int]) -> ScanPlan:
    """The launches for signals u by the settings `cut`, whose first is the chunk and alone stands for the default."""
    (batch, channels, length), slots, dense = u.shape, layer.B.shape[1], layer.P is not None
    width, planes = (2 * slots, 1) if dense else (slots, 2)
    default = default_settings(batch, channels, width, length, precision, dense, cut[0])
    return make_plan(batch, channels, length, width, planes, Settings(*cut) if len(cut) > 1 else default, precision)


def _empty(u: Tensor, layer: Modes, precision: str, M: int, save: bool) -> list[Tensor]:
    """Memory for the tables, what they are made of and, with `save`, the largest numbers of each walk and the states
    before each chunk of M samples."""
    tables, made = empty_tables(layer, M)
    if not save:
        return [*tables, *made]
    (batch, channels, length), directions = u.shape, layer.C.shape[0]
    shape = directions, channels, batch, (length + M - 1) // M, *tables.C.shape[2:4]
    states = u.new_empty(shape, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    largest = u.new_zeros((directions, channels, 2) if precision == "fp32" else 0, dtype=torch.int32)
    return [*tables, *made, largest, states]


def _fake_scan(u: Tensor, first: Tensor | None, D: Tensor, *others: Any) -> list[Tensor]:
    *layer, _, precision, cut, save, copy = others
    saved = _empty(u, Modes(*layer), precision, cut[0], save)
    last = u.new_empty(*u.shape[:2], *saved[2].shape[2:4], dtype=torch.float32)
    return [u.new_empty(u.shape), last, *(saved if save else []), *([u.new_empty(u.shape)] if save and copy else [])]


def _fake_scan_backward(dy: Tensor | None, dlast: Tensor | None, saved: list[Tensor], *others: Any) -> list[Tensor]:
    *parameters, _, _, _, channels_last = others
    layer, u, states = Modes(*parameters), saved[-1], saved[-2]
    batch, channels, length = u.shape
    du = u.new_empty(batch, length, channels).mT if channels_last else u.new_empty(u.shape)
    width = sum(p.numel() // p.shape[0] for p in (layer.log_decay, layer.frequency, layer.B, layer.P) if p is not None)
    shapes = (batch, channels, *states.shape[-2:]), (channels,), (layer.B.shape[0], width), layer.C.shape, (channels,)
    return [du, *(u.new_empty(shape, dtype=torch.float32) for shape in shapes)]


@operator(_fake_scan_backward)
def chunked_scan_backward(
    dy: Tensor | None, dlast: Tensor | None, saved: list[Tensor], log_dt: Tensor, log_decay: Tensor, frequency: Tensor,
    B: Tensor, C: Tensor, P: Tensor | None, rate: float, precision: str, cut: list[int], channels_last: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of u, the first state, log Δ, (decays, frequencies, B, P) side by side, C and D."""
    *tables, largest, states, u = saved
    layer, u = Modes(log_dt, log_decay, frequency, B, C, P), rows(u)
    dy = torch.zeros_like(u) if dy is None else rows(dy)
    plan = _make_plan(u, layer, precision, cut)
    numbers = largest if precision == "fp32" else None
    du, dfirst, sums = plan.backward(u, dy, KernelTables(*tables[:4]), states, numbers, dlast)
    differentiate = diagonal_gradients if P is None else low_rank_gradients
    return [rows(du.mT).mT if channels_last else du, dfirst, *differentiate(layer, tables[4:], sums, rate, cut[0])]


def _keep(inputs: tuple, outputs: list[Tensor]) -> tuple:
    u, first, copy = inputs[0], inputs[1], inputs[-1]
    others = *inputs[9:12], u.mT.is_contiguous(), first is not None
    return (*inputs[3:9], *outputs[2:], *(() if copy else (u,))), others


@first_only
def _scan_gradient(kept: tuple, dy: Tensor | None, dlast: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    layer, saved, options, has_first = Modes(*kept[:6]), list(kept[6:-5]), kept[-5:-1], kept[-1]
    du, dfirst, ddt, packed, dC, dD = chunked_scan_backward(dy, dlast, saved, *layer, *options)
    shared = [p for p in (layer.log_decay, layer.frequency, layer.B, layer.P) if p is not None]
    parts = packed.split([p.numel() // p.shape[0] for p in shared], dim=1)
    ddecay, dfrequency, dB, *dP = (part.reshape(p.shape) for part, p in zip(parts, shared, strict=True))
    return du, dfirst if has_first else None, dD, ddt, ddecay, dfrequency, dB, dC, *(dP or [None]), *[None] * 5


@operator(_fake_scan, _scan_gradient, _keep, outputs=2)
def chunked_scan(
    u: Tensor, first: Tensor | None, D: Tensor, log_dt: Tensor, log_decay: Tensor, frequency: Tensor, B: Tensor,
    C: Tensor, P: Tensor | None, rate: float, precision: str, cut: list[int], save: bool, copy: bool,
) -> list[Tensor]:  # fmt: skip
    """y and the last state (batch, channels, planes, width) from u, the first state and a layer's parameters; with
    `save` also what the backward needs, a copy of u included. `cut` is the chunk, or all `Settings`."""
    layer = Modes(log_dt, log_decay, frequency, B, C, P)
    saved = _empty(u, layer, precision, cut[0], save)
    tables, made = KernelTables(*saved[:4]), saved[4:-2] if save else saved[4:]
    largest, states = saved[-2:] if save else (None, None)
    (fill_diagonal if P is None else fill_low_rank)(layer, D, rate, tables, made)
    (batch, channels, length), broken = u.shape, None
    if C.shape[0] == 1:
        broken = torch.full((batch, channels), length, dtype=torch.int32, device=u.device)
    x = rows(u, broken)
    plan = _make_plan(u, layer, precision, cut)
    y, last = plan.forward(x, tables, first, states, largest if precision == "fp32" else None)
    if broken is not None:
        propagate_nan_kernel[(channels, batch)](
            y, last, broken, channels, length, last.shape[2] * last.shape[3], BLOCK=1024
        )
    if not save:
        return [y, last]
    return [y, last, *saved, *([x.clone() if x is u else x] if copy else [])]
