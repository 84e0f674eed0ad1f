"""From a diagonal layer's parameters to the tables of `walk` in two launches, and back to their gradients in one.

The arithmetic is that of `modes.sample` and `tables.diagonal_tables`, in float64 and cast once; done operation by
operation it would take longer to launch than the scan itself.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from wavessm.ops.dplr import LowRank
from wavessm.ops.modes import Modes
from wavessm.ops.triton.language import (
    cdiv,
    conj_mul,
    continuous,
    jit,
    load_f64,
    mul,
    powers,
    slot_weights,
    store_rates,
    tl,
)

SLOTS = 8
"""Slots in a program: float64 fills the registers fast."""
SAMPLED = 9
"""Numbers that `sample_kernel` stores for a slot."""


class KernelTables(NamedTuple):
    """Tables as the kernels read them, see `walk`."""

    K: Tensor  # (directions, channels, M)
    E: Tensor  # (channels, planes, M, N)
    C: Tensor  # (directions, channels, planes, N, M)
    decay: Tensor  # (channels, 3, N) or (channels, N, N)

    def of(self, direction: int) -> tuple[Tensor | None, ...]:
        """Tables of one walk; the first of two adds the contribution of a chunk to itself for both."""
        K = (None, None) if direction else (self.K[0], self.K[1] if len(self.K) == 2 else None)
        return *K, self.E, self.C[direction], self.decay


def diagonal_tables(modes: Modes, D: Tensor, rate: float, chunk: int) -> tuple[KernelTables, list[Tensor]]:
    """The tables of a diagonal layer for chunks of M samples (a power of two), in float32, with the direct path D
    (channels,) in K; and in float64 what `diagonal_gradients` needs again."""
    directions, channels, slots, _ = modes.C.shape
    shapes = (directions, channels, chunk), (channels, 2, chunk, slots), (directions, channels, 2, slots, chunk)
    tables = KernelTables(*(torch.empty(shape, device=D.device) for shape in (*shapes, (channels, 3, slots))))
    sampled = torch.empty(SAMPLED, channels, slots, dtype=torch.float64, device=D.device)
    log_dt, log_decay, frequency, B, C = (parameter.contiguous() for parameter in modes)
    sizes = sizes_of(modes)
    sample_kernel[(cdiv(channels * slots, 64),)](log_dt, log_decay, frequency, sampled, rate, *sizes, N=64, num_warps=2)
    table_kernel[(channels, directions)](B, C, D, sampled, *tables, *sizes, **_options(chunk))
    return tables, [sampled]


def sizes_of(layer: Modes | LowRank) -> tuple[int, int, int, int, int]:
    """channels, channels per copy, modes, n_complex, slots: what every kernel of tables takes."""
    _, channels, slots, _ = layer.C.shape
    copies, count = layer.log_decay.shape
    return channels, channels // copies, count, layer.frequency.shape[1], slots


def _options(chunk: int) -> dict[str, int]:
    return {"M": chunk, "N": SLOTS, "BITS": chunk.bit_length() - 1, "num_warps": 8}


def diagonal_gradients(modes: Modes, made: list[Tensor], sums: Tensor, chunk: int) -> tuple[Tensor, ...]:
    """Gradients of the layer's parameters and D from partial sums of the tables' gradients, see `plan.backward`."""
    (directions, channels, slots, _), (copies, count) = modes.C.shape, modes.log_decay.shape
    n_complex, blocks, empty = modes.n_complex, cdiv(slots, SLOTS), partial(torch.empty, device=sums.device)
    rows, ddt = empty(channels, count + n_complex + 2 * slots), empty(channels, blocks)  # decays, frequencies, B
    dC, dD = empty(modes.C.shape), empty(channels)
    table_gradient_kernel[(channels, blocks)](
        modes.B.contiguous(), modes.C.contiguous(), *made, sums, ddt, rows, dC, dD, *sizes_of(modes), sums.shape[1],
        DIRECTIONS=directions, **_options(chunk),
    )  # fmt: skip
    ddecay, dfrequency, dB = rows.view(copies, -1, rows.shape[1]).sum(1).split((count, n_complex, 2 * slots), dim=1)
    return ddt.sum(1), ddecay, dfrequency, dB.unflatten(1, (slots, 2)), dC, dD


@jit
def sample_kernel(
    log_dt, log_decay, frequency, sampled, rate, channels, per_copy, modes, n_complex, slots,
    N: tl.constexpr,
):  # fmt: skip
    """Δ, λ, e^z, Δφ(z) and Δ²φ′(z) of z = Δλ for N slots of any channels: in the kernels below every thread of a row
    would compute the same sines."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    h, n = (at // slots).to(tl.int64), at % slots
    ok, c = h < channels, (n < n_complex).to(tl.float64)
    dt = tl.exp(load_f64(log_dt + h, ok)) * rate
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
    B, C, D, sampled, K, E, out, decay, channels, per_copy, modes, n_complex, slots,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The tables of one channel and direction, N slots at a time, from the powers p = λ̄^l, l < M."""
    h, direction = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = direction * channels + h
    l = tl.arange(0, M)[None, :]
    size = M * slots
    kernel = tl.zeros((M,), tl.float64)
    for first in range(0, slots, N):
        n = first + tl.arange(0, N)[:, None]
        ok = n < slots
        weight_0, weight_1, c = slot_weights(n, modes, n_complex)
        here, step = sampled + h * slots + n, channels * slots
        a_0, a_1 = load_f64(here + 3 * step, ok), load_f64(here + 4 * step, ok)
        at_B, at = B + (h // per_copy * slots + n) * 2, C + (place * slots + n) * 2
        w_0, w_1 = load_f64(here + 5 * step, ok), load_f64(here + 6 * step, ok)
        w_0, w_1 = mul(w_0, w_1, load_f64(at_B, ok), load_f64(at_B + 1, ok), c)
        w_0, w_1 = mul(weight_0 * load_f64(at, ok), weight_1 * load_f64(at + 1, ok), w_0, w_1, c)
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


@jit
def _collect(
    sums, direction: tl.constexpr, h, n, c, ok, channels, slots, tiles, g_0, g_1, o_0, o_1, M: tl.constexpr, N:
    tl.constexpr,
):  # fmt: skip
    """One direction's gradients of K and v p from all partial sums; those of p and λ̄^M are added to g and o."""
    l, size = tl.arange(0, M)[None, :], M * slots
    width = M * M + 4 * size + 3 * slots
    k = tl.zeros((M,), tl.float64)
    q_0, q_1 = tl.zeros((N, M), tl.float64), tl.zeros((N, M), tl.float64)
    for tile in range(tiles):
        here = sums + ((direction * tiles + tile) * channels + h) * width
        # the diagonals of dT were stored as columns
        k += tl.sum(tl.load(here + tl.arange(0, M)[:, None] * M + l).to(tl.float64), 0)
        at_E, at_C = here + M * M + (M - 1 - l) * slots + n, here + M * M + 2 * size + l * slots + n
        g_0 += load_f64(at_E, ok)
        g_1 += load_f64(at_E + size, ok)
        q_0 += load_f64(at_C, ok)
        q_1 += (1.0 - 2.0 * c) * load_f64(at_C + size, ok)
        at_d = here + M * M + 4 * size + n
        d_0, d_1, d_2 = load_f64(at_d, ok), load_f64(at_d + slots, ok), load_f64(at_d + 2 * slots, ok)
        o_0 += d_0 + c * d_2
        o_1 += c * d_1 + (1.0 - c) * d_2
    return k, q_0, q_1, g_0, g_1, o_0, o_1


