"""The tables of a DPLR layer in O(R) operations a column.

In discrete time (`dplr`) the layer is Ā = a − U Vᵀ: a works slot by slot, the rest has rank 1 or 2. A vector passes
through it in O(R) operations, so tables are *chains*, each vector the one before it times Ā or its transpose:

    x_j = Ā^j B̄          E, the last first
    c_j = (Āᵀ)^j C        C, and K_j = c_j · B̄
    q_j = (Āᵀ)^j V        with p_j = a^j U the power Ā^M = a^M − Σ_j p_{M−1−j} q_jᵀ

One warp computes one chain of one channel, float64 in registers. `low_rank` launches these kernels.
"""

from __future__ import annotations

from wavessm.ops.triton.language import conj_mul, continuous, jit, load_f64, mul, powers, slot_weights, tl


@jit
def load_pair(pointer, n, ok):
    """Both halves of slots n."""
    return load_f64(pointer + 2 * n, ok), load_f64(pointer + 2 * n + 1, ok)


@jit
def store_pair(pointer, n, value_0, value_1, ok):
    """The same the other way."""
    tl.store(pointer + 2 * n, value_0.to(pointer.dtype.element_ty), mask=ok)
    tl.store(pointer + 2 * n + 1, value_1.to(pointer.dtype.element_ty), mask=ok)


@jit
def row_dots(a_0, a_1, b_0, b_1):
    """Inner products of the rows of a and b, (RANK, 1)."""
    return tl.sum(a_0 * b_0 + a_1 * b_1, 1)[:, None]


@jit
def sum_ranks(factors, rows):
    """Σ factors · rows over the ranks, (1, N)."""
    return tl.sum(factors * rows, 0)[None, :]


@jit
def resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, n_complex):
    """Δ, λ and e = (1 − Δλ/2)⁻¹ of slots n."""
    c = (n < n_complex).to(tl.float64)
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64)) * rate
    lam_0, lam_1 = continuous(log_decay, frequency, copy, n, ok, modes, n_complex)
    z_0, z_1 = 1.0 - 0.5 * dt * lam_0, (1.0 - c) - 0.5 * dt * lam_1
    e_0 = z_0 / (z_0 * z_0 + c * z_1 * z_1)
    e_1 = (1.0 - 2.0 * c) * z_1 / (z_1 * z_1 + c * z_0 * z_0)
    return dt, lam_0, lam_1, e_0, e_1


@jit
def _inverse(S, RANK: tl.constexpr):
    """Of a matrix (RANK, RANK), rank 1 or 2."""
    if RANK == 1:
        inverse = 1.0 / S
    else:
        i, k = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
        whole = tl.sum(tl.sum(tl.where(i == k, S, 0.0), 1), 0)
        adjoint = tl.where(i == k, whole, 0.0) - S
        inverse = adjoint / (0.5 * tl.sum(tl.sum(S * tl.trans(adjoint), 1), 0))
    return inverse


@jit
def small_inverse(P_0, P_1, Y_0, Y_1, w_0, w_1, dt, RANK: tl.constexpr):
    """(2/Δ + Qᵀ e P)⁻¹ for Q = w P, Y = e P"""
    i, k = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
    S = tl.sum((w_0 * P_0)[:, None, :] * Y_0[None, :, :] + (w_1 * P_1)[:, None, :] * Y_1[None, :, :], 2)
    return _inverse(S + tl.where(i == k, 2.0 / dt, 0.0), RANK)


@jit
def resolve_kernel(
    log_dt, log_decay, frequency, B, P, system, rate, channels, per_copy, modes, n_complex, slots,
    RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """a = 2e − 1, B̄ = Δ G B, 2U and V of one channel, for G = e − U Vᵀ."""
    h = tl.program_id(0).to(tl.int64)
    copy = h // per_copy
    k, n = tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :]
    ok = n < slots
    w_0, w_1, c = slot_weights(n, modes, n_complex)
    dt, _, _, e_0, e_1 = resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, n_complex)
    P_0, P_1 = load_pair(P + (copy * RANK + k) * 2 * slots, n, ok)
    Y_0, Y_1 = mul(e_0, e_1, P_0, P_1, c)
    inverse = small_inverse(P_0, P_1, Y_0, Y_1, w_0, w_1, dt, RANK)
    U_0, U_1 = tl.sum(Y_0[:, None, :] * inverse[:, :, None], 0), tl.sum(Y_1[:, None, :] * inverse[:, :, None], 0)
    V_0, V_1 = conj_mul(e_0, e_1, w_0 * P_0, w_1 * P_1, c)
    B_0, B_1 = load_pair(B + copy * 2 * slots, n, ok)
    s = row_dots(V_0, V_1, B_0, B_1)
    G_0, G_1 = mul(e_0, e_1, B_0, B_1, c)
    to = system + h * (2 + 2 * RANK) * 2 * slots
    store_pair(to, n, 2.0 * e_0 - 1.0, 2.0 * e_1 - (1.0 - c), ok)
    store_pair(to + 2 * slots, n, dt * (G_0 - sum_ranks(s, U_0)), dt * (G_1 - sum_ranks(s, U_1)), ok)
    store_pair(to + (2 + k) * 2 * slots, n, 2.0 * U_0, 2.0 * U_1, ok)
    store_pair(to + (2 + RANK + k) * 2 * slots, n, V_0, V_1, ok)


