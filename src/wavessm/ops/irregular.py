"""Irregular times: a diagonal system whose samples have gaps of their own, exactly, in plain PyTorch (kernels:
`triton/irregular.py`).

With z = log λ̄ of one regular step, a sample that comes `passed` steps after the one before, and is held over `held` of
them, gives

    x[k] = e^{z passed[k]} x[k−1] + ρ[k] u[k]        ρ = (e^{z held} − 1) / (e^z − 1)        y[k] = Re Σ w x[k]

so gaps of one step are the regular system, and both have the same state. `held` is longer than `passed` after samples
that were skipped. Times are walked in blocks of bounded memory; the gradient forms a block again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from wavessm.errors import OptionError, can_sync
from wavessm.ops.derivatives import first_only
from wavessm.ops.dispatch import DEFAULT, Engine, run_reference, triton_for
from wavessm.ops.modes import DiagonalSystem, Modes, sample

BLOCK = 2**20
"""Complex numbers in one table of a block."""


class Gaps(NamedTuple):
    """Steps since the sample before, and since the last one that was not skipped, float64."""

    passed: Tensor  # (batch, length)
    held: Tensor  # (batch, channels or 1, length)


def gaps(times: Tensor, observed: Tensor, start: Tensor, since: Tensor) -> tuple[Gaps, Tensor]:
    """The gaps before samples at increasing times (batch, length), and `since` after the last one.

    Samples that are not observed (batch, channels or 1, length) are skipped; the state before the first is of time
    `start` (batch,), and the next sample that is not skipped is held from `since` (batch, channels or 1) on.
    """
    t = times[:, None]
    seen = torch.where(observed, t, -math.inf).cummax(-1).values.maximum(since[..., None])
    before = torch.cat([since.expand(seen.shape[:2])[..., None], seen[..., :-1]], dim=-1)
    return Gaps(torch.diff(times, dim=1, prepend=start[:, None]), t - before), seen[..., -1]


def run_irregular(
    u: Tensor,  # (batch, channels, length), zero where skipped
    layer: Modes,
    D: Tensor,  # (channels,)
    rate: float,
    directions: list[Gaps],  # one per direction; backwards in time for the second
    state: Tensor | None = None,  # (batch, channels, slots, 2)
    engine: Engine = DEFAULT,
) -> tuple[Tensor, Tensor]:
    """Run a diagonal layer over samples with gaps; returns y like u and the last state of the first direction."""
    moving = any(gap.requires_grad for pair in directions for gap in pair)
    if engine.backend == "triton" and moving:
        raise OptionError("backend='triton' has no gradients of times; use backend='auto' or 'torch'.")
    kernels = None if moving else triton_for(u, engine)
    system = cast(DiagonalSystem, sample(layer, rate))
    state = u.new_zeros(len(u), *system.log_lam.shape) if state is None else state.to(u)

    def run(u: Tensor, direction: int, state: Tensor) -> tuple[Tensor, Tensor]:
        if engine.backend != "reference":
            return scan(u, system, direction, directions[direction], state, kernels)
        y, last = run_reference(u, system, direction, state.flatten(2), *directions[direction])
        return y, last.unflatten(-1, (-1, 2))

    y, last = run(u, 0, state)
    if len(directions) == 2:
        y = y + run(u.flip(-1), 1, torch.zeros_like(state))[0].flip(-1)
    return y + D.to(u)[:, None] * u, last


def scan(
    u: Tensor, system: DiagonalSystem, direction: int, gap: Gaps, state: Tensor, kernels: Any = None
) -> tuple[Tensor, Tensor]:
    """y (batch, channels, length) of one direction, and the state after the last sample; by Triton with its kernels."""
    n_complex, kind = system.n_complex, u.dtype.to_complex()
    z, w, x = (_complex_modes(t, n_complex) for t in (system.log_lam, system.w[direction], state))
    unit = _expm1(z, z.real.new_ones(()), z.dtype)  # e^z − 1: inside, states are unit times as large
    w, x = (w / unit).to(kind), (x * unit).to(kind)
    if kernels is not None:
        inputs = u.contiguous(), *(torch.view_as_real(t.resolve_conj()).contiguous() for t in (z, w, x))
        y, last, _ = kernels.irregular.irregular_scan(*inputs, gap.passed, gap.held.expand(u.shape))
        x = torch.view_as_complex(last)
    else:
        signal, passed, held = u.permute(2, 0, 1), gap.passed.T[..., None, None], gap.held.permute(2, 0, 1)[..., None]
        passed, held = _shrink(passed), _shrink(held)
        tables = [passed] if can_sync(u) and torch.equal(passed, held) else [passed, held]
        y, x = _IrregularScan.apply(signal, z, w, x, max(16, min(256, BLOCK // x.numel())), *tables)
        y = y.permute(1, 2, 0)
    x = x / unit.to(kind)
    real = x[..., n_complex:].real.reshape(*x.shape[:-1], state.shape[-2] - n_complex, 2)
    return y, torch.cat([torch.view_as_real(x[..., :n_complex]), real], dim=-2)


def _complex_modes(x: Tensor, n_complex: int) -> Tensor:
    """Slots as complex numbers, a real mode by itself. (..., slots, 2) → (..., n_complex + 2 (slots − n_complex))"""
    real = x[..., n_complex:, :].flatten(-2)
    paired = torch.view_as_complex(x[..., :n_complex, :].contiguous())
    return torch.cat([paired, torch.complex(real, torch.zeros_like(real))], dim=-1)


def _shrink(gap: Tensor) -> Tensor:
    """One table for all cases or channels where their gaps are equal; values are compared on the CPU only."""
    for axis in (1, 2):
        first = gap.narrow(axis, 0, 1)
        gap = first if can_sync(gap) and torch.equal(first.expand_as(gap), gap) else gap
    return gap


def _expm1(z: Tensor, gap: Tensor, kind: torch.dtype) -> Tensor:
    """e^{z gap} − 1 without cancellation; angles lose whole turns in float64. (S, batch or 1, channels, modes)"""
    turns = z.imag * (gap / (2 * math.pi))
    half = (math.pi * (turns - turns.round())).to(kind.to_real())
    grown, sine = torch.expm1((z.real * gap).to(kind.to_real())), half.sin()
    lost = 2 * sine.square()  # 1 − cos
    return torch.complex(grown - (1 + grown) * lost, (1 + grown) * (2 * sine * half.cos()))


class _IrregularScan(torch.autograd.Function):
    """x[k] = (1 + p[k]) x[k−1] + h[k] u[k] and y = Re Σ w x, with p and h from `_expm1` of the gaps.

    Only the states between blocks are kept. The adjoint is the same recurrence in reverse and forms the tables again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,  # (length, batch, channels)
        z: Tensor,  # (channels, modes) complex128
        w: Tensor,  # (channels, modes)
        x: Tensor,  # (batch, channels, modes)
        size: int,  # of a block
        *gaps: Tensor,  # passed, and held unless it is the same: (length, batch or 1, channels or 1, 1)
    ) -> tuple[Tensor, Tensor]:
        blocks = [slice(at, at + size) for at in range(0, len(u), size)]
        y, ends = torch.empty_like(u), x.new_empty(len(blocks) + 1, *x.shape)
        ends[0], weight = x, _reals(w.conj())
        for number, here in enumerate(blocks):
            states = _tables(u[here], [gap[here] for gap in gaps], z, ends[number])[1]
            y[here] = torch.linalg.vecdot(weight, _reals(states))
            ends[number + 1] = states[-1]
        ctx.save_for_backward(u, z, w, ends, *gaps)
        ctx.blocks = blocks
        return y, ends[-1].clone()

    @staticmethod
    @first_only
    def backward(ctx: Any, dy: Tensor, dx: Tensor) -> tuple[Tensor | None, ...]:
        u, z, w, ends, *gaps = ctx.saved_tensors
        du, dz, dw, *dgaps = (torch.zeros_like(t) for t in (u, z, w, *gaps))
        for number, here in reversed(list(enumerate(ctx.blocks))):
            tables, states = _tables(u[here], [gap[here] for gap in gaps], z, ends[number])
            carry, back = 1 + tables[0].conj(), dy[here][..., None] * w.conj()  # becomes the gradient of the states
            back[-1] += dx
            for k in range(len(back) - 1, 0, -1):
                back[k - 1].addcmul_(carry[k], back[k])
            dx = carry[0] * back[0]
            dw += (states.conj() * dy[here][..., None]).sum((0, 1))
            du[here] = torch.linalg.vecdot(_reals(tables[-1]).expand_as(_reals(back)), _reals(back))
            before = torch.cat([ends[number][None], states[:-1]])
            gradients = [back * before.conj(), back * u[here][..., None]]
            gradients = [sum(gradients)] if len(gaps) == 1 else gradients
            for table, gradient, gap, dgap in zip(tables, gradients, gaps, dgaps, strict=True):
                gradient = gradient.sum_to_size(table.shape) * (1 + table.conj())
                dz += (gradient * gap[here]).sum((0, 1))
                if any(ctx.needs_input_grad[5:]):
                    moved = (gradient * z.conj()).real.sum(-1, keepdim=True)
                    dgap[here] = moved.sum_to_size(dgap[here].shape)
        return du, dz, dw, dx, None, *dgaps


def _tables(u: Tensor, gaps: list[Tensor], z: Tensor, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The tables p and h of `_IrregularScan` in a block, one where both are the same, and its states."""
    tables = [_expm1(z, gap, x.dtype) for gap in gaps]
    states, decay = tables[-1] * u[..., None], 1 + tables[0]
    for k in range(len(u)):
        states[k].addcmul_(decay[k], states[k - 1] if k else x)
    return tables, states


def _reals(x: Tensor) -> Tensor:
    """Complex numbers as pairs, (..., modes) → (..., 2 modes)."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2)
