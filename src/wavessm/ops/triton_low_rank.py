"""From a DPLR layer's parameters to the tables of `triton_kernels`, and their gradients back, with one dense product.

In discrete time (`dplr`) the layer is Ā = a − U Vᵀ: a works slot by slot, the rest has rank 1 or 2. A vector passes
through it in O(R) operations, so tables are *chains*, each vector the one before it times Ā or its transpose:

    x_j = Ā^j B̄          E, the last first
    c_j = (Āᵀ)^j C        C, and K_j = c_j · B̄
    q_j = (Āᵀ)^j V        with p_j = a^j U the power Ā^M = a^M − Σ_j p_{M−1−j} q_jᵀ

One warp walks along one chain of one channel, float64 in registers. Backwards, with μ the gradient of y_{j+1} =
a y_j − L (Rᵀ y_j): a gets conj(y_j) μ, L −μ (Rᵀ y_j), R −y_j (Lᵀ μ), and y_j conj(a) μ − R (Lᵀ μ).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from wavessm.ops.dplr import LowRank
from wavessm.ops.tables import Tables
from wavessm.ops.triton_kernels import jit, missing
from wavessm.ops.triton_settings import power_of_two
from wavessm.ops.triton_tables import _back, _continuous, _double, _flags, _mul, _powers, _put_rates

if missing is None:
    import triton.language as tl  # type: ignore

ROWS = 16
"""Rows of Ā^M in a program."""


def low_rank_tables(layer: LowRank, rate: float, chunk: int) -> Tables:
    """What `tables.dense_tables` makes of the sampled layer, float32."""
    return Tables(*_LowRankTables.apply(*layer, rate, chunk))


class _LowRankTables(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        *parameters, rate, M = arguments
        layer = LowRank(*(parameter.contiguous() for parameter in parameters))
        log_dt, log_decay, frequency, B, C, P = layer
        (directions, channels, slots, _), rank = C.shape, P.shape[1]
        sizes, R = _sizes(layer), 2 * slots
        options = {"RANK": rank, "N": power_of_two(slots), "num_warps": 1}
        empty = partial(torch.empty, device=C.device)
        system = empty(channels, 2 + 2 * rank, R, dtype=torch.float64)  # a, B̄, 2U, V
        resolve_kernel[(channels,)](log_dt, log_decay, frequency, B, P, system, rate, *sizes, **options)
        K, E, out = empty(directions, channels, M), empty(channels, M, R), empty(directions, channels, R, M)
        count = 1 + directions + 2 * rank
        chains = empty(channels, count, M, R, dtype=torch.float64)  # x, c, q, p; p the last first
        chain_kernel[(channels, count)](
            system, C, K, E, out, chains, *sizes, DIRECTIONS=directions, M=M, **options
        )  # fmt: skip
        q, p = _low(chains, directions, rank)
        over = torch.bmm(p.transpose(1, 2), q)
        decay = empty(channels, R, R)
        decay_kernel[(channels, -(-R // ROWS))](
            system, over, decay, *sizes, RANK=rank, W=2 * options["N"], ROWS=ROWS, BITS=M.bit_length() - 1
        )
        ctx.save_for_backward(*layer, system, chains)
        ctx.rate, ctx.options = rate, options
        return K, E, out, decay

    @staticmethod
    def backward(ctx: Any, dK: Tensor, dE: Tensor, dout: Tensor, ddecay: Tensor) -> tuple[Tensor | None, ...]:
        *parameters, system, chains = ctx.saved_tensors
        layer, options = LowRank(*parameters), ctx.options
        log_dt, log_decay, frequency, B, C, P = layer
        (directions, channels, slots, _), rank = C.shape, P.shape[1]
        copies, count = log_decay.shape
        M, turning, sizes = dK.shape[-1], frequency.shape[1], _sizes(layer)
        q, p = _low(chains, directions, rank)
        ddecay = ddecay.contiguous()
        over = ddecay.double()
        dq, dp = torch.bmm(p, over), torch.bmm(q, over.transpose(1, 2))  # both come with a minus
        empty = partial(torch.empty, device=C.device)
        parts = empty(*chains.shape[:2], 3 + 2 * rank, 2 * slots, dtype=torch.float64)
        chain_gradient_kernel[chains.shape[:2]](
            system, chains, dK.contiguous(), dE.contiguous(), dout.transpose(-1, -2).contiguous(), dq, dp, ddecay,
            parts, *sizes, DIRECTIONS=directions, M=M, BITS=M.bit_length() - 1, **options,
        )  # fmt: skip
        rows = empty(channels, count + turning + 2 * slots * (1 + rank))
        ddt, dC = empty(channels), empty(C.shape)
        resolve_gradient_kernel[(channels,)](
            log_dt, log_decay, frequency, B, P, system, parts, ddt, rows, dC, ctx.rate, *sizes,
            DIRECTIONS=directions, **options,
        )  # fmt: skip
        widths = (count, turning, 2 * slots, 2 * slots * rank)
        ddecay, dfrequency, dB, dP = rows.view(copies, -1, rows.shape[1]).sum(1).split(widths, dim=1)
        gradients = (ddt, ddecay, dfrequency, dB.view_as(B), dC, dP.reshape(P.shape))
        return *(g.to(parameter.dtype) for g, parameter in zip(gradients, layer, strict=True)), None, None


def _low(chains: Tensor, directions: int, rank: int) -> tuple[Tensor, Tensor]:
    """q and p of all ranks, (channels, rank · M, R) each."""
    first = 1 + directions
    return chains[:, first : first + rank].flatten(1, 2), chains[:, first + rank :].flatten(1, 2)


def _sizes(layer: LowRank) -> tuple[int, int, int, int, int]:
    """channels, channels in a copy, modes, turning, slots"""
    _, channels, slots, _ = layer.C.shape
    copies, count = layer.log_decay.shape
    return channels, channels // copies, count, layer.frequency.shape[1], slots


@jit
def _pair(pointer: tl.tensor, n: tl.tensor, ok: tl.tensor) -> tl.tensor:
    """Both halves of slots n."""
    return _double(pointer + 2 * n, ok), _double(pointer + 2 * n + 1, ok)


@jit
def _put(pointer: tl.tensor, n: tl.tensor, value_0: tl.tensor, value_1: tl.tensor, ok: tl.tensor) -> None:
    tl.store(pointer + 2 * n, value_0.to(pointer.dtype.element_ty), mask=ok)
    tl.store(pointer + 2 * n + 1, value_1.to(pointer.dtype.element_ty), mask=ok)


@jit
def _dots(a_0: tl.tensor, a_1: tl.tensor, b_0: tl.tensor, b_1: tl.tensor) -> tl.tensor:
    """Products of rows, (RANK, 1)"""
    return tl.sum(a_0 * b_0 + a_1 * b_1, 1)[:, None]


@jit
def _over_ranks(factors: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """Σ of the ranks, (1, N)"""
    return tl.sum(factors * rows, 0)[None, :]


@jit
def _resolvent(
    log_dt: tl.tensor, log_decay: tl.tensor, frequency: tl.tensor, rate: tl.tensor, h: tl.tensor, copy: tl.tensor,
    n: tl.tensor, ok: tl.tensor, modes: tl.tensor, turning: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Δ, λ and e = (1 − Δλ/2)⁻¹ of slots n."""
    c = (n < turning).to(tl.float64)
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64)) * rate
    lam_0, lam_1 = _continuous(log_decay, frequency, copy, n, ok, modes, turning)
    z_0, z_1 = 1.0 - 0.5 * dt * lam_0, (1.0 - c) - 0.5 * dt * lam_1
    e_0 = z_0 / (z_0 * z_0 + c * z_1 * z_1)
    e_1 = (1.0 - 2.0 * c) * z_1 / (z_1 * z_1 + c * z_0 * z_0)
    return dt, lam_0, lam_1, e_0, e_1