@jit
def chain_factors(system, h, chain, n, c, ok, slots, DIRECTIONS: tl.constexpr, RANK: tl.constexpr):
    """a, L and R of a chain y ← a y − L (Rᵀ y): x takes Ā, c and q its transpose, p takes a alone."""
    k = tl.arange(0, RANK)[:, None]
    at = system + h * (2 + 2 * RANK) * 2 * slots
    linked = chain <= DIRECTIONS + RANK
    transposed = linked & (chain >= 1)
    a_0, a_1 = load_pair(at, n, ok)
    a_1 = tl.where(transposed, (1.0 - 2.0 * c) * a_1, a_1)
    U_0, U_1 = load_pair(at + (2 + k) * 2 * slots, n, ok & linked)
    V_0, V_1 = load_pair(at + (2 + RANK + k) * 2 * slots, n, ok & linked)
    L_0, L_1 = tl.where(transposed, V_0, U_0), tl.where(transposed, V_1, U_1)
    R_0, R_1 = tl.where(transposed, U_0, V_0), tl.where(transposed, U_1, V_1)
    return a_0, a_1, L_0, L_1, R_0, R_1


@jit
def chain_kernel(
    system, C, K, E, out, chains, channels, per_copy, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One chain of one channel, and the rows of the tables that come from it."""
    h, n, R = tl.program_id(0).to(tl.int64), tl.arange(0, N)[None, :], 2 * slots
    ok, chain = n < slots, tl.program_id(1) + n * 0
    w_0, w_1, c = slot_weights(n, modes, n_complex)
    a_0, a_1, L_0, L_1, R_0, R_1 = chain_factors(system, h, chain, n, c, ok, slots, DIRECTIONS, RANK)
    own = system + h * (2 + 2 * RANK) * R
    B_0, B_1 = load_pair(own + R, n, ok)
    read = (chain >= 1) & (chain <= DIRECTIONS)
    place = (chain - 1) * channels + h
    C_0, C_1 = load_pair(C + place * R, n, ok & read)
    # q starts at V, p at 2U: rows of the system in the order 2 + RANK …, 2 …
    low = chain - 1 - DIRECTIONS
    S_0, S_1 = load_pair(own + (2 + (low + RANK) % (2 * RANK)) * R, n, ok & (low >= 0))
    y_0 = tl.where(chain == 0, B_0, tl.where(read, w_0 * C_0, S_0))
    y_1 = tl.where(chain == 0, B_1, tl.where(read, (1.0 - 2.0 * c) * w_1 * C_1, S_1))
    at = chains + (h * tl.num_programs(1) + chain) * M * R
    for j in range(M):
        row = tl.where(low >= RANK, M - 1 - j, j)
        store_pair(at + row * R, n, y_0, y_1, ok)
        store_pair(E + (h * M + M - 1 - j) * R, n, y_0, y_1, ok & (chain == 0))
        kernel = tl.sum(y_0 * B_0 + y_1 * B_1, 1)[:, None] + n * 0.0
        tl.store(K + place * M + j, kernel.to(tl.float32), mask=read & (n == 0))
        s = row_dots(R_0, R_1, y_0, y_1)
        y_0, y_1 = mul(a_0, a_1, y_0, y_1, c)
        y_0, y_1 = y_0 - sum_ranks(s, L_0), y_1 - sum_ranks(s, L_1)
        to = out + (place * R + 2 * n) * M + j
        tl.store(to, y_0.to(tl.float32), mask=ok & read)
        tl.store(to + M, y_1.to(tl.float32), mask=ok & read)


@jit
def decay_kernel(
    system, over, decay, channels, per_copy, modes, n_complex, slots,
    RANK: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """a^M − over, some rows of it."""
    h, R = tl.program_id(0).to(tl.int64), 2 * slots
    i, k = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, W)[None, :]
    c = (i // 2 < n_complex).to(tl.float64)
    a_0, a_1 = load_pair(system + h * (2 + 2 * RANK) * R, i // 2, i < R)
    _, _, o_0, o_1 = powers(a_0, a_1, i * 0, c, BITS)
    here = tl.where(k == i, tl.where(i % 2 == 0, o_0, c * o_0 + (1.0 - c) * o_1), 0.0)
    here += tl.where((k // 2 == i // 2) & (k != i), tl.where(i % 2 == 0, -c * o_1, c * o_1), 0.0)
    ok = (i < R) & (k < R)
    at = h * R * R + i * R + k
    tl.store(decay + at, (here - tl.load(over + at, mask=ok, other=0.0)).to(tl.float32), mask=ok)