@jit
def table_gradient_kernel(
    B, C, sampled, sums, ddt, rows, dC, dD, channels, per_copy, modes, n_complex, slots, tiles,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Gradients of N slots of one channel. p = λ̄^l has gradient g; v = w λ̄ and C = conj(v p); k and q are those of K
    and of v p; f of the product B φ Δ; o of λ̄^M."""
    h, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n, l = block * N + tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    ok = n < slots
    weight_0, weight_1, c = slot_weights(n, modes, n_complex)
    at_n, stride = sampled + h * slots + n, channels * slots
    dt, lam_0, lam_1 = load_f64(at_n, ok), load_f64(at_n + stride, ok), load_f64(at_n + 2 * stride, ok)
    a_0, a_1 = load_f64(at_n + 3 * stride, ok), load_f64(at_n + 4 * stride, ok)
    phi_0, phi_1 = load_f64(at_n + 5 * stride, ok), load_f64(at_n + 6 * stride, ok)  # times Δ
    slope_0, slope_1 = load_f64(at_n + 7 * stride, ok), load_f64(at_n + 8 * stride, ok)  # times Δ²
    at_B = B + (h // per_copy * slots + n) * 2
    B_0, B_1 = load_f64(at_B, ok), load_f64(at_B + 1, ok)
    p_0, p_1, over_0, over_1 = powers(a_0, a_1, l, c, BITS)
    held_0, held_1 = mul(phi_0, phi_1, B_0, B_1, c)
    g_0, g_1 = tl.zeros((N, M), tl.float64), tl.zeros((N, M), tl.float64)
    z_0, z_1 = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    o_0, o_1 = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    f_0, f_1 = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    for direction in tl.static_range(DIRECTIONS):
        k, q_0, q_1, g_0, g_1, o_0, o_1 = _collect(
            sums, direction, h, n, c, ok, channels, slots, tiles, g_0, g_1, o_0, o_1, M, N
        )
        if direction == 0 and block == 0:
            tl.store(dD + h, tl.sum(tl.where(tl.arange(0, M) == 0, k, 0.0), 0).to(tl.float32))
        k = k[None, :]
        at = ((direction * channels + h) * slots + n) * 2
        C_0, C_1 = weight_0 * load_f64(C + at, ok), weight_1 * load_f64(C + at + 1, ok)
        w_0, w_1 = mul(C_0, C_1, held_0, held_1, c)
        v_0, v_1 = mul(w_0, w_1, a_0, a_1, c)
        from_k_0, from_k_1 = conj_mul(w_0, w_1, k, (1.0 - c) * k, c)
        from_q_0, from_q_1 = conj_mul(v_0, v_1, q_0, q_1, c)
        g_0, g_1 = g_0 + from_k_0 + from_q_0, g_1 + from_k_1 + from_q_1
        pq_0, pq_1 = conj_mul(p_0, p_1, q_0, q_1, c)
        v_g_0, v_g_1 = tl.sum(pq_0, 1)[:, None], tl.sum(pq_1, 1)[:, None]
        add_0, add_1 = conj_mul(v_0, v_1, v_g_0, v_g_1, c)
        z_0, z_1 = z_0 + add_0, z_1 + add_1
        pk_0, pk_1 = conj_mul(p_0, p_1, k, (1.0 - c) * k, c)
        from_v_0, from_v_1 = conj_mul(a_0, a_1, v_g_0, v_g_1, c)
        w_g_0, w_g_1 = tl.sum(pk_0, 1)[:, None] + from_v_0, tl.sum(pk_1, 1)[:, None] + from_v_1
        c_g_0, c_g_1 = conj_mul(held_0, held_1, w_g_0, w_g_1, c)
        tl.store(dC + at, (weight_0 * c_g_0).to(tl.float32), mask=ok)
        tl.store(dC + at + 1, (weight_1 * c_g_1).to(tl.float32), mask=ok)
        add_0, add_1 = conj_mul(C_0, C_1, w_g_0, w_g_1, c)
        f_0, f_1 = f_0 + add_0, f_1 + add_1

    # to z = log λ̄: from p, with derivative l p, and from λ̄^M, with derivative M λ̄^M
    pg_0, pg_1 = conj_mul(p_0, p_1, g_0, g_1, c)
    add_0, add_1 = conj_mul(over_0, over_1, o_0, o_1, c)
    z_0 += tl.sum(l * pg_0, 1)[:, None] + M * add_0
    z_1 += tl.sum(l * pg_1, 1)[:, None] + M * add_1
    to = rows + h * (modes + n_complex + 2 * slots)
    dB_0, dB_1 = conj_mul(phi_0, phi_1, f_0, f_1, c)
    tl.store(to + modes + n_complex + 2 * n, dB_0.to(tl.float32), mask=ok)
    tl.store(to + modes + n_complex + 2 * n + 1, dB_1.to(tl.float32), mask=ok)
    f_0, f_1 = conj_mul(B_0, B_1, f_0, f_1, c)
    # Δφ(Δλ) has derivative e^z by Δ and Δ² φ′(z) by λ
    step = lam_0 * z_0 + lam_1 * z_1 + a_0 * f_0 + a_1 * f_1
    tl.store(ddt + h * tl.num_programs(1) + block, tl.sum(tl.where(ok, dt * step, 0.0)).to(tl.float32))
    add_0, add_1 = conj_mul(slope_0, slope_1, f_0, f_1, c)
    store_rates(to, n, lam_0, lam_1, dt * z_0 + add_0, dt * z_1 + add_1, ok, modes, n_complex)
