"""Gradients of `chains`.

With μ the gradient of y_{j+1} = a y_j − L (Rᵀ y_j): a gets conj(y_j) μ, L −μ (Rᵀ y_j), R −y_j (Lᵀ μ), and y_j gets
conj(a) μ − R (Lᵀ μ). The gradients of a, B̄, U and V then pass back through the bilinear rule of `dplr`.
"""

from __future__ import annotations

from wavessm.ops.triton.chains import (
    chain_factors,
    load_pair,
    resolvent,
    row_dots,
    small_inverse,
    store_pair,
    sum_ranks,
)
from wavessm.ops.triton.language import conj_mul, jit, load_f64, mul, powers, slot_weights, store_rates, tl


@jit
def chain_gradient_kernel(
    system, chains, dK, dE, dout, dq, dp, ddecay, parts, channels, per_copy, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Gradients of a, the start, B̄, L and R from one chain of one channel; μ runs back along it."""
    h, k, n, R = tl.program_id(0).to(tl.int64), tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :], 2 * slots
    ok, chain, c = n < slots, tl.program_id(1) + n * 0, (n < n_complex).to(tl.float64)
    a_0, a_1, L_0, L_1, R_0, R_1 = chain_factors(system, h, chain, n, c, ok, slots, DIRECTIONS, RANK)
    B_0, B_1 = load_pair(system + (h * (2 + 2 * RANK) + 1) * R, n, ok)
    first, read, low = chain == 0, (chain >= 1) & (chain <= DIRECTIONS), chain - 1 - DIRECTIONS
    place = (chain - 1) * channels + h
    alone = low >= RANK
    rank = tl.where(alone, low - RANK, low)
    at = chains + (h * tl.num_programs(1) + chain) * M * R
    m_0, m_1 = load_pair(dout + (place * M + M - 1) * R, n, ok & read)
    da_0, da_1, dB_0, dB_1 = m_0 * 0.0, m_0 * 0.0, m_0 * 0.0, m_0 * 0.0
    dL_0, dL_1, dR_0, dR_1 = L_0 * 0.0, L_0 * 0.0, L_0 * 0.0, L_0 * 0.0
    for step in range(M):
        j = M - 1 - step
        row = tl.where(alone, step, j)
        y_0, y_1 = load_pair(at + row * R, n, ok)
        s, t = row_dots(R_0, R_1, y_0, y_1), row_dots(L_0, L_1, m_0, m_1)
        add_0, add_1 = conj_mul(y_0, y_1, m_0, m_1, c)
        da_0, da_1 = da_0 + add_0, da_1 + add_1
        dL_0, dL_1 = dL_0 - s * m_0, dL_1 - s * m_1
        dR_0, dR_1 = dR_0 - t * y_0, dR_1 - t * y_1
        m_0, m_1 = conj_mul(a_0, a_1, m_0, m_1, c)
        m_0, m_1 = m_0 - sum_ranks(t, R_0), m_1 - sum_ranks(t, R_1)
        of_x_0, of_x_1 = load_pair(dE + (h * M + step) * R, n, ok & first)
        of_c_0, of_c_1 = load_pair(dout + (place * M + j - 1) * R, n, ok & read & (j + n * 0 > 0))
        low_row = ((h * RANK + rank) * M + row) * R
        of_q_0, of_q_1 = load_pair(dq + low_row, n, ok & (low >= 0) & (low < RANK))
        of_p_0, of_p_1 = load_pair(dp + low_row, n, ok & alone)
        kernel = tl.load(dK + place * M + j, mask=read, other=0.0).to(tl.float64)
        m_0 += of_x_0 + of_c_0 - of_q_0 - of_p_0 + kernel * B_0
        m_1 += of_x_1 + of_c_1 - of_q_1 - of_p_1 + kernel * B_1
        dB_0, dB_1 = dB_0 + kernel * y_0, dB_1 + kernel * y_1
    # a^M has derivative M a^{M−1}; the first p takes it along
    p_0, p_1, _, _ = powers(a_0, a_1, n * 0 + M - 1, c, BITS)
    block, here = ddecay + h * R * R + 2 * n * R + 2 * n, ok & (low == RANK)
    g_00, g_01 = load_f64(block, here), load_f64(block + 1, here)
    g_10, g_11 = load_f64(block + R, here), load_f64(block + R + 1, here)
    add_0, add_1 = conj_mul(p_0, p_1, g_00 + c * g_11, c * (g_10 - g_01) + (1.0 - c) * g_11, c)
    da_0, da_1 = da_0 + M * add_0, da_1 + M * add_1
    da_1 = tl.where((chain >= 1) & (low < RANK), (1.0 - 2.0 * c) * da_1, da_1)  # that of a, not of its conjugate
    to = parts + (h * tl.num_programs(1) + chain) * (3 + 2 * RANK) * R
    store_pair(to, n, da_0, da_1, ok)
    store_pair(to + R, n, m_0, m_1, ok)
    store_pair(to + 2 * R, n, dB_0, dB_1, ok)
    store_pair(to + (3 + k) * R, n, dL_0, dL_1, ok)
    store_pair(to + (3 + RANK + k) * R, n, dR_0, dR_1, ok)


@jit
def _collect(
    parts, dC, h, channels, n, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Sums over all chains of the gradients of e, U, V and B̄; those of C are stored."""
    i, ok, R = tl.arange(0, RANK)[:, None], n < slots, 2 * slots
    w_0, w_1, c = slot_weights(n, modes, n_complex)
    height = 3 + 2 * RANK
    CHAINS: tl.constexpr = 1 + DIRECTIONS + 2 * RANK
    at = parts + h * CHAINS * height * R
    de_0, de_1 = tl.zeros((1, N), tl.float64), tl.zeros((1, N), tl.float64)
    dU_0, dU_1 = tl.zeros((RANK, N), tl.float64), tl.zeros((RANK, N), tl.float64)
    dV_0, dV_1 = tl.zeros((RANK, N), tl.float64), tl.zeros((RANK, N), tl.float64)
    g_0, g_1 = load_pair(at + R, n, ok)  # of B̄: the start of x
    for chain in tl.static_range(CHAINS):
        here = at + chain * height * R
        da_0, da_1 = load_pair(here, n, ok)
        de_0, de_1 = de_0 + da_0, de_1 + da_1
        dL_0, dL_1 = load_pair(here + (3 + i) * R, n, ok)
        dR_0, dR_1 = load_pair(here + (3 + RANK + i) * R, n, ok)
        if chain == 0:
            dU_0, dU_1, dV_0, dV_1 = dU_0 + dL_0, dU_1 + dL_1, dV_0 + dR_0, dV_1 + dR_1
        elif chain <= DIRECTIONS + RANK:
            dU_0, dU_1, dV_0, dV_1 = dU_0 + dR_0, dU_1 + dR_1, dV_0 + dL_0, dV_1 + dL_1
        if (chain >= 1) & (chain <= DIRECTIONS):
            dB_0, dB_1 = load_pair(here + 2 * R, n, ok)
            g_0, g_1 = g_0 + dB_0, g_1 + dB_1
            start_0, start_1 = load_pair(here + R, n, ok)
            store_pair(dC + ((chain - 1) * channels + h) * R, n, w_0 * start_0, (1.0 - 2.0 * c) * w_1 * start_1, ok)
    ends = at + (1 + DIRECTIONS + i) * height * R + R  # the starts of q and of p
    q_0, q_1 = load_pair(ends, n, ok)
    p_0, p_1 = load_pair(ends + RANK * height * R, n, ok)
    dV_0, dV_1 = dV_0 + q_0, dV_1 + q_1
    dU_0, dU_1 = 2.0 * (dU_0 + p_0), 2.0 * (dU_1 + p_1)  # the system holds 2U and a = 2e − 1
    de_0, de_1 = 2.0 * de_0, 2.0 * de_1
    return de_0, de_1, dU_0, dU_1, dV_0, dV_1, g_0, g_1


@jit
def _input_gradients(
    g_0, g_1, held_0, held_1, B_0, B_1, e_0, e_1, U_0, U_1, V_0, V_1, de_0, de_1, dU_0, dU_1, dV_0, dV_1, dt, c,
):  # fmt: skip
    """From g, the gradient of B̄ = Δ (e B − U (Vᵀ B)), to those of Δ and B; those of e, U and V are added to."""
    step = tl.sum(tl.sum(g_0 * held_0 + g_1 * held_1, 1), 0) / dt
    g_0, g_1 = dt * g_0, dt * g_1
    add_0, add_1 = conj_mul(B_0, B_1, g_0, g_1, c)
    de_0, de_1 = de_0 + add_0, de_1 + add_1
    s, t = row_dots(V_0, V_1, B_0, B_1), row_dots(U_0, U_1, g_0, g_1)
    dB_0, dB_1 = conj_mul(e_0, e_1, g_0, g_1, c)
    dB_0, dB_1 = dB_0 - sum_ranks(t, V_0), dB_1 - sum_ranks(t, V_1)
    dU_0, dU_1 = dU_0 - s * g_0, dU_1 - s * g_1
    dV_0, dV_1 = dV_0 - t * B_0, dV_1 - t * B_1
    return step, dB_0, dB_1, de_0, de_1, dU_0, dU_1, dV_0, dV_1


@jit
def _low_rank_gradients(
    dU_0, dU_1, dV_0, dV_1, U_0, U_1, P_0, P_1, e_0, e_1, w_0, w_1, de_0, de_1, dt, c, RANK: tl.constexpr
):
    """From the gradients of U = Y S⁻¹ and V = conj(e) Q, for Y = e P, S = 2/Δ + Qᵀ Y and Q = w P, to those of Δ and P;
    that of e is added to."""
    i, k = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
    Y_0, Y_1 = mul(e_0, e_1, P_0, P_1, c)
    inverse_t = tl.trans(small_inverse(P_0, P_1, Y_0, Y_1, w_0, w_1, dt, RANK))
    dY_0 = tl.sum(dU_0[:, None, :] * inverse_t[:, :, None], 0)  # dU S⁻ᵀ
    dY_1 = tl.sum(dU_1[:, None, :] * inverse_t[:, :, None], 0)
    dS = -tl.sum(U_0[:, None, :] * dY_0[None, :, :] + U_1[:, None, :] * dY_1[None, :, :], 2)
    step = 2.0 / (dt * dt) * tl.sum(tl.sum(tl.where(i == k, dS, 0.0), 1), 0)
    dQ_0, dQ_1 = mul(e_0, e_1, dV_0, dV_1, c)
    dQ_0 += tl.sum(dS[:, :, None] * Y_0[None, :, :], 1)
    dQ_1 += tl.sum(dS[:, :, None] * Y_1[None, :, :], 1)
    dY_0 += tl.sum(dS[:, :, None] * (w_0 * P_0)[:, None, :], 0)
    dY_1 += tl.sum(dS[:, :, None] * (w_1 * P_1)[:, None, :], 0)
    dP_0, dP_1 = conj_mul(e_0, e_1, dY_0, dY_1, c)
    dP_0, dP_1 = dP_0 + w_0 * dQ_0, dP_1 + w_1 * dQ_1
    add_0, add_1 = conj_mul(P_0, P_1, dY_0, dY_1, c)
    from_V_0, from_V_1 = conj_mul(w_0 * P_0, w_1 * P_1, dV_0, dV_1, c)
    de_0 += tl.sum(add_0 + from_V_0, 0)[None, :]
    de_1 += tl.sum(add_1 + (1.0 - 2.0 * c) * from_V_1, 0)[None, :]
    return -step, dP_0, dP_1, de_0, de_1


@jit
def resolve_gradient_kernel(
    log_dt, log_decay, frequency, B, P, system, parts, ddt, rows, dC, rate, channels, per_copy, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """From the gradients of the chains to those of the parameters of one channel."""
    h = tl.program_id(0).to(tl.int64)
    copy, R = h // per_copy, 2 * slots
    i, n = tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :]
    ok = n < slots
    w_0, w_1, c = slot_weights(n, modes, n_complex)
    de_0, de_1, dU_0, dU_1, dV_0, dV_1, g_0, g_1 = _collect(
        parts, dC, h, channels, n, modes, n_complex, slots, DIRECTIONS, RANK, N
    )
    dt, lam_0, lam_1, e_0, e_1 = resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, n_complex)
    own = system + h * (2 + 2 * RANK) * R
    held_0, held_1 = load_pair(own + R, n, ok)
    U_0, U_1 = load_pair(own + (2 + i) * R, n, ok)
    U_0, U_1 = 0.5 * U_0, 0.5 * U_1
    V_0, V_1 = load_pair(own + (2 + RANK + i) * R, n, ok)
    B_0, B_1 = load_pair(B + copy * R, n, ok)
    step, dB_0, dB_1, de_0, de_1, dU_0, dU_1, dV_0, dV_1 = _input_gradients(
        g_0, g_1, held_0, held_1, B_0, B_1, e_0, e_1, U_0, U_1, V_0, V_1, de_0, de_1, dU_0, dU_1, dV_0, dV_1, dt, c
    )
    P_0, P_1 = load_pair(P + (copy * RANK + i) * R, n, ok)
    more, dP_0, dP_1, de_0, de_1 = _low_rank_gradients(
        dU_0, dU_1, dV_0, dV_1, U_0, U_1, P_0, P_1, e_0, e_1, w_0, w_1, de_0, de_1, dt, c, RANK
    )

    # e = 1/z with z = 1 − Δλ/2
    square_0, square_1 = mul(e_0, e_1, e_0, e_1, c)
    dz_0, dz_1 = conj_mul(square_0, square_1, -de_0, -de_1, c)
    step += more - 0.5 * tl.sum(tl.sum(tl.where(ok, lam_0 * dz_0 + lam_1 * dz_1, 0.0), 1), 0)
    tl.store(ddt + h, (step * dt).to(tl.float32))
    to = rows + h * (modes + n_complex + 2 * slots * (1 + RANK))
    store_rates(to, n, lam_0, lam_1, -0.5 * dt * dz_0, -0.5 * dt * dz_1, ok, modes, n_complex)
    to += modes + n_complex
    store_pair(to, n, dB_0, dB_1, ok)
    store_pair(to + (1 + i) * R, n, dP_0, dP_1, ok)
