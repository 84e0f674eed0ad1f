"""Irregular times: a diagonal system whose samples have gaps of their own, exactly, in plain PyTorch.

With z = log λ̄ of one regular step, a sample that comes `passed` steps after the one before, and is held over `held` of
them, gives

    x[k] = e^{z passed[k]} x[k−1] + ρ[k] u[k]        ρ = (e^{z held} − 1) / (e^z − 1)        y[k] = Re Σ w x[k]

so gaps of one step are the regular system, and both have the same state. `held` is longer than `passed` after samples
that were skipped. Times are walked in blocks of bounded memory; the gradient forms a block again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from wavessm.errors import OptionError, can_sync
from wavessm.ops import reference
from wavessm.ops.dispatch import DEFAULT, Engine
from wavessm.ops.modes import DiagonalSystem, Modes, sample

BLOCK = 2**20
"""Complex numbers in one table of a block."""


class Gaps(NamedTuple):
    """Steps since the sample before, and since the last one that was not skipped, float64."""

    passed: Tensor  # (batch, length)
    held: Tensor  # (batch, channels or 1, length)


def gaps(times: Tensor, observed: Tensor, start: Tensor, since: Tensor) -> tuple[Gaps, Tensor]:
    """The gaps before samples.

    Args:
        times: Increasing (batch, length), float64.
        observed: False at samples that are skipped, (batch, channels or 1, length).
        start: Time of the state before the first sample, (batch,).
        since: Time from which the next sample that is not skipped is held, (batch, channels or 1).

    Returns:
        The gaps, and `since` after the last sample.
    """
    t = times[:, None].expand_as(observed)
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
    """Run a diagonal layer over samples with gaps; see `dispatch.run_layer`.

    Returns:
        y like u, and the state after the last sample of the first direction.
    """
    if engine.backend == "triton":
        raise OptionError("backend='triton' does not support times; use backend='auto' or 'torch'.")
    system = sample(layer, rate)
    if state is None:
        state = u.new_zeros(len(u), *system.log_lam.shape)
    walk = _reference if engine.backend == "reference" else scan
    y, last = walk(u, system, 0, directions[0], state)
    if len(directions) == 2:
        y = y + walk(u.flip(-1), system, 1, directions[1], torch.zeros_like(state))[0].flip(-1)
    return y + D.to(u.dtype)[:, None] * u, last


def _reference(u: Tensor, system: DiagonalSystem, direction: int, gap: Gaps, state: Tensor) -> tuple[Tensor, Tensor]:
    log_lam, w, n_complex = system
    y, last = reference.irregular_scan(u, log_lam, w[direction], n_complex, gap.passed, gap.held, state)
    return y.to(u.dtype), last.to(u.dtype)


def scan(u: Tensor, system: DiagonalSystem, direction: int, gap: Gaps, state: Tensor) -> tuple[Tensor, Tensor]:
    """y (batch, channels, length) of one direction, and the state after the last sample."""
    n_complex = system.n_complex
    z, w, x = (_complex_modes(t, n_complex) for t in (system.log_lam, system.w[direction], state))
    x, w = x.to(u.dtype.to_complex()), w.to(u.dtype.to_complex())
    passed, held = _shrink(gap.passed.T[..., None, None]), _shrink(gap.held.permute(2, 0, 1)[..., None])
    same = can_sync(u) and torch.equal(passed, held)
    size, parts = max(16, min(256, BLOCK // x.numel())), []
    for at in range(0, u.shape[-1], size):
        piece, p, h = (t[at : at + size] for t in (u.permute(2, 0, 1), passed, held))
        if torch.is_grad_enabled() and u.shape[-1] > size:
            y, x = checkpoint(_block, piece, p, h, z, w, x, same, use_reentrant=False)
        else:
            y, x = _block(piece, p, h, z, w, x, same)
        parts.append(y)
    real = x[..., n_complex:].real.reshape(*x.shape[:-1], -1, 2) if x.shape[-1] > n_complex else state[..., :0, :]
    last = torch.cat([torch.view_as_real(x[..., :n_complex]), real.to(u.dtype)], dim=-2)
    return torch.cat(parts).permute(1, 2, 0), last


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


def _block(
    u: Tensor,  # (S, batch, channels)
    passed: Tensor,  # (S, batch or 1, 1, 1)
    held: Tensor,  # (S, batch or 1, channels or 1, 1)
    z: Tensor,  # (channels, modes)
    w: Tensor,  # (channels, modes)
    x: Tensor,  # (batch, channels, modes)
    same: bool,
) -> tuple[Tensor, Tensor]:
    """y (S, batch, channels) and the state after a block."""
    grown = _expm1(z, passed, x.dtype)
    rho = (grown if same else _expm1(z, held, x.dtype)) / _expm1(z, torch.ones_like(held[:1, :1, :1]), x.dtype)
    states = _Recurrence.apply((1 + grown).expand(len(u), *x.shape), rho * u[..., None], x)
    return (states.real * w.real - states.imag * w.imag).sum(-1), states[-1]


def _expm1(z: Tensor, gap: Tensor, kind: torch.dtype) -> Tensor:
    """e^{z gap} − 1 without cancellation; the angle is reduced in float64. (S, batch or 1, channels, modes)"""
    turned = torch.remainder(z.imag * gap + math.pi, 2 * math.pi) - math.pi
    size, angle = (z.real * gap).to(kind.to_real()), turned.to(kind.to_real())
    return torch.complex(torch.expm1(size) * angle.cos() - 2 * (angle / 2).sin().square(), size.exp() * angle.sin())


class _Recurrence(torch.autograd.Function):
    """x[k] = a[k] x[k−1] + v[k] over axis 0; the adjoint is the same recurrence in reverse."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, v: Tensor, x: Tensor) -> Tensor:
        states = _recur(a, v, x)
        ctx.save_for_backward(a, states, x)
        return states

    @staticmethod
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, states, x = ctx.saved_tensors
        back = torch.cat([a[1:], torch.zeros_like(a[:1])]).conj().flip(0)
        dv = _recur(back, dstates.flip(0), torch.zeros_like(x)).flip(0)
        return dv * torch.cat([x[None], states[:-1]]).conj(), dv, a[0].conj() * dv[0]


def _recur(a: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """The states, by rows of about √S samples: within all rows at the same time, then from row to row."""
    length, columns = len(v), max(1, round(math.sqrt(len(v))))
    short = -length % columns
    if short:
        a, v = torch.cat([a, torch.ones_like(a[:short])]), torch.cat([v, torch.zeros_like(v[:short])])
    a, v = a.unflatten(0, (-1, columns)), v.unflatten(0, (-1, columns))
    states, decays = [v[:, 0]], [a[:, 0]]
    for k in range(1, columns):
        states.append(torch.addcmul(v[:, k], a[:, k], states[-1]))
        decays.append(a[:, k] * decays[-1])
    inside, decay = torch.stack(states, 1), torch.stack(decays, 1)
    carried = [x]
    for row in range(len(v) - 1):
        carried.append(torch.addcmul(inside[row, -1], decay[row, -1], carried[-1]))
    return torch.addcmul(inside, decay, torch.stack(carried)[:, None]).flatten(0, 1)[:length]
