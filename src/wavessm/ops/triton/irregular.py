"""The scan of `wavessm.ops.irregular` on a GPU: a program walks one channel of one signal with its modes in registers.

Decays are formed on the way. The forward stores every `BLOCK`-th state; the backward forms a block of states again from
the one before it, then walks back through the block. Letters are those of `ops/irregular.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavessm.ops.derivatives import first_only, operator
from wavessm.ops.triton.language import jit, kernel, power_of_two, tl

BLOCK = 64


def _fake_scan(u: Tensor, z: Tensor, w: Tensor, x: Tensor, *gaps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, channels, length = u.shape
    blocks = (length + BLOCK - 1) // BLOCK
    return u.new_empty(u.shape), x.new_empty(x.shape), x.new_empty(batch, channels, blocks, *x.shape[2:])


def _fake_scan_backward(dy: Tensor, dlast: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
    u, z, _, ends, *_ = inputs
    dz, dw, dx = (torch.empty_like(ends[:, :, 0], dtype=dtype) for dtype in (z.dtype, ends.dtype, ends.dtype))
    return u.new_empty(u.shape), dz, dw, dx


@operator(_fake_scan_backward)
def irregular_scan_backward(
    dy: Tensor, dlast: Tensor | None, u: Tensor, z: Tensor, w: Tensor, ends: Tensor, passed: Tensor, held: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, and by signals those of z, w and the first state."""
    batch, channels, length = u.shape
    du, dz, dw, dx = _fake_scan_backward(dy, dlast, u, z, w, ends)
    again = torch.empty(batch, channels, BLOCK, *z.shape[1:], device=u.device)
    irregular_gradient_kernel[(channels, batch)](
        dy.contiguous(), None if dlast is None else dlast.contiguous(), u, z, w, ends, passed, held, again, du, dz, dw,
        dx, length, channels, z.shape[1], passed.stride(0), *held.stride()[:2],
        BLOCK=BLOCK, N=power_of_two(z.shape[1]), num_warps=1,
    )  # fmt: skip
    return du, dz, dw, dx


