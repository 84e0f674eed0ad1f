"""From a DPLR layer's parameters to the tables of `walk`, and their gradients back, in O(R) operations a column.

In discrete time (`modes.resolvent`) the layer is Ā = a − U Vᵀ: a works slot by slot, the rest has rank 1 or 2. A vector
passes through it in O(R) operations, so tables are *chains*, each vector the one before it times Ā or its transpose:

    x_j = Ā^j B̄          E, the last first
    c_j = (Āᵀ)^j C        C, and K_j = c_j · B̄
    q_j = (Āᵀ)^j V        with p_j = a^j U the power Ā^M = a^M − Σ_j p_{M−1−j} q_jᵀ

One warp computes one chain of one channel, float64 in registers. With μ the gradient of y_{j+1} = a y_j − L (Rᵀ y_j):
a gets conj(y_j) μ, L −μ (Rᵀ y_j), R −y_j (Lᵀ μ), and y_j gets conj(a) μ − R (Lᵀ μ). The gradients of a, B̄, U and V then
pass back through the bilinear rule.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from wavessm.ops.modes import Modes
from wavessm.ops.triton.language import cdiv, continuous, jit, kernel, power_of_two, slot_weights, store_rates, tl
from wavessm.ops.triton.slots import add, choose, conj_mul, load_slots, mul, powers, scale, store_slots, sub, weigh
from wavessm.ops.triton.tables import KernelTables, sizes_of

ROWS = 16
"""Rows of Ā^M that a program computes."""


def fill_low_rank(layer: Modes, D: Tensor, rate: float, tables: KernelTables, made: list[Tensor]) -> None:
    """As `tables.fill_diagonal`, for the dense state of a DPLR layer."""
    log_dt, log_decay, frequency, B, C, P = layer
    assert P is not None
    (directions, channels, slots, _), rank, M = C.shape, P.shape[1], tables.K.shape[2]
    sizes, R, options = sizes_of(layer), 2 * slots, {"RANK": rank, "N": power_of_two(slots), "num_warps": 1}
    system, chains = made  # a, B̄, 2U, V; and x, c, q, p, of which p the last first
    K, E, out, decay = tables
    resolve_kernel[(channels,)](log_dt, log_decay, frequency, B, P, system, rate, *sizes, **options)
    chain_kernel[chains.shape[:2]](system, C, K, E, out, chains, *sizes, DIRECTIONS=directions, M=M, **options)
    q, p = (chain.flatten(1, 2) for chain in chains[:, -2 * rank :].chunk(2, 1))
    over = torch.bmm(p.transpose(1, 2), q)
    decay_kernel[(channels, cdiv(R, ROWS))](
        system, over, decay, *sizes, RANK=rank, W=2 * options["N"], ROWS=ROWS, BITS=M.bit_length() - 1
    )
    K[0, :, 0] += D


def low_rank_gradients(layer: Modes, made: list[Tensor], sums: Tensor, rate: float, M: int) -> tuple[Tensor, ...]:
    """As `tables.diagonal_gradients`, with those of P after B."""
    log_dt, log_decay, frequency, B, C, P = layer
    assert P is not None
    (directions, channels, slots, _), rank, (copies, count) = C.shape, P.shape[1], log_decay.shape
    (system, chains), R, n_complex, sizes = made, 2 * slots, frequency.shape[1], sizes_of(layer)
    options = {"RANK": rank, "N": power_of_two(slots), "DIRECTIONS": directions, "num_warps": 1}
    dT, dE, dout, ddecay = sums.sum(1).split((M * M, M * R, M * R, R * R), dim=-1)
    dK = dT.unflatten(-1, (M, M)).sum(2)  # the kernel stores the diagonals of dT as columns
    dE, ddecay = dE.sum(0), ddecay.sum(0)
    q, p = (chain.flatten(1, 2) for chain in chains[:, -2 * rank :].chunk(2, 1))
    over = ddecay.view(channels, R, R).double()
    dq, dp = torch.bmm(p, over), torch.bmm(q, over.transpose(1, 2))  # both come with a minus
    empty = partial(torch.empty, device=C.device)
    parts = empty(*chains.shape[:2], 3 + 2 * rank, R, dtype=torch.float64)
    chain_gradient_kernel[chains.shape[:2]](
        system, chains, dK, dE, dout.contiguous(), dq, dp, ddecay, parts, *sizes,
        M=M, BITS=M.bit_length() - 1, **options,
    )  # fmt: skip
    rows, ddt, dC = empty(channels, count + n_complex + R * (1 + rank)), empty(channels), empty(C.shape)
    resolve_gradient_kernel[(channels,)](
        log_dt, log_decay, frequency, B, P, system, parts, ddt, rows, dC, rate, *sizes, **options
    )
    return ddt, rows.view(copies, -1, rows.shape[1]).sum(1), dC, dK[0, :, 0].contiguous()


@jit
def row_dots(a, b):
    """Inner products of the rows of a and b, (RANK, 1)."""
    return tl.sum(a[0] * b[0] + a[1] * b[1], 1)[:, None]


@jit
def less_ranks(a, factors, rows):
    """a − Σ factors · rows over the ranks, (1, N)."""
    return a[0] - tl.sum(factors * rows[0], 0)[None, :], a[1] - tl.sum(factors * rows[1], 0)[None, :]


@jit
def mix_ranks(a, S):
    """a S of rows a (RANK, N) and S (RANK, RANK)."""
    return tl.sum(a[0][:, None, :] * S[:, :, None], 0), tl.sum(a[1][:, None, :] * S[:, :, None], 0)


@jit
def resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, n_complex):
    """Δ, λ and e = (1 − Δλ/2)⁻¹ of slots n."""
    c = (n < n_complex).to(tl.float64)
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64)) * rate
    lam = continuous(log_decay, frequency, copy, n, ok, modes, n_complex)
    z_0, z_1 = 1.0 - 0.5 * dt * lam[0], (1.0 - c) - 0.5 * dt * lam[1]
    e = z_0 / (z_0 * z_0 + c * z_1 * z_1), (1.0 - 2.0 * c) * z_1 / (z_1 * z_1 + c * z_0 * z_0)
    return dt, lam, e


@jit
def small_inverse(Q, Y, dt, RANK: tl.constexpr):
    """(2/Δ + Qᵀ Y)⁻¹, rank 1 or 2"""
    i, k = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
    S = tl.sum(Q[0][:, None, :] * Y[0][None, :, :] + Q[1][:, None, :] * Y[1][None, :, :], 2)
    S += tl.where(i == k, 2.0 / dt, 0.0)
    if RANK == 1:
        inverse = 1.0 / S
    else:
        whole = tl.sum(tl.sum(tl.where(i == k, S, 0.0), 1), 0)
        adjoint = tl.where(i == k, whole, 0.0) - S
        inverse = adjoint / (0.5 * tl.sum(tl.sum(S * tl.trans(adjoint), 1), 0))
    return inverse


@kernel
def resolve_kernel(
    log_dt, log_decay, frequency, B, P, system, rate, channels, per_copy, modes, n_complex, slots,
    RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """a = 2e − 1, B̄ = Δ G B, 2U and V of one channel, for G = e − U Vᵀ."""
    h = tl.program_id(0).to(tl.int64)
    copy, R = h // per_copy, 2 * slots
    k, n = tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :]
    ok = n < slots
    w, c = slot_weights(n, modes, n_complex)
    dt, _, e = resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, n_complex)
    P = load_slots(P + (copy * RANK + k) * R + 2 * n, ok)
    Q, Y = weigh(w, P), mul(e, P, c)
    U, V = mix_ranks(Y, small_inverse(Q, Y, dt, RANK)), conj_mul(e, Q, c)
    B = load_slots(B + copy * R + 2 * n, ok)
    held = less_ranks(mul(e, B, c), row_dots(V, B), U)
    to = system + h * (2 + 2 * RANK) * R
    store_slots(to + 2 * n, (2.0 * e[0] - 1.0, 2.0 * e[1] - (1.0 - c)), ok)
    store_slots(to + R + 2 * n, scale(dt, held), ok)
    store_slots(to + (2 + k) * R + 2 * n, scale(2.0, U), ok)
    store_slots(to + (2 + RANK + k) * R + 2 * n, V, ok)


@jit
def chain_factors(system, h, chain, n, c, ok, slots, DIRECTIONS: tl.constexpr, RANK: tl.constexpr):
    """a, L and R of a chain y ← a y − L (Rᵀ y): x takes Ā, c and q its transpose, p takes a alone."""
    k = tl.arange(0, RANK)[:, None]
    at = system + h * (2 + 2 * RANK) * 2 * slots
    linked = chain <= DIRECTIONS + RANK
    transposed = linked & (chain >= 1)
    a = load_slots(at + 2 * n, ok)
    U = load_slots(at + (2 + k) * 2 * slots + 2 * n, ok & linked)
    V = load_slots(at + (2 + RANK + k) * 2 * slots + 2 * n, ok & linked)
    a = a[0], tl.where(transposed, (1.0 - 2.0 * c) * a[1], a[1])
    return a, choose(transposed, V, U), choose(transposed, U, V)


@kernel
def chain_kernel(
    system, C, K, E, out, chains, channels, per_copy, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One chain of one channel, and the rows of the tables that come from it."""
    h, n, R = tl.program_id(0).to(tl.int64), tl.arange(0, N)[None, :], 2 * slots
    ok, chain = n < slots, tl.program_id(1) + n * 0
    w, c = slot_weights(n, modes, n_complex)
    a, left, right = chain_factors(system, h, chain, n, c, ok, slots, DIRECTIONS, RANK)
    own = system + h * (2 + 2 * RANK) * R
    B = load_slots(own + R + 2 * n, ok)
    read = (chain >= 1) & (chain <= DIRECTIONS)
    place = (chain - 1) * channels + h
    C = weigh(w, load_slots(C + place * R + 2 * n, ok & read))
    # q starts at V, p at 2U: rows of the system in the order 2 + RANK …, 2 …
    low = chain - 1 - DIRECTIONS
    S = load_slots(own + (2 + (low + RANK) % (2 * RANK)) * R + 2 * n, ok & (low >= 0))
    y = choose(chain == 0, B, choose(read, (C[0], (1.0 - 2.0 * c) * C[1]), S))
    at = chains + (h * tl.num_programs(1) + chain) * M * R
    for j in range(M):
        row = tl.where(low >= RANK, M - 1 - j, j)
        store_slots(at + row * R + 2 * n, y, ok)
        store_slots(E + (h * M + M - 1 - j) * R + 2 * n, y, ok & (chain == 0))
        kernel = row_dots(y, B) + n * 0.0
        tl.store(K + place * M + j, kernel.to(tl.float32), mask=read & (n == 0))
        y = less_ranks(mul(a, y, c), row_dots(right, y), left)
        store_slots(out + (place * R + 2 * n) * M + j, y, ok & read, M)


