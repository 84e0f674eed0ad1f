"""From a diagonal layer's parameters to the tables of `triton_walk`, in two launches.

The arithmetic is that of `modes.sample` and `tables.diagonal_tables`, in float64 and cast once; done operation by
operation it would take longer to launch than the scan itself. `triton_table_gradients` goes back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavessm.ops.modes import Modes
from wavessm.ops.triton.language import jit, missing
from wavessm.ops.triton.slots import continuous, double, flags, mul, powers

if missing is None:
    import triton.language as tl  # type: ignore

SLOTS = 8
"""Slots in a program: float64 fills the registers fast."""

SAMPLED = 9
"""Numbers of a slot that `sample_kernel` stores."""


def make_tables(modes: Modes, D: Tensor, rate: float, chunk: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """K (directions, channels, M) with D in its first entry, E (channels, 2, M, slots), C (directions, channels, 2,
    slots, M) and the decay (channels, 3, slots), float32; and what `gradients` needs again, float64."""
    directions, channels, slots, _ = modes.C.shape
    shapes = (directions, channels, chunk), (channels, 2, chunk, slots), (directions, channels, 2, slots, chunk)
    tables = tuple(torch.empty(shape, device=D.device) for shape in (*shapes, (channels, 3, slots)))
    sampled = torch.empty(SAMPLED, channels, slots, dtype=torch.float64, device=D.device)
    log_dt, log_decay, frequency, B, C = (parameter.contiguous() for parameter in modes)
    sizes = sizes_of(modes)
    sample_kernel[(-(-channels * slots // 64),)](log_dt, log_decay, frequency, sampled, rate, *sizes, N=64, num_warps=2)
    table_kernel[(channels, directions)](B, C, D, sampled, *tables, *sizes, **options_of(chunk))
    return *tables, sampled  # type: ignore[return-value]


def sizes_of(modes: Modes) -> tuple[int, int, int, int, int]:
    """channels, channels in a copy, modes, n_complex, slots"""
    _, channels, slots, _ = modes.C.shape
    copies, count = modes.log_decay.shape
    return channels, channels // copies, count, modes.n_complex, slots


def options_of(chunk: int) -> dict[str, int]:
    return {"M": chunk, "N": SLOTS, "BITS": chunk.bit_length() - 1, "num_warps": 8}


@jit
def sample_kernel(
    log_dt: tl.tensor, log_decay: tl.tensor, frequency: tl.tensor, sampled: tl.tensor, rate: tl.tensor,
    channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, n_complex: tl.tensor, slots: tl.tensor, N: tl.constexpr,
) -> None:  # fmt: skip
    """Δ, λ, e^z, Δφ(z) and Δ²φ′(z) of z = Δλ for N slots of any channels. In the kernels below every thread of a row
    would work out the same sines."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    h, n = (at // slots).to(tl.int64), at % slots
    ok, c = h < channels, (n < n_complex).to(tl.float64)
    dt = tl.exp(double(log_dt + h, ok)) * rate
    lam_0, lam_1 = continuous(log_decay, frequency, h // per_copy, n, ok, modes, n_complex)
    z_0, z_1 = dt * lam_0, dt * lam_1
    exp_0 = tl.exp(z_0) * tl.cos(c * z_1)
    exp_1 = c * tl.exp(z_0) * tl.sin(c * z_1) + (1.0 - c) * tl.exp((1.0 - c) * z_1)
    # φ(z) = (e^z − 1)/z and φ′(z) = (e^z − φ(z))/z, by their series near zero, where the differences would cancel
    size_0, size_1 = z_0 * z_0 + c * z_1 * z_1, z_1 * z_1 + c * z_0 * z_0
    small_0, small_1 = size_0 < 1e-4, size_1 < 1e-4
    by_0, by_1 = z_0 / tl.where(small_0, 1.0, size_0), (1.0 - 2.0 * c) * z_1 / tl.where(small_1, 1.0, size_1)
    far_0, far_1 = mul(exp_0 - 1.0, exp_1 - (1.0 - c), by_0, by_1, c)
    near_0, near_1 = z_0 * 0.0 + 1.0, z_1 * 0.0 + (1.0 - c)
    slope_0, slope_1 = near_0, near_1
    for j in tl.static_range(6):  # z^k / (k + 1)! and (k + 1) z^k / (k + 2)!, from the last term inwards
        k = 6 - j
        near_0, near_1 = mul(z_0 / (k + 1), z_1 / (k + 1), near_0, near_1, c)
        near_0, near_1 = near_0 + 1.0, near_1 + (1.0 - c)
        ratio = (k + 1) / (k * (k + 2))
        slope_0, slope_1 = mul(z_0 * ratio, z_1 * ratio, slope_0, slope_1, c)
        slope_0, slope_1 = slope_0 + 1.0, slope_1 + (1.0 - c)
    phi_0, phi_1 = tl.where(small_0, near_0, far_0), tl.where(small_1, near_1, far_1)
    steep_0, steep_1 = mul(exp_0 - phi_0, exp_1 - phi_1, by_0, by_1, c)
    slope_0, slope_1 = tl.where(small_0, slope_0 / 2, steep_0), tl.where(small_1, slope_1 / 2, steep_1)
    step = channels * slots
    to = sampled + at
    tl.store(to, dt, mask=ok)
    tl.store(to + step, lam_0, mask=ok)
    tl.store(to + 2 * step, lam_1, mask=ok)
    tl.store(to + 3 * step, exp_0, mask=ok)
    tl.store(to + 4 * step, exp_1, mask=ok)
    tl.store(to + 5 * step, dt * phi_0, mask=ok)
    tl.store(to + 6 * step, dt * phi_1, mask=ok)
    tl.store(to + 7 * step, dt * dt * slope_0, mask=ok)
    tl.store(to + 8 * step, dt * dt * slope_1, mask=ok)


@jit
def table_kernel(
    B: tl.tensor, C: tl.tensor, D: tl.tensor, sampled: tl.tensor,
    K: tl.tensor, E: tl.tensor, out: tl.tensor, decay: tl.tensor,
    channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, n_complex: tl.tensor, slots: tl.tensor,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """The tables of one channel and direction, N slots at a time, from the powers p = λ̄^l, l < M."""
    h, direction = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = direction * channels + h
    l = tl.arange(0, M)[None, :]
    size = M * slots
    kernel = tl.zeros((M,), tl.float64)
    for first in range(0, slots, N):
        n = first + tl.arange(0, N)[:, None]
        ok = n < slots
        weight_0, weight_1, c = flags(n, modes, n_complex)
        here, step = sampled + h * slots + n, channels * slots
        a_0, a_1 = double(here + 3 * step, ok), double(here + 4 * step, ok)
        at_B, at = B + (h // per_copy * slots + n) * 2, C + (place * slots + n) * 2
        w_0, w_1 = double(here + 5 * step, ok), double(here + 6 * step, ok)
        w_0, w_1 = mul(w_0, w_1, double(at_B, ok), double(at_B + 1, ok), c)
        w_0, w_1 = mul(weight_0 * double(at, ok), weight_1 * double(at + 1, ok), w_0, w_1, c)
        p_0, p_1, over_0, over_1 = powers(a_0, a_1, l, c, BITS)
        out_0, out_1 = mul(w_0, w_1, p_0, p_1, c)
        kernel += tl.sum(out_0 + (1.0 - c) * out_1, 0)
        out_0, out_1 = mul(a_0, a_1, out_0, out_1, c)
        at_C = out + place * 2 * size + n * M + l
        tl.store(at_C, out_0.to(tl.float32), mask=ok)
        tl.store(at_C + size, ((1.0 - 2.0 * c) * out_1).to(tl.float32), mask=ok)
        if direction == 0:
            at_E = E + h * 2 * size + (M - 1 - l) * slots + n
            tl.store(at_E, p_0.to(tl.float32), mask=ok)
            tl.store(at_E + size, p_1.to(tl.float32), mask=ok)
            at_decay = decay + h * 3 * slots + n
            tl.store(at_decay, over_0.to(tl.float32), mask=ok)
            tl.store(at_decay + slots, (c * over_1).to(tl.float32), mask=ok)
            tl.store(at_decay + 2 * slots, (c * over_0 + (1.0 - c) * over_1).to(tl.float32), mask=ok)
    direct = tl.where((tl.arange(0, M) == 0) & (direction == 0), tl.load(D + h).to(tl.float64), 0.0)
    tl.store(K + place * M + tl.arange(0, M), (kernel + direct).to(tl.float32))
