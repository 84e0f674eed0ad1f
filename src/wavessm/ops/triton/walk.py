"""Kernels of the chunked scan and of its tables' gradients; `plan` launches them and explains the cut into rows.

A state has N pairs of reals, split into two planes; in the DENSE variant it has N reals and one plane. Tables are those
of `wavessm.ops.tables` with planes, E (channels, planes, M, N) and C (channels, planes, N, M), and the decay of a chunk
is three numbers for each slot, d = (d₀, d₁, d₂), or a matrix:

    s₀' = d₀ s₀ − d₁ s₁ + u E₀        s₁' = d₂ s₁ + d₁ s₀ + u E₁            (d₁ = 0 for a slot of two real modes)

Every sum over samples runs on tensor cores. Backwards in time (REVERSE) the transposes of the tables change places:
Tᵀ for T, Cᵀ for E, Eᵀ for C, the transpose of d for d. Length and strides of signals come in units of EVEN, a power of
two, so that the compiler sees what divides them and moves several samples at a time.
"""

from __future__ import annotations

from wavessm.ops.triton.language import dot, jit, kernel, tl


@jit
def _table(pointer, mask, PRECISION: tl.constexpr):
    """A table in the type it is multiplied in, zero outside the mask."""
    values = tl.load(pointer, mask=mask, other=0.0)
    return values.to(tl.bfloat16) if PRECISION == "bf16" else values


@jit
def _input_and_output(
    E, C, h, place, modes,
    plane: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DENSE: tl.constexpr, REVERSE: tl.constexpr, PRECISION:
    tl.constexpr,
):  # fmt: skip
    """The tables from samples to state (M, N) and from state to samples (N, M), of one plane."""
    i, n = tl.arange(0, M), tl.arange(0, N)
    planes = 1 if DENSE else 2
    E += (h * planes + plane) * M * modes
    C += (place * planes + plane) * M * modes
    if REVERSE:
        into = _table(C + i[:, None] + n[None, :] * M, (n < modes)[None, :], PRECISION)
        out = _table(E + i[None, :] * modes + n[:, None], (n < modes)[:, None], PRECISION)
    else:
        into = _table(E + i[:, None] * modes + n[None, :], (n < modes)[None, :], PRECISION)
        out = _table(C + i[None, :] + n[:, None] * M, (n < modes)[:, None], PRECISION)
    return into, out


@jit
def _decays(decay, h, modes, N: tl.constexpr, DENSE: tl.constexpr, REVERSE: tl.constexpr):
    """d₀, d₁, d₂ as (1, N); or three times the matrix that rows of states are multiplied by from the right."""
    n = tl.arange(0, N)
    if DENSE:
        ok = (n < modes)[None, :] & (n < modes)[:, None]
        step = (modes, 1) if REVERSE else (1, modes)
        d_0 = tl.load(decay + h * modes * modes + n[:, None] * step[0] + n[None, :] * step[1], mask=ok, other=0.0)
        return d_0, d_0, d_0
    else:
        at, ok = decay + h * 3 * modes + n[None, :], (n < modes)[None, :]
        d_0 = tl.load(at, mask=ok, other=0.0)
        d_1 = tl.load(at + modes, mask=ok, other=0.0)
        d_2 = tl.load(at + 2 * modes, mask=ok, other=0.0)
        if REVERSE:
            d_1 = -d_1
        return d_0, d_1, d_2


@jit
def _toeplitz(
    K, h, channels, M: tl.constexpr, REVERSE: tl.constexpr, DIRECTIONS: tl.constexpr, PRECISION: tl.constexpr
):
    """From the samples of a chunk to its outputs (M, M), in all directions together."""
    i = tl.arange(0, M)
    lag = i[:, None] - i[None, :] if REVERSE else i[None, :] - i[:, None]
    T = tl.load(K + h * M + lag, mask=lag >= 0, other=0.0)
    if DIRECTIONS == 2:
        T += tl.load(K + (channels + h) * M - lag, mask=lag <= 0, other=0.0)
    return T.to(tl.bfloat16) if PRECISION == "bf16" else T