@kernel
def decay_kernel(
    system, over, decay, channels, per_copy, modes, n_complex, slots,
    RANK: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """a^M − over, some rows of it."""
    h, R = tl.program_id(0).to(tl.int64), 2 * slots
    i, k = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, W)[None, :]
    c = (i // 2 < n_complex).to(tl.float64)
    a = load_slots(system + h * (2 + 2 * RANK) * R + 2 * (i // 2), i < R)
    _, o = powers(a, i * 0, c, BITS)
    here = tl.where(k == i, tl.where(i % 2 == 0, o[0], c * o[0] + (1.0 - c) * o[1]), 0.0)
    here += tl.where((k // 2 == i // 2) & (k != i), tl.where(i % 2 == 0, -c * o[1], c * o[1]), 0.0)
    ok = (i < R) & (k < R)
    at = h * R * R + i * R + k
    tl.store(decay + at, (here - tl.load(over + at, mask=ok, other=0.0)).to(tl.float32), mask=ok)


@kernel
def chain_gradient_kernel(
    system, chains, dK, dE, dout, dq, dp, ddecay, parts, channels, per_copy, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Gradients of a, the start, B̄, L and R from one chain of one channel; μ runs back along it."""
    h, k, n, R = tl.program_id(0).to(tl.int64), tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :], 2 * slots
    ok, chain, c = n < slots, tl.program_id(1) + n * 0, (n < n_complex).to(tl.float64)
    a, left, right = chain_factors(system, h, chain, n, c, ok, slots, DIRECTIONS, RANK)
    B = load_slots(system + (h * (2 + 2 * RANK) + 1) * R + 2 * n, ok)
    first, read, low = chain == 0, (chain >= 1) & (chain <= DIRECTIONS), chain - 1 - DIRECTIONS
    place = (chain - 1) * channels + h
    alone = low >= RANK
    rank = tl.where(alone, low - RANK, low)
    at = chains + (h * tl.num_programs(1) + chain) * M * R
    m = load_slots(dout + (place * M + M - 1) * R + 2 * n, ok & read)
    da = m[0] * 0.0, m[0] * 0.0
    dB = da
    dleft = left[0] * 0.0, left[0] * 0.0
    dright = dleft
    for step in range(M):
        j = M - 1 - step
        row = tl.where(alone, step, j)
        y = load_slots(at + row * R + 2 * n, ok)
        s, t = row_dots(right, y), row_dots(left, m)
        da = add(da, conj_mul(y, m, c))
        dleft, dright = sub(dleft, scale(s, m)), sub(dright, scale(t, y))
        m = less_ranks(conj_mul(a, m, c), t, right)
        of_x = load_slots(dE + (h * M + step) * R + 2 * n, ok & first)
        of_c = load_slots(dout + (place * M + j - 1) * R + 2 * n, ok & read & (j + n * 0 > 0))
        low_row = ((h * RANK + rank) * M + row) * R
        of_q = load_slots(dq + low_row + 2 * n, ok & (low >= 0) & (low < RANK))
        of_p = load_slots(dp + low_row + 2 * n, ok & alone)
        kernel = tl.load(dK + place * M + j, mask=read, other=0.0).to(tl.float64)
        m = add(m, add(sub(sub(add(of_x, of_c), of_q), of_p), scale(kernel, B)))
        dB = add(dB, scale(kernel, y))
    # a^M has derivative M a^{M−1}; the first p takes it along
    p, _ = powers(a, n * 0 + M - 1, c, BITS)
    block, here = ddecay + h * R * R + 2 * n * R + 2 * n, ok & (low == RANK)
    g_00, g_01 = load_slots(block, here)
    g_10, g_11 = load_slots(block + R, here)
    da = add(da, scale(M, conj_mul(p, (g_00 + c * g_11, c * (g_10 - g_01) + (1.0 - c) * g_11), c)))
    # that of a, not of its conjugate
    da = da[0], tl.where((chain >= 1) & (low < RANK), (1.0 - 2.0 * c) * da[1], da[1])
    to = parts + (h * tl.num_programs(1) + chain) * (3 + 2 * RANK) * R
    store_slots(to + 2 * n, da, ok)
    store_slots(to + R + 2 * n, m, ok)
    store_slots(to + 2 * R + 2 * n, dB, ok)
    store_slots(to + (3 + k) * R + 2 * n, dleft, ok)
    store_slots(to + (3 + RANK + k) * R + 2 * n, dright, ok)


@jit
def _collect(
    parts, dC, h, channels, n, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Sums over all chains of the gradients of e, U, V and B̄; those of C are stored."""
    i, ok, R = tl.arange(0, RANK)[:, None], n < slots, 2 * slots
    w, c = slot_weights(n, modes, n_complex)
    height = 3 + 2 * RANK
    CHAINS: tl.constexpr = 1 + DIRECTIONS + 2 * RANK
    at = parts + h * CHAINS * height * R
    de = tl.zeros((1, N), tl.float64), tl.zeros((1, N), tl.float64)
    dU = tl.zeros((RANK, N), tl.float64), tl.zeros((RANK, N), tl.float64)
    dV = dU
    g = load_slots(at + R + 2 * n, ok)  # of B̄: the start of x
    for chain in tl.static_range(CHAINS):
        here = at + chain * height * R
        de = add(de, load_slots(here + 2 * n, ok))
        dleft = load_slots(here + (3 + i) * R + 2 * n, ok)
        dright = load_slots(here + (3 + RANK + i) * R + 2 * n, ok)
        if chain == 0:
            dU, dV = add(dU, dleft), add(dV, dright)
        elif chain <= DIRECTIONS + RANK:
            dU, dV = add(dU, dright), add(dV, dleft)
        if (chain >= 1) & (chain <= DIRECTIONS):
            g = add(g, load_slots(here + 2 * R + 2 * n, ok))
            start = weigh(w, load_slots(here + R + 2 * n, ok))
            store_slots(dC + ((chain - 1) * channels + h) * R + 2 * n, (start[0], (1.0 - 2.0 * c) * start[1]), ok)
    ends = at + (1 + DIRECTIONS + i) * height * R + R  # the starts of q and of p
    dV = add(dV, load_slots(ends + 2 * n, ok))
    dU = add(dU, load_slots(ends + RANK * height * R + 2 * n, ok))
    return scale(2.0, de), scale(2.0, dU), dV, g  # the system holds 2U and a = 2e − 1


@kernel
def resolve_gradient_kernel(
    log_dt, log_decay, frequency, B, P, system, parts, ddt, rows, dC, rate, channels, per_copy, modes, n_complex, slots,
    DIRECTIONS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """From the gradients of the chains to those of the parameters of one channel."""
    h = tl.program_id(0).to(tl.int64)
    copy, R = h // per_copy, 2 * slots
    i, n = tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :]
    ok = n < slots
    w, c = slot_weights(n, modes, n_complex)
    de, dU, dV, g = _collect(parts, dC, h, channels, n, modes, n_complex, slots, DIRECTIONS, RANK, N)
    dt, lam, e = resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, n_complex)
    own = system + h * (2 + 2 * RANK) * R
    held = load_slots(own + R + 2 * n, ok)
    U = scale(0.5, load_slots(own + (2 + i) * R + 2 * n, ok))
    V = load_slots(own + (2 + RANK + i) * R + 2 * n, ok)
    B = load_slots(B + copy * R + 2 * n, ok)
    P = load_slots(P + (copy * RANK + i) * R + 2 * n, ok)

    # from g, the gradient of B̄ = Δ (e B − U (Vᵀ B)), to those of Δ and B
    step = tl.sum(tl.sum(g[0] * held[0] + g[1] * held[1], 1), 0) / dt
    g = scale(dt, g)
    s, t = row_dots(V, B), row_dots(U, g)
    de = add(de, conj_mul(B, g, c))
    dB = less_ranks(conj_mul(e, g, c), t, V)
    dU, dV = sub(dU, scale(s, g)), sub(dV, scale(t, B))

    # from those of U = Y S⁻¹ and V = conj(e) Q, for Y = e P, S = 2/Δ + Qᵀ Y and Q = w P, to those of Δ and P
    Q, Y, diagonal = weigh(w, P), mul(e, P, c), i == tl.arange(0, RANK)[None, :]
    dY = mix_ranks(dU, tl.trans(small_inverse(Q, Y, dt, RANK)))  # dU S⁻ᵀ
    dS = -tl.sum(U[0][:, None, :] * dY[0][None, :, :] + U[1][:, None, :] * dY[1][None, :, :], 2)
    more = -2.0 / (dt * dt) * tl.sum(tl.sum(tl.where(diagonal, dS, 0.0), 1), 0)
    dQ = add(mul(e, dV, c), mix_ranks(Y, tl.trans(dS)))
    dY = add(dY, mix_ranks(Q, dS))
    dP = add(conj_mul(e, dY, c), weigh(w, dQ))
    of_Y, of_V = conj_mul(P, dY, c), conj_mul(Q, dV, c)
    more_e = of_Y[0] + of_V[0], of_Y[1] + (1.0 - 2.0 * c) * of_V[1]
    de = de[0] + tl.sum(more_e[0], 0)[None, :], de[1] + tl.sum(more_e[1], 0)[None, :]

    # e = 1/z with z = 1 − Δλ/2
    dz = conj_mul(mul(e, e, c), (-de[0], -de[1]), c)
    step += more - 0.5 * tl.sum(tl.sum(tl.where(ok, lam[0] * dz[0] + lam[1] * dz[1], 0.0), 1), 0)
    tl.store(ddt + h, (step * dt).to(tl.float32))
    to = rows + h * (modes + n_complex + R * (1 + RANK))
    store_rates(to, n, lam, scale(-0.5 * dt, dz), ok, modes, n_complex)
    to += modes + n_complex
    store_slots(to + 2 * n, dB, ok)
    store_slots(to + (1 + i) * R + 2 * n, dP, ok)
