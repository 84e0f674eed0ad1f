"""Gradients of a scan's tables, as sums of products of the signals and states that `walk` stores."""

from __future__ import annotations

from wavessm.ops.triton.language import dot, jit, tl


@jit
def sum_kernel(
    u, g, states, adjoints, other, others, sums, u_batch, u_channel, g_batch, g_channel, blocks, channels, modes, rows,
    segments, steps, length,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Partial sums of the tables' gradients: P of their M rows for one channel, over `blocks` blocks of Q chunks from
    all rows. With u, s the input and states of the walk that runs forward in time, and g, a those of the adjoint,

        dT = Σ uᵀ g      dE = Σ uᵀ a      dCᵀ = Σ gᵀ s      dd = Σ s a

    The direction that reads backwards, if there is one, has the states `other` of its adjoint, which runs forward in
    time, and its own, `others`; u and g change places, so one product gives dT of both.
    """
    length *= EVEN
    part = tl.program_id(0) % (M // P)
    h, first = (tl.program_id(0) // (M // P)).to(tl.int64), part * P
    i, p, n = tl.arange(0, M), first + tl.arange(0, P), tl.arange(0, N)
    n_ok = (n < modes)[None, :]
    planes = 1 if DENSE else 2
    dT = tl.zeros((P, M), tl.float32)
    none = tl.zeros((P, N), tl.float32)
    dE_0, dE_1, dC_0, dC_1 = none, none, none, none
    some: tl.constexpr = N * P // M if N * P // M > 16 else 16
    m = part * some + tl.arange(0, some)
    dd_0, dd_1, dd_2 = _no_decay(some, N, DENSE)
    if other is not None:
        eE_0, eE_1, eC_0, eC_1 = none, none, none, none
        ed_0, ed_1, ed_2 = _no_decay(some, N, DENSE)
    for block in range(blocks):
        chunk = (tl.program_id(1) * blocks + block) * Q + tl.arange(0, Q)
        row = chunk // steps
        signal = (row // segments).to(tl.int64)
        start = (row % segments) * (steps * M) + (chunk % steps) * M
        here = ((row < rows) & (start < length))[:, None]
        at_u = u + (signal * u_batch * EVEN + h * u_channel * EVEN + start)[:, None]
        at_g = g + (signal * g_batch * EVEN + h * g_channel * EVEN + start)[:, None]
        g_all = tl.load(at_g + i[None, :], mask=here & (start[:, None] + i[None, :] < length), other=0.0)
        part_ok = here & (start[:, None] + p[None, :] < length)
        u_t = tl.trans(tl.load(at_u + p[None, :], mask=part_ok, other=0.0))
        g_t = tl.trans(g_all if P == M else tl.load(at_g + p[None, :], mask=part_ok, other=0.0))
        dT = dot(u_t, g_all, dT, PRECISION)
        at = ((h * rows * steps + chunk) * planes * modes)[:, None]
        dE_0, dE_1, dC_0, dC_1, dd_0, dd_1, dd_2 = _add(
            states + at, adjoints + at, u_t, g_t, here, m, modes,
            dE_0, dE_1, dC_0, dC_1, dd_0, dd_1, dd_2, N, PRECISION, DENSE,
        )  # fmt: skip
        if other is not None:
            eE_0, eE_1, eC_0, eC_1, ed_0, ed_1, ed_2 = _add(
                other + at, others + at, g_t, u_t, here, m, modes,
                eE_0, eE_1, eC_0, eC_1, ed_0, ed_1, ed_2, N, PRECISION, DENSE,
            )  # fmt: skip

    width = M * M + 2 * planes * M * modes + (modes * modes if DENSE else 3 * modes)
    to = sums + (tl.program_id(1) * channels + h) * width
    # Column d of row p is dT[p, p + d]; the places left over take zeros.
    ahead = i[None, :] - p[:, None]
    tl.store(to + p[:, None] * M + (ahead + M) % M, tl.where(ahead >= 0, dT, 0.0))
    _store(to + M * M, p, n_ok, m, modes, dE_0, dE_1, dC_0, dC_1, dd_0, dd_1, dd_2, part, M, N, DENSE)
    if other is not None:
        to += tl.num_programs(1) * channels * width
        tl.store(to + p[:, None] * M + (M - ahead) % M, tl.where(ahead <= 0, dT, 0.0))
        _store(to + M * M, p, n_ok, m, modes, eE_0, eE_1, eC_0, eC_1, ed_0, ed_1, ed_2, part, M, N, DENSE)


@jit
def _no_decay(some: tl.constexpr, N: tl.constexpr, DENSE: tl.constexpr):
    none = tl.zeros((some, N) if DENSE else (N,), tl.float32)  # this program's rows of a matrix
    return none, none, none


@jit
def _add(
    states, adjoints, u_t, g_t, here, m, modes, dE_0, dE_1, dC_0, dC_1, dd_0, dd_1, dd_2,
    N: tl.constexpr, PRECISION: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The sums with those of a block of chunks added, whose states are at `states` and `adjoints` (Q, 1)."""
    n = tl.arange(0, N)[None, :]
    ok = here & (n < modes)
    s_0, a_0 = tl.load(states + n, mask=ok, other=0.0), tl.load(adjoints + n, mask=ok, other=0.0)
    dE_0 = dot(u_t, a_0, dE_0, PRECISION)
    dC_0 = dot(g_t, s_0, dC_0, PRECISION)
    if DENSE:
        a_some = tl.load(adjoints + m[None, :], mask=here & (m < modes)[None, :], other=0.0)
        dd_0 = dot(tl.trans(a_some), s_0, dd_0, PRECISION)
    else:
        s_1, a_1 = tl.load(states + modes + n, mask=ok, other=0.0), tl.load(adjoints + modes + n, mask=ok, other=0.0)
        dE_1 = dot(u_t, a_1, dE_1, PRECISION)
        dC_1 = dot(g_t, s_1, dC_1, PRECISION)
        s_0, s_1, a_0, a_1 = s_0.to(tl.float32), s_1.to(tl.float32), a_0.to(tl.float32), a_1.to(tl.float32)
        dd_0 += tl.sum(s_0 * a_0, 0)
        dd_1 += tl.sum(s_0 * a_1 - s_1 * a_0, 0)
        dd_2 += tl.sum(s_1 * a_1, 0)
    return dE_0, dE_1, dC_0, dC_1, dd_0, dd_1, dd_2


@jit
def _store(
    to, p, n_ok, m, modes, dE_0, dE_1, dC_0, dC_1, dd_0, dd_1, dd_2, part,
    M: tl.constexpr, N: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """All sums but dT; the decay's from part 0 alone, since all programs of a channel have the same of them."""
    n, size = tl.arange(0, N), M * modes
    at = to + p[:, None] * modes + n[None, :]
    tl.store(at, dE_0, mask=n_ok)
    if DENSE:
        tl.store(at + size, dC_0, mask=n_ok)
        tl.store(to + 2 * size + m[:, None] * modes + n[None, :], dd_0, mask=(m < modes)[:, None] & n_ok)
    else:
        tl.store(at + size, dE_1, mask=n_ok)
        tl.store(at + 2 * size, dC_0, mask=n_ok)
        tl.store(at + 3 * size, dC_1, mask=n_ok)
        if part == 0:
            last = to + 4 * size + n
            tl.store(last, dd_0, mask=n < modes)
            tl.store(last + modes, dd_1, mask=n < modes)
            tl.store(last + 2 * modes, dd_2, mask=n < modes)
