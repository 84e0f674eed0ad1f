"""Triton where it is installed, and what several kernels share: sizes, products, the algebra of slots.

A slot (see `wavessm.ops.modes`) is a complex number (c = 1) or two real ones (c = 0); in kernels its halves are two
tensors, x_0 and x_1. For z = f(x) in that algebra the gradient of x is conj(f′(x)) times that of z: `conj_mul`.
"""

from __future__ import annotations

from typing import Any

try:
    import triton  # type: ignore
    import triton.language as tl  # type: ignore

    jit, missing = triton.jit, None
except ImportError as error:  # kernels stay plain Python functions, and `scan.unavailable` gives the reason
    tl, missing = None, str(error)

    def jit(function: Any) -> Any:
        """The function as it is."""
        return function


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int, min_value: int = 16) -> int:
    """The smallest power of two that is at least n and `min_value`."""
    return max(min_value, 1 << (n - 1).bit_length())


@jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """total + a b on tensor cores, in the arithmetic PRECISION."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "rounded":  # the interpreter would multiply the bit patterns of bfloat16
        return tl.dot(a.to(tl.bfloat16).to(tl.float32), b.to(tl.bfloat16).to(tl.float32), total)
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)


@jit
def mul(a_0, a_1, b_0, b_1, c):
    """a b"""
    cross = a_1 * b_1
    return a_0 * b_0 - c * cross, c * (a_0 * b_1 + a_1 * b_0) + (1.0 - c) * cross


@jit
def conj_mul(a_0, a_1, g_0, g_1, c):
    """conj(a) g"""
    return mul(a_0, a_1 * (1.0 - 2.0 * c), g_0, g_1, c)


@jit
def powers(a_0, a_1, l, c, BITS: tl.constexpr):
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
def load_f64(pointer, mask):
    """float64, zero outside the mask."""
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float64)


@jit
def slot_weights(n, modes, n_complex):
    """The weights of both halves of slots n, and c."""
    c = (n < n_complex).to(tl.float64)
    beside = 2 * n - n_complex + 1 < modes
    return 1.0 + c, tl.where(n < n_complex, 2.0, tl.where(beside, 1.0, 0.0)).to(tl.float64), c


@jit
def continuous(log_decay, frequency, copy, n, ok, modes, n_complex):
    """λ of slots n; an empty half decays like its neighbour."""
    is_complex = n < n_complex
    mode = tl.where(is_complex, n, 2 * n - n_complex)
    lam_0 = -tl.exp(load_f64(log_decay + copy * modes + mode, ok))
    beside = tl.minimum(mode + 1, modes - 1)
    other = -tl.exp(load_f64(log_decay + copy * modes + beside, ok & (n >= n_complex)))
    return lam_0, tl.where(is_complex, load_f64(frequency + copy * n_complex + n, ok & is_complex), other)


@jit
def store_rates(to, n, lam_0, lam_1, g_0, g_1, ok, modes, n_complex):
    """Gradients of log(−Re λ) and, behind them, of Im λ, from those of λ."""
    is_complex = n < n_complex
    mode = tl.where(is_complex, n, 2 * n - n_complex)
    empty = (n >= n_complex) & (mode + 1 >= modes)
    to_decay = g_0 * lam_0 + tl.where(empty, g_1 * lam_1, 0.0)
    tl.store(to + mode, to_decay.to(tl.float32), mask=ok)
    tl.store(to + mode + 1, (g_1 * lam_1).to(tl.float32), mask=ok & (n >= n_complex) & (mode + 1 < modes))
    tl.store(to + modes + n, g_1.to(tl.float32), mask=ok & is_complex)
