"""From the sums of a backward walk to the gradients of a diagonal layer's parameters, in one launch: back through
`triton_tables`, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from wavessm.ops.modes import Modes
from wavessm.ops.triton.language import jit, missing
from wavessm.ops.triton.slots import back, double, flags, mul, powers, put_rates
from wavessm.ops.triton.tables import SLOTS, options_of, sizes_of

if missing is None:
    import triton.language as tl  # type: ignore


def gradients(modes: Modes, sampled: Tensor, sums: Tensor, chunk: int) -> tuple[Tensor, ...]:
    """Of log_dt, log_decay, frequency, B, C and D, from the sums (directions, splits, channels, …) of a backward."""
    directions, channels, slots, _ = modes.C.shape
    copies, count = modes.log_decay.shape
    n_complex = modes.n_complex
    blocks = -(-slots // SLOTS)
    rows = torch.empty(channels, count + n_complex + 2 * slots, device=sums.device)  # decays, frequencies, B
    dC, dD = torch.empty(modes.C.shape, device=sums.device), torch.empty(channels, device=sums.device)
    ddt = torch.empty(channels, blocks, device=sums.device)
    table_gradient_kernel[(channels, blocks)](
        modes.B.contiguous(), modes.C.contiguous(), sampled, sums, ddt, rows, dC, dD, *sizes_of(modes), sums.shape[1],
        DIRECTIONS=directions, **options_of(chunk),
    )  # fmt: skip
    ddecay, dfrequency, dB = rows.view(copies, -1, rows.shape[1]).sum(1).split((count, n_complex, 2 * slots), dim=1)
    return ddt.sum(1), ddecay, dfrequency, dB.unflatten(1, (slots, 2)), dC, dD


@jit
def _gathered(
    sums: tl.tensor, direction: tl.constexpr, h: tl.tensor, n: tl.tensor, c: tl.tensor, ok: tl.tensor,
    channels: tl.tensor, slots: tl.tensor, tiles: tl.tensor,
    g_0: tl.tensor, g_1: tl.tensor, o_0: tl.tensor, o_1: tl.tensor, M: tl.constexpr, N: tl.constexpr,
) -> tl.tensor:  # fmt: skip
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
        g_0 += double(at_E, ok)
        g_1 += double(at_E + size, ok)
        q_0 += double(at_C, ok)
        q_1 += (1.0 - 2.0 * c) * double(at_C + size, ok)
        at_d = here + M * M + 4 * size + n
        d_0, d_1, d_2 = double(at_d, ok), double(at_d + slots, ok), double(at_d + 2 * slots, ok)
        o_0 += d_0 + c * d_2
        o_1 += c * d_1 + (1.0 - c) * d_2
    return k, q_0, q_1, g_0, g_1, o_0, o_1


@jit
def table_gradient_kernel(
    B: tl.tensor, C: tl.tensor, sampled: tl.tensor,
    sums: tl.tensor, ddt: tl.tensor, rows: tl.tensor, dC: tl.tensor, dD: tl.tensor,
    channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, n_complex: tl.tensor, slots: tl.tensor,
    tiles: tl.tensor, DIRECTIONS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """Gradients of N slots of one channel. p = λ̄^l has gradient g; v = w λ̄ and C = conj(v p); k and q are those of K
    and of v p; f of the product B φ Δ; o of λ̄^M."""
    h, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n, l = block * N + tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    ok = n < slots
    weight_0, weight_1, c = flags(n, modes, n_complex)
    at_n, stride = sampled + h * slots + n, channels * slots
    dt, lam_0, lam_1 = double(at_n, ok), double(at_n + stride, ok), double(at_n + 2 * stride, ok)
    a_0, a_1 = double(at_n + 3 * stride, ok), double(at_n + 4 * stride, ok)
    phi_0, phi_1 = double(at_n + 5 * stride, ok), double(at_n + 6 * stride, ok)  # times Δ
    slope_0, slope_1 = double(at_n + 7 * stride, ok), double(at_n + 8 * stride, ok)  # times Δ²
    at_B = B + (h // per_copy * slots + n) * 2
    B_0, B_1 = double(at_B, ok), double(at_B + 1, ok)
    p_0, p_1, over_0, over_1 = powers(a_0, a_1, l, c, BITS)
    held_0, held_1 = mul(phi_0, phi_1, B_0, B_1, c)
    g_0, g_1 = tl.zeros((N, M), tl.float64), tl.zeros((N, M), tl.float64)
    z_0, z_1 = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    o_0, o_1 = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    f_0, f_1 = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    for direction in tl.static_range(DIRECTIONS):
        k, q_0, q_1, g_0, g_1, o_0, o_1 = _gathered(
            sums, direction, h, n, c, ok, channels, slots, tiles, g_0, g_1, o_0, o_1, M, N
        )
        if direction == 0 and block == 0:
            tl.store(dD + h, tl.sum(tl.where(tl.arange(0, M) == 0, k, 0.0), 0).to(tl.float32))
        k = k[None, :]
        at = ((direction * channels + h) * slots + n) * 2
        C_0, C_1 = weight_0 * double(C + at, ok), weight_1 * double(C + at + 1, ok)
        w_0, w_1 = mul(C_0, C_1, held_0, held_1, c)
        v_0, v_1 = mul(w_0, w_1, a_0, a_1, c)
        from_k_0, from_k_1 = back(w_0, w_1, k, (1.0 - c) * k, c)
        from_q_0, from_q_1 = back(v_0, v_1, q_0, q_1, c)
        g_0, g_1 = g_0 + from_k_0 + from_q_0, g_1 + from_k_1 + from_q_1
        pq_0, pq_1 = back(p_0, p_1, q_0, q_1, c)
        v_g_0, v_g_1 = tl.sum(pq_0, 1)[:, None], tl.sum(pq_1, 1)[:, None]
        add_0, add_1 = back(v_0, v_1, v_g_0, v_g_1, c)
        z_0, z_1 = z_0 + add_0, z_1 + add_1
        pk_0, pk_1 = back(p_0, p_1, k, (1.0 - c) * k, c)
        from_v_0, from_v_1 = back(a_0, a_1, v_g_0, v_g_1, c)
        w_g_0, w_g_1 = tl.sum(pk_0, 1)[:, None] + from_v_0, tl.sum(pk_1, 1)[:, None] + from_v_1
        c_g_0, c_g_1 = back(held_0, held_1, w_g_0, w_g_1, c)
        tl.store(dC + at, (weight_0 * c_g_0).to(tl.float32), mask=ok)
        tl.store(dC + at + 1, (weight_1 * c_g_1).to(tl.float32), mask=ok)
        add_0, add_1 = back(C_0, C_1, w_g_0, w_g_1, c)
        f_0, f_1 = f_0 + add_0, f_1 + add_1

    # to z = log λ̄: from p, with derivative l p, and from λ̄^M, with derivative M λ̄^M
    pg_0, pg_1 = back(p_0, p_1, g_0, g_1, c)
    add_0, add_1 = back(over_0, over_1, o_0, o_1, c)
    z_0 += tl.sum(l * pg_0, 1)[:, None] + M * add_0
    z_1 += tl.sum(l * pg_1, 1)[:, None] + M * add_1
    to = rows + h * (modes + n_complex + 2 * slots)
    dB_0, dB_1 = back(phi_0, phi_1, f_0, f_1, c)
    tl.store(to + modes + n_complex + 2 * n, dB_0.to(tl.float32), mask=ok)
    tl.store(to + modes + n_complex + 2 * n + 1, dB_1.to(tl.float32), mask=ok)
    f_0, f_1 = back(B_0, B_1, f_0, f_1, c)
    # Δφ(Δλ) has derivative e^z by Δ and Δ² φ′(z) by λ
    step = lam_0 * z_0 + lam_1 * z_1 + a_0 * f_0 + a_1 * f_1
    tl.store(ddt + h * tl.num_programs(1) + block, tl.sum(tl.where(ok, dt * step, 0.0)).to(tl.float32))
    add_0, add_1 = back(slope_0, slope_1, f_0, f_1, c)
    put_rates(to, n, lam_0, lam_1, dt * z_0 + add_0, dt * z_1 + add_1, ok, modes, n_complex)