@jit
def _first_states(begin, at, ok, R: tl.constexpr, N: tl.constexpr):
    """The states before the rows, zero if none are given. (R, N)"""
    state = tl.zeros((R, N), tl.float32)
    if begin is not None:
        state += tl.load(begin + at, mask=ok, other=0.0)
    return state


@jit
def _next_state(state, decayed, chunk, into, whole, REVERSE: tl.constexpr, PRECISION: tl.constexpr):
    """A plane of the state after a chunk. An incomplete chunk does not decay it: forward none follows, backward the
    state beyond is zero."""
    after = tl.where(whole, decayed, state) if REVERSE else decayed
    after = dot(chunk, into, after, PRECISION)
    return after if REVERSE else tl.where(whole, after, state)


@kernel
def walk_kernel(
    x, K, E, C, decay, begin, y, states, largest, ends, x_batch, x_channel, rows, segments, steps, channels, modes,
    chunks, length,
    M: tl.constexpr, N: tl.constexpr, R: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, DENSE: tl.constexpr,
    REVERSE: tl.constexpr, DIRECTION: tl.constexpr, DIRECTIONS: tl.constexpr,
):  # fmt: skip
    """R rows of one channel from the states `begin` to `ends`; y, the states before each chunk, and the largest |x| and
    |state| of the channel if wanted (as bits, whose order is that of the numbers).

    N is a power of two here. DIRECTION 0 writes y with the contribution of a chunk to itself in all DIRECTIONS, 1 adds
    to the y that is there.
    """
    length *= EVEN
    h = tl.program_id(0).to(tl.int64)
    place = DIRECTION * channels + h
    row = tl.program_id(1) * R + tl.arange(0, R)
    signal, segment = (row // segments).to(tl.int64), row % segments
    i, n = tl.arange(0, M), tl.arange(0, N)
    row_ok, n_ok = (row < rows)[:, None], (n < modes)[None, :]
    planes = 1 if DENSE else 2

    in_0, out_0 = _input_and_output(E, C, h, place, modes, 0, M, N, DENSE, REVERSE, PRECISION)
    d_0, d_1, d_2 = _decays(decay, h, modes, N, DENSE, REVERSE)
    if DIRECTION == 0:
        T = _toeplitz(K, h, channels, M, REVERSE, DIRECTIONS, PRECISION)
    at_edge = ((row.to(tl.int64) * channels + h) * planes * modes)[:, None] + n[None, :]
    s_0 = _first_states(begin, at_edge, row_ok & n_ok, R, N)
    if not DENSE:
        in_1, out_1 = _input_and_output(E, C, h, place, modes, 1, M, N, DENSE, REVERSE, PRECISION)
        s_1 = _first_states(begin, at_edge + modes, row_ok & n_ok, R, N)

    start = segment * (steps * M)
    at_x = x + (signal * x_batch * EVEN + h * x_channel * EVEN + start)[:, None] + i[None, :]
    at_y = (signal * channels * length + h * length + start)[:, None] + i[None, :]
    first_chunk = (place * (rows // segments) + signal) * chunks + segment * steps
    at_states = (first_chunk * planes * modes)[:, None] + n[None, :]
    if largest is not None:
        largest_x, largest_state = tl.zeros((R, 1), tl.float32), tl.zeros((R, 1), tl.float32)
    for k in range(steps):
        step = steps - 1 - k if REVERSE else k
        ok = row_ok & ((start + step * M)[:, None] + i[None, :] < length)
        chunk = tl.load(at_x + step * M, mask=ok, other=0.0)
        whole = (start + step * M + M <= length)[:, None]
        seen_0 = tl.where(whole, s_0, 0.0) if REVERSE else s_0
        if not DENSE:
            seen_1 = tl.where(whole, s_1, 0.0) if REVERSE else s_1
        if y is not None:
            out = dot(seen_0, out_0, tl.zeros((R, M), tl.float32), PRECISION)
            if not DENSE:
                out = dot(seen_1, out_1, out, PRECISION)
            if DIRECTION == 0:
                out = dot(chunk, T, out, PRECISION)
            else:
                out += tl.load(y + at_y + step * M, mask=ok, other=0.0).to(tl.float32)
            tl.store(y + at_y + step * M, out.to(y.dtype.element_ty), mask=ok)
        if states is not None:
            to, there = states + at_states + step * planes * modes, row_ok & (start + step * M < length)[:, None] & n_ok
            tl.store(to, seen_0.to(states.dtype.element_ty), mask=there)
            if not DENSE:
                tl.store(to + modes, seen_1.to(states.dtype.element_ty), mask=there)
        if largest is not None:
            largest_x = tl.maximum(largest_x, tl.max(tl.abs(chunk), 1, keep_dims=True))
            largest_state = tl.maximum(largest_state, tl.max(tl.abs(seen_0), 1, keep_dims=True))
            if not DENSE:
                largest_state = tl.maximum(largest_state, tl.max(tl.abs(seen_1), 1, keep_dims=True))
        if DENSE:
            decayed = dot(s_0, d_0, tl.zeros((R, N), tl.float32), PRECISION)
        else:
            decayed = d_0 * s_0 - d_1 * s_1
            s_1 = _next_state(s_1, d_2 * s_1 + d_1 * s_0, chunk, in_1, whole, REVERSE, PRECISION)
        s_0 = _next_state(s_0, decayed, chunk, in_0, whole, REVERSE, PRECISION)
    tl.store(ends + at_edge, s_0, mask=row_ok & n_ok)
    if not DENSE:
        tl.store(ends + at_edge + modes, s_1, mask=row_ok & n_ok)
    if largest is not None:
        tl.atomic_max(largest + 2 * place, tl.max(largest_x).to(tl.int32, bitcast=True))
        tl.atomic_max(largest + 2 * place + 1, tl.max(largest_state).to(tl.int32, bitcast=True))


@jit
def _power(d_0, d_1, d_2, steps):
    """D^steps by squaring, in float64 because each square doubles the relative error. (1, N) each"""
    d_0, d_1, d_2 = d_0.to(tl.float64), d_1.to(tl.float64), d_2.to(tl.float64)
    over_0, over_1 = tl.full(d_0.shape, 1.0, tl.float64), tl.zeros_like(d_0)
    over_2 = over_0
    left = steps
    while left > 0:
        if left % 2 == 1:
            cross = over_1 * d_1
            over_0, over_1, over_2 = over_0 * d_0 - cross, over_0 * d_1 + over_1 * d_2, over_2 * d_2 - cross
        d_0, d_1, d_2 = d_0 * d_0 - d_1 * d_1, d_1 * (d_0 + d_2), d_2 * d_2 - d_1 * d_1
        left = left // 2
    return over_0.to(tl.float32), over_1.to(tl.float32), over_2.to(tl.float32)


@kernel
def bridge_kernel(begin, ends, decay, channels, modes, segments, steps, N: tl.constexpr, REVERSE: tl.constexpr):
    """begin[k + 1] = ends[k] + D^steps begin[k] along one signal's segments (k − 1 and Dᵀ in reverse).

    The first walk began at the true state in the first segment and at zero in the others, so the sum starts at zero.
    """
    h, signal = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)[None, :]
    ok = n < modes
    d_0, d_1, d_2 = _decays(decay, h, modes, N, False, REVERSE)
    over_0, over_1, over_2 = _power(d_0, d_1, d_2, steps)
    s_0, s_1 = tl.zeros((1, N), tl.float32), tl.zeros((1, N), tl.float32)
    for k in range(segments - 1):
        source = segments - 1 - k if REVERSE else k
        target = source - 1 if REVERSE else source + 1
        at = ((signal * segments + source) * channels + h) * 2 * modes + n
        to = ((signal * segments + target) * channels + h) * 2 * modes + n
        next_0 = tl.load(ends + at, mask=ok, other=0.0) + over_0 * s_0 - over_1 * s_1
        s_1 = tl.load(ends + at + modes, mask=ok, other=0.0) + over_2 * s_1 + over_1 * s_0
        s_0 = next_0
        tl.store(begin + to, s_0, mask=ok)
        tl.store(begin + to + modes, s_1, mask=ok)


@kernel
def sum_kernel(
    u, g, states, adjoints, largest_u, largest_g, sums, u_batch, u_channel, g_batch, g_channel, blocks, batch, channels,
    modes, chunks, length,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    DENSE: tl.constexpr, DIRECTIONS: tl.constexpr,
):  # fmt: skip
    """Partial sums of the tables' gradients: P of their M rows for one channel, over `blocks` blocks of Q chunks of all
    signals. With u, s the input and states of the walk that runs forward in time, and g, a those of the adjoint,

        dT = Σ uᵀ g      dE = Σ uᵀ a      dCᵀ = Σ gᵀ s      dd = Σ s a

    The first programs sum dT, the others all else of a direction. In the one that reads backwards the adjoint runs
    forward in time: u and g, s and a change places, so one product gives dT of both. fp32 needs the largest number of
    each factor, as `walk_kernel` finds them.
    """
    length *= EVEN
    part, direction = tl.program_id(0) % (M // P), tl.program_id(2) - 1
    h, first = (tl.program_id(0) // (M // P)).to(tl.int64), part * P
    planes = 1 if DENSE else 2
    width = M * M + 2 * planes * M * modes + (modes * modes if DENSE else 3 * modes)
    to = sums + (tl.program_id(1) * channels + h) * width
    back = to + tl.num_programs(1) * channels * width
    place = h
    if DIRECTIONS == 2:
        swap = direction == 1
        u_batch, g_batch = tl.where(swap, g_batch, u_batch), tl.where(swap, u_batch, g_batch)
        u_channel, g_channel = tl.where(swap, g_channel, u_channel), tl.where(swap, u_channel, g_channel)
        if swap:
            u, g, states, adjoints, to, place = g, u, adjoints, states, back, channels + h
            if PRECISION == "fp32":
                largest_u, largest_g = largest_g, largest_u
    largest = None, None, None, None
    if PRECISION == "fp32":
        largest = (
            _from_bits(largest_u + 2 * place), _from_bits(largest_u + 2 * place + 1),
            _from_bits(largest_g + 2 * place), _from_bits(largest_g + 2 * place + 1),
        )  # fmt: skip
    u += h * u_channel * EVEN
    g += h * g_channel * EVEN
    chunk = tl.program_id(1) * blocks * Q + tl.arange(0, Q)
    p = first + tl.arange(0, P)
    if direction < 0:
        dT = tl.zeros((P, M), tl.float32)
        for block in range(blocks):
            u_t = tl.trans(_samples(u, u_batch, chunk + block * Q, p, batch, chunks, length, M, EVEN))
            g_all = _samples(g, g_batch, chunk + block * Q, tl.arange(0, M), batch, chunks, length, M, EVEN)
            dT = dot(u_t, g_all, dT, PRECISION, largest[0], largest[2])
        # Column d of row p is dT[p, p + d]; the places left over take zeros.
        ahead = tl.arange(0, M)[None, :] - p[:, None]
        tl.store(to + p[:, None] * M + (ahead + M) % M, tl.where(ahead >= 0, dT, 0.0))
        if DIRECTIONS == 2:
            tl.store(back + p[:, None] * M + (M - ahead) % M, tl.where(ahead <= 0, dT, 0.0))
    else:
        at = place * batch * chunks * planes * modes
        _sum_states(
            u, g, states + at, adjoints + at, to + M * M, largest, u_batch, g_batch, chunk, p, part, blocks, batch,
            modes, chunks, length, M, N, P, Q, EVEN, PRECISION, DENSE,
        )  # fmt: skip


@jit
def _from_bits(pointer):
    """A float32 whose bits are stored as an integer."""
    return tl.load(pointer).to(tl.float32, bitcast=True)


@jit
def _samples(x, x_batch, chunk, i, batch, chunks, length, M: tl.constexpr, EVEN: tl.constexpr):
    """Samples i of each chunk, zero beyond the signals. (Q, samples)"""
    signal, start = (chunk // chunks).to(tl.int64), (chunk % chunks) * M
    ok = (signal < batch)[:, None] & (start[:, None] + i[None, :] < length)
    return tl.load(x + (signal * x_batch * EVEN + start)[:, None] + i[None, :], mask=ok, other=0.0)


@jit
def _sum_states(
    u, g, states, adjoints, to, largest, u_batch, g_batch, chunk, p, part, blocks, batch, modes, chunks, length,
    M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """All sums but dT; part 0 alone stores those of the decay, since all parts of a channel have the same of them."""
    planes = 1 if DENSE else 2
    some: tl.constexpr = N * P // M if N * P // M > 16 else 16
    n, m = tl.arange(0, N), part * some + tl.arange(0, some)  # m: this program's rows of a matrix D
    dE_0, dC_0 = tl.zeros((P, N), tl.float32), tl.zeros((P, N), tl.float32)
    dE_1, dC_1 = dE_0, dC_0
    dd_0 = tl.zeros((some, N) if DENSE else (N,), tl.float32)
    dd_1, dd_2 = dd_0, dd_0
    most_u, most_state, most_g, most_adjoint = largest
    for block in range(blocks):
        here = chunk + block * Q
        u_t = tl.trans(_samples(u, u_batch, here, p, batch, chunks, length, M, EVEN))
        g_t = tl.trans(_samples(g, g_batch, here, p, batch, chunks, length, M, EVEN))
        at, inside = (here.to(tl.int64) * planes * modes)[:, None], (here < batch * chunks)[:, None]
        ok = inside & (n < modes)[None, :]
        s_0 = tl.load(states + at + n[None, :], mask=ok, other=0.0)
        a_0 = tl.load(adjoints + at + n[None, :], mask=ok, other=0.0)
        dE_0 = dot(u_t, a_0, dE_0, PRECISION, most_u, most_adjoint)
        dC_0 = dot(g_t, s_0, dC_0, PRECISION, most_g, most_state)
        if DENSE:
            a_some = tl.load(adjoints + at + m[None, :], mask=inside & (m < modes)[None, :], other=0.0)
            dd_0 = dot(tl.trans(a_some), s_0, dd_0, PRECISION, most_adjoint, most_state)
        else:
            s_1 = tl.load(states + at + modes + n[None, :], mask=ok, other=0.0)
            a_1 = tl.load(adjoints + at + modes + n[None, :], mask=ok, other=0.0)
            dE_1 = dot(u_t, a_1, dE_1, PRECISION, most_u, most_adjoint)
            dC_1 = dot(g_t, s_1, dC_1, PRECISION, most_g, most_state)
            s_0, s_1, a_0, a_1 = s_0.to(tl.float32), s_1.to(tl.float32), a_0.to(tl.float32), a_1.to(tl.float32)
            dd_0 += tl.sum(s_0 * a_0, 0)
            dd_1 += tl.sum(s_0 * a_1 - s_1 * a_0, 0)
            dd_2 += tl.sum(s_1 * a_1, 0)
    size, n_ok = M * modes, (n < modes)[None, :]
    last, to = to + 2 * planes * size, to + p[:, None] * modes + n[None, :]
    tl.store(to, dE_0, mask=n_ok)
    tl.store(to + planes * size, dC_0, mask=n_ok)
    if DENSE:
        tl.store(last + m[:, None] * modes + n[None, :], dd_0, mask=(m < modes)[:, None] & n_ok)
    else:
        tl.store(to + size, dE_1, mask=n_ok)
        tl.store(to + 3 * size, dC_1, mask=n_ok)
        if part == 0:
            tl.store(last + n, dd_0, mask=n < modes)
            tl.store(last + modes + n, dd_1, mask=n < modes)
            tl.store(last + 2 * modes + n, dd_2, mask=n < modes)