@jit
def _inverse(S: tl.tensor, RANK: tl.constexpr) -> tl.tensor:
    """Of (RANK, RANK)."""
    if RANK == 1:
        inverse = 1.0 / S
    else:
        i, k = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
        whole = tl.sum(tl.sum(tl.where(i == k, S, 0.0), 1), 0)
        adjoint = tl.where(i == k, whole, 0.0) - S
        inverse = adjoint / (0.5 * tl.sum(tl.sum(S * tl.trans(adjoint), 1), 0))
    return inverse


@jit
def _small(
    P_0: tl.tensor, P_1: tl.tensor, Y_0: tl.tensor, Y_1: tl.tensor, w_0: tl.tensor, w_1: tl.tensor, dt: tl.tensor,
    RANK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(2/Δ + Qᵀ e P)⁻¹ for Q = w P, Y = e P"""
    i, k = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :]
    S = tl.sum((w_0 * P_0)[:, None, :] * Y_0[None, :, :] + (w_1 * P_1)[:, None, :] * Y_1[None, :, :], 2)
    return _inverse(S + tl.where(i == k, 2.0 / dt, 0.0), RANK)


@jit
def resolve_kernel(
    log_dt: tl.tensor, log_decay: tl.tensor, frequency: tl.tensor, B: tl.tensor, P: tl.tensor, system: tl.tensor,
    rate: tl.tensor, channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, turning: tl.tensor, slots: tl.tensor,
    RANK: tl.constexpr, N: tl.constexpr,
) -> None:  # fmt: skip
    """a = 2e − 1, B̄ = Δ G B, 2U and V of one channel, for G = e − U Vᵀ."""
    h = tl.program_id(0).to(tl.int64)
    copy = h // per_copy
    k, n = tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :]
    ok = n < slots
    w_0, w_1, c = _flags(n, modes, turning)
    dt, _, _, e_0, e_1 = _resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, turning)
    P_0, P_1 = _pair(P + (copy * RANK + k) * 2 * slots, n, ok)
    Y_0, Y_1 = _mul(e_0, e_1, P_0, P_1, c)
    inverse = _small(P_0, P_1, Y_0, Y_1, w_0, w_1, dt, RANK)
    U_0, U_1 = tl.sum(Y_0[:, None, :] * inverse[:, :, None], 0), tl.sum(Y_1[:, None, :] * inverse[:, :, None], 0)
    V_0, V_1 = _back(e_0, e_1, w_0 * P_0, w_1 * P_1, c)
    B_0, B_1 = _pair(B + copy * 2 * slots, n, ok)
    s = _dots(V_0, V_1, B_0, B_1)
    G_0, G_1 = _mul(e_0, e_1, B_0, B_1, c)
    to = system + h * (2 + 2 * RANK) * 2 * slots
    _put(to, n, 2.0 * e_0 - 1.0, 2.0 * e_1 - (1.0 - c), ok)
    _put(to + 2 * slots, n, dt * (G_0 - _over_ranks(s, U_0)), dt * (G_1 - _over_ranks(s, U_1)), ok)
    _put(to + (2 + k) * 2 * slots, n, 2.0 * U_0, 2.0 * U_1, ok)
    _put(to + (2 + RANK + k) * 2 * slots, n, V_0, V_1, ok)


@jit
def _links(
    system: tl.tensor, h: tl.tensor, chain: tl.tensor, n: tl.tensor, c: tl.tensor, ok: tl.tensor, slots: tl.tensor,
    DIRECTIONS: tl.constexpr, RANK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """a, L and R of a chain: x goes through Ā, c and q through its transpose, p through a alone."""
    k = tl.arange(0, RANK)[:, None]
    at = system + h * (2 + 2 * RANK) * 2 * slots
    linked = chain <= DIRECTIONS + RANK
    turned = linked & (chain >= 1)
    a_0, a_1 = _pair(at, n, ok)
    a_1 = tl.where(turned, (1.0 - 2.0 * c) * a_1, a_1)
    U_0, U_1 = _pair(at + (2 + k) * 2 * slots, n, ok & linked)
    V_0, V_1 = _pair(at + (2 + RANK + k) * 2 * slots, n, ok & linked)
    L_0, L_1 = tl.where(turned, V_0, U_0), tl.where(turned, V_1, U_1)
    R_0, R_1 = tl.where(turned, U_0, V_0), tl.where(turned, U_1, V_1)
    return a_0, a_1, L_0, L_1, R_0, R_1


@jit
def chain_kernel(
    system: tl.tensor, C: tl.tensor, K: tl.tensor, E: tl.tensor, out: tl.tensor, chains: tl.tensor,
    channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, turning: tl.tensor, slots: tl.tensor,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
) -> None:  # fmt: skip
    """One chain of one channel, and what the tables take from it."""
    h, n, R = tl.program_id(0).to(tl.int64), tl.arange(0, N)[None, :], 2 * slots
    ok, chain = n < slots, tl.program_id(1) + n * 0
    w_0, w_1, c = _flags(n, modes, turning)
    a_0, a_1, L_0, L_1, R_0, R_1 = _links(system, h, chain, n, c, ok, slots, DIRECTIONS, RANK)
    own = system + h * (2 + 2 * RANK) * R
    B_0, B_1 = _pair(own + R, n, ok)
    read = (chain >= 1) & (chain <= DIRECTIONS)
    place = (chain - 1) * channels + h
    C_0, C_1 = _pair(C + place * R, n, ok & read)
    # q starts at V, p at 2U: rows of the system in the order 2 + RANK …, 2 …
    low = chain - 1 - DIRECTIONS
    S_0, S_1 = _pair(own + (2 + (low + RANK) % (2 * RANK)) * R, n, ok & (low >= 0))
    y_0 = tl.where(chain == 0, B_0, tl.where(read, w_0 * C_0, S_0))
    y_1 = tl.where(chain == 0, B_1, tl.where(read, (1.0 - 2.0 * c) * w_1 * C_1, S_1))
    at = chains + (h * tl.num_programs(1) + chain) * M * R
    for j in range(M):
        row = tl.where(low >= RANK, M - 1 - j, j)
        _put(at + row * R, n, y_0, y_1, ok)
        _put(E + (h * M + M - 1 - j) * R, n, y_0, y_1, ok & (chain == 0))
        kernel = tl.sum(y_0 * B_0 + y_1 * B_1, 1)[:, None] + n * 0.0
        tl.store(K + place * M + j, kernel.to(tl.float32), mask=read & (n == 0))
        s = _dots(R_0, R_1, y_0, y_1)
        y_0, y_1 = _mul(a_0, a_1, y_0, y_1, c)
        y_0, y_1 = y_0 - _over_ranks(s, L_0), y_1 - _over_ranks(s, L_1)
        to = out + (place * R + 2 * n) * M + j
        tl.store(to, y_0.to(tl.float32), mask=ok & read)
        tl.store(to + M, y_1.to(tl.float32), mask=ok & read)


@jit
def decay_kernel(
    system: tl.tensor, over: tl.tensor, decay: tl.tensor,
    channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, turning: tl.tensor, slots: tl.tensor,
    RANK: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """a^M − over, some rows of it."""
    h, R = tl.program_id(0).to(tl.int64), 2 * slots
    i, k = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, W)[None, :]
    c = (i // 2 < turning).to(tl.float64)
    a_0, a_1 = _pair(system + h * (2 + 2 * RANK) * R, i // 2, i < R)
    _, _, o_0, o_1 = _powers(a_0, a_1, i * 0, c, BITS)
    here = tl.where(k == i, tl.where(i % 2 == 0, o_0, c * o_0 + (1.0 - c) * o_1), 0.0)
    here += tl.where((k // 2 == i // 2) & (k != i), tl.where(i % 2 == 0, -c * o_1, c * o_1), 0.0)
    ok = (i < R) & (k < R)
    at = h * R * R + i * R + k
    tl.store(decay + at, (here - tl.load(over + at, mask=ok, other=0.0)).to(tl.float32), mask=ok)


@jit
def chain_gradient_kernel(
    system: tl.tensor, chains: tl.tensor, dK: tl.tensor, dE: tl.tensor, dout: tl.tensor, dq: tl.tensor, dp: tl.tensor,
    ddecay: tl.tensor, parts: tl.tensor,
    channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, turning: tl.tensor, slots: tl.tensor,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, BITS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
) -> None:  # fmt: skip
    """What a, the start, B̄, L and R get from one chain of one channel; μ runs back along it."""
    h, k, n, R = tl.program_id(0).to(tl.int64), tl.arange(0, RANK)[:, None], tl.arange(0, N)[None, :], 2 * slots
    ok, chain, c = n < slots, tl.program_id(1) + n * 0, (n < turning).to(tl.float64)
    a_0, a_1, L_0, L_1, R_0, R_1 = _links(system, h, chain, n, c, ok, slots, DIRECTIONS, RANK)
    B_0, B_1 = _pair(system + (h * (2 + 2 * RANK) + 1) * R, n, ok)
    first, read, low = chain == 0, (chain >= 1) & (chain <= DIRECTIONS), chain - 1 - DIRECTIONS
    place = (chain - 1) * channels + h
    alone = low >= RANK
    rank = tl.where(alone, low - RANK, low)
    at = chains + (h * tl.num_programs(1) + chain) * M * R
    m_0, m_1 = _pair(dout + (place * M + M - 1) * R, n, ok & read)
    da_0, da_1, dB_0, dB_1 = m_0 * 0.0, m_0 * 0.0, m_0 * 0.0, m_0 * 0.0
    dL_0, dL_1, dR_0, dR_1 = L_0 * 0.0, L_0 * 0.0, L_0 * 0.0, L_0 * 0.0
    for step in range(M):
        j = M - 1 - step
        row = tl.where(alone, step, j)
        y_0, y_1 = _pair(at + row * R, n, ok)
        s, t = _dots(R_0, R_1, y_0, y_1), _dots(L_0, L_1, m_0, m_1)
        add_0, add_1 = _back(y_0, y_1, m_0, m_1, c)
        da_0, da_1 = da_0 + add_0, da_1 + add_1
        dL_0, dL_1 = dL_0 - s * m_0, dL_1 - s * m_1
        dR_0, dR_1 = dR_0 - t * y_0, dR_1 - t * y_1
        m_0, m_1 = _back(a_0, a_1, m_0, m_1, c)
        m_0, m_1 = m_0 - _over_ranks(t, R_0), m_1 - _over_ranks(t, R_1)
        of_x_0, of_x_1 = _pair(dE + (h * M + step) * R, n, ok & first)
        of_c_0, of_c_1 = _pair(dout + (place * M + j - 1) * R, n, ok & read & (j + n * 0 > 0))
        low_row = ((h * RANK + rank) * M + row) * R
        of_q_0, of_q_1 = _pair(dq + low_row, n, ok & (low >= 0) & (low < RANK))
        of_p_0, of_p_1 = _pair(dp + low_row, n, ok & alone)
        kernel = tl.load(dK + place * M + j, mask=read, other=0.0).to(tl.float64)
        m_0 += of_x_0 + of_c_0 - of_q_0 - of_p_0 + kernel * B_0
        m_1 += of_x_1 + of_c_1 - of_q_1 - of_p_1 + kernel * B_1
        dB_0, dB_1 = dB_0 + kernel * y_0, dB_1 + kernel * y_1
    # a^M has derivative M a^{M−1}; the first p takes it along
    p_0, p_1, _, _ = _powers(a_0, a_1, n * 0 + M - 1, c, BITS)
    block, here = ddecay + h * R * R + 2 * n * R + 2 * n, ok & (low == RANK)
    g_00, g_01 = _double(block, here), _double(block + 1, here)
    g_10, g_11 = _double(block + R, here), _double(block + R + 1, here)
    add_0, add_1 = _back(p_0, p_1, g_00 + c * g_11, c * (g_10 - g_01) + (1.0 - c) * g_11, c)
    da_0, da_1 = da_0 + M * add_0, da_1 + M * add_1
    da_1 = tl.where((chain >= 1) & (low < RANK), (1.0 - 2.0 * c) * da_1, da_1)  # that of a, not of its conjugate
    to = parts + (h * tl.num_programs(1) + chain) * (3 + 2 * RANK) * R
    _put(to, n, da_0, da_1, ok)
    _put(to + R, n, m_0, m_1, ok)
    _put(to + 2 * R, n, dB_0, dB_1, ok)
    _put(to + (3 + k) * R, n, dL_0, dL_1, ok)
    _put(to + (3 + RANK + k) * R, n, dR_0, dR_1, ok)


@jit
def resolve_gradient_kernel(
    log_dt: tl.tensor, log_decay: tl.tensor, frequency: tl.tensor, B: tl.tensor, P: tl.tensor, system: tl.tensor,
    parts: tl.tensor, ddt: tl.tensor, rows: tl.tensor, dC: tl.tensor,
    rate: tl.tensor, channels: tl.tensor, per_copy: tl.tensor, modes: tl.tensor, turning: tl.tensor, slots: tl.tensor,
    DIRECTIONS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
) -> None:  # fmt: skip
    """From what the chains gave to what the parameters of one channel get."""
    h = tl.program_id(0).to(tl.int64)
    copy, R = h // per_copy, 2 * slots
    i, k, n = tl.arange(0, RANK)[:, None], tl.arange(0, RANK)[None, :], tl.arange(0, N)[None, :]
    ok = n < slots
    w_0, w_1, c = _flags(n, modes, turning)
    height = 3 + 2 * RANK
    CHAINS: tl.constexpr = 1 + DIRECTIONS + 2 * RANK
    at = parts + h * CHAINS * height * R
    de_0, de_1 = tl.zeros((1, N), tl.float64), tl.zeros((1, N), tl.float64)
    dU_0, dU_1 = tl.zeros((RANK, N), tl.float64), tl.zeros((RANK, N), tl.float64)
    dV_0, dV_1 = tl.zeros((RANK, N), tl.float64), tl.zeros((RANK, N), tl.float64)
    g_0, g_1 = _pair(at + R, n, ok)  # of B̄: the start of x
    for chain in tl.static_range(CHAINS):
        here = at + chain * height * R
        da_0, da_1 = _pair(here, n, ok)
        de_0, de_1 = de_0 + da_0, de_1 + da_1
        dL_0, dL_1 = _pair(here + (3 + i) * R, n, ok)
        dR_0, dR_1 = _pair(here + (3 + RANK + i) * R, n, ok)
        if chain == 0:
            dU_0, dU_1, dV_0, dV_1 = dU_0 + dL_0, dU_1 + dL_1, dV_0 + dR_0, dV_1 + dR_1
        elif chain <= DIRECTIONS + RANK:
            dU_0, dU_1, dV_0, dV_1 = dU_0 + dR_0, dU_1 + dR_1, dV_0 + dL_0, dV_1 + dL_1
        if (chain >= 1) & (chain <= DIRECTIONS):
            dB_0, dB_1 = _pair(here + 2 * R, n, ok)
            g_0, g_1 = g_0 + dB_0, g_1 + dB_1
            start_0, start_1 = _pair(here + R, n, ok)
            _put(dC + ((chain - 1) * channels + h) * R, n, w_0 * start_0, (1.0 - 2.0 * c) * w_1 * start_1, ok)
    ends = at + (1 + DIRECTIONS + i) * height * R + R  # the starts of q and of p
    q_0, q_1 = _pair(ends, n, ok)
    p_0, p_1 = _pair(ends + RANK * height * R, n, ok)
    dV_0, dV_1 = dV_0 + q_0, dV_1 + q_1
    dU_0, dU_1 = 2.0 * (dU_0 + p_0), 2.0 * (dU_1 + p_1)  # the system holds 2U and a = 2e − 1
    de_0, de_1 = 2.0 * de_0, 2.0 * de_1

    # B̄ = Δ (e B − U (Vᵀ B))
    dt, lam_0, lam_1, e_0, e_1 = _resolvent(log_dt, log_decay, frequency, rate, h, copy, n, ok, modes, turning)
    own = system + h * (2 + 2 * RANK) * R
    held_0, held_1 = _pair(own + R, n, ok)
    U_0, U_1 = _pair(own + (2 + i) * R, n, ok)
    U_0, U_1 = 0.5 * U_0, 0.5 * U_1
    V_0, V_1 = _pair(own + (2 + RANK + i) * R, n, ok)
    B_0, B_1 = _pair(B + copy * R, n, ok)
    step = tl.sum(tl.sum(g_0 * held_0 + g_1 * held_1, 1), 0) / dt
    g_0, g_1 = dt * g_0, dt * g_1
    add_0, add_1 = _back(B_0, B_1, g_0, g_1, c)
    de_0, de_1 = de_0 + add_0, de_1 + add_1
    s, t = _dots(V_0, V_1, B_0, B_1), _dots(U_0, U_1, g_0, g_1)
    dB_0, dB_1 = _back(e_0, e_1, g_0, g_1, c)
    dB_0, dB_1 = dB_0 - _over_ranks(t, V_0), dB_1 - _over_ranks(t, V_1)
    dU_0, dU_1 = dU_0 - s * g_0, dU_1 - s * g_1
    dV_0, dV_1 = dV_0 - t * B_0, dV_1 - t * B_1

    # U = Y S⁻¹ with Y = e P and S = 2/Δ + Qᵀ Y; V = conj(e) Q; Q = w P
    P_0, P_1 = _pair(P + (copy * RANK + i) * R, n, ok)
    Y_0, Y_1 = _mul(e_0, e_1, P_0, P_1, c)
    inverse = _small(P_0, P_1, Y_0, Y_1, w_0, w_1, dt, RANK)
    turned = tl.trans(inverse)
    dY_0 = tl.sum(dU_0[:, None, :] * turned[:, :, None], 0)  # dU S⁻ᵀ
    dY_1 = tl.sum(dU_1[:, None, :] * turned[:, :, None], 0)
    dS = -tl.sum(U_0[:, None, :] * dY_0[None, :, :] + U_1[:, None, :] * dY_1[None, :, :], 2)
    step -= 2.0 / (dt * dt) * tl.sum(tl.sum(tl.where(i == k, dS, 0.0), 1), 0)
    dQ_0, dQ_1 = _mul(e_0, e_1, dV_0, dV_1, c)
    dQ_0 += tl.sum(dS[:, :, None] * Y_0[None, :, :], 1)
    dQ_1 += tl.sum(dS[:, :, None] * Y_1[None, :, :], 1)
    dY_0 += tl.sum(dS[:, :, None] * (w_0 * P_0)[:, None, :], 0)
    dY_1 += tl.sum(dS[:, :, None] * (w_1 * P_1)[:, None, :], 0)
    dP_0, dP_1 = _back(e_0, e_1, dY_0, dY_1, c)
    dP_0, dP_1 = dP_0 + w_0 * dQ_0, dP_1 + w_1 * dQ_1
    add_0, add_1 = _back(P_0, P_1, dY_0, dY_1, c)
    from_V_0, from_V_1 = _back(w_0 * P_0, w_1 * P_1, dV_0, dV_1, c)
    de_0 += tl.sum(add_0 + from_V_0, 0)[None, :]
    de_1 += tl.sum(add_1 + (1.0 - 2.0 * c) * from_V_1, 0)[None, :]

    # e = 1/z with z = 1 − Δλ/2
    square_0, square_1 = _mul(e_0, e_1, e_0, e_1, c)
    dz_0, dz_1 = _back(square_0, square_1, -de_0, -de_1, c)
    step -= 0.5 * tl.sum(tl.sum(tl.where(ok, lam_0 * dz_0 + lam_1 * dz_1, 0.0), 1), 0)
    tl.store(ddt + h, (step * dt).to(tl.float32))
    to = rows + h * (modes + turning + 2 * slots * (1 + RANK))
    _put_rates(to, n, lam_0, lam_1, -0.5 * dt * dz_0, -0.5 * dt * dz_1, ok, modes, turning)
    to += modes + turning
    _put(to, n, dB_0, dB_1, ok)
    _put(to + (1 + i) * R, n, dP_0, dP_1, ok)