@first_only
def _scan_gradient(kept: tuple, dy: Tensor | None, dlast: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    du, dz, dw, dx = irregular_scan_backward(torch.zeros_like(kept[0]) if dy is None else dy, dlast, *kept)
    return du, dz.sum(0), dw.sum(0), dx, None, None


@operator(_fake_scan, _scan_gradient, lambda inputs, made: ((*inputs[:3], made[2], *inputs[4:]), ()), outputs=2)
def irregular_scan(
    u: Tensor, z: Tensor, w: Tensor, x: Tensor, passed: Tensor, held: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x[k] = e^{z passed[k]} x[k−1] + (e^{z held[k]} − 1) u[k], y[k] = Re Σ w x[k]; y, the last state, and some others.

    u (batch, channels, length), z (channels, modes, 2) float64 and w, complex, x (batch, channels, modes, 2), passed
    (batch, length) and held (batch, channels, length) float64, the last axes contiguous
    """
    (batch, channels, length), modes = u.shape, z.shape[1]
    y, last, ends = _fake_scan(u, z, w, x)
    irregular_kernel[(channels, batch)](
        u, z, w, x, passed, held, y, last, ends, length, channels, modes, passed.stride(0), *held.stride()[:2],
        BLOCK=BLOCK, N=power_of_two(modes), num_warps=1,
    )  # fmt: skip
    return y, last, ends


@jit
def _pair(pointer, n, ok):
    """Complex numbers n."""
    return tl.load(pointer + 2 * n, mask=ok, other=0.0), tl.load(pointer + 2 * n + 1, mask=ok, other=0.0)


@jit
def _store_pair(pointer, n, value, ok):
    tl.store(pointer + 2 * n, value[0], mask=ok)
    tl.store(pointer + 2 * n + 1, value[1], mask=ok)


@jit
def _expm1(z, gap):
    """e^{z gap} − 1 without cancellation; angles lose whole turns in float64."""
    turns = z[1] * (gap * 0.15915494309189535)
    half = ((turns - tl.floor(turns + 0.5)) * 3.141592653589793).to(tl.float32)
    grown, sine = (tl.exp(z[0] * gap) - 1.0).to(tl.float32), tl.sin(half)
    return grown - (1.0 + grown) * 2.0 * sine * sine, (1.0 + grown) * 2.0 * sine * tl.cos(half)


@jit
def _next(x, p, h, u):
    """(1 + p) x + h u"""
    return x[0] + p[0] * x[0] - p[1] * x[1] + h[0] * u, x[1] + p[0] * x[1] + p[1] * x[0] + h[1] * u


@jit
def _add_conj(total, p, g):
    """total + conj(p) g"""
    return total[0] + p[0] * g[0] + p[1] * g[1], total[1] + p[0] * g[1] - p[1] * g[0]


@kernel
def irregular_kernel(
    u, z, w, x, passed, held, y, last, ends, length, channels, modes, passed_batch, held_batch, held_channel,
    BLOCK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y of one channel of one signal, the states before each block, and the last one."""
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n, here = tl.arange(0, N), b * channels + h
    ok = n < modes
    passed += b * passed_batch
    held += b * held_batch + h * held_channel
    rates, weight = _pair(z + h * modes * 2, n, ok), _pair(w + h * modes * 2, n, ok)
    state = _pair(x + here * modes * 2, n, ok)
    for k in range(length):
        if k % BLOCK == 0:
            _store_pair(ends + (here * ((length + BLOCK - 1) // BLOCK) + k // BLOCK) * modes * 2, n, state, ok)
        p, added = _expm1(rates, tl.load(passed + k)), _expm1(rates, tl.load(held + k))
        state = _next(state, p, added, tl.load(u + here * length + k))
        tl.store(y + here * length + k, tl.sum(weight[0] * state[0] - weight[1] * state[1], 0))
    _store_pair(last + here * modes * 2, n, state, ok)


@kernel
def irregular_gradient_kernel(
    dy, dlast, u, z, w, ends, passed, held, again, du, dz, dw, dx, length, channels, modes, passed_batch, held_batch,
    held_channel,
    BLOCK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The adjoint of the same walk, in reverse; g is the gradient of a state."""
    h, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n, here = tl.arange(0, N), b * channels + h
    ok = n < modes
    passed += b * passed_batch
    held += b * held_batch + h * held_channel
    rates, weight = _pair(z + h * modes * 2, n, ok), _pair(w + h * modes * 2, n, ok)
    g = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    of_w, of_z = g, (tl.zeros((N,), tl.float64), tl.zeros((N,), tl.float64))
    if dlast is not None:
        g = _pair(dlast + here * modes * 2, n, ok)
    blocks = (length + BLOCK - 1) // BLOCK
    for block in range(blocks):
        start = (blocks - 1 - block) * BLOCK
        count = tl.minimum(BLOCK, length - start)
        state = _pair(ends + (here * blocks + start // BLOCK) * modes * 2, n, ok)
        tl.debug_barrier()
        for k in range(count):
            _store_pair(again + (here * BLOCK + k) * modes * 2, n, state, ok)
            p, added = _expm1(rates, tl.load(passed + start + k)), _expm1(rates, tl.load(held + start + k))
            state = _next(state, p, added, tl.load(u + here * length + start + k))
        tl.debug_barrier()
        for back in range(count):
            at = start + count - 1 - back
            gap, over = tl.load(passed + at), tl.load(held + at)
            p, added = _expm1(rates, gap), _expm1(rates, over)
            value, seed = tl.load(u + here * length + at), tl.load(dy + here * length + at)
            before = _pair(again + (here * BLOCK + at - start) * modes * 2, n, ok)
            state = _next(before, p, added, value)
            of_w = of_w[0] + seed * state[0], of_w[1] - seed * state[1]
            g = g[0] + seed * weight[0], g[1] - seed * weight[1]
            tl.store(du + here * length + at, tl.sum(added[0] * g[0] + added[1] * g[1], 0))
            # e^{z gap} − 1 has derivative gap e^{z gap}
            to_p = _add_conj((tl.zeros_like(of_w[0]), tl.zeros_like(of_w[0])), before, g)
            to_p = _add_conj(to_p, p, to_p)
            to_h = _add_conj((value * g[0], value * g[1]), added, (value * g[0], value * g[1]))
            of_z = of_z[0] + gap * to_p[0] + over * to_h[0], of_z[1] + gap * to_p[1] + over * to_h[1]
            g = _add_conj(g, p, g)
    _store_pair(dw + here * modes * 2, n, of_w, ok)
    _store_pair(dz + here * modes * 2, n, of_z, ok)
    _store_pair(dx + here * modes * 2, n, g, ok)
