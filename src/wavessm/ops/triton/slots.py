"""The algebra of slots (`modes`) in kernels, float64: a slot is a complex number (c = 1) or two real ones (c = 0).

For z = f(x) in that algebra, x has conj(f′(x)) times the gradient of z: `back`.
"""

from __future__ import annotations

from wavessm.ops.triton.language import jit, missing

if missing is None:
    import triton.language as tl  # type: ignore


@jit
def mul(a_0: tl.tensor, a_1: tl.tensor, b_0: tl.tensor, b_1: tl.tensor, c: tl.tensor) -> tl.tensor:
    cross = a_1 * b_1
    return a_0 * b_0 - c * cross, c * (a_0 * b_1 + a_1 * b_0) + (1.0 - c) * cross


@jit
def back(a_0: tl.tensor, a_1: tl.tensor, g_0: tl.tensor, g_1: tl.tensor, c: tl.tensor) -> tl.tensor:
    """conj(a) g"""
    return mul(a_0, a_1 * (1.0 - 2.0 * c), g_0, g_1, c)


@jit
def powers(a_0: tl.tensor, a_1: tl.tensor, l: tl.tensor, c: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """a^l for l < M = 2^BITS, and a^M: products of a, a², a⁴, … by the bits of l.

    A sine of each element in float64 is slow and its code large; six products in float64 cost nothing in accuracy.
    """
    p_0, p_1 = l * a_0 * 0.0 + 1.0, l * a_0 * 0.0 + (1.0 - c)
    for bit in range(BITS):
        chosen = (l >> bit) % 2 == 1
        next_0, next_1 = mul(p_0, p_1, a_0, a_1, c)
        p_0, p_1 = tl.where(chosen, next_0, p_0), tl.where(chosen, next_1, p_1)
        a_0, a_1 = mul(a_0, a_1, a_0, a_1, c)
    return p_0, p_1, a_0, a_1


@jit
def double(pointer: tl.tensor, mask: tl.tensor) -> tl.tensor:
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float64)


@jit
def flags(
    n: tl.tensor, modes: tl.tensor, n_complex: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """The weights of both halves of slots n, and c."""
    c = (n < n_complex).to(tl.float64)
    beside = 2 * n - n_complex + 1 < modes
    return 1.0 + c, tl.where(n < n_complex, 2.0, tl.where(beside, 1.0, 0.0)).to(tl.float64), c


@jit
def continuous(
    log_decay: tl.tensor, frequency: tl.tensor, copy: tl.tensor, n: tl.tensor, ok: tl.tensor,
    modes: tl.tensor, n_complex: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """λ of slots n; an empty half decays like its neighbour."""
    turns = n < n_complex
    mode = tl.where(turns, n, 2 * n - n_complex)
    lam_0 = -tl.exp(double(log_decay + copy * modes + mode, ok))
    beside = tl.minimum(mode + 1, modes - 1)
    other = -tl.exp(double(log_decay + copy * modes + beside, ok & (n >= n_complex)))
    return lam_0, tl.where(turns, double(frequency + copy * n_complex + n, ok & turns), other)


@jit
def put_rates(
    to: tl.tensor, n: tl.tensor, lam_0: tl.tensor, lam_1: tl.tensor, g_0: tl.tensor, g_1: tl.tensor, ok: tl.tensor,
    modes: tl.tensor, n_complex: tl.tensor,
) -> None:  # fmt: skip
    """Gradients of log(−Re λ) and, behind them, of Im λ, from those of λ."""
    turns = n < n_complex
    mode = tl.where(turns, n, 2 * n - n_complex)
    empty = (n >= n_complex) & (mode + 1 >= modes)
    to_decay = g_0 * lam_0 + tl.where(empty, g_1 * lam_1, 0.0)
    tl.store(to + mode, to_decay.to(tl.float32), mask=ok)
    tl.store(to + mode + 1, (g_1 * lam_1).to(tl.float32), mask=ok & (n >= n_complex) & (mode + 1 < modes))
    tl.store(to + modes + n, g_1.to(tl.float32), mask=ok & turns)
