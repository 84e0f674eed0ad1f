"""From a diagonal layer's parameters to the tables of `walk` in two launches, and back to their gradients in one.

The arithmetic is that of `modes.sample` and `tables.diagonal_tables`, in float64 and cast once; done operation by
operation it would take longer to launch than the scan itself.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from wavessm.ops.modes import Modes
from wavessm.ops.triton.language import cdiv, continuous, jit, kernel, load_f64, slot_weights, store_rates, tl
from wavessm.ops.triton.slots import add, conj_mul, load_slots, mul, powers, scale, store_slots, sub, weigh

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


def empty_tables(layer: Modes, M: int) -> tuple[KernelTables, list[Tensor]]:
    """Memory for the tables of chunks of M samples (a power of two), float32, and in float64 for what their gradients
    need again: numbers of each slot, or the system and its chains (see `low_rank`)."""
    directions, channels, slots, _ = layer.C.shape
    planes, width = (2, slots) if layer.P is None else (1, 2 * slots)
    decay = (channels, 3, slots) if layer.P is None else (channels, width, width)
    shapes = (directions, channels, M), (channels, planes, M, width), (directions, channels, planes, width, M), decay
    made: list[tuple[int, ...]] = [(SAMPLED, channels, slots)]
    if layer.P is not None:
        rank = layer.P.shape[1]
        made = [(channels, 2 + 2 * rank, width), (channels, 1 + directions + 2 * rank, M, width)]
    tables = KernelTables(*(torch.empty(shape, device=layer.C.device) for shape in shapes))
    return tables, [torch.empty(shape, dtype=torch.float64, device=layer.C.device) for shape in made]


def fill_diagonal(layer: Modes, D: Tensor, rate: float, tables: KernelTables, made: list[Tensor]) -> None:
    """The tables of a diagonal layer, with the direct path D (channels,) in K."""
    log_dt, log_decay, frequency, B, C = layer[:5]
    directions, channels, slots, _ = C.shape
    M, sizes, sampled = tables.K.shape[2], sizes_of(layer), made[0]
    sample_kernel[(cdiv(channels * slots, 64),)](log_dt, log_decay, frequency, sampled, rate, *sizes, N=64, num_warps=2)
    table_kernel[(channels, directions)](
        B, C, D, sampled, *tables, *sizes, M=M, N=SLOTS, BITS=M.bit_length() - 1, num_warps=8
    )


def diagonal_gradients(layer: Modes, made: list[Tensor], sums: Tensor, rate: float, M: int) -> tuple[Tensor, ...]:
    """Gradients from partial sums of the tables' gradients, see `ScanPlan.backward`: of log Δ (channels,), of decays,
    frequencies and B side by side (copies, …), of C and of D."""
    (directions, channels, slots, _), (copies, count) = layer.C.shape, layer.log_decay.shape
    n_complex, blocks, empty = layer.frequency.shape[1], cdiv(slots, SLOTS), partial(torch.empty, device=sums.device)
    rows, ddt = empty(channels, count + n_complex + 2 * slots), empty(channels, blocks)
    dC, dD = empty(layer.C.shape), empty(channels)
    table_gradient_kernel[(channels, blocks)](
        layer.B, layer.C, *made, sums, ddt, rows, dC, dD, *sizes_of(layer), sums.shape[1],
        DIRECTIONS=directions, M=M, N=SLOTS, BITS=M.bit_length() - 1, num_warps=8,
    )  # fmt: skip
    return ddt.sum(1), rows.view(copies, -1, rows.shape[1]).sum(1), dC, dD


def sizes_of(layer: Modes) -> tuple[int, int, int, int, int]:
    """channels, channels per copy, modes, n_complex, slots: what every kernel of tables takes."""
    _, channels, slots, _ = layer.C.shape
    copies, count = layer.log_decay.shape
    return channels, channels // copies, count, layer.frequency.shape[1], slots


@kernel
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
    lam = continuous(log_decay, frequency, h // per_copy, n, ok, modes, n_complex)
    z = scale(dt, lam)
    turned = tl.exp(z[0]) * tl.cos(c * z[1]), c * tl.exp(z[0]) * tl.sin(c * z[1]) + (1.0 - c) * tl.exp((1.0 - c) * z[1])
    # φ(z) = (e^z − 1)/z and φ′(z) = (e^z − φ(z))/z, by their series near zero, where the differences would cancel
    size_0, size_1 = z[0] * z[0] + c * z[1] * z[1], z[1] * z[1] + c * z[0] * z[0]
    small_0, small_1 = size_0 < 1e-4, size_1 < 1e-4
    by = z[0] / tl.where(small_0, 1.0, size_0), (1.0 - 2.0 * c) * z[1] / tl.where(small_1, 1.0, size_1)
    far = mul((turned[0] - 1.0, turned[1] - (1.0 - c)), by, c)
    near = z[0] * 0.0 + 1.0, z[1] * 0.0 + (1.0 - c)
    slope = near
    for j in tl.static_range(6):  # z^k / (k + 1)! and (k + 1) z^k / (k + 2)!, from the last term inwards
        k = 6 - j
        near = mul((z[0] / (k + 1), z[1] / (k + 1)), near, c)
        near = near[0] + 1.0, near[1] + (1.0 - c)
        slope = mul(scale((k + 1) / (k * (k + 2)), z), slope, c)
        slope = slope[0] + 1.0, slope[1] + (1.0 - c)
    phi = tl.where(small_0, near[0], far[0]), tl.where(small_1, near[1], far[1])
    steep = mul(sub(turned, phi), by, c)
    slope = tl.where(small_0, slope[0] / 2, steep[0]), tl.where(small_1, slope[1] / 2, steep[1])
    step, to = channels * slots, sampled + at
    tl.store(to, dt, mask=ok)
    store_slots(to + step, lam, ok, step)
    store_slots(to + 3 * step, turned, ok, step)
    store_slots(to + 5 * step, scale(dt, phi), ok, step)
    store_slots(to + 7 * step, scale(dt * dt, slope), ok, step)


@kernel
def table_kernel(
    B, C, D, sampled, K, E, out, decay, channels, per_copy, modes, n_complex, slots,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The tables of one channel and direction, N slots at a time, from the powers p = λ̄^l, l < M."""
    h, direction = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = direction * channels + h
    l = tl.arange(0, M)[None, :]
    size = M * slots
    response = tl.zeros((M,), tl.float64)
    for first in range(0, slots, N):
        n = first + tl.arange(0, N)[:, None]
        ok = n < slots
        weight, c = slot_weights(n, modes, n_complex)
        here, step = sampled + h * slots + n, channels * slots
        a, w = load_slots(here + 3 * step, ok, step), load_slots(here + 5 * step, ok, step)
        w = mul(w, load_slots(B + (h // per_copy * slots + n) * 2, ok), c)
        w = mul(weigh(weight, load_slots(C + (place * slots + n) * 2, ok)), w, c)
        p, over = powers(a, l, c, BITS)
        read = mul(w, p, c)
        response += tl.sum(read[0] + (1.0 - c) * read[1], 0)
        read = mul(a, read, c)
        store_slots(out + place * 2 * size + n * M + l, (read[0], (1.0 - 2.0 * c) * read[1]), ok, size)
        if direction == 0:
            store_slots(E + h * 2 * size + (M - 1 - l) * slots + n, p, ok, size)
            at_decay = decay + h * 3 * slots + n
            store_slots(at_decay, (over[0], c * over[1]), ok, slots)
            tl.store(at_decay + 2 * slots, (c * over[0] + (1.0 - c) * over[1]).to(tl.float32), mask=ok)
    direct = tl.where((tl.arange(0, M) == 0) & (direction == 0), tl.load(D + h).to(tl.float64), 0.0)
    tl.store(K + place * M + tl.arange(0, M), (response + direct).to(tl.float32))


@jit
def _collect(
    sums, direction: tl.constexpr, h, n, c, ok, channels, slots, tiles, g, o, M: tl.constexpr, N: tl.constexpr
):
    """One direction's gradients of K and v p from all partial sums; those of p and λ̄^M are added to g and o."""
    l, size = tl.arange(0, M)[None, :], M * slots
    width = M * M + 4 * size + 3 * slots
    k = tl.zeros((M,), tl.float64)
    q = tl.zeros((N, M), tl.float64), tl.zeros((N, M), tl.float64)
    for tile in range(tiles):
        here = sums + ((direction * tiles + tile) * channels + h) * width
        # the diagonals of dT were stored as columns
        k += tl.sum(tl.load(here + tl.arange(0, M)[:, None] * M + l).to(tl.float64), 0)
        g = add(g, load_slots(here + M * M + (M - 1 - l) * slots + n, ok, size))
        read = load_slots(here + M * M + 2 * size + l * slots + n, ok, size)
        q = add(q, (read[0], (1.0 - 2.0 * c) * read[1]))
        at_d = here + M * M + 4 * size + n
        d_0, d_1, d_2 = load_f64(at_d, ok), load_f64(at_d + slots, ok), load_f64(at_d + 2 * slots, ok)
        o = add(o, (d_0 + c * d_2, c * d_1 + (1.0 - c) * d_2))
    return k, q, g, o


@kernel
def table_gradient_kernel(
    B, C, sampled, sums, ddt, rows, dC, dD, channels, per_copy, modes, n_complex, slots, tiles,
    DIRECTIONS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Gradients of N slots of one channel. p = λ̄^l has gradient g; v = w λ̄ and C = conj(v p); k and q are those of K
    and of v p; f of the product B φ Δ; o of λ̄^M."""
    h, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n, l = block * N + tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    ok = n < slots
    weight, c = slot_weights(n, modes, n_complex)
    at_n, stride = sampled + h * slots + n, channels * slots
    dt, lam, a = load_f64(at_n, ok), load_slots(at_n + stride, ok, stride), load_slots(at_n + 3 * stride, ok, stride)
    phi = load_slots(at_n + 5 * stride, ok, stride)  # times Δ
    slope = load_slots(at_n + 7 * stride, ok, stride)  # times Δ²
    B = load_slots(B + (h // per_copy * slots + n) * 2, ok)
    p, over = powers(a, l, c, BITS)
    held = mul(phi, B, c)
    g = tl.zeros((N, M), tl.float64), tl.zeros((N, M), tl.float64)
    z = tl.zeros((N, 1), tl.float64), tl.zeros((N, 1), tl.float64)
    o, f = z, z
    for direction in tl.static_range(DIRECTIONS):
        k, q, g, o = _collect(sums, direction, h, n, c, ok, channels, slots, tiles, g, o, M, N)
        if direction == 0 and block == 0:
            tl.store(dD + h, tl.sum(tl.where(tl.arange(0, M) == 0, k, 0.0), 0).to(tl.float32))
        k = k[None, :], (1.0 - c) * k[None, :]
        at = ((direction * channels + h) * slots + n) * 2
        read = weigh(weight, load_slots(C + at, ok))
        w = mul(read, held, c)
        v = mul(w, a, c)
        g = add(add(g, conj_mul(w, k, c)), conj_mul(v, q, c))
        v_g = sum_samples(conj_mul(p, q, c))
        z = add(z, conj_mul(v, v_g, c))
        w_g = add(sum_samples(conj_mul(p, k, c)), conj_mul(a, v_g, c))
        store_slots(dC + at, weigh(weight, conj_mul(held, w_g, c)), ok)
        f = add(f, conj_mul(read, w_g, c))

    # to z = log λ̄: from p, with derivative l p, and from λ̄^M, with derivative M λ̄^M
    z = add(z, add(sum_samples(scale(l, conj_mul(p, g, c))), scale(M, conj_mul(over, o, c))))
    to = rows + h * (modes + n_complex + 2 * slots)
    store_slots(to + modes + n_complex + 2 * n, conj_mul(phi, f, c), ok)
    f = conj_mul(B, f, c)
    # Δφ(Δλ) has derivative e^z by Δ and Δ² φ′(z) by λ
    step = lam[0] * z[0] + lam[1] * z[1] + a[0] * f[0] + a[1] * f[1]
    tl.store(ddt + h * tl.num_programs(1) + block, tl.sum(tl.where(ok, dt * step, 0.0)).to(tl.float32))
    store_rates(to, n, lam, add(scale(dt, z), conj_mul(slope, f, c)), ok, modes, n_complex)


@jit
def sum_samples(x):
    """Σ over the samples of a chunk, (N, M) → (N, 1)."""
    return tl.sum(x[0], 1)[:, None], tl.sum(x[1], 1)[:, None]
